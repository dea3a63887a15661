//! Shares of the space of a store: which bytes come back when a pin or some trees are dropped, and
//! what the rows of a range take.
//!
//! Nothing is counted while data is written. On a request, a *sweep* ([`sweep`]) walks the versions
//! of a tree in key order, with as little reading as it takes:
//!
//! ```text
//! table    no moment between its oldest and its newest write, alone in its keys: not read at all
//! block    one version of each key, alone in its keys: its index entry says enough
//!          else: read
//! value    a value block is one version: its index entry says enough
//! ```
//!
//! The moments that pins and branch trees hold divide sequence numbers. A version that was written
//! at `a` and replaced at `b` is needed by the moments from `a` on, before `b` ([`moments`]):
//!
//! ```text
//! moments          5 (pin x)      8 (pin y)
//! put@3, put@7     |- exclusive to x -|
//! put@3, put@9     |- shared by x and y ---|
//! put@9            needed by the present
//! ```
//!
//! Differs: ZFS keeps lists of dead blocks between snapshots up to date with each write, and btrfs
//! walks all back references in a rescan.

mod exclusive;
mod garbage;
mod input;
mod moments;
mod range;
mod sweep;

pub(crate) use garbage::{FoundGarbage, GarbageScope};

use crate::entry::Op;
use stitch_base::{Seqno, TableId};
use stitch_format::vt_index::IndexEntry;

/// Bytes of an entry beside its key and its value, in a block.
const ENTRY_BYTES: u64 = 6;
/// Bytes of an index entry beside its keys and its filter.
const INDEX_ENTRY_BYTES: usize = 40;

/// What a version does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Delete,
    Upsert,
}

impl Kind {
    const fn of(op: &Op<'_>) -> Self {
        match op {
            Op::Put(_) => Self::Put,
            Op::Delete => Self::Delete,
            Op::Upsert { .. } => Self::Upsert,
        }
    }
}

/// Where a version or a block is: in a block of a table, or not in any table yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SweepPlace {
    table: Option<TableId>,
    block_addr: u64,
}

/// A version of a key, and what it takes on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VersionCost {
    seqno: Seqno,
    kind: Kind,
    bytes: u64,
    /// Number of parents between the tree that is read and the one that has it.
    depth: usize,
    place: SweepPlace,
}

/// A table or a block whose entries a sweep need not look at one by one.
#[derive(Debug)]
struct SweepSpan<'a> {
    first: &'a [u8],
    last: &'a [u8],
    min_seqno: Seqno,
    max_seqno: Seqno,
    bytes: u64,
    depth: usize,
    /// Keys of it may have several versions, the last one also in what comes after it.
    has_versions: bool,
    /// A table: nothing of its keys comes after it.
    is_table: bool,
}

/// What a sweep shows what it finds to. Keys come in order.
trait SweepVisit {
    /// Reports whether the span need not be opened. Nothing else has any of its keys.
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool;

    /// The versions of a key, newest first.
    fn key(&mut self, key: &[u8], versions: &[VersionCost]);
}

/// Bytes of the medium that a block takes, with its index entry.
fn block_bytes(entry: &IndexEntry) -> u64 {
    debug_assert!(
        entry.first <= entry.last,
        "the keys of a block are in order"
    );
    let index = entry.first.len() + entry.last.len() + entry.filter.len() + INDEX_ENTRY_BYTES;
    u64::from(entry.block.len_bytes) + index as u64
}
