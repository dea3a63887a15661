//! Decides by looks when the WRITEs that were queued before the first look have been served.
//!
//! 1. If the kernel's own count of requests without a reply is known and is 0, they have: at once.
//! 2. If not, because that count is not known or other requests come all the time, by quiet looks:
//!    a quiet look sees no WRITE being served, as the look before it did, and few begun in between.
//!    A queue with WRITEs leaves no worker that could serve them idle. Many in between mean that
//!    the kernel held some back and sends them now.
//!
//! ```text
//!   begun since the first look   quiet looks   time since the first look
//!   no                           8             20 ms
//!   yes                          10            50 ms
//! ```
//!
//! Pure: time comes with each look.

use std::time::Duration;

use super::Look;

/// Time between two looks.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// WRITEs between two looks that show a queue: half of those that the kernel sends at once.
const BURST: u64 = 16;
/// The shortest time without a WRITE, and its quiet looks.
const UNTOUCHED: (Duration, u32) = (Duration::from_millis(20), 8);
/// The shortest time with WRITEs, and its quiet looks.
const TOUCHED: (Duration, u32) = (Duration::from_millis(50), 10);
/// The longest time without a WRITE that begins or ends, and without a quiet look.
const STALL_MAX: Duration = Duration::from_secs(10);

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They have been served.
    Settled,
    /// Another look is needed.
    Wait,
    /// They have not, and none ends any more.
    Stalled,
}

/// The looks of one wait.
///
/// Invariant: the quiet looks come after `first`, and `drained` is the first of them.
#[derive(Debug)]
pub(super) struct Settling {
    first: Look,
    last: Look,
    quiet_looks: u32,
    drained: Option<Look>,
    /// Time of the last progress since the first look.
    progress: Duration,
}

impl Settling {
    /// Begins with the first look, and what it shows.
    pub(super) fn begin(first: Look) -> (Self, Verdict) {
        let settling = Self {
            first,
            last: first,
            quiet_looks: 0,
            drained: None,
            progress: Duration::ZERO,
        };
        let verdict = match first.others {
            Some(0) => Verdict::Settled,
            _ => Verdict::Wait,
        };
        (settling, verdict)
    }

    /// Takes another look, `elapsed` after the first.
    pub(super) fn note(&mut self, look: Look, elapsed: Duration) -> Verdict {
        let last = std::mem::replace(&mut self.last, look);
        // A mount that is taken over by another daemon counts anew.
        let fresh = look.begun.saturating_sub(last.begun);
        let is_quiet = look.busy == 0 && last.busy == 0 && fresh < BURST;
        if is_quiet {
            self.quiet_looks += 1;
            self.drained.get_or_insert(look);
        }
        if is_quiet || (look.begun, look.busy) != (last.begun, last.busy) {
            self.progress = elapsed;
        }
        debug_assert!(self.progress <= elapsed, "time goes on");
        debug_assert_eq!(
            self.drained.is_some(),
            self.quiet_looks > 0,
            "the first quiet look drained"
        );
        if look.others == Some(0) || (is_quiet && self.is_quiet_for_long(elapsed)) {
            Verdict::Settled
        } else if elapsed - self.progress >= STALL_MAX {
            Verdict::Stalled
        } else {
            Verdict::Wait
        }
    }

    fn is_quiet_for_long(&self, elapsed: Duration) -> bool {
        let (time_min, looks_min) = match self.last.begun == self.first.begun {
            true => UNTOUCHED,
            false => TOUCHED,
        };
        elapsed >= time_min && self.quiet_looks >= looks_min
    }

    /// Returns the last look.
    pub(super) const fn last(&self) -> Look {
        self.last
    }

