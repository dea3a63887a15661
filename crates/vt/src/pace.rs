//! Pacing: a writer is slowed in proportion to the work that it leaves behind, so that it never
//! has to be stopped.
//!
//! Three debts count: memtables that wait to be written out, tables in level 0, and bytes by which
//! levels are over their targets. The largest of them, as a share of what is bearable, sets a rate
//! at which commits may go on; a commit sleeps for its share, at most [`SLEEP_MAX`] at a time.
//!
//! The first debt comes and goes by whole memtables, so it counts only from where as many wait as
//! may: while there are fewer, the write-out keeps up. And what is owed is paid in proportion: a
//! small debt is hardly felt, or a write-out that is as fast as its writer would slow it, too.

use crate::compaction::debt;
use crate::options::{SEALED_COUNT_MAX, Sizes};
use crate::view::View;
use std::time::Duration;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Longest sleep of one commit.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(40);
/// Slowest that pacing makes writers, in bytes a second.
const RATE_MIN: u64 = 1 << 20;
/// What the rates follow from, in bytes a second: with half of what is bearable, half of this.
const RATE: u64 = 256 << 20;

/// How fast writers may go.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Debt of the tables, in thousandths of what is bearable.
    table_debt: AtomicU64,
    /// Sleep owed by small commits, in nanoseconds, so that they sleep seldom and not too short.
    owed_ns: AtomicU64,
    /// More is due than one compaction at a time keeps up with.
    is_behind: AtomicBool,
}

impl Pace {
    /// Takes note of a new version.
    pub(crate) fn update(&self, view: &View, sizes: &Sizes) {
        let most = view
            .version
            .trees
            .values()
            .map(|t| t.levels[0].tables.len());
        let level0 = most.max().unwrap_or(0) as u64;
        let lazy = (sizes.level0_tables_max - sizes.pick.level0_tables) as u64;
        let trigger = sizes.pick.level0_tables as u64;
        let tables = share(level0, 2 * trigger + lazy, 8 * trigger + 2 * lazy);
        let bytes = debt(&view.version, &sizes.pick);
        let levels = share(
            bytes,
            4 * sizes.pick.level1_bytes,
            32 * sizes.pick.level1_bytes,
        );
        self.table_debt.store(tables.max(levels), Ordering::Relaxed);
        // Before writers are slowed: half of the way to where that begins.
        let is_behind = level0 > trigger + lazy || bytes > 2 * sizes.pick.level1_bytes;
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    /// True if a second compaction should help.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// How long a commit of `bytes` must sleep first. `active_bytes` and `sealed_count` are of the
    /// memtables.
    pub(crate) fn delay(&self, bytes: u64, view: &View, sizes: &Sizes) -> Duration {
        let sealed = view.sealed_count() as u64;
        let mut debt = self.table_debt.load(Ordering::Relaxed);
        if sealed > 0 {
            let waiting = sealed * sizes.memtable + view.active().memtable.bytes() as u64;
            let bearable = SEALED_COUNT_MAX as u64 * sizes.memtable;
            debt = debt.max(share(waiting, bearable, bearable + sizes.memtable));
        }
        if debt == 0 {
            return Duration::ZERO;
        }
        let owed = bytes.saturating_mul(1_000_000_000) / rate(debt);
        let before = self.owed_ns.fetch_add(owed, Ordering::Relaxed);
        if before.saturating_add(owed) < 500_000 {
            return Duration::ZERO;
        }
        let all = self.owed_ns.swap(0, Ordering::Relaxed);
        Duration::from_nanos(all).min(SLEEP_MAX)
    }
}

/// Where `value` lies between `from` and `to`, in thousandths.
fn share(value: u64, from: u64, to: u64) -> u64 {
    debug_assert!(from < to, "a share is of something");
    value.saturating_sub(from).saturating_mul(1000) / (to - from).max(1)
}

/// The rate for a debt, in bytes a second: without bound for the smallest, halved as debts double,
/// and falling ever more slowly towards the end, which a debt that still rises comes to late.
fn rate(debt: u64) -> u64 {
    debug_assert!(debt > 0, "who owes nothing is not slowed");
    let left = 1000u64.saturating_sub(debt);
    (RATE / 1000 * left * left / debt.max(1)).max(RATE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_lies_between() {
        assert_eq!(share(3, 4, 8), 0);
        assert_eq!(share(6, 4, 8), 500);
        assert_eq!(share(8, 4, 8), 1000);
    }

    #[test]
    fn a_small_debt_is_hardly_felt_and_a_large_one_stops_nobody() {
        assert!(rate(1) > 100 << 30, "what is owed begins with nothing");
        for debt in 2..=1000 {
            assert!(rate(debt) <= rate(debt - 1), "{debt}");
            // The dearest step between two thousandths, before the floor.
            assert!(rate(debt) >= rate(debt - 1) / 3, "no cliff: {debt}");
        }
        assert_eq!(rate(1000), RATE_MIN);
        assert_eq!(rate(5000), RATE_MIN);
    }
}
