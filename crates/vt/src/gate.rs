//! The gate of a store: whether it takes writes, and the commits that wait for room.
//!
//! Invariants:
//! - a store that has failed or was closed never takes writes again;
//! - whatever may let a waiting commit go on, or makes its wait useless, wakes it.

use crate::VtError;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Condvar, MutexGuard};
use stitch_volume::{Volume, VolumeError};

/// Whether a store takes writes, and the commits that wait.
pub(crate) struct Gate {
    volume: Arc<Volume>,
    /// Commits that wait for room.
    waiting: Condvar,
    is_failed: AtomicBool,
    is_closed: AtomicBool,
}

impl Gate {
    /// Returns the open gate of a store that was just opened.
    pub(crate) fn new(volume: &Arc<Volume>) -> Self {
        Self {
            volume: Arc::clone(volume),
            waiting: Condvar::new(),
            is_failed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Refuses writes for a store that failed, was closed, or is for reading only.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`], [`VtError::Poisoned`] or [`VtError::Closed`].
    pub(crate) fn check_writable(&self) -> Result<(), VtError> {
        if self.volume.is_read_only() {
            return Err(VolumeError::ReadOnly.into());
        }
        if self.is_failed() || self.volume.is_poisoned() {
            return Err(VtError::Poisoned);
        }
        if self.is_closed() {
            return Err(VtError::Closed);
        }
        Ok(())
    }

    /// Refuses writes from now on: background work failed.
    pub(crate) fn fail(&self, error: &VtError) {
        debug_assert!(
            !self.volume.is_read_only(),
            "background work is done where it may write"
        );
        if !self.is_failed.swap(true, Ordering::AcqRel) {
            let instance = self.volume.name();
            tracing::error!(%error, instance, "the store takes no more writes");
        }
        debug_assert!(
            self.check_writable().is_err(),
            "a failed store takes no writes"
        );
        self.wake_commits();
    }

    /// Reports whether background work failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
    }

    /// Reports whether the store was closed, or removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Refuses writes from now on: the store is closed. Returns false if it was already.
    pub(crate) fn close(&self) -> bool {
        let was_closed = self.is_closed.swap(true, Ordering::AcqRel);
        debug_assert!(
            self.check_writable().is_err(),
            "a closed store takes no writes"
        );
        self.wake_commits();
        !was_closed
    }

    /// Wakes all commits that wait for room: there may be some.
    pub(crate) fn wake_commits(&self) {
        self.waiting.notify_all();
    }

    /// Waits until woken or timed out. The lock of commits is given up meanwhile.
    pub(crate) fn wait<T>(&self, committer: &mut MutexGuard<'_, T>, timeout: Duration) {
        debug_assert!(!timeout.is_zero(), "a wait takes time");
        self.waiting.wait_for(committer, timeout);
    }
}
