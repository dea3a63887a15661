//! Commits of branch trees: what was written to them goes to their parents, unless others changed
//! the same keys.
//!
//! What was written may be larger than memory, and a list of all its keys larger than a commit
//! takes. So the keys are compared page by page, and the commit guards ranges around them for the
//! moments that this takes:
//!
//! ```text
//! moment of the branch                     now                  commit
//!        |--- pages of keys, each compared --|-- ranges guarded --|
//! ```
//!
//! 1. Take a snapshot: *now*. Collect the keys that others changed since the branch began. A key in
//!    a range that was deleted in the branch counts, present or not. Nothing is compared if nothing
//!    of the parent has changed: then the commit guards all of the parent.
//! 2. Refuse them with a list, or have a resolver settle them.
//! 3. Absorb, if nothing in the ranges changed since *now*. Else begin again, from *now* on.

use super::options::{Clash, ConflictPolicy, Resolution, Resolver};
use super::writes::{Own, Writes, fold};
use crate::DbError;
use crate::error::LISTED_COUNT_MAX;
use bytes::Bytes;
use std::collections::BTreeSet;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Batch, ChangedKey, CommitOptions, Engine, Guards, KeyRange, KvError, Snapshot};

/// How often the check begins again while others go on changing keys.
pub(super) const ROUNDS_MAX: usize = 16;
/// Keys of a branch that are compared together.
const PAGE_KEYS: usize = 1000;

/// A branch tree that a commit absorbs.
#[derive(Clone, Debug)]
pub(super) struct BranchTree {
    pub(super) tree: TreeId,
    pub(super) parent: TreeId,
    /// The moment at which it begins.
    pub(super) since: Snapshot,
}

/// Branch trees, and later writes to their parents and to other trees, that are committed together.
pub(super) struct Settling<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) branches: &'a [BranchTree],
    pub(super) writes: &'a mut Writes,
}

/// Absorbs branch trees: what was written to them goes to their parents and they are dropped, in
/// one commit. Keys that others have changed in the parents since a branch began are conflicts:
/// `conflicts` says what becomes of them.
///
/// # Errors
/// [`DbError::Conflict`] with the keys, at most 1000: the branches and their parents are as they
/// were. [`DbError::Kv`] as of [`Engine::absorb`].
///
/// # Durability
/// As of [`Engine::commit`].
///
/// # Cost
/// That of [`Engine::absorb`], and a search for each key that was written among what was written to
/// the parents since.
pub fn absorb_branches(
    engine: &dyn Engine,
    branches: &[TreeId],
    conflicts: &ConflictPolicy,
    options: CommitOptions,
) -> Result<Seqno, DbError> {
    let trees = engine.trees();
    let branch = |id: &TreeId| {
        let info = trees.iter().find(|info| info.id == *id);
        let info = info.ok_or(KvError::NoTree(*id))?;
        let no_branch = || KvError::Invalid(format!("tree {id} is no branch"));
        Ok::<_, KvError>(BranchTree {
            tree: *id,
            parent: info.branch.ok_or_else(no_branch)?.parent,
            since: engine.branch_moment(*id)?,
        })
    };
    let branches: Result<Vec<BranchTree>, KvError> = branches.iter().map(branch).collect();
    let mut settling = Settling {
        engine,
        branches: &branches?,
        writes: &mut Writes::default(),
    };
    let start = engine.snapshot();
    settling.commit(&start, conflicts, options)
}

