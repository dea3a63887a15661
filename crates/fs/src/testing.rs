//! For tests: a file system in an engine in memory.

use crate::{FileSystem, FsOptions, register_upserts};
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::{Clock, Timestamp};
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicI64, Ordering};
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

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
