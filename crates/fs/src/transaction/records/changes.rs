//! What a transaction has written to records, and what becomes of it at the commit.

mod judged;
mod reads;

pub(in super::super) use judged::open_records;

use super::{RecordKey, RecordRules, RecordSides, TransactionRecords, tree_in};
use crate::FsResult;
use crate::transaction::conflict::Conflict;
use crate::transaction::own::each_page_of_keys;
use bytes::Bytes;
use std::collections::BTreeSet;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_kv::{Batch, DeletedRange, Engine, Guards, KeyRange, Snapshot};

/// Keys that the engine is asked for at a time.
const PAGE: usize = 4096;
/// Part of the largest batch that guards on single keys may take, in bytes.
const GUARDS_SHARE: u64 = 4;
const _: () = assert!(GUARDS_SHARE > 1, "a batch has more than guards");

/// A branch of a tree of records, with what was written to it.
struct BranchRecord {
    own: TreeId,
    /// The tree of records, by whose number users know it.
    tree: TreeId,
    /// That tree, or the branch that the outer transaction has of it.
    parent: TreeId,
    name: String,
    is_parent_alive: bool,
    moment: Snapshot,
    /// In order.
    keys: Vec<Vec<u8>>,
    /// Deleted ranges.
    ranges: Vec<DeletedRange>,
    /// A later branch of the same parent that it is compared with, instead of the parent as it is
    /// now, and the moment at which that one begins.
    onto: Option<(TreeId, Snapshot)>,
}

/// The records that a transaction has written. No writer of it is under way.
pub(in super::super) struct BranchRecords {
    engine: Arc<dyn Engine>,
    trees: Vec<BranchRecord>,
}

/// Records that mainline has written: index of the tree, and key.
pub(in super::super) type ChangedRecords = BTreeSet<(usize, Vec<u8>)>;

/// What a commit does with records that need more than to be absorbed.
#[derive(Default)]
pub(in super::super) struct RecordPlan {
    joined: Vec<(TreeId, Vec<u8>, Option<Bytes>)>,
    conflicts: BTreeSet<RecordKey>,
}

impl BranchRecords {
    /// Reads what was written.
    pub(in super::super) fn read(
        engine: &Arc<dyn Engine>,
        number: Ino,
        records: &TransactionRecords,
    ) -> FsResult<Self> {
        let infos = engine.trees();
        let mut trees = Vec::new();
        for info in &infos {
            if let Some(tree) = tree_in(number, info) {
                let parent = info.branch.map_or(tree, |point| point.parent);
                trees.push(BranchRecord {
                    own: info.id,
                    tree,
                    parent,
                    name: records.name_of(tree),
                    is_parent_alive: infos.iter().any(|info| info.id == parent),
                    moment: engine.branch_moment(info.id)?,
                    keys: keys_of(&**engine, info.id)?,
                    ranges: engine.branch_deleted_ranges(info.id)?,
                    onto: None,
                });
            }
        }
        debug_assert!(
            trees.iter().all(|tree| tree.own != tree.tree),
            "a branch is another tree"
        );
        debug_assert!(
            trees.iter().all(|tree| tree.own != tree.parent),
            "a branch is another tree"
        );
        Ok(Self {
            engine: Arc::clone(engine),
            trees,
        })
    }

    /// The branches that become part of mainline.
    pub(in super::super) fn absorbed(&self) -> impl Iterator<Item = TreeId> {
        let alive = self.trees.iter().filter(|tree| tree.is_parent_alive);
        alive.map(|tree| tree.own)
    }

    /// The trees that are of no more use after the commit.
    pub(in super::super) fn dropped(&self) -> Vec<TreeId> {
        let dead = self.trees.iter().filter(|tree| !tree.is_parent_alive);
        let dropped: Vec<TreeId> = dead.map(|tree| tree.own).collect();
        debug_assert_eq!(
            dropped.len() + self.absorbed().count(),
            self.trees.len(),
            "each is absorbed or dropped"
        );
        dropped
    }

    fn written(&self) -> impl Iterator<Item = (usize, &BranchRecord)> {
        let trees = self.trees.iter().enumerate();
        trees.filter(|(_, tree)| !tree.keys.is_empty() || !tree.ranges.is_empty())
    }

    /// The names of trees that were written, with the keys of the records.
    pub(in super::super) fn names(&self) -> Vec<(&str, &[Vec<u8>])> {
        let written = self.written();
        written
            .map(|(_, tree)| (&*tree.name, &*tree.keys))
            .collect()
    }

    /// Records that mainline has written since a moment, or since the transaction began, among
    /// those that the transaction has written or that lie in a range that it has deleted.
    pub(in super::super) fn changed(&self, since: Option<&Snapshot>) -> FsResult<ChangedRecords> {
        let mut changed = ChangedRecords::new();
        for (index, tree) in self.written().filter(|(_, tree)| tree.is_parent_alive) {
            let since = since.unwrap_or(&tree.moment);
            for page in tree.keys.chunks(PAGE) {
                let mut guards = Guards::since(since);
                page.iter().for_each(|key| guards.key(tree.parent, key));
                let found = self.engine.changed_keys(&guards, page.len())?;
                debug_assert!(found.len() <= page.len(), "no more than was asked for");
                debug_assert!(
                    found.iter().all(|found| found.tree == tree.parent),
                    "keys of the tree"
                );
                changed.extend(found.into_iter().map(|found| (index, found.key)));
            }
            for ranges in tree.ranges.chunks(PAGE) {
                let mut guards = Guards::since(since);
                for (start, end) in ranges {
                    guards.range(tree.parent, KeyRange::new(start, end));
                }
                let found = self.engine.changed_keys(&guards, PAGE)?;
                debug_assert!(found.len() <= PAGE, "no more than was asked for");
                debug_assert!(
                    found.iter().all(|found| found.tree == tree.parent),
                    "keys of the tree"
                );
                changed.extend(found.into_iter().map(|found| (index, found.key)));
            }
        }
        Ok(changed)
    }

