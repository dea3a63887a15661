//! Detects whether requests follow each other so closely that polling for the next one is
//! worthwhile.

use std::time::Duration;

use stitch_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest gap between requests that follow each other, and longest polling after one.
pub(super) const GAP: Duration = Duration::from_millis(1);
/// Number of consecutive steps after which another request is expected.
const RUN_MIN: u32 = 8;
/// Requests closer than this count as one step, so that processors seldom write to the shared
/// counter.
const STEP: Duration = Duration::from_micros(10);

/// The pace of a session's requests. Concurrent notes may be lost, which affects only speed.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time of the last request, in nanoseconds.
    last: AtomicU64,
    /// Number of consecutive steps up to it.
    run: AtomicU32,
}

impl Pace {
    /// Notes a request at `now`. Returns whether another one is expected soon.
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

    /// Reports whether the last request is too long ago for another to follow it.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        nanos(now).saturating_sub(self.last.load(Ordering::Relaxed)) > nanos(GAP)
    }
}

/// Converts a time for an atomic.
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
