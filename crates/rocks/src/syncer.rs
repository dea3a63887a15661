//! The thread that makes commits durable every few seconds.

use crate::database::Database;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Condvar, Mutex};
use stitch_base::thread::{self, JoinHandle};

/// What the thread and its owner share.
#[derive(Debug, Default)]
struct Shared {
    is_ended: Mutex<bool>,
    ended: Condvar,
    /// A batch was committed since the last sync.
    is_dirty: AtomicBool,
    has_failed: AtomicBool,
}

/// Owner of the thread; dropped, it ends the thread.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Syncer {
    /// Starts the thread. Without one (`interval` zero, or none to be had) only `sync` syncs.
    pub(crate) fn start(database: &Arc<Database>, interval: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (own, database) = (Arc::clone(&shared), Arc::clone(database));
        let body = move || run(&own, &database, interval);
        let thread = match interval.is_zero() {
            true => None,
            false => thread::spawn("rocks-sync", body)
                .inspect_err(|error| tracing::warn!(%error, "no thread to sync the log"))
                .ok(),
        };
        Self {
            shared,
            thread: Mutex::new(thread),
        }
    }

    /// Notes that a batch was committed.
    pub(crate) fn note_commit(&self) {
        self.shared.is_dirty.store(true, Ordering::Release);
    }

    /// Reports whether a sync by the clock has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        *self.shared.is_ended.lock() = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that syncs the log has panicked");
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(shared: &Shared, database: &Database, interval: Duration) {
    let mut is_ended = shared.is_ended.lock();
    while !*is_ended {
        shared.ended.wait_for(&mut is_ended, interval);
        if *is_ended || !shared.is_dirty.swap(false, Ordering::AcqRel) {
            continue;
        }
        if let Err(error) = database.sync_wal() {
            tracing::error!(%error, "the log could not be synced");
            shared.has_failed.store(true, Ordering::Release);
            return;
        }
    }
}
