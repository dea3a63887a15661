//! The model engine: the contract in memory, as plainly as it can be said. It is the reference that
//! every other engine is compared with, and the store under tests that need no device.
//!
//! 1. A tree is a sorted map from a key to its versions, oldest first; a version is a sequence
//!    number and a value, or no value for a deleted key.
//! 2. A commit checks the whole batch, then applies each message at once: a range delete visits
//!    every key of the range, an upsert is folded when it is written.
//! 3. A read takes the newest version that is not newer than its snapshot.
//! 4. A pin is a snapshot of all trees, of some, or of ranges of their keys, that `reopened` takes
//!    along. A tree that is dropped moves to the pins that see it.
//! 5. A branch tree has rows of its own for every key that was written to it, and shares the rows
//!    of its parent for the others. It keeps every message to it as well: `absorb` commits them.
//!
//! Invariants:
//! - versions of a key have rising sequence numbers;
//! - a version that no living snapshot and no reader of the present can see is replaced by the next
//!   write of its key, or dropped by `quiesce`.
//!
//! Locks: `state`, then `holds`, then what a pin keeps, then a tree's rows, then its parent's.

mod branches;
mod changes;
mod fault;
mod holds;
mod pins;
mod rows;
mod scan;
mod space_share;

use crate::{
    Batch, BranchPoint, Capabilities, ChangedKey, CommitOptions, Counters, DeletedRange, Direction,
    Engine, Guarded, Guards, Holder, KeyRange, KeyRanges, KvError, Limits, NewBranch, PinInfo,
    PinRanges, Scan, Snapshot, SpaceClass, SpaceShare, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation, check_free, check_tree_name, counters, kept_from_uncommitted,
};
use bytes::Bytes;
pub use fault::CommitFault;
use fault::NextCommits;
use holds::Holds;
use pins::Pins;
use rows::Rows;
use scan::ModelScan;
use std::collections::BTreeMap;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, RwLock};
use stitch_base::{PinId, Seqno, TreeId};

/// All that a store holds: for each tree by name, its keys and values.
pub type Dump = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The plain in-memory engine.
#[derive(Debug)]
pub struct ModelEngine {
    state: RwLock<State>,
    holds: Arc<Holds>,
    registry: UpsertRegistry,
    gets: AtomicU64,
    scans: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    trees: BTreeMap<TreeId, Tree>,
    pins: Pins,
    last_tree: TreeId,
    seqno: Seqno,
    total_bytes: Option<u64>,
    /// Left to commits of [`SpaceClass::Allocated`].
    aside_bytes: u64,
    is_closed: bool,
    commits: u64,
    put_messages: u64,
    put_bytes: u64,
    syncs: u64,
    synced_commits: u64,
    next_commits: Option<NextCommits>,
}

/// Rows of trees, by number.
type AllRows = BTreeMap<TreeId, Arc<RwLock<Rows>>>;

#[derive(Clone, Debug)]
struct Tree {
    name: String,
    options: TreeOptions,
    branch: Option<BranchPoint>,
    rows: Arc<RwLock<Rows>>,
}

impl Tree {
    /// Returns the tree as a store lists it.
    fn info(&self, id: TreeId) -> TreeInfo {
        TreeInfo {
            id,
            name: self.name.clone(),
            options: self.options.clone(),
            branch: self.branch,
            branch_ranges: self.rows.read().branch_ranges(),
        }
    }
}

/// One part in this many of a limited store is the reserve.
const RESERVE_PART: u64 = 16;
const LIMITS: Limits = Limits {
    key_bytes_max: 4 << 10,
    value_bytes_max: 1 << 20,
    batch_bytes_max: 8 << 20,
};

impl ModelEngine {
    /// An empty store without a limit on space.
    #[must_use]
    pub fn new(registry: UpsertRegistry) -> Self {
        Self {
            state: RwLock::default(),
            holds: Arc::default(),
            registry,
            gets: AtomicU64::new(0),
            scans: AtomicU64::new(0),
        }
    }

