//! Commands that create or remove a snapshot or a clone, for which passes of the background make
//! way.
//!
//! ```text
//! commands      | snapshot |  | clone |                     | clone |
//! pass     round ends at                  QUIET later: round         ends at
//!          the next name                                             the next name
//! ```
//!
//! - A round of a pass ends at the next name while a command is under way, so it takes neither the
//!   processor nor the device nor a lock from it for longer than that.
//! - No round begins within [`QUIET`] of a command: one command is often followed by others.
//! - Commands that never stop hold a pass up for [`WAIT_MAX`]. From then on its rounds run between
//!   them.
//!
//! Lock: `series` is held for moments, and no other lock is taken under it.

use std::time::Duration;
use stitch_base::clock::Clock;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};

/// Time after a command before a round begins.
const QUIET: Duration = Duration::from_millis(500);
/// Time after the first command of a series before rounds begin all the same.
const WAIT_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(
    QUIET.as_nanos() < WAIT_MAX.as_nanos(),
    "a series has several commands"
);

/// The commands of a store that are under way, and when the last ones were.
#[derive(Debug, Default)]
pub(crate) struct ViewCommands {
    under_way: AtomicUsize,
    /// The last commands.
    series: Mutex<Option<Series>>,
}

/// Commands that followed each other by less than [`QUIET`], by the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Series {
    first: Duration,
    last: Duration,
}

/// A command that is under way until this is dropped.
pub(crate) struct ViewCommand<'v> {
    commands: &'v ViewCommands,
    clock: &'v dyn Clock,
}

impl ViewCommands {
    /// Notes that a command begins.
    pub(crate) fn begin<'v>(&'v self, clock: &'v dyn Clock) -> ViewCommand<'v> {
        self.note(clock.monotonic());
        self.under_way.fetch_add(1, Ordering::Relaxed);
        debug_assert!(self.are_under_way(), "until it is dropped");
        ViewCommand {
            commands: self,
            clock,
        }
    }

    /// Reports whether a command is under way, so that a round is to end.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Returns how long a pass is to wait before its next round.
    pub(crate) fn wait_at(&self, now: Duration) -> Duration {
        let Some(series) = *self.series.lock() else {
            return Duration::ZERO;
        };
        debug_assert!(series.first <= series.last, "time goes on");
        if now.saturating_sub(series.first) >= WAIT_MAX {
            return Duration::ZERO;
        }
        let last = match self.are_under_way() {
            true => now,
            false => series.last,
        };
        (last + QUIET).saturating_sub(now)
    }

    /// Notes a command that begins or ends.
    fn note(&self, now: Duration) {
        let mut series = self.series.lock();
        let is_over = |series: &Series| !self.are_under_way() && now >= series.last + QUIET;
        match &mut *series {
            Some(series) if !is_over(series) => series.last = series.last.max(now),
            other => {
                *other = Some(Series {
                    first: now,
                    last: now,
                });
            }
        }
    }
}

impl Drop for ViewCommand<'_> {
    fn drop(&mut self) {
        self.commands.note(self.clock.monotonic());
        let before = self.commands.under_way.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "it was under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::clock::ManualClock;

    #[test]
    fn a_pass_waits_while_a_command_is_under_way_and_some_time_after_it() {
        let (commands, clock) = (ViewCommands::default(), ManualClock::default());
        clock.advance(Duration::from_secs(100));
        let wait = || commands.wait_at(clock.monotonic());
        assert_eq!(wait(), Duration::ZERO, "there was none");
        let (one, two) = (commands.begin(&clock), commands.begin(&clock));
        clock.advance(2 * QUIET);
        drop(one);
        assert!(commands.are_under_way());
        assert_eq!(wait(), QUIET);
        drop(two);
        assert!(!commands.are_under_way());
        clock.advance(QUIET / 4);
        assert_eq!(wait(), QUIET / 4 * 3);
        clock.advance(QUIET / 4 * 3);
        assert_eq!(wait(), Duration::ZERO);
    }

    #[test]
    fn commands_that_never_stop_hold_a_pass_up_for_a_bounded_time() {
        let (commands, clock) = (ViewCommands::default(), ManualClock::default());
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            drop(commands.begin(&clock));
            if commands.wait_at(clock.monotonic()).is_zero() {
                break;
            }
            clock.advance(QUIET / 2);
            waited += QUIET / 2;
        }
        assert_eq!(waited, WAIT_MAX);
        drop(commands.begin(&clock));
        assert_eq!(commands.wait_at(clock.monotonic()), Duration::ZERO);
        clock.advance(QUIET);
        drop(commands.begin(&clock));
        assert_eq!(commands.wait_at(clock.monotonic()), QUIET, "a new series");
    }
}
