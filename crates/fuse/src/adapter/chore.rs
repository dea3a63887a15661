//! Background work after requests, in a thread of its own, so that no request waits for it.
//!
//! The thread is there while it has work: a mount has several chores for each of its views, and may
//! show thousands of them.

use std::time::Duration;

use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::JoinHandle;

/// The reason for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// There is work to do.
    Due,
    /// No round comes after this one. It runs in the thread that stops the chore.
    Last,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// Another round is due at once.
    More,
    /// Another round is due after this time.
    Later(Duration),
}

/// How long a thread waits for the next request before it ends. A mount has a view for each clone
/// and each snapshot that was looked at, and most of them rest.
pub(super) const LINGER: Duration = Duration::from_secs(2);

type Rounds = Box<dyn FnMut(Round) -> Left + Send>;

#[derive(Debug, Default)]
struct Pending {
    is_due: bool,
    is_started: bool,
    is_stopped: bool,
    /// True from the start of a thread until it ends for want of requests.
    is_running: bool,
    /// The last one, which may have ended.
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ChoreState {
    state: Mutex<Pending>,
    changed: Condvar,
    /// From the start to the last round.
    rounds: Mutex<Option<Rounds>>,
    clock: SystemClock,
}

/// Work that is done some time after it is requested, so that one round does that of many requests.
/// There is a thread for it while there are requests, and for [`LINGER`] after the last.
///
/// Locks: `rounds` is held while a round runs, and no other lock is taken under it here.
pub(super) struct Chore {
    name: &'static str,
    gather: Duration,
    linger: Duration,
    shared: Arc<ChoreState>,
}

impl std::fmt::Debug for Chore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Chore");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Chore {
    /// Creates the chore. A round starts `gather` after its request.
    pub(super) fn new(name: &'static str, gather: Duration) -> Self {
        debug_assert!(!name.is_empty(), "a thread has a name");
        Self {
            name,
            gather,
            linger: LINGER,
            shared: Arc::default(),
        }
    }

    /// Lets rounds run from now on, also for requests from before.
    pub(super) fn start(&self, rounds: impl FnMut(Round) -> Left + Send + 'static) {
        let mut state = self.shared.state.lock();
        if state.is_started {
            // Mounted twice: the work is done for the first mount alone.
            return;
        }
        state.is_started = true;
        *self.shared.rounds.lock() = Some(Box::new(rounds));
        if state.is_due {
            self.wake(&mut state);
        }
    }

    /// Requests a round.
    pub(super) fn note(&self) {
        let mut state = self.shared.state.lock();
        if !state.is_due || !state.is_running {
            state.is_due = true;
            self.wake(&mut state);
        }
    }

    /// Wakes the thread, or starts one.
    fn wake(&self, state: &mut Pending) {
        debug_assert!(state.is_due, "there is something to do");
        if state.is_running {
            self.shared.changed.notify_one();
            return;
        }
        if !state.is_started || state.is_stopped {
            return;
        }
        let (shared, gather, linger) = (Arc::clone(&self.shared), self.gather, self.linger);
        match stitch_base::thread::spawn(self.name, move || shared.run(gather, linger)) {
            Ok(thread) => {
                state.is_running = true;
                state.thread = Some(thread);
            }
            // The next request tries again.
            Err(error) => tracing::warn!(%error, name = self.name, "cannot start a thread"),
        }
    }