    /// An empty store of `total_bytes`, a sixteenth of which is the reserve.
    #[must_use]
    pub fn with_space(registry: UpsertRegistry, total_bytes: u64) -> Self {
        let engine = Self::new(registry);
        engine.state.write().total_bytes = Some(total_bytes);
        engine
    }

    /// A new engine with what this one holds now, as if the store had been closed and opened.
    #[must_use]
    pub fn reopened(&self) -> Self {
        let new = Self::new(self.registry.clone());
        {
            let old = self.state.read();
            let mut state = new.state.write();
            state.last_tree = old.last_tree;
            state.seqno = old.seqno;
            state.total_bytes = old.total_bytes;
            let copies = branches::copies_of(&old.all_rows(), &new.holds);
            state.pins = old.pins.reopened(&copies, &new.holds);
            state.trees = old.trees.clone();
            for (id, tree) in &mut state.trees {
                tree.rows = Arc::clone(&copies[id]);
            }
            for (tree, rows) in &copies {
                rows.write().prune(&new.holds.of(*tree));
            }
        }
        new
    }

    /// All that it holds now.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let state = self.state.read();
        let of = |tree: &Tree| tree.rows.read().dump(state.seqno);
        state
            .trees
            .values()
            .map(|tree| (tree.name.clone(), of(tree)))
            .collect()
    }

    /// The rows of a living tree, or of a dropped one that the snapshot's pin or branch sees, for
    /// reads of these keys.
    fn rows(
        &self,
        state: &State,
        (tree, on): (TreeId, Guarded<'_>),
        at: Option<&Snapshot>,
    ) -> Result<Arc<RwLock<Rows>>, KvError> {
        debug_assert!(tree.0 > 0, "tree 0 is never given out");
        let hold = at.map(|snapshot| self.holds.own(snapshot));
        if let Some(hold) = hold {
            state.check_held(hold, (tree, on))?;
        }
        if let Some(found) = state.trees.get(&tree) {
            return Ok(Arc::clone(&found.rows));
        }
        let kept = hold.and_then(|hold| hold.kept_tree(tree));
        kept.ok_or(KvError::NoTree(tree))
    }

    /// Everything that could refuse a batch, before any of it is applied.
    fn admit(&self, state: &State, batch: &Batch, space: SpaceClass) -> Result<(), KvError> {
        state.check_open()?;
        LIMITS.check_batch(batch)?;
        self.admit_messages(state, batch, space)
    }

    /// As [`Self::admit`], of a batch of any length.
    fn admit_messages(
        &self,
        state: &State,
        batch: &Batch,
        space: SpaceClass,
    ) -> Result<(), KvError> {
        for (tree, message) in batch.messages() {
            if !state.trees.contains_key(&tree) {
                return Err(KvError::NoTree(tree));
            }
            LIMITS.check_message(message, &self.registry)?;
        }
        let free_bytes = match space {
            SpaceClass::Normal => state.space().free_bytes,
            SpaceClass::Reserve => state.free_with_reserve(),
            SpaceClass::Allocated => state.free_with_aside(),
            SpaceClass::Uncommitted => {
                let space = state.space();
                let kept_bytes = kept_from_uncommitted(space.total_bytes);
                space.free_bytes.saturating_sub(kept_bytes)
            }
        };
        if batch.is_empty() {
            return Ok(());
        }
        check_free(batch.len_bytes() as u64 + state.overhead(batch), free_bytes)
    }

    /// Applies what was admitted, or fails as it is told to.
    fn apply_or_fail(
        &self,
        state: &mut State,
        apply: impl FnOnce(&mut State) -> Result<Seqno, KvError>,
    ) -> Result<Seqno, KvError> {
        match NextCommits::take(&mut state.next_commits) {
            None => apply(state),
            Some(fault) => {
                if fault.is_applied() {
                    apply(state)?;
                }
                Err(fault.error())
            }
        }
    }

    fn apply(&self, state: &mut State, batch: &Batch) -> Result<Seqno, KvError> {
        let mut held = BTreeMap::new();
        for (tree, message) in batch.messages() {
            state.seqno = state.seqno.next();
            let rows = self.rows(state, (tree, Guarded::Key(message.key())), None)?;
            let held = held.entry(tree).or_insert_with(|| self.holds.of(tree));
            let bytes = rows
                .write()
                .apply(message, state.seqno, held, &self.registry);
            state.put_bytes += bytes;
            state.put_messages += 1;
        }
        state.commits += 1;
        Ok(state.seqno)
    }
}

