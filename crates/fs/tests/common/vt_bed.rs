//! A file system on the VT-tree with a clock that tests advance.

use super::vt_store::VtStore;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, FsOptions, register_upserts};
use stitch_kv::UpsertRegistry;

/// A store in memory, and what it is mounted with.
pub(crate) struct Bed {
    store: VtStore,
    pub(crate) clock: Arc<ManualClock>,
}

impl Bed {
    /// Formats a file system at the time of a clock.
    pub(crate) fn new(clock: ManualClock) -> Self {
        let mut upserts = UpsertRegistry::default();
        register_upserts(&mut upserts);
        let bed = Self {
            store: VtStore::new(upserts),
            clock: Arc::new(clock),
        };
        FileSystem::format(&bed.store.engine(), &bed.options(), (0, 0)).expect("formats");
        bed
    }

    fn options(&self) -> FsOptions {
        FsOptions {
            clock: Arc::clone(&self.clock) as _,
            ..FsOptions::default()
        }
    }

    /// Opens the file system. Nothing of it is cached.
    pub(crate) fn open(&self) -> FileSystem {
        FileSystem::open(self.store.engine(), self.options()).expect("opens")
    }

    pub(crate) fn close(fs: FileSystem) {
        fs.engine().quiesce().expect("it settles");
        fs.close().expect("closes");
    }
}
