//! The engine: the contract of `stitch_kv`, over a store.

use crate::VtError;
use crate::cache::ReadCount;
use crate::instances;
use crate::options::VtOptions;
use crate::read::ReadPath;
use crate::store::Store;
use crate::view::Views;
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Apart, Mutex};
use stitch_base::thread::JoinHandle;
use stitch_base::{PinId, Seqno, TreeId};
use stitch_kv::{
    Batch, Capabilities, ChangedKey, CommitOptions, Counters, DeletedRange, Direction, Engine,
    Guarded, Guards, Holder, KeyRange, KeyRanges, KvError, Limits, NewBranch, PinInfo, PinRanges,
    ReadHint, Scan, Snapshot, SpaceShare, SpaceUsage, TreeInfo, TreeOptions, UpsertRegistry,
    Violation,
};
use stitch_volume::{Opened, Volume};

/// A VT-tree store, open. Dropping it stops its threads; what was not written out is in the backup
/// log.
pub struct VtEngine {
    pub(crate) store: Arc<Store>,
    /// The store's: a read goes through nothing else to come to them.
    views: Arc<Views>,
    visible: Arc<Apart<AtomicU64>>,
    reads: Arc<ReadPath>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The volume's other engines, if this is the first.
    pub(crate) further: Mutex<Vec<Arc<Self>>>,
}

impl std::fmt::Debug for VtEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VtEngine")
            .field("options", &self.store.options)
            .finish_non_exhaustive()
    }
}

impl VtEngine {
    /// Opens the store that a volume holds; a fresh volume holds an empty one. Where a volume has
    /// further instances, all are opened, and share the memory: see [`Self::further`]. On a volume
    /// that was opened for reading only, nothing is written.
    ///
    /// # Errors
    /// [`VtError`] if what is stored contradicts itself or cannot be read.
    pub fn open(opened: Opened, options: VtOptions) -> Result<Arc<Self>, VtError> {
        let first = instances::open(opened, &options)?;
        debug_assert!(
            first.volume().is_first(),
            "the engine of the first instance stands for the volume"
        );
        Ok(first)
    }

    pub(crate) fn new(store: Arc<Store>, threads: Vec<JoinHandle<()>>) -> Self {
        debug_assert!(
            threads.is_empty() || !store.volume.is_read_only(),
            "threads write: a store for reading only has none"
        );
        Self {
            views: Arc::clone(&store.views),
            visible: Arc::clone(&store.visible),
            reads: Arc::clone(&store.reads),
            store,
            threads: Mutex::new(threads),
            further: Mutex::new(Vec::new()),
        }
    }

    /// The volume below.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.store.volume
    }

    /// Does one piece of the background work that is due to keep the shape: a write-out or a
    /// compaction. Answers false if none is. For stores without threads.
    ///
    /// # Errors
    /// Its failure.
    pub fn step(&self) -> Result<bool, VtError> {
        self.store.volume.discard_freed(1);
        if self.store.member.write_out_one()? {
            return Ok(true);
        }
        let pressure = self.store.compactor.pressure(false);
        if self.store.compactor.compact_one(pressure)? {
            return Ok(true);
        }
        if self.store.give_up_replaced() {
            return Ok(true);
        }
        // A scan of rows that cannot be read returns the error.
        Ok(self.reads.look_for_gaps().unwrap_or(true))
    }

    pub(crate) fn stop_threads(&self) {
        self.store.signals.stop();
        debug_assert!(self.store.signals.is_stopped(), "threads end for good");
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so already.
            drop(thread.join());
        }
        self.store.cache.stop_reading_ahead();
    }

    /// Closes this instance and no other.
    pub(crate) fn close_one(&self) -> Result<(), VtError> {
        let is_first_time = self.store.gate.close();
        self.stop_threads();
        debug_assert!(self.store.gate.is_closed(), "it takes no more writes");
        if !is_first_time || self.store.volume.is_read_only() {
            return Ok(());
        }
        self.store.close()
    }
}

