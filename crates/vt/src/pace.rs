//! Pacing: a writer is slowed in proportion to the work that it leaves behind, so that it never
//! has to be stopped.
//!
//! Four debts count: memtables that wait to be written out, tables in level 0, bytes by which
//! levels are over their targets, and space that is about to end. The largest of them, as a share
//! of what is bearable, sets a rate at which commits may go on; a commit sleeps for its share, at
//! most [`SLEEP_MAX`] at a time.
//!
//! The first debt comes and goes by whole memtables, so it counts only from where as many wait as
//! may: while there are fewer, the write-out keeps up. And what is owed is paid in proportion: a
//! small debt is hardly felt, or a write-out that is as fast as its writer would slow it, too.
//!
//! The last debt counts where less is left than a few memtables take: compactions give space back
//! by whole tables, and the next one's should be there before the last is used up.
//!
//! How fast memtables are written out is the device's business. So the first debt's rate also
//! follows from how long that takes: with half of the last memtable full, writers go as fast as one
//! is written out, and ever slower towards its end, which they come to late on any device.

use crate::options::{SEALED_COUNT_MAX, Sizes};
use crate::shape::debt;
use crate::view::View;
use std::time::Duration;
use stitch_base::clock::Clock;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_kv::SpaceClass;

/// Longest sleep of one commit.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(40);
/// Slowest that pacing makes writers, in bytes a second, unless memtables are written out more
/// slowly.
const RATE_MIN: u64 = 1 << 20;
/// Writers are never slower than this part of the rate at which memtables are written out.
const RATE_PART_MIN: u64 = 256;
/// With less space left than so many memtables take, writers are slowed.
const LEFT_MEMTABLES: u64 = 4;
/// What the rates follow from, in bytes a second: with half of what is bearable, half of this.
const RATE: u64 = 256 << 20;

