//! For tests: a file system in an engine in memory.

use crate::{DirName, FileSystem, FsOptions, register_upserts};
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::{Clock, Timestamp};
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicI64, Ordering};
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_kv::{Engine, ModelEngine, SpaceClass, UpsertRegistry};

/// Returns an engine with a new file system.
pub(crate) fn formatted(options: &FsOptions) -> Arc<ModelEngine> {
    let mut registry = UpsertRegistry::default();
    register_upserts(&mut registry);
    let engine = Arc::new(ModelEngine::new(registry));
    let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
    FileSystem::format(&shared, options, (0, 0)).expect("formats");
    engine
}

/// Returns the head of an inode with one link, and zeros where nothing is said.
pub(crate) const fn head(ino: Ino, kind: FileKind) -> InodeHead {
    InodeHead {
        perm: 0o644,
        ..InodeHead::new(ino, kind)
    }
}

/// Gives a directory a second name in one below it, as no program of ours does.
pub(crate) fn make_ring(fs: &FileSystem, at: DirName<'_>, below: Ino) {
    assert_ne!(at.parent, below, "it lies further down");
    let (store, keys) = (&fs.store, fs.store.keys);
    let row = store.get(&keys.dentry(at.parent, at.name));
    let row = row.expect("the model reads").expect("there is a row");
    let mut batch = store.batch();
    batch.put(&keys.dentry(below, b"ring"), &row);
    let committed = store.commit(&batch, SpaceClass::Normal);
    committed.expect("the model commits");
}

/// A clock that a test sets, also back.
#[derive(Debug, Default)]
pub(crate) struct SetClock(AtomicI64);

impl SetClock {
    /// Sets it to a second since 1970.
    pub(crate) fn set(&self, second: i64) {
        self.0.store(second * 1_000_000_000, Ordering::SeqCst);
    }

    pub(crate) fn second(&self) -> i64 {
        self.now().seconds()
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) {}
}
