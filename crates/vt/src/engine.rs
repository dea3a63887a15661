//! The engine: the contract of `stitch_kv`, over a store.

use crate::VtError;
use crate::cache::ReadCount;
use crate::install::{Install, Installer};
use crate::instances;
use crate::options::VtOptions;
use crate::read::VtScan;
use crate::signals::Worker;
use crate::store::Store;
use crate::table::Bounds;
use crate::version::tree_record;
use crate::view::Views;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Apart, Mutex};
use stitch_base::thread::JoinHandle;
use stitch_base::{ErrorKind, Seqno, TreeId};
use stitch_format::superblock::{FEATURE_BRANCH_RANGES, FEATURE_BRANCHES};
use stitch_format::vt_manifest::VersionEdit;
use stitch_kv::{
    Batch, Caching, Capabilities, ChangedKey, Coming, CommitOptions, Counters, DeletedRange,
    Direction, Engine, Guarded, Guards, Holder, KeyRange, KeyRanges, KvError, Limits, NewBranch,
    PinInfo, PinRanges, Scan, Snapshot, SpaceShare, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation, check_tree_name,
};
use stitch_volume::{Opened, Volume};

/// The first format that has altered trees and Zstandard.
const FORMAT_OF_ALTERED_TREES: (u16, u16) = (2, 1);

/// A VT-tree store, open. Dropping it stops its threads; what was not written out is in the backup
/// log.
pub struct VtEngine {
    pub(crate) store: Arc<Store>,
    /// The store's: a read goes through nothing else to come to them.
    views: Arc<Views>,
    visible: Arc<Apart<AtomicU64>>,
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
        instances::open(opened, &options)
    }

    pub(crate) fn new(store: Arc<Store>, threads: Vec<JoinHandle<()>>) -> Self {
        Self {
            views: Arc::clone(&store.views),
            visible: Arc::clone(&store.visible),
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
        if self.store.write_out_one()? {
            return Ok(true);
        }
        let pressure = self.store.compactor.pressure(false);
        if self.store.compactor.compact_one(pressure)? {
            return Ok(true);
        }
        // What cannot be read is told to whoever scans there.
        Ok(self.store.reads.look_for_gaps().unwrap_or(true))
    }

    pub(crate) fn stop_threads(&self) {
        self.store.signals.stop();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so already.
            drop(thread.join());
        }
        let cache = &self.store.cache;
        cache.prefetched().clear(cache.readers());
        cache.index_prefetches().clear();
    }

    /// Closes this instance and no other.
    pub(crate) fn close_one(&self) -> Result<(), VtError> {
        let is_first_time = self.store.gate.close();
        self.stop_threads();
        if !is_first_time || self.store.volume.is_read_only() {
            return Ok(());
        }
        self.store.close()
    }
}

impl VtEngine {
    fn begin_scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        way: (Direction, bool),
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let complete = Seqno(self.visible.load(Ordering::Acquire));
        let (view, seqno) = self.reading((tree, Guarded::Range(range)), at)?;
        self.store.cache.counters().add(ReadCount::Scans, 1);
        let seqnos = (seqno, complete);
        let scan = VtScan::new(&self.store.reads, view, tree, range, way, seqnos)?;
        Ok(Box::new(scan))
    }
}

impl Drop for VtEngine {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Engine for VtEngine {
    fn limits(&self) -> Limits {
        self.store.limits()
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
        version.living().map(|t| t.info.clone()).collect()
    }

    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo> {
        let hold = self.store.snapshots.own(at);
        debug_assert!(hold.is_some(), "a snapshot is asked about in its store");
        let version = self.store.version();
        hold.map_or_else(Vec::new, |hold| hold.trees(&version))
    }

    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges> {
        let hold = self.store.snapshots.own(at);
        debug_assert!(hold.is_some(), "a snapshot is asked about in its store");
        hold.and_then(|hold| hold.ranges_of(tree)).cloned()
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        self.store.create_tree(name, options)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        self.store.drop_trees(&[tree])
    }

    fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError> {
        self.store.drop_trees(trees)
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.store.alter_tree(tree, options)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        self.store.commit(batch, options)
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.store.commit_guarded(batch, guards, options)
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        self.store.changed_keys(guards, count_max)
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
        let (of, seqnos) = ((&view, tree), (up_to, complete));
        self.store.keys_between(of, range, from, seqnos, count_max)
    }

    fn upserts(&self) -> &UpsertRegistry {
        &self.store.options.upserts
    }

    fn sync(&self) -> Result<(), KvError> {
        self.store.note_asked_sync();
        Ok(self.store.sync()?)
    }

    fn snapshot(&self) -> Snapshot {
        let hold = self.store.snapshots.take(&self.store.visible);
        hold.snapshot()
    }

    fn create_pin(&self, name: &str, user: &[u8]) -> Result<PinInfo, KvError> {
        self.store.create_pin(name, user, &|_| true)
    }

    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        self.store.create_pin(name, user, is_held)
    }

    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        Ok(self.store.pins.list())
    }

    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError> {
        let (_, hold) = self.store.pins.find(name)?;
        Ok(hold.snapshot())
    }

    fn drop_pin(&self, name: &str) -> Result<(), KvError> {
        self.store.drop_pin(name)
    }

    fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        self.store.alter_pin(name, user)
    }

    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        self.store.narrow_pin(name, ranges)
    }

    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        self.store.branch_trees(branches, at)
    }

    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        self.store.branch_keys(branch, after, count_max)
    }

    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        self.store.branch_deleted_ranges(branch)
    }

    fn branch_moment(&self, branch: TreeId) -> Result<Snapshot, KvError> {
        Ok(self.store.branch_hold(branch)?.snapshot())
    }

    fn prepare_absorb(&self, branches: &[TreeId]) -> Result<(), KvError> {
        self.store.prepare_absorb(branches)
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.store.absorb(branches, batch, guards, options)
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        let (view, seqno) = self.reading((tree, Guarded::Key(key)), at)?;
        self.store.cache.counters().add(ReadCount::Gets, 1);
        Ok(self.store.reads.get_in(&view, tree, key, seqno)?)
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
        Ok(self.store.reads.get_many_in(&view, tree, keys, seqno)?)
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

    fn read_ahead(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        coming: Coming<'_>,
        caching: Caching,
    ) -> bool {
        if !self.store.cache.readers().may_read_ahead() {
            return false;
        }
        let Ok((view, _)) = self.reading((tree, Guarded::Range(range)), None) else {
            return false;
        };
        let bounds = Bounds::of(range, true);
        self.store
            .reads
            .read_ahead(&view, tree, bounds, (coming, caching))
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
        self.store.exclusive_space(holders, watch)
    }

    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        let on = ranges.iter().map(|range| Guarded::Range(*range));
        let (view, seqno) = self.reading_all(tree, on, at)?;
        let reader = (seqno, at.is_none());
        Ok(self.store.range_space(&view, tree, ranges, reader)?)
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        self.store.set_aside(bytes)
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

impl Store {
    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        self.check_writable()?;
        let mut installer = self.versions.lock();
        let version = self.version();
        if version.living().any(|t| t.info.name == name) {
            return Err(KvError::TreeExists(name.to_owned()));
        }
        check_tree_name(name)?;
        let id = version.next_tree;
        let info = TreeInfo {
            id,
            name: name.to_owned(),
            options: options.clone(),
            branch: None,
            branch_ranges: None,
        };
        let mut edit = version.edit();
        edit.next_tree = id.next();
        edit.new_trees.push(tree_record(&info));
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        self.space.note_tree(options);
        self.install_trees(&mut installer, edit)?;
        self.committer.lock().trees.insert(id);
        Ok(id)
    }

    /// Drops trees with one edit.
    pub(crate) fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError> {
        self.check_writable()?;
        let trees: BTreeSet<TreeId> = trees.iter().copied().collect();
        let mut installer = self.versions.lock();
        {
            let mut committer = self.committer.lock();
            if let Some(gone) = trees.iter().find(|tree| !committer.trees.contains(tree)) {
                return Err(KvError::NoTree(*gone));
            }
            committer.trees.retain(|tree| !trees.contains(tree));
        }
        if trees.is_empty() {
            return Ok(());
        }
        let removed = self.remove_trees(&mut installer, &trees);
        // They are still there, unless the outcome is unknown.
        if removed.is_err() && !self.gate.is_failed() {
            self.committer.lock().trees.extend(trees);
        }
        removed
    }

    /// Installs the edit that drops trees, which take no writes any more.
    pub(crate) fn remove_trees(
        &self,
        installer: &mut Installer,
        trees: &BTreeSet<TreeId>,
    ) -> Result<(), KvError> {
        let version = self.version();
        let mut edit = version.edit();
        version.note_dropped(&mut edit, trees, (&self.pins, None));
        // With a branch, a hidden parent may go that a snapshot of a dropped pin reads.
        let kept = self.keep_for(self.pins.lingering(), &edit.dropped_trees);
        let installed = self.install_trees(installer, edit);
        match installed {
            Ok(()) => trees.iter().for_each(|tree| self.reads.gaps.forget(*tree)),
            Err(_) => kept.take_back(),
        }
        drop((kept, version));
        // What only a branch saw can be compacted away now.
        self.signals.wake(Worker::Compaction);
        installed
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.check_writable()?;
        let mut installer = self.versions.lock();
        let version = self.version();
        let found = version.living().find(|t| t.info.id == tree);
        let found = found.ok_or(KvError::NoTree(tree))?;
        if found.info.options == *options {
            return Ok(());
        }
        let mut edit = version.edit();
        edit.altered_trees.push(tree_record(&TreeInfo {
            options: options.clone(),
            ..found.info.clone()
        }));
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        self.space.note_tree(options);
        self.install_trees(&mut installer, edit)
    }

    /// Installs an edit that changes trees and no tables. Installing syncs the log before: what is
    /// on the medium stays the state after some commit.
    pub(crate) fn install_trees(
        &self,
        installer: &mut Installer,
        edit: VersionEdit,
    ) -> Result<(), KvError> {
        if !edit.is_of_version_1() {
            let required = self.volume.require_format(FORMAT_OF_ALTERED_TREES);
            required.map_err(VtError::from)?;
        }
        if edit.has_branches() {
            let features = match edit.has_branch_ranges() {
                true => FEATURE_BRANCHES | FEATURE_BRANCH_RANGES,
                false => FEATURE_BRANCHES,
            };
            let required = self.volume.require_feature(features);
            required.map_err(VtError::from)?;
        }
        let install = Install {
            edit,
            ..Install::default()
        };
        self.versions.install(installer, install)?;
        Ok(())
    }

    /// Seals and writes out everything.
    pub(crate) fn write_all_out(&self) -> Result<(), VtError> {
        {
            let mut committer = self.committer.lock();
            committer.streams.give_back();
            if !self.views.get().active().is_empty() {
                self.seal(&mut committer)?;
            }
        }
        while self.write_out_one()? {}
        Ok(())
    }

    /// Does all work that gives space back.
    fn quiesce(&self) -> Result<(), VtError> {
        let is_written = self.write_out_what_fits()?;
        self.compactor.forget_avoided();
        self.level0.set_quiet(true);
        let pressure = self.compactor.pressure(true);
        loop {
            while self.compactor.compact_one(pressure)? {}
            let has_looked = self.compactor.scan_for_superseded(usize::MAX);
            if !has_looked && !self.sweep_garbage()? {
                break;
            }
        }
        match is_written {
            true => Ok(()),
            // There may be room now.
            false => self.write_all_out(),
        }
    }

    /// Seals and writes out everything. Returns false if some of it finds no space: that stays in
    /// memory and in the log.
    fn write_out_what_fits(&self) -> Result<bool, VtError> {
        match self.write_all_out() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

mod close;
mod export;
mod reading;
#[cfg(test)]
mod tests;
