//! An engine with a fault, to see that the checkers find it.

use bytes::Bytes;
use stitch_base::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{
    Batch, ChangedKey, CommitOptions, Direction, Engine, Guarded, Guards, KeyRange, KvError,
    ModelEngine, Scan, Snapshot, UpsertRegistry, WrappedEngine,
};

/// What an engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Commits with guards are not checked.
    NoGuards,
    /// Only the first guard of each is checked.
    OnlyTheFirstGuard,
    /// Guards on ranges are not checked.
    NoRangeGuards,
    /// Reads at a snapshot see the present.
    ReadsSeeNow,
}

pub(crate) struct Faulty {
    pub(crate) inner: Arc<dyn Engine>,
    pub(crate) fault: Fault,
}

impl Faulty {
    pub(crate) fn new(fault: Fault) -> Arc<Self> {
        Self::over(Arc::new(ModelEngine::new(UpsertRegistry::default())), fault)
    }

    pub(crate) fn over(inner: Arc<dyn Engine>, fault: Fault) -> Arc<Self> {
        Arc::new(Self { inner, fault })
    }

    fn at<'s>(&self, at: Option<&'s Snapshot>) -> Option<&'s Snapshot> {
        at.filter(|_| self.fault != Fault::ReadsSeeNow)
    }

    fn changed(&self, guards: &Guards) -> Guards {
        let Some(first) = guards.iter().next() else {
            return guards.clone();
        };
        let mut out = Guards::since(first.since);
        let count = match self.fault {
            Fault::NoGuards => 0,
            Fault::OnlyTheFirstGuard => 1,
            _ => usize::MAX,
        };
        for guard in guards.iter().take(count) {
            out.move_to(guard.since);
            match guard.on {
                Guarded::Key(key) => out.key(guard.tree, key),
                Guarded::Range(_) if self.fault == Fault::NoRangeGuards => {}
                Guarded::Range(range) => out.range(guard.tree, range),
                Guarded::Written(branch) => out.written(guard.tree, branch),
            }
        }
        out
    }
}

impl WrappedEngine for Faulty {
    fn inner(&self) -> &dyn Engine {
        self.inner.as_ref()
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let guards = self.changed(guards);
        self.inner.absorb(branches, batch, &guards, options)
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        self.inner.changed_keys(&self.changed(guards), count_max)
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let guards = self.changed(guards);
        self.inner.commit_guarded(batch, &guards, options)
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        self.inner.get(tree, key, self.at(at))
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.inner.scan(tree, range, direction, self.at(at))
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.inner.scan_whole(tree, range, self.at(at))
    }
}
