//! The gate between a session's workers and its handler. It is shut for good when the mount goes to
//! another process.
//!
//! A worker that finds the gate shut keeps its request unanswered until the process ends; the
//! kernel resends the request to the next process. Workers that wait in the kernel need not be
//! woken: they have no request.

use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex};

const SHUT: usize = 1 << (usize::BITS - 1);
/// Interval of checks whether the last request is answered.
const POLL: Duration = Duration::from_micros(200);

/// The gate, and the number of workers that have ended.
#[derive(Debug, Default)]
pub struct Gate {
    /// Number of requests being served, and whether the gate is shut.
    inside: AtomicUsize,
    ended: Mutex<usize>,
    changed: Condvar,
}

/// A request being served. Dropped once it is answered.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let inside = self.0.inside.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(inside & !SHUT > 0, "a request that leaves was inside");
    }
}

/// A running worker.
#[derive(Debug)]
pub(crate) struct AtEnd(Arc<Gate>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        *self.0.ended.lock() += 1;
        self.0.changed.notify_all();
    }
}

impl Gate {
    /// Lets a request in. Never returns if the gate is shut.
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

    /// Shuts the gate, and waits until all requests inside are answered.
    pub fn shut(&self) {
        self.inside.fetch_or(SHUT, Ordering::SeqCst);
        let clock = SystemClock::default();
        while self.inside.load(Ordering::SeqCst) != SHUT {
            clock.sleep(POLL);
        }
        // Notify under the lock: a waiting thread either sees the gate shut, or waits already.
        let ended = self.ended.lock();
        self.changed.notify_all();
        drop(ended);
    }

    /// Reports whether the gate is shut and no request is inside.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == SHUT
    }

    /// Returns a guard that counts the end of a worker when dropped.
    pub(crate) const fn at_end(self: Arc<Self>) -> AtEnd {
        AtEnd(self)
    }

    /// Waits until `count` workers have ended, or the gate is shut. Returns whether it is shut.
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
