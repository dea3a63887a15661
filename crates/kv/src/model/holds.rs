//! What snapshots, scans and pins of the model engine hold open.

use super::pins::KeptTrees;
use super::rows::Rows;
use crate::{Guarded, KeyRanges, PinRanges, PinScope, Snapshot, TreeInfo};
use std::collections::BTreeMap;
use stitch_base::sync::{Arc, Mutex, RwLock};
use stitch_base::{Seqno, TreeId};

/// The sequence numbers that are held open.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// Of all trees or of one, each with the number of holds.
    whole: BTreeMap<(Seqno, Option<TreeId>), usize>,
    /// Of ranges of a tree alone: once for each hold.
    ranged: Vec<(TreeId, Seqno, KeyRanges)>,
}

/// The sequence numbers that are held of a tree.
#[derive(Debug, Default)]
pub(super) struct TreeMoments {
    /// Of every key, in ascending order.
    whole: Vec<Seqno>,
    /// Of ranges alone.
    ranged: Vec<(Seqno, KeyRanges)>,
}

impl TreeMoments {
    /// Returns the moments that are held of a key, in ascending order.
    pub(super) fn of(&self, key: &[u8]) -> Vec<Seqno> {
        let ranged = self.ranged.iter().filter(|(_, ranges)| ranges.has(key));
        let mut seqnos = self.whole.clone();
        seqnos.extend(ranged.map(|(seqno, _)| *seqno));
        seqnos.sort_unstable();
        seqnos
    }
}

/// One share of [`Holds`]: of a snapshot and its clones, or of a pin and what was opened from it.
#[derive(Debug)]
pub(super) struct Hold {
    holds: Arc<Holds>,
    seqno: Seqno,
    /// The newest tree of the moment.
    last_tree: TreeId,
    /// The trees of which the moment is held.
    scope: PinScope,
    /// Trees of which it is held of these keys alone.
    ranges: PinRanges,
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
        self.hold_of(moment, kept, (PinScope::AllTrees, PinRanges::new()))
    }

    /// Holds a moment open, of the trees and ranges of a pin.
    pub(super) fn hold_of(
        self: &Arc<Self>,
        (seqno, last_tree): (Seqno, TreeId),
        kept: Option<Arc<KeptTrees>>,
        (scope, ranges): (PinScope, PinRanges),
    ) -> Arc<Hold> {
        debug_assert!(
            ranges.is_empty() || scope != PinScope::AllTrees,
            "a pin that was narrowed lists its trees"
        );
        let mut held = self.0.lock();
        for tree in held_trees(&scope, &ranges) {
            *held.whole.entry((seqno, tree)).or_default() += 1;
        }
        let ranged = ranges.iter();
        held.ranged
            .extend(ranged.map(|(tree, ranges)| (*tree, seqno, ranges.clone())));
        drop(held);
        Arc::new(Hold {
            holds: Arc::clone(self),
            seqno,
            last_tree,
            scope,
            ranges,
            kept,
        })
    }

    /// Returns the moments held of a tree.
    pub(super) fn of(&self, tree: TreeId) -> TreeMoments {
        let held = self.0.lock();
        let whole = held.whole.keys();
        let of_tree = whole.filter(|(_, of)| of.is_none_or(|of| of == tree));
        let mut whole: Vec<Seqno> = of_tree.map(|(seqno, _)| *seqno).collect();
        whole.dedup();
        debug_assert!(whole.is_sorted(), "moments are in order");
        let ranged = held.ranged.iter().filter(|(of, _, _)| *of == tree);
        let ranged = ranged.map(|(_, seqno, ranges)| (*seqno, ranges.clone()));
        TreeMoments {
            whole,
            ranged: ranged.collect(),
        }
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

/// Returns what a scope is counted as: all trees at once, or each alone that is held whole.
fn held_trees(scope: &PinScope, ranges: &PinRanges) -> impl Iterator<Item = Option<TreeId>> {
    let all = scope.trees().is_none().then_some(None);
    let each = scope.trees().unwrap_or_default().iter().copied();
    let whole = each.filter(|tree| !ranges.contains_key(tree));
    all.into_iter().chain(whole.map(Some))
}

impl Hold {
    /// Reports whether the moment is held of a tree that was there then.
    pub(super) fn has(&self, tree: TreeId) -> bool {
        tree <= self.last_tree && self.scope.has(tree)
    }

    /// Reports whether the moment is held of the keys that a guard is on, of a held tree.
    pub(super) fn covers(&self, tree: TreeId, on: Guarded<'_>) -> bool {
        let ranges = self.ranges.get(&tree);
        ranges.is_none_or(|ranges| ranges.covers(on))
    }

    /// Returns the keys that are held of a tree of which not all are.
    pub(super) fn ranges_of(&self, tree: TreeId) -> Option<&KeyRanges> {
        self.ranges.get(&tree)
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

    /// Reports whether dropped trees are kept there for it.
    pub(super) fn keeps_in(&self, kept: &Arc<KeptTrees>) -> bool {
        let own = self.kept.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, kept))
    }

    /// Returns the dropped trees that the pin of this hold sees.
    pub(super) fn kept_infos(&self) -> Vec<TreeInfo> {
        let kept = self.kept.as_ref();
        kept.map_or_else(Vec::new, |kept| kept.infos())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let holds = &mut *self.holds.0.lock();
        for tree in held_trees(&self.scope, &self.ranges) {
            let held = (self.seqno, tree);
            let count = holds.whole.get_mut(&held).expect("a hold is counted");
            *count -= 1;
            if *count == 0 {
                holds.whole.remove(&held);
            }
        }
        for (tree, ranges) in &self.ranges {
            let is_own = |(of, seqno, held): &(TreeId, Seqno, KeyRanges)| {
                (of, *seqno, held) == (tree, self.seqno, ranges)
            };
            let at = holds.ranged.iter().position(is_own);
            holds.ranged.swap_remove(at.expect("a hold is counted"));
        }
    }
}
