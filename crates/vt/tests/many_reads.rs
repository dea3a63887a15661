//! What reads of several keys ask of the device, and that they find what single reads find.

mod common;

use bytes::Bytes;
use common::{MIB, Setup, open};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{
    Device, DeviceCounters, DeviceError, Fault, FaultDevice, FaultOp, Geometry, MemDevice, Wanted,
};
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{
    Batch, CommitOptions, Counters, Engine, KvError, NewBranch, Snapshot, TreeOptions,
};
use stitch_vt::VtEngine;
use stitch_vt::counters::DATA_BLOCKS_READ;

const KIB: u64 = 1 << 10;
const READ_ROUNDS: &str = "vt.read_rounds";
/// Most blocks and bytes of one request: the bounds of `BatchReads`, and one block more.
const ROUND_BLOCKS_MAX: u64 = 64;
const ROUND_BYTES_MAX: u64 = MIB + 128 * KIB;

/// A device that counts requests to read.
#[derive(Debug)]
struct CountedReads {
    inner: FaultDevice<MemDevice>,
    /// Requests for one extent, and for several.
    single: AtomicU64,
    several: AtomicU64,
    /// Extents of the latter; neighbours are one.
    extents: AtomicU64,
    /// The most buffers of a request for several, and the most bytes.
    pieces_max: AtomicU64,
    bytes_max: AtomicU64,
}

impl CountedReads {
    fn new(len_bytes: u64) -> Arc<Self> {
        let device = MemDevice::new(len_bytes);
        common::format(&device, None);
        Arc::new(Self {
            inner: FaultDevice::new(device),
            single: AtomicU64::default(),
            several: AtomicU64::default(),
            extents: AtomicU64::default(),
            pieces_max: AtomicU64::default(),
            bytes_max: AtomicU64::default(),
        })
    }

    /// Requests for one extent and for several since the last call.
    fn take(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.single), take(&self.several))
    }
}

impl Device for CountedReads {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.single.fetch_add(1, Ordering::Relaxed);
        self.inner.read_at(offset, out)
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        let bytes: usize = pieces.iter().map(|piece| piece.out.len()).sum();
        let extents = pieces.chunk_by(|before, after| before.end() == after.offset);
        let extents = extents.count() as u64;
        self.several.fetch_add(1, Ordering::Relaxed);
        self.extents.fetch_add(extents, Ordering::Relaxed);
        self.pieces_max
            .fetch_max(pieces.len() as u64, Ordering::Relaxed);
        self.bytes_max.fetch_max(bytes as u64, Ordering::Relaxed);
        self.inner.read_each(pieces)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, pieces)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// A store whose reads are counted.
struct Bed {
    device: Arc<CountedReads>,
    setup: Setup,
    engine: Arc<VtEngine>,
    tree: TreeId,
}

impl Bed {
    fn new(mut setup: Setup) -> Self {
        setup.options.upserts = registry();
        // What is on the device is read there.
        setup.options.caches_writes = false;
        let device = CountedReads::new(128 * MIB);
        let engine = open(device.clone(), setup.options.clone());
        let options = TreeOptions {
            block_bytes: 4096,
            ..TreeOptions::default()
        };
        let tree = engine.create_tree("tree", &options).expect("it is made");
        Self {
            device,
            setup,
            engine,
            tree,
        }
    }

    fn commit(&self, fill: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        fill(&mut batch);
        let done = self.engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
        while self.engine.step().expect("background work succeeds") {}
    }

    fn put_all(&self, keys: impl Iterator<Item = u64>, value_bytes: usize) {
        for key in keys {
            self.commit(|batch| batch.put(self.tree, &name(key), &value(key, value_bytes)));
        }
        self.engine.quiesce().expect("background work succeeds");
    }

    /// Begins a life in which nothing is in the cache.
    fn reopen(&mut self) {
        self.engine.close().expect("the store closes");
        self.engine = open(self.device.clone(), self.setup.options.clone());
        self.device.take();
    }

