//! What snapshots, scans and pins of the model engine hold open.

use super::pins::KeptTrees;
use super::rows::Rows;
use crate::{PinScope, Snapshot, TreeInfo};
use std::collections::BTreeMap;
use stitch_base::sync::{Arc, Mutex, RwLock};
use stitch_base::{Seqno, TreeId};

/// The sequence numbers that are held open, of all trees or of one, each with the number of holds.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<BTreeMap<(Seqno, Option<TreeId>), usize>>);

/// One share of [`Holds`]: of a snapshot and its clones, or of a pin and what was opened from it.
#[derive(Debug)]
pub(super) struct Hold {
    holds: Arc<Holds>,
    seqno: Seqno,
    /// The newest tree of the moment.
    last_tree: TreeId,
    /// The trees of which the moment is held.
    scope: PinScope,
    /// Of a pin: trees that were dropped since. Of a branch tree: its parent.
    kept: Option<Arc<KeptTrees>>,
}

impl Holds {
    /// Holds a moment open, of all trees.
    pub(super) fn hold(
        self: &Arc<Self>,
        moment: (Seqno, TreeId),
        kept: Option<Arc<KeptTrees>>,
    ) -> Arc<Hold> {
        self.hold_of(moment, kept, PinScope::AllTrees)
    }

    /// Holds a moment open, of the trees of a pin.
    pub(super) fn hold_of(
        self: &Arc<Self>,
        (seqno, last_tree): (Seqno, TreeId),
        kept: Option<Arc<KeptTrees>>,
        scope: PinScope,
    ) -> Arc<Hold> {
        let mut held = self.0.lock();
        for tree in held_trees(&scope) {
            *held.entry((seqno, tree)).or_default() += 1;
        }
        drop(held);
        Arc::new(Hold {
            holds: Arc::clone(self),
            seqno,
            last_tree,
            scope,
            kept,
        })
    }

    /// Returns the moments held of a tree, in ascending order.
    pub(super) fn of(&self, tree: TreeId) -> Vec<Seqno> {
        let held = self.0.lock();
        let of_tree = held.keys().filter(|(_, of)| of.is_none_or(|of| of == tree));
        let mut seqnos: Vec<Seqno> = of_tree.map(|(seqno, _)| *seqno).collect();
        seqnos.dedup();
        debug_assert!(seqnos.is_sorted(), "moments are in order");
        seqnos
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

/// Returns what a scope is counted as: all trees at once, or each alone.
fn held_trees(scope: &PinScope) -> impl Iterator<Item = Option<TreeId>> {
    let all = scope.trees().is_none().then_some(None);
    let each = scope.trees().unwrap_or_default().iter().copied().map(Some);
    all.into_iter().chain(each)
}

impl Hold {
    /// Reports whether the moment is held of a tree that was there then.
    pub(super) fn has(&self, tree: TreeId) -> bool {
        tree <= self.last_tree && self.scope.has(tree)
    }

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
        for tree in held_trees(&self.scope) {
            let held = (self.seqno, tree);
            let count = holds.get_mut(&held).expect("a hold is counted");
            *count -= 1;
            if *count == 0 {
                holds.remove(&held);
            }
        }
    }
}