impl State {
    fn used(&self) -> u64 {
        let living: u64 = self.trees.values().map(|t| t.rows.read().bytes()).sum();
        let hidden = self.hidden_rows();
        let hidden: u64 = hidden.values().map(|rows| rows.read().bytes()).sum();
        living + hidden + self.pins.bytes()
    }

    /// Room that the rows of a batch take beside their bytes.
    fn overhead(&self, batch: &Batch) -> u64 {
        rows::ROW_BYTES * u64::try_from(batch.count()).unwrap_or(u64::MAX)
    }

    fn free_with_reserve(&self) -> u64 {
        let total = self.total_bytes.unwrap_or(u64::MAX);
        total.saturating_sub(self.used() + self.aside_bytes)
    }

    fn free_with_aside(&self) -> u64 {
        let total = self.total_bytes.unwrap_or(u64::MAX);
        let reserve = total / RESERVE_PART;
        total.saturating_sub(self.used() + reserve / 4 * 3)
    }

    fn space(&self) -> SpaceUsage {
        let Some(total) = self.total_bytes else {
            let unlimited = 1 << 60;
            return SpaceUsage {
                total_bytes: unlimited,
                free_bytes: unlimited - self.used() - self.aside_bytes,
            };
        };
        let user = total - total / RESERVE_PART;
        SpaceUsage {
            total_bytes: user,
            free_bytes: user.saturating_sub(self.used() + self.aside_bytes),
        }
    }
}

