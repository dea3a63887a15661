//! The lock of commits, and the state that they change one at a time.
//!
//! Invariants:
//! - sequence numbers are given out in rising order, and a write is published only when all before
//!   it are;
//! - while the lock is free, the last number given out is the newest write that readers see.

use crate::direct::WriteStreams;
use crate::gaps::DeleteRuns;
use crate::unsynced::Unsynced;
use crate::version::Version;
use std::collections::BTreeSet;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Apart, Mutex};
use stitch_base::{Seqno, TreeId};
use stitch_kv::KvError;

/// The lock of commits. It changes with each of them: reads should not wait for that.
pub(crate) type CommitLock = Apart<Mutex<CommitState>>;

/// What commits change.
pub(crate) struct CommitState {
    /// The last sequence number given out.
    pub(crate) last_seqno: Seqno,
    /// Trees that take writes.
    pub(crate) trees: BTreeSet<TreeId>,
    /// Tables are moved into trees: nothing is committed until that is done.
    pub(crate) is_paused: bool,
    /// Rows of deletes.
    pub(crate) deletes: DeleteRuns,
    /// Write streams of puts.
    pub(crate) streams: WriteStreams,
    /// Bytes committed since the last sync that a caller asked for.
    pub(crate) unsynced: Unsynced,
}

impl CommitState {
    /// Returns that of a store in which nothing was committed since this version.
    pub(crate) fn new(version: &Version) -> Self {
        Self {
            last_seqno: version.last_seqno,
            trees: version.living().map(|tree| tree.info.id).collect(),
            is_paused: false,
            deletes: DeleteRuns::default(),
            streams: WriteStreams::default(),
            unsynced: Unsynced::default(),
        }
    }

    /// Refuses trees that take no writes.
    ///
    /// # Errors
    /// [`KvError::NoTree`] of the first one.
    pub(crate) fn check_trees(&self, trees: impl Iterator<Item = TreeId>) -> Result<(), KvError> {
        let mut trees = trees;
        match trees.find(|tree| !self.trees.contains(tree)) {
            Some(gone) => Err(KvError::NoTree(gone)),
            None => Ok(()),
        }
    }

    /// Ends writes to trees.
    pub(crate) fn close_trees(&mut self, trees: &BTreeSet<TreeId>) {
        self.trees.retain(|tree| !trees.contains(tree));
        debug_assert!(self.trees.is_disjoint(trees), "they take no writes");
    }

    /// Makes all writes up to `last` visible to readers. They are in a memtable or a table.
    pub(crate) fn publish(&mut self, last: Seqno, visible: &AtomicU64) {
        assert!(last >= self.last_seqno, "sequence numbers rise");
        debug_assert_eq!(
            visible.load(Ordering::Relaxed),
            self.last_seqno.0,
            "all given out before was published"
        );
        self.last_seqno = last;
        visible.store(last.0, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn writes_become_visible_as_they_are_published() {
        let mut state = CommitState::new(&Version::empty());
        let visible = AtomicU64::new(state.last_seqno.0);
        for last in [3, 3, 9] {
            state.publish(Seqno(last), &visible);
            assert_eq!(visible.load(Ordering::Relaxed), last);
            assert_eq!(state.last_seqno, Seqno(last));
        }
    }

    #[test]
    #[should_panic(expected = "sequence numbers rise")]
    fn a_write_is_not_published_behind_a_newer_one() {
        let mut state = CommitState::new(&Version::empty());
        let visible = AtomicU64::new(state.last_seqno.0);
        state.publish(Seqno(3), &visible);
        state.publish(Seqno(2), &visible);
    }

    #[test]
    fn closed_trees_are_refused_by_the_first_one() {
        let mut state = CommitState::new(&Version::empty());
        state.trees.extend([1, 2, 3].map(TreeId));
        assert!(state.check_trees([1, 3].map(TreeId).into_iter()).is_ok());
        state.close_trees(&[2, 3].map(TreeId).into());
        let refused = state.check_trees([1, 3, 2].map(TreeId).into_iter());
        assert!(matches!(refused, Err(KvError::NoTree(TreeId(3)))));
    }
}
