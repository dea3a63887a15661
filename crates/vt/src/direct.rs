//! Values that are written once: a long run of puts goes to data blocks in its zone at once.
//!
//! 1. The placement of a batch ([`crate::commit`]) names the puts that are written as data blocks
//!    with their commit. The log record of the commit holds the index entries of these blocks
//!    instead of the values. Puts that continue a long write stream, commit after commit, go to an
//!    extent of that stream: see [`write_streams`].
//! 2. Until its memtable is written out, a run is a part of it: reads look into both, and what is
//!    newer is told by sequence numbers. Of a few value blocks the memtable has the places instead,
//!    as puts. The write-out stitches the blocks into its table.
//! 3. A sync of the log makes the blocks durable too: they are on the same device, written before
//!    the record. After a crash, a record that no sync covered counts only if its blocks are whole.
//!
//! Papers: Shetty et al., FAST 2013, section 3.1 (stitching); Mei et al., 2019, section 3.3.1 (one
//! append for each commit). Differs: neither has values past the log.

mod write_streams;

use crate::cache::BlockCache;
pub(crate) use crate::direct::write_streams::{Puts, WriteStreamId, WriteStreams};
use crate::memtable::Memtable;
use crate::runs::{coalesce, subtract};
use crate::table::DirectBlocks;
use crate::version::{LeftBehind, TableHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Mutex, RwLock};
use stitch_base::{Seqno, TreeId};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::Run;
use stitch_volume::Volume;

/// Most runs that belong to one memtable: a read may have to look at each one's keys.
pub(crate) const RUN_COUNT_MAX: usize = 256;

/// A run of at most so many value blocks is as many puts of the memtable.
const PLACED_COUNT_MAX: usize = 32;

/// What an allocator takes beside the keys and the filter of an index entry.
const ENTRY_OVERHEAD_BYTES: usize = 48;

/// Puts of a commit that lie in data blocks of their own.
pub(crate) struct DirectRun {
    pub(crate) tree: TreeId,
    pub(crate) blocks: DirectBlocks,
    /// What it owns of the device, sorted.
    pub(crate) extents: Vec<Run>,
    pub(crate) min_seqno: Seqno,
    left_behind: Mutex<Option<LeftBehind>>,
}

impl DirectRun {
    /// A run whose blocks belong to it.
    pub(crate) fn new(
        volume: &Arc<Volume>,
        cache: &Arc<BlockCache>,
        tree: TreeId,
        entries: Vec<IndexEntry>,
    ) -> Self {
        debug_assert!(!entries.is_empty(), "a run has a block");
        let extent = |entry: &IndexEntry| Run {
            addr: entry.block.addr,
            len_bytes: u64::from(entry.block.len_bytes),
        };
        let extents = coalesce(entries.iter().map(extent).collect());
        let min_seqno = entries.iter().map(|e| e.min_seqno).min();
        Self {
            tree,
            min_seqno: min_seqno.expect("at least one block"),
            blocks: DirectBlocks::new(Arc::clone(volume), Arc::clone(cache), entries),
            extents,
            left_behind: Mutex::new(None),
        }
    }

    /// Bytes of the device that it owns.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.extents.iter().map(|run| run.len_bytes).sum();
        debug_assert!(bytes > 0, "a run owns its blocks");
        bytes
    }

    /// Bytes of memory: its index entries, and what it owns.
    fn memory_bytes(&self) -> usize {
        let entries = self.blocks.entries().iter();
        let entries: usize = entries
            .map(|e| e.memory_bytes() + ENTRY_OVERHEAD_BYTES)
            .sum();
        debug_assert!(entries > 0, "a run has a block");
        size_of::<Self>() + entries + self.extents.capacity() * size_of::<Run>()
    }

    /// It was written out, durably: `taken` (sorted) has what `successors` took over. The rest is
    /// given back when the last reader is gone.
    fn leave(&self, volume: &Arc<Volume>, taken: &[Run], successors: &[Arc<TableHandle>]) {
        debug_assert!(taken.is_sorted(), "extents are in order");
        debug_assert!(self.extents.is_sorted(), "extents are in order");
        let left = subtract(&self.extents, taken);
        let left_behind = LeftBehind::new(volume, left, successors.to_vec());
        let before = self.left_behind.lock().replace(left_behind);
        assert!(before.is_none(), "a run is written out once");
    }
}

/// The runs that belong to a memtable.
#[derive(Default)]
pub(crate) struct DirectRuns {
    /// By tree, oldest first.
    runs: RwLock<BTreeMap<TreeId, Vec<Arc<DirectRun>>>>,
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// Of memory, beside the memtable.
    memory_bytes: AtomicUsize,
    /// What puts of the memtable own of the device.
    placed: Mutex<Vec<Run>>,
    left_behind: Mutex<Option<LeftBehind>>,
}

