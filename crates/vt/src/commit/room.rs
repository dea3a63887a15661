//! Room for a commit: in the memtable, in the log, and in the zones once it is written out.

use super::{Placement, Tally};
use crate::VtError;
use crate::buffer::{Buffer, Room, TABLE_OVERHEAD_BYTES};
use crate::commit_lock::CommitState;
use crate::options::SEALED_COUNT_MAX;
use crate::store::Store;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::sync::MutexGuard;
use stitch_kv::{KvError, SpaceClass};

/// Space is promised in pieces of this size, so that few commits have to ask.
const ROOM_BYTES: u64 = 256 << 10;
/// What a message takes in a table beyond its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;

/// What a batch will take when it is written out.
pub(super) fn wanted(active: &Buffer, placement: &Placement, tally: &Tally) -> Room {
    let bytes = placement.logged_bytes;
    let entries = bytes
        + bytes / 8
        + placement.logged_count * MESSAGE_OVERHEAD_BYTES
        + placement.index_bytes_max() / 8
        + tally.overhead_bytes;
    let needed = entries + active.new_trees(&tally.trees) * TABLE_OVERHEAD_BYTES;
    Room {
        bytes: needed,
        page_bytes: if placement.direct_bytes > 0 {
            0
        } else {
            tally.page_bytes
        },
    }
}

impl Store {
    /// Makes sure that the write-out of what this batch adds will find space. Answers how much it
    /// was promised; `None` if the lock was given up meanwhile to make some.
    pub(super) fn promise(
        &self,
        committer: &mut MutexGuard<'_, CommitState>,
        active: &Buffer,
        placement: &Placement,
        tally: &Tally,
        class: SpaceClass,
    ) -> Result<Option<Room>, KvError> {
        let used = wanted(active, placement, tally);
        let missing = used.bytes.saturating_sub(active.room_bytes());
        if missing == 0 {
            return Ok(Some(used));
        }
        // Others on the volume ask, too.
        let promising = self.space.promising();
        let free_bytes = self.space.free_bytes(class);
        if class == SpaceClass::Normal {
            if used.page_bytes > 0 {
                self.space.note_pages_run(tally.pages_run);
            }
            self.compactor.note_left();
        }
        let refused = KvError::NoSpace {
            needed_bytes: missing,
            free_bytes,
        };
        if missing > free_bytes.min(self.space.roomy_bytes(class)) && committer.streams.give_back()
        {
            return Ok(None);
        }
        if missing > free_bytes {
            drop(promising);
            // A write-out may take less space than was reserved for it, and a compaction frees
            // the space of overwritten entries.
            let has_more = self.wait_for_space(committer, || {
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
                self.wait_for_space(committer, || self.member.make_room_of_holes(&bytes))?;
            return has_more.then_some(None).ok_or(refused);
        }
        let wanted = match class {
            // What is left of a longer promise would be for anyone.
            SpaceClass::Allocated => missing,
            _ => missing.max(ROOM_BYTES.min(free_bytes.min(roomy_bytes) / 2)),
        };
        let room = promising.promise(wanted).map_err(|_| refused)?;
        active.add_room(room);
        Ok(Some(used))
    }

    /// Lets others commit while this one makes space, and counts that it had to.
    fn wait_for_space(
        &self,
        committer: &mut MutexGuard<'_, CommitState>,
        make: impl FnOnce() -> Result<bool, VtError>,
    ) -> Result<bool, VtError> {
        let begin = self.options.clock.monotonic();
        let made = MutexGuard::unlocked(committer, make);
        self.count_wait(begin);
        made
    }

    /// A commit had to wait for room since `begin`.
    pub(super) fn count_wait(&self, begin: Duration) {
        let waited = self.options.clock.monotonic().saturating_sub(begin);
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.counters.waits.add(1);
        self.counters.wait_us_max.raise_to(us);
    }

    /// Makes room for a batch in the active memtable, which it answers: seals it if it is full, and
    /// waits while too many sealed ones wait.
    pub(super) fn make_room(
        &self,
        committer: &mut MutexGuard<'_, CommitState>,
        batch_bytes: u64,
    ) -> Result<Arc<Buffer>, VtError> {
        loop {
            self.check_writable()?;
            let view = self.views.get();
            let active = view.active();
            let log_bytes = self.volume.log().end()?.0 - active.log_start.0;
            let is_full = active.is_full_for(batch_bytes, &self.sizing.opened)
                || log_bytes > self.sizing.opened.log_share;
            if !is_full || active.is_empty() {
                // Not the view: it holds space, which the commit may have to wait for.
                return Ok(Arc::clone(active));
            }
            if view.sealed_count() < SEALED_COUNT_MAX {
                drop(view);
                self.write_outs.seal(committer)?;
            } else {
                drop(view);
                self.wait_for_write_out(committer, SEALED_COUNT_MAX)?;
            }
        }
    }

    /// The log is full: its start must move on.
    pub(super) fn make_log_room(
        &self,
        committer: &mut MutexGuard<'_, CommitState>,
    ) -> Result<(), VtError> {
        self.check_writable()?;
        let view = self.views.get();
        let sealed = view.sealed_count();
        if sealed > 0 {
            drop(view);
            return self.wait_for_write_out(committer, sealed);
        }
        if view.active().is_empty() {
            // Nothing is live in the log: only its start is behind.
            let what = "the backup log is full without live records".to_owned();
            return Err(VtError::Version { what });
        }
        drop(view);
        self.write_outs.seal(committer)
    }
}
