//! Damage in a chosen place of a chosen level, and a life after it.

use super::*;
use crate::entry::EntryIter;
use std::collections::BTreeMap;
use stitch_base::ErrorKind;
use stitch_base::Seqno;
use stitch_base::random::{Rng, bytes16};
use stitch_base::sync::RwLock;
use stitch_device::{Device, DeviceCounters, DeviceError, Geometry, MemDevice};
use stitch_format::vt_index::IndexEntry;
use stitch_volume::{FormatOptions, OpenOptions};

const KEYS: u64 = 4000;

/// A device of which a part cannot be read.
#[derive(Debug)]
struct BadSectors {
    inner: MemDevice,
    /// From and to.
    bad: RwLock<Option<(u64, u64)>>,
}

impl BadSectors {
    fn meets(&self, offset: u64, len: u64) -> bool {
        let bad = *self.bad.read();
        bad.is_some_and(|(from, to)| offset < to && from < offset + len)
    }
}

impl Device for BadSectors {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.meets(offset, out.len() as u64) {
            return Err(DeviceError::Io {
                op: "read",
                name: "bad sectors".to_owned(),
                at: offset,
                len_bytes: out.len() as u64,
                source: std::io::Error::other("a bad sector"),
            });
        }
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let len: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        if self.meets(offset, len) {
            // A sector that is written is replaced.
            *self.bad.write() = None;
        }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// A bit of a data block.
    Bit,
    /// A data block that the device does not read.
    Sector,
    /// A bit of the root block.
    Root,
}

/// A key, and the sequence number of one of its versions.
type KeyVersion = (Vec<u8>, Seqno);

struct Life {
    device: Arc<BadSectors>,
    engine: Arc<VtEngine>,
    tree: TreeId,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: Rng,
}

fn open(device: &Arc<BadSectors>) -> Arc<VtEngine> {
    let options = VtOptions {
        memory_bytes: 16 << 20,
        memtable_bytes: Some(8 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(64 << 10),
        background: false,
        level0_tables_max: 4,
        ..VtOptions::default()
    };
    let device = Arc::clone(device) as Arc<dyn Device>;
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    VtEngine::open(opened, options).expect("the store opens")
}

impl Life {
    fn new(seed: u64) -> Self {
        let device = Arc::new(BadSectors {
            inner: MemDevice::new(64 << 20),
            bad: RwLock::new(None),
        });
        let options = FormatOptions {
            uuid: bytes16().expect("the system has randomness"),
            ..FormatOptions::default()
        };
        Volume::format(&*device, &options, &mut |_, _| {}).expect("the device is large enough");
        let engine = open(&device);
        let tree = engine.create_tree("tree", &TreeOptions::default());
        Self {
            tree: tree.expect("it is made"),
            device,
            engine,
            rows: BTreeMap::new(),
            rng: Rng::new(seed),
        }
    }

    fn put(&mut self, count: u64) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for _ in 0..count {
            let key = format!("key{:05}", self.rng.below(KEYS)).into_bytes();
            let mut value = vec![0; 300];
            self.rng.fill(&mut value);
            let mut batch = Batch::new();
            if self.rng.one_in(5) {
                batch.delete(self.tree, &key);
                self.rows.remove(&key);
            } else {
                batch.put(self.tree, &key, &value);
                self.rows.insert(key.clone(), value);
            }
            let done = self.engine.commit(&batch, CommitOptions::default());
            done.expect("writes go on");
            if self.rng.one_in(8) {
                self.engine.step().expect("background work goes on");
            }
            keys.push(key);
        }
        keys
    }

    /// Harms a table of a level. Answers the keys that it may cost, from and to; `None` if the
    /// level is empty.
    fn harm(&mut self, level: usize, harm: Harm) -> Option<(Vec<u8>, Vec<u8>)> {
        self.engine.close().expect("the store closes");
        let version = self.engine.store.version();
        let tables = &version.trees[&self.tree].levels[level].tables;
        let at = usize::try_from(self.rng.below(tables.len() as u64)).expect("small");
        let table = tables.get(at)?;
        let index = self
            .engine
            .store
            .tables
            .reader(table)
            .index_entries(&[], None);
        let index = index.expect("the index is whole");
        let block = &index[index.len() / 2];
        let (addr, first, last) = match harm {
            Harm::Root => {
                let meta = table.meta();
                (meta.root_addr, &meta.smallest, &meta.largest)
            }
            _ => (block.block.addr, &block.first, &block.last),
        };
        if harm == Harm::Sector {
            *self.device.bad.write() = Some((addr, addr + 512));
        } else {
            self.flip_bit(addr + 100);
        }
        let lost = (first.clone(), last.clone());
        drop(version);
        self.engine = open(&self.device);
        Some(lost)
    }

    fn flip_bit(&self, addr: u64) {
        let inner = &self.device.inner;
        let mut byte = [0];
        inner.read_at(addr, &mut byte).expect("it is there");
        byte[0] ^= 4;
        inner.write_at(addr, &[&byte]).expect("it is there");
    }

    /// Every data block, and the entries that levels above it have in its range.
    fn blocks(&self) -> Vec<(IndexEntry, Vec<KeyVersion>)> {
        let version = self.engine.store.version();
        let tree = &version.trees[&self.tree];
        let mut blocks = Vec::new();
        let mut above: Vec<KeyVersion> = Vec::new();
        for level in &tree.levels {
            let tables = level.tables.iter();
            let tables: Vec<_> = tables
                .map(|handle| self.engine.store.tables.reader(handle))
                .collect();
            for table in &tables {
                for block in table.index_entries(&[], None).expect("the index is whole") {
                    let is_in = |key: &[u8]| *block.first <= *key && *key <= *block.last;
                    let newer = above.iter().filter(|(key, _)| is_in(key)).cloned();
                    let newer = newer.collect();
                    blocks.push((block, newer));
                }
            }
            for table in &tables {
                let mut entries = table.iter(Arc::default());
                entries
                    .seek(&[], Seqno(u64::MAX))
                    .expect("the table is whole");
                while let Some(entry) = entries.current() {
                    above.push((entry.key.to_vec(), entry.seqno));
                    entries.next().expect("the table is whole");
                }
            }
        }
        blocks
    }

    fn verify(&self, lost: &(Vec<u8>, Vec<u8>), known: &[Vec<u8>]) {
        for number in 0..KEYS {
            let key = format!("key{number:05}").into_bytes();
            match self.engine.get(self.tree, &key, None) {
                Ok(found) => assert_eq!(found.as_deref(), self.rows.get(&key).map(Vec::as_slice)),
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io),
                        "{error}"
                    );
                    assert!(
                        lost.0 <= key && key <= lost.1 && !known.contains(&key),
                        "{number}"
                    );
                }
            }
        }
    }
}

