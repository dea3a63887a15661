//! Moments that are held open: by readers, and by pins.

use crate::pins::Sight;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::Snapshot;

/// The moments of a store that are held open.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    counts: Mutex<BTreeMap<Seqno, u64>>,
}

/// What a snapshot or a pin holds; gone with its last clone.
#[derive(Debug)]
pub(crate) struct Hold {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
    /// Of a pin, and of snapshots that were opened from it: the dropped trees that it sees.
    sight: Option<Sight>,
}

impl Snapshots {
    /// Holds the moment that `visible` names. Taken under the lock, so that a compaction that does
    /// not see the snapshot began when nothing newer than it was written out.
    pub(crate) fn take(self: &Arc<Self>, visible: &AtomicU64, sight: Option<Sight>) -> Arc<Hold> {
        let mut counts = self.counts.lock();
        let seqno = Seqno(visible.load(Ordering::Acquire));
        *counts.entry(seqno).or_default() += 1;
        drop(counts);
        self.held_by(seqno, sight)
    }

    /// Holds a moment of an earlier life for its pin, before anything is compacted.
    pub(crate) fn take_again(self: &Arc<Self>, seqno: Seqno, sight: Sight) -> Arc<Hold> {
        *self.counts.lock().entry(seqno).or_default() += 1;
        self.held_by(seqno, Some(sight))
    }

    fn held_by(self: &Arc<Self>, seqno: Seqno, sight: Option<Sight>) -> Arc<Hold> {
        Arc::new(Hold {
            snapshots: Arc::clone(self),
            seqno,
            sight,
        })
    }

    /// The moments held, in ascending order.
    pub(crate) fn held(&self) -> Vec<Seqno> {
        self.counts.lock().keys().copied().collect()
    }

    /// Returns what a snapshot holds, if it was taken here.
    pub(crate) fn own<'a>(self: &Arc<Self>, snapshot: &'a Snapshot) -> Option<&'a Hold> {
        let hold = snapshot.hold().downcast_ref::<Hold>()?;
        Arc::ptr_eq(&hold.snapshots, self).then_some(hold)
    }
}

impl Hold {
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
        let mut counts = self.snapshots.counts.lock();
        let count = counts
            .get_mut(&self.seqno)
            .expect("what is held is counted");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.seqno);
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
