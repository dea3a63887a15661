//! The door between a session's workers and its handler, which can be shut for good: when the mount goes to
//! another process.
//!
//! A worker that finds it shut keeps its request unanswered and waits for the end of the process; whoever
//! goes on with the mount is sent it again. Workers that wait in the kernel need not be woken: they have none.

use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex};

const SHUT: usize = 1 << (usize::BITS - 1);
/// Between two looks at whether the last request is answered.
const POLL: Duration = Duration::from_micros(200);

/// The door, and how many of the workers have ended.
#[derive(Debug, Default)]
pub struct Gate {
    /// Requests that are being served, and whether it is shut.
    inside: AtomicUsize,
    ended: Mutex<usize>,
    changed: Condvar,
}

/// A request that is being served. Dropped once it is answered.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A worker that has not ended.
#[derive(Debug)]
pub(crate) struct AtEnd(Arc<Gate>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        *self.0.ended.lock() += 1;
        self.0.changed.notify_all();
    }
}

impl Gate {
    /// Lets a request in; if the gate is shut, never returns.
    pub fn enter(&self) -> Pass<'_> {
        if self.inside.fetch_add(1, Ordering::SeqCst) & SHUT != 0 {
            self.inside.fetch_sub(1, Ordering::SeqCst);
            let mut ended = self.ended.lock();
            loop {
                self.changed.wait(&mut ended);
            }
        }
        Pass(self)
    }

    /// Shuts it, and waits until what was let in is answered.
    pub fn shut(&self) {
        self.inside.fetch_or(SHUT, Ordering::SeqCst);
        let clock = SystemClock::default();
        while self.inside.load(Ordering::SeqCst) != SHUT {
            clock.sleep(POLL);
        }
        // The lock: whoever looks whether it is shut either sees it or is waiting already.
        let ended = self.ended.lock();
        self.changed.notify_all();
        drop(ended);
    }

    /// Is it shut, and nothing inside?
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == SHUT
    }

    /// Notes the end of a worker when it is dropped.
    pub(crate) const fn at_end(self: Arc<Self>) -> AtEnd {
        AtEnd(self)
    }

    /// Waits until all of `count` workers have ended, or the gate is shut; whether that.
    pub(crate) fn wait(&self, count: usize) -> bool {
        let mut ended = self.ended.lock();
        while *ended < count && !self.is_shut() {
            self.changed.wait(&mut ended);
        }
        *ended < count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutting_waits_for_what_is_inside_and_lets_nothing_in() {
        let gate = Arc::new(Gate::default());
        let pass = gate.enter();
        let shared = Arc::clone(&gate);
        let shutting = stitch_base::thread::spawn("shutting", move || shared.shut()).unwrap();
        while gate.inside.load(Ordering::SeqCst) & SHUT == 0 {
            SystemClock::default().sleep(POLL);
        }
        assert!(!gate.is_shut() && !shutting.is_finished());
        let (shared, (sender, entered)) = (Arc::clone(&gate), std::sync::mpsc::channel());
        let late = move || {
            let _pass = shared.enter();
            sender.send(()).unwrap();
        };
        stitch_base::thread::spawn("late", late).unwrap();
        drop(pass);
        shutting.join().unwrap();
        assert!(gate.is_shut() && gate.wait(2));
        let waited = entered.recv_timeout(Duration::from_millis(50));
        assert!(waited.is_err(), "a late one was let in");
    }

    #[test]
    fn workers_that_end_are_waited_for() {
        let gate = Arc::new(Gate::default());
        for _ in 0..2 {
            let shared = Arc::clone(&gate);
            stitch_base::thread::spawn("worker", move || drop(shared.at_end())).unwrap();
        }
        assert!(!gate.wait(2), "it is open");
    }
}
