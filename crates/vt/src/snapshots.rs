//! Moments that are held open: by readers, by pins and by branch trees.
//!
//! A reader holds its moment of every tree, a pin of all, of some, or of ranges of their keys, a
//! branch tree of its parent.

use crate::dropped::{DroppedByTree, DroppedMoments};
use crate::held::{HeldMoments, HeldSeqnos};
use crate::pins::Sight;
use crate::version::Version;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Guarded, KeyRanges, KvError, PinRanges, PinScope, Snapshot};

/// The moments of a store that are held open.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    held: Mutex<HeldMoments>,
}

/// What a snapshot, a pin or a branch tree holds; gone with its last clone.
#[derive(Debug)]
pub(crate) struct Hold {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
    /// Of a pin, and of snapshots that were opened from it: the dropped trees that it sees.
    sight: Option<Sight>,
    /// The trees of which the moment is held.
    of: HeldTrees,
    /// Number of the first tree that was made later.
    next_tree: TreeId,
}

/// The trees of which a moment is held, of those that were there then.
#[derive(Clone, Debug)]
pub(crate) enum HeldTrees {
    /// Of a reader: all. Of a pin: all, or some.
    Scope(PinScope),
    /// Of a narrowed pin.
    Narrow(Arc<NarrowScope>),
    /// Of a branch tree: its parent, which may be hidden.
    Parent(TreeId),
    /// Of a branch tree that begins with ranges of keys: its parent, with these.
    ParentRanges(Arc<(TreeId, PinRanges)>),
}

/// What a narrowed pin holds.
#[derive(Debug)]
pub(crate) struct NarrowScope {
    scope: PinScope,
    /// The trees of it that are held whole.
    whole: Vec<TreeId>,
    /// The keys that are held of the others.
    ranges: PinRanges,
}

impl HeldTrees {
    pub(crate) const ALL: Self = Self::Scope(PinScope::AllTrees);

    /// What a pin holds.
    fn of_pin(sight: &Sight) -> Self {
        let (scope, ranges) = (sight.scope().clone(), sight.ranges().clone());
        if ranges.is_empty() {
            return Self::Scope(scope);
        }
        let trees = scope.trees();
        let trees = trees
            .expect("a pin that was narrowed lists its trees")
            .iter();
        debug_assert!(
            ranges.keys().all(|tree| scope.has(*tree)),
            "ranges are of trees that the pin holds"
        );
        let whole = trees.filter(|tree| !ranges.contains_key(tree));
        let whole: Vec<TreeId> = whole.copied().collect();
        debug_assert!(whole.is_sorted(), "it is searched by halves");
        debug_assert_eq!(
            whole.len() + ranges.len(),
            scope.trees().map_or(0, <[TreeId]>::len),
            "each tree is held whole or in ranges"
        );
        Self::Narrow(Arc::new(NarrowScope {
            scope,
            whole,
            ranges,
        }))
    }

    fn has(&self, tree: TreeId) -> bool {
        match self {
            Self::Scope(scope) => scope.has(tree),
            Self::Narrow(narrow) => narrow.scope.has(tree),
            Self::Parent(parent) => *parent == tree,
            Self::ParentRanges(of) => of.0 == tree,
        }
    }

    /// Reports whether no tree is held both whole and in ranges, and none in ranges alone of which
    /// nothing is held.
    fn holds(&self) -> bool {
        self.ranges().is_none_or(|ranges| {
            let whole = self.each().unwrap_or_default();
            let is_held = |tree| self.has(tree) && whole.binary_search(&tree).is_err();
            ranges.keys().all(|tree| is_held(*tree))
        })
    }

    /// Reports whether the moment is held of the keys that a guard is on, of a held tree.
    fn covers(&self, tree: TreeId, on: Guarded<'_>) -> bool {
        debug_assert!(self.has(tree), "the tree is held");
        match self {
            Self::Narrow(_) | Self::ParentRanges(_) => {
                let ranges = self.ranges().and_then(|ranges| ranges.get(&tree));
                ranges.is_none_or(|ranges| ranges.covers(on))
            }
            Self::Scope(_) | Self::Parent(_) => true,
        }
    }

