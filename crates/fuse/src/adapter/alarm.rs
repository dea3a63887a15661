//! Rounds of work at times that each round tells, in a thread of their own.

use std::time::Duration;

use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::JoinHandle;

#[derive(Debug, Default)]
struct Wake {
    is_due: bool,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct AlarmState {
    wake: Mutex<Wake>,
    changed: Condvar,
}

/// A thread that runs a round when it starts, after the time that the last round told, and when it
/// is requested.
#[derive(Debug)]
pub(super) struct Alarm {
    name: &'static str,
    shared: Arc<AlarmState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Alarm {
    /// Creates the alarm without its thread.
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread, unless it runs. A round returns the time until the next one; `None`:
    /// until it is requested.
    pub(super) fn start(&self, mut round: impl FnMut() -> Option<Duration> + Send + 'static) {
        let mut started = self.thread.lock();
        if started.is_some() {
            // Mounted twice: the work is done for the first mount alone.
            return;
        }
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let mut limit = Some(Duration::ZERO);
            while shared.wait(limit) {
                limit = round();
            }
        };
        match stitch_base::thread::spawn(self.name, body) {
            Ok(thread) => *started = Some(thread),
            Err(error) => tracing::error!(%error, name = self.name, "cannot start a thread"),
        }
    }

    /// Requests a round.
    pub(super) fn note(&self) {
        self.shared.wake.lock().is_due = true;
        self.shared.changed.notify_one();
    }

    /// Ends the thread, after the round under way.
    pub(super) fn stop(&self) {
        self.shared.wake.lock().is_stopped = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(name = self.name, "a thread panicked");
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AlarmState {
    /// Waits until a round is due; without a limit until it is requested. Returns false at the end.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let mut wake = self.wake.lock();
        if !wake.is_due && !wake.is_stopped {
            match limit {
                Some(limit) => {
                    self.changed.wait_for(&mut wake, limit);
                }
                None => self.changed.wait(&mut wake),
            }
        }
        wake.is_due = false;
        !wake.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn rounds_run_at_the_start_at_their_time_and_when_requested() {
        let alarm = Alarm::new("test");
        let (sender, receiver) = mpsc::channel();
        let mut count = 0;
        alarm.start(move || {
            count += 1;
            sender.send(count).expect("the test listens");
            (count < 3).then_some(Duration::ZERO)
        });
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(1), Ok(2)));
        assert_eq!(receiver.recv(), Ok(3));
        assert!(receiver.try_recv().is_err(), "nothing is due");
        alarm.note();
        assert_eq!(receiver.recv(), Ok(4));
        alarm.stop();
        assert!(receiver.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn a_second_start_leaves_the_thread_alone() {
        let alarm = Alarm::new("test");
        let (sender, receiver) = mpsc::channel();
        for start in 1..=2 {
            let sender = sender.clone();
            alarm.start(move || {
                sender.send(start).expect("the test listens");
                None
            });
        }
        drop(sender);
        assert_eq!(receiver.recv(), Ok(1));
        alarm.note();
        assert_eq!(receiver.recv(), Ok(1));
        alarm.stop();
        assert!(receiver.recv().is_err(), "one thread has run");
    }
}
