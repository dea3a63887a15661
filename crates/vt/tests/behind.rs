//! Values that go to their zone at once are written behind, and such a write fails after its
//! commit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use bytes::Bytes;
use common::{MIB, Setup, format, open};
use std::ops::Range;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{Device, DeviceCounters, DeviceError, Geometry, MemDevice};
use stitch_kv::{Batch, CommitOptions, Engine, KvError, TreeOptions};
use stitch_vt::VtEngine;

const COUNT: u64 = 100;

/// A device that takes writes behind, and loses them from some moment on.
#[derive(Debug)]
struct Late {
    inner: Arc<MemDevice>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    is_failing: bool,
    lost: Vec<Range<u64>>,
}

impl Late {
    fn new(inner: &Arc<MemDevice>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            state: Mutex::default(),
        })
    }

    /// As a device does that meets the range of a write that has failed.
    fn check(&self, range: &Range<u64>) -> Result<(), DeviceError> {
        let state = self.state.lock();
        let meets = |lost: &&Range<u64>| lost.start < range.end && range.start < lost.end;
        match state.lost.iter().find(meets) {
            None => Ok(()),
            Some(lost) => Err(DeviceError::Io {
                op: "write",
                name: "late".to_owned(),
                at: lost.start,
                len_bytes: lost.end - lost.start,
                source: std::io::Error::other("it was lost"),
            }),
        }
    }
}

impl Device for Late {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(&(offset..offset + out.len() as u64))?;
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, pieces)
    }

    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        state.taken += 1;
        if state.is_failing {
            state.lost.push(offset..offset + bytes.len() as u64);
            return Ok(());
        }
        self.inner.write_at(offset, &[bytes])
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.check(&(0..u64::MAX))?;
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(4096 / 8)
}

/// Rows in order, which go to their zone at once.
fn put(engine: &VtEngine, tree: TreeId, first: u64) -> Result<(), KvError> {
    let mut batch = Batch::new();
    for number in first..first + COUNT {
        batch.put(tree, &number.to_be_bytes(), &value(number));
    }
    engine.commit(&batch, CommitOptions::default()).map(drop)
}

fn get(engine: &VtEngine, tree: TreeId, number: u64) -> Result<Option<Bytes>, KvError> {
    engine.get(tree, &number.to_be_bytes(), None)
}

fn run(has_threads: bool) {
    let disk = Arc::new(MemDevice::new(64 * MIB));
    format(&*disk, None);
    let options = Setup::sized(256 << 10, 128 << 10, has_threads).options;
    let late = Late::new(&disk);
    let engine = open(Arc::clone(&late) as _, options.clone());
    let tree = TreeOptions {
        value_block_bytes: 4096,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &tree).unwrap();
    put(&engine, tree, 0).unwrap();
    engine.sync().unwrap();
    let before = late.state.lock().taken;
    assert!(before > 0, "it was written behind");
    late.state.lock().is_failing = true;
    put(&engine, tree, 1000).unwrap();
    assert!(late.state.lock().taken > before, "and so was this");
    // What can be read is right, what cannot is an error and nothing else.
    let lost = get(&engine, tree, 1000).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Io, "{lost}");
    assert_eq!(get(&engine, tree, 7).unwrap().unwrap(), value(7));
    assert!(engine.sync().is_err(), "it is not durable");
    assert!(engine.sync().is_err(), "and never will be");
    assert!(put(&engine, tree, 2000).is_err(), "nothing more is taken");
    assert!(engine.close().is_err(), "nor is it told to be well");
    drop(engine);
    late.state.lock().is_failing = false;

    let engine = open(Arc::clone(&disk) as _, options);
    for number in [0, COUNT - 1] {
        let found = get(&engine, tree, number).unwrap().unwrap();
        assert_eq!(found, value(number), "it was synced");
    }
    assert_eq!(get(&engine, tree, 1000).unwrap(), None);
    assert!(engine.check(&mut |_, _| {}).unwrap().is_empty());
    put(&engine, tree, 1000).unwrap();
    engine.sync().unwrap();
    assert_eq!(get(&engine, tree, 1099).unwrap().unwrap(), value(1099));
    engine.close().unwrap();
}

#[test]
fn what_was_lost_behind_is_told_and_is_not_there_in_the_next_life() {
    run(false);
}

#[test]
fn so_it_is_with_threads() {
    run(true);
}
