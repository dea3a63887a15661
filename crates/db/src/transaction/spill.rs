//! Writes of a transaction that memory does not hold any more: branch trees of its own.
//!
//! ```text
//! memory     newest writes            at most `spill_bytes`
//! branch     writes that were moved   one tree for each tree that was written to
//! parent     the tree, at the moment  where the branch begins
//! ```
//!
//! A read looks at memory, then at the branch, which reads its parent. No other program part writes
//! to the branches. They are absorbed by the commit. A transaction that ends otherwise drops them,
//! and those of a process that ended are dropped when the store is opened ([`drop_abandoned`]).
//!
//! Invariant: every branch begins at the moment that its entry holds.

use super::settle::BranchTree;
use super::writes::Writes;
use crate::DbError;
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_format::db_names::{is_spill_tree_name, spill_tree_name};
use stitch_kv::{Batch, CommitOptions, Engine, KvError, NewBranch, Snapshot};

/// Number of the last transaction of this process that has trees of its own.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The branch trees of a transaction. Dropping it drops them.
pub(super) struct Spill {
    engine: Arc<dyn Engine>,
    /// By their parents.
    trees: BTreeMap<TreeId, BranchTree>,
    /// What was moved to them, as batches count it.
    len_bytes: u64,
}

impl Spill {
    pub(super) const fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            trees: BTreeMap::new(),
            len_bytes: 0,
        }
    }

    /// Reports whether an engine has what it takes.
    pub(super) fn is_supported(engine: &dyn Engine) -> bool {
        let has = engine.capabilities();
        has.branches && has.absorb
    }

    /// True if nothing was moved.
    pub(super) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// Bytes that were moved, as batches count them.
    pub(super) const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The branch that has the writes to a tree, if some were moved.
    pub(super) fn tree(&self, parent: TreeId) -> Option<&BranchTree> {
        self.trees.get(&parent)
    }

    /// All branches.
    pub(super) fn branches(&self) -> Vec<BranchTree> {
        self.trees.values().cloned().collect()
    }

    /// Moves all of `writes` to branches. New ones begin at `at`. After an error the writes are
    /// where they were.
    pub(super) fn take(&mut self, writes: &mut Writes, at: &Snapshot) -> Result<(), DbError> {
        self.make_branches(writes, at)?;
        let mut batch = Batch::new();
        writes.fill(&mut batch, |tree| self.trees[&tree].tree);
        self.engine.commit(&batch, CommitOptions::default())?;
        self.len_bytes += batch.len_bytes() as u64;
        drop(batch);
        writes.forget_all();
        debug_assert!(writes.is_empty(), "all of it was moved");
        Ok(())
    }

    /// Makes the branches that are missing, in one step.
    fn make_branches(&mut self, writes: &Writes, at: &Snapshot) -> Result<(), DbError> {
        let parents = writes.trees().filter(|tree| !self.trees.contains_key(tree));
        let parents: Vec<TreeId> = parents.collect();
        if parents.is_empty() {
            return Ok(());
        }
        let made = self.make_numbered(&parents, at)?;
        debug_assert_eq!(made.len(), parents.len(), "one branch for each tree");
        for (parent, tree) in parents.into_iter().zip(made) {
            let since = at.clone();
            let branch = BranchTree {
                tree,
                parent,
                since,
            };
            self.trees.insert(parent, branch);
        }
        Ok(())
    }

    /// Makes branches under a number of which no names are in use.
    fn make_numbered(&self, parents: &[TreeId], at: &Snapshot) -> Result<Vec<TreeId>, KvError> {
        // Each tree of the store takes one name at most.
        let mut attempts = self.engine.trees().len() + 1;
        loop {
            let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
            let name = |parent: &TreeId| spill_tree_name(number, *parent);
            let names: Vec<String> = parents.iter().map(name).collect();
            let new = parents.iter().zip(&names);
            let new: Vec<_> = new.map(|(of, name)| NewBranch::new(*of, name)).collect();
            match self.engine.branch_trees(&new, Some(at)) {
                Err(KvError::TreeExists(_)) if attempts > 0 => attempts -= 1,
                done => return done,
            }
        }
    }

    /// The branches were absorbed.
    pub(super) fn forget(&mut self) {
        self.trees.clear();
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let trees: Vec<TreeId> = self.trees.values().map(|branch| branch.tree).collect();
        if trees.is_empty() {
            return;
        }
        // They stay if the store takes no more writes. The next open drops them then.
        let _ = self.engine.drop_trees(&trees);
    }
}

/// Drops the branch trees of transactions that a crash ended. For whoever has opened the engine of
/// a store, before transactions begin on it. Returns their number.
///
/// # Errors
/// [`DbError::Kv`] as of [`Engine::drop_trees`]: they stay, and only take space.
///
/// # Durability
/// They are gone from the medium when this returns.
pub fn drop_abandoned(engine: &dyn Engine) -> Result<usize, DbError> {
    let trees = engine.trees().into_iter().filter(|info| {
        let of = info.branch.map(|point| point.parent);
        of.is_some_and(|parent| is_spill_tree_name(&info.name, parent))
    });
    let trees: Vec<TreeId> = trees.map(|info| info.id).collect();
    if !trees.is_empty() {
        engine.drop_trees(&trees)?;
    }
    Ok(trees.len())
}
