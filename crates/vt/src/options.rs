//! How a store is opened, and the sizes that follow from it.

use crate::gaps::Gaps;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::thread;
use stitch_kv::{TreeInfo, UpsertRegistry};

/// Smallest memory budget, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Most that a write-out and one compaction, both under way, need beside the blocks in the cache:
/// buffers of the tables that they write, index entries of these and of a step's blocks, what is
/// read ahead of them.
const WORK_BYTES_MAX: u64 = 12 * MIB;
/// Most compactions of a store at once. Each has streams of its own, of which a store has a few.
pub(crate) const COMPACTIONS_MAX: usize = 2;
/// Sealed memtables that may wait before writers do.
pub(crate) const SEALED_COUNT_MAX: usize = 2;

/// A stitching threshold by key, in bytes: asked while a compaction is planned, for each block that
/// could be stitched, with its tree and its first key. `None` leaves it to the tree's own. It may
/// answer otherwise at any time; spans of blocks end where the answer changes.
#[derive(Clone)]
pub struct StitchByKey(Arc<Threshold>);

/// Of a tree and a key, a threshold.
type Threshold = dyn Fn(&TreeInfo, &[u8]) -> Option<u64> + Send + Sync;

impl StitchByKey {
    /// Thresholds as a closure gives them.
    #[must_use]
    pub fn new(
        threshold: impl Fn(&TreeInfo, &[u8]) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(threshold))
    }

    pub(crate) fn threshold(&self, tree: &TreeInfo, first: &[u8]) -> Option<u64> {
        (self.0)(tree, first)
    }
}

impl std::fmt::Debug for StitchByKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StitchByKey")
    }
}

/// How to open a store.
#[derive(Clone)]
pub struct VtOptions {
    /// Memory for memtables, blocks, indexes, filters, lists of what tables own, write-outs and
    /// compactions together, in bytes.
    pub memory_bytes: u64,
    /// The upsert functions that the store may meet.
    pub upserts: UpsertRegistry,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// How often the backup log is synced.
    pub sync_interval: Duration,
    /// False: no threads; work is done by the calls that need it and by [`crate::VtEngine::step`],
    /// so that a run can be repeated exactly.
    pub background: bool,
    /// Puts of a batch that follow each other, in one tree and in the order of their keys, with at
    /// least so many bytes go to their zone at once, and not through the log. `u64::MAX`: none do.
    pub direct_bytes_min: u64,
    /// Puts that come one by one and follow each other go to their zone at once, too, but only
    /// after so many bytes were committed since a caller asked for a sync: where callers sync after
    /// every few bytes, the log needs fewer writes.
    pub unsynced_bytes_min: u64,
    /// What was written to branch trees is copied to their parents by an absorb if it takes at most
    /// so many bytes as a batch. All else is moved, table by table. 0: nothing is copied.
    pub absorb_copy_bytes_max: u64,
    /// A batch to temporary branch trees becomes tables of these at once, without log and
    /// memtable, if its keys are in order and it has at least so many bytes. `u64::MAX`: none does.
    pub batch_table_bytes_min: u64,
    /// Indexes, small data and short values go into the block cache as they are written, where it
    /// has room; those of branches also take the place of blocks that were not found since they
    /// came. False: only what is read does.
    pub caches_writes: bool,
    /// The whole structure is checked after each install, and a broken rule is a panic. For tests
    /// and simulations: each install walks all tables.
    pub is_paranoid: bool,
    /// Stitching thresholds by key, for trees that are not alike all over.
    pub stitch_by_key: Option<StitchByKey>,
    /// Size at which a memtable is sealed; by default from the memory and the volume.
    pub memtable_bytes: Option<u64>,
    /// Size at which a compaction begins the next table; by default from the volume.
    pub table_bytes: Option<u64>,
    /// Target size of level 1; by default from the two above.
    pub level1_bytes: Option<u64>,
    /// Each deeper level's target is this many times larger; at least 2.
    pub fanout: u64,
    /// Tables of level 0 that a tree may have while it is written to and seldom read; at least 4.
    pub level0_tables_max: usize,
    /// Compactions that may run at once where they do not overlap: 1 or 2. By default 2, and 1 on a
    /// machine with one processor. With threads, there is one more for the second; it helps only
    /// while one alone does not keep up with what is written.
    pub compactors: usize,
}

