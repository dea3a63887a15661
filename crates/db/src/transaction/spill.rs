//! Writes of a transaction that memory does not hold any more: branch trees of its own.
//!
//! ```text
//! memory     newest writes            at most `spill_bytes`
//! branch     writes that were moved   one tree for each tree that was written to
//! parent     the tree, at the moment  where the branch begins
//! ```
//!
//! A read looks at memory, then at the branch, which reads its parent. No other program part uses
//! the branches. They are temporary: the engine forgets them with the process. They are absorbed by
//! the commit. A transaction that ends otherwise drops them. Those of older programs, which a crash
//! left, are dropped when the store is opened ([`drop_abandoned`]).
//!
//! Branches lie in **layers**: what is moved after a savepoint, and may be taken back alone, goes
//! to branches of branches ([`super::frozen`]).
//!
//! ```text
//! layer 1    branch b1 of branch a0   what was moved after a savepoint
//! layer 0    branch a0 of tree a      what was moved before it
//! ```
//!
//! Invariants: every branch of a tree begins, for readers of the tree itself, at the moment that
//! its entry holds; a branch that has a branch gets no more writes.

use super::settle::BranchTree;
use super::writes::Writes;
use crate::DbError;
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_format::db_names::{is_spill_tree_name, spill_tree_name};
use stitch_kv::{Batch, CommitOptions, Engine, Guards, KvError, NewBranch, Snapshot, SpaceClass};

/// Number of the last transaction of this process that has trees of its own.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The branch trees of a transaction. Dropping it drops them.
pub(super) struct Spill {
    engine: Arc<dyn Engine>,
    /// The lowest first.
    layers: Vec<Layer>,
    /// Branches that were taken back and could not be dropped.
    undropped: Vec<TreeId>,
}

/// Branches that were made between two savepoints.
#[derive(Default)]
struct Layer {
    /// By the trees of the store that they have writes to.
    trees: BTreeMap<TreeId, BranchTree>,
    /// What was moved to them, as batches count it.
    len_bytes: u64,
}

