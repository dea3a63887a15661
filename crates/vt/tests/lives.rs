//! Stores over several lives: read-only ones, failing ones, damaged ones, full ones.

mod common;

use common::{MIB, Setup, Store, format, open};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{Device, Fault, FaultDevice, FaultOp, MemDevice, SECTOR_BYTES};
use stitch_format::log_record::HEADER_BYTES;
use stitch_kv::conformance::functions::registry;
use stitch_kv::conformance::{Ending, dump};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, KvError, TreeOptions};
use stitch_volume::{OpenOptions, Volume};
use stitch_vt::counters::STITCHED_BYTES;
use stitch_vt::{MEMORY_BYTES_MIN, VtEngine, VtOptions};

const KIB: u64 = 1 << 10;

fn setup(background: bool) -> Setup {
    Setup::sized(64 * KIB, 128 * KIB, background)
}

fn tree(engine: &dyn Engine) -> TreeId {
    let made = engine.create_tree("tree", &TreeOptions::default());
    made.expect("the tree is made")
}

fn try_put(engine: &dyn Engine, tree: TreeId, key: u64) -> Result<(), KvError> {
    let mut batch = Batch::new();
    batch.put(tree, &key.to_be_bytes(), &[key.to_be_bytes()[7]; 500]);
    engine.commit(&batch, CommitOptions::default()).map(drop)
}

fn put(engine: &dyn Engine, tree: TreeId, keys: std::ops::Range<u64>) {
    for key in keys {
        try_put(engine, tree, key).expect("there is space");
    }
}

#[test]
fn a_store_opened_for_reading_only_is_whole_and_writes_nothing() {
    let mut store = Store::new(&setup(false), 32 * MIB, None, registry());
    let tree = tree(&**store.engine());
    put(&**store.engine(), tree, 0..3000);
    let all = dump(&**store.engine());
    let device = Arc::new(store.device().kill_image());
    store.engine = None;
    let before = device.counters();
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let opened = Volume::open(device.clone(), &options).expect("the volume opens");
    let engine = VtEngine::open(opened, VtOptions::default()).expect("the store opens");
    assert_eq!(dump(&*engine), all);
    let refused = try_put(&*engine, tree, 1).expect_err("nothing is written");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    engine.quiesce().expect("there is nothing to do");
    engine.sync().expect("there is nothing to do");
    engine.close().expect("there is nothing to do");
    assert_eq!(device.counters().writes, before.writes);
    assert_eq!(device.counters().syncs, before.syncs);
}

#[test]
fn a_closed_store_replays_nothing_and_refuses_writes() {
    let mut store = Store::new(&setup(true), 32 * MIB, None, registry());
    let tree = tree(&**store.engine());
    put(&**store.engine(), tree, 0..3000);
    let all = dump(&**store.engine());
    store.engine().close().expect("the store closes");
    let refused = try_put(&**store.engine(), tree, 1).expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert_eq!(dump(&**store.engine()), all, "reads go on");
    store.next_life(Ending::Killed);
    let volume = Arc::clone(store.engine().volume());
    let used = volume.log().used_bytes().expect("the log is read");
    let padding_max = SECTOR_BYTES + HEADER_BYTES as u64;
    assert!(used < padding_max, "no more than padding: {used} bytes");
    assert_eq!(dump(&**store.engine()), all);
}

