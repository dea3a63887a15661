//! Branch trees of the model engine: rows of their own over the parent's, and a list of all that
//! was written to them, which `absorb` writes to the parent.

use super::holds::{Hold, Holds};
use super::pins::KeptTrees;
use super::rows::{Bounds, Rows};
use super::{AllRows, LIMITS, ModelEngine, State, Tree};
use crate::{
    Batch, BranchPoint, CommitOptions, DeletedRange, Direction, Guards, KeyRanges, KvError,
    Message, NewBranch, PinRanges, PinScope, Snapshot, TreeOptions, check_branch_depth,
    check_branch_of, check_tree_name, join_ranges,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use stitch_base::sync::{Arc, RwLock};
use stitch_base::{Seqno, TreeId};

/// Where a branch tree begins, and what was written to it. Keeps the parent and its moment.
#[derive(Clone, Debug)]
pub(super) struct Base {
    point: BranchPoint,
    parent: Arc<RwLock<Rows>>,
    /// The keys of the parent that it begins with; `None` for all.
    ranges: Option<KeyRanges>,
    /// Of the moment.
    hold: Arc<Hold>,
    /// Every message to the branch, as one to the parent.
    written: Batch<'static>,
}

impl Base {
    fn new(
        parent: TreeId,
        rows: &Arc<RwLock<Rows>>,
        (moment, ranges): ((Seqno, TreeId), Option<KeyRanges>),
        holds: &Arc<Holds>,
    ) -> Self {
        debug_assert!(parent <= moment.1, "the parent is of the moment");
        let kept = Some(Arc::new(KeptTrees::of(parent, rows)));
        let hold = match &ranges {
            None => holds.hold(moment, kept),
            Some(ranges) => {
                let scope = PinScope::Trees([parent].into());
                let of = PinRanges::from([(parent, ranges.clone())]);
                holds.hold_of(moment, kept, (scope, of))
            }
        };
        Self {
            point: BranchPoint {
                parent,
                seqno: moment.0,
            },
            parent: Arc::clone(rows),
            ranges,
            hold,
            written: Batch::new(),
        }
    }

    /// Takes down a message to the branch.
    pub(super) fn note(&mut self, message: Message<'_>) {
        self.written.push(self.point.parent, message);
    }

    /// Returns what a reader of the branch at `seqno` sees of the parent.
    const fn seen(&self, seqno: Seqno) -> Seqno {
        match seqno.0 < self.point.seqno.0 {
            true => seqno,
            false => self.point.seqno,
        }
    }

    /// Returns the keys of the parent that it begins with; `None` for all.
    pub(super) const fn ranges(&self) -> Option<&KeyRanges> {
        self.ranges.as_ref()
    }

    /// Reports whether it begins with a key, if the parent held that.
    fn has(&self, key: &[u8]) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.has(key))
    }

    /// The parent's value of a key.
    pub(super) fn get(&self, key: &[u8], seqno: Seqno) -> Option<Bytes> {
        if !self.has(key) {
            return None;
        }
        self.parent.read().get(key, self.seen(seqno))
    }

    /// The parent's first entry of the bounds.
    pub(super) fn first(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        seqno: Seqno,
    ) -> Option<(Vec<u8>, Bytes)> {
        let parent = self.parent.read();
        let (mut start, mut end) = (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec));
        loop {
            let rest = (
                start.as_ref().map(Vec::as_slice),
                end.as_ref().map(Vec::as_slice),
            );
            let (key, value) = parent.first(rest, direction, self.seen(seqno))?;
            if self.has(&key) {
                return Some((key, value));
            }
            match direction {
                Direction::Forward => start = Bound::Excluded(key),
                Direction::Backward => end = Bound::Excluded(key),
            }
        }
    }

    /// Everything that the parent held.
    pub(super) fn dump(&self, seqno: Seqno) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = self.parent.read().dump(self.seen(seqno));
        all.retain(|key, _| self.has(key));
        all
    }

    /// The keys within the bounds that the parent held.
    pub(super) fn keys(&self, (start, end): Bounds<'_>) -> BTreeSet<Vec<u8>> {
        let (parent, mut keys) = (self.parent.read(), BTreeSet::new());
        let mut start = start.map(<[u8]>::to_vec);
        loop {
            let rest = (start.as_ref().map(Vec::as_slice), end);
            let found = parent.first(rest, Direction::Forward, self.point.seqno);
            let Some((key, _)) = found else {
                return keys;
            };
            start = Bound::Excluded(key.clone());
            if self.has(&key) {
                keys.insert(key);
            }
        }
    }

    /// The same in a store that was opened anew, which has `copies` of all rows.
    fn reopened(&self, copies: &AllRows, holds: &Arc<Holds>) -> Self {
        let parent = self.point.parent;
        let of = (self.hold.moment(), self.ranges.clone());
        let base = Self::new(parent, &copies[&parent], of, holds);
        Self {
            written: self.written.clone(),
            ..base
        }
    }
}

