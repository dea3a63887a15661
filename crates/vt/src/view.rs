//! What a reader reads: the memtables and the version of one moment. Immutable; a reader holds an
//! `Arc` of one and takes no locks.

use crate::buffer::Buffer;
use crate::version::Version;
use std::sync::Arc;
use stitch_base::sync::RwLock;

/// Memtables and tables of a moment.
#[derive(Clone)]
pub(crate) struct View {
    /// Newest first; the first one is active, the others are sealed.
    pub(crate) buffers: Vec<Arc<Buffer>>,
    /// The tables.
    pub(crate) version: Arc<Version>,
}

impl View {
    /// The memtable that commits go to.
    pub(crate) fn active(&self) -> &Arc<Buffer> {
        self.buffers
            .first()
            .expect("there is always an active memtable")
    }

    /// Sealed memtables that wait to be written out.
    pub(crate) fn sealed_count(&self) -> usize {
        self.buffers.len() - 1
    }
}

/// The current view.
pub(crate) struct Views {
    current: RwLock<Arc<View>>,
}

impl Views {
    pub(crate) fn new(view: View) -> Self {
        Self {
            current: RwLock::new(Arc::new(view)),
        }
    }

    /// The current view.
    pub(crate) fn get(&self) -> Arc<View> {
        Arc::clone(&self.current.read())
    }

    /// Makes a changed copy the current view. The old one is dropped after the lock is given up:
    /// space goes back with it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut View)) -> Arc<View> {
        let mut current = self.current.write();
        let mut view = View::clone(&current);
        change(&mut view);
        debug_assert!(
            !view.buffers.is_empty(),
            "there is always an active memtable"
        );
        let view = Arc::new(view);
        let before = std::mem::replace(&mut *current, Arc::clone(&view));
        drop(current);
        drop(before);
        view
    }
}
