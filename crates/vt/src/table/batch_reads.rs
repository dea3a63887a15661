//! Blocks that a batch of point reads needs, read side by side.
//!
//! A lookup of a batch does not wait for a block that is neither in the cache nor in the page
//! cache of the host: it notes the block and ends unfinished. One request, a *read round*, reads
//! all noted blocks. Then the unfinished lookups begin again.
//!
//! ```text
//! key      a    b    c    d
//! pass 1   yes  B7   B9   B7    a is found in the cache; the others are unfinished
//! round 1       B7 B9           one request of two extents
//! pass 2        yes  yes  B3    the filter of B7 was wrong about d: a deeper level goes on
//! round 2       B3
//! pass 3                  yes
//! ```
//!
//! Invariants:
//! - a round reads a block once, and at most [`ROUND_BLOCKS_MAX`] of them;
//! - blocks of the last [`ROUNDS_KEPT`] rounds stay in memory even if the cache evicts them: a
//!   lookup that begins again finds what it has waited for;
//! - a block that a round could not read is read again, alone, by the lookup that needs it. So the
//!   error of a key is that of a single read, and a bad neighbour is none.

use super::Table;
use super::block::{DataBlock, IndexBlock, Root};
use super::block_source::BlockSource;
use super::blocks::LeafPlace;
use super::leaves::Seen;
use super::loader::{DataRef, Loader};
use crate::VtError;
use crate::cache::{BlockKey, Expectation, ReadCount};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use stitch_format::vt_index::BlockPtr;
use stitch_format::vt_manifest::TableMeta;
use stitch_volume::{BlockKind, Wanted};

/// Most extents of a round: more than the queue of one flash device serves at once, and twice what
/// a ring of the device submits together.
const ROUND_BLOCKS_MAX: usize = 64;
/// A round with so many bytes takes no more blocks. Long blocks keep a device busy without many of
/// them, and wait in memory for their lookups.
const ROUND_BYTES_MAX: usize = 1 << 20;
/// Rounds whose blocks are held. A lookup needs three for a key of a table that is not in the cache
/// at all: root, index, data.
pub(crate) const ROUNDS_KEPT: usize = 8;

/// Why a lookup of a batch has no result.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// It needs a block that the next round reads.
    NotRead,
    /// It has failed.
    Failed(VtError),
}

impl From<VtError> for Unfinished {
    fn from(error: VtError) -> Self {
        Self::Failed(error)
    }
}

/// A block that was noted.
#[derive(Debug)]
enum Block {
    /// The next round reads it.
    Noted,
    /// A round could not read it.
    Failed,
    Data(Arc<DataBlock>),
    Index(Arc<IndexBlock>),
    Root(Arc<Root>),
}

/// What one extent of a round holds.
#[derive(Debug)]
enum ExtentBlocks {
    Data(DataRef),
    /// Index blocks that lie one after the other.
    Leaves(Vec<BlockPtr>),
    Root(Arc<TableMeta>),
}

/// One extent of a round.
#[derive(Debug)]
struct Noted {
    loader: Loader,
    offset: u64,
    len: usize,
    content: ExtentBlocks,
}

/// A source of blocks for the lookups of one batch.
#[derive(Debug, Default)]
pub(crate) struct BatchReads {
    noted: Vec<Noted>,
    noted_bytes: usize,
    /// What was noted, in this round and those that are kept.
    blocks: HashMap<BlockKey, Block>,
    /// Blocks of the rounds that are kept, oldest round first.
    rounds: VecDeque<Vec<BlockKey>>,
    is_reading_alone: bool,
    /// Its first wait for an index block has had more of it prefetched.
    has_prefetched_index: bool,
}

impl BatchReads {
    /// Invariant: a round is bounded, and so is the number of rounds that are kept.
    fn holds(&self) -> bool {
        self.noted.len() <= ROUND_BLOCKS_MAX
            && self.rounds.len() <= ROUNDS_KEPT
            && (!self.noted.is_empty() || self.noted_bytes == 0)
    }

    /// True if the next round takes no more blocks.
    pub(crate) fn is_full(&self) -> bool {
        debug_assert!(self.holds());
        self.noted.len() >= ROUND_BLOCKS_MAX || self.noted_bytes >= ROUND_BYTES_MAX
    }

    /// Has the next lookup read its blocks itself, or not.
    pub(crate) const fn read_alone(&mut self, is_reading_alone: bool) {
        self.is_reading_alone = is_reading_alone;
    }

