//! Background work: one thread writes memtables out and syncs the log by the clock, one compacts,
//! one more helps it when it does not keep up, one looks at rows of deletes. Several threads, so
//! that a long compaction never delays a write-out, and neither of them delays a look of a
//! millisecond.
//!
//! The first two have a duty each: a state, and a look that does what is due. Tests call the looks
//! themselves, by a clock of their own. The helper has no duty by the clock: it keeps the shape and
//! nothing else, so that idle work, which no commit waits for, is never done by two threads at
//! once.

use crate::VtError;
use crate::cache::ReadCount;
use crate::compaction::Pressure;
use crate::defrag::IdleDefrag;
use crate::garbage::IdleSweep;
use crate::idle_order::IdleOrder;
use crate::signals::Worker;
use crate::store::Store;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::thread;
use stitch_base::thread::JoinHandle;

/// How long the shape must have been in order before idle work begins.
const IDLE_AFTER: Duration = Duration::from_millis(1500);
/// How long deletes may lie in a memtable when nothing is written.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// How much longer level 0 waits while the store is read: merging it would slow these reads.
const READ_WAIT_MAX: Duration = Duration::from_secs(10);
/// Blocks that readers missed in the cache between two looks, if the store is being read.
const READ_MISSES_MIN: u64 = 16;
/// How long they may lie there when something is.
const DELETES_AFTER: Duration = Duration::from_secs(15);
/// How often an idle thread looks around.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most zones that the device is told of at one look.
const DISCARD_ZONES: usize = 64;
/// Most tables whose index is looked through at one look.
const LOOKS: usize = 4;
/// How long a thread waits that has nothing to do by the clock.
const IDLE_LOOK: Duration = Duration::from_secs(3600);

/// Starts the threads.
pub(crate) fn start(store: &Arc<Store>) -> Result<Vec<JoinHandle<()>>, VtError> {
    debug_assert!(!store.volume.is_read_only(), "the threads write");
    let spawn = |name: &str, body: fn(&Store)| {
        let store = Arc::clone(store);
        thread::spawn(name, move || body(&store)).map_err(|source| VtError::Thread { source })
    };
    let mut started = vec![
        spawn("stitch-write-out", write_out_loop),
        spawn("stitch-compact", compaction_loop),
        spawn("stitch-gaps", gap_loop),
    ];
    if store.options.compactors > 1 {
        started.push(spawn("stitch-help", help_loop));
    }
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
            match store.reads.look_for_gaps() {
                Ok(true) if !store.signals.is_stopped() => {}
                Ok(_) => break,
                // A read of these rows returns the error.
                Err(error) => tracing::debug!(%error, "a look at deleted rows ends"),
            }
        }
    }
}

fn write_out_loop(store: &Store) {
    let mut duty = WriteOutDuty::new(store);
    let interval = store.options.sync_interval.min(LOOK_EVERY);
    while store.signals.wait(Worker::WriteOut, interval) && !store.gate.is_failed() {
        duty.look(store);
    }
}

fn compaction_loop(store: &Store) {
    let mut duty = CompactionDuty::new(store);
    const {
        assert!(
            LOOK_EVERY.as_millis() < IDLE_AFTER.as_millis(),
            "an idle store is found at a look"
        );
    }
    while store.signals.wait(Worker::Compaction, LOOK_EVERY) && !store.gate.is_failed() {
        duty.look(store);
    }
}

fn help_loop(store: &Store) {
    while store.signals.wait(Worker::Help, IDLE_LOOK) && !store.gate.is_failed() {
        // The next compaction meets the same failure.
        while store.pace.is_behind() && matches!(store.compactor.help_compact(), Ok(true)) {
            if store.signals.is_stopped() {
                return;
            }
        }
    }
}

/// What is written out and synced by the clock.
pub(crate) struct WriteOutDuty {
    synced_at: Duration,
    commits: u64,
    quiet_since: Duration,
    misses: u64,
    deletes_since: Option<Duration>,
}

impl WriteOutDuty {
    pub(crate) fn new(store: &Store) -> Self {
        let now = store.options.clock.monotonic();
        Self {
            synced_at: now,
            commits: store.counters.commits.get(),
            quiet_since: now,
            misses: 0,
            deletes_since: None,
        }
    }

