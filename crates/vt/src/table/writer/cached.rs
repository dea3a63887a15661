//! Blocks that go into the cache as they are written: names, attributes and small values that were
//! put a moment ago, and indexes, are asked for more often than others, and who compacts them reads
//! them again.
//!
//! - They push out no block that a reader may want again: where the cache has no room, they stay
//!   out.
//! - Blocks of a branch displace probationary blocks ([`BlockCache::insert_written`]): the absorb
//!   of the branch reads them soon. They stay out where there are none.
//! - Values of a page or more do, too. Their readers keep them in a cache of their own, as the
//!   kernel does above a mount, or read more of them than there is room for.
//! - A block's key in the cache is its address, which a data block gets with all blocks of the
//!   buffer. Until then copies wait here.

use crate::cache::{BlockCache, BlockKey, CachedBlock, Expectation};
use crate::table::loader::Loader;
use crate::table::{DataBlock, IndexBlock, NewTable};
use bytes::Bytes;
use std::sync::Arc;
use stitch_format::vt_index::{BlockPtr, IndexEntry};
use stitch_volume::{PAGE_BYTES, Volume};

/// What waits takes at most this part of the cache where it may displace other blocks.
const WAITING_PART: usize = 8;

/// Blocks that are about to go into the cache. Invariant: blocks wait only if there is a cache, and
/// their bytes are counted.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// `None`: nothing goes into the cache.
    loader: Option<Loader>,
    /// Probationary blocks make room.
    displaces: bool,
    /// Payloads of data blocks, each with its number in the index.
    waiting: Vec<(usize, Bytes)>,
    waiting_bytes: usize,
}

impl Cached {
    /// Puts blocks of `table` into `cache`.
    pub(super) fn within(cache: &Arc<BlockCache>, volume: &Arc<Volume>, table: &NewTable) -> Self {
        let loader = Loader {
            volume: Arc::clone(volume),
            cache: Arc::clone(cache),
            id: table.id,
            shift: 0,
        };
        Self {
            loader: Some(loader),
            displaces: table.is_of_branch,
            ..Self::default()
        }
    }

    fn holds(&self) -> bool {
        (self.loader.is_some() || self.waiting.is_empty())
            && self.waiting.is_empty() == (self.waiting_bytes == 0)
    }

    /// Where a block goes, if there may be room for so many bytes beside those that wait.
    fn with_room(&self, len_bytes: usize) -> Option<&Loader> {
        debug_assert!(self.holds());
        let loader = self.loader.as_ref()?;
        let (cache, bytes) = (&loader.cache, self.waiting_bytes + len_bytes);
        let has_room = match self.displaces {
            true => bytes <= cache.capacity() / WAITING_PART,
            false => cache.bytes() + bytes <= cache.capacity(),
        };
        has_room.then_some(loader)
    }

    /// As [`Self::with_room`], for a block of the index, which has its place.
    fn with_room_at(&self, addr: u64, len_bytes: usize) -> Option<&Loader> {
        let bytes = IndexBlock::memory_bytes_of(len_bytes);
        let has_room = |loader: &Loader| loader.cache.has_room(&loader.own_key(addr), bytes);
        self.with_room(bytes)
            .filter(|loader| self.displaces || has_room(loader))
    }

    /// Takes note of the payload of data block `number`, before it is compressed.
    pub(super) fn note(&mut self, number: usize, payload: &[u8]) {
        debug_assert!(!payload.is_empty(), "a data block holds an entry");
        debug_assert!(
            self.waiting
                .last()
                .is_none_or(|(before, _)| *before < number),
            "blocks wait in the order of the index"
        );
        if self.with_room(payload.len()).is_some() {
            self.waiting_bytes += payload.len();
            self.waiting.push((number, Bytes::copy_from_slice(payload)));
        }
        debug_assert!(self.holds());
    }

    /// All data blocks that wait have their places, which `index` says.
    pub(super) fn cache_waiting(&mut self, index: &[IndexEntry]) {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        for (number, payload) in waiting {
            debug_assert!(number < index.len(), "the index has the block");
            let entry = &index[number];
            assert_eq!(payload.len(), entry.raw_bytes as usize, "the whole payload");
            let memory_bytes = payload.len();
            let block = DataBlock::new(payload, memory_bytes).expect("it was just made");
            self.keep(entry, block);
        }
        debug_assert!(self.holds());
    }

    /// A value block that has its place.
    pub(super) fn value(&self, entry: &IndexEntry, value: &[u8]) {
        debug_assert!(entry.is_value, "a value block");
        debug_assert_eq!(value.len(), entry.raw_bytes as usize, "the whole value");
        let len_bytes = value.len();
        if (len_bytes as u64) < PAGE_BYTES && self.with_room(len_bytes).is_some() {
            let block = DataBlock::value(Bytes::copy_from_slice(value), len_bytes);
            self.keep(entry, block);
        }
    }

    /// An index block that has its place.
    pub(super) fn index(&self, block: &BlockPtr, payload: &[u8]) {
        debug_assert!(block.addr > 0, "it has its place");
        if let Some(loader) = self.with_room_at(block.addr, payload.len()) {
            let index = loader.open_index(block, Bytes::copy_from_slice(payload));
            let index = index.expect("it was just made");
            self.insert_leading(loader, block.addr, CachedBlock::Index(index));
        }
    }

    /// The root, which has its place.
    pub(super) fn root(&self, addr: u64, payload: &[u8]) {
        debug_assert!(addr > 0, "it has its place");
        if let Some(loader) = self.with_room_at(addr, payload.len()) {
            let root = loader.open_root(addr, &Bytes::copy_from_slice(payload));
            let root = root.expect("it was just made");
            self.insert_leading(loader, addr, CachedBlock::Root(root));
        }
    }

    /// Puts a block that leads to others into the cache, if it has room there.
    fn insert_leading(&self, loader: &Loader, addr: u64, block: CachedBlock) {
        let (key, often) = (loader.own_key(addr), Expectation::Often);
        loader
            .cache
            .insert_written(key, block, often, self.displaces);
    }

    /// Puts a data block that has its place into the cache, if it has room there.
    fn keep(&self, entry: &IndexEntry, block: DataBlock) {
        debug_assert!(entry.block.addr > 0, "it has its place");
        debug_assert_eq!(
            block.payload().len(),
            entry.raw_bytes as usize,
            "the whole payload"
        );
        let Some(loader) = &self.loader else { return };
        let key = BlockKey {
            origin: entry.origin,
            addr: entry.block.addr,
        };
        let block = CachedBlock::Data(Arc::new(block));
        let cache = &loader.cache;
        cache.insert_written(key, block, Expectation::Scan, self.displaces);
    }
}