impl Spill {
    pub(super) const fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            layers: Vec::new(),
            undropped: Vec::new(),
        }
    }

    /// Reports whether an engine has what it takes.
    pub(super) fn is_supported(engine: &dyn Engine) -> bool {
        let has = engine.capabilities();
        has.branches && has.absorb
    }

    /// True if nothing was moved.
    pub(super) fn is_empty(&self) -> bool {
        self.layers.iter().all(|layer| layer.trees.is_empty())
    }

    /// Bytes that were moved, as batches count them.
    pub(super) fn len_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.len_bytes).sum()
    }

    /// The branch that has the newest writes to a tree, if some were moved.
    pub(super) fn tree(&self, parent: TreeId) -> Option<&BranchTree> {
        let mut layers = self.layers.iter().rev();
        layers.find_map(|layer| layer.trees.get(&parent))
    }

    /// The branches of the only layer.
    pub(super) fn branches(&self) -> Vec<BranchTree> {
        debug_assert!(self.layers.len() <= 1, "layers were joined before");
        let layers = self.layers.iter();
        layers.flat_map(|l| l.trees.values().cloned()).collect()
    }

    /// How many layers there are.
    pub(super) const fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Moves all of `writes` to branches of the top layer. New ones begin at `at`. After an error
    /// the writes are where they were.
    pub(super) fn take(&mut self, writes: &mut Writes, at: &Snapshot) -> Result<(), DbError> {
        if self.layers.is_empty() {
            self.layers.push(Layer::default());
        }
        self.copy(writes, at)?;
        writes.forget_all();
        debug_assert!(writes.is_empty(), "all of it was moved");
        Ok(())
    }

    /// Copies all of `writes` to branches of a new layer. After an error there is none.
    pub(super) fn add_layer(&mut self, writes: &Writes, at: &Snapshot) -> Result<(), DbError> {
        let depth = self.depth();
        self.layers.push(Layer::default());
        let copied = self.copy(writes, at);
        if copied.is_err() {
            self.drop_layers(depth);
        }
        copied
    }

    /// Drops the layers above the first `depth`, with all that was moved to them.
    pub(super) fn drop_layers(&mut self, depth: usize) {
        debug_assert!(depth <= self.depth(), "there are layers to keep");
        let dropped = self.layers.drain(depth..).rev();
        let trees = dropped.flat_map(|layer| layer.trees.into_values());
        self.undropped.extend(trees.map(|branch| branch.tree));
        // An engine that takes no more writes keeps them. They are tried again at the end, and the
        // next open drops them; no read uses them.
        let _ = self.drop_undropped();
    }

    fn drop_undropped(&mut self) -> Result<(), KvError> {
        if !self.undropped.is_empty() {
            self.engine.drop_trees(&self.undropped)?;
            self.undropped.clear();
        }
        Ok(())
    }

    /// Makes one layer of the first `depth + 1` and those above: what was moved to them stays.
    pub(super) fn join_layers(&mut self, depth: usize) -> Result<(), DbError> {
        while self.depth() > depth + 1 {
            self.drop_undropped()?;
            self.join_top()?;
        }
        debug_assert!(self.depth() <= depth + 1, "no more are left");
        Ok(())
    }

    /// Makes one layer of the two upper ones. After an error they are as they were.
    fn join_top(&mut self) -> Result<(), DbError> {
        let [.., below, top] = self.layers.as_mut_slice() else {
            unreachable!("there are two to join");
        };
        let is_of_below = |of: &TreeId| below.trees.contains_key(of);
        let absorbed = top.trees.iter().filter(|(of, _)| is_of_below(of));
        let absorbed: Vec<TreeId> = absorbed.map(|(_, branch)| branch.tree).collect();
        if !absorbed.is_empty() {
            let none = Guards::since(&self.engine.snapshot());
            let options = CommitOptions::default();
            self.engine
                .absorb(&absorbed, &Batch::new(), &none, options)?;
        }
        let trees = std::mem::take(&mut top.trees).into_iter();
        for (of, branch) in trees {
            below.trees.entry(of).or_insert(branch);
        }
        below.len_bytes += top.len_bytes;
        self.layers.pop();
        Ok(())
    }

    /// Copies writes to branches of the top layer.
    fn copy(&mut self, writes: &Writes, at: &Snapshot) -> Result<(), DbError> {
        debug_assert!(!writes.is_empty(), "there is something to move");
        self.make_branches(writes, at)?;
        let top = self.layers.last_mut().expect("a layer was begun");
        let mut batch = Batch::new();
        writes.fill(&mut batch, |tree| top.trees[&tree].tree);
        let options = CommitOptions {
            space: SpaceClass::Uncommitted,
            ..CommitOptions::default()
        };
        self.engine.commit(&batch, options)?;
        top.len_bytes += batch.len_bytes() as u64;
        Ok(())
    }

    /// Makes the branches that the top layer lacks: of trees of the store at a moment, and of
    /// branches in lower layers as they are.
    fn make_branches(&mut self, writes: &Writes, at: &Snapshot) -> Result<(), DbError> {
        let top = self.layers.last().expect("a layer was begun");
        let missing = writes.trees().filter(|tree| !top.trees.contains_key(tree));
        let (upper, lowest): (Vec<TreeId>, Vec<TreeId>) =
            missing.partition(|tree| self.tree(*tree).is_some());
        self.make_branches_of(&lowest, Some(at))?;
        self.make_branches_of(&upper, None)
    }

    /// Makes branches of trees of the store at a moment, or of the newest branches of these trees.
    fn make_branches_of(&mut self, trees: &[TreeId], at: Option<&Snapshot>) -> Result<(), DbError> {
        if trees.is_empty() {
            return Ok(());
        }
        let below: Vec<Option<BranchTree>> = trees.iter().map(|t| self.tree(*t).cloned()).collect();
        debug_assert!(below.iter().all(|b| b.is_some() == at.is_none()));
        let under = trees.iter().zip(&below);
        let under = under.map(|(tree, below)| below.as_ref().map_or(*tree, |below| below.tree));
        let made = self.make_numbered(&under.collect::<Vec<_>>(), at)?;
        debug_assert_eq!(made.len(), trees.len(), "one branch for each tree");
        let top = self.layers.last_mut().expect("a layer was begun");
        for ((parent, below), tree) in trees.iter().zip(below).zip(made) {
            let since = below.map(|below| below.since);
            let since = since.or_else(|| at.cloned()).expect("one of both");
            let branch = BranchTree {
                tree,
                parent: *parent,
                since,
            };
            top.trees.insert(*parent, branch);
        }
        Ok(())
    }

    /// Makes branches under a number of which no names are in use.
    fn make_numbered(
        &self,
        parents: &[TreeId],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        // Each tree of the store takes one name at most.
        debug_assert!(!parents.is_empty(), "there is a branch to make");
        let mut attempts = self.engine.trees().len() + 1;
        loop {
            let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
            let name = |parent: &TreeId| spill_tree_name(number, *parent);
            let names: Vec<String> = parents.iter().map(name).collect();
            let new = parents.iter().zip(&names);
            let new = new.map(|(of, name)| NewBranch::temporary(*of, name));
            let new: Vec<_> = new.collect();
            match self.engine.branch_trees(&new, at) {
                Err(KvError::TreeExists(_)) if attempts > 0 => attempts -= 1,
                done => return done,
            }
        }
    }

    /// The branches were absorbed.
    pub(super) fn forget(&mut self) {
        debug_assert!(self.layers.len() <= 1, "layers were joined before");
        self.layers.clear();
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        // They stay if the store takes no more writes. The next open drops them then.
        self.drop_layers(0);
    }
}

/// Drops the branch trees of transactions that a crash ended, and returns their number. To be
/// called after the engine of a store is opened, and before transactions begin on it.
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
