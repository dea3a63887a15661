//! A moment of a store as an engine of its own.

use crate::{
    Batch, Capabilities, CommitOptions, Counters, Direction, Engine, Holder, KeyRange, KeyRanges,
    KvError, Limits, ReadHint, Scan, Snapshot, SpaceShare, SpaceUsage, TreeInfo, TreeOptions,
    Violation,
};
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};

/// An [`Engine`] that shows the trees of another one as they were at a [`Snapshot`] of it, and
/// refuses every write with [`KvError::ReadOnly`]. It holds the snapshot for as long as it lives.
///
/// What is written against the contract reads the past unchanged through it.
pub struct SnapshotEngine {
    engine: Arc<dyn Engine>,
    at: Snapshot,
    /// Holds of the moment, each of one tree; empty if `at` holds all trees.
    by_tree: Vec<(TreeId, Snapshot)>,
}

impl std::fmt::Debug for SnapshotEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotEngine")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl SnapshotEngine {
    /// Returns `engine` at the moment `at`, which is a snapshot of it.
    #[must_use]
    pub const fn new(engine: Arc<dyn Engine>, at: Snapshot) -> Self {
        let by_tree = Vec::new();
        Self {
            engine,
            at,
            by_tree,
        }
    }

    /// Returns the given trees of `engine` at one moment, for which each has a snapshot that holds
    /// it of that tree, as [`Engine::branch_moment`] returns it. Shows no other trees.
    ///
    /// # Panics
    /// If there is no tree.
    #[must_use]
    pub fn of_trees(engine: Arc<dyn Engine>, by_tree: Vec<(TreeId, Snapshot)>) -> Self {
        let at = by_tree.first().expect("there is a tree").1.clone();
        debug_assert!(
            by_tree.iter().all(|(_, of)| of.seqno() == at.seqno()),
            "one moment"
        );
        Self {
            engine,
            at,
            by_tree,
        }
    }

    /// Returns the moment of a read of a tree: that of `at`, or its own.
    fn moment<'a>(&'a self, tree: TreeId, at: Option<&'a Snapshot>) -> &'a Snapshot {
        let moment = at.unwrap_or(&self.at);
        debug_assert!(
            moment.seqno() <= self.at.seqno(),
            "no read is of a later moment"
        );
        let of_tree = self.by_tree.iter().find(|(id, _)| *id == tree);
        match of_tree.filter(|(_, of)| of.seqno() == moment.seqno()) {
            Some((_, of)) => of,
            None => moment,
        }
    }
}

