//! Tables: sorted immutable entries of one tree, in blocks anywhere in the volume.
//!
//! ```text
//! version -> root block -> index blocks -> data blocks
//!                |              of this table and of tables before it
//!                +-> range delete blocks
//! ```
//!
//! An index entry has all that must be known about a data block without reading it, its quotient
//! filter included. So another table can refer to the block by copying the entry: *stitching*.
//! Small tables have their index inside the root. A table that reads through branches miss often
//! has a filter of its own in memory, too ([`filter`]).
//!
//! - Entries are ordered by key, then newest first; versions of a key may span blocks.
//! - Every pointer holds the checksum of the block that it points at: an older block in its place
//!   is not taken for it.
//! - Nothing that comes from the device is trusted: a wrong byte is an error that says where.
//!
//! Paper: Shetty et al., *Building Workload-Independent Storage with VT-Trees*, FAST 2013, sections
//! 2.2 and 3.1. Differs: filters are kept for each block and not for each table.

mod batch_reads;
mod block;
mod block_iter;
mod block_source;
mod blocks;
mod check;
mod coalesced;
mod compress;
mod data_iter;
mod direct;
mod filter;
mod index_prefetch;
mod leaves;
mod loader;
mod newest;
mod point_read;
mod prefetched;
mod reader;
mod run;
mod stream;
mod writer;

pub(crate) use batch_reads::{BatchReads, ROUNDS_KEPT, Unfinished};
pub(crate) use block::{DataBlock, IndexBlock, Root};
pub(crate) use block_source::{BlockSource, OneByOne};
pub(crate) use direct::{DirectBlocks, ValueReader};
pub(crate) use filter::FilterBuilds;
pub(crate) use index_prefetch::{Held, IndexPrefetches};
pub(crate) use newest::SeqnoWindow;
pub(crate) use point_read::PointRead;
pub(crate) use prefetched::Prefetched;
pub(crate) use reader::{IndexCursor, Table, TableIter};
pub(crate) use run::{Bounds, Carry};
pub(crate) use stream::StreamGrowth;
pub(crate) use writer::{FREE_ZONES_PART, NewTable, TableWriter, WrittenBlocks};

/// The hash of a key that filters go by. Part of the format: filters are stored.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

#[cfg(test)]
mod prefix_cost;
#[cfg(test)]
mod shifted_tests;
#[cfg(test)]
mod tests;
