//! The records of a transaction as an engine.

use super::{RecordGate, tree_in};
use crate::FsResult;
use crate::transaction::ReadSet;
use bytes::Bytes;
use std::collections::BTreeMap;
use stitch_base::sync::{Arc, RwLockReadGuard};
use stitch_base::{Ino, Seqno, TreeId};
use stitch_format::fs_transaction::TransactionLife;
use stitch_kv::{
    Batch, Capabilities, ChangedKey, CommitOptions, Counters, Direction, Engine, Guarded, Guards,
    KeyRange, KvError, Limits, ReadHint, Scan, Snapshot, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation,
};

/// An [`Engine`] that shows the trees of records as an open transaction has them: under their names
/// and numbers, with what was written in it. What is written through it is in the store when the
/// transaction is committed, together with its files.
///
/// Trees cannot be made or removed in it, and have no pins and branches. Snapshots are of the
/// store's moments: reads of the transaction at one see what was written in it up to then. A run
/// syncs nothing: its commit does.
pub struct TransactionRecords {
    engine: Arc<dyn Engine>,
    number: Ino,
    life: TransactionLife,
    /// What a serializable transaction has read.
    reads: Option<Arc<ReadSet>>,
    /// By the number of the tree of records.
    trees: BTreeMap<TreeId, RecordTree>,
    pub(in super::super) gate: RecordGate,
}

/// A branch of a tree of records.
#[derive(Clone, Debug)]
struct RecordTree {
    own: TreeId,
    /// Of the tree of records.
    name: String,
    options: TreeOptions,
}

impl std::fmt::Debug for TransactionRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionRecords")
            .field("number", &self.number)
            .field("trees", &self.trees)
            .finish_non_exhaustive()
    }
}

impl TransactionRecords {
    /// Opens the records of an open transaction.
    pub(in super::super) fn open(
        engine: &Arc<dyn Engine>,
        number: Ino,
        life: TransactionLife,
        reads: Option<Arc<ReadSet>>,
    ) -> FsResult<Self> {
        debug_assert!(number.0 > 0, "0 is no number");
        let infos = engine.trees();
        let name_of = |id: TreeId| infos.iter().find(|info| info.id == id);
        let mut trees = BTreeMap::new();
        for info in &infos {
            // One whose parent was dropped meanwhile is seen no more.
            if let Some(parent) = tree_in(number, info).and_then(name_of) {
                let tree = RecordTree {
                    own: info.id,
                    name: parent.name.clone(),
                    options: parent.options.clone(),
                };
                trees.insert(parent.id, tree);
            }
        }
        debug_assert!(
            trees.iter().all(|(tree, branch)| *tree != branch.own),
            "a branch is another tree"
        );
        Ok(Self {
            engine: Arc::clone(engine),
            number,
            life,
            reads,
            trees,
            gate: RecordGate::default(),
        })
    }

    /// Returns the branch that a tree of records has in the transaction.
    #[must_use]
    pub fn branch_of(&self, tree: TreeId) -> Option<TreeId> {
        let own = self.trees.get(&tree).map(|found| found.own);
        debug_assert_ne!(own, Some(tree), "a branch is another tree");
        own
    }

    /// The trees of records, each with its branch in the transaction.
    pub(in super::super) fn branches(&self) -> impl Iterator<Item = (TreeId, TreeId)> {
        self.trees.iter().map(|(tree, found)| (*tree, found.own))
    }

    /// The name of a tree of records, also of one that was dropped meanwhile.
    pub(super) fn name_of(&self, tree: TreeId) -> String {
        let found = self.trees.get(&tree);
        found.map_or_else(|| format!("tree {tree}"), |found| found.name.clone())
    }

    /// Holds a read of a serializable transaction back while what it has read is checked: one that
    /// comes later would not be known to the rebased transaction.
    fn enter_read(&self) -> Result<Option<RwLockReadGuard<'_, bool>>, KvError> {
        let is_noted = self.reads.is_some();
        is_noted.then(|| self.gate.enter()).transpose()
    }

    fn note_scan(&self, tree: TreeId, range: KeyRange<'_>) {
        if let Some(reads) = &self.reads {
            reads.note_records(tree, range);
        }
    }

    fn own(&self, tree: TreeId) -> Result<TreeId, KvError> {
        self.branch_of(tree).ok_or(KvError::NoTree(tree))
    }

    fn parent_of(&self, own: TreeId) -> TreeId {
        let found = self.trees.iter().find(|(_, tree)| tree.own == own);
        debug_assert!(
            found.is_none_or(|(parent, _)| *parent != own),
            "a branch is another tree"
        );
        found.map_or(own, |(parent, _)| *parent)
    }

    /// An error in the words of who uses this engine.
    fn told(&self, error: KvError) -> KvError {
        match error {
            KvError::Conflict { tree, key } => KvError::Conflict {
                tree: self.parent_of(tree),
                key,
            },
            KvError::NoTree(tree) => KvError::NoTree(self.parent_of(tree)),
            other => other,
        }
    }

    /// The same batch for the branches.
    fn translate(&self, batch: &Batch<'_>) -> Result<Batch<'static>, KvError> {
        let mut own = Batch::new();
        own.reserve(batch.len_bytes());
        own.extend_hinted(batch, |tree| self.own(tree))?;
        debug_assert_eq!(own.count(), batch.count(), "each change is one of a branch");
        debug_assert_eq!(own.len_bytes(), batch.len_bytes(), "keys and values stay");
        Ok(own)
    }

    fn translate_guards(&self, guards: &Guards) -> Result<Option<Guards>, KvError> {
        let mut own: Option<Guards> = None;
        for guard in guards.iter() {
            let list = own.get_or_insert_with(|| Guards::since(guard.since));
            list.move_to(guard.since);
            let tree = self.own(guard.tree)?;
            match guard.on {
                Guarded::Key(key) => list.key(tree, key),
                Guarded::Range(range) => list.range(tree, range),
                Guarded::Written(branch) => list.written(tree, self.own(branch)?),
            }
        }
        let count = own.as_ref().map_or(0, Guards::count);
        debug_assert_eq!(count, guards.count(), "each guard has one in the branches");
        Ok(own)
    }

    fn options(&self, options: CommitOptions) -> CommitOptions {
        let sync = options.sync && self.life == TransactionLife::Named;
        debug_assert!(
            options.sync || !sync,
            "no more is synced than was asked for"
        );
        CommitOptions { sync, ..options }
    }
}