/// Tables of level 0 that start a compaction where reads meet them.
pub(crate) const LEVEL0_TABLES: usize = 4;

impl Default for VtOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 64 * MIB,
            upserts: UpsertRegistry::default(),
            clock: Arc::new(SystemClock::default()),
            sync_interval: Duration::from_secs(5),
            background: true,
            direct_bytes_min: 64 * KIB,
            unsynced_bytes_min: 256 * KIB,
            absorb_copy_bytes_max: 2 * MIB,
            batch_table_bytes_min: MIB,
            caches_writes: true,
            is_paranoid: false,
            stitch_by_key: None,
            memtable_bytes: None,
            table_bytes: None,
            level1_bytes: None,
            fanout: 8,
            level0_tables_max: 16,
            compactors: thread::processors().min(COMPACTIONS_MAX),
        }
    }
}

impl std::fmt::Debug for VtOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VtOptions")
            .field("memory_bytes", &self.memory_bytes)
            .field("background", &self.background)
            .finish_non_exhaustive()
    }
}

/// What the picker goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PickOptions {
    /// Tables of level 0 that start a compaction.
    pub(crate) level0_tables: usize,
    /// Most tables of level 0 that one compaction takes.
    pub(crate) level0_batch: usize,
    /// Target size of level 1.
    pub(crate) level1_bytes: u64,
    /// Each deeper level's target is this many times larger.
    pub(crate) fanout: u64,
    /// Size at which a compaction ends a table and begins the next.
    pub(crate) table_bytes: u64,
    /// Most that one compaction takes in, where it can be sliced.
    pub(crate) input_bytes_max: u64,
    /// For space, where no commit waits for it: most that is rewritten below for what is above, in
    /// multiples.
    pub(crate) cost_max: u64,
}

/// Sizes of an open store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// A memtable is sealed at this size.
    pub(crate) memtable: u64,
    /// A memtable is sealed when runs of so many bytes belong to it.
    pub(crate) direct: u64,
    /// A memtable is sealed when its records take this much of the backup log.
    pub(crate) log_share: u64,
    /// The block cache, where tables have no lists.
    pub(crate) cache: u64,
    /// What the block cache keeps however long the lists of tables are.
    pub(crate) cache_min: u64,
    /// Folded values that are remembered.
    pub(crate) folded: usize,
    /// Longest keys of a gap that is noted.
    pub(crate) gap: usize,
    /// What is read ahead of long scans.
    pub(crate) ahead: u64,
    /// Kept free for compactions, on top of nothing.
    pub(crate) reserve: u64,
    /// Tables of level 0 that a tree may have while it is written to and seldom read.
    pub(crate) level0_tables_max: usize,
    /// What compactions go by.
    pub(crate) pick: PickOptions,
}