/// How fast writers may go.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Debt of the tables, in thousandths of what is bearable.
    table_debt: AtomicU64,
    /// Sleep owed by small commits, in nanoseconds, so that they sleep seldom and not too short.
    owed_ns: AtomicU64,
    /// More is due than one compaction at a time keeps up with.
    is_behind: AtomicBool,
    /// How long it takes to write out a memtable, in nanoseconds: at once if longer, by and by if
    /// less.
    write_out_ns: AtomicU64,
    /// When the one that is written out now was begun, in nanoseconds; 0 if none is.
    begun_ns: AtomicU64,
    /// Bytes that commits could have promised to them when they were last counted.
    left_bytes: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            table_debt: AtomicU64::new(0),
            owed_ns: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
            write_out_ns: AtomicU64::new(0),
            begun_ns: AtomicU64::new(0),
            left_bytes: AtomicU64::new(u64::MAX),
        }
    }
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
        debug_assert!(
            sizes.level0_tables_max >= sizes.pick.level0_tables,
            "a lazy level 0 has more tables"
        );
        let lazy = (sizes.level0_tables_max - sizes.pick.level0_tables) as u64;
        let trigger = sizes.pick.level0_tables as u64;
        let tables = share(level0, 2 * trigger + lazy, 8 * trigger + 2 * lazy);
        let bytes = debt(&view.version, &sizes.pick);
        let levels = share(
            bytes,
            4 * sizes.pick.level1_bytes,
            32 * sizes.pick.level1_bytes,
        );
        debug_assert!(trigger > 0, "level 0 may have a table");
        self.table_debt.store(tables.max(levels), Ordering::Relaxed);
        // Before writers are slowed: half of the way to where that begins.
        let is_behind = level0 > trigger + lazy || bytes > 2 * sizes.pick.level1_bytes;
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    /// True if a second compaction should help.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Takes note of how many bytes commits may still have promised to them.
    pub(crate) fn note_left(&self, bytes: u64) {
        self.left_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A memtable begins to be written out.
    pub(crate) fn begin_write_out(&self, clock: &dyn Clock) {
        let before = self.begun_ns.swap(now_ns(clock).max(1), Ordering::Relaxed);
        debug_assert_eq!(before, 0, "memtables are written out one at a time");
    }

    /// It ended, well or not. `is_whole`: it was written out.
    pub(crate) fn end_write_out(&self, is_whole: bool, clock: &dyn Clock) {
        let begun = self.begun_ns.swap(0, Ordering::Relaxed);
        if begun == 0 || !is_whole {
            return;
        }
        let took = now_ns(clock).saturating_sub(begun);
        let before = self.write_out_ns.load(Ordering::Relaxed);
        let eased = before - before / 8 + took / 8;
        debug_assert!(eased <= before.max(took), "an average lies between the two");
        self.write_out_ns.store(took.max(eased), Ordering::Relaxed);
    }

    /// How long a commit of so many bytes must sleep first.
    pub(crate) fn delay(
        &self,
        commit: (u64, SpaceClass),
        view: &View,
        sizes: &Sizes,
        clock: &dyn Clock,
    ) -> Duration {
        let active_bytes = view.active().memory_bytes();
        self.delay_with(commit, (view.sealed_count(), active_bytes), sizes, clock)
    }

    /// The same, with so many sealed memtables and so many bytes in the active one.
    fn delay_with(
        &self,
        (bytes, class): (u64, SpaceClass),
        (sealed, active_bytes): (usize, u64),
        sizes: &Sizes,
        clock: &dyn Clock,
    ) -> Duration {
        debug_assert!(sizes.memtable > 0, "a memtable has room");
        let table_debt = self.table_debt.load(Ordering::Relaxed);
        // Memtables may have been made large for the volume.
        let enough = (LEFT_MEMTABLES * sizes.memtable).min(sizes.reserve);
        let left = match class {
            SpaceClass::Normal | SpaceClass::Uncommitted => self.left_bytes.load(Ordering::Relaxed),
            // What makes space may go on, and what has space set aside.
            SpaceClass::Reserve | SpaceClass::Allocated => u64::MAX,
        };
        let debt = table_debt.max(share(enough.saturating_sub(left), 0, enough));
        let mut slowest = if debt > 0 { rate(debt) } else { u64::MAX };
        if sealed > 0 {
            let waiting = sealed as u64 * sizes.memtable + active_bytes;
            let bearable = SEALED_COUNT_MAX as u64 * sizes.memtable;
            let debt = share(waiting, bearable, bearable + sizes.memtable);
            if debt > 0 {
                let written_out = self.write_out_rate(sizes, clock);
                slowest = slowest.min(rate_beside(debt, written_out));
            }
        }
        if slowest == u64::MAX {
            return Duration::ZERO;
        }
        let owed = bytes.saturating_mul(1_000_000_000) / slowest;
        let before = self.owed_ns.fetch_add(owed, Ordering::Relaxed);
        if before.saturating_add(owed) < 500_000 {
            return Duration::ZERO;
        }
        debug_assert!(slowest > 0, "writers go on, however slowly");
        let all = self.owed_ns.swap(0, Ordering::Relaxed);
        Duration::from_nanos(all).min(SLEEP_MAX)
    }

    /// How fast memtables are written out, in bytes a second. One that takes longer than those
    /// before counts before it ends.
    fn write_out_rate(&self, sizes: &Sizes, clock: &dyn Clock) -> u64 {
        debug_assert!(sizes.memtable > 0, "a memtable has room");
        let begun = self.begun_ns.load(Ordering::Relaxed);
        let since = match begun {
            0 => 0,
            begun => now_ns(clock).saturating_sub(begun),
        };
        // The progress of a long write-out is unknown: it counts as half done.
        let longer = since.saturating_mul(2);
        let takes = longer.max(self.write_out_ns.load(Ordering::Relaxed)).max(1);
        let rate = u128::from(sizes.memtable) * 1_000_000_000 / u128::from(takes);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

fn now_ns(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Where `value` lies between `from` and `to`, in thousandths.
fn share(value: u64, from: u64, to: u64) -> u64 {
    debug_assert!(from < to, "a share is of something");
    let share = value.saturating_sub(from).saturating_mul(1000) / (to - from).max(1);
    debug_assert!(value > from || share == 0, "a debt begins behind `from`");
    debug_assert!(value > to || share <= 1000, "to `to` it is a part");
    share
}

/// The rate for a debt, in bytes a second: without bound for the smallest, halved as debts double,
/// and falling ever more slowly towards the end, which a debt that still rises comes to late.
fn rate(debt: u64) -> u64 {
    debug_assert!(debt > 0, "who owes nothing is not slowed");
    const { assert!(RATE_MIN < RATE, "a debt slows writers") };
    let left = 1000u64.saturating_sub(debt);
    (RATE / 1000 * left * left / debt.max(1)).max(RATE_MIN)
}

/// The rate for a debt of memtables, where they are written out at `written_out` bytes a second:
/// just that with half of what is bearable, without bound for the smallest, and next to nothing at
/// the end.
fn rate_beside(debt: u64, written_out: u64) -> u64 {
    debug_assert!(debt > 0, "who owes nothing is not slowed");
    let left = 1000u64.saturating_sub(debt);
    let least = RATE_MIN.min(written_out / RATE_PART_MIN).max(1);
    let share = written_out.saturating_mul(left) / debt;
    let rate = rate(debt).min(share).max(least);
    debug_assert!(rate > 0, "writers go on, however slowly");
    debug_assert!(
        rate <= share.max(RATE_MIN),
        "no faster than write-outs allow"
    );
    rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::VtOptions;
    use stitch_base::clock::ManualClock;
    use stitch_base::random::Rng;

    #[test]
    fn shares_are_of_what_lies_between() {
        assert_eq!(share(3, 4, 8), 0);
        assert_eq!(share(6, 4, 8), 500);
        assert_eq!(share(8, 4, 8), 1000);
    }

    /// Puts one after the other, as fast as pacing lets them, into memtables that a device writes
    /// out, each of them in the time that `takes` says. Returns how long the puts took, in
    /// ascending order.
    fn puts(memtable: u64, count: u64, mut takes: impl FnMut() -> Duration) -> Vec<Duration> {
        const PUT_BYTES: u64 = 116;
        const PUT_TIME: Duration = Duration::from_micros(2);
        let options = VtOptions {
            memtable_bytes: Some(memtable),
            ..VtOptions::default()
        };
        let sizes = Sizes::new(&options, 8 << 30, 256 << 20);
        let (pace, clock) = (Pace::default(), ManualClock::default());
        let (mut sealed, mut active) = (0, 0);
        let mut ends = Duration::MAX;
        let mut latencies = Vec::new();
        for _ in 0..count {
            let begin = clock.monotonic();
            let put = (PUT_BYTES, SpaceClass::Normal);
            let delay = pace.delay_with(put, (sealed, active), &sizes, &clock);
            clock.advance(delay + PUT_TIME);
            let is_full = active + PUT_BYTES > memtable;
            if is_full && sealed == SEALED_COUNT_MAX {
                clock.advance(ends.saturating_sub(clock.monotonic()));
            }
            while sealed > 0 && ends <= clock.monotonic() {
                let late = clock.monotonic() - ends;
                pace.end_write_out(true, &clock);
                sealed -= 1;
                if sealed > 0 {
                    pace.begin_write_out(&clock);
                    ends = clock.monotonic() - late + takes();
                }
            }
            if is_full {
                sealed += 1;
                active = 0;
                if sealed == 1 {
                    pace.begin_write_out(&clock);
                    ends = clock.monotonic() + takes();
                }
            }
            active += PUT_BYTES;
            latencies.push(clock.monotonic() - begin);
        }
        latencies.sort();
        latencies
    }

    #[test]
    fn no_put_waits_long_on_a_device_of_any_speed() {
        const MIB: u64 = 1 << 20;
        let mut rng = Rng::new(7);
        // Bytes of a memtable, and how fast it is written out, in bytes a second.
        for (memtable, speed) in [
            (8 * MIB, 512 * MIB),
            (8 * MIB, 40 * MIB),
            (32 * MIB, 8 * MIB),
            (8 * MIB, 4 * MIB),
            (8 * MIB, MIB),
            (MIB, MIB / 4),
            (MIB / 8, MIB / 2),
        ] {
            let usual_ms = memtable * 1000 / speed;
            // From half as long to twice as long, and a sync.
            let takes = || Duration::from_millis(usual_ms * (500 + rng.below(1500)) / 1000 + 20);
            let latencies = puts(memtable, 12 * memtable / 116, takes);
            let count = latencies.len();
            let (p999, worst) = (latencies[count / 1000 * 999], latencies[count - 1]);
            assert!(
                p999 < Duration::from_millis(50),
                "{memtable} {speed}: {p999:?}"
            );
            assert!(
                worst < Duration::from_millis(250),
                "{memtable} {speed}: {worst:?}"
            );
        }
    }

    #[test]
    fn who_is_about_to_run_out_of_space_is_slowed() {
        const PUT_BYTES: u64 = 4096;
        let sizes = Sizes::new(&VtOptions::default(), 8 << 30, 256 << 20);
        let clock = ManualClock::default();
        let takes_as = |left: u64, class: SpaceClass| -> Duration {
            let pace = Pace::default();
            pace.note_left(left);
            let put = (PUT_BYTES, class);
            let delays = (0..4096).map(|_| pace.delay_with(put, (0, 0), &sizes, &clock));
            delays.sum()
        };
        let takes = |left| takes_as(left, SpaceClass::Normal);
        assert_eq!(takes_as(0, SpaceClass::Reserve), Duration::ZERO, "deletes");
        // In bytes a second.
        let rate = |left: u64| {
            let ns = takes(left).as_nanos().max(1);
            u128::from(4096 * PUT_BYTES) * 1_000_000_000 / ns
        };
        let enough = LEFT_MEMTABLES * sizes.memtable;
        assert_eq!(takes(enough), Duration::ZERO);
        let rates: Vec<u128> = (0..16).map(|n| rate(enough * n / 16)).collect();
        assert!(rates.is_sorted(), "{rates:?}");
        assert!(rates[0] < u128::from(2 * RATE_MIN), "{rates:?}");
        assert!(rates[8] > u128::from(RATE / 4), "{rates:?}");
    }

    #[test]
    fn a_small_debt_is_hardly_felt_and_a_large_one_stops_no_writer() {
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