/// Returns the first of a tree and its parents that is not newer than `last_tree`.
pub(super) fn first_of(tree: TreeId, rows: &RwLock<Rows>, last_tree: TreeId) -> Option<TreeId> {
    if tree <= last_tree {
        return Some(tree);
    }
    let rows = rows.read();
    let base = rows.base()?;
    first_of(base.point.parent, &base.parent, last_tree)
}

/// Number of parents above a tree.
fn depth(rows: &RwLock<Rows>) -> usize {
    let rows = rows.read();
    rows.base().map_or(0, |base| 1 + depth(&base.parent))
}

/// Adds the parents above a tree.
fn add_parents(rows: &RwLock<Rows>, all: &mut AllRows) {
    if let Some(base) = rows.read().base() {
        all.insert(base.point.parent, Arc::clone(&base.parent));
        add_parents(&base.parent, all);
    }
}

/// Copies of all rows, for a store that is opened anew.
pub(super) fn copies_of(all: &AllRows, holds: &Arc<Holds>) -> AllRows {
    let mut copies = AllRows::new();
    // A parent is older than its branches, and so comes before them.
    for (tree, rows) in all {
        let rows = rows.read();
        let base = rows.base().map(|base| base.reopened(&copies, holds));
        let copy = rows.moved_to(base);
        copies.insert(*tree, Arc::new(RwLock::new(copy)));
    }
    debug_assert_eq!(copies.len(), all.len(), "each has a copy");
    copies
}

impl State {
    /// Returns the rows of every tree that can be read.
    pub(super) fn all_rows(&self) -> AllRows {
        let mut all = self.hidden_rows();
        let living = self.trees.iter();
        all.extend(living.map(|(id, tree)| (*id, Arc::clone(&tree.rows))));
        debug_assert!(all.len() >= self.trees.len(), "none is left out");
        all
    }

    /// Returns the rows of dropped trees: those that pins see, and parents of these and of living
    /// trees.
    pub(super) fn hidden_rows(&self) -> AllRows {
        let mut hidden = self.pins.trees();
        let kept: Vec<Arc<RwLock<Rows>>> = hidden.values().map(Arc::clone).collect();
        kept.iter().for_each(|rows| add_parents(rows, &mut hidden));
        for tree in self.trees.values().filter(|tree| tree.branch.is_some()) {
            add_parents(&tree.rows, &mut hidden);
        }
        hidden.retain(|tree, _| !self.trees.contains_key(tree));
        hidden
    }

    /// The ranges that were deleted in a branch tree, in order and apart.
    fn deleted_in(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        let (tree, _) = self.branch(branch)?;
        let rows = tree.rows.read();
        let written = &rows.base().expect("a branch has a base").written;
        let range = |(_, message): (TreeId, Message<'_>)| match message {
            Message::DeleteRange { start, end } => Some((start.to_vec(), end.to_vec())),
            _ => None,
        };
        Ok(join_ranges(written.messages().filter_map(range).collect()))
    }

    /// Returns what tells whether a key was written to a branch of a tree, or is in a range that
    /// was deleted in it.
    pub(super) fn written_in(
        &self,
        branch: TreeId,
        parent: TreeId,
    ) -> Result<impl Fn(&[u8]) -> bool, KvError> {
        let (tree, point) = self.branch(branch)?;
        check_branch_of(branch, point.parent, parent)?;
        let keys = tree
            .rows
            .read()
            .written((Bound::Unbounded, Bound::Unbounded), usize::MAX);
        let keys: BTreeSet<Vec<u8>> = keys.into_iter().collect();
        let deleted = self.deleted_in(branch)?;
        debug_assert!(deleted.is_sorted(), "ranges are in order");
        let is_in = |key: &[u8], (start, end): &DeletedRange| **start <= *key && *key < **end;
        Ok(move |key: &[u8]| keys.contains(key) || deleted.iter().any(|range| is_in(key, range)))
    }

    fn branch(&self, tree: TreeId) -> Result<(&Tree, BranchPoint), KvError> {
        let found = self.trees.get(&tree).ok_or(KvError::NoTree(tree))?;
        let not_a_branch = || KvError::Invalid(format!("tree {tree} is no branch tree"));
        Ok((found, found.branch.ok_or_else(not_a_branch)?))
    }

