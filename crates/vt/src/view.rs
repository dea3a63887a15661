//! What a reader reads: the memtables and the version of one moment. Immutable; a reader holds an
//! `Arc` of one.

use crate::buffer::Buffer;
use crate::version::Version;
use std::sync::Arc;
use stitch_base::sync::{Mutex, RwLock, RwLockWriteGuard, SHARDS, Sharded};

/// Memtables and tables of a moment. Aligned so that the count of an `Arc` shares no line of memory
/// with anything.
#[derive(Clone)]
#[repr(align(128))]
pub(crate) struct View {
    /// Newest first; the first one is active, the others are sealed.
    pub(crate) buffers: Vec<Arc<Buffer>>,
    /// The tables.
    pub(crate) version: Arc<Version>,
}

impl View {
    /// Panics unless one memtable is active, and the others are older.
    fn assert_invariants(&self) {
        debug_assert!(
            !self.buffers.is_empty(),
            "there is always an active memtable"
        );
        debug_assert!(
            self.buffers
                .is_sorted_by(|newer, older| newer.log_start >= older.log_start),
            "memtables are in the log's order"
        );
    }

    /// The memtable that commits go to.
    pub(crate) fn active(&self) -> &Arc<Buffer> {
        self.buffers
            .first()
            .expect("there is always an active memtable")
    }

    /// Sealed memtables that wait to be written out.
    pub(crate) fn sealed_count(&self) -> usize {
        debug_assert!(!self.buffers.is_empty(), "one memtable is active");
        self.buffers.len() - 1
    }
}

/// The current view: a copy for each shard of threads, so that those who only read write to no
/// memory that others write to. A change puts all copies in place with all shards locked. So a
/// reader gets the view that was current for all readers at one moment of the call, as if there
/// were one.
pub(crate) struct Views {
    current: Sharded<RwLock<Arc<View>>>,
    /// One change at a time.
    changing: Mutex<()>,
}

impl Views {
    pub(crate) fn new(view: View) -> Self {
        view.assert_invariants();
        Self {
            current: Sharded::new(|| RwLock::new(Arc::new(view.clone()))),
            changing: Mutex::new(()),
        }
    }

    /// The current view.
    pub(crate) fn get(&self) -> Arc<View> {
        Arc::clone(&self.current.own().read())
    }

    /// Returns the current version.
    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.get().version)
    }

    /// Makes a changed copy the current view. Readers wait for no more than the exchange. The old
    /// one is dropped after all locks are given up: space goes back with it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut View)) -> Arc<View> {
        let changing = self.changing.lock();
        let mut view = View::clone(&self.get());
        change(&mut view);
        view.assert_invariants();
        let mut copies: Vec<Arc<View>> = (0..SHARDS).map(|_| Arc::new(view.clone())).collect();
        let all = self.current.iter().map(RwLock::write);
        let mut all: Vec<RwLockWriteGuard<'_, Arc<View>>> = all.collect();
        debug_assert_eq!(all.len(), copies.len(), "a copy for each shard");
        for (current, copy) in all.iter_mut().zip(&mut copies) {
            std::mem::swap(&mut **current, copy);
        }
        debug_assert!(
            all.iter()
                .all(|current| Arc::ptr_eq(&current.version, &view.version)),
            "readers of all shards get the same view"
        );
        drop(all);
        drop(changing);
        drop(copies);
        Arc::new(view)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::memtable::Memtable;
    use stitch_base::{Lsn, Seqno};

    fn views() -> Views {
        Views::new(View {
            buffers: vec![Arc::new(Buffer::new(Memtable::new(0), Lsn(0)))],
            version: Arc::new(Version::empty()),
        })
    }

    fn set(views: &Views, seqno: u64) -> Arc<View> {
        views.change(|view| {
            view.version = Arc::new(Version {
                last_seqno: Seqno(seqno),
                ..Version::clone(&view.version)
            });
        })
    }

    #[test]
    fn a_change_is_in_every_shard_and_the_old_view_in_none() {
        let views = views();
        let before = Arc::downgrade(&views.get().version);
        let after = set(&views, 7);
        for current in views.current.iter() {
            assert_eq!(current.read().version.last_seqno, Seqno(7));
        }
        assert_eq!(after.version.last_seqno, Seqno(7));
        assert!(before.upgrade().is_none(), "no reader has it");
    }

    #[test]
    fn readers_of_two_shards_share_neither_a_lock_nor_a_count() {
        let views = views();
        let mut places: Vec<*const View> = Vec::new();
        for (current, lock) in views.current.iter().zip(1..) {
            places.push(Arc::as_ptr(&current.read()));
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), lock, "two shards have one view");
        }
        // Who reads takes no lock but that of its shard.
        let own = std::ptr::from_ref(views.current.own());
        let others = views
            .current
            .iter()
            .filter(|lock| !std::ptr::eq(*lock, own));
        let held: Vec<_> = others.map(RwLock::write).collect();
        assert_eq!(held.len(), SHARDS - 1);
        assert_eq!(views.get().version.last_seqno, Seqno(0));
    }
}