impl Drop for VtEngine {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Engine for VtEngine {
    fn limits(&self) -> Limits {
        let limits = self.store.committer.limits();
        debug_assert!(
            limits.batch_bytes_max > limits.key_bytes_max + limits.value_bytes_max,
            "any message fits a batch"
        );
        limits
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
        let version = self.store.version();
        let trees: Vec<TreeInfo> = version.living().map(|t| t.info.clone()).collect();
        debug_assert!(
            trees.is_sorted_by(|tree, next| tree.id < next.id),
            "trees are in the order of their numbers"
        );
        trees
    }

    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo> {
        let hold = self.store.snapshots.own(at);
        debug_assert!(hold.is_some(), "a snapshot is asked about in its store");
        let version = self.store.version();
        let trees = hold.map_or_else(Vec::new, |hold| hold.trees(&version));
        debug_assert!(
            trees.is_sorted_by(|tree, next| tree.id < next.id),
            "trees are in the order of their numbers"
        );
        trees
    }

    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges> {
        let hold = self.store.snapshots.own(at);
        debug_assert!(hold.is_some(), "a snapshot is asked about in its store");
        let ranges = hold.and_then(|hold| hold.ranges_of(tree)).cloned();
        debug_assert!(
            ranges.is_none() || hold.is_some_and(|hold| hold.saw(tree)),
            "ranges are held of a tree of the moment"
        );
        ranges
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        let tree = self.store.trees.create(name, options)?;
        debug_assert!(tree.0 > 0, "tree 0 is never given out");
        Ok(tree)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        self.drop_trees(&[tree])
    }

    fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError> {
        self.store.trees.drop_all(trees)?;
        debug_assert!(
            trees
                .iter()
                .all(|tree| !self.store.version().is_living(*tree)),
            "a number of a tree is not given again"
        );
        Ok(())
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.store.trees.alter(tree, options)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        let seqno = self.store.committer.commit(batch, None, options)?;
        debug_assert!(seqno.0 >= batch.count() as u64, "each message has a number");
        debug_assert!(
            seqno.0 <= self.visible.load(Ordering::Acquire),
            "a batch is visible when its commit returns"
        );
        Ok(seqno)
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let committer = &self.store.committer;
        let seqno = committer.commit(batch, Some(guards), options)?;
        debug_assert!(seqno.0 >= batch.count() as u64, "each message has a number");
        debug_assert!(
            seqno.0 <= self.visible.load(Ordering::Acquire),
            "a batch is visible when its commit returns"
        );
        Ok(seqno)
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        let changed = self.store.committer.changed_keys(guards, count_max)?;
        debug_assert!(changed.len() <= count_max, "no more than asked for");
        Ok(changed)
    }

    fn keys_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        (from, to): (&Snapshot, Option<&Snapshot>),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let complete = Seqno(self.visible.load(Ordering::Acquire));
        let (view, up_to) = self.reading((tree, Guarded::Range(range)), to)?;
        debug_assert!(
            to.is_some() || complete <= up_to,
            "visible commits stay visible"
        );
        let (of, seqnos) = ((&view, tree), (up_to, complete));
        let hold = self.store.snapshots.own(from);
        let hold =
            hold.ok_or_else(|| KvError::Invalid("a snapshot of another store".to_owned()))?;
        let keys = self
            .reads
            .keys_between(of, range, hold, seqnos, count_max)?;
        debug_assert!(keys.len() <= count_max, "no more than asked for");
        debug_assert!(
            range
                .end
                .is_none_or(|end| keys.last().is_none_or(|last| last.as_slice() < end)),
            "keys of the range"
        );
        debug_assert!(
            keys.iter().all(|key| key.as_slice() >= range.start),
            "keys of the range"
        );
        debug_assert!(
            keys.is_sorted_by(|key, next| key < next),
            "each once, in order"
        );
        Ok(keys)
    }

    fn upserts(&self) -> &UpsertRegistry {
        &self.store.options.upserts
    }

