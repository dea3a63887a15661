//! Writing a table.
//!
//! 1. Entries go into a data block until it is full; then it is packed, gets its filter and its
//!    index entry, and waits in a buffer.
//! 2. When the buffer is full, places are allocated for the blocks in it, and each run of places is
//!    written with one request. Only then does a block have its address, which is in its header.
//!    Value blocks wait in a buffer of their own and lie in zones of their own, page by page where
//!    they are as long as pages: when one is overwritten, its page is of use at once, and the index
//!    blocks of removed tables leave no holes between them that are none.
//! 3. Stitched blocks only add their index entries.
//! 4. Indexes, data blocks and short values go into the block cache too, where that has room
//!    ([`cached`]).
//! 5. At the end, index blocks, range deletes and the root are planned (their lengths do not depend
//!    on addresses), placed together with what is left in the buffer, filled in and written.
//!
//! - Nothing refers to the table before its version edit is durable; a writer that is dropped gives
//!   all its space back.

use super::compress::Packer;
use super::key_hash;
use super::loader::{contradiction, damaged};
use super::writer::facts::BlockFacts;
use crate::VtError;
use crate::cache::BlockCache;
use crate::entry::{EntryRef, Op, RangeDelete};
use crate::key_moments::KeyMoments;
use crate::page_buffers::PageBuffers;
use crate::superseded::Superseded;
use crate::under_way::UnderWay;
use cached::Cached;
use places::Places;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_format::block::{HEADER_BYTES, block_bytes, stored_checksum};
use stitch_format::vt_data::{DataBuilder, DataLayout};
use stitch_format::vt_index::{BlockPtr, IndexEntry};
use stitch_format::vt_manifest::{TableMeta, weight};
use stitch_format::vt_root::{Leaf, RootIndex, TableRoot};
use stitch_kv::TreeOptions;
use stitch_volume::{BlockKind, Stream, Volume};
use values::Values;

mod cached;
mod facts;
mod places;
mod tail;
mod values;
mod written;

pub(crate) use places::FREE_ZONES_PART;
pub(crate) use written::WrittenBlocks;

/// Blocks wait until there are so many bytes of them.
const BUFFER_BYTES: usize = 1 << 20;
/// A block may be so many times longer than asked for, so that versions of a key stay together.
const STRETCH: usize = 4;
const BLOCK_BYTES: RangeInclusive<usize> = (1 << 10)..=(1 << 20);
/// Index blocks are cut at the length of data blocks, within these bounds: what has room for one
/// has room for the other. A table with only one has it inside its root.
const LEAF_BYTES: RangeInclusive<usize> = (4 << 10)..=(24 << 10);

const _: () = assert!(*LEAF_BYTES.end() <= *BLOCK_BYTES.end());

/// The identity of a new table and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct NewTable {
    /// Its number, never used before, not even for a table that was given up.
    pub(crate) id: TableId,
    /// Its tree.
    pub(crate) tree: TreeId,
    /// The tree's options.
    pub(crate) options: TreeOptions,
    /// With which other writes it should lie together.
    pub(crate) stream: Stream,
    /// How seldom filters of its blocks are to be wrong.
    pub(crate) precision: stitch_filter::Precision,
    /// Its tree is a branch.
    pub(crate) is_of_branch: bool,
}

/// A block in the buffer.
#[derive(Clone, Debug)]
struct Pending {
    /// Where it is in the buffer, padding included.
    range: Range<usize>,
    payload_len: usize,
    kind: BlockKind,
    flags: u8,
}

