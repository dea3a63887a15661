//! Branch trees in random runs. They are written and read as other trees, may lose their parent,
//! and some of them are absorbed.

use super::Run;
use crate::{Batch, CommitOptions, Engine, Guards, KeyRanges, KvError, NewBranch, Snapshot};
use std::collections::BTreeSet;
use stitch_base::TreeId;

/// Most trees at the same time, beside those of the parameters.
const BRANCHES_MAX: usize = 5;

impl Run {
    pub(super) fn branch_step(&mut self) {
        if !self.store.engine().capabilities().branches {
            return;
        }
        let choice = self.rng.below(100);
        let branches = self.branches();
        let branch = self.chosen(branches.len()).map(|index| branches[index]);
        match (choice, branch) {
            (0..45, _) | (_, None) => self.create_branches(),
            (45..65, Some((branch, _))) => self.drop_tree(branch),
            (65..80, Some((branch, parent))) => self.compare_branch(branch, parent),
            (_, Some((branch, parent))) => self.absorb(branch, parent),
        }
    }

    /// The living branches of the model, each with its parent.
    pub(super) fn branches(&self) -> Vec<(TreeId, TreeId)> {
        let trees = self.model.trees().into_iter();
        trees
            .filter_map(|t| Some((t.id, t.branch?.parent)))
            .collect()
    }

    fn create_branches(&mut self) {
        if self.trees.len() >= self.params.trees + BRANCHES_MAX {
            return;
        }
        let (mut parents, names) = ([self.tree(), self.tree()], [self.name(), self.name()]);
        let count = if self.rng.one_in(3) { 2 } else { 1 };
        let pin = self.rng.one_in(3).then(|| self.any_pin()).flatten();
        if let Some((_, model)) = &pin
            && self.rng.one_in(3)
        {
            // The pin may see trees that were dropped since.
            let seen = self.model.trees_at(model);
            let seen = self.chosen(seen.len()).map(|index| seen[index].id);
            parents[0] = seen.unwrap_or(parents[0]);
        }
        let new = |at: usize| NewBranch::new(parents[at], &names[at]);
        let new: Vec<NewBranch<'_>> = (0..count).map(new).collect();
        let (at, model_at) = match &pin {
            Some((store, model)) => (Some(store), Some(model)),
            None => (None, None),
        };
        let modelled = self.model.branch_trees(&new, model_at);
        let made = self.store.engine().branch_trees(&new, at);
        match (made, modelled) {
            (Ok(made), Ok(modelled)) => {
                assert_eq!(made, modelled, "trees are numbered one after the other");
                self.trees.extend(made);
            }
            // The pin may be older than the tree.
            (Err(KvError::NoTree(found)), Err(KvError::NoTree(expected))) => {
                assert_eq!(found, expected, "{}", self.at());
            }
            // It may hold other trees.
            (Err(KvError::NotHeld(found)), Err(KvError::NotHeld(expected))) => {
                assert_eq!(found, expected, "{}", self.at());
            }
            (Err(KvError::TooDeep), Err(KvError::TooDeep)) => {}
            (found, expected) => panic!("{}: {found:?}, {expected:?}", self.at()),
        }
    }

    /// Compares what is known of a branch: its moment, and the keys that were written to it.
    fn compare_branch(&mut self, branch: TreeId, parent: TreeId) {
        let of = |engine: &dyn Engine| engine.branch_moment(branch).expect("a branch has one");
        let moments = (of(self.store.engine()), of(&self.model));
        let ranges = self.branch_ranges(branch);
        let held = ranges.iter().map(|ranges| (parent, ranges.clone()));
        self.compare_at((&moments.0, &moments.1), &[parent], &held.collect());
        let page = usize::try_from(1 + self.rng.below(50)).unwrap_or(1);
        let written = |engine: &dyn Engine| engine.branch_keys(branch, None, usize::MAX);
        let expected: BTreeSet<_> = written(&self.model).expect("listed").into_iter().collect();
        let found = self.paged_keys(branch, page);
        assert!(found.is_sorted(), "{}: in order", self.at());
        let is_written = found.iter().all(|key| expected.contains(key));
        assert!(is_written, "{}: a key that was not written", self.at());
        let found: BTreeSet<_> = found.into_iter().collect();
        for key in expected.difference(&found) {
            let own = self.model.get(branch, key, None).expect("the model reads");
            let before = match ranges.as_ref().is_none_or(|ranges| ranges.has(key)) {
                true => self.model.get(parent, key, Some(&moments.1)),
                false => Ok(None),
            };
            let before = before.expect("the model reads");
            assert_eq!(own, before, "{}: key {key:?} changed", self.at());
        }
    }

