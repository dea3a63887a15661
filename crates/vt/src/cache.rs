//! The block cache: blocks that were read, checked and unpacked, bounded in bytes.
//!
//! Sharded by key; lookups do not block each other. Each shard is a clock: a block that is found
//! again gets another round, up to three; the hand takes rounds away, and blocks without any.
//! Blocks that a scan brings in come without a round, so a long scan pushes out mostly itself.
//! Index blocks come with all three: each leads to dozens of data blocks. Most of these are found
//! past the cache: see [`CachedRef`].
//!
//! A block's key is the table that it was written for and its address. Table numbers are never
//! reused, so what is cached for a block can never be taken for a later block at the same place,
//! and a stitched block stays cached under its old key.

mod cached_ref;
mod counters;
mod set_aside;
mod written;

pub(crate) use cached_ref::{CachedRef, CountsHits, HitCount};
pub(crate) use counters::{ReadCount, ReadCounters};
pub(crate) use set_aside::SetAside;

use crate::page_buffers::PageBuffers;
use crate::range_delete::RangeDeletes;
use crate::readers::Readers;
use crate::table::{DataBlock, FilterBuilds, IndexBlock, IndexPrefetches, Prefetched, Root};
use set_aside::Limits;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use stitch_base::sync::{Apart, Mutex, RwLock};

/// Most shards. A power of two.
const SHARDS_MAX: usize = 16;
/// A shard has at least so many bytes.
const SHARD_BYTES_MIN: usize = 2 << 20;
/// Most rounds that a block can have.
const ROUNDS_MAX: u8 = 3;
/// What a cached block costs beside its own bytes.
const SLOT_BYTES: usize = 96;

// A shard is found by a mask.
const _: () = assert!(SHARDS_MAX.is_power_of_two());

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    /// The table that it was written for.
    pub(crate) origin: TableId,
    /// Its address on the device.
    pub(crate) addr: u64,
}

/// A block in the cache.
#[derive(Clone, Debug)]
pub(crate) enum CachedBlock {
    Data(Arc<DataBlock>),
    Index(Arc<IndexBlock>),
    Root(Arc<Root>),
    RangeDeletes(Arc<RangeDeletes>),
}

impl CachedBlock {
    fn bytes(&self) -> usize {
        SLOT_BYTES
            + match self {
                Self::Data(block) => block.memory_bytes(),
                Self::Index(block) => block.memory_bytes(),
                Self::Root(root) => root.memory_bytes(),
                Self::RangeDeletes(set) => set.bytes(),
            }
    }

    /// How often it was found past the cache since this was asked last.
    fn take_finds(&self) -> u8 {
        let finds = match self {
            Self::Index(block) => block.hits().take(),
            Self::Root(root) => root.hits().take(),
            Self::Data(_) | Self::RangeDeletes(_) => 0,
        };
        debug_assert!(finds <= ROUNDS_MAX, "finds are counted up to a bound");
        finds
    }
}

/// How likely a block is wanted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// More than others: an index leads to many blocks.
    Often,
    /// As likely as any.
    Normal,
    /// Less: a scan passes by.
    Scan,
}

/// Mixes the few bits in which keys differ over the whole word.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

#[derive(Debug)]
struct CacheSlot {
    key: BlockKey,
    block: CachedBlock,
    bytes: usize,
    /// Changed by those who find it, too. That one of two changes is lost does not matter.
    rounds: AtomicU8,
    /// It was written, or read by a scan, and not found since.
    is_probationary: AtomicBool,
}

impl CacheSlot {
    fn new(key: BlockKey, block: CachedBlock, expectation: Expectation) -> Self {
        let rounds = match expectation {
            Expectation::Often => ROUNDS_MAX,
            Expectation::Normal => 1,
            Expectation::Scan => 0,
        };
        debug_assert!(rounds <= ROUNDS_MAX, "rounds are bounded");
        Self {
            key,
            bytes: block.bytes(),
            block,
            rounds: AtomicU8::new(rounds),
            is_probationary: AtomicBool::new(rounds == 0),
        }
    }

    /// The same, not found since it came.
    fn on_probation(mut self) -> Self {
        *self.is_probationary.get_mut() = true;
        self
    }

    /// It was found: it gets so many rounds more. Mostly it has all of them, and nothing is
    /// written.
    fn note(&self, rounds: u8) {
        debug_assert!(rounds <= ROUNDS_MAX, "rounds are bounded");
        if rounds > 0 && self.is_probationary.load(Ordering::Relaxed) {
            self.is_probationary.store(false, Ordering::Relaxed);
        }
        let before = self.rounds.load(Ordering::Relaxed);
        debug_assert!(before <= ROUNDS_MAX, "rounds are bounded");
        let after = (before + rounds).min(ROUNDS_MAX);
        if after != before {
            self.rounds.store(after, Ordering::Relaxed);
        }
    }
}

