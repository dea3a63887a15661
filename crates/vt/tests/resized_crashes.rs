//! A crash at every sync, and at many of the writes, of what is done to the space of a store and to
//! the order in it.

mod common;

use common::{MIB, format, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, MemDevice};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, TreeOptions};
use stitch_volume::TrimRange;
use stitch_vt::{VtEngine, VtError, VtOptions};

const LEN: u64 = 32 * MIB;
const SHORT: u64 = 18 * MIB;
const LONG: u64 = 40 * MIB;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Image = (MemDevice, TreeId, Rows);
type Work = fn(&VtEngine) -> Result<(), VtError>;

fn options() -> VtOptions {
    VtOptions {
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(256 << 10),
        table_bytes: Some(256 << 10),
        background: false,
        ..VtOptions::default()
    }
}

fn put(engine: &VtEngine, tree: TreeId, rows: &mut Rows, first: u64, count: u64) {
    let mut rng = Rng::new(first);
    for start in (first..first + count).step_by(64) {
        let mut batch = Batch::new();
        for number in start..start + 64 {
            let mut value = vec![0; 1000];
            rng.fill(&mut value);
            batch.put(tree, &number.to_be_bytes(), &value);
            rows.insert(number.to_be_bytes().to_vec(), value);
        }
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
    }
}

/// A store with rows and holes up to its end, killed, and what it holds.
fn image() -> Image {
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let options = TreeOptions {
        stitch_bytes: 0,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options).expect("it is made");
    let mut rows = Rows::new();
    put(&engine, tree, &mut rows, 0, 16_384);
    engine.quiesce().expect("background work succeeds");
    for first in (0..16_384u64).step_by(1024) {
        let (from, to) = (first.to_be_bytes(), (first + 800).to_be_bytes());
        let mut batch = Batch::new();
        batch.delete_range(tree, &from, &to);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("deletes are taken");
        rows.retain(|key, _| key[..] < from[..] || key[..] >= to[..]);
    }
    engine.quiesce().expect("background work succeeds");
    // In the log only, some of it in zones already.
    put(&engine, tree, &mut rows, 100_000, 128);
    engine.sync().expect("the device syncs");
    drop(engine);
    (MemDevice::clone(&device), tree, rows)
}

/// A store whose values were overwritten in random order, killed, and what it holds.
fn scattered_image() -> Image {
    const VALUES: u64 = 1024;
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("it is made");
    let mut rng = Rng::new(5);
    let mut rows = Rows::new();
    // An odd factor has none in common with 1024: each key comes once, in another order.
    for number in (0..VALUES).chain((0..VALUES).map(|n| n * 7 * 61 % VALUES)) {
        let mut value = vec![0; 4096];
        rng.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(tree, &number.to_be_bytes(), &value);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
        rows.insert(number.to_be_bytes().to_vec(), value);
    }
    engine.sync().expect("the device syncs");
    drop(engine);
    (MemDevice::clone(&device), tree, rows)
}

fn check(image: MemDevice, tree: TreeId, rows: &Rows) -> u64 {
    let engine = open(Arc::new(image), options());
    let found = engine.check(&mut |_, _| {}).expect("the check goes on");
    assert_eq!(found, []);
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
    let mut scan = scan.expect("a scan begins");
    for (key, value) in rows {
        let row = scan.next().expect("every row is read");
        assert!(row == Some((&key[..], &value[..])), "row {key:02x?}");
    }
    assert!(scan.next().expect("every row is read").is_none());
    engine.volume().device_bytes()
}

/// The lengths that were found after crashes at the calls that `plan` counts, every `step`-th.
fn crash(of: fn() -> Image, work: Work, plan: fn(u64) -> CrashPlan, step: usize) -> Vec<u64> {
    let (image, tree, rows) = of();
    let mut rng = Rng::new(11);
    let mut lengths = Vec::new();
    for nth in (1..).step_by(step) {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let engine = open(device.clone(), options());
        device.set_plan(plan(nth));
        let done = work(&engine);
        drop(engine);
        // An evacuation that fails to write is put off: nothing refers to what it wrote.
        assert!(done.is_ok() || device.is_stopped(), "{done:?}");
        for _ in 0..3 {
            lengths.push(check(device.crash_image(&mut rng), tree, &rows));
        }
        lengths.push(check(device.kill_image(), tree, &rows));
        if !device.is_stopped() {
            assert!(nth > 1, "something was written");
            break;
        }
    }
    lengths
}

fn at_every_call(work: Work, after: u64) {
    at_every_call_of(image, work, after);
}

fn at_every_call_of(of: fn() -> Image, work: Work, after: u64) {
    for (plan, step) in [
        (CrashPlan::at_sync as fn(u64) -> CrashPlan, 1),
        (CrashPlan::at_write, 7),
    ] {
        let lengths = crash(of, work, plan, step);
        assert!(
            lengths.iter().all(|&len| len == LEN || len == after),
            "{lengths:?}"
        );
        assert_eq!(
            lengths.first(),
            Some(&LEN),
            "the first call changes nothing yet"
        );
        assert_eq!(lengths.last(), Some(&after), "without a crash it is done");
    }
}

#[test]
fn growing() {
    at_every_call(|engine| engine.grow(LONG), LONG);
}

#[test]
fn shrinking() {
    at_every_call(
        |engine| engine.shrink(SHORT, &mut |_, _| true).map(drop),
        SHORT,
    );
}

#[test]
fn defragmenting() {
    at_every_call(|engine| engine.defrag(&mut |_, _| true).map(drop), LEN);
}

#[test]
fn bringing_values_into_key_order() {
    let engine = open(Arc::new(scattered_image().0), options());
    let done = engine.defrag(&mut |_, _| true).expect("it succeeds");
    assert!(done.ordered_bytes > 2 * MIB, "{done:?}");
    let work: Work = |engine| engine.defrag(&mut |_, _| true).map(drop);
    at_every_call_of(scattered_image, work, LEN);
}

#[test]
fn trimming_what_was_just_given_back() {
    let work: Work = |engine| {
        engine.defrag(&mut |_, _| true)?;
        engine.trim(&TrimRange::ALL, &mut |_, _| true)?;
        engine.shrink(SHORT, &mut |_, _| true)?;
        engine.trim(&TrimRange::ALL, &mut |_, _| true)?;
        Ok(())
    };
    at_every_call(work, SHORT);
}
