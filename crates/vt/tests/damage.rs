//! Data that cannot be read, and a life that goes on around it: writes go on, what is not in the
//! unreadable blocks is right, and what is in them is an error, never wrong or missing.
//! `VT_SEEDS=from..to` runs other seeds.

mod common;

use common::{MIB, Setup, open};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{FaultDevice, MemDevice};
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KvError, LostKeys, Snapshot, TreeOptions,
};
use stitch_volume::Extent;
use stitch_vt::VtEngine;

const KIB: u64 = 1 << 10;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store, what it should hold, and what of it was lost.
struct Life {
    setup: Setup,
    device: Arc<FaultDevice<MemDevice>>,
    engine: Arc<VtEngine>,
    tree: TreeId,
    rows: Rows,
    lost: Vec<LostKeys>,
    /// Keys put or deleted since the damage.
    known: BTreeSet<Vec<u8>>,
    snapshot: Option<(Snapshot, Rows)>,
    rng: Rng,
    key_count: u64,
    value_bytes: u64,
    /// Unreadable blocks that compactions met.
    met: u64,
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

impl Life {
    fn new(seed: u64, background: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut setup = Setup::sized(8 * KIB, 16 * KIB, background);
        setup.options.upserts = registry();
        let device = MemDevice::new(32 * MIB);
        common::format(&device, None);
        let device = Arc::new(FaultDevice::new(device));
        let engine = open(device.clone(), setup.options.clone());
        let options = TreeOptions {
            block_bytes: [1024, 4096][usize::try_from(rng.below(2)).expect("small")],
            ..TreeOptions::default()
        };
        let tree = engine.create_tree("tree", &options).expect("it is made");
        Self {
            setup,
            device,
            tree,
            rows: Rows::new(),
            lost: Vec::new(),
            known: BTreeSet::new(),
            snapshot: None,
            key_count: [60, 400, 2000][usize::try_from(rng.below(3)).expect("small")],
            value_bytes: [30, 300, 900][usize::try_from(rng.below(3)).expect("small")],
            engine,
            rng,
            met: 0,
        }
    }

    fn commit(&self, batch: &Batch) {
        let done = self.engine.commit(batch, CommitOptions::default());
        done.expect("writes go on");
    }

    fn ops(&mut self, count: u64) {
        for _ in 0..count {
            self.op();
            if !self.setup.options.background && self.rng.one_in(8) {
                self.engine.step().expect("background work goes on");
            }
        }
    }

    fn op(&mut self) {
        let mut batch = Batch::new();
        let key = key(self.rng.below(self.key_count));
        let len = usize::try_from(1 + self.rng.below(self.value_bytes)).expect("small");
        let mut value = vec![0; len];
        self.rng.fill(&mut value);
        match self.rng.below(20) {
            0..13 => {
                batch.put(self.tree, &key, &value);
                self.rows.insert(key.clone(), value);
                self.known.insert(key);
            }
            13..16 => {
                batch.delete(self.tree, &key);
                self.rows.remove(&key);
                self.known.insert(key);
            }
            16..19 => {
                value.truncate(8);
                batch.upsert(self.tree, &key, APPEND, &value);
                self.rows.entry(key).or_default().extend_from_slice(&value);
            }
            _ => {
                let start = self.rng.below(self.key_count);
                let len = 1 + self.rng.below(self.key_count / 8);
                self.delete_range(start, start + len);
                return;
            }
        }
        self.commit(&batch);
    }

    fn delete_range(&mut self, start: u64, end: u64) {
        let mut batch = Batch::new();
        batch.delete_range(self.tree, &key(start), &key(end));
        self.commit(&batch);
        for number in start..end.min(self.key_count) {
            self.rows.remove(&key(number));
            self.known.insert(key(number));
        }
    }

    fn is_lost(&self, key: &[u8]) -> bool {
        let mut lost = self.lost.iter();
        lost.any(|lost| lost.first.as_slice() <= key && key <= lost.last.as_slice())
    }

