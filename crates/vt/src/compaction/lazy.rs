//! How long tables of level 0 are left alone.
//!
//! Merging a few small tables with all that is below them costs many times their bytes. While a
//! tree is only written to, its tables of level 0 wait until there are many of them (*lazy*). Reads
//! pay for that: each has to look into all of them. What they pay is counted, and once it comes up
//! to what the merging would cost, it is done, as it is when the store is quiet or space is short.
//! So neither side ever pays more than twice what would have been best (rent or buy).

use super::Compactor;
use super::picker::Pressure;
use crate::options::{LEVEL0_TABLES, PickOptions, Sizes};
use crate::version::Version;
use stitch_base::sync::Sharded;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Looking into one table more costs as much as compacting so many bytes.
const PROBE_BYTES: u64 = 256;
/// Beginning a scan in one table more costs as many of these.
const PROBES_OF_SCAN: u64 = 4;

/// What reads have paid for tables in level 0.
#[derive(Debug, Default)]
pub(crate) struct Level0Debt {
    probes: Sharded<AtomicU64>,
    is_quiet: AtomicBool,
}

impl Level0Debt {
    /// A read has looked into so many tables of level 0.
    pub(crate) fn note_get(&self, tables: usize) {
        self.note(tables, 1);
    }

    /// A scan has begun in so many tables of level 0.
    pub(crate) fn note_scan(&self, tables: usize) {
        self.note(tables, PROBES_OF_SCAN);
    }

    fn note(&self, tables: usize, each: u64) {
        const { assert!(PROBES_OF_SCAN > 1, "a scan costs more than a get") };
        debug_assert!(each > 0, "a probe costs something");
        if tables > LEVEL0_TABLES {
            let more = (tables - LEVEL0_TABLES) as u64;
            let probes = self.probes.own();
            probes.fetch_add(more * each, Ordering::Relaxed);
        }
    }

    /// Notes whether writes have paused.
    pub(crate) fn set_quiet(&self, is_quiet: bool) {
        if self.is_quiet.load(Ordering::Relaxed) != is_quiet {
            self.is_quiet.store(is_quiet, Ordering::Relaxed);
        }
    }

    /// True if level 0 need not wait.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }

    /// True if level 0 should be compacted as soon as it has a few tables.
    fn is_due(&self, version: &Version) -> bool {
        if self.is_quiet.load(Ordering::Relaxed) {
            return true;
        }
        let probes = self.probes.iter().map(|own| own.load(Ordering::Relaxed));
        let paid = probes.sum::<u64>().saturating_mul(PROBE_BYTES);
        let trees = version.trees.values();
        let full = trees.filter(|tree| tree.levels[0].tables.len() >= LEVEL0_TABLES);
        let cost: u64 = full
            .map(|tree| tree.levels[0].weight + tree.levels[1].weight)
            .sum();
        paid >= cost.max(1)
    }

    /// Level 0 is being compacted.
    pub(super) fn pay(&self) {
        for probes in self.probes.iter() {
            probes.store(0, Ordering::Relaxed);
        }
    }
}

impl Compactor {
    /// How hard compaction should look for work.
    pub(crate) fn pressure(&self, is_idle: bool) -> Pressure {
        if self.space.is_low() {
            Pressure::Space
        } else if is_idle {
            Pressure::Idle
        } else {
            Pressure::Shape
        }
    }

    /// Tells writers how much is left to them.
    pub(crate) fn note_left(&self) {
        self.pace.note_left(self.space.left_to_writers());
    }

    /// Bytes for the outputs of a compaction, but for those that others may still take.
    pub(super) fn unclaimed_bytes(&self, claimed: u64) -> u64 {
        self.space.available_bytes().saturating_sub(claimed)
    }

    /// What to pick by, with no more input than there is space for its output.
    pub(super) fn pick_options(
        &self,
        version: &Version,
        pressure: Pressure,
        free: u64,
    ) -> PickOptions {
        let sizes = self.sizing.now();
        let pick = sizes.pick;
        debug_assert!(pick.table_bytes > 0, "a table has bytes");
        // No more than is kept for it, or half of what is there: commits have less meanwhile.
        let most = sizes.reserve.max(free / 2).min(free - free / 8);
        let most = most.max(2 * pick.table_bytes);
        let level0 = match pressure < Pressure::Space && !self.level0.is_due(version) {
            true => lazy_tables(&sizes, free),
            false => pick.level0_tables,
        };
        debug_assert!(most > 0, "something may always be compacted");
        debug_assert!(
            level0 >= pick.level0_tables,
            "a lazy level 0 has more tables"
        );
        PickOptions {
            level0_tables: level0,
            input_bytes_max: pick.input_bytes_max.max(batch_bytes(&sizes)).min(most),
            cost_max: match pressure {
                Pressure::Low => self.space.cost_max(),
                _ => u64::MAX,
            },
            ..pick
        }
    }
}

/// Tables that level 0 may have while it is not due. No more than what can be compacted at once.
fn lazy_tables(sizes: &Sizes, free_bytes: u64) -> usize {
    debug_assert!(sizes.memtable > 0, "a memtable has room");
    debug_assert!(
        LEVEL0_TABLES <= sizes.level0_tables_max,
        "level 0 may have its tables"
    );
    let fit = free_bytes / (4 * sizes.memtable).max(1);
    let fit = usize::try_from(fit).unwrap_or(usize::MAX);
    let lazy = fit.clamp(LEVEL0_TABLES, sizes.level0_tables_max);
    debug_assert!(
        lazy == LEVEL0_TABLES || lazy <= fit,
        "a lazy level 0 can be compacted at once"
    );
    lazy
}

/// Bytes that a full level 0 is compacted with at once, with as much below it.
fn batch_bytes(sizes: &Sizes) -> u64 {
    debug_assert!(
        sizes.level0_tables_max >= LEVEL0_TABLES,
        "level 0 may have its tables"
    );
    match sizes.level0_tables_max {
        LEVEL0_TABLES => 0,
        most => (2 * most as u64 + 4) * sizes.memtable,
    }
}

#[cfg(test)]
mod tests;
