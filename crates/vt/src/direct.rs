//! Values that are written once: a long run of puts goes to data blocks in its zone at once.
//!
//! 1. Puts of a batch that follow each other, in one tree and in the order of their keys, with
//!    enough bytes in all, are written as data blocks. The log record of the commit holds the index
//!    entries of these blocks instead of the values. Puts that continue a long write stream,
//!    commit after commit, do the same: see [`write_streams`].
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
use std::ops::Range;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Mutex, RwLock};
use stitch_base::{Seqno, TreeId};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::Run;
use stitch_kv::{Batch, Message, Position};
use stitch_volume::Volume;

/// Most runs that belong to one memtable: a read may have to look at each one's keys.
pub(crate) const RUN_COUNT_MAX: usize = 256;

/// A run of at most so many value blocks is as many puts of the memtable.
const PLACED_COUNT_MAX: usize = 32;

/// What an allocator takes beside the keys and the filter of an index entry.
const ENTRY_OVERHEAD_BYTES: usize = 48;

/// A value is long beside its key if it has four times its bytes, and these: then the index entry
/// of a block is at most half as long as the messages in it.
const VALUE_BYTES_MIN: usize = 256;

/// A stretch of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where its messages are in the batch.
    pub(crate) place: Range<Position>,
    /// How many there are.
    pub(crate) count: u64,
    /// What they are, if they go to their zone at once.
    pub(crate) direct: Option<Direct>,
}

impl Part {
    /// Length of its messages.
    pub(crate) const fn len_bytes(&self) -> u64 {
        self.place.end.since(&self.place.start) as u64
    }
}

/// Puts that go to their zone at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    pub(crate) tree: TreeId,
    /// The write stream that they continue.
    pub(crate) stream: Option<WriteStreamId>,
}

/// Divides a batch: runs of puts of long values with at least `bytes_min` bytes are parts of their
/// own, and so are shorter ones that `follow` says to continue a write stream. It is told of all. A
/// put that is not finished continues a write stream, but through the log.
pub(crate) fn divide(
    batch: &Batch<'_>,
    bytes_min: u64,
    follow: &mut dyn FnMut(&Puts<'_>) -> Option<WriteStreamId>,
) -> Vec<Part> {
    let mut divider = Divider {
        parts: Vec::new(),
        open: None,
        unfinished: batch.unfinished(),
        bytes_min,
        follow,
    };
    let mut messages = batch.stretch().messages();
    let mut start = messages.position();
    while let Some(message) = messages.next() {
        let (tree, message) = message.expect("a batch encoded its own messages");
        let end = messages.position();
        divider.add(tree, &message, start..end);
        start = end;
    }
    divider.close();
    divider.parts
}

/// Puts that may become a run.
struct OpenRun<'a> {
    puts: Puts<'a>,
    place: Range<Position>,
    count: u64,
    /// Where the last of them begins, if it is not finished.
    unfinished: Option<Position>,
}

struct Divider<'a, 'f> {
    parts: Vec<Part>,
    open: Option<OpenRun<'a>>,
    unfinished: Option<Position>,
    bytes_min: u64,
    follow: &'f mut dyn FnMut(&Puts<'_>) -> Option<WriteStreamId>,
}

impl<'a> Divider<'a, '_> {
    fn add(&mut self, tree: TreeId, message: &Message<'a>, place: Range<Position>) {
        let (key, len) = match *message {
            Message::Put { key, value } if value.len() >= 4 * key.len() + VALUE_BYTES_MIN => {
                (key, value.len())
            }
            _ => {
                self.close();
                self.push(place, 1, None);
                return;
            }
        };
        let unfinished = self.unfinished.filter(|start| *start == place.start);
        // Its length does not matter: it has no block.
        let len = unfinished.map_or(len, |_| usize::MAX);
        if let Some(open) = &mut self.open
            && open.puts.tree == tree
            && open.puts.last < key
            && open.unfinished.is_none()
        {
            open.puts.last = key;
            open.puts.value_bytes_min = open.puts.value_bytes_min.min(len);
            open.place.end = place.end;
            open.count += 1;
            open.unfinished = unfinished;
            return;
        }
        self.close();
        let puts = Puts {
            tree,
            first: key,
            last: key,
            bytes: 0,
            value_bytes_min: len,
        };
        self.open = Some(OpenRun {
            puts,
            place,
            count: 1,
            unfinished,
        });
    }

    fn close(&mut self) {
        if let Some(mut open) = self.open.take() {
            let tree = open.puts.tree;
            let bytes = open.place.end.since(&open.place.start) as u64;
            open.puts.bytes = bytes;
            let goes_on = (self.follow)(&open.puts);
            let finished = open.place.start..open.unfinished.unwrap_or(open.place.end);
            let is_long = finished.end.since(&finished.start) as u64 >= self.bytes_min;
            let is_direct = is_long || goes_on.is_some();
            let stream = goes_on.filter(|_| !is_long);
            let direct = is_direct.then_some(Direct { tree, stream });
            let rest = u64::from(open.unfinished.is_some());
            if open.count > rest {
                self.push(finished.clone(), open.count - rest, direct);
            }
            if rest > 0 {
                self.push(finished.end..open.place.end, rest, None);
            }
        }
    }

    fn push(&mut self, place: Range<Position>, count: u64, direct: Option<Direct>) {
        if let Some(last) = self.parts.last_mut()
            && last.direct.is_none()
            && direct.is_none()
        {
            debug_assert_eq!(last.place.end, place.start, "parts follow each other");
            last.place.end = place.end;
            last.count += count;
            return;
        }
        self.parts.push(Part {
            place,
            count,
            direct,
        });
    }
}

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
        self.extents.iter().map(|run| run.len_bytes).sum()
    }

    /// Bytes of memory: its index entries, and what it owns.
    fn memory_bytes(&self) -> usize {
        let entries = self.blocks.entries().iter();
        let entries: usize = entries
            .map(|e| e.memory_bytes() + ENTRY_OVERHEAD_BYTES)
            .sum();
        size_of::<Self>() + entries + self.extents.capacity() * size_of::<Run>()
    }

    /// Says that it was written out, durably: `taken` (sorted) has what `successors` took over. The
    /// rest is given back when the last reader is gone.
    fn leave(&self, volume: &Arc<Volume>, taken: &[Run], successors: &[Arc<TableHandle>]) {
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
        self.runs.read().keys().copied().collect()
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
        found.cloned().collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<DirectRun>> {
        self.runs.read().values().flatten().cloned().collect()
    }

    /// What they own of the device, sorted, with what puts of the memtable own.
    pub(crate) fn extents(&self) -> Vec<Run> {
        let mut extents = self.placed.lock().clone();
        extents.extend(self.all().iter().flat_map(|run| run.extents.clone()));
        coalesce(extents)
    }

    /// Says that they were written out, durably: `taken` (sorted) has what `successors` took over.
    /// The rest is given back when the last reader is gone.
    pub(crate) fn leave(
        &self,
        volume: &Arc<Volume>,
        taken: &[Run],
        successors: &[Arc<TableHandle>],
    ) {
        let left = subtract(&coalesce(self.placed.lock().clone()), taken);
        let left_behind = LeftBehind::new(volume, left, successors.to_vec());
        let before = self.left_behind.lock().replace(left_behind);
        assert!(before.is_none(), "a memtable is written out once");
        for run in self.all() {
            run.leave(volume, taken, successors);
        }
    }
}

#[cfg(test)]
mod tests;
