//! Sealing: the active memtable takes no more commits, and an empty one follows it.

use super::WriteOuts;
use crate::VtError;
use crate::buffer::Buffer;
use crate::commit_lock::CommitState;
use crate::key_order::WINDOW_BYTES;
use crate::signals::Worker;
use std::sync::Arc;

impl WriteOuts {
    /// Seals the active memtable. The caller holds the lock of commits.
    pub(crate) fn seal(&self, state: &mut CommitState) -> Result<(), VtError> {
        let end = self.volume.log().end()?;
        let active = Arc::clone(self.views.get().active());
        assert!(active.log_start <= end, "the log grows");
        state.streams.seal(&active.memtable);
        let fresh = Arc::new(Buffer::new(active.memtable.fresh(), end));
        let view = self.views.change(|view| {
            debug_assert!(!view.active().is_empty(), "something is sealed");
            view.buffers.insert(0, fresh);
        });
        debug_assert!(view.sealed_count() > 0, "it waits to be written out");
        debug_assert!(view.active().is_empty(), "commits wait for the lock");
        self.pace.update(&view, &self.sizing.now());
        self.signals.wake(Worker::WriteOut);
        Ok(())
    }

    /// Seals the active memtable if it holds anything, and gives up the extents of write streams.
    pub(crate) fn seal_all(&self) -> Result<(), VtError> {
        let mut state = self.commits.lock();
        state.streams.give_back();
        if !self.views.get().active().is_empty() {
            self.seal(&mut state)?;
        }
        debug_assert!(
            self.views.get().active().is_empty(),
            "nothing is committed while the lock of commits is held"
        );
        Ok(())
    }

    /// Seals the active memtable if something in it removes something: what that hides is given
    /// back only by compactions.
    pub(crate) fn seal_deletes(&self) -> Result<(), VtError> {
        let mut state = self.commits.lock();
        let view = self.views.get();
        if view.active().has_deletes() && view.sealed_count() == 0 {
            drop(view);
            self.seal(&mut state)?;
            debug_assert!(
                !self.views.get().active().has_deletes(),
                "deletes are in the sealed memtable"
            );
        }
        Ok(())
    }

    /// Seals the active memtable if it holds as much as a window, or half of what it can: its
    /// values have no order yet. Returns true if it did.
    pub(crate) fn seal_values(&self) -> Result<bool, VtError> {
        let least = WINDOW_BYTES.min(self.sizing.opened.memtable / 2);
        let mut state = self.commits.lock();
        let view = self.views.get();
        if view.active().memory_bytes() < least || view.sealed_count() > 0 {
            return Ok(false);
        }
        drop(view);
        self.seal(&mut state)?;
        debug_assert!(
            self.views.get().sealed_count() <= 1,
            "values are sealed where no memtable waits"
        );
        Ok(true)
    }
}