impl DirectRuns {
    /// Adds a run that is newer than all before. What is short goes into the memtable.
    pub(crate) fn add(&self, memtable: &Memtable, run: DirectRun) {
        let entries = run.blocks.entries();
        if entries.len() > PLACED_COUNT_MAX || !entries.iter().all(|entry| entry.is_value) {
            return self.add_run(run);
        }
        debug_assert!(!entries.is_empty(), "a run has a block");
        let bytes = usize::try_from(run.bytes()).unwrap_or(usize::MAX);
        for entry in entries {
            memtable.insert_placed(run.tree, entry);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut placed = self.placed.lock();
        for extent in run.extents {
            match placed.last_mut() {
                Some(last) if last.end() == extent.addr => last.len_bytes += extent.len_bytes,
                _ => placed.push(extent),
            }
        }
        debug_assert!(!placed.is_empty(), "a run owns its blocks");
    }

    fn add_run(&self, run: DirectRun) {
        let bytes = usize::try_from(run.bytes()).unwrap_or(usize::MAX);
        let mut runs = self.runs.write();
        let of_tree = runs.entry(run.tree).or_default();
        debug_assert!(
            of_tree
                .last()
                .is_none_or(|last| last.min_seqno < run.min_seqno),
            "newer than all before"
        );
        self.memory_bytes
            .fetch_add(run.memory_bytes(), Ordering::Relaxed);
        of_tree.push(Arc::new(run));
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        debug_assert_eq!(
            self.count(),
            runs.values().map(Vec::len).sum::<usize>(),
            "each is counted"
        );
        debug_assert!(self.bytes() >= bytes as u64, "its bytes are counted");
    }

    /// How many there are beside the memtable.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Bytes of the device that they own, with those in the memtable.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) as u64
    }

    /// Bytes of memory that they take beside the memtable.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed) as u64
    }

    /// Trees that have any.
    pub(crate) fn trees(&self) -> BTreeSet<TreeId> {
        let runs = self.runs.read();
        debug_assert!(
            runs.values().all(|of_tree| !of_tree.is_empty()),
            "a tree is listed with its runs"
        );
        runs.keys().copied().collect()
    }

    /// Those of a tree that may hold keys in `[start, end)`, newest first.
    pub(crate) fn overlapping(
        &self,
        tree: TreeId,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> Vec<Arc<DirectRun>> {
        self.those(tree, |run| run.blocks.overlaps(start, end))
    }

    /// Those of a tree that may hold `key`, newest first.
    pub(crate) fn holding(&self, tree: TreeId, key: &[u8]) -> Vec<Arc<DirectRun>> {
        self.those(tree, |run| run.blocks.reach(key))
    }

    fn those(&self, tree: TreeId, is_wanted: impl Fn(&DirectRun) -> bool) -> Vec<Arc<DirectRun>> {
        if self.count() == 0 {
            return Vec::new();
        }
        let runs = self.runs.read();
        let of_tree = runs.get(&tree).map_or(&[][..], Vec::as_slice);
        let found = of_tree.iter().rev().filter(|run| is_wanted(run));
        let found: Vec<Arc<DirectRun>> = found.cloned().collect();
        debug_assert!(
            found.is_sorted_by(|run, next| run.min_seqno > next.min_seqno),
            "newest first"
        );
        found
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<DirectRun>> {
        let runs = self.runs.read();
        let all: Vec<Arc<DirectRun>> = runs.values().flatten().cloned().collect();
        debug_assert_eq!(all.len(), self.count(), "each is counted");
        all
    }

    /// What they own of the device, sorted, with what puts of the memtable own.
    pub(crate) fn extents(&self) -> Vec<Run> {
        let mut extents = self.placed.lock().clone();
        extents.extend(self.all().iter().flat_map(|run| run.extents.clone()));
        let extents = coalesce(extents);
        debug_assert!(
            extents.is_sorted_by(|extent, next| extent.end() < next.addr),
            "extents are in order and do not touch"
        );
        extents
    }

    /// They were written out, durably: `taken` (sorted) has what `successors` took over. The rest
    /// is given back when the last reader is gone.
    pub(crate) fn leave(
        &self,
        volume: &Arc<Volume>,
        taken: &[Run],
        successors: &[Arc<TableHandle>],
    ) {
        debug_assert!(taken.is_sorted(), "extents are in order");
        let left = subtract(&coalesce(self.placed.lock().clone()), taken);
        let left_behind = LeftBehind::new(volume, left, successors.to_vec());
        let before = self.left_behind.lock().replace(left_behind);
        assert!(before.is_none(), "a memtable is written out once");
        for run in self.all() {
            run.leave(volume, taken, successors);
        }
    }
}
