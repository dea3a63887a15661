//! Background work: one thread writes memtables out and syncs the log by the clock, one compacts, one
//! looks at rows of deletes. Several threads, so that a long compaction never delays a write-out, and
//! neither of them delays a look of a millisecond.

use crate::VtError;
use crate::compaction::Pressure;
use crate::store::{Store, Worker};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stitch_base::thread;

/// How long the shape must have been in order before work that nobody waits for begins.
const IDLE_AFTER: Duration = Duration::from_millis(1500);
/// How long deletes may lie in a memtable when nothing is written.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// How long they may lie there when something is.
const DELETES_AFTER: Duration = Duration::from_secs(15);
/// How often an idle thread looks around.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a thread waits that has nothing to do by the clock.
const IDLE_LOOK: Duration = Duration::from_secs(3600);

/// Starts the threads.
pub(crate) fn start(store: &Arc<Store>) -> Result<Vec<JoinHandle<()>>, VtError> {
    let spawn = |name: &str, body: fn(&Store)| {
        let store = Arc::clone(store);
        thread::spawn(name, move || body(&store)).map_err(|source| VtError::Thread { source })
    };
    let started = [
        spawn("stitch-write-out", write_out_loop),
        spawn("stitch-compact", compaction_loop),
        spawn("stitch-gaps", gap_loop),
    ];
    let mut threads = Vec::new();
    let mut failed = None;
    for thread in started {
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => failed = Some(error),
        }
    }
    let Some(error) = failed else {
        return Ok(threads);
    };
    store.signals.stop();
    for thread in threads {
        // It ends at once, and has nothing to say.
        drop(thread.join());
    }
    Err(error)
}

fn gap_loop(store: &Store) {
    while store.signals.wait(Worker::Gaps, IDLE_LOOK) {
        loop {
            match store.look_for_gaps() {
                Ok(true) if !store.signals.is_stopped() => {}
                Ok(_) => break,
                // Whoever reads there is told.
                Err(error) => tracing::debug!(%error, "a look at deleted rows ends"),
            }
        }
    }
}

fn write_out_loop(store: &Store) {
    let clock = &store.options.clock;
    let mut synced_at = clock.monotonic();
    let mut commits = store.counters.commits.get();
    let mut quiet_since = clock.monotonic();
    let mut deletes_since: Option<Duration> = None;
    loop {
        let interval = store.options.sync_interval.min(LOOK_EVERY);
        let goes_on = store.signals.wait(Worker::WriteOut, interval);
        if !goes_on || store.is_failed() {
            return;
        }
        // A failure has poisoned the store; whoever calls next is told.
        while let Ok(true) = store.write_out_one() {
            if store.signals.is_stopped() {
                return;
            }
        }
        let now = clock.monotonic();
        if now.saturating_sub(synced_at) >= store.options.sync_interval {
            synced_at = now;
            if let Err(error) = store.sync_if_needed() {
                store.fail(&error);
            }
        }
        let seen = store.counters.commits.get();
        if seen != commits {
            commits = seen;
            quiet_since = now;
        }
        if !store.views.get().active().has_deletes() {
            deletes_since = None;
            continue;
        }
        let since = *deletes_since.get_or_insert(now);
        let is_quiet = now.saturating_sub(quiet_since) >= QUIET_AFTER;
        if is_quiet || now.saturating_sub(since) >= DELETES_AFTER {
            deletes_since = None;
            if let Err(error) = store.seal_deletes() {
                store.fail(&error);
            }
        }
    }
}

fn compaction_loop(store: &Store) {
    let clock = &store.options.clock;
    let mut in_order_since = clock.monotonic();
    let mut looked_again_at = clock.monotonic();
    loop {
        let goes_on = store.signals.wait(Worker::Compaction, LOOK_EVERY);
        if !goes_on || store.is_failed() {
            return;
        }
        let now = clock.monotonic();
        if now.saturating_sub(looked_again_at) >= 10 * IDLE_AFTER {
            looked_again_at = now;
            store.forget_avoided();
        }
        let is_idle = now.saturating_sub(in_order_since) >= IDLE_AFTER;
        let pressure = store.pressure(is_idle);
        // A failure has poisoned the store, or it is being closed.
        let mut has_worked = false;
        while let Ok(true) = store.compact_one(pressure) {
            has_worked = true;
            if store.signals.is_stopped() {
                return;
            }
        }
        if has_worked && pressure == Pressure::Shape {
            in_order_since = clock.monotonic();
        }
    }
}

impl Store {
    fn sync_if_needed(&self) -> Result<(), VtError> {
        let log = self.volume.log();
        if log.end()? > log.durable_end() {
            return self.sync();
        }
        Ok(log.mark_apart()?)
    }

    /// Seals the active memtable if something in it removes something: what that hides is given
    /// back only by compactions.
    pub(crate) fn seal_deletes(&self) -> Result<(), VtError> {
        let mut committer = self.committer.lock();
        let view = self.views.get();
        if view.active().has_deletes() && view.sealed_count() == 0 {
            drop(view);
            self.seal(&mut committer)?;
        }
        Ok(())
    }
}
