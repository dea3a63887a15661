//! The read path: what point reads and scans go by, and what they learn.
//!
//! Invariants:
//! - a read takes no lock but that of its shard of the views; only a scan that has found a gap asks
//!   for the lock of commits, and waits for it only where it was made to look for gaps;
//! - what is remembered (folded values, gaps) never changes what a reader finds.

use super::FoldedValues;
use crate::cache::BlockCache;
use crate::commit_lock::CommitLock;
use crate::compaction::Level0Debt;
use crate::counters::VtCounters;
use crate::gaps::Gaps;
use crate::options::Sizes;
use crate::signals::Signals;
use crate::table::{Table, ValueReader};
use crate::version::TableHandle;
use crate::view::Views;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_base::sync::Apart;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::UpsertRegistry;
use stitch_volume::Volume;

/// What the read path shares with the other parts of a store.
pub(crate) struct ReadParts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) upserts: UpsertRegistry,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) views: Arc<Views>,
    /// The newest write that readers may see.
    pub(crate) visible: Arc<Apart<AtomicU64>>,
    /// Taken to announce a gap.
    pub(crate) commits: Arc<CommitLock>,
    /// What reads pay for level 0.
    pub(crate) level0: Arc<Level0Debt>,
}

/// How a store is read.
pub(crate) struct ReadPath {
    pub(super) parts: ReadParts,
    pub(super) folded: FoldedValues,
    /// Ranges of keys that are known to be empty.
    pub(crate) gaps: Gaps,
    /// A memtable is sealed at this size: it decides how long a gap is worth to be noted.
    pub(crate) memtable_bytes: u64,
}

impl ReadPath {
    /// Returns that of a store that is opened now: nothing is remembered.
    pub(crate) fn new(parts: ReadParts, sizes: &Sizes) -> Self {
        debug_assert!(sizes.memtable > 0, "a memtable has room");
        Self {
            folded: FoldedValues::new(sizes.folded),
            gaps: Gaps::new(sizes.gap),
            memtable_bytes: sizes.memtable,
            parts,
        }
    }

    /// Returns the newest write that readers may see.
    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.parts.visible.load(Ordering::Acquire))
    }

    /// Returns a table's reader.
    pub(crate) fn table<'a>(&self, handle: &'a TableHandle) -> &'a Arc<Table> {
        handle.table(&self.parts.volume, &self.parts.cache)
    }

    /// Returns a reader of values that no table has yet.
    pub(super) fn values(&self) -> ValueReader {
        ValueReader::new(
            Arc::clone(&self.parts.volume),
            Arc::clone(&self.parts.cache),
        )
    }
}
