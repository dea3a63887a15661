//! What commits wait for: room in the memtable, in the log, and in the zones once it is written
//! out; tables that are moved into trees; and the pace of the store.

use super::{Placement, Tally};
use crate::VtError;
use crate::buffer::{Buffer, Room, TABLE_OVERHEAD_BYTES};
use crate::commit_lock::CommitState;
use crate::compaction::{Compactor, Pressure};
use crate::counters::VtCounters;
use crate::gate::Gate;
use crate::member::Member;
use crate::options::SEALED_COUNT_MAX;
use crate::pace::Pace;
use crate::signals::{Signals, Worker};
use crate::sizing::Sizing;
use crate::space::SpaceLedger;
use crate::view::{View, Views};
use crate::write_out::WriteOuts;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::Clock;
use stitch_base::sync::{Apart, MutexGuard};
use stitch_kv::{KvError, SpaceClass};
use stitch_volume::Volume;

/// Space is promised in pieces of this size, so that few commits have to ask.
const ROOM_BYTES: u64 = 256 << 10;
/// What a message takes in a table beyond its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;

/// What a batch will take when it is written out.
fn wanted(active: &Buffer, placement: &Placement, tally: &Tally) -> Room {
    let bytes = placement.logged_bytes;
    let entries = bytes
        + bytes / 8
        + placement.logged_count * MESSAGE_OVERHEAD_BYTES
        + placement.index_bytes_max() / 8
        + tally.overhead_bytes;
    let needed = entries + active.new_trees(&tally.trees) * TABLE_OVERHEAD_BYTES;
    debug_assert!(needed >= bytes, "a table takes no less than what is in it");
    let page_bytes = match placement.direct_bytes {
        0 => tally.page_bytes,
        _ => 0,
    };
    debug_assert!(page_bytes <= needed, "pages are a part of the room");
    Room {
        bytes: needed,
        page_bytes,
    }
}

/// Makes room for commits, or has them wait until there is some.
///
/// Invariants:
/// - what is waited for needs the lock of commits: it is given up meanwhile;
/// - a wait ends when the store takes no more writes;
/// - a commit is refused for want of space only after all that could be made was.
pub(crate) struct CommitRoom {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Threads write memtables out and compact.
    pub(crate) has_threads: bool,
    pub(crate) sizing: Arc<Sizing>,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    pub(crate) views: Arc<Views>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) space: Arc<SpaceLedger>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) write_outs: Arc<WriteOuts>,
    /// To make room of all stores of the volume.
    pub(crate) member: Arc<Member>,
}

impl CommitRoom {
    /// Makes sure that the write-out of what this batch adds will find space. Returns how much it
    /// was promised; `None` if the lock was given up meanwhile to make some.
    pub(super) fn promise(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
        active: &Buffer,
        (placement, tally, class): (&Placement, &Tally, SpaceClass),
    ) -> Result<Option<Room>, KvError> {
        let used = wanted(active, placement, tally);
        let missing = used.bytes.saturating_sub(active.room_bytes());
        if missing == 0 {
            return Ok(Some(used));
        }
        // Others on the volume ask, too.
        let promising = self.space.promising();
        let free_bytes = self.space.free_bytes(class);
        if matches!(class, SpaceClass::Normal | SpaceClass::Uncommitted) {
            if used.page_bytes > 0 {
                self.space.note_pages_run(tally.pages_run);
            }
            self.compactor.note_left();
        }
        let refused = KvError::NoSpace {
            needed_bytes: missing,
            free_bytes,
        };
        if missing > free_bytes.min(self.space.roomy_bytes(class)) && commits.streams.give_back() {
            return Ok(None);
        }
        if missing > free_bytes {
            drop(promising);
            // A write-out may take less space than was reserved for it, and a compaction frees
            // the space of overwritten entries.
            let has_more = self.wait_for_space(commits, || {
                Ok(self.member.finish_write_outs()? || self.member.make_room_of_garbage()?)
            })?;
            // A compaction that ended since the refusal has given back what it held.
            let has_more = has_more || missing <= self.space.free_bytes(class);
            return has_more.then_some(None).ok_or(refused);
        }
        let roomy_bytes = self.space.roomy_bytes(class);
        let lacks_runs = missing.saturating_sub(used.page_bytes) > roomy_bytes;
        let pages_room = |class| self.space.pages_room_bytes(tally.pages_run, class);
        if lacks_runs || (used.page_bytes > 0 && missing > pages_room(class)) {
            drop(promising);
            // The space is there, in holes.
            let reserve = SpaceClass::Reserve;
            let bytes = || match lacks_runs {
                true => self.space.roomy_bytes(reserve),
                false => pages_room(reserve),
            };
            let has_more =
                self.wait_for_space(commits, || self.member.make_room_of_holes(&bytes))?;
            return has_more.then_some(None).ok_or(refused);
        }
        let wanted = match class {
            // Commits of any class could use the rest of a longer promise.
            SpaceClass::Allocated => missing,
            _ => missing.max(ROOM_BYTES.min(free_bytes.min(roomy_bytes) / 2)),
        };
        debug_assert!((missing..=free_bytes).contains(&wanted), "enough, and free");
        // Also what a replay found no space for, as far as there is some now.
        let lacking = active.lacking_bytes();
        let spare = free_bytes.min(roomy_bytes).saturating_sub(wanted);
        let room = promising.promise(wanted + lacking.min(spare));
        active.add_room(room.map_err(|_| refused)?);
        debug_assert!(
            active.room_bytes() >= used.bytes || active.lacking_bytes() < lacking,
            "the batch has its room, or the replayed ones have some of theirs"
        );
        Ok(Some(used))
    }