    /// Does what is due.
    pub(crate) fn look(&mut self, store: &Store) {
        // A failure has poisoned the store, and the next call returns it; or there was no space,
        // and the write-out is tried again.
        while let Ok(true) = store.member.write_out_one() {
            if store.signals.is_stopped() {
                return;
            }
        }
        let now = store.options.clock.monotonic();
        debug_assert!(now >= self.synced_at, "time goes on");
        if now.saturating_sub(self.synced_at) >= store.options.sync_interval {
            self.synced_at = now;
            if let Err(error) = store.sync_if_needed() {
                store.gate.fail(&error);
            }
        }
        let seen = store.counters.commits.get();
        debug_assert!(seen >= self.commits, "counters rise");
        if seen != self.commits {
            self.commits = seen;
            self.quiet_since = now;
        }
        let quiet_for = now.saturating_sub(self.quiet_since);
        let is_quiet = quiet_for >= QUIET_AFTER;
        let is_read = self.is_read(store);
        if is_quiet {
            store.committer.lock().streams.give_back();
            store.views.get().active().memtable.give_back();
            if !is_read || quiet_for >= QUIET_AFTER + READ_WAIT_MAX {
                store.level0.set_quiet(true);
            }
        }
        if !store.views.get().active().has_deletes() {
            self.deletes_since = None;
            return;
        }
        const {
            assert!(
                QUIET_AFTER.as_millis() < DELETES_AFTER.as_millis(),
                "a quiet store is the first to write deletes out"
            );
        }
        let since = *self.deletes_since.get_or_insert(now);
        debug_assert!(since <= now, "time goes on");
        if is_quiet || now.saturating_sub(since) >= DELETES_AFTER {
            self.deletes_since = None;
            if let Err(error) = store.write_outs.seal_deletes() {
                store.gate.fail(&error);
            }
        }
    }

    /// True if the store was read from the device since the last look.
    fn is_read(&mut self, store: &Store) -> bool {
        let misses = store.cache.counters().get(ReadCount::Misses);
        let before = std::mem::replace(&mut self.misses, misses);
        debug_assert!(misses >= before, "counters rise");
        misses - before >= READ_MISSES_MIN
    }
}

/// Keeps the shape of the trees, and gives space back while the store is idle.
pub(crate) struct CompactionDuty {
    in_order_since: Duration,
    looked_again_at: Duration,
    write_outs: u64,
    /// When memtables were last seen to have been written out.
    written_at: Option<Duration>,
    defrag: IdleDefrag,
    order: IdleOrder,
    sweep: IdleSweep,
}

impl CompactionDuty {
    pub(crate) fn new(store: &Store) -> Self {
        let now = store.options.clock.monotonic();
        Self {
            in_order_since: now,
            looked_again_at: now,
            write_outs: store.counters.write_outs.get(),
            written_at: None,
            defrag: IdleDefrag::default(),
            order: IdleOrder::new(now),
            sweep: IdleSweep::default(),
        }
    }

    /// Does what is due.
    pub(crate) fn look(&mut self, store: &Store) {
        let clock = &store.options.clock;
        let now = clock.monotonic();
        debug_assert!(now >= self.looked_again_at, "time goes on");
        if now.saturating_sub(self.looked_again_at) >= 10 * IDLE_AFTER {
            self.looked_again_at = now;
            self.defrag.forget();
            self.order.forget();
            store.compactor.forget_avoided();
        }
        debug_assert!(now >= self.in_order_since, "time goes on");
        let is_idle = now.saturating_sub(self.in_order_since) >= IDLE_AFTER;
        let write_outs = store.counters.write_outs.get();
        debug_assert!(write_outs >= self.write_outs, "counters rise");
        if std::mem::replace(&mut self.write_outs, write_outs) != write_outs {
            self.written_at = Some(now);
        }
        debug_assert!(
            self.written_at.is_none_or(|at| at <= now),
            "memtables were written out before"
        );
        let is_written = |at| now.saturating_sub(at) < IDLE_AFTER;
        let pressure = match store.compactor.pressure(is_idle) {
            Pressure::Space if self.written_at.is_some_and(is_written) => Pressure::Low,
            pressure => pressure,
        };
        // A failure has poisoned the store, or it is being closed.
        let mut has_worked = false;
        while let Ok(true) = store.compactor.compact_one(pressure) {
            has_worked = true;
            if store.signals.is_stopped() {
                return;
            }
        }
        if has_worked && pressure == Pressure::Shape {
            self.in_order_since = clock.monotonic();
        }
        if pressure >= Pressure::Space && !has_worked && store.give_up_replaced() {
            store.signals.wake(Worker::Compaction);
        }
        if pressure == Pressure::Idle && !has_worked {
            // Not urgent, and it ends soon.
            store.compactor.scan_for_superseded(LOOKS);
            store.give_up_replaced();
            if matches!(self.sweep.look(store), Ok(true)) {
                store.volume.discard_freed(DISCARD_ZONES);
                return;
            }
            // As above. What is brought into order leaves whole zones, which need not be evacuated.
            if !matches!(self.order.look(store), Ok(true)) {
                drop(self.defrag.look(&store.member));
            }
        }
        store.volume.discard_freed(DISCARD_ZONES);
    }
}

impl Store {
    fn sync_if_needed(&self) -> Result<(), VtError> {
        let log = self.volume.log();
        if log.end()? > log.durable_end() {
            return self.committer.sync();
        }
        Ok(log.mark_apart()?)
    }
}

#[cfg(test)]
mod tests;
