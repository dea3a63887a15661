//! Damage in a chosen place of a chosen level, and a life after it.

use super::*;
use std::collections::BTreeMap;
use stitch_base::ErrorKind;
use stitch_base::random::{Rng, bytes16};
use stitch_base::sync::RwLock;
use stitch_device::{Device, DeviceCounters, DeviceError, Geometry, MemDevice};
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
            let mut byte = [0];
            self.device
                .inner
                .read_at(addr + 100, &mut byte)
                .expect("it is there");
            byte[0] ^= 4;
            self.device
                .inner
                .write_at(addr + 100, &[&byte])
                .expect("it is there");
        }
        let lost = (first.clone(), last.clone());
        drop(version);
        self.engine = open(&self.device);
        Some(lost)
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
        let detours = &life.engine.store.compactor.scheduler.lock().exclusions.detours;
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