    /// Returns the trees of which ranges of keys are held alone, with these.
    fn ranges(&self) -> Option<&PinRanges> {
        match self {
            Self::Narrow(narrow) => Some(&narrow.ranges),
            Self::ParentRanges(of) => {
                debug_assert!(of.1.keys().eq([&of.0]), "ranges are of the parent");
                Some(&of.1)
            }
            Self::Scope(_) | Self::Parent(_) => None,
        }
    }

    /// Returns each tree of which the moment is held alone, of every key; `None` of all trees at
    /// once.
    fn each(&self) -> Option<&[TreeId]> {
        match self {
            Self::Scope(scope) => scope.trees(),
            Self::Narrow(narrow) => Some(narrow.whole.as_slice()),
            Self::Parent(parent) => Some(std::slice::from_ref(parent)),
            Self::ParentRanges(_) => Some(&[]),
        }
    }

    /// Counts a moment that is held so.
    fn hold(&self, held: &mut HeldMoments, seqno: Seqno) {
        debug_assert!(self.holds(), "ranges are of held trees");
        held.add(self.each(), seqno);
        if let Some(ranges) = self.ranges() {
            held.add_ranges(ranges, seqno);
        }
    }

    /// Counts it no more.
    fn give_up(&self, held: &mut HeldMoments, seqno: Seqno) {
        debug_assert!(self.holds(), "what was held is given up");
        held.remove(self.each(), seqno);
        if let Some(ranges) = self.ranges() {
            held.remove_ranges(ranges, seqno);
        }
    }
}

impl Snapshots {
    /// Holds the moment that `visible` names, of all trees. Taken under the lock, so that a
    /// compaction that does not see the snapshot began when nothing newer than it was written out.
    pub(crate) fn take(self: &Arc<Self>, visible: &AtomicU64) -> Arc<Hold> {
        self.take_of(visible, HeldTrees::ALL, None)
    }

    /// Holds the moment that `visible` names for a pin, of its trees.
    pub(crate) fn take_for_pin(self: &Arc<Self>, visible: &AtomicU64, sight: Sight) -> Arc<Hold> {
        debug_assert!(!sight.has_ended(), "a dropped pin holds nothing new");
        let of = HeldTrees::of_pin(&sight);
        self.take_of(visible, of, Some(sight))
    }

    fn take_of(
        self: &Arc<Self>,
        visible: &AtomicU64,
        of: HeldTrees,
        sight: Option<Sight>,
    ) -> Arc<Hold> {
        let mut held = self.held.lock();
        let seqno = Seqno(visible.load(Ordering::Acquire));
        of.hold(&mut held, seqno);
        let next_tree = held.next_tree;
        drop(held);
        debug_assert!(
            of.each()
                .is_none_or(|trees| trees.iter().all(|tree| *tree < next_tree)),
            "a moment is held of trees that are there"
        );
        debug_assert!(
            seqno.0 <= visible.load(Ordering::Acquire),
            "what is visible stays visible"
        );
        self.held_by(seqno, sight, of, next_tree)
    }

    /// Holds the moment of a pin that is there: one of an earlier life, before anything is
    /// compacted, or one that is held already.
    pub(crate) fn take_again(self: &Arc<Self>, seqno: Seqno, sight: Sight) -> Arc<Hold> {
        debug_assert!(!sight.has_ended(), "a dropped pin is not held again");
        let of = HeldTrees::of_pin(&sight);
        of.hold(&mut self.held.lock(), seqno);
        let next_tree = sight.next_tree();
        debug_assert!(next_tree.0 > 0, "tree 0 is never given out");
        self.held_by(seqno, Some(sight), of, next_tree)
    }

    /// Holds the moment at which a branch of a tree begins, of that tree alone, or of ranges of its
    /// keys. It is held already, or nothing was compacted yet.
    pub(crate) fn take_for_branch(
        self: &Arc<Self>,
        seqno: Seqno,
        parent: TreeId,
        ranges: Option<KeyRanges>,
    ) -> Arc<Hold> {
        debug_assert!(parent.0 > 0, "tree 0 is never given out");
        let of = match ranges {
            None => HeldTrees::Parent(parent),
            Some(ranges) => {
                let ranges = PinRanges::from([(parent, ranges)]);
                HeldTrees::ParentRanges(Arc::new((parent, ranges)))
            }
        };
        debug_assert!(of.has(parent), "the moment is held of the parent");
        of.hold(&mut self.held.lock(), seqno);
        self.held_by(seqno, None, of, parent.next())
    }

