//! Moments that readers hold open.

use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::Snapshot;

/// The snapshots of a store, by what they see.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    counts: Mutex<BTreeMap<Seqno, u64>>,
}

/// What a snapshot holds; gone with its last clone.
#[derive(Debug)]
struct Hold {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
}

impl Snapshots {
    /// Holds the moment that `visible` names. Taken under the lock, so that a compaction that does
    /// not see the snapshot began when nothing newer than it was written out.
    pub(crate) fn take(self: &Arc<Self>, visible: &AtomicU64) -> Snapshot {
        let mut counts = self.counts.lock();
        let seqno = Seqno(visible.load(Ordering::Acquire));
        *counts.entry(seqno).or_default() += 1;
        let hold = Hold {
            snapshots: Arc::clone(self),
            seqno,
        };
        Snapshot::new(seqno, Arc::new(hold))
    }

    /// The moments held, in ascending order.
    pub(crate) fn held(&self) -> Vec<Seqno> {
        self.counts.lock().keys().copied().collect()
    }

    /// True if a snapshot was taken here.
    pub(crate) fn is_ours(self: &Arc<Self>, snapshot: &Snapshot) -> bool {
        snapshot
            .hold()
            .downcast_ref::<Hold>()
            .is_some_and(|hold| Arc::ptr_eq(&hold.snapshots, self))
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
        let first = snapshots.take(&visible);
        let clone = first.clone();
        visible.store(9, Ordering::Release);
        let second = snapshots.take(&visible);
        assert_eq!(snapshots.held(), [Seqno(7), Seqno(9)]);
        drop(first);
        assert_eq!(snapshots.held(), [Seqno(7), Seqno(9)]);
        drop(clone);
        assert_eq!(snapshots.held(), [Seqno(9)]);
        assert!(snapshots.is_ours(&second));
        assert!(!Arc::new(Snapshots::default()).is_ours(&second));
    }
}
