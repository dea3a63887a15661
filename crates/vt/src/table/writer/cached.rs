//! Blocks that go into the cache as they are written: names, attributes and small values that were
//! put a moment ago, and indexes, are asked for more often than others, and who compacts them reads
//! them again.
//!
//! - They never push out what somebody has read: where the cache has no room, they stay out.
//! - Values of a page or more do, too. Whoever reads those keeps them himself, as the kernel does
//!   above a mount, or reads more of them than there is room for.
//! - A block's key in the cache is its address, which a data block gets with all blocks of the
//!   buffer. Until then copies wait here.

use crate::cache::{BlockCache, BlockKey, CachedBlock, Expectation};
use crate::table::loader::Loader;
use crate::table::{DataBlock, IndexBlock};
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_format::vt_index::{BlockPtr, IndexEntry};
use stitch_volume::{PAGE_BYTES, Volume};

#[derive(Debug, Default)]
pub(super) struct Cached {
    /// `None`: nothing goes into the cache.
    loader: Option<Loader>,
    /// Payloads of data blocks, each with its number in the index.
    waiting: Vec<(usize, Bytes)>,
    waiting_bytes: usize,
}

impl Cached {
    /// Puts blocks of table `id` into `cache`.
    pub(super) fn within(cache: &Arc<BlockCache>, volume: &Arc<Volume>, id: TableId) -> Self {
        let loader = Loader {
            volume: Arc::clone(volume),
            cache: Arc::clone(cache),
            id,
            shift: 0,
        };
        Self {
            loader: Some(loader),
            ..Self::default()
        }
    }

    /// Where a block goes, if there is room for so many bytes beside those that wait.
    fn with_room(&self, len_bytes: usize) -> Option<&Loader> {
        let has_room =
            |cache: &BlockCache| cache.bytes() + self.waiting_bytes + len_bytes <= cache.capacity();
        self.loader
            .as_ref()
            .filter(|loader| has_room(&loader.cache))
    }

    /// As [`Self::with_room`], for a block of the index, which has its place.
    fn with_room_at(&self, addr: u64, len_bytes: usize) -> Option<&Loader> {
        let bytes = IndexBlock::memory_bytes_of(len_bytes);
        self.with_room(bytes)
            .filter(|loader| loader.cache.has_room(&loader.own_key(addr), bytes))
    }

    /// Takes note of the payload of data block `number`, before it is compressed.
    pub(super) fn note(&mut self, number: usize, payload: &[u8]) {
        if self.with_room(payload.len()).is_some() {
            self.waiting_bytes += payload.len();
            self.waiting.push((number, Bytes::copy_from_slice(payload)));
        }
    }

    /// All data blocks that wait have their places, which `index` says.
    pub(super) fn cache_waiting(&mut self, index: &[IndexEntry]) {
        self.waiting_bytes = 0;
        let Some(loader) = &self.loader else { return };
        for (number, payload) in self.waiting.drain(..) {
            let entry = &index[number];
            assert_eq!(payload.len(), entry.raw_bytes as usize, "the whole payload");
            let memory_bytes = payload.len();
            let block = DataBlock::new(payload, memory_bytes).expect("it was just made");
            keep(loader, entry, block);
        }
    }

    /// A value block that has its place.
    pub(super) fn value(&self, entry: &IndexEntry, value: &[u8]) {
        debug_assert!(entry.is_value, "a value block");
        let len_bytes = value.len();
        if (len_bytes as u64) < PAGE_BYTES
            && let Some(loader) = self.with_room(len_bytes)
        {
            let block = DataBlock::value(Bytes::copy_from_slice(value), len_bytes);
            keep(loader, entry, block);
        }
    }

    /// An index block that has its place.
    pub(super) fn index(&self, block: &BlockPtr, payload: &[u8]) {
        if let Some(loader) = self.with_room_at(block.addr, payload.len()) {
            let kept = loader.keep_index(block, Bytes::copy_from_slice(payload));
            debug_assert!(kept.is_ok(), "it was just made");
        }
    }

    /// The root, which has its place.
    pub(super) fn root(&self, addr: u64, payload: &[u8]) {
        if let Some(loader) = self.with_room_at(addr, payload.len()) {
            let kept = loader.keep_root(addr, &Bytes::copy_from_slice(payload));
            debug_assert!(kept.is_ok(), "it was just made");
        }
    }
}

fn keep(loader: &Loader, entry: &IndexEntry, block: DataBlock) {
    debug_assert!(entry.block.addr > 0, "it has its place");
    let cache = &loader.cache;
    let key = BlockKey {
        origin: entry.origin,
        addr: entry.block.addr,
    };
    if cache.has_room(&key, block.memory_bytes()) {
        cache.insert(key, CachedBlock::Data(Arc::new(block)), Expectation::Scan);
    }
}