    /// Returns the keys that a branch begins with; `None` for all that its parent held.
    fn branch_ranges(&self, branch: TreeId) -> Option<KeyRanges> {
        let of = |engine: &dyn Engine| {
            let mut trees = engine.trees().into_iter();
            trees
                .find(|info| info.id == branch)
                .and_then(|info| info.branch_ranges)
        };
        let (found, expected) = (of(self.store.engine()), of(&self.model));
        assert_eq!(found, expected, "{}: ranges of {branch}", self.at());
        expected
    }

    fn paged_keys(&self, branch: TreeId, page: usize) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = found.last().map(Vec::as_slice);
            let keys = self.store.engine().branch_keys(branch, after, page);
            let keys = keys.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
            let is_last = keys.len() < page;
            found.extend(keys);
            if is_last {
                return found;
            }
        }
    }

    fn absorb(&mut self, branch: TreeId, parent: TreeId) {
        // Drawn in any case: what an engine can must not change what comes later.
        let mut batch = Batch::new();
        self.message(&mut batch);
        let is_guarded = self.rng.one_in(2);
        let into_itself = batch.messages().any(|(tree, _)| tree == branch);
        let is_parent = self.branches().iter().any(|(_, parent)| *parent == branch);
        let can = self.store.engine().capabilities().absorb;
        if !can || into_itself || is_parent || !self.trees.contains(&parent) {
            return;
        }
        if is_guarded && self.absorb_guarded(branch, parent, &batch) {
            return;
        }
        let none = Guards::since(&self.store.engine().snapshot());
        let options = CommitOptions::default();
        let done = self
            .store
            .engine()
            .absorb(&[branch], &batch, &none, options);
        assert!(done.is_ok(), "{}: {done:?}", self.at());
        self.absorbed(branch, &batch);
    }

    /// The model absorbs what the store has absorbed.
    fn absorbed(&mut self, branch: TreeId, batch: &Batch<'_>) {
        let none = Guards::since(&self.model.snapshot());
        let options = CommitOptions::default();
        let modelled = self.model.absorb(&[branch], batch, &none, options);
        modelled.expect("the model absorbs");
        self.trees.retain(|tree| *tree != branch);
    }

    /// Absorbs a branch unless another writer changed one of its keys. Reports whether it did.
    fn absorb_guarded(&mut self, branch: TreeId, parent: TreeId, batch: &Batch<'_>) -> bool {
        let engine = self.store.engine();
        let written = self.model.branch_keys(branch, None, usize::MAX);
        let written = written.expect("the model lists keys");
        let of = |moment: &Snapshot| {
            let mut guards = Guards::since(moment);
            written.iter().for_each(|key| guards.key(parent, key));
            guards
        };
        let moment = |engine: &dyn Engine| engine.branch_moment(branch).expect("a branch has one");
        let (guards, modelled) = (of(&moment(engine)), of(&moment(&self.model)));
        let changed = self.model.changed_keys(&modelled, usize::MAX);
        let changed = changed.expect("the model lists keys");
        match engine.absorb(&[branch], batch, &guards, CommitOptions::default()) {
            Ok(_) => {
                let differs = |key: &Vec<u8>| {
                    let then = modelled.iter().next().map(|guard| guard.since);
                    let get = |at| self.model.get(parent, key, at).expect("the model reads");
                    get(None) != get(then)
                };
                let changed = changed.iter().find(|changed| differs(&changed.key));
                assert_eq!(changed, None, "{}: no conflict", self.at());
                self.absorbed(branch, batch);
                true
            }
            // The store may take a delete of what is absent for a change.
            Err(KvError::Conflict { tree, key }) => {
                assert_eq!(tree, parent, "{}: conflict", self.at());
                assert!(written.contains(&key), "{}: conflict", self.at());
                false
            }
            Err(error) => panic!("{}: {error}", self.at()),
        }
    }
}