/// Makes a table: `(add | stitch | add_range_delete)* finish`; entries and blocks in order.
///
/// Invariant: value blocks are data blocks, a block in the buffer is in the index, and the buffer
/// ends with a whole block.
#[derive(Debug)]
pub(crate) struct TableWriter {
    volume: Arc<Volume>,
    table: NewTable,
    block_bytes: usize,
    buffer_bytes: usize,
    data: DataBuilder,
    packer: Packer,
    facts: BlockFacts,
    last: Vec<u8>,
    last_seqno: Seqno,
    buffer: Vec<u8>,
    /// Data blocks in the buffer, each with its number in the index.
    pending: Vec<(Pending, usize)>,
    index: Vec<IndexEntry>,
    range_deletes: Vec<RangeDelete>,
    data_bytes: u64,
    /// Of these, bytes of value blocks.
    value_bytes: u64,
    superseded: Superseded,
    values: Values,
    cached: Cached,
    places: Places,
}

impl TableWriter {
    /// A writer. Allocates nothing yet.
    pub(crate) fn new(volume: &Arc<Volume>, table: NewTable) -> Self {
        let zone_bytes = usize::try_from(volume.zones().zone_bytes()).unwrap_or(usize::MAX);
        let most = (*BLOCK_BYTES.end()).min(zone_bytes / (2 * STRETCH));
        let block_bytes = usize::try_from(table.options.block_bytes).unwrap_or(usize::MAX);
        assert!(
            *BLOCK_BYTES.start() <= most,
            "a zone has room for a short block"
        );
        Self {
            block_bytes: block_bytes.clamp(*BLOCK_BYTES.start(), most),
            buffer_bytes: BUFFER_BYTES.min(zone_bytes),
            data: DataBuilder::new(),
            packer: Packer::default(),
            facts: BlockFacts::default(),
            last: Vec::new(),
            last_seqno: Seqno(0),
            buffer: Vec::new(),
            pending: Vec::new(),
            index: Vec::new(),
            range_deletes: Vec::new(),
            data_bytes: 0,
            value_bytes: 0,
            superseded: Superseded::default(),
            values: Values::default(),
            cached: Cached::default(),
            places: Places::new(Arc::clone(volume), table.stream),
            volume: Arc::clone(volume),
            table,
        }
    }

    /// The same, in memory that was used before.
    pub(crate) fn reusing(mut self, buffers: &PageBuffers) -> Self {
        debug_assert!(self.is_empty(), "nothing was added yet");
        self.values = Values::new(buffers.clone());
        self
    }

    /// The same; indexes, data blocks and short values go into `cache` too, where it has room.
    /// Those of a branch make room.
    pub(crate) fn cached_in(mut self, cache: &Arc<BlockCache>) -> Self {
        debug_assert!(self.is_empty(), "nothing was added yet");
        self.cached = Cached::within(cache, &self.volume, &self.table);
        self
    }

    /// The same, while these moments are held.
    pub(crate) fn under(mut self, moments: KeyMoments) -> Self {
        debug_assert!(self.is_empty(), "nothing was added yet");
        self.superseded = Superseded::new(moments);
        self
    }

    /// The same, counting the space that it takes.
    pub(crate) fn counting(mut self, under_way: Arc<UnderWay>) -> Self {
        debug_assert!(self.is_empty(), "nothing was added yet");
        self.places.count(under_way);
        self
    }

    /// What was added beside newer versions of the same key. Asked for once, at the end.
    pub(crate) fn take_superseded(&mut self) -> Superseded {
        std::mem::take(&mut self.superseded)
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty() && self.index.is_empty() && self.range_deletes.is_empty()
    }

    fn holds(&self) -> bool {
        let end = self.pending.last().map_or(0, |(last, _)| last.range.end);
        self.value_bytes <= self.data_bytes
            && self.pending.len() <= self.index.len()
            && end == self.buffer.len()
    }