    /// Ends the thread, and runs a last round.
    pub(super) fn stop(&self) {
        let thread = {
            let mut state = self.shared.state.lock();
            state.is_stopped = true;
            state.thread.take()
        };
        self.shared.changed.notify_one();
        let has_panicked = thread.is_some_and(|thread| thread.join().is_err());
        let rounds = self.shared.rounds.lock().take();
        if has_panicked {
            tracing::error!(name = self.name, "a thread panicked");
        } else if let Some(mut rounds) = rounds {
            rounds(Round::Last);
        }
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ChoreState {
    fn run(&self, gather: Duration, linger: Duration) {
        let mut later = None;
        while self.wait(gather, linger, later) {
            let left = match &mut *self.rounds.lock() {
                Some(rounds) => rounds(Round::Due),
                None => return,
            };
            later = match left {
                Left::Nothing => None,
                Left::More => Some(Duration::ZERO),
                Left::Later(time) => Some(time),
            };
        }
    }

    /// Waits until a round is due, at most for a time if one is given. Returns false if the thread
    /// is to end.
    fn wait(&self, gather: Duration, linger: Duration, later: Option<Duration>) -> bool {
        let end = self.clock.monotonic() + later.unwrap_or(linger);
        let mut state = self.state.lock();
        debug_assert!(state.is_running, "one thread waits here");
        while !(state.is_due || state.is_stopped) {
            let left = end.saturating_sub(self.clock.monotonic());
            if !left.is_zero() {
                self.changed.wait_for(&mut state, left);
                continue;
            }
            state.is_due = later.is_some();
            if !state.is_due {
                state.is_running = false;
                return false;
            }
        }
        if !state.is_stopped {
            self.changed.wait_for(&mut state, gather);
        }
        state.is_due = false;
        !state.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_round_runs_later_without_a_request() {
        let chore = Chore::new("test", Duration::ZERO);
        let (sender, receiver) = mpsc::channel();
        let mut count = 0;
        chore.start(move |round| {
            count += 1;
            sender.send((count, round)).expect("the test listens");
            match count {
                1 => Left::Later(Duration::from_millis(5)),
                _ => Left::Nothing,
            }
        });
        chore.note();
        assert_eq!(receiver.recv(), Ok((1, Round::Due)));
        assert_eq!(receiver.recv(), Ok((2, Round::Due)));
        chore.stop();
        assert_eq!(receiver.recv(), Ok((3, Round::Last)));
    }

    #[test]
    fn rounds_run_when_due_again_when_more_is_left_and_a_last_time() {
        let chore = Chore::new("test", Duration::ZERO);
        let (sender, receiver) = mpsc::channel();
        let mut count = 0;
        chore.start(move |round| {
            count += 1;
            sender.send((count, round)).expect("the test listens");
            if count == 1 {
                Left::More
            } else {
                Left::Nothing
            }
        });
        assert!(receiver.try_recv().is_err(), "nothing is due");
        chore.note();
        assert_eq!(receiver.recv(), Ok((1, Round::Due)));
        assert_eq!(receiver.recv(), Ok((2, Round::Due)));
        chore.stop();
        assert_eq!(receiver.recv(), Ok((3, Round::Last)));
        assert!(receiver.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn a_second_start_leaves_the_thread_alone() {
        let chore = Chore::new("test", Duration::ZERO);
        let (sender, receiver) = mpsc::channel();
        for start in 1..=2 {
            let sender = sender.clone();
            chore.start(move |round| {
                sender.send((start, round)).expect("the test listens");
                Left::Nothing
            });
        }
        drop(sender);
        chore.stop();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [(1, Round::Last)]);
    }

    #[test]
    fn a_thread_without_requests_ends_and_the_next_request_starts_one() {
        let mut chore = Chore::new("test", Duration::ZERO);
        chore.linger = Duration::from_millis(1);
        let (sender, receiver) = mpsc::channel();
        let mut count = 0;
        chore.start(move |round| {
            count += 1;
            let thread = std::thread::current().id();
            sender
                .send((count, round, thread))
                .expect("the test listens");
            Left::Nothing
        });
        assert!(!chore.shared.state.lock().is_running, "nothing is due");
        let mut threads = Vec::new();
        for count in 1..=3 {
            chore.note();
            let (nth, round, thread) = receiver.recv().expect("a round runs");
            assert_eq!((nth, round), (count, Round::Due));
            threads.push(thread);
            while chore.shared.state.lock().is_running {
                std::thread::yield_now();
            }
        }
        assert!(threads[0] != threads[1] && threads[1] != threads[2]);
        chore.stop();
        let own = std::thread::current().id();
        assert_eq!(receiver.recv(), Ok((4, Round::Last, own)));
        chore.note();
        chore.stop();
        assert!(receiver.recv().is_err(), "there was a last round");
    }

    #[test]
    fn a_request_from_before_the_start_is_not_lost() {
        let chore = Chore::new("test", Duration::ZERO);
        chore.note();
        let (sender, receiver) = mpsc::channel();
        chore.start(move |round| {
            sender.send(round).expect("the test listens");
            Left::Nothing
        });
        assert_eq!(receiver.recv(), Ok(Round::Due));
        chore.stop();
        assert_eq!(receiver.recv(), Ok(Round::Last));
    }
}