    fn get_many(&self, keys: &[[u8; 8]]) -> Result<Vec<Option<Bytes>>, KvError> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        self.engine.get_many(self.tree, &keys, None)
    }

    fn get(&self, key: u64) -> Result<Option<Bytes>, KvError> {
        self.engine.get(self.tree, &name(key), None)
    }

    fn grown(&self, before: &Counters, name: &str) -> u64 {
        self.engine.counters().get(name) - before.get(name)
    }

    /// Reads keys of this tree and values of this length, and checks them.
    #[track_caller]
    fn assert_read(&self, keys: &[[u8; 8]], value_bytes: usize) {
        let values = self.get_many(keys).expect("the keys are read");
        for (key, found) in keys.iter().zip(values) {
            let key = u64::from_be_bytes(*key);
            assert_eq!(
                found.as_deref(),
                Some(&*value(key, value_bytes)),
                "key {key}"
            );
        }
    }
}

fn name(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(seed).fill(&mut out);
    out
}

/// So many different keys of `0..below`, in no order.
fn some(count: u64, below: u64) -> Vec<[u8; 8]> {
    (0..count)
        .map(|n| name(n * 7919 % count * (below / count)))
        .collect()
}

#[test]
fn a_hundred_cold_keys_take_a_few_requests() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    // Written in no order, so that several levels have keys everywhere.
    bed.put_all((0..16_000).map(|n| n * 7919 % 16_000), 1000);
    let keys = some(100, 16_000);
    bed.reopen();
    let before = bed.engine.counters();
    bed.assert_read(&keys, 1000);
    let (single, several) = bed.device.take();
    assert_eq!(single, 0, "no block is read alone");
    assert!(several <= 12, "{several} requests: roots, indexes, data");
    assert_eq!(bed.grown(&before, READ_ROUNDS), several);
    let read = bed.grown(&before, DATA_BLOCKS_READ);
    assert!((90..120).contains(&read), "{read} data blocks");
    assert!(bed.device.pieces_max.load(Ordering::Relaxed) <= ROUND_BLOCKS_MAX);
    assert!(bed.device.bytes_max.load(Ordering::Relaxed) <= ROUND_BYTES_MAX);

    // Now that the indexes are in the cache: two rounds, and one more for wrong filters.
    let others: Vec<_> = keys
        .iter()
        .map(|key| name(u64::from_be_bytes(*key) + 80))
        .collect();
    bed.assert_read(&others, 1000);
    let (single, several) = bed.device.take();
    assert!((2..5).contains(&several), "{several} requests");
    assert_eq!(single, 0, "no block is read alone");

    bed.reopen();
    for key in &keys {
        bed.get(u64::from_be_bytes(*key)).expect("the key is read");
    }
    let (single, several) = bed.device.take();
    assert!(single + several >= 100, "each key alone waits for a block");
}

#[test]
fn what_is_in_the_cache_is_not_read_again() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    bed.put_all((0..4000).map(|n| n * 7919 % 4000), 1000);
    bed.reopen();
    let keys = some(500, 4000);
    bed.assert_read(&keys, 1000);
    bed.device.take();
    let before = bed.engine.counters();
    bed.assert_read(&keys, 1000);
    assert_eq!(bed.device.take(), (0, 0));
    assert_eq!(bed.grown(&before, READ_ROUNDS), 0);
    let found = bed.get_many(&[]).expect("nothing is asked");
    assert!(found.is_empty());
}

#[test]
fn keys_that_are_nowhere_read_hardly_any_data() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    bed.put_all((0..8000).map(|n| 2 * (n * 7919 % 8000)), 1000);
    bed.reopen();
    let before = bed.engine.counters();
    let keys: Vec<[u8; 8]> = (0..2000).map(|n| name(8 * n + 1)).collect();
    let values = bed.get_many(&keys).expect("the keys are read");
    assert!(values.iter().all(Option::is_none));
    let read = bed.grown(&before, DATA_BLOCKS_READ);
    assert!(read < 40, "{read} data blocks read");
}

