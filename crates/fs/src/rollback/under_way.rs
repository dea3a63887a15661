//! The rollbacks of all file systems of a store that run, or were interrupted.

use std::collections::BTreeMap;
use stitch_base::PinId;
use stitch_base::sync::Mutex;

/// A rollback that has begun and not ended.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// The snapshot or moment that it goes back to.
    pin: PinId,
    /// It was interrupted after a part.
    is_interrupted: bool,
}

/// The rollbacks that have not ended, one of each view at most. The pin of each stays: after a
/// crash the rollback is finished from it.
#[derive(Debug, Default)]
pub(crate) struct RollbacksUnderWay {
    /// By the number of the view, 0 for mainline.
    by_view: Mutex<BTreeMap<u64, Begun>>,
}

impl RollbacksUnderWay {
    /// Notes a rollback. Its pin is not dropped from now on; it may have been before.
    pub(crate) fn begin(&self, view: u64, pin: PinId) {
        let begun = Begun {
            pin,
            is_interrupted: false,
        };
        let before = self.by_view.lock().insert(view, begun);
        debug_assert!(
            before.is_none_or(|before| before.is_interrupted),
            "a view has one rollback"
        );
        debug_assert!(
            before.is_none_or(|before| before.pin == pin),
            "one is finished before the next"
        );
    }

    /// Notes that a rollback has ended: all of it is done, or nothing.
    pub(crate) fn end(&self, view: u64) {
        let ended = self.by_view.lock().remove(&view);
        debug_assert!(ended.is_some(), "it has begun");
    }

    /// Notes that a part of a rollback is done, and it does not go on.
    pub(super) fn interrupt(&self, view: u64) {
        let mut all = self.by_view.lock();
        let begun = all.get_mut(&view);
        debug_assert!(begun.is_some(), "it has begun");
        if let Some(begun) = begun {
            begun.is_interrupted = true;
        }
    }

    /// Reports whether a view shows a part of a rollback.
    pub(crate) fn is_interrupted(&self, view: u64) -> bool {
        let all = self.by_view.lock();
        all.get(&view).is_some_and(|begun| begun.is_interrupted)
    }

    /// Reports whether some view shows a part of a rollback.
    pub(crate) fn has_interrupted(&self) -> bool {
        !self.interrupted().is_empty()
    }

    /// Returns the numbers of the views that show a part of a rollback, in order. A clone that was
    /// removed may be among them.
    pub(crate) fn interrupted(&self) -> Vec<u64> {
        let all = self.by_view.lock();
        let interrupted = all.iter().filter(|(_, begun)| begun.is_interrupted);
        let views: Vec<u64> = interrupted.map(|(view, _)| *view).collect();
        debug_assert!(views.is_sorted(), "in order");
        views
    }

    /// Reports whether some rollback in a clone has not ended.
    pub(super) fn has_any_in_clones(&self) -> bool {
        self.by_view.lock().keys().any(|view| *view > 0)
    }

    /// Drops a pin by `drop_pin`, unless a rollback goes back to it: `None`.
    pub(crate) fn drop_unless_used<T>(
        &self,
        pin: PinId,
        drop_pin: impl FnOnce() -> T,
    ) -> Option<T> {
        let all = self.by_view.lock();
        if all.values().any(|begun| begun.pin == pin) {
            return None;
        }
        // Under the lock: none begins meanwhile.
        Some(drop_pin())
    }
}