/// A store that was harmed in a level, and what comes after.
fn life_after(level: usize, harm: Harm, seed: u64) -> u64 {
    let mut life = Life::new(seed);
    life.put(12_000);
    let Some(lost) = life.harm(level, harm) else {
        panic!("level {level} is empty");
    };
    let mut known = Vec::new();
    for _ in 0..4 {
        known.extend(life.put(1500));
        while life.engine.step().expect("background work goes on") {}
        life.verify(&lost, &known);
        let version = life.engine.store.version();
        let tree = &version.trees[&life.tree];
        let detours = &life
            .engine
            .store
            .compactor
            .scheduler
            .lock()
            .exclusions
            .detours;
        let (mut unreadable, mut held) = (0, 0);
        for (n, table) in tree.tables() {
            unreadable += usize::from(detours.is_unreadable(table));
            held += usize::from(detours.is_held(tree, n, table));
        }
        assert!(
            unreadable <= 1 && held <= 2,
            "{unreadable} unreadable, {held} held"
        );
        assert!(tree.levels[0].tables.len() < 4, "level 0 goes down");
    }
    let counters = life.engine.counters();
    let met = counters.get("vt.unreadable_blocks") + counters.get("vt.unreadable_tables");
    let mut batch = Batch::new();
    batch.delete_range(life.tree, b"a", b"z");
    let done = life.engine.commit(&batch, CommitOptions::default());
    done.expect("writes go on");
    life.engine.quiesce().expect("background work goes on");
    let version = life.engine.store.version();
    assert_eq!(version.tables().count(), 0, "what is deleted whole is gone");
    met
}

#[test]
fn life_goes_on_after_harm_in_each_level() {
    for harm in [Harm::Bit, Harm::Sector, Harm::Root] {
        for level in 0..4 {
            let mut met = 0;
            for seed in 0..2 {
                met += life_after(level, harm, seed);
            }
            assert!(met > 0, "{harm:?} in level {level} is met");
        }
    }
}

/// A block is older than the levels above it, and yet may have later sequence numbers than entries
/// there: of other keys. So its place is its level, and not a sequence number (ADR 0211).
#[test]
fn levels_above_an_unreadable_block_with_later_writes_are_read() {
    let mut life = Life::new(1);
    life.put(12_000);
    let mut blocks = life.blocks();
    let is_earlier = |block: &IndexEntry, seqno: &Seqno| *seqno <= block.max_seqno;
    for (block, newer) in &mut blocks {
        newer.retain(|(_, seqno)| is_earlier(block, seqno));
    }
    let (block, newer) = blocks
        .iter()
        .max_by_key(|(_, newer)| newer.len())
        .expect("there are blocks");
    assert!(
        !newer.is_empty(),
        "entries above a block are earlier than others in it"
    );
    life.engine.close().expect("the store closes");
    life.flip_bit(block.block.addr + 100);
    life.engine = open(&life.device);
    let mut keys = (0..KEYS).map(|number| format!("key{number:05}").into_bytes());
    let is_lost = |key: &Vec<u8>| life.engine.get(life.tree, key, None).is_err();
    let lost = keys.find(is_lost).expect("the block is unreadable");
    assert!(block.first <= lost && lost <= block.last);
    for (key, _) in newer {
        let found = life.engine.get(life.tree, key, None);
        let found = found.expect("a level above the block has the key");
        assert_eq!(found.as_deref(), life.rows.get(key).map(Vec::as_slice));
    }
}