impl Settling<'_> {
    /// Commits. Writes to the parents are compared since `start`.
    ///
    /// # Errors
    /// As [`absorb_branches`].
    pub(super) fn commit(
        &mut self,
        start: &Snapshot,
        conflicts: &ConflictPolicy,
        options: CommitOptions,
    ) -> Result<Seqno, DbError> {
        let resolver = match conflicts {
            ConflictPolicy::Ignore => return Ok(self.absorb(&Guards::since(start), options)?),
            ConflictPolicy::Refuse => None,
            ConflictPolicy::Resolve(resolver) => Some(resolver.as_ref()),
        };
        let mut since: Option<Snapshot> = None;
        let mut rounds = 0;
        loop {
            let now = self.engine.snapshot();
            let mut fence = Fence::default();
            let changed = self.changed(since.as_ref(), start, &mut fence)?;
            self.settle_all(resolver, changed, (since.as_ref(), start, &now))?;
            let guards = fence.guards(self.engine, &now, self.writes);
            let first = match self.absorb(&guards, options) {
                Err(KvError::Conflict { tree, key }) => ChangedKey { tree, key },
                other => return Ok(other?),
            };
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(DbError::Conflict { keys: vec![first] });
            }
            since = Some(now);
        }
    }

    /// Absorbs the branches and applies the writes, if nothing under the guards has changed.
    pub(super) fn absorb(&self, guards: &Guards, options: CommitOptions) -> Result<Seqno, KvError> {
        let mut batch = Batch::new();
        self.writes.fill(&mut batch, |tree| tree);
        let branches: Vec<TreeId> = self.branches.iter().map(|branch| branch.tree).collect();
        self.engine.absorb(&branches, &batch, guards, options)
    }

    /// The keys that were written here, and by others since then. Fences what was written here.
    fn changed(
        &self,
        since: Option<&Snapshot>,
        start: &Snapshot,
        fence: &mut Fence,
    ) -> Result<BTreeSet<ChangedKey>, DbError> {
        let mut guards = Guards::since(since.unwrap_or(start));
        self.writes.guard(&mut guards, self.engine.upserts());
        let mut changed = BTreeSet::new();
        changed.extend(self.engine.changed_keys(&guards, usize::MAX)?);
        for branch in self.branches {
            let since = since.unwrap_or(&branch.since);
            if self.is_unchanged(branch.parent, since)? {
                fence.parents.push(branch.parent);
                continue;
            }
            let mut guards = Guards::since(since);
            for (start, end) in self.engine.branch_deleted_ranges(branch.tree)? {
                guards.range(branch.parent, KeyRange::new(&start, &end));
                fence.ranges.push((branch.parent, start, end));
            }
            changed.extend(self.engine.changed_keys(&guards, usize::MAX)?);
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = self
                    .engine
                    .branch_keys(branch.tree, after.as_deref(), PAGE_KEYS)?;
                let Some(last) = page.last() else {
                    break;
                };
                debug_assert!(page.len() <= PAGE_KEYS, "a page is bounded");
                debug_assert!(
                    after.as_ref() < page.first(),
                    "it goes on behind the last one"
                );
                let mut guards = Guards::since(since);
                page.iter().for_each(|key| guards.key(branch.parent, key));
                changed.extend(self.engine.changed_keys(&guards, usize::MAX)?);
                fence.page(branch.parent, &page);
                after = Some(last.clone());
            }
        }
        Ok(changed)
    }

    /// Reports whether nothing of a tree has changed since a moment; false if that is not known.
    ///
    /// # Cost
    /// A search for the first change, in what was written to the tree since.
    fn is_unchanged(&self, tree: TreeId, since: &Snapshot) -> Result<bool, KvError> {
        let mut guards = Guards::since(since);
        guards.range(tree, KeyRange::all());
        match self.engine.changed_keys(&guards, 1) {
            Ok(changed) => {
                debug_assert!(changed.iter().all(|changed| changed.tree == tree));
                Ok(changed.is_empty())
            }
            // The moment is held of some keys alone.
            Err(KvError::KeysNotHeld(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Settles keys that others have changed.
    ///
    /// # Errors
    /// [`DbError::Conflict`] with those that cannot be.
    fn settle_all(
        &mut self,
        resolver: Option<&dyn Resolver>,
        changed: BTreeSet<ChangedKey>,
        (since, start, now): (Option<&Snapshot>, &Snapshot, &Snapshot),
    ) -> Result<(), DbError> {
        let mut refused = Vec::new();
        for changed in changed {
            let is_settled = match resolver {
                Some(resolver) => {
                    let branch = self.branches.iter().find(|b| b.parent == changed.tree);
                    let began = branch.map(|branch| &branch.since);
                    let since = since.or(began).unwrap_or(start);
                    self.resolve(resolver, &changed, (since, now))?
                }
                None => false,
            };
            if !is_settled {
                refused.push(changed);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        refused.truncate(LISTED_COUNT_MAX);
        Err(DbError::Conflict { keys: refused })
    }

    /// Gives a key the state that the resolver decides on. Returns false if it refuses.
    pub(super) fn resolve(
        &mut self,
        resolver: &dyn Resolver,
        changed: &ChangedKey,
        (since, now): (&Snapshot, &Snapshot),
    ) -> Result<bool, DbError> {
        let (tree, key) = (changed.tree, changed.key.as_slice());
        let base = self.engine.get(tree, key, Some(since))?;
        let theirs = self.engine.get(tree, key, Some(now))?;
        if base == theirs {
            return Ok(true);
        }
        let ours = self.own_value(changed, base.clone())?;
        let clash = Clash {
            tree,
            key,
            base,
            ours,
            theirs,
        };
        let own = match resolver.resolve(&clash) {
            Resolution::Put(value) => Own::Value(value),
            Resolution::Delete => Own::Absent,
            Resolution::Refuse => return Ok(false),
        };
        self.writes.set(tree, key, own);
        Ok(true)
    }

    /// What was made here of a key whose value was `base`.
    fn own_value(
        &self,
        changed: &ChangedKey,
        base: Option<Bytes>,
    ) -> Result<Option<Bytes>, DbError> {
        let writes = self.writes.tree(changed.tree);
        let own = writes.and_then(|writes| writes.keys.get(&changed.key));
        let deltas = match own {
            Some(Own::Value(value)) => return Ok(Some(value.clone())),
            Some(Own::Absent) => return Ok(None),
            Some(Own::Deltas(deltas)) => deltas.as_slice(),
            None if writes.is_some_and(|writes| writes.cleared.covers(&changed.key)) => {
                return Ok(None);
            }
            None => &[],
        };
        let branch = self.branches.iter().find(|b| b.parent == changed.tree);
        let below = match branch {
            Some(branch) => self.engine.get(branch.tree, &changed.key, None)?,
            None => base,
        };
        Ok(fold(self.engine.upserts(), &changed.key, below, deltas))
    }
}

/// What a commit guards from the moment of the comparison on.
#[derive(Debug, Default)]
struct Fence {
    /// Trees of which all keys are guarded.
    parents: Vec<TreeId>,
    /// Keys of the first pages.
    keys: Vec<(TreeId, Vec<u8>)>,
    /// Ranges `[start, end)` around the keys of the others.
    ranges: Vec<(TreeId, Vec<u8>, Vec<u8>)>,
}

impl Fence {
    /// Adds a page of keys. It is not empty.
    fn page(&mut self, parent: TreeId, page: &[Vec<u8>]) {
        debug_assert!(!page.is_empty(), "an empty page is the end");
        debug_assert!(page.is_sorted(), "keys come in their order");
        if self.keys.len() + page.len() <= PAGE_KEYS {
            let keys = page.iter().map(|key| (parent, key.clone()));
            return self.keys.extend(keys);
        }
        let [first, .., last] = page else {
            return self
                .keys
                .extend(page.iter().map(|key| (parent, key.clone())));
        };
        let mut end = last.clone();
        end.push(0);
        self.ranges.push((parent, first.clone(), end));
    }

    /// Guards since `now`, on writes in memory too. If they are too many, one range of each branch
    /// stands for all.
    fn guards(&self, engine: &dyn Engine, now: &Snapshot, writes: &Writes) -> Guards {
        let mut guards = Guards::since(now);
        writes.guard(&mut guards, engine.upserts());
        let own_bytes = guards.len_bytes();
        for parent in &self.parents {
            guards.range(*parent, KeyRange::all());
        }
        for (parent, key) in &self.keys {
            guards.key(*parent, key);
        }
        for (parent, start, end) in &self.ranges {
            guards.range(*parent, KeyRange::new(start, end));
        }
        let limit = engine.limits().batch_bytes_max;
        if guards.len_bytes() as u64 <= limit {
            return guards;
        }
        debug_assert!(own_bytes as u64 <= limit, "writes in memory fit");
        let mut guards = Guards::since(now);
        writes.guard(&mut guards, engine.upserts());
        let parents = self.keys.iter().map(|(parent, _)| *parent);
        let parents = parents.chain(self.ranges.iter().map(|(parent, ..)| *parent));
        let parents = parents.chain(self.parents.iter().copied());
        for parent in parents.collect::<BTreeSet<_>>() {
            guards.range(parent, KeyRange::all());
        }
        guards
    }
}
