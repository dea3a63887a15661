//! Signals that wake the background threads of a store.
//!
//! Invariant: a signal sent while its thread is busy is not lost; the thread finds it at its next
//! wait. Several signals to one thread are one.

use std::time::Duration;
use stitch_base::sync::{Condvar, Mutex};

/// A background thread that waits for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    WriteOut,
    Compaction,
    /// The second compaction thread.
    Help,
    Gaps,
}

/// Number of [`Worker`]s.
const WORKERS: usize = Worker::Gaps as usize + 1;

/// Wakes background threads.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<SignalState>,
    /// By [`Worker`].
    woken: [Condvar; WORKERS],
}

#[derive(Default)]
struct SignalState {
    /// By [`Worker`].
    is_wanted: [bool; WORKERS],
    is_stopped: bool,
}

impl Signals {
    /// Wakes a thread, or lets its next wait return at once.
    pub(crate) fn wake(&self, worker: Worker) {
        let mut state = self.state.lock();
        state.is_wanted[worker as usize] = true;
        self.woken[worker as usize].notify_one();
    }

    /// Ends all waits, now and later.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        for woken in &self.woken {
            woken.notify_all();
        }
    }

    /// Reports whether the threads are to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Waits until woken, stopped or timed out. Returns false when stopped.
    pub(crate) fn wait(&self, worker: Worker, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_wanted[worker as usize] && !state.is_stopped {
            self.woken[worker as usize].wait_for(&mut state, timeout);
        }
        state.is_wanted[worker as usize] = false;
        !state.is_stopped
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_signal_before_the_wait_is_not_lost_and_counts_once() {
        let signals = Signals::default();
        signals.wake(Worker::Gaps);
        signals.wake(Worker::Gaps);
        assert!(signals.wait(Worker::Gaps, LONG), "it returns at once");
        assert!(!signals.state.lock().is_wanted[Worker::Gaps as usize]);
        assert!(signals.wait(Worker::Gaps, Duration::ZERO), "not stopped");
    }

    #[test]
    fn a_stop_ends_all_waits() {
        let signals = Signals::default();
        signals.stop();
        assert!(signals.is_stopped());
        for worker in [
            Worker::WriteOut,
            Worker::Compaction,
            Worker::Help,
            Worker::Gaps,
        ] {
            assert!(!signals.wait(worker, LONG), "{worker:?}");
        }
    }
}