    /// Holds the moment of a hold once more, of the same trees.
    pub(crate) fn take_as(self: &Arc<Self>, hold: &Hold) -> Arc<Hold> {
        debug_assert!(
            std::ptr::eq(&raw const *hold.snapshots, &raw const **self),
            "a hold of this store"
        );
        hold.of.hold(&mut self.held.lock(), hold.seqno);
        self.held_by(hold.seqno, None, hold.of.clone(), hold.next_tree)
    }

    fn held_by(
        self: &Arc<Self>,
        seqno: Seqno,
        sight: Option<Sight>,
        of: HeldTrees,
        next_tree: TreeId,
    ) -> Arc<Hold> {
        debug_assert!(
            sight.is_none() || !matches!(of, HeldTrees::Parent(_) | HeldTrees::ParentRanges(_)),
            "a branch holds no trees that a pin sees"
        );
        debug_assert!(
            sight
                .as_ref()
                .is_none_or(|sight| sight.next_tree() == next_tree),
            "a pin sees the trees that were made before its moment"
        );
        Arc::new(Hold {
            snapshots: Arc::clone(self),
            seqno,
            sight,
            of,
            next_tree,
        })
    }

    /// Takes note of the number that the next tree gets. What is held from now on sees all before.
    pub(crate) fn note_trees(&self, next_tree: TreeId) {
        let mut held = self.held.lock();
        debug_assert!(held.next_tree <= next_tree, "numbers of trees rise");
        held.next_tree = next_tree;
    }

    /// Returns the moments that are held.
    pub(crate) fn held(&self) -> HeldSeqnos {
        self.held.lock().list()
    }

    /// Notes that something is written to trees which has versions for these moments. They were
    /// held when its writer asked, and may be dropped already.
    pub(crate) fn keep_versions(
        &self,
        seqnos: &HeldSeqnos,
        trees: impl IntoIterator<Item = TreeId>,
    ) {
        let held = &mut *self.held.lock();
        trees.into_iter().for_each(|tree| held.keep(seqnos, tree));
    }

    /// Notes moments of every tree that were dropped, of which tables may have versions.
    pub(crate) fn note_dropped(&self, dropped: DroppedMoments) {
        self.held.lock().dropped.add(None, dropped);
    }

    /// Takes it that tables have versions for all moments that are held: those of an earlier life.
    pub(crate) fn keep_all(&self) {
        self.held.lock().keep_all();
    }

    /// Reports whether tables may have versions for moments that are dropped, or that end with this
    /// life: none of these holds is of them.
    pub(crate) fn leave_any_beside(&self, lasting: &[Arc<Hold>]) -> bool {
        let mut after = HeldMoments::default();
        for hold in lasting {
            debug_assert!(
                std::ptr::eq(&raw const *hold.snapshots, self),
                "of this store"
            );
            hold.of.hold(&mut after, hold.seqno);
        }
        let held = self.held.lock();
        !held.dropped.is_empty() || held.has_kept_beside(&after)
    }

    /// Takes out the dropped moments of which tables may have versions.
    pub(crate) fn take_dropped(&self) -> DroppedByTree {
        std::mem::take(&mut self.held.lock().dropped)
    }

    /// Reports whether there are dropped moments of which tables may have versions.
    pub(crate) fn has_dropped(&self) -> bool {
        !self.held.lock().dropped.is_empty()
    }

    /// Returns what a snapshot holds, if it was taken here.
    pub(crate) fn own<'a>(self: &Arc<Self>, snapshot: &'a Snapshot) -> Option<&'a Hold> {
        let hold = snapshot.hold().downcast_ref::<Hold>()?;
        debug_assert_eq!(
            snapshot.seqno(),
            hold.seqno,
            "a snapshot is of the moment that is held"
        );
        Arc::ptr_eq(&hold.snapshots, self).then_some(hold)
    }
}

impl Hold {
    /// Reports whether the moment is held of a tree, and the tree was made before.
    pub(crate) fn has(&self, tree: TreeId) -> bool {
        self.saw(tree) && self.of.has(tree)
    }

    /// Reports whether a tree was made before the moment.
    pub(crate) fn saw(&self, tree: TreeId) -> bool {
        tree < self.next_tree
    }

