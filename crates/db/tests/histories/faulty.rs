//! The model engine with a fault, to see that the checkers find it.

use bytes::Bytes;
use stitch_base::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{
    Batch, ChangedKey, CommitOptions, Counters, Direction, Engine, Guarded, Guards, KeyRange,
    KvError, Limits, ModelEngine, Scan, Snapshot, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation,
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
    pub(crate) inner: ModelEngine,
    pub(crate) fault: Fault,
}

impl Faulty {
    pub(crate) fn new(fault: Fault) -> Arc<Self> {
        let inner = ModelEngine::new(UpsertRegistry::default());
        Arc::new(Self { inner, fault })
    }

    fn at<'s>(&self, at: Option<&'s Snapshot>) -> Option<&'s Snapshot> {
        at.filter(|_| self.fault != Fault::ReadsSeeNow)
    }

    fn changed(&self, guards: &Guards) -> Guards {
        let first = guards.iter().next().expect("there are guards");
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
            }
        }
        out
    }
}

impl Engine for Faulty {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn trees(&self) -> Vec<TreeInfo> {
        self.inner.trees()
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        self.inner.create_tree(name, options)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        self.inner.drop_tree(tree)
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.inner.alter_tree(tree, options)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        self.inner.commit(batch, options)
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

    fn changed_keys(&self, guards: &Guards, count: usize) -> Result<Vec<ChangedKey>, KvError> {
        self.inner.changed_keys(guards, count)
    }

    fn sync(&self) -> Result<(), KvError> {
        self.inner.sync()
    }

    fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
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

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn space(&self) -> SpaceUsage {
        self.inner.space()
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        self.inner.set_aside(bytes)
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        self.inner.check(progress)
    }

    fn settle(&self) -> Result<(), KvError> {
        self.inner.settle()
    }

    fn close(&self) -> Result<(), KvError> {
        self.inner.close()
    }
}