impl Sizes {
    /// The sizes for a store on `zones_bytes` of zones with a backup log of `log_bytes`.
    pub(crate) fn new(options: &VtOptions, zones_bytes: u64, log_bytes: u64) -> Self {
        let memory = options.memory_bytes.max(MEMORY_BYTES_MIN);
        let memtable = options.memtable_bytes.unwrap_or_else(|| {
            let most = (memory / 8).min(zones_bytes / 96).min(log_bytes / 4);
            most.clamp(128 * KIB, 32 * MIB)
        });
        let table = options
            .table_bytes
            .unwrap_or_else(|| (zones_bytes / 256).clamp(128 * KIB, 8 * MIB));
        let level0_tables_max = options.level0_tables_max.max(LEVEL0_TABLES);
        // Half as long as what comes down at a time: ADR 0058.
        let level1 = options.level1_bytes.unwrap_or_else(|| {
            (level0_tables_max as u64 / 2 * memtable)
                .max(4 * table)
                .max(4 * memtable)
        });
        let memtables = memtable * (SEALED_COUNT_MAX as u64 + 1);
        let work = (memory / 8).min(WORK_BYTES_MAX);
        // A second compaction at once takes half as much again.
        let is_alone = !options.background || options.compactors < 2;
        let work = if is_alone { work } else { work + work / 2 };
        let noted = memory / 32;
        let cache = memory.saturating_sub(memtables + work + noted);
        let cache = cache.max(memory / 4);
        // Without threads, reads do not read ahead.
        let ahead = if options.background { memory / 8 } else { 0 };
        let reserve = (8 * table + 4 * memtable).min(zones_bytes / 8);
        let sizes = Self {
            memtable,
            direct: 4 * memtable,
            log_share: log_bytes / 4,
            cache: cache - ahead,
            cache_min: (memory / 8).min(cache - ahead),
            folded: usize::try_from(noted / 2).unwrap_or(usize::MAX),
            gap: Gaps::gap_bytes_max(noted / 2),
            ahead,
            reserve,
            level0_tables_max,
            pick: PickOptions {
                level0_tables: LEVEL0_TABLES,
                level0_batch: 2 * level0_tables_max,
                level1_bytes: level1,
                fanout: options.fanout.max(2),
                table_bytes: table,
                input_bytes_max: (16 * table).max(10 * memtable),
                cost_max: u64::MAX,
            },
        };
        sizes.assert_invariants(zones_bytes);
        sizes
    }

    /// Asserts that the sizes fit each other and the zones.
    fn assert_invariants(&self, zones_bytes: u64) {
        assert!(self.reserve <= zones_bytes / 8, "most space is for data");
        assert!(
            self.cache_min <= self.cache,
            "the cache gives way to lists of tables down to its least"
        );
        assert!(
            self.pick.level0_tables <= self.level0_tables_max,
            "a lazy level 0 has more tables"
        );
        assert!(
            self.pick.input_bytes_max >= self.pick.table_bytes,
            "a compaction may take a table"
        );
        assert!(self.pick.fanout >= 2, "levels grow");
        assert!(
            self.direct >= self.memtable,
            "what is written at once takes less memory than it owns"
        );
        assert!(
            self.pick.level0_batch >= self.level0_tables_max,
            "a full level 0 is one batch"
        );
    }
}

impl Sizes {
    /// These sizes on `zones_bytes` of zones: a volume that has grown has more to divide, and one
    /// that has shrunk less. What memory decides stays.
    pub(crate) fn resized(self, options: &VtOptions, zones_bytes: u64, log_bytes: u64) -> Self {
        let fresh = Self::new(options, zones_bytes, log_bytes);
        let reserve = 8 * fresh.pick.table_bytes + 4 * self.memtable;
        let sizes = Self {
            reserve: reserve.min(zones_bytes / 8),
            pick: fresh.pick,
            ..self
        };
        sizes.assert_invariants(zones_bytes);
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_the_smallest_and_a_large_store() {
        let mut options = VtOptions {
            compactors: 1,
            ..VtOptions::default()
        };
        let small = Sizes::new(&options, 13 * MIB, 2 * MIB);
        assert_eq!(small.pick.table_bytes, 128 * KIB);
        assert!((128 * KIB..160 * KIB).contains(&small.memtable));
        assert!(small.reserve <= 2 * MIB);
        let large = Sizes::new(&options, 8 << 30, 256 * MIB);
        assert_eq!((large.memtable, large.pick.table_bytes), (8 * MIB, 8 * MIB));
        // Of 64: 24 for memtables, 8 read ahead, 8 for work, 2 for what was noted.
        assert_eq!(large.cache, 22 * MIB);
        assert_eq!(large.cache_min, 8 * MIB);
        options.compactors = 2;
        assert_eq!(Sizes::new(&options, 8 << 30, 256 * MIB).cache, 18 * MIB);
    }
}
