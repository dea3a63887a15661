//! Background work after requests, in a thread of its own, so that no request waits for it.

use std::time::Duration;
use stitch_base::thread::JoinHandle;

use stitch_base::sync::{Arc, Condvar, Mutex};

/// The reason for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// There is work to do.
    Due,
    /// The thread ends after this round.
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

#[derive(Debug, Default)]
struct Pending {
    is_due: bool,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct ChoreState {
    state: Mutex<Pending>,
    changed: Condvar,
}

/// A thread that runs a round some time after it is requested, so that one round does the work of
/// many requests.
#[derive(Debug)]
pub(super) struct Chore {
    name: &'static str,
    gather: Duration,
    shared: Arc<ChoreState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Chore {
    /// Creates the chore without its thread. A round starts `gather` after its request.
    pub(super) fn new(name: &'static str, gather: Duration) -> Self {
        Self {
            name,
            gather,
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread, unless it runs.
    pub(super) fn start(&self, mut round: impl FnMut(Round) -> Left + Send + 'static) {
        let mut started = self.thread.lock();
        if started.is_some() {
            // Mounted twice: the work is done for the first mount alone.
            return;
        }
        let (shared, gather) = (Arc::clone(&self.shared), self.gather);
        let body = move || {
            let mut later = None;
            while shared.wait(gather, later) {
                later = match round(Round::Due) {
                    Left::Nothing => None,
                    Left::More => Some(Duration::ZERO),
                    Left::Later(time) => Some(time),
                };
            }
            round(Round::Last);
        };
        match stitch_base::thread::spawn(self.name, body) {
            Ok(thread) => *started = Some(thread),
            Err(error) => tracing::warn!(%error, name = self.name, "cannot start a thread"),
        }
    }

    /// Requests a round.
    pub(super) fn note(&self) {
        let mut state = self.shared.state.lock();
        if !state.is_due {
            state.is_due = true;
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread, after a last round.
    pub(super) fn stop(&self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(name = self.name, "a thread panicked");
        }
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ChoreState {
    /// Waits until a round is due, at most for a time if one is given. Returns false if it is the
    /// last.
    fn wait(&self, gather: Duration, later: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while !(state.is_due || state.is_stopped) {
            let Some(time) = later else {
                self.changed.wait(&mut state);
                continue;
            };
            // Woken early, it only looks sooner.
            self.changed.wait_for(&mut state, time);
            state.is_due = true;
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
}