    /// True if a key was added before.
    fn has_keys(&self) -> bool {
        !self.data.is_empty() || !self.index.is_empty()
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`VtError::Format`] if it does not come after those before: the tables that it comes from
    /// are damaged. [`VtError::Volume`].
    pub(crate) fn add(&mut self, entry: &EntryRef<'_>) -> Result<(), VtError> {
        let is_version = self.is_version(entry.key, entry.seqno)?;
        if is_version {
            self.superseded.add(entry.key, entry.seqno, self.last_seqno);
        }
        if let Op::Put(value) = entry.op
            && self.table.options.has_value_block(value.len())
        {
            return self.add_value(entry, value, is_version);
        }
        if self.is_full_for(entry, is_version) {
            self.cut()?;
        }
        if is_version {
            self.facts.has_versions = true;
            if self.data.is_empty()
                && let Some(before) = self.index.last_mut()
            {
                before.has_versions = true;
            }
        } else {
            self.last.clear();
            self.last.extend_from_slice(entry.key);
        }
        self.last_seqno = entry.seqno;
        self.facts.add(entry, is_version);
        self.data.add(entry.key, entry.seqno, &entry.op);
        debug_assert_eq!(self.last, entry.key, "the last key is the entry's");
        Ok(())
    }

    /// True if an entry is a version of the key before.
    ///
    /// # Errors
    /// [`VtError::Format`] if it does not come after those before.
    fn is_version(&self, key: &[u8], seqno: Seqno) -> Result<bool, VtError> {
        let is_version = self.has_keys() && self.last == key;
        let is_in_order = match is_version {
            true => seqno < self.last_seqno,
            false => !self.has_keys() || self.last.as_slice() < key,
        };
        match is_in_order {
            true => Ok(is_version),
            false => Err(self.out_of_order("entry")),
        }
    }

    fn out_of_order(&self, what: &'static str) -> VtError {
        let expected = format!("one after key {:?}", self.last);
        damaged(
            self.table.id,
            0,
            contradiction(what, expected, "another".to_owned()),
        )
    }

    /// True if the block should end before an entry.
    fn is_full_for(&self, entry: &EntryRef<'_>, is_version: bool) -> bool {
        if self.data.is_empty() {
            return false;
        }
        let len = self.data.len_bytes() + DataBuilder::entry_bytes_max(entry.key, &entry.op);
        let stretch = if is_version { STRETCH } else { 1 };
        len > self.block_bytes * stretch
    }

    /// Adds a range delete, in any order. An empty range adds nothing.
    pub(crate) fn add_range_delete(&mut self, delete: RangeDelete) {
        if delete.start < delete.end {
            self.range_deletes.push(delete);
        }
    }