    /// Refuses keys that a pin does not hold: those of a tree that was there at its moment and is
    /// not in its scope, or beside its ranges; and those of a later branch of the tree, in a
    /// version.
    ///
    /// # Errors
    /// [`KvError::NotHeld`], [`KvError::KeysNotHeld`].
    pub(crate) fn check_held(
        &self,
        version: &Version,
        (tree, on): (TreeId, Guarded<'_>),
    ) -> Result<(), KvError> {
        if let HeldTrees::Scope(PinScope::AllTrees) | HeldTrees::Parent(_) = &self.of {
            return Ok(());
        }
        let mut of_moment = Some(tree).filter(|tree| self.saw(*tree));
        if of_moment.is_none() {
            let mut lineage = version.lineage(tree).map(|tree| tree.info.id);
            of_moment = lineage.find(|tree| self.saw(*tree));
        }
        let Some(of_moment) = of_moment else {
            return Ok(());
        };
        match (self.of.has(of_moment), on) {
            (false, _) => Err(KvError::NotHeld(tree)),
            (true, on) if self.of.covers(of_moment, on) => {
                debug_assert!(self.saw(of_moment), "the tree was there at the moment");
                Ok(())
            }
            (true, _) => Err(KvError::KeysNotHeld(tree)),
        }
    }

    /// Returns each tree of which the moment is held alone, of every key; `None` of all trees at
    /// once.
    pub(crate) fn each_tree(&self) -> Option<&[TreeId]> {
        let each = self.of.each();
        debug_assert!(
            each.is_none_or(|trees| trees.iter().all(|tree| self.saw(*tree))),
            "a moment is held of trees that were there"
        );
        each
    }

    /// Returns the trees of which a pin holds ranges alone, with these.
    pub(crate) fn ranges(&self) -> Option<&PinRanges> {
        debug_assert!(
            self.sight.as_ref().is_none_or(|sight| {
                sight.ranges().is_empty() != matches!(self.of, HeldTrees::Narrow(_))
            }),
            "a pin with ranges is a narrowed one"
        );
        self.sight.as_ref().map(Sight::ranges)
    }

    /// Of a branch tree: its parent, which may be hidden.
    pub(crate) fn parent(&self) -> Option<TreeId> {
        match &self.of {
            HeldTrees::Parent(parent) => {
                debug_assert!(self.saw(*parent), "a branch begins in a tree that is there");
                Some(*parent)
            }
            HeldTrees::ParentRanges(of) => {
                debug_assert!(self.saw(of.0), "a branch begins in a tree that is there");
                Some(of.0)
            }
            HeldTrees::Scope(_) | HeldTrees::Narrow(_) => None,
        }
    }

    /// Returns the keys that it holds of a tree of which it does not hold all.
    pub(crate) fn ranges_of(&self, tree: TreeId) -> Option<&KeyRanges> {
        let ranges = self.of.ranges().and_then(|ranges| ranges.get(&tree));
        debug_assert!(
            ranges.is_none() || self.of.has(tree),
            "ranges are of held trees"
        );
        ranges
    }

    /// The last write that it sees.
    pub(crate) const fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// Of a pin: the dropped trees that it sees.
    pub(crate) const fn sight(&self) -> Option<&Sight> {
        self.sight.as_ref()
    }

    /// Returns a snapshot of the moment.
    pub(crate) fn snapshot(self: Arc<Self>) -> Snapshot {
        Snapshot::new(self.seqno, self)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        debug_assert!(
            self.sight.is_none() || self.parent().is_none(),
            "a branch holds no trees that a pin sees"
        );
        self.of.give_up(&mut self.snapshots.held.lock(), self.seqno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_held_until_the_last_clone_goes() {
        let snapshots = Arc::new(Snapshots::default());
        let visible = AtomicU64::new(7);
        let first = snapshots.take(&visible).snapshot();
        let clone = first.clone();
        visible.store(9, Ordering::Release);
        let second = snapshots.take(&visible).snapshot();
        let held = || snapshots.held().of(TreeId(1)).all().to_vec();
        assert_eq!(held(), [Seqno(7), Seqno(9)]);
        drop(first);
        assert_eq!(held(), [Seqno(7), Seqno(9)]);
        drop(clone);
        assert_eq!(held(), [Seqno(9)]);
        assert!(snapshots.own(&second).is_some());
        assert!(Arc::new(Snapshots::default()).own(&second).is_none());
    }
}
