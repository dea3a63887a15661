//! What snapshots, scans and pins of the model engine hold open.

use super::pins::KeptTrees;
use super::rows::Rows;
use crate::{Snapshot, TreeInfo};
use std::collections::BTreeMap;
use stitch_base::sync::{Arc, Mutex, RwLock};
use stitch_base::{Seqno, TreeId};

/// The sequence numbers that are held open, each with the number of holds.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<BTreeMap<Seqno, usize>>);

/// One share of [`Holds`]: of a snapshot and its clones, or of a pin and what was opened from it.
#[derive(Debug)]
pub(super) struct Hold {
    holds: Arc<Holds>,
    seqno: Seqno,
    /// The newest tree of the moment.
    last_tree: TreeId,
    /// Of a pin: trees that were dropped since. Of a branch tree: its parent.
    kept: Option<Arc<KeptTrees>>,
}

impl Holds {
    /// Holds a moment open.
    pub(super) fn hold(
        self: &Arc<Self>,
        (seqno, last_tree): (Seqno, TreeId),
        kept: Option<Arc<KeptTrees>>,
    ) -> Arc<Hold> {
        *self.0.lock().entry(seqno).or_default() += 1;
        Arc::new(Hold {
            holds: Arc::clone(self),
            seqno,
            last_tree,
            kept,
        })
    }

    /// Returns the moments held, in ascending order.
    pub(super) fn all(&self) -> Vec<Seqno> {
        self.0.lock().keys().copied().collect()
    }

    /// Returns the hold of a snapshot.
    ///
    /// # Panics
    /// Panics if the snapshot is of another store.
    pub(super) fn own<'a>(self: &Arc<Self>, snapshot: &'a Snapshot) -> &'a Hold {
        let hold = snapshot.hold().downcast_ref::<Hold>();
        hold.filter(|hold| Arc::ptr_eq(&hold.holds, self))
            .expect("a snapshot is read in the store that it is of")
    }
}

impl Hold {
    /// Returns a snapshot of the moment.
    pub(super) fn snapshot(self: &Arc<Self>) -> Snapshot {
        Snapshot::new(self.seqno, Arc::clone(self) as _)
    }

    /// Returns the last write and the newest tree of the moment.
    pub(super) const fn moment(&self) -> (Seqno, TreeId) {
        (self.seqno, self.last_tree)
    }

    /// Returns the rows of a dropped tree that the pin or the branch of this hold sees.
    pub(super) fn kept_tree(&self, tree: TreeId) -> Option<Arc<RwLock<Rows>>> {
        self.kept.as_ref()?.get(tree)
    }

    /// Returns the dropped trees that the pin of this hold sees.
    pub(super) fn kept_infos(&self) -> Vec<TreeInfo> {
        let kept = self.kept.as_ref();
        kept.map_or_else(Vec::new, |kept| kept.infos())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holds = self.holds.0.lock();
        let count = holds.get_mut(&self.seqno).expect("a hold is counted");
        *count -= 1;
        if *count == 0 {
            holds.remove(&self.seqno);
        }
    }
}
