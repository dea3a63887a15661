//! Keeps the inodes that the kernel knows below the number of descriptors that this process may
//! have: asks it to drop those that came first, where it does not use them. FORGET follows.
//!
//! A thread of its own sends the notices: in a notice the kernel may wait for replies of this
//! process.

use super::inodes::Inodes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;
use stitch_base::thread::{self, JoinHandle};
use stitch_fuse::Notifier;
use stitch_fuse::wire::notice::PRUNE_COUNT_MAX;

/// Between two looks.
const PACE: Duration = Duration::from_millis(10);
/// Notices between two looks, at most.
const NOTICES_MAX: usize = 16;

/// The thread.
#[derive(Default)]
pub(super) struct Pruner {
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Pruner {
    /// Starts it, where the kernel can be asked.
    pub(super) fn start(&self, inodes: &Arc<Inodes>, notifier: &Notifier) {
        if !notifier.can_prune() {
            return;
        }
        let (inodes, notifier) = (Arc::clone(inodes), notifier.clone());
        let is_over = Arc::clone(&self.is_over);
        let started = thread::spawn("prune", move || {
            let clock = SystemClock::default();
            while !is_over.load(Ordering::Relaxed) {
                round(&inodes, &notifier);
                clock.sleep(PACE);
            }
        });
        // Without it the kernel forgets when memory runs short.
        *self.thread.lock() = started.ok();
    }

    /// Ends it.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join().expect("it does not panic");
        }
    }
}

fn round(inodes: &Inodes, notifier: &Notifier) {
    for _ in 0..NOTICES_MAX {
        let oldest = inodes.too_many(PRUNE_COUNT_MAX);
        // The mount is gone.
        if oldest.is_empty() || notifier.prune(&oldest).is_err() {
            return;
        }
    }
}