/// Blocks whose keys have the same hash bits. Invariant: each block is found by its key, and bytes
/// are those of blocks.
#[derive(Debug, Default)]
struct Shard {
    by_key: HashMap<BlockKey, usize, BuildHasherDefault<KeyHasher>>,
    slots: Vec<CacheSlot>,
    hand: usize,
    /// Where blocks that were written look for the next that they may displace.
    displacer: usize,
    bytes: usize,
}

impl Shard {
    fn holds(&self) -> bool {
        self.by_key.len() == self.slots.len() && self.slots.is_empty() == (self.bytes == 0)
    }

    fn remove(&mut self, at: usize) -> CacheSlot {
        debug_assert!(at < self.slots.len(), "a block of the shard");
        let slot = self.slots.swap_remove(at);
        let found = self.by_key.remove(&slot.key);
        debug_assert_eq!(found, Some(at), "a block is found where it is");
        if let Some(moved) = self.slots.get(at) {
            self.by_key.insert(moved.key, at);
        }
        debug_assert!(self.bytes >= slot.bytes, "a block is counted");
        self.bytes -= slot.bytes;
        debug_assert!(self.holds());
        slot
    }

    fn add(&mut self, slot: CacheSlot) {
        debug_assert!(slot.bytes > SLOT_BYTES, "a block takes memory");
        let before = self.by_key.insert(slot.key, self.slots.len());
        debug_assert!(before.is_none(), "a block is there once");
        self.bytes += slot.bytes;
        self.slots.push(slot);
        debug_assert!(self.holds());
    }

    /// Takes blocks out until at most `bytes_max` are left, and hands them over, so that they are
    /// dropped outside of the lock.
    fn shrink(&mut self, bytes_max: usize, out: &mut Vec<CacheSlot>) {
        while self.bytes > bytes_max {
            debug_assert!(!self.slots.is_empty(), "bytes are those of blocks");
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = &self.slots[self.hand];
            slot.note(slot.block.take_finds());
            match slot.rounds.load(Ordering::Relaxed) {
                0 => out.push(self.remove(self.hand)),
                rounds => {
                    slot.rounds.store(rounds - 1, Ordering::Relaxed);
                    self.hand += 1;
                }
            }
        }
        debug_assert!(self.holds());
    }
}

/// A cache of checked blocks, and the counters of all who read through it.
#[derive(Debug)]
pub(crate) struct BlockCache {
    shards: Vec<Apart<RwLock<Shard>>>,
    /// What all shards hold together. A shard adds what changes with its lock held, so it is never
    /// less than nothing.
    bytes: Apart<AtomicUsize>,
    /// Changes with the limits; a shard keeps to it as it was when its lock was taken last.
    shard_bytes_max: AtomicUsize,
    limits: Mutex<Limits>,
    counters: ReadCounters,
    readers: Readers,
    prefetched: Prefetched,
    index_prefetches: IndexPrefetches,
    filter_builds: FilterBuilds,
    buffers: PageBuffers,
}

impl BlockCache {
    /// A cache of at most so many bytes.
    pub(crate) fn new(capacity_bytes: usize) -> Self {
        let count = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let count = if count.is_power_of_two() {
            count
        } else {
            count.next_power_of_two() / 2
        };
        assert!(count.is_power_of_two(), "a shard is found by a mask");
        debug_assert!(count <= SHARDS_MAX, "shards are few");
        Self {
            shards: (0..count).map(|_| Apart::default()).collect(),
            bytes: Apart::default(),
            shard_bytes_max: AtomicUsize::new(capacity_bytes / count),
            limits: Mutex::new(Limits {
                capacity: capacity_bytes,
                aside: 0,
            }),
            counters: ReadCounters::default(),
            readers: Readers::new(0),
            prefetched: Prefetched::default(),
            index_prefetches: IndexPrefetches::default(),
            filter_builds: FilterBuilds::default(),
            buffers: PageBuffers::default(),
        }
    }

    /// The same, where what is read ahead may take `bytes_max`.
    pub(crate) fn with_readers(mut self, bytes_max: u64) -> Self {
        debug_assert_eq!(self.bytes(), 0, "nothing was read yet");
        self.readers = Readers::new(bytes_max);
        self.buffers = PageBuffers::within(bytes_max);
        self
    }

    /// The threads that read ahead.
    pub(crate) const fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The block runs that were prefetched and are not used up.
    pub(crate) const fn prefetched(&self) -> &Prefetched {
        &self.prefetched
    }

    /// Prefetches of index blocks that are under way.
    pub(crate) const fn index_prefetches(&self) -> &IndexPrefetches {
        &self.index_prefetches
    }

    /// Filters of tables that are being made.
    pub(crate) const fn filter_builds(&self) -> &FilterBuilds {
        &self.filter_builds
    }

    /// Gives up all that is prefetched, and filters that are being made. Waits for what runs.
    pub(crate) fn stop_reading_ahead(&self) {
        self.prefetched.clear(&self.readers);
        self.index_prefetches.clear();
        self.filter_builds.clear();
    }