    /// Reads the blocks that were noted since the last round, by one request of the volume.
    ///
    /// # Cost
    /// Extents that lie one after the other are read as one.
    pub(crate) fn read_round(&mut self) {
        let mut noted = std::mem::take(&mut self.noted);
        self.noted_bytes = 0;
        debug_assert!(self.holds());
        let Some(first) = noted.first() else {
            return;
        };
        let volume = Arc::clone(&first.loader.volume);
        debug_assert!(
            noted.iter().all(|noted| noted.len > 0),
            "extents have a length"
        );
        count(&first.loader, &noted);
        noted.sort_unstable_by_key(|noted| noted.offset);
        // Each extent gets a buffer of its own, so that one does not keep all alive.
        let mut buffers: Vec<Vec<u8>> = noted.iter().map(|noted| vec![0; noted.len]).collect();
        let wanted = noted.iter().zip(&mut buffers);
        let mut wanted: Vec<Wanted<'_>> = wanted
            .map(|(noted, out)| Wanted {
                offset: noted.offset,
                out,
            })
            .collect();
        debug_assert_eq!(wanted.len(), noted.len(), "each extent is read");
        let is_read = volume.read_each(&mut wanted).is_ok();
        let mut keys = Vec::with_capacity(noted.len());
        for (noted, buffer) in noted.iter().zip(buffers) {
            let buffer = is_read.then(|| Bytes::from(buffer));
            for (key, block) in noted.open(buffer.as_ref()) {
                self.blocks.insert(key, block);
                keys.push(key);
            }
        }
        debug_assert!(keys.len() >= noted.len(), "each extent has a block");
        self.keep(keys);
    }

    /// Keeps the blocks of a round, and lets go of those of the oldest one.
    fn keep(&mut self, keys: Vec<BlockKey>) {
        debug_assert!(!keys.is_empty(), "a round reads something");
        debug_assert!(
            keys.iter().all(|key| self.blocks.contains_key(key)),
            "blocks of a round are in memory"
        );
        self.rounds.push_back(keys);
        if self.rounds.len() > ROUNDS_KEPT {
            let oldest = self.rounds.pop_front().unwrap_or_default();
            for key in oldest {
                self.blocks.remove(&key);
            }
        }
        debug_assert!(self.holds());
    }

    /// True if the lookup reads a block itself: it has waited long, or a round could not read it.
    fn is_read_alone(&self, key: &BlockKey) -> bool {
        self.is_reading_alone || matches!(self.blocks.get(key), Some(Block::Failed))
    }

    /// Notes an extent for the next round.
    fn note(&mut self, loader: &Loader, content: ExtentBlocks) {
        debug_assert!(
            !self.is_reading_alone,
            "a lookup that reads itself notes nothing"
        );
        let (offset, len) = content.extent();
        let loader = loader.clone();
        let noted = Noted {
            loader,
            offset,
            len,
            content,
        };
        assert!(!self.is_full(), "a lookup begins if there is room");
        self.noted_bytes += noted.len;
        for key in noted.keys() {
            // Index blocks that come with another may be known.
            self.blocks.entry(key).or_insert(Block::Noted);
        }
        self.noted.push(noted);
        debug_assert_eq!(
            self.noted.iter().map(|noted| noted.len).sum::<usize>(),
            self.noted_bytes,
            "each extent is counted"
        );
    }
}

fn count(loader: &Loader, noted: &[Noted]) {
    debug_assert!(!noted.is_empty(), "a round reads something");
    let is_data = |noted: &&Noted| matches!(noted.content, ExtentBlocks::Data(_));
    let data_blocks = noted.iter().filter(is_data).count() as u64;
    loader.cache.counters().add_all([
        (ReadCount::DataBlocksRead, data_blocks),
        (ReadCount::ReadRounds, 1),
    ]);
}

impl ExtentBlocks {
    /// Offset on the device, and length in bytes.
    fn extent(&self) -> (u64, usize) {
        match self {
            Self::Data(data) => (data.block.addr, data.block.len_bytes as usize),
            Self::Root(meta) => (meta.root_addr, meta.root_bytes as usize),
            Self::Leaves(leaves) => {
                debug_assert!(!leaves.is_empty(), "an extent has a block");
                debug_assert!(
                    leaves.is_sorted_by(|leaf, next| leaf.end() == next.addr),
                    "index blocks that are read together follow each other"
                );
                let bytes = leaves.iter().map(|leaf| leaf.len_bytes as usize);
                (leaves[0].addr, bytes.sum())
            }
        }
    }
}

impl Noted {
    fn keys(&self) -> Vec<BlockKey> {
        match &self.content {
            ExtentBlocks::Data(data) => vec![data.key()],
            ExtentBlocks::Root(meta) => vec![self.loader.own_key(meta.root_addr)],
            ExtentBlocks::Leaves(leaves) => {
                let keys = leaves.iter().map(|leaf| self.loader.own_key(leaf.addr));
                keys.collect()
            }
        }
    }