impl Engine for ModelEngine {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pins: true,
            pins_of_trees: true,
            pins_of_ranges: true,
            guards: true,
            branches: true,
            absorb: true,
            keys_between: true,
            space_shares: true,
        }
    }

    fn trees(&self) -> Vec<TreeInfo> {
        let state = self.state.read();
        let trees = state.trees.iter();
        trees.map(|(id, tree)| tree.info(*id)).collect()
    }

    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges> {
        self.holds.own(at).ranges_of(tree).cloned()
    }

    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo> {
        let state = self.state.read();
        let hold = self.holds.own(at);
        let (_, last) = hold.moment();
        let living = state.trees.range(..=last).filter(|(id, _)| hold.has(**id));
        let mut trees: Vec<_> = living.map(|(id, tree)| tree.info(*id)).collect();
        trees.extend(hold.kept_infos());
        trees.sort_by_key(|info| info.id);
        debug_assert!(
            trees.iter().all(|info| info.id <= last),
            "each is of the moment"
        );
        trees
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        if state.trees.values().any(|tree| tree.name == name) {
            return Err(KvError::TreeExists(name.to_owned()));
        }
        check_tree_name(name)?;
        state.last_tree = state.last_tree.next();
        let id = state.last_tree;
        let tree = Tree {
            name: name.to_owned(),
            options: options.clone(),
            branch: None,
            rows: Arc::default(),
        };
        state.trees.insert(id, tree);
        Ok(id)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        state.remove(tree)
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        let found = state.trees.get_mut(&tree).ok_or(KvError::NoTree(tree))?;
        found.options = options.clone();
        Ok(())
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        let mut state = self.state.write();
        self.admit(&state, batch, options.space)?;
        self.apply_or_fail(&mut state, |state| self.apply(state, batch))
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let mut state = self.state.write();
        self.admit(&state, batch, options.space)?;
        LIMITS.check_guards(guards)?;
        guards.check(|guard| Ok(self.changed(&state, guard, 1)?.pop()))?;
        self.apply_or_fail(&mut state, |state| self.apply(state, batch))
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        let state = self.state.read();
        guards.changed_keys(count_max, |guard| self.changed(&state, guard, count_max))
    }

    fn keys_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        moments: (&Snapshot, Option<&Snapshot>),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        self.listed_between(tree, range, moments, count_max)
    }

    fn upserts(&self) -> &UpsertRegistry {
        &self.registry
    }

    fn sync(&self) -> Result<(), KvError> {
        let mut state = self.state.write();
        let is_pending = state.synced_commits < state.commits;
        state.syncs += u64::from(is_pending);
        state.synced_commits = state.commits;
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        // Under the state's lock, so that no commit prunes what this moment sees.
        let state = self.state.read();
        let moment = (state.seqno, state.last_tree);
        self.holds.hold(moment, None).snapshot()
    }

    fn create_pin(&self, name: &str, user: &[u8]) -> Result<PinInfo, KvError> {
        self.pin(name, user, &|_| true)
    }

    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        self.pin(name, user, is_held)
    }

    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        Ok(self.state.read().pins.list())
    }

    fn pin_by_name(&self, name: &str) -> Result<Option<PinInfo>, KvError> {
        Ok(self.state.read().pins.by_name(name))
    }

    fn pin_by_id(&self, id: PinId) -> Result<Option<PinInfo>, KvError> {
        Ok(self.state.read().pins.by_id(id))
    }

    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError> {
        self.state.read().pins.open(name)
    }

    fn drop_pin(&self, name: &str) -> Result<(), KvError> {
        self.unpin(name)
    }

    fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        self.set_pin_user(name, user)
    }

    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        self.narrow(name, ranges)
    }

    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        self.make_branches(branches, at)
    }

    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        self.written_keys(branch, after, count_max)
    }

    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        self.deleted_ranges(branch)
    }

    fn branch_moment(&self, branch: TreeId) -> Result<Snapshot, KvError> {
        self.moment_of(branch)
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.give_to_parents(branches, batch, guards, options)
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let state = self.state.read();
        let rows = self.rows(&state, (tree, Guarded::Key(key)), at)?;
        let seqno = at.map_or(state.seqno, Snapshot::seqno);
        let value = rows.read().get(key, seqno);
        Ok(value)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        let snapshot = at.cloned().unwrap_or_else(|| self.snapshot());
        let of = (tree, Guarded::Range(range));
        let rows = self.rows(&self.state.read(), of, Some(&snapshot))?;
        Ok(Box::new(ModelScan::new(rows, range, direction, snapshot)))
    }

    fn counters(&self) -> Counters {
        let state = self.state.read();
        let mut out = Counters::default();
        out.push(counters::PUT_MESSAGES, state.put_messages);
        out.push(counters::PUT_BYTES, state.put_bytes);
        out.push(counters::COMMITS, state.commits);
        out.push(counters::GETS, self.gets.load(Ordering::Relaxed));
        out.push(counters::SCANS, self.scans.load(Ordering::Relaxed));
        out.push(counters::SYNCS, state.syncs);
        out
    }

    fn space(&self) -> SpaceUsage {
        self.state.read().space()
    }

    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        self.exclusive(holders, watch)
    }

    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        self.share_of(tree, ranges, at)
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        let mut state = self.state.write();
        let needed_bytes = bytes.saturating_sub(state.aside_bytes);
        check_free(needed_bytes, state.space().free_bytes)?;
        state.aside_bytes = bytes;
        Ok(())
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        let state = self.state.read();
        let total = state.used();
        let mut done = 0;
        let mut found = Vec::new();
        for tree in state.trees.values() {
            let rows = tree.rows.read();
            found.extend(rows.check(&tree.name, state.seqno));
            done += rows.bytes();
            progress(done, total);
        }
        Ok(found)
    }

    fn quiesce(&self) -> Result<(), KvError> {
        let state = self.state.write();
        for (tree, rows) in state.all_rows() {
            rows.write().prune(&self.holds.of(tree));
        }
        Ok(())
    }

    fn close(&self) -> Result<(), KvError> {
        self.state.write().is_closed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
