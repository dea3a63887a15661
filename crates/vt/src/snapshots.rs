//! Moments that are held open: by readers, by pins and by branch trees.

use crate::dropped::{DroppedByTree, DroppedMoments};
use crate::held::{HeldMoments, HeldSeqnos};
use crate::pins::Sight;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::{Seqno, TreeId};
use stitch_kv::Snapshot;

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
    /// Of a branch tree: its parent, which may be hidden. The moment is held of that tree alone.
    parent: Option<TreeId>,
    /// Number of the first tree that was made later.
    next_tree: TreeId,
}

impl Snapshots {
    /// Holds the moment that `visible` names. Taken under the lock, so that a compaction that does
    /// not see the snapshot began when nothing newer than it was written out.
    pub(crate) fn take(self: &Arc<Self>, visible: &AtomicU64, sight: Option<Sight>) -> Arc<Hold> {
        let mut held = self.held.lock();
        let seqno = Seqno(visible.load(Ordering::Acquire));
        held.add(None, seqno);
        let next_tree = held.next_tree;
        drop(held);
        self.held_by(seqno, sight, None, next_tree)
    }

    /// Holds a moment of an earlier life for its pin, before anything is compacted.
    pub(crate) fn take_again(self: &Arc<Self>, seqno: Seqno, sight: Sight) -> Arc<Hold> {
        self.held.lock().add(None, seqno);
        let next_tree = sight.next_tree();
        self.held_by(seqno, Some(sight), None, next_tree)
    }

    /// Holds the moment at which a branch of a tree begins, of that tree alone. It is held already,
    /// or nothing was compacted yet.
    pub(crate) fn take_for_branch(self: &Arc<Self>, seqno: Seqno, parent: TreeId) -> Arc<Hold> {
        self.held.lock().add(Some(parent), seqno);
        self.held_by(seqno, None, Some(parent), parent.next())
    }

    /// Holds the moment of a hold once more, of the same trees.
    pub(crate) fn take_as(self: &Arc<Self>, hold: &Hold) -> Arc<Hold> {
        self.held.lock().add(hold.parent, hold.seqno);
        self.held_by(hold.seqno, None, hold.parent, hold.next_tree)
    }

    fn held_by(
        self: &Arc<Self>,
        seqno: Seqno,
        sight: Option<Sight>,
        parent: Option<TreeId>,
        next_tree: TreeId,
    ) -> Arc<Hold> {
        Arc::new(Hold {
            snapshots: Arc::clone(self),
            seqno,
            sight,
            parent,
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
        Arc::ptr_eq(&hold.snapshots, self).then_some(hold)
    }
}

impl Hold {
    /// Reports whether the moment is held of a tree, and the tree was made before.
    pub(crate) fn has(&self, tree: TreeId) -> bool {
        tree < self.next_tree && self.parent.is_none_or(|parent| parent == tree)
    }

    /// Of a branch tree: its parent, which may be hidden.
    pub(crate) const fn parent(&self) -> Option<TreeId> {
        self.parent
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
        let held = &mut *self.snapshots.held.lock();
        held.remove(self.parent, self.seqno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_held_until_the_last_clone_goes() {
        let snapshots = Arc::new(Snapshots::default());
        let visible = AtomicU64::new(7);
        let first = snapshots.take(&visible, None).snapshot();
        let clone = first.clone();
        visible.store(9, Ordering::Release);
        let second = snapshots.take(&visible, None).snapshot();
        assert_eq!(snapshots.held().of(TreeId(1)), [Seqno(7), Seqno(9)]);
        drop(first);
        assert_eq!(snapshots.held().of(TreeId(1)), [Seqno(7), Seqno(9)]);
        drop(clone);
        assert_eq!(snapshots.held().of(TreeId(1)), [Seqno(9)]);
        assert!(snapshots.own(&second).is_some());
        assert!(Arc::new(Snapshots::default()).own(&second).is_none());
    }
}