#[test]
fn space_comes_back_by_itself() {
    let store = Store::new(&setup(true), 64 * MIB, None, registry());
    let engine = store.engine();
    let tree = tree(&**engine);
    let empty = engine.space().free_bytes;
    put(&**engine, tree, 0..40_000);
    engine.quiesce().expect("background work succeeds");
    assert!(engine.space().free_bytes < empty - 18 * MIB);
    let mut batch = Batch::new();
    batch.delete_range(tree, b"", &[255; 9]);
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
    let clock = SystemClock::default();
    while engine.space().free_bytes < empty - MIB {
        assert!(
            clock.monotonic() < Duration::from_secs(50),
            "within a minute"
        );
        clock.sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_snapshot_keeps_what_it_sees_and_nothing_after_it_goes() {
    let store = Store::new(&setup(false), 64 * MIB, None, registry());
    let engine = store.engine();
    let tree = tree(&**engine);
    put(&**engine, tree, 0..10_000);
    engine.quiesce().expect("background work succeeds");
    let full = engine.space().free_bytes;
    let snapshot = engine.snapshot();
    let mut batch = Batch::new();
    batch.delete_range(tree, b"", &[255; 9]);
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
    engine.quiesce().expect("background work succeeds");
    assert!(engine.space().free_bytes < full + MIB);
    let seen = engine.get(tree, &7u64.to_be_bytes(), Some(&snapshot));
    assert_eq!(seen.expect("reads").as_deref(), Some(&[7; 500][..]));
    drop(snapshot);
    engine.quiesce().expect("background work succeeds");
    assert!(engine.space().free_bytes > full + 4 * MIB);
}

#[test]
fn a_failed_write_out_refuses_writes_and_keeps_what_was_acknowledged() {
    for op in [FaultOp::Write, FaultOp::Sync] {
        let device = Arc::new(FaultDevice::new(MemDevice::new(32 * MIB)));
        format(&*device, None);
        let options = VtOptions {
            upserts: registry(),
            ..setup(false).options
        };
        let engine = open(device.clone(), options.clone());
        let tree = tree(&*engine);
        put(&*engine, tree, 0..200);
        let calls = device.calls();
        let nth = match op {
            FaultOp::Sync => calls.syncs + 4,
            // Few enough that a write-out, not the log alone, is hit in one of the runs.
            _ => calls.writes + 90,
        };
        device.add(Fault::once(op, nth));
        let mut key = 200;
        let failed = loop {
            match try_put(&*engine, tree, key) {
                Ok(()) => key += 1,
                Err(error) => break error,
            }
            assert!(key < 100_000, "the fault is met");
        };
        assert!(
            matches!(failed.kind(), ErrorKind::Io | ErrorKind::Poisoned),
            "{failed}"
        );
        let again = try_put(&*engine, tree, key + 1).expect_err("no retry");
        let is_refused = op == FaultOp::Write || again.kind() == ErrorKind::Poisoned;
        assert!(is_refused, "{again}");
        let last = engine.get(tree, &(key - 1).to_be_bytes(), None);
        assert!(last.expect("reads go on").is_some());
        assert_eq!(device.hits(), 1);
        drop(engine);
        let engine = open(device, options);
        for key in 0..key {
            let found = engine.get(tree, &key.to_be_bytes(), None);
            assert!(found.expect("reads").is_some(), "row {key}");
        }
        assert_eq!(engine.check(&mut |_, _| {}).expect("the check runs"), []);
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_not_seen_never_another_value() {
    let device = Arc::new(FaultDevice::new(MemDevice::new(32 * MIB)));
    format(&*device, None);
    let options = setup(false).options;
    let engine = open(device.clone(), options.clone());
    let tree = tree(&*engine);
    put(&*engine, tree, 0..4000);
    engine.close().expect("the store closes");
    let zones_at = engine.volume().superblock().areas.zones_at;
    drop(engine);
    let mut rng = Rng::new(1);
    let mut errors = 0;
    for _ in 0..60 {
        let (at, mask) = (zones_at + rng.below(3 * MIB), 1 << rng.below(8));
        device.corrupt(at, mask).expect("it is on the device");
        let engine = open(device.clone(), options.clone());
        let mut seen = 0;
        for key in 0..4000u64 {
            match engine.get(tree, &key.to_be_bytes(), None) {
                Ok(found) => assert_eq!(
                    found.as_deref(),
                    Some(&[key.to_be_bytes()[7]; 500][..]),
                    "row {key}, byte {at} flipped"
                ),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    seen += 1;
                }
            }
        }
        let found = engine.check(&mut |_, _| {}).expect("the check runs");
        assert!(
            seen == 0 || !found.is_empty(),
            "a check finds what a read finds"
        );
        errors += usize::from(seen > 0);
        drop(engine);
        device.corrupt(at, mask).expect("it is on the device");
    }
    assert!(errors > 20, "{errors} of the flips hit a row");
}

#[test]
fn a_scan_that_outlives_compactions_reads_what_it_began_with() {
    let mut setup = setup(false);
    setup.options.memory_bytes = MEMORY_BYTES_MIN;
    let store = Store::new(&setup, 32 * MIB, None, registry());
    let engine = store.engine();
    let options = TreeOptions {
        block_bytes: 4096,
        stitch_bytes: 0,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options).expect("it is made");
    let filler = engine.create_tree("filler", &options).expect("it is made");
    put(&**engine, tree, 0..8000);
    engine.quiesce().expect("background work succeeds");
    let mut scans = Vec::new();
    for round in 0..12u64 {
        let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
        scans.push(scan.expect("the scan begins"));
        // Some blocks of each table are stitched on, some die.
        for key in (round * 37..8000).step_by(400) {
            try_put(&**engine, tree, key).expect("there is space");
        }
        engine.quiesce().expect("background work succeeds");
    }
    let stitched = engine.counters().get(STITCHED_BYTES);
    assert!(stitched > MIB, "{stitched} bytes stitched");
    // The last version lets go of all, and every free byte is written over.
    put(&**engine, tree, 0..8000);
    engine.quiesce().expect("background work succeeds");
    let mut key = 0;
    while try_put(&**engine, filler, key).is_ok() {
        key += 1;
    }
    for mut scan in scans {
        let mut next = 0u64;
        while let Some((key, value)) = scan.next().expect("the scan reads") {
            assert_eq!(key, next.to_be_bytes());
            assert_eq!(value, [next.to_be_bytes()[7]; 500]);
            next += 1;
        }
        assert_eq!(next, 8000);
    }
    assert_eq!(engine.check(&mut |_, _| {}).expect("the check runs"), []);
}