    /// Decides on every record that mainline has written too, and on those that are always joined.
    pub(in super::super) fn plan(
        &self,
        changed: &ChangedRecords,
        rules: &dyn RecordRules,
    ) -> FsResult<RecordPlan> {
        let mut plan = RecordPlan::default();
        debug_assert!(
            changed.iter().all(|(index, _)| *index < self.trees.len()),
            "keys of these trees"
        );
        for (index, tree) in self.written() {
            if !tree.is_parent_alive {
                let keys = tree.keys.iter();
                plan.conflicts.extend(keys.map(|key| tree.key(key)));
                continue;
            }
            for key in &tree.keys {
                if rules.is_joined(&tree.name, key) {
                    let sides = self.sides(tree, key)?;
                    let joined = rules.join(&tree.name, key, &sides)?;
                    debug_assert_ne!(tree.parent, tree.own, "the tree that absorbs");
                    plan.joined.push((tree.parent, key.clone(), joined));
                }
            }
            let of_tree = changed.range((index, Vec::new())..(index + 1, Vec::new()));
            let theirs = of_tree.filter(|(_, key)| !rules.is_joined(&tree.name, key));
            plan.conflicts.extend(theirs.map(|(_, key)| tree.key(key)));
        }
        Ok(plan)
    }

    fn sides(&self, tree: &BranchRecord, key: &[u8]) -> FsResult<RecordSides> {
        debug_assert_ne!(tree.own, tree.parent, "a branch is another tree");
        debug_assert!(tree.is_parent_alive, "a tree that is gone has no sides");
        Ok(RecordSides {
            base: self.engine.get(tree.parent, key, Some(&tree.moment))?,
            ours: self.engine.get(tree.own, key, None)?,
            theirs: self.engine.get(tree.parent, key, None)?,
        })
    }

    /// Adds guards: nothing that the plan was made from changes until the commit.
    pub(in super::super) fn guard(&self, guards: &mut Guards) {
        let guards_bytes_max = self.engine.limits().batch_bytes_max / GUARDS_SHARE;
        for (_, tree) in self.written().filter(|(_, tree)| tree.is_parent_alive) {
            let keys_bytes: usize = tree.keys.iter().map(|key| key.len() + 64).sum();
            let ranges = tree.ranges.iter();
            let ranges_bytes: usize = ranges
                .map(|(start, end)| start.len() + end.len() + 64)
                .sum();
            if (keys_bytes + ranges_bytes) as u64 > guards_bytes_max {
                // Other writers of the tree have the commit tried again.
                guards.range(tree.parent, KeyRange::all());
                continue;
            }
            debug_assert!(tree.keys.is_sorted(), "they are in order");
            tree.keys
                .iter()
                .for_each(|key| guards.key(tree.parent, key));
            for (start, end) in &tree.ranges {
                guards.range(tree.parent, KeyRange::new(start, end));
            }
        }
    }
}

impl BranchRecord {
    fn key(&self, key: &[u8]) -> RecordKey {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        RecordKey {
            tree: self.name.clone(),
            key: key.to_vec(),
        }
    }
}

impl RecordPlan {
    /// The conflicts in the words of users, by tree and key.
    pub(in super::super) fn conflicts(&self, rules: &dyn RecordRules) -> Vec<Conflict> {
        let shown = self.conflicts.iter();
        let shown = shown.filter_map(|record| rules.shown(&record.tree, &record.key));
        let mut records: BTreeSet<RecordKey> =
            shown.map(|(tree, key)| RecordKey { tree, key }).collect();
        if records.is_empty() {
            records = self.conflicts.clone();
        }
        debug_assert_eq!(
            records.is_empty(),
            self.conflicts.is_empty(),
            "a conflict is listed"
        );
        records.into_iter().map(Conflict::of_record).collect()
    }

    /// Puts the joined records, after what is absorbed.
    pub(in super::super) fn put_joined(&self, batch: &mut Batch<'_>) {
        for (tree, key, value) in &self.joined {
            debug_assert!(!key.is_empty(), "no row has an empty key");
            match value {
                Some(value) => batch.put(*tree, key, value),
                None => batch.delete(*tree, key),
            }
        }
    }
}

fn keys_of(engine: &dyn Engine, branch: TreeId) -> FsResult<Vec<Vec<u8>>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    each_page_of_keys(engine, branch, PAGE, |page| keys.extend(page))?;
    debug_assert!(keys.is_sorted(), "they come in order");
    debug_assert!(
        keys.iter().all(|key| !key.is_empty()),
        "no row has an empty key"
    );
    Ok(keys)
}