const TREES_STAY: KvError = KvError::Unsupported("new or removed trees in a transaction of files");

impl Engine for TransactionRecords {
    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            guards: self.engine.capabilities().guards,
            ..Capabilities::default()
        }
    }

    fn trees(&self) -> Vec<TreeInfo> {
        let trees = self.trees.iter();
        let info = trees.map(|(id, tree)| TreeInfo {
            id: *id,
            name: tree.name.clone(),
            options: tree.options.clone(),
            branch: None,
            branch_ranges: None,
        });
        info.collect()
    }

    fn create_tree(&self, _: &str, _: &TreeOptions) -> Result<TreeId, KvError> {
        Err(TREES_STAY)
    }

    fn drop_tree(&self, _: TreeId) -> Result<(), KvError> {
        Err(TREES_STAY)
    }

    fn alter_tree(&self, _: TreeId, _: &TreeOptions) -> Result<(), KvError> {
        Err(TREES_STAY)
    }

    fn commit(&self, batch: &Batch<'_>, options: CommitOptions) -> Result<Seqno, KvError> {
        let _entered = self.gate.enter()?;
        let own = self.translate(batch)?;
        let done = self.engine.commit(&own, self.options(options));
        done.map_err(|error| self.told(error))
    }

    fn commit_guarded(
        &self,
        batch: &Batch<'_>,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let Some(guards) = self.translate_guards(guards)? else {
            return self.commit(batch, options);
        };
        let _entered = self.gate.enter()?;
        debug_assert!(!guards.is_empty(), "without any it is a plain commit");
        let own = self.translate(batch)?;
        let done = self
            .engine
            .commit_guarded(&own, &guards, self.options(options));
        done.map_err(|error| self.told(error))
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        let Some(guards) = self.translate_guards(guards)? else {
            return Ok(Vec::new());
        };
        let mut changed = self.engine.changed_keys(&guards, count_max)?;
        for found in &mut changed {
            found.tree = self.parent_of(found.tree);
        }
        debug_assert!(changed.len() <= count_max, "no more than was asked for");
        debug_assert!(
            changed
                .iter()
                .all(|found| self.trees.contains_key(&found.tree)),
            "keys of trees of records"
        );
        Ok(changed)
    }

    fn upserts(&self) -> &UpsertRegistry {
        self.engine.upserts()
    }

    /// Does nothing in a run: its commit makes all of it durable.
    fn sync(&self) -> Result<(), KvError> {
        match self.life {
            TransactionLife::Run => Ok(()),
            TransactionLife::Named => self.engine.sync(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        let _entered = self.enter_read()?;
        if let Some(reads) = &self.reads {
            reads.note_record(tree, key);
        }
        let found = self.engine.get(self.own(tree)?, key, at);
        found.map_err(|error| self.told(error))
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let _entered = self.enter_read()?;
        self.note_scan(tree, range);
        let scan = self.engine.scan(self.own(tree)?, range, direction, at);
        scan.map_err(|error| self.told(error))
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let _entered = self.enter_read()?;
        self.note_scan(tree, range);
        let scan = self.engine.scan_whole(self.own(tree)?, range, at);
        scan.map_err(|error| self.told(error))
    }

    fn read_ahead(&self, tree: TreeId, hint: &ReadHint<'_>) -> bool {
        self.own(tree)
            .is_ok_and(|own| self.engine.read_ahead(own, hint))
    }

    fn counters(&self) -> Counters {
        self.engine.counters()
    }

    fn space(&self) -> SpaceUsage {
        self.engine.space()
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        match bytes {
            0 => Ok(()),
            _ => Err(KvError::Unsupported("space set aside by a transaction")),
        }
    }

    /// The store is checked as a whole, not a transaction.
    fn check(&self, _: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        Err(KvError::Unsupported("a check of a transaction alone"))
    }

    fn quiesce(&self) -> Result<(), KvError> {
        self.engine.quiesce()
    }

    /// Does nothing: the store stays open.
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}