    /// Refuses branch trees that cannot be made, before any of them is.
    fn check_new(
        &self,
        branches: &[NewBranch<'_>],
        last_tree: TreeId,
        at: Option<&Hold>,
    ) -> Result<(), KvError> {
        let mut names: BTreeSet<&str> = self.trees.values().map(|t| t.name.as_str()).collect();
        for NewBranch { parent, name, .. } in branches {
            if !names.insert(name) {
                return Err(KvError::TreeExists((*name).to_owned()));
            }
            check_tree_name(name)?;
            let found = self.parent(*parent, at).filter(|_| *parent <= last_tree);
            let (_, rows) = found.ok_or(KvError::NoTree(*parent))?;
            if at.is_some_and(|at| !at.has(*parent)) {
                return Err(KvError::NotHeld(*parent));
            }
            check_branch_depth(1 + depth(&rows))?;
        }
        Ok(())
    }

    /// Returns the options and rows of a tree that may be the parent of a branch: a living one, or
    /// one that the pin of a hold sees.
    fn parent(&self, tree: TreeId, at: Option<&Hold>) -> Option<(TreeOptions, Arc<RwLock<Rows>>)> {
        if let Some(living) = self.trees.get(&tree) {
            return Some((living.options.clone(), Arc::clone(&living.rows)));
        }
        let (info, rows) = self.pins.dropped_tree(at?, tree)?;
        debug_assert!(tree <= self.last_tree, "its number was given out");
        debug_assert_eq!(info.id, tree, "kept under its number");
        Some((info.options, rows))
    }

    fn add_branch(&mut self, new: NewBranch<'_>, options: TreeOptions, base: Base) -> TreeId {
        self.last_tree = self.last_tree.next();
        let id = self.last_tree;
        debug_assert!(id > base.point.parent, "a parent is older");
        let tree = Tree {
            name: new.name.to_owned(),
            options,
            branch: Some(base.point),
            rows: Arc::new(RwLock::new(Rows::of_branch(base))),
        };
        self.trees.insert(id, tree);
        id
    }

    /// Refuses branch trees that cannot be absorbed together.
    fn check_absorbed(&self, branches: &[TreeId]) -> Result<(), KvError> {
        let mut parents = AllRows::new();
        let living = self.trees.values();
        living.for_each(|tree| add_parents(&tree.rows, &mut parents));
        let mut seen = BTreeSet::new();
        for tree in branches {
            let (_, BranchPoint { parent, .. }) = self.branch(*tree)?;
            if !self.trees.contains_key(&parent) {
                return Err(KvError::NoTree(parent));
            }
            if !seen.insert(tree) {
                return Err(KvError::Invalid(format!("tree {tree} is named twice")));
            }
            if parents.contains_key(tree) {
                let what = format!("tree {tree} has a branch: absorb or drop that first");
                return Err(KvError::Invalid(what));
            }
        }
        Ok(())
    }

    /// Returns what was written to branch trees as one batch for their parents, then `batch`.
    fn written(&self, branches: &[TreeId], batch: &Batch<'_>) -> Batch<'static> {
        let mut all = Batch::new();
        for tree in branches {
            let rows = self.trees[tree].rows.read();
            let written = &rows.base().expect("a branch has a base").written;
            written.messages().for_each(|(to, m)| all.push(to, m));
        }
        batch.messages().for_each(|(to, m)| all.push(to, m));
        debug_assert!(all.count() >= batch.count(), "the batch comes along");
        all
    }
}

impl ModelEngine {
    pub(super) fn make_branches(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        let now = (state.seqno, state.last_tree);
        let at = at.map(|at| self.holds.own(at));
        let moment = at.map_or(now, Hold::moment);
        debug_assert!(moment <= now, "no snapshot is of the future");
        state.check_new(branches, moment.1, at)?;
        let make = |new: &NewBranch<'_>| {
            let parent = state.parent(new.parent, at);
            let (options, rows) = parent.expect("parents were checked");
            let ranges = at.and_then(|at| at.ranges_of(new.parent)).cloned();
            let base = Base::new(new.parent, &rows, (moment, ranges), &self.holds);
            state.add_branch(*new, options, base)
        };
        Ok(branches.iter().map(make).collect())
    }

    pub(super) fn written_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let state = self.state.read();
        let (tree, _) = state.branch(branch)?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = tree.rows.read();
        Ok(rows.written((start, Bound::Unbounded), count_max))
    }

    pub(super) fn deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        self.state.read().deleted_in(branch)
    }

    pub(super) fn moment_of(&self, branch: TreeId) -> Result<Snapshot, KvError> {
        let state = self.state.read();
        let (tree, point) = state.branch(branch)?;
        let rows = tree.rows.read();
        let snapshot = rows.base().map(|base| base.hold.snapshot());
        let snapshot = snapshot.expect("a branch has a base");
        debug_assert_eq!(snapshot.seqno(), point.seqno, "a branch holds its moment");
        Ok(snapshot)
    }

    pub(super) fn give_to_parents(
        &self,
        branches: &[TreeId],
        batch: &Batch<'_>,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        LIMITS.check_batch(batch)?;
        state.check_absorbed(branches)?;
        let written = state.written(branches, batch);
        self.admit_messages(&state, &written, options.space)?;
        LIMITS.check_guards(guards)?;
        guards.check(|guard| Ok(self.changed(&state, guard, 1)?.pop()))?;
        self.apply_or_fail(&mut state, |state| {
            let seqno = self.apply(state, &written)?;
            branches.iter().try_for_each(|tree| state.remove(*tree))?;
            Ok(seqno)
        })
    }
}