    /// Memory for long reads.
    pub(crate) const fn buffers(&self) -> &PageBuffers {
        &self.buffers
    }

    /// Most bytes that its blocks may take now.
    pub(crate) fn capacity(&self) -> usize {
        self.shard_bytes_max.load(Ordering::Relaxed) * self.shards.len()
    }

    /// Has at most so many bytes from now on, with what is set aside, as soon as this has returned.
    pub(crate) fn set_capacity(&self, capacity_bytes: usize) {
        let mut limits = self.limits.lock();
        limits.capacity = capacity_bytes;
        self.fit(&limits);
        debug_assert!(
            self.capacity() <= capacity_bytes,
            "what is set aside is a part of it"
        );
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes a shard, which the caller has locked, and the sum of all with it.
    fn change(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard)) {
        debug_assert!(shard.holds());
        let before = shard.bytes;
        change(shard);
        let after = shard.bytes;
        debug_assert!(shard.holds());
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            let sum = self.bytes.fetch_sub(before - after, Ordering::Relaxed);
            debug_assert!(sum >= before - after, "a shard is a part of all");
        }
    }

    /// True if half of it or more is free.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.bytes() <= self.capacity() / 2
    }

    /// Panics unless each block is found once, and all bytes are counted.
    #[cfg(test)]
    pub(crate) fn assert_sound(&self) {
        let mut sum = 0;
        for shard in &self.shards {
            let shard = shard.read();
            assert_eq!(
                shard.by_key.len(),
                shard.slots.len(),
                "a block is there twice"
            );
            for (at, slot) in shard.slots.iter().enumerate() {
                assert_eq!(
                    shard.by_key.get(&slot.key),
                    Some(&at),
                    "a block is not found"
                );
            }
            let bytes: usize = shard.slots.iter().map(|slot| slot.bytes).sum();
            assert_eq!(bytes, shard.bytes, "bytes are counted");
            sum += bytes;
        }
        assert_eq!(sum, self.bytes(), "the sum is that of all shards");
    }

    /// Counters of all readers.
    pub(crate) const fn counters(&self) -> &ReadCounters {
        &self.counters
    }

    fn shard(&self, key: &BlockKey) -> &RwLock<Shard> {
        let mut hasher = KeyHasher::default();
        hasher.write_u64(key.addr);
        hasher.write_u64(key.origin.0);
        let mask = self.shards.len() as u64 - 1;
        debug_assert!(
            self.shards.len().is_power_of_two(),
            "a shard is found by a mask"
        );
        // The high half, since the map in the shard goes by the low one.
        &self.shards[((hasher.0 >> 40) & mask) as usize]
    }

    /// A block, if it is here.
    pub(crate) fn get(&self, key: &BlockKey) -> Option<CachedBlock> {
        let found = self.find(key, 1);
        let count = match found {
            Some(_) => ReadCount::Hits,
            None => ReadCount::Misses,
        };
        self.counters.add(count, 1);
        found
    }

    /// A block, if it is here. It is not kept longer for that, and nothing is counted.
    pub(crate) fn glance(&self, key: &BlockKey) -> Option<CachedBlock> {
        self.find(key, 0)
    }

    fn find(&self, key: &BlockKey, rounds: u8) -> Option<CachedBlock> {
        debug_assert!(rounds <= ROUNDS_MAX, "rounds are bounded");
        let shard = self.shard(key).read();
        let slot = &shard.slots[*shard.by_key.get(key)?];
        debug_assert_eq!(slot.key, *key, "the map leads to the block");
        slot.note(rounds);
        Some(slot.block.clone())
    }

    /// True if a block of so many bytes is not there, and would push out none.
    pub(crate) fn has_room(&self, key: &BlockKey, bytes: usize) -> bool {
        let shard = self.shard(key).read();
        debug_assert!(shard.holds());
        let bytes = shard.bytes + bytes + SLOT_BYTES;
        bytes <= self.shard_bytes_max.load(Ordering::Relaxed) && !shard.by_key.contains_key(key)
    }

    /// Keeps a block. One that is too large for a shard is not kept.
    pub(crate) fn insert(&self, key: BlockKey, block: CachedBlock, expectation: Expectation) {
        let slot = CacheSlot::new(key, block, expectation);
        let bytes = slot.bytes;
        debug_assert!(bytes > SLOT_BYTES, "a block takes memory");
        let mut out = Vec::new();
        let mut shard = self.shard(&key).write();
        // With the lock held: who lowers it comes to this shard then, too.
        let bytes_max = self.shard_bytes_max.load(Ordering::Relaxed);
        if bytes > bytes_max / 2 || shard.by_key.contains_key(&key) {
            return;
        }
        self.change(&mut shard, |shard| {
            shard.shrink(bytes_max - bytes, &mut out);
            shard.add(slot);
            debug_assert!(shard.bytes <= bytes_max, "a shard is bounded");
        });
        debug_assert!(shard.by_key.contains_key(&key), "the next read finds it");
        drop(shard);
    }
}

#[cfg(test)]
mod tests;
