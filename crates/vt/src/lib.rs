//! The VT-tree engine: a log-structured merge-tree whose compactions re-reference ("stitch") the
//! blocks that do not overlap instead of copying them.
//!
//! Paper: Shetty, Spillane, Malpani, Andrews, Seyster, Zadok, *Building Workload-Independent
//! Storage with VT-Trees*, FAST 2013.

mod background;
mod batch_trees;
mod branch_changes;
mod branches;
mod budget;
mod buffer;
mod cache;
mod check;
mod commit;
mod commit_lock;
mod compaction;
pub mod counters;
mod defrag;
mod direct;
mod dropped;
mod engine;
mod entry;
mod error;
mod fold;
mod gaps;
mod garbage;
mod gate;
mod held;
mod idle_order;
mod install;
mod instances;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings;
mod iter;
mod kept;
mod key_heads;
mod key_moments;
mod key_order;
mod keys_between;
mod maintenance;
mod make_room;
mod member;
mod memtable;
mod options;

mod output;
mod pace;
mod page_buffers;
mod pin_changes;
mod pins;
mod pool;
mod prefix;
mod range_delete;
mod read;
mod readers;
mod recovery;
mod replaced;
mod resize;
mod rules;
mod runs;
mod shape;
mod shares;
mod signals;
mod sizing;
mod snapshots;
mod space;
mod store;
mod superseded;
mod table;
mod tables;
#[cfg(test)]
mod testing;
mod tree_changes;
mod under_way;
mod unsynced;
mod version;
mod victims;
mod view;
mod write_out;

pub use check::Holdings;
pub use defrag::{Defragged, Watch};
pub use engine::VtEngine;
pub use error::VtError;
pub use options::{MEMORY_BYTES_MIN, StitchByKey, VtOptions};
