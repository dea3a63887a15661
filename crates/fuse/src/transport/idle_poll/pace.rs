//! Whether requests follow each other so fast that it pays to stay awake for the next.

use std::time::Duration;

use stitch_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Requests further apart than this do not follow each other; nobody stays awake for longer after one.
pub(super) const GAP: Duration = Duration::from_millis(1);
/// After so many steps in a row the next one is expected.
const RUN_MIN: u32 = 8;
/// Requests closer than this are one step, so that many processors seldom write to the same place.
const STEP: Duration = Duration::from_micros(10);

/// The pace of a session's requests. Threads that note at the same time may lose a note: nothing depends on it
/// but how fast things are.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last one came; nanoseconds.
    last: AtomicU64,
    /// How many followed each other up to it.
    run: AtomicU32,
}

impl Pace {
    /// A request came at `now`: whether the next one is expected before long.
    pub(super) fn note(&self, now: Duration) -> bool {
        let now = nanos(now);
        let since = now.saturating_sub(self.last.load(Ordering::Relaxed));
        let run = self.run.load(Ordering::Relaxed);
        if since < nanos(STEP) {
            return run >= RUN_MIN;
        }
        let run = match since <= nanos(GAP) {
            true => run.saturating_add(1),
            false => 1,
        };
        self.last.store(now, Ordering::Relaxed);
        self.run.store(run, Ordering::Relaxed);
        run >= RUN_MIN
    }

    /// Whether the last one was so long ago that no other follows it.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        nanos(now).saturating_sub(self.last.load(Ordering::Relaxed)) > nanos(GAP)
    }
}

/// As atomics hold it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_in_a_row_let_expect_another() {
        let pace = Pace::default();
        let at = |step: u32| Duration::from_secs(1) + GAP * step / 2;
        for step in 1..20 {
            assert_eq!(pace.note(at(step)), step >= RUN_MIN, "{step}");
        }
        assert!(!pace.is_over(at(21)));
        assert!(pace.is_over(at(22)));
    }

    #[test]
    fn those_that_come_now_and_then_do_not_however_many() {
        let pace = Pace::default();
        for step in 1..100 {
            assert!(!pace.note(GAP * 2 * step));
        }
        assert!(pace.is_over(GAP * 2 * 99 + GAP * 2));
    }

    #[test]
    fn many_at_once_are_one_step() {
        let pace = Pace::default();
        let now = Duration::from_secs(1);
        assert!(!(0..100).any(|_| pace.note(now)));
        let steps = (1..RUN_MIN).map(|step| pace.note(now + STEP * step));
        assert_eq!(steps.last(), Some(true));
        assert!(pace.note(now + STEP * (RUN_MIN - 1)), "and stay one");
    }

    #[test]
    fn one_pause_begins_the_count_anew() {
        let pace = Pace::default();
        let mut now = Duration::from_secs(1);
        for _ in 0..10 {
            now += GAP / 2;
            pace.note(now);
        }
        now += GAP * 3;
        assert!(!pace.note(now) && !pace.note(now + GAP));
    }
}