    fn sync(&self) -> Result<(), KvError> {
        self.store.committer.note_asked_sync();
        Ok(self.store.committer.sync()?)
    }

    fn snapshot(&self) -> Snapshot {
        let hold = self.store.snapshots.take(&self.store.visible);
        let snapshot = hold.snapshot();
        debug_assert!(
            snapshot.seqno().0 <= self.visible.load(Ordering::Acquire),
            "a snapshot is of the past"
        );
        snapshot
    }

    fn create_pin(&self, name: &str, user: &[u8]) -> Result<PinInfo, KvError> {
        let pin = self.store.create_pin(name, user, &|_| true)?;
        debug_assert_eq!(pin.name, name, "the pin has its name");
        debug_assert_eq!(*pin.user, *user, "it keeps what its user gave it");
        debug_assert!(pin.scope.trees().is_none(), "it is one of all trees");
        debug_assert!(
            pin.seqno.0 <= self.visible.load(Ordering::Acquire),
            "a pin is of the past"
        );
        Ok(pin)
    }

    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        let pin = self.store.create_pin(name, user, is_held)?;
        debug_assert_eq!(pin.name, name, "the pin has its name");
        debug_assert!(
            pin.ranges.is_empty(),
            "a pin holds its trees whole until it is narrowed"
        );
        debug_assert!(
            pin.seqno.0 <= self.visible.load(Ordering::Acquire),
            "a pin is of the past"
        );
        Ok(pin)
    }

    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        Ok(self.store.pins.list())
    }

    fn pin_by_name(&self, name: &str) -> Result<Option<PinInfo>, KvError> {
        let found = self.store.pins.by_name(name);
        debug_assert!(
            found.as_ref().is_none_or(|pin| pin.name == name),
            "the pin has the name"
        );
        Ok(found)
    }

    fn pin_by_id(&self, id: PinId) -> Result<Option<PinInfo>, KvError> {
        let found = self.store.pins.by_id(id);
        debug_assert!(
            found.as_ref().is_none_or(|pin| pin.id == id),
            "the pin has the number"
        );
        Ok(found)
    }

    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError> {
        let (pin, hold) = self.store.pins.find(name)?;
        debug_assert_eq!(pin.seqno, hold.seqno(), "the pin's moment is held");
        Ok(hold.snapshot())
    }

    fn drop_pin(&self, name: &str) -> Result<(), KvError> {
        self.store.drop_pin(name)
    }

    fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        self.store.alter_pin(name, user)
    }

    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        let pin = self.store.narrow_pin(name, ranges)?;
        debug_assert!(
            ranges.keys().all(|tree| pin.ranges.contains_key(tree)),
            "it holds ranges of these trees"
        );
        debug_assert_eq!(pin.name, name, "the pin keeps its name");
        Ok(pin)
    }

    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        let made = self.store.branch_trees(branches, at)?;
        debug_assert_eq!(made.len(), branches.len(), "a tree for each");
        debug_assert!(
            made.is_sorted_by(|tree, next| tree < next),
            "numbers of trees rise"
        );
        debug_assert!(
            branches.iter().zip(&made).all(|(of, id)| of.parent < *id),
            "a parent is older than its branch"
        );
        Ok(made)
    }

    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let keys = self.store.branch_keys(branch, after, count_max)?;
        debug_assert!(keys.len() <= count_max, "no more than asked for");
        debug_assert!(
            keys.is_sorted_by(|key, next| key < next),
            "each once, in order"
        );
        debug_assert!(
            after.is_none_or(|after| keys.iter().all(|key| key.as_slice() > after)),
            "only what comes after"
        );
        Ok(keys)
    }

    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        let ranges = self.store.branch_deleted_ranges(branch)?;
        debug_assert!(
            ranges.iter().all(|(start, end)| start < end),
            "ranges hold keys"
        );
        Ok(ranges)
    }

    fn release_replaced(&self, branches: &[TreeId]) -> Result<(), KvError> {
        self.store.release_replaced(branches)
    }

    fn release_beside(
        &self,
        branch: TreeId,
        ranges: &KeyRanges,
        at: &Snapshot,
    ) -> Result<bool, KvError> {
        debug_assert!(
            self.store.snapshots.own(at).is_some(),
            "a snapshot is asked about in its store"
        );
        self.store.release_beside(branch, ranges, at)
    }

    fn branch_moment(&self, branch: TreeId) -> Result<Snapshot, KvError> {
        let moment = self.store.branch_hold(branch)?.snapshot();
        debug_assert!(
            moment.seqno().0 <= self.visible.load(Ordering::Acquire),
            "a branch begins in the past"
        );
        Ok(moment)
    }

    fn prepare_absorb(&self, branches: &[TreeId]) -> Result<(), KvError> {
        self.store.absorber.prepare(branches)
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let absorber = &self.store.absorber;
        let seqno = absorber.absorb(branches, batch, guards, options)?;
        debug_assert!(
            branches
                .iter()
                .all(|branch| !self.store.version().is_living(*branch)),
            "an absorbed branch is gone, or hidden"
        );
        debug_assert!(seqno.0 >= batch.count() as u64, "each message has a number");
        debug_assert!(
            seqno.0 <= self.visible.load(Ordering::Acquire),
            "a batch is visible when its commit returns"
        );
        Ok(seqno)
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        let (view, seqno) = self.reading((tree, Guarded::Key(key)), at)?;
        self.store.cache.counters().add(ReadCount::Gets, 1);
        Ok(self.reads.get_in(&view, tree, key, seqno)?)
    }

    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<Bytes>>, KvError> {
        let on = keys.iter().map(|key| Guarded::Key(key));
        let (view, seqno) = self.reading_all(tree, on, at)?;
        let gets = &self.store.cache.counters();
        gets.add(ReadCount::Gets, keys.len() as u64);
        let values = self.reads.get_many_in(&view, tree, keys, seqno)?;
        debug_assert_eq!(values.len(), keys.len(), "a value or none for each key");
        Ok(values)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.begin_scan(tree, range, (direction, false), at)
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.begin_scan(tree, range, (Direction::Forward, true), at)
    }

    fn read_ahead(&self, tree: TreeId, hint: &ReadHint<'_>) -> bool {
        if !self.store.cache.readers().may_read_ahead() {
            return false;
        }
        let Ok((view, _)) = self.reading((tree, Guarded::Range(hint.range)), None) else {
            return false;
        };
        self.reads.read_ahead(&view, tree, hint)
    }

    fn counters(&self) -> Counters {
        self.store.export_counters()
    }

    fn space(&self) -> SpaceUsage {
        self.store.space.usage()
    }

    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        let shares = self.store.exclusive_space(holders, watch)?;
        debug_assert!(
            shares
                .as_ref()
                .is_none_or(|shares| shares.len() == holders.len()),
            "each holder has its bytes"
        );
        Ok(shares)
    }

    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        let on = ranges.iter().map(|range| Guarded::Range(*range));
        let (view, seqno) = self.reading_all(tree, on, at)?;
        debug_assert!(
            view.version.trees.contains_key(&tree),
            "the view has the tree"
        );
        let reader = (seqno, at.is_none());
        let share = self.store.range_space(&view, tree, ranges, reader)?;
        debug_assert!(
            share.exclusive_bytes <= share.referenced_bytes,
            "exclusive bytes are referenced ones"
        );
        Ok(share)
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        self.store.member.set_aside(bytes)
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        Ok(self.store.check(progress)?)
    }

    fn quiesce(&self) -> Result<(), KvError> {
        if self.store.volume.is_read_only() {
            return Ok(());
        }
        self.store.quiesce().map_err(KvError::from)
    }

    fn close(&self) -> Result<(), KvError> {
        let further = self.close_further();
        self.close_one().and(further).map_err(KvError::from)
    }
}

mod close;
mod export;
mod quiesce;
mod reading;
#[cfg(test)]
mod tests;