    /// Every key and every stretch between what is lost, now and at the snapshot.
    fn verify(&self) {
        for number in 0..self.key_count {
            let key = key(number);
            let expected = self.rows.get(&key);
            match self.engine.get(self.tree, &key, None) {
                Ok(found) => assert_eq!(found.as_deref(), expected.map(Vec::as_slice), "{number}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    let is_known = self.known.contains(&key);
                    assert!(self.is_lost(&key) && !is_known, "key {number}: {error}");
                }
            }
            if let Some((snapshot, rows)) = &self.snapshot {
                match self.engine.get(self.tree, &key, Some(snapshot)) {
                    Ok(found) => {
                        let expected = rows.get(&key).map(Vec::as_slice);
                        assert_eq!(found.as_deref(), expected, "{number} at the snapshot");
                    }
                    Err(error) => assert!(self.is_lost(&key), "key {number}: {error}"),
                }
            }
        }
        self.verify_batches();
        self.verify_scans();
    }

    /// A batch of keys finds what each of them finds alone. Its error is that of the first key, in
    /// key order, that cannot be read.
    fn verify_batches(&self) {
        let mut rng = Rng::new(self.key_count);
        for count in [2, 20, 20, 200, 200] {
            let keys = (0..count).map(|_| key(rng.below(self.key_count)));
            let mut keys: Vec<Vec<u8>> = keys.collect();
            keys.sort();
            let named: Vec<&[u8]> = keys.iter().rev().map(Vec::as_slice).collect();
            let many = self.engine.get_many(self.tree, &named, None);
            let alone = keys.iter().map(|key| self.engine.get(self.tree, key, None));
            let alone: Result<Vec<_>, KvError> = alone.collect();
            let in_order = many.map(|values| values.into_iter().rev().collect());
            let text = |error: KvError| error.to_string();
            assert_eq!(in_order.map_err(text), alone.map_err(text));
        }
    }

    fn verify_scans(&self) {
        let mut bounds: BTreeSet<Vec<u8>> = BTreeSet::from([Vec::new(), b"z".to_vec()]);
        for lost in &self.lost {
            bounds.insert(lost.first.clone());
            bounds.insert([&lost.last[..], &[0]].concat());
        }
        let bounds: Vec<_> = bounds.into_iter().collect();
        for pair in bounds.windows(2) {
            if self.is_lost(&pair[0]) {
                continue;
            }
            let expected = self
                .rows
                .range::<[u8], _>((Bound::Included(&pair[0][..]), Bound::Excluded(&pair[1][..])));
            let expected: Rows = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
            for direction in [Direction::Forward, Direction::Backward] {
                let found = self.scan(&pair[0], &pair[1], direction);
                assert_eq!(found.expect("nothing of it is lost"), expected);
            }
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], direction: Direction) -> Result<Rows, KvError> {
        let range = KeyRange::new(start, end);
        let mut scan = self.engine.scan(self.tree, range, direction, None)?;
        let mut out = Rows::new();
        while let Some((key, value)) = scan.next()? {
            out.insert(key.to_vec(), value.to_vec());
        }
        Ok(out)
    }

    fn reopen(&mut self) {
        self.snapshot = None;
        self.met += self.engine.counters().get("vt.unreadable_blocks");
        self.engine.close().expect("the store closes");
        self.engine = open(self.device.clone(), self.setup.options.clone());
    }

    /// Flips a bit in some blocks, and opens the store again. False if nothing was lost.
    fn damage(&mut self, blocks: u64) -> bool {
        self.snapshot = None;
        self.met += self.engine.counters().get("vt.unreadable_blocks");
        self.engine.close().expect("the store closes");
        let image = self.device.inner().written_pages();
        let zones = self.engine.volume().zones();
        let is_live = |addr: &u64| {
            zones.is_live(Extent {
                addr: *addr,
                len: 1024,
            })
        };
        let pages = image.into_iter().map(|(at, _)| at);
        let places: Vec<u64> = pages
            .flat_map(|at| [at, at + 1024, at + 2048, at + 3072])
            .collect();
        let places: Vec<u64> = places.into_iter().filter(is_live).collect();
        for _ in 0..blocks.min(places.len() as u64) {
            let place = usize::try_from(self.rng.below(places.len() as u64)).expect("small");
            let at = places[place] + self.rng.below(1024);
            self.device.corrupt(at, 1).expect("in the device");
        }
        self.engine = open(self.device.clone(), self.setup.options.clone());
        let found = self
            .engine
            .check(&mut |_, _| {})
            .expect("the check goes on");
        let lost: Vec<LostKeys> = found.into_iter().filter_map(|v| v.lost).collect();
        self.lost.extend(lost);
        self.known.clear();
        !self.lost.is_empty()
    }