    /// Lets others commit while this one makes space, and counts that it had to.
    fn wait_for_space(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
        make: impl FnOnce() -> Result<bool, VtError>,
    ) -> Result<bool, VtError> {
        let begin = self.clock.monotonic();
        let made = MutexGuard::unlocked(commits, make);
        self.count_wait(begin);
        made
    }

    /// A commit had to wait for room since `begin`.
    fn count_wait(&self, begin: Duration) {
        let end = self.clock.monotonic();
        debug_assert!(end >= begin, "time goes on");
        let waited = end.saturating_sub(begin);
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.counters.waits.add(1);
        self.counters.wait_us_max.raise_to(us);
    }

    /// Makes room for a batch in the active memtable, which it returns: seals it if it is full, and
    /// waits while too many sealed ones wait.
    pub(super) fn make_room(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
        batch_bytes: u64,
    ) -> Result<Arc<Buffer>, VtError> {
        loop {
            self.gate.check_writable()?;
            let view = self.views.get();
            let active = view.active();
            if !self.is_full_for(active, batch_bytes)? {
                // Not the view: it holds space, which the commit may have to wait for.
                return Ok(Arc::clone(active));
            }
            if view.sealed_count() < SEALED_COUNT_MAX {
                drop(view);
                self.write_outs.seal(commits)?;
            } else {
                drop(view);
                self.wait_for_write_out(commits, SEALED_COUNT_MAX)?;
            }
        }
    }

    /// The log is full: its start must move on.
    pub(super) fn make_log_room(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
    ) -> Result<(), VtError> {
        self.gate.check_writable()?;
        let view = self.views.get();
        let sealed = view.sealed_count();
        if sealed > 0 {
            drop(view);
            return self.wait_for_write_out(commits, sealed);
        }
        if view.active().is_empty() {
            // Nothing is live in the log: only its start is behind.
            let what = "the backup log is full without live records".to_owned();
            return Err(VtError::Version { what });
        }
        drop(view);
        self.write_outs.seal(commits)
    }

    /// Returns the active memtable and what a batch takes, if there is room for it in the memtable
    /// and promised space for its write-out.
    pub(super) fn at_hand(
        &self,
        placement: &Placement,
        tally: &Tally,
    ) -> Result<Option<(Arc<Buffer>, Room)>, VtError> {
        let view = self.views.get();
        let active = Arc::clone(view.active());
        if self.is_full_for(&active, placement.logged_bytes)? {
            return Ok(None);
        }
        let used = wanted(&active, placement, tally);
        let is_promised = used.bytes <= active.room_bytes();
        Ok(is_promised.then_some((active, used)))
    }

    /// Reports whether a memtable is to be sealed before it takes a batch. An empty one is not.
    fn is_full_for(&self, active: &Buffer, batch_bytes: u64) -> Result<bool, VtError> {
        let sizes = &self.sizing.opened;
        let end = self.volume.log().end()?;
        debug_assert!(active.log_start <= end, "the log grows");
        let log_bytes = end.0 - active.log_start.0;
        let is_full = active.is_full_for(batch_bytes, sizes) || log_bytes > sizes.log_share;
        Ok(is_full && !active.is_empty())
    }

    /// Waits while tables are moved into trees.
    pub(super) fn wait_while_paused(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
    ) -> Result<(), VtError> {
        debug_assert!(commits.is_paused, "commits wait while tables are moved");
        let begin = self.clock.monotonic();
        while commits.is_paused {
            self.gate.check_writable()?;
            self.gate.wait(commits, Duration::from_millis(20));
        }
        self.count_wait(begin);
        Ok(())
    }

    /// Slows a commit down to the pace of the store. Takes the view, so that nothing is held while
    /// it waits.
    pub(super) fn slow_down(&self, bytes: u64, class: SpaceClass, view: Arc<View>) {
        if !self.has_threads {
            return;
        }
        let delay = self
            .pace
            .delay((bytes, class), &view, &self.sizing.opened, &*self.clock);
        drop(view);
        if !delay.is_zero() {
            self.clock.sleep(delay);
            let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
            self.counters.paced_us.add(us);
        }
    }

    /// What the threads would do, so that level 0 stays bounded without them.
    pub(crate) fn work_inline(&self) -> Result<(), VtError> {
        debug_assert!(!self.has_threads, "threads do it where there are some");
        self.member.write_out_one()?;
        let bound =
            2 * self.sizing.opened.pick.level0_tables + self.sizing.opened.level0_tables_max;
        let version = self.views.version();
        if version
            .trees
            .values()
            .any(|t| t.levels[0].tables.len() > bound)
        {
            self.compactor.compact_one(Pressure::Shape)?;
        }
        Ok(())
    }

    /// Waits until fewer than `sealed` sealed memtables are left, or writes one out where no thread
    /// does.
    fn wait_for_write_out(
        &self,
        commits: &mut MutexGuard<'_, CommitState>,
        sealed: usize,
    ) -> Result<(), VtError> {
        debug_assert!(sealed > 0, "something is waited for");
        if !self.has_threads {
            return MutexGuard::unlocked(commits, || self.work_inline());
        }
        let begin = self.clock.monotonic();
        while self.views.get().sealed_count() >= sealed {
            self.gate.check_writable()?;
            if self.write_outs.lacks_space() {
                // Not for ever: this succeeds, or says that there is none.
                MutexGuard::unlocked(commits, || self.member.write_out_one())?;
                continue;
            }
            self.signals.wake(Worker::WriteOut);
            self.gate.wait(commits, Duration::from_millis(20));
        }
        self.count_wait(begin);
        Ok(())
    }
}