    /// Adds blocks of other tables.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn stitch(&mut self, blocks: &[IndexEntry]) -> Result<(), VtError> {
        self.cut()?;
        debug_assert!(self.data.is_empty(), "blocks go between blocks");
        for entry in blocks {
            let is_in_order = match self.index.last_mut() {
                // The block before may be a merged one that lost all versions but one.
                Some(before) if before.last == entry.first => {
                    before.has_versions |= entry.has_versions;
                    entry.has_versions
                }
                Some(before) => before.last < entry.first,
                None => true,
            };
            debug_assert!(entry.first <= entry.last, "a block's keys are in order");
            if !is_in_order {
                return Err(self.out_of_order("block"));
            }
            self.check_live(entry)?;
            self.superseded.add_block(entry);
            self.data_bytes += u64::from(entry.block.len_bytes);
            if entry.is_value {
                self.value_bytes += u64::from(entry.block.len_bytes);
            }
            self.places.refer(&entry.block);
            self.index.push(entry.clone());
        }
        if let Some(entry) = self.index.last() {
            self.last.clone_from(&entry.last);
            self.last_seqno = Seqno(0);
        }
        debug_assert!(self.holds());
        Ok(())
    }

    fn check_live(&self, entry: &IndexEntry) -> Result<(), VtError> {
        if self.places.is_live(&entry.block) {
            return Ok(());
        }
        let expected = "a block in use".to_owned();
        let found = format!("{:?}", entry.block);
        let error = contradiction("stitched block", expected, found);
        Err(damaged(self.table.id, 0, error))
    }

    /// What the table weighs so far, stitched blocks included; see [`TableMeta::weight`].
    pub(crate) fn estimated_weight(&self) -> u64 {
        debug_assert!(self.holds());
        weight(self.data_bytes, self.value_bytes) + self.data.len_bytes() as u64
    }

    /// Ends the data block.
    fn cut(&mut self) -> Result<(), VtError> {
        debug_assert!(self.holds());
        if self.data.is_empty() {
            return Ok(());
        }
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER_BYTES, 0);
        self.data.finish(&mut self.buffer);
        debug_assert!(
            DataLayout::read(&self.buffer[start + HEADER_BYTES..]).is_ok(),
            "a read takes the block"
        );
        let raw_bytes = self.buffer.len() - start - HEADER_BYTES;
        let payload = &self.buffer[start + HEADER_BYTES..];
        self.cached.note(self.index.len(), payload);
        let flags = self.compress(start + HEADER_BYTES);
        let pending = self.pad(start, BlockKind::TableData, flags);
        let len_bytes = u32::try_from(pending.range.len()).expect("a block is bounded");
        let block = BlockPtr {
            len_bytes,
            ..BlockPtr::default()
        };
        let raw_bytes = u32::try_from(raw_bytes).expect("a block is bounded");
        let facts = std::mem::take(&mut self.facts);
        let entry = facts.into_entry(&self.table, &self.last, block, raw_bytes);
        self.pending.push((pending, self.index.len()));
        self.index.push(entry);
        self.data_bytes += u64::from(len_bytes);
        debug_assert!(self.data.is_empty(), "the next block begins");
        debug_assert!(self.holds());
        if self.buffer.len() >= self.buffer_bytes {
            self.write_buffer()?;
        }
        Ok(())
    }

    /// Compresses the buffer from `start` on, if that pays. Gives the block's flags.
    fn compress(&mut self, start: usize) -> u8 {
        debug_assert!(start >= HEADER_BYTES, "the header has its place");
        let raw = &self.buffer[start..];
        let raw_len = raw.len();
        let Some((flag, packed)) = self.packer.pack(self.table.options.compression, raw) else {
            return 0;
        };
        self.buffer.truncate(start);
        self.buffer.extend_from_slice(packed);
        debug_assert!(
            self.buffer.len() < start + raw_len,
            "a compressed block is shorter"
        );
        flag
    }

    /// Pads the block from `start` to the buffer's end.
    fn pad(&mut self, start: usize, kind: BlockKind, flags: u8) -> Pending {
        debug_assert!(
            self.buffer.len() >= start + HEADER_BYTES,
            "the header has its place"
        );
        let payload_len = self.buffer.len() - start - HEADER_BYTES;
        let len = usize::try_from(block_bytes(payload_len as u64)).expect("a block is bounded");
        self.buffer.resize(start + len, 0);
        debug_assert!(
            len >= HEADER_BYTES + payload_len,
            "the payload has its place"
        );
        Pending {
            range: start..start + len,
            payload_len,
            kind,
            flags,
        }
    }

    /// Seals a block of the buffer for its place.
    fn seal(&mut self, pending: &Pending, addr: u64) -> BlockPtr {
        assert_ne!(addr, 0, "no block lies where the superblock does");
        assert!(
            pending.range.end <= self.buffer.len(),
            "the buffer has the block"
        );
        let block = &mut self.buffer[pending.range.clone()];
        let (len, kind, flags) = (pending.payload_len, pending.kind, pending.flags);
        debug_assert!(
            HEADER_BYTES + len <= block.len(),
            "the payload lies in the block"
        );
        self.volume.seal_block_in(block, len, kind, flags, addr);
        debug_assert!(
            self.volume.check_block(block, addr, kind).is_ok(),
            "a read takes the block"
        );
        BlockPtr {
            addr,
            len_bytes: u32::try_from(block.len()).expect("a block is bounded"),
            checksum: stored_checksum(block),
        }
    }

    /// Seals the data blocks of the buffer for their places.
    fn seal_data(&mut self, addrs: &[u64]) {
        let pending = std::mem::take(&mut self.pending);
        assert_eq!(pending.len(), addrs.len(), "every block has a place");
        for ((pending, number), addr) in pending.iter().zip(addrs) {
            debug_assert!(*number < self.index.len(), "the index has the block");
            self.index[*number].block = self.seal(pending, *addr);
        }
        self.cached.cache_waiting(&self.index);
    }

    fn pending_lens(&self) -> Vec<u64> {
        let lens = self.pending.iter().map(|(p, _)| p.range.len() as u64);
        lens.collect()
    }

    /// Writes all blocks of the buffer.
    fn write_buffer(&mut self) -> Result<(), VtError> {
        debug_assert!(!self.pending.is_empty(), "the buffer holds a block");
        let lens = self.pending_lens();
        debug_assert_eq!(
            lens.iter().sum::<u64>(),
            self.buffer.len() as u64,
            "the buffer holds the blocks and nothing else"
        );
        let addrs = self.places.allocate(&lens)?;
        self.seal_data(&addrs);
        self.places.write(&addrs, &lens, &self.buffer)?;
        self.buffer.clear();
        debug_assert!(self.holds());
        Ok(())
    }

    /// Writes the data blocks alone, without the index that makes a table of them.
    ///
    /// # Durability
    /// None; the next sync of the device makes them durable.
    ///
    /// # Panics
    /// If nothing was added.
    pub(crate) fn finish_blocks(mut self) -> Result<WrittenBlocks, VtError> {
        assert!(self.has_keys(), "something was added");
        debug_assert!(self.range_deletes.is_empty(), "values only");
        self.cut()?;
        self.write_values()?;
        if !self.pending.is_empty() {
            self.write_buffer()?;
        }
        debug_assert!(self.has_places(), "each block has its place");
        Ok(WrittenBlocks {
            index: self.index,
            places: self.places,
        })
    }

    /// Writes the rest and gives what a version must know of the table; `None` if nothing was
    /// added.
    ///
    /// # Durability
    /// None; the commit of the version makes it durable.
    pub(crate) fn finish(mut self) -> Result<Option<TableMeta>, VtError> {
        if self.is_empty() {
            return Ok(None);
        }
        self.cut()?;
        self.range_deletes
            .sort_by(|a, b| (&a.start, &a.end, a.seqno).cmp(&(&b.start, &b.end, b.seqno)));
        let leaves = self.plan_leaves();
        let range_deletes = self.range_delete_payloads();
        let mut root = self.root(leaves.len(), range_deletes.len());
        let lens = self.tail_lens(&leaves, &range_deletes, &root);
        if self.values.are_pages() {
            self.write_values()?;
        }
        // Other value blocks first: the run begins at a page.
        let value_lens: Vec<u64> = self.values.lens().collect();
        let all: Vec<u64> = value_lens.iter().chain(&lens).copied().collect();
        let addrs = self.places.allocate(&all)?;
        let (value_addrs, addrs) = addrs.split_at(value_lens.len());
        self.put_values(value_addrs, &value_lens)?;

        let (data, rest) = addrs.split_at(self.pending.len());
        let (leaf_addrs, rest) = rest.split_at(if leaves.len() > 1 { leaves.len() } else { 0 });
        let (delete_addrs, root_addr) = rest.split_at(range_deletes.len());
        assert_eq!(root_addr.len(), 1, "the root is the last block");
        self.seal_data(data);
        debug_assert!(self.has_places(), "each block has its place");
        let mut stored_leaves = Vec::new();
        for (leaf, addr) in leaves.iter().zip(leaf_addrs) {
            let payload = self.leaf_payload(leaf.clone());
            let block = self.push(&payload, BlockKind::TableIndex, *addr);
            self.cached.index(&block, &payload);
            let last = self.index[leaf.end - 1].last.clone();
            stored_leaves.push(Leaf { last, block });
        }
        for (slot, (payload, addr)) in range_deletes.iter().zip(delete_addrs).enumerate() {
            root.range_deletes[slot] = self.push(payload, BlockKind::RangeDeletes, *addr);
        }
        if leaves.len() > 1 {
            root.index = RootIndex::Leaves(stored_leaves);
        }
        let payload = self.encode_root(&root, &leaves);
        let root_block = self.push(&payload, BlockKind::TableRoot, root_addr[0]);
        self.cached.root(root_block.addr, &payload);
        assert_eq!(
            self.buffer.len() as u64,
            lens.iter().sum::<u64>(),
            "the written bytes are the planned ones"
        );
        self.places.write(addrs, &lens, &self.buffer)?;
        self.meta(&root, root_block).map(Some)
    }

    fn has_places(&self) -> bool {
        self.index.iter().all(|entry| entry.block.addr > 0)
    }

    /// Appends a block to the buffer and seals it.
    fn push(&mut self, payload: &[u8], kind: BlockKind, addr: u64) -> BlockPtr {
        debug_assert!(!payload.is_empty(), "a block has contents");
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER_BYTES, 0);
        self.buffer.extend_from_slice(payload);
        let pending = self.pad(start, kind, 0);
        self.seal(&pending, addr)
    }

    fn meta(&mut self, root: &TableRoot, root_block: BlockPtr) -> Result<TableMeta, VtError> {
        let runs = self.places.take_runs().map_err(|run| {
            let expected = "blocks that do not overlap".to_owned();
            let error = contradiction("stitched blocks", expected, format!("{run:?} twice"));
            damaged(self.table.id, 0, error)
        })?;
        let keys = self.index.first().zip(self.index.last());
        let starts = self.range_deletes.iter().map(|d| d.start.as_slice());
        let ends = self.range_deletes.iter().map(|d| d.end.as_slice());
        let first = keys.map(|(first, _)| first.first.as_slice());
        let last = keys.map(|(_, last)| last.last.as_slice());
        let smallest = first.into_iter().chain(starts).min();
        let end = ends.max().filter(|end| last.is_none_or(|last| last < *end));
        let largest = end.or(last);
        let deletes = self.range_deletes.iter().map(|d| d.seqno);
        debug_assert!(smallest <= largest, "a table has a range of keys");
        let min = self
            .index
            .iter()
            .map(|e| e.min_seqno)
            .chain(deletes.clone())
            .min();
        let max = self.index.iter().map(|e| e.max_seqno).chain(deletes).max();
        debug_assert!(min <= max, "the newest is not older");
        debug_assert!(!runs.is_empty(), "a table has a root");
        debug_assert!(
            runs.is_sorted_by(|run, next| run.end() <= next.addr),
            "what it owns is in order and apart"
        );
        debug_assert!(
            root.data_bytes <= runs.iter().map(|run| run.len_bytes).sum(),
            "it owns its data blocks"
        );
        debug_assert_eq!(
            root.data_bytes, self.data_bytes,
            "the root counts the blocks that were added"
        );
        let not_empty = "the table is not empty";
        Ok(TableMeta {
            id: self.table.id,
            tree: self.table.tree,
            smallest: smallest.expect(not_empty).to_vec(),
            largest: largest.expect(not_empty).to_vec(),
            largest_excluded: end.is_some(),
            entry_count: root.entry_count,
            delete_count: root.delete_count,
            range_delete_count: root.range_delete_count,
            data_bytes: root.data_bytes,
            value_bytes: self.value_bytes,
            min_seqno: min.expect(not_empty),
            max_seqno: max.expect(not_empty),
            shift: 0,
            root_addr: root_block.addr,
            root_bytes: root_block.len_bytes,
            runs,
        })
    }
}