#[test]
fn neighbours_on_the_device_are_one_extent() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    bed.put_all(0..4000, 1000);
    bed.reopen();
    let keys: Vec<[u8; 8]> = (1000..1200).map(name).collect();
    let before = bed.engine.counters();
    bed.assert_read(&keys, 1000);
    let blocks = bed.grown(&before, DATA_BLOCKS_READ);
    let extents = bed.device.extents.swap(0, Ordering::Relaxed);
    let (single, several) = bed.device.take();
    assert!((45..70).contains(&blocks), "{blocks} blocks");
    assert!(single + several <= 6, "{several} requests");
    assert!(extents <= 16, "{extents} extents");
}

/// Values that commits write to their zones at once: first known to the memtable, then in tables.
#[test]
fn values_in_blocks_of_their_own_are_read_in_rounds() {
    const LEN: usize = 16 << 10;
    let setup = Setup::sized(4 * MIB, 512 * KIB, false).direct(64 * KIB);
    let mut bed = Bed::new(setup);
    for first in (0..512u64).step_by(32) {
        bed.commit(|batch| {
            for key in first..first + 32 {
                batch.put(bed.tree, &name(key), &value(key, LEN));
            }
        });
    }
    assert!(bed.engine.counters().get("vt.direct_bytes") >= 512 * LEN as u64);
    let keys = some(128, 512);
    for is_written_out in [false, true] {
        if is_written_out {
            bed.reopen();
        }
        bed.device.take();
        let before = bed.engine.counters();
        bed.assert_read(&keys, LEN);
        let (single, several) = bed.device.take();
        let bytes = 128 * LEN as u64;
        assert!(single + several <= bytes / MIB + 6, "{single} {several}");
        assert_eq!(bed.grown(&before, DATA_BLOCKS_READ), 128);
        assert!(bed.device.bytes_max.load(Ordering::Relaxed) <= ROUND_BYTES_MAX);
    }
}

/// A cache that keeps next to nothing: each lookup still comes to its end, from what its batch
/// holds.
#[test]
fn a_cache_without_room_reads_no_block_twice() {
    let mut setup = Setup::sized(256 * KIB, 512 * KIB, false);
    setup.options.memory_bytes = 2 * MIB;
    let mut bed = Bed::new(setup);
    bed.put_all((0..16_000).map(|n| n * 7919 % 16_000), 1000);
    bed.reopen();
    let before = bed.engine.counters();
    let keys = some(4000, 16_000);
    bed.assert_read(&keys, 1000);
    let read = bed.grown(&before, DATA_BLOCKS_READ);
    assert!(read <= 4400, "{read} blocks for 4000 keys");
    let (single, several) = bed.device.take();
    assert!(single < 40, "{single} blocks are read alone");
    assert!(several < 200, "{several} requests for 4000 keys");
}

/// A store with all kinds of messages, a snapshot of it and a branch.
fn mixed(bed: &Bed, rng: &mut Rng, snapshot: &mut Option<Snapshot>) -> TreeId {
    let mut tree = bed.tree;
    for step in 0..6000u64 {
        let key = name(rng.below(1500));
        let len = [8, 300, 3000, 20_000][usize::try_from(rng.below(4)).expect("small")];
        bed.commit(|batch| match rng.below(40) {
            0..24 => batch.put(tree, &key, &value(step, len)),
            24..30 => batch.delete(tree, &key),
            30..39 => batch.upsert(tree, &key, APPEND, &value(step, 9)),
            _ => {
                let start = rng.below(1500);
                let end = name(start + 1 + rng.below(60));
                batch.delete_range(tree, &name(start), &end);
            }
        });
        if step == 3000 {
            *snapshot = Some(bed.engine.snapshot());
        }
        if step == 4000 {
            let branch = NewBranch::new(tree, "branch");
            let made = bed.engine.branch_trees(&[branch], None);
            tree = made.expect("a branch is made")[0];
        }
    }
    tree
}

