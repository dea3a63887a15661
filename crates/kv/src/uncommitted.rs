//! An engine for what a transaction writes before it commits.

use crate::{Batch, CommitOptions, Engine, Guards, KvError, SpaceClass, WrappedEngine};
use std::fmt;
use stitch_base::Seqno;
use stitch_base::sync::Arc;

/// Another engine, whose [`SpaceClass::Normal`] commits are [`SpaceClass::Uncommitted`]. Others,
/// such as deletes, are as they were.
#[derive(Clone)]
pub struct UncommittedEngine {
    inner: Arc<dyn Engine>,
}

impl UncommittedEngine {
    /// Writes of a transaction to `inner`.
    #[must_use]
    pub const fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for UncommittedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UncommittedEngine").finish_non_exhaustive()
    }
}

const fn uncommitted(options: CommitOptions) -> CommitOptions {
    let space = match options.space {
        SpaceClass::Normal => SpaceClass::Uncommitted,
        other => other,
    };
    debug_assert!(
        !matches!(space, SpaceClass::Normal),
        "others find what it leaves"
    );
    CommitOptions { space, ..options }
}

impl WrappedEngine for UncommittedEngine {
    fn inner(&self) -> &dyn Engine {
        &*self.inner
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        self.inner.commit(batch, uncommitted(options))
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.inner
            .commit_guarded(batch, guards, uncommitted(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelEngine, TreeOptions, UpsertRegistry, kept_from_uncommitted};

    #[test]
    fn a_transaction_that_fills_a_store_leaves_room_to_others() {
        let store = ModelEngine::with_space(UpsertRegistry::default(), 1 << 20);
        let store: Arc<dyn Engine> = Arc::new(store);
        let tree = store.create_tree("t", &TreeOptions::default()).unwrap();
        let uncommitted = UncommittedEngine::new(Arc::clone(&store));
        let put = |engine: &dyn Engine, key: u32| {
            let mut batch = Batch::new();
            batch.put(tree, &key.to_be_bytes(), &[7; 1000]);
            engine.commit(&batch, CommitOptions::default())
        };
        let mut key = 0;
        while put(&uncommitted, key).is_ok() {
            key += 1;
        }
        let kept_bytes = kept_from_uncommitted(store.space().total_bytes);
        assert!(store.space().free_bytes >= kept_bytes - 2000, "it is left");
        for other in 0..kept_bytes / 2000 {
            put(&*store, 1_000_000 + u32::try_from(other).unwrap()).unwrap();
        }
        assert!(matches!(
            put(&uncommitted, key),
            Err(KvError::NoSpace { .. })
        ));
    }
}