    /// Returns the look by which the queue had been served: WRITEs after it are those of others.
    pub(super) fn drained(&self) -> Look {
        self.drained.unwrap_or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = TICK;

    fn look(begun: u64, busy: u64, others: Option<u64>) -> Look {
        Look {
            begun,
            busy,
            others,
        }
    }

    /// Takes one look a millisecond. Returns after how many it has settled.
    fn settled_after(looks: impl IntoIterator<Item = Look>) -> Option<u32> {
        let mut looks = looks.into_iter();
        let (mut settling, mut verdict) = Settling::begin(looks.next().unwrap());
        let mut count = 0;
        while verdict == Verdict::Wait {
            count += 1;
            verdict = settling.note(looks.next()?, MS * count);
        }
        (verdict == Verdict::Settled).then_some(count)
    }

    #[test]
    fn with_no_other_request_the_first_look_is_enough() {
        assert_eq!(settled_after([look(9, 0, Some(0))]), Some(0));
        let draining = [3, 2, 1, 0].map(|others| look(9, 0, Some(others)));
        assert_eq!(settled_after(draining), Some(3));
    }

    #[test]
    fn without_the_kernels_count_twenty_quiet_milliseconds_are() {
        assert_eq!(settled_after([look(9, 0, None); 100]), Some(20));
        assert_eq!(settled_after([look(9, 0, Some(1)); 100]), Some(20));
        assert_eq!(settled_after([look(9, 0, None); 20]), None);
    }

    #[test]
    fn after_a_write_there_are_fifty() {
        let once = std::iter::once(look(9, 0, None));
        let looks = once.chain(std::iter::repeat(look(10, 0, None)));
        assert_eq!(settled_after(looks), Some(50));
    }

    #[test]
    fn a_write_that_is_being_served_is_waited_for() {
        let busy = std::iter::repeat_n(look(9, 1, None), 3000);
        let looks = busy.chain(std::iter::repeat(look(9, 0, None)));
        assert_eq!(settled_after(looks), Some(3008), "eight quiet looks");
    }

    #[test]
    fn a_queue_that_one_worker_serves_between_looks_is_waited_for() {
        // The look always comes between two WRITEs, and the kernel sends as many as it holds back.
        let queue = (0..20).map(|at| look(at * BURST, 0, None));
        let looks = queue.chain(std::iter::repeat(look(19 * BURST, 0, None)));
        let count = settled_after(looks).unwrap();
        assert_eq!(count, 50);
        let queue = (0..200).map(|at| look(at * BURST, 0, None));
        let looks = queue.chain(std::iter::repeat(look(199 * BURST, 0, None)));
        assert_eq!(settled_after(looks), Some(199 + 10));
    }

    #[test]
    fn programs_that_write_all_the_time_do_not_hold_it_up_for_ever() {
        // Every look finds a few WRITEs more, and one of three finds one being served.
        let looks = (0..).map(|at| look(at * 5, u64::from(at % 3 == 0), None));
        assert_eq!(settled_after(looks.take(1000)), Some(50));
    }

    #[test]
    fn a_write_that_never_ends_stalls() {
        let (mut settling, verdict) = Settling::begin(look(9, 1, Some(4)));
        assert_eq!(verdict, Verdict::Wait);
        let second = Duration::from_secs(1);
        for count in 1..10 {
            let verdict = settling.note(look(9, 1, Some(4)), second * count);
            assert_eq!(verdict, Verdict::Wait);
        }
        let verdict = settling.note(look(10, 1, Some(4)), second * 10);
        assert_eq!(verdict, Verdict::Wait, "one has ended and one begun");
        let verdict = settling.note(look(10, 1, Some(4)), second * 20);
        assert_eq!(verdict, Verdict::Stalled);
    }

    #[test]
    fn the_queue_is_told_from_what_comes_later() {
        let (mut settling, _) = Settling::begin(look(100, 1, None));
        let _ = settling.note(look(140, 0, None), MS);
        let _ = settling.note(look(141, 0, None), MS * 2);
        let _ = settling.note(look(150, 0, None), MS * 3);
        assert_eq!(settling.drained(), look(141, 0, None));
    }
}