#[track_caller]
fn assert_as_singles(engine: &VtEngine, tree: TreeId, keys: &[[u8; 8]], at: Option<&Snapshot>) {
    let named: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let values = engine.get_many(tree, &named, at).expect("they are read");
    assert_eq!(values.len(), keys.len(), "one value for each key");
    for (key, value) in named.iter().zip(values) {
        let alone = engine.get(tree, key, at).expect("it is read");
        assert_eq!(value, alone, "key {key:?}");
    }
}

#[test]
fn batches_find_what_single_reads_find() {
    for (seed, memory_bytes) in [(1, 2 * MIB), (2, 4 * MIB), (3, 64 * MIB)] {
        let mut setup = Setup::sized(64 * KIB, 128 * KIB, false).direct(16 * KIB);
        setup.options.memory_bytes = memory_bytes;
        let bed = Bed::new(setup);
        let mut rng = Rng::new(seed);
        let mut snapshot = None;
        let branch = mixed(&bed, &mut rng, &mut snapshot);
        let before = bed.engine.counters();
        for round in 0..60 {
            let count = [2, 10, 100, 700][round % 4];
            let below = [1500, 40][round / 4 % 2];
            let keys = (0..count).map(|_| name(rng.below(below)));
            let keys: Vec<[u8; 8]> = keys.collect();
            let tree = [bed.tree, branch][round / 8 % 2];
            let at = snapshot
                .as_ref()
                .filter(|_| tree == bed.tree && round % 3 == 0);
            assert_as_singles(&bed.engine, tree, &keys, at);
        }
        let rounds = bed.grown(&before, READ_ROUNDS);
        assert!(memory_bytes > 4 * MIB || rounds > 40, "{rounds} rounds");
    }
}

/// One request of a round fails, and with it all blocks of the round: the keys read their blocks
/// alone then.
#[test]
fn a_round_that_fails_is_read_block_by_block() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    bed.put_all((0..16_000).map(|n| n * 7919 % 16_000), 1000);
    let keys = some(100, 16_000);
    for nth in 1..8 {
        bed.reopen();
        let reads = bed.device.inner.calls().reads;
        let fault = Fault::once(FaultOp::Read, reads + 20 * nth);
        bed.device.inner.add(fault);
        bed.assert_read(&keys, 1000);
        bed.device.inner.clear();
    }
    assert!(bed.device.inner.hits() >= 5, "rounds have failed");
}

/// A block is damaged: a batch without its keys is read, and one with them fails as a single read.
#[test]
fn a_damaged_block_is_an_error_of_its_own_keys() {
    let mut bed = Bed::new(Setup::sized(256 * KIB, 512 * KIB, false));
    bed.put_all((0..2000).map(|n| n * 7919 % 2000), 1000);
    let bad = value(700, 1000);
    let pages = bed.device.inner.inner().written_pages();
    let holds = |page: &[u8]| page.windows(64).any(|bytes| bytes == &bad[100..164]);
    for (at, page) in pages {
        if holds(&page) {
            bed.device.inner.corrupt(at + 9, 1).expect("in the device");
        }
    }
    bed.reopen();
    let sound: Vec<u64> = (0..2000).filter(|key| bed.get(*key).is_ok()).collect();
    assert!(sound.len() < 2000, "a block is damaged");
    assert!(sound.len() >= 1990, "others are not");
    let alone = bed.get(700).expect_err("it is damaged").to_string();
    bed.reopen();
    let named: Vec<[u8; 8]> = sound.iter().map(|key| name(*key)).collect();
    bed.assert_read(&named, 1000);
    bed.reopen();
    let all: Vec<[u8; 8]> = (700..2000).rev().map(name).collect();
    let error = bed.get_many(&all).expect_err("a key is damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.to_string(), alone);
}
