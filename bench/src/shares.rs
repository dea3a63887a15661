//! The time of `--quick`, shared out: each run of a workload on a side has a part of what is left,
//! and ends within it.
//!
//! - A phase takes at most half of what is left to its step, so that the next one has some as well.
//!   It is cut short, as by `--cap`.
//! - A phase that later ones need whole has more time: until the step's hard end. If that is not
//!   enough either, the rest of the run is left out ([`Cut`]).
//! - A process that is still there some seconds after its hard end is killed.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A run's hard end, in shares.
const HARD_SHARES: u32 = 4;
/// Least time of a share and of a phase.
const LEAST: Duration = Duration::from_millis(50);

/// The deadlines of a step, relative to its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    /// Deadline of phases that may be cut short.
    pub(crate) soft: Duration,
    /// Deadline of all phases.
    pub(crate) hard: Duration,
}

impl Deadlines {
    /// How long a phase or a wait that begins `now` may take.
    pub(crate) fn left(&self, now: Duration, is_whole: bool) -> Duration {
        let hard = self.hard.saturating_sub(now);
        if is_whole {
            return hard;
        }
        let half = self.soft.saturating_sub(now) / 2;
        half.max(LEAST).min(hard)
    }

    /// Reports whether nothing more may begin.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.hard
    }
}

/// A step that ended before all was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WHY)
    }
}

impl std::error::Error for Cut {}

/// The reason for skipped runs.
pub(crate) const WHY: &str = "the time of --quick is over";

/// Time for runs of different weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    end: Duration,
    weights_left: u32,
}

impl Shares {
    /// All time until `end`, for runs of this weight together.
    pub(crate) const fn new(end: Duration, weights: u32) -> Self {
        Self {
            end,
            weights_left: weights,
        }
    }

    /// Returns the deadlines of the next run, which begins `now`. Time that it does not use is left
    /// to later runs.
    pub(crate) fn next(&mut self, now: Duration, weight: u32) -> Deadlines {
        assert!(weight > 0, "a run takes time");
        assert!(weight <= self.weights_left, "more runs than were foreseen");
        let left = self.end.saturating_sub(now);
        let share = left * weight / self.weights_left;
        self.weights_left -= weight;
        Deadlines {
            soft: share.max(LEAST).min(left),
            hard: (share * HARD_SHARES).max(LEAST).min(left),
        }
    }
}

/// Returns the deadlines of a run's next step, `steps` before its last one included, when `since`
/// has passed.
pub(crate) fn of_step(run: Deadlines, since: Duration, steps: u32) -> Deadlines {
    assert!(steps > 0, "the last step is one as well");
    let hard = run.hard.saturating_sub(since);
    Deadlines {
        soft: (run.soft.saturating_sub(since) / steps)
            .max(LEAST)
            .min(hard),
        hard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn runs_that_take_all_they_may_are_all_run_in_time() {
        let end = 280 * SECOND;
        let mut shares = Shares::new(end, 100);
        let mut now = Duration::ZERO;
        for run in 0..50 {
            let ends = shares.next(now, 2);
            assert!(ends.soft >= SECOND, "{run}: {ends:?}");
            assert!(ends.soft <= ends.hard);
            now += ends.soft;
        }
        assert!(now <= end);
        assert!(now > end * 9 / 10);
    }

    #[test]
    fn no_run_ends_after_the_end_even_if_each_goes_to_its_hard_end() {
        let mut shares = Shares::new(10 * SECOND, 40);
        let mut now = Duration::ZERO;
        for _ in 0..40 {
            now += shares.next(now, 1).hard;
            assert!(now <= 10 * SECOND);
        }
        let late = shares_after(20 * SECOND);
        assert_eq!((late.soft, late.hard), (Duration::ZERO, Duration::ZERO));
    }

    fn shares_after(now: Duration) -> Deadlines {
        Shares::new(10 * SECOND, 1).next(now, 1)
    }

    #[test]
    fn phases_leave_time_for_those_after_them() {
        let ends = Deadlines {
            soft: 4 * SECOND,
            hard: 16 * SECOND,
        };
        let mut now = Duration::ZERO;
        for _ in 0..6 {
            let phase = ends.left(now, false);
            assert!(phase >= LEAST);
            now += phase;
        }
        assert!(now <= 4 * SECOND);
        assert_eq!(ends.left(now, true), 16 * SECOND - now);
        assert!(!ends.is_over(now));
        assert!(ends.is_over(16 * SECOND));
        assert_eq!(ends.left(20 * SECOND, false), Duration::ZERO);
    }

    #[test]
    fn steps_share_what_their_run_has() {
        let run = Deadlines {
            soft: 8 * SECOND,
            hard: 20 * SECOND,
        };
        assert_eq!(of_step(run, Duration::ZERO, 4).soft, 2 * SECOND);
        let late = of_step(run, 9 * SECOND, 1);
        assert_eq!((late.soft, late.hard), (LEAST, 11 * SECOND));
    }
}
