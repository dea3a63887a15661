//! The ledgers of all stores on one volume: free space is one, so each asks what the others keep.
//!
//! Invariant: at most one promise is made at a time, so that no two stores are promised the same
//! bytes.
//!
//! Locks: a promise may be made with a lock of commits held; the list is a leaf.

use super::SpaceLedger;
use std::sync::{Arc, Weak};
use stitch_base::sync::Mutex;

/// The ledgers of the stores on one volume.
#[derive(Default)]
pub(crate) struct Ledgers {
    /// One promise at a time.
    pub(super) promising: Mutex<()>,
    all: Mutex<Vec<Weak<SpaceLedger>>>,
}

impl Ledgers {
    /// Adds the ledger of a store that was opened.
    pub(crate) fn add(&self, ledger: &Arc<SpaceLedger>) {
        let mut all = self.all.lock();
        let is_it = |other: &Weak<SpaceLedger>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(ledger));
        debug_assert!(!all.iter().any(is_it), "a ledger is listed once");
        all.push(Arc::downgrade(ledger));
    }

    /// Removes the ledger of a store that was removed.
    pub(crate) fn remove(&self, ledger: &Arc<SpaceLedger>) {
        let is_other =
            |other: &Weak<SpaceLedger>| !std::ptr::eq(other.as_ptr(), &raw const **ledger);
        let mut all = self.all.lock();
        let before = all.len();
        all.retain(is_other);
        debug_assert_eq!(all.len() + 1, before, "a ledger leaves once");
    }

    /// Returns the sum over all ledgers.
    pub(super) fn sum_of(&self, of: impl Fn(&SpaceLedger) -> u64) -> u64 {
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().map(|ledger| of(ledger)).sum()
    }
}