    /// Checks the blocks of the extent and puts those that are sound into the cache. `buffer` is
    /// the extent, if it could be read.
    fn open(&self, buffer: Option<&Bytes>) -> Vec<(BlockKey, Block)> {
        let keys = self.keys();
        let Some(buffer) = buffer else {
            return keys.into_iter().map(|key| (key, Block::Failed)).collect();
        };
        debug_assert_eq!(buffer.len(), self.len, "the whole extent");
        match &self.content {
            ExtentBlocks::Data(data) => vec![(keys[0], self.open_data(data, buffer))],
            ExtentBlocks::Root(meta) => {
                let root = self.loader.root_of(meta, buffer);
                vec![(keys[0], root.map_or(Block::Failed, Block::Root))]
            }
            ExtentBlocks::Leaves(leaves) => {
                debug_assert_eq!(keys.len(), leaves.len(), "each block has a key");
                let open = |leaf| self.open_leaf(leaf, buffer);
                keys.into_iter().zip(leaves.iter().map(open)).collect()
            }
        }
    }

    fn open_data(&self, data: &DataRef, buffer: &Bytes) -> Block {
        debug_assert_eq!(
            buffer.len(),
            data.block.len_bytes as usize,
            "exactly the block"
        );
        let Ok(block) = self.loader.open_data(data, buffer.clone()) else {
            return Block::Failed;
        };
        self.loader.keep_data(data, &block, Expectation::Normal);
        Block::Data(block)
    }

    fn open_leaf(&self, leaf: &BlockPtr, buffer: &Bytes) -> Block {
        debug_assert!(self.offset <= leaf.addr, "the block lies in the extent");
        debug_assert!(
            leaf.end() <= self.offset + self.len as u64,
            "the block lies in the extent"
        );
        let start = usize::try_from(leaf.addr - self.offset).expect("within the extent");
        let bytes = buffer.slice(start..start + leaf.len_bytes as usize);
        // Each block has a buffer of its own, so that one does not keep all alive.
        let bytes = match bytes.len() == buffer.len() {
            true => bytes,
            false => Bytes::copy_from_slice(&bytes),
        };
        let payload = self.loader.open_plain(bytes, leaf, BlockKind::TableIndex);
        let index = payload.and_then(|payload| self.loader.keep_index(leaf, payload));
        index.map_or(Block::Failed, Block::Index)
    }
}

impl BlockSource for BatchReads {
    type Error = Unfinished;

    fn root(&mut self, table: &Table, seen: &mut Seen) -> Result<Arc<Root>, Unfinished> {
        if let Some(root) = table.cached_root(&mut seen.hits) {
            return Ok(root);
        }
        let key = table.loader.own_key(table.meta.root_addr);
        if self.is_read_alone(&key) {
            return Ok(table.root(&mut seen.hits)?);
        }
        match self.blocks.get(&key) {
            Some(Block::Root(root)) => {
                debug_assert_eq!(root.root.id, table.meta.id, "a root is one of its table");
                return Ok(Arc::clone(root));
            }
            Some(_) => {}
            None => self.note(&table.loader, ExtentBlocks::Root(Arc::clone(&table.meta))),
        }
        Err(Unfinished::NotRead)
    }

    fn leaf(
        &mut self,
        loader: &Loader,
        place: &LeafPlace<'_>,
        seen: &mut Seen,
    ) -> Result<Arc<IndexBlock>, Unfinished> {
        if let Some(index) = loader.cached_leaf(place, seen) {
            return Ok(index);
        }
        let (leaves, at, reader) = (place.leaves, place.at, place.reader);
        debug_assert!(at < leaves.len(), "the root has the index block");
        let key = loader.own_key(leaves[at].block.addr);
        if self.is_read_alone(&key) {
            return Ok(loader.leaf(place.root, leaves, at, reader, seen)?);
        }
        match self.blocks.get(&key) {
            Some(Block::Index(index)) => return Ok(Arc::clone(index)),
            Some(_) => {}
            None => {
                seen.reads += 1;
                let group = loader.read_with(leaves, at, reader);
                debug_assert!(group.contains(&at), "the wanted block is in the group");
                let group = leaves[group].iter().map(|leaf| leaf.block).collect();
                self.note(loader, ExtentBlocks::Leaves(group));
            }
        }
        Err(Unfinished::NotRead)
    }

    /// Once: a round reads the index blocks of all tables that a batch needs, so that its other
    /// lookups wait no longer than the first.
    fn prefetches_index(&mut self) -> bool {
        !std::mem::replace(&mut self.has_prefetched_index, true)
    }

    fn data(&mut self, loader: &Loader, data: &DataRef) -> Result<Arc<DataBlock>, Unfinished> {
        let key = data.key();
        if self.is_read_alone(&key) {
            return Ok(loader.data(data)?);
        }
        match self.blocks.get(&key) {
            Some(Block::Data(block)) if data.is_of(block) => return Ok(Arc::clone(block)),
            Some(_) => {}
            None => {
                if let Some(block) = loader.resident_data(data)? {
                    return Ok(block);
                }
                self.note(loader, ExtentBlocks::Data(*data));
            }
        }
        Err(Unfinished::NotRead)
    }
}