    fn only_lost_keys_are_found(&self) {
        let found = self
            .engine
            .check(&mut |_, _| {})
            .expect("the check goes on");
        for violation in found {
            let lost = violation.lost.as_ref();
            let is_known = lost.is_some_and(|lost| {
                let mut all = self.lost.iter();
                all.any(|known| known.first <= lost.first && lost.last <= known.last)
            });
            assert!(is_known, "{violation:?}");
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("VT_SEEDS") else {
        return 0..12;
    };
    let (from, to) = text.split_once("..").expect("from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn life_goes_on_around_what_cannot_be_read() {
    live(false);
}

#[test]
fn life_goes_on_with_threads() {
    live(true);
}

fn live(background: bool) {
    let mut lost = 0;
    let mut met = 0;
    for seed in seeds() {
        let mut life = Life::new(seed, background);
        let empty = life.engine.space().free_bytes;
        let first = 500 + life.rng.below(3000);
        life.ops(first);
        let blocks = 1 + life.rng.below(4);
        if !life.damage(blocks) {
            continue;
        }
        lost += 1;
        println!("seed {seed}: {} ranges lost", life.lost.len());
        life.verify();
        for round in 0..12 {
            let count = 100 + life.rng.below(600);
            life.ops(count);
            if life.rng.one_in(3) {
                life.engine.quiesce().expect("background work goes on");
            }
            if life.rng.one_in(3) {
                life.snapshot = Some((life.engine.snapshot(), life.rows.clone()));
            }
            if life.rng.one_in(4) {
                life.reopen();
            }
            life.verify();
            life.only_lost_keys_are_found();
            if round == 6 && life.rng.one_in(2) {
                life.damage(1);
            }
        }
        life.snapshot = None;
        let (start, end) = (Vec::new(), b"z".to_vec());
        let mut batch = Batch::new();
        batch.delete_range(life.tree, &start, &end);
        life.commit(&batch);
        life.engine.quiesce().expect("background work goes on");
        let left = life
            .engine
            .check(&mut |_, _| {})
            .expect("the check goes on");
        assert_eq!(left, [], "what is deleted whole is gone");
        // A thread that looks at a table holds it until the look ends.
        life.engine.close().expect("the store closes");
        assert_eq!(
            life.engine.space().free_bytes,
            empty,
            "and its space is back"
        );
        life.reopen();
        met += life.met;
    }
    assert!(lost > 0 && met > 0, "the test tests something");
}

/// An empty store that writes values to their zone at once, from 8 KiB on, and its device.
fn writing_at_once() -> (Arc<FaultDevice<MemDevice>>, Arc<VtEngine>) {
    let mut setup = Setup::sized(64 * KIB, 64 * KIB, false).direct(8 * KIB);
    setup.options.upserts = registry();
    // What is on the device is to be read there.
    setup.options.caches_writes = false;
    let device = MemDevice::new(32 * MIB);
    common::format(&device, None);
    let device = Arc::new(FaultDevice::new(device));
    let engine = open(device.clone(), setup.options);
    (device, engine)
}

/// A run of long values is written to its zone at once, before it and after it other writes to its
/// keys; then it cannot be read when the memtable is written out.
#[test]
fn values_written_at_once_that_cannot_be_read_keep_their_place() {
    let (device, engine) = writing_at_once();
    let options = TreeOptions {
        block_bytes: 4096,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options).expect("it is made");
    let put = |keys: &[u64], value: &[u8]| {
        let mut batch = Batch::new();
        for number in keys {
            batch.put(tree, &key(*number), value);
        }
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("writes go on");
    };
    let mut batch = Batch::new();
    batch.delete_range(tree, &key(0), &key(70));
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("writes go on");
    put(&[5, 20, 50, 51, 55], b"older");
    let keys: Vec<u64> = (10..40).collect();
    put(&keys, &[0xab; 1000]);
    let mut batch = Batch::new();
    batch.delete_range(tree, &key(50), &key(52));
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("writes go on");
    put(&[12, 20, 60], b"newer");
    let mut batch = Batch::new();
    batch.upsert(tree, &key(31), APPEND, b"more");
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("writes go on");
    let before = engine.counters().get("vt.direct_bytes");
    assert!(before >= 30_000, "the long values are written at once");
    // All of the run's blocks but the first: that with key 10.
    let pages = device.inner().written_pages();
    let of_run = |page: &[u8]| page.windows(64).any(|bytes| bytes == [0xab; 64]);
    let mut places = pages.into_iter().filter(|(_, page)| of_run(&page[..]));
    places.next().expect("the run is on the device");
    places.next().expect("with its second page");
    for (at, _) in places {
        device.corrupt(at + 100, 1).expect("in the device");
    }
    engine.quiesce().expect("the write-out goes on");
    let get = |number| engine.get(tree, &key(number), None);
    for (number, value) in [
        (5, "older"),
        (55, "older"),
        (12, "newer"),
        (20, "newer"),
        (60, "newer"),
    ] {
        let found = get(number).expect("it is in no damaged block");
        assert_eq!(found.as_deref(), Some(value.as_bytes()), "key {number}");
    }
    assert_eq!(
        get(10).expect("a whole block").as_deref(),
        Some(&[0xab; 1000][..])
    );
    assert_eq!(get(30).expect_err("damaged").kind(), ErrorKind::Corrupt);
    assert_eq!(get(50).expect("it was deleted"), None);
    put(&[30], b"newest");
    engine.quiesce().expect("the write-out goes on");
    assert_eq!(
        get(30).expect("written again").as_deref(),
        Some(&b"newest"[..])
    );
    assert_eq!(get(31).expect_err("damaged").kind(), ErrorKind::Corrupt);
}

/// Pages are put one by one, in a write stream; one of them cannot be read any more when the
/// memtable is written out, and an upsert is over it.
#[test]
fn a_page_of_a_write_stream_that_cannot_be_read_keeps_its_place() {
    let (device, engine) = writing_at_once();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("it is made");
    let commit = |change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        change(&mut batch);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("writes go on");
    };
    for number in 0..10 {
        let fill = u8::try_from(number).expect("small");
        commit(&|batch| batch.put(tree, &key(number), &[fill; 4096]));
    }
    let direct = engine.counters().get("vt.direct_bytes");
    assert_eq!(direct, 8 * 4096, "all but the first two");
    commit(&|batch| batch.upsert(tree, &key(5), APPEND, b"more"));
    commit(&|batch| batch.upsert(tree, &key(6), APPEND, b"more"));
    commit(&|batch| batch.put(tree, &key(8), b"newer"));
    let pages = device.inner().written_pages();
    let of_key = |fill: u8| {
        pages
            .iter()
            .filter(move |(_, page)| page[..] == [fill; 4096])
    };
    for fill in [5, 8] {
        assert_eq!(of_key(fill).count(), 1, "it was written once");
        let (at, _) = of_key(fill).next().expect("it is on the device");
        device.corrupt(at + 100, 1).expect("in the device");
    }
    let check = || {
        let get = |number| engine.get(tree, &key(number), None);
        assert_eq!(get(4).expect("whole").as_deref(), Some(&[4; 4096][..]));
        assert_eq!(get(5).expect_err("damaged").kind(), ErrorKind::Corrupt);
        let appended = get(6).expect("whole").expect("it is there");
        assert_eq!(&appended[..4096], &[6; 4096]);
        assert_eq!(&appended[4096..], b"more");
        assert_eq!(get(8).expect("put again").as_deref(), Some(&b"newer"[..]));
        let (start, end) = (key(0), key(5));
        let range = KeyRange {
            start: &start,
            end: Some(&end),
        };
        let scan = engine.scan(tree, range, Direction::Backward, None);
        let mut scan = scan.expect("it scans");
        for number in (0..5).rev() {
            let (found, _) = scan.next().expect("whole").expect("a row");
            assert_eq!(found, key(number));
        }
    };
    check();
    let report = engine.check(&mut |_, _| {}).expect("the check goes on");
    let damaged: Vec<&str> = report.iter().map(|violation| violation.rule).collect();
    assert_eq!(damaged, ["block-unreadable"; 2]);
    engine.quiesce().expect("the write-out goes on");
    check();
    commit(&|batch| batch.put(tree, &key(5), b"newest"));
    engine.quiesce().expect("the write-out goes on");
    let found = engine.get(tree, &key(5), None).expect("put again");
    assert_eq!(found.as_deref(), Some(&b"newest"[..]));
}
