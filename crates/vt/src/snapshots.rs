//! Moments that are held open: by readers, by pins and by branch trees.

use crate::dropped::{DroppedMoments, KeptMoments};
use crate::pins::Sight;
use std::collections::BTreeMap;
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

#[derive(Debug, Default)]
struct HeldMoments {
    counts: BTreeMap<Seqno, u64>,
    kept: KeptMoments,
    /// Number of the first tree that was not made yet.
    next_tree: TreeId,
}

/// What a snapshot, a pin or a branch tree holds; gone with its last clone.
#[derive(Debug)]
pub(crate) struct Hold {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
    /// Of a pin, and of snapshots that were opened from it: the dropped trees that it sees.
    sight: Option<Sight>,
    /// Of a branch tree: its parent, which may be hidden.
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
        held.add(seqno);
        let next_tree = held.next_tree;
        drop(held);
        self.held_by(seqno, sight, None, next_tree)
    }

    /// Holds a moment of an earlier life for its pin, before anything is compacted.
    pub(crate) fn take_again(self: &Arc<Self>, seqno: Seqno, sight: Sight) -> Arc<Hold> {
        self.held.lock().add(seqno);
        let next_tree = sight.next_tree();
        self.held_by(seqno, Some(sight), None, next_tree)
    }

    /// Holds the moment at which a branch of a tree begins. It is held already, or nothing was
    /// compacted yet.
    pub(crate) fn take_for_branch(self: &Arc<Self>, seqno: Seqno, parent: TreeId) -> Arc<Hold> {
        self.held.lock().add(seqno);
        self.held_by(seqno, None, Some(parent), parent.next())
    }

    /// Holds the moment of a hold once more.
    pub(crate) fn take_as(self: &Arc<Self>, hold: &Hold) -> Arc<Hold> {
        self.held.lock().add(hold.seqno);
        self.held_by(hold.seqno, None, None, hold.next_tree)
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

    /// The moments held, in ascending order.
    pub(crate) fn held(&self) -> Vec<Seqno> {
        self.held.lock().counts.keys().copied().collect()
    }

    /// Notes that something is written which has versions for these moments. They were held when
    /// its writer asked, and may be dropped already.
    pub(crate) fn keep_versions(&self, seqnos: &[Seqno]) {
        let HeldMoments { counts, kept, .. } = &mut *self.held.lock();
        kept.keep(seqnos, |seqno| counts.contains_key(&seqno));
    }

    /// Notes moments that were dropped, of which tables may have versions.
    pub(crate) fn note_dropped(&self, dropped: DroppedMoments) {
        self.held.lock().kept.add(dropped);
    }

    /// Takes out the dropped moments of which tables may have versions.
    pub(crate) fn take_dropped(&self) -> Option<DroppedMoments> {
        self.held.lock().kept.take_dropped()
    }

    /// Reports whether there are dropped moments of which tables may have versions.
    pub(crate) fn has_dropped(&self) -> bool {
        self.held.lock().kept.has_dropped()
    }

    /// Returns what a snapshot holds, if it was taken here.
    pub(crate) fn own<'a>(self: &Arc<Self>, snapshot: &'a Snapshot) -> Option<&'a Hold> {
        let hold = snapshot.hold().downcast_ref::<Hold>()?;
        Arc::ptr_eq(&hold.snapshots, self).then_some(hold)
    }
}

impl HeldMoments {
    fn add(&mut self, seqno: Seqno) {
        *self.counts.entry(seqno).or_default() += 1;
    }
}

impl Hold {
    /// Reports whether a tree was made before this moment was held.
    pub(crate) fn is_later_than(&self, tree: TreeId) -> bool {
        tree < self.next_tree
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
        let count = held.counts.get_mut(&self.seqno);
        let count = count.expect("what is held is counted");
        *count -= 1;
        if *count == 0 {
            held.counts.remove(&self.seqno);
            held.kept.end(self.seqno);
        }
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
        assert_eq!(snapshots.held(), [Seqno(7), Seqno(9)]);
        drop(first);
        assert_eq!(snapshots.held(), [Seqno(7), Seqno(9)]);
        drop(clone);
        assert_eq!(snapshots.held(), [Seqno(9)]);
        assert!(snapshots.own(&second).is_some());
        assert!(Arc::new(Snapshots::default()).own(&second).is_none());
    }
}