impl Engine for SnapshotEngine {
    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            space_shares: self.engine.capabilities().space_shares,
            ..Capabilities::default()
        }
    }

    /// Returns the trees of the moment, those included that were dropped since.
    fn trees(&self) -> Vec<TreeInfo> {
        if self.by_tree.is_empty() {
            return self.engine.trees_at(&self.at);
        }
        let trees = self.by_tree.iter();
        let found = trees.filter_map(|(id, of)| {
            let mut infos = self.engine.trees_at(of).into_iter();
            infos.find(|info| info.id == *id)
        });
        found.collect()
    }

    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo> {
        if at.seqno() == self.at.seqno() {
            return self.trees();
        }
        self.engine.trees_at(at)
    }

    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges> {
        self.engine.held_ranges(tree, at)
    }

    fn create_tree(&self, _: &str, _: &TreeOptions) -> Result<TreeId, KvError> {
        Err(KvError::ReadOnly)
    }

    fn drop_tree(&self, _: TreeId) -> Result<(), KvError> {
        Err(KvError::ReadOnly)
    }

    fn alter_tree(&self, _: TreeId, _: &TreeOptions) -> Result<(), KvError> {
        Err(KvError::ReadOnly)
    }

    fn commit(&self, _: &Batch, _: CommitOptions) -> Result<Seqno, KvError> {
        Err(KvError::ReadOnly)
    }

    /// Does nothing: what a snapshot shows is never written to.
    fn sync(&self) -> Result<(), KvError> {
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        self.at.clone()
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<bytes::Bytes>, KvError> {
        self.engine.get(tree, key, Some(self.moment(tree, at)))
    }

    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<bytes::Bytes>>, KvError> {
        self.engine
            .get_many(tree, keys, Some(self.moment(tree, at)))
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.engine
            .scan(tree, range, direction, Some(self.moment(tree, at)))
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.engine
            .scan_whole(tree, range, Some(self.moment(tree, at)))
    }

    fn read_ahead(&self, tree: TreeId, hint: &ReadHint<'_>) -> bool {
        self.engine.read_ahead(tree, hint)
    }

    fn counters(&self) -> Counters {
        self.engine.counters()
    }

    fn space(&self) -> SpaceUsage {
        self.engine.space()
    }

    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        self.engine.exclusive_space(holders, watch)
    }

    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        self.engine
            .range_space(tree, ranges, Some(self.moment(tree, at)))
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        if bytes == 0 {
            return Ok(());
        }
        Err(KvError::ReadOnly)
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        self.engine.check(progress)
    }

    /// Does nothing: there is no background work.
    fn quiesce(&self) -> Result<(), KvError> {
        Ok(())
    }

    /// Does nothing: the engine below stays open.
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelEngine, UpsertRegistry};

    fn put(engine: &dyn Engine, tree: TreeId, key: &[u8], value: &[u8]) -> Result<Seqno, KvError> {
        let mut batch = Batch::new();
        batch.put(tree, key, value);
        engine.commit(&batch, CommitOptions::default())
    }

    fn keys(engine: &dyn Engine, tree: TreeId, direction: Direction) -> Vec<Vec<u8>> {
        let mut scan = engine.scan(tree, KeyRange::all(), direction, None).unwrap();
        let mut keys = Vec::new();
        while let Some((key, _)) = scan.next().unwrap() {
            keys.push(key.to_vec());
        }
        keys
    }

    /// A tree with the keys a and b, at a moment after which both changed and c came.
    fn past() -> (Arc<dyn Engine>, SnapshotEngine, TreeId) {
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
        put(&*engine, tree, b"a", b"1").unwrap();
        put(&*engine, tree, b"b", b"1").unwrap();
        let at = engine.snapshot();
        put(&*engine, tree, b"a", b"2").unwrap();
        put(&*engine, tree, b"c", b"2").unwrap();
        let mut batch = Batch::new();
        batch.delete(tree, b"b");
        engine.commit(&batch, CommitOptions::default()).unwrap();
        let past = SnapshotEngine::new(Arc::clone(&engine), at);
        (engine, past, tree)
    }

    #[test]
    fn reads_are_of_its_moment() {
        let (engine, past, tree) = past();
        assert_eq!(
            past.get(tree, b"a", None).unwrap().as_deref(),
            Some(&b"1"[..])
        );
        assert_eq!(past.get(tree, b"c", None).unwrap(), None);
        assert_eq!(keys(&past, tree, Direction::Forward), [b"a", b"b"]);
        assert_eq!(keys(&past, tree, Direction::Backward), [b"b", b"a"]);
        let own = past.snapshot();
        assert!(past.get(tree, b"b", Some(&own)).unwrap().is_some());
        let mut whole = past.scan_whole(tree, KeyRange::all(), Some(&own)).unwrap();
        assert_eq!(whole.next().unwrap(), Some((&b"a"[..], &b"1"[..])));
        assert_eq!(keys(&*engine, tree, Direction::Forward), [b"a", b"c"]);
    }

    #[test]
    fn writes_are_refused() {
        let (engine, past, tree) = past();
        let refused = |result: Result<(), KvError>| matches!(result, Err(KvError::ReadOnly));
        assert!(refused(put(&past, tree, b"d", b"3").map(drop)));
        assert!(refused(
            past.create_tree("u", &TreeOptions::default()).map(drop)
        ));
        assert!(refused(past.drop_tree(tree)));
        assert!(refused(past.alter_tree(tree, &TreeOptions::default())));
        assert!(refused(past.set_aside(1)));
        assert!(
            past.create_pin("p", b"").is_err(),
            "a pin is of the present"
        );
        assert_eq!(engine.get(tree, b"d", None).unwrap(), None);
        assert!(past.sync().is_ok() && past.quiesce().is_ok() && past.close().is_ok());
        assert!(
            put(&*engine, tree, b"d", b"3").is_ok(),
            "the engine below is open"
        );
    }
}
