//! A store that grows, shrinks, is defragmented and trimmed while others write and read.

mod common;

use common::{MIB, format, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::MemDevice;
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KvError, SpaceClass, TreeOptions,
};
use stitch_volume::TrimRange;
use stitch_vt::{VtEngine, VtOptions};

const WRITERS: u64 = 2;
const KEYS: u64 = 2000;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(writer: u64, number: u64) -> Vec<u8> {
    [writer.to_be_bytes(), number.to_be_bytes()].concat()
}

/// Writes rows of its own until told to stop. Answers what must be there.
fn write(engine: &VtEngine, tree: TreeId, writer: u64, stop: &AtomicBool) -> Rows {
    let mut rng = Rng::new(writer + 1);
    let mut rows = Rows::new();
    while !stop.load(Ordering::Relaxed) {
        let first = rng.below(KEYS);
        let mut batch = Batch::new();
        let mut after = rows.clone();
        if rng.one_in(4) {
            let (from, to) = (key(writer, first), key(writer, first + rng.below(200)));
            batch.delete_range(tree, &from, &to);
            after.retain(|key, _| *key < from || *key >= to);
        } else {
            for number in first..first + 1 + rng.below(30) {
                let mut value = vec![0; 100 + usize::try_from(rng.below(4000)).expect("small")];
                rng.fill(&mut value);
                batch.put(tree, &key(writer, number), &value);
                after.insert(key(writer, number), value);
            }
        }
        let options = CommitOptions {
            space: if rows.len() > after.len() {
                SpaceClass::Reserve
            } else {
                SpaceClass::Normal
            },
            ..CommitOptions::default()
        };
        match engine.commit(&batch, options) {
            Ok(_) => rows = after,
            Err(KvError::NoSpace { .. }) => {}
            Err(error) => panic!("a commit fails: {error}"),
        }
    }
    rows
}

/// Scans from end to end; each writer's rows are those of some commit, so in order and apart.
fn read(engine: &VtEngine, tree: TreeId, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
        let mut scan = scan.expect("a scan begins");
        let mut last = Vec::new();
        while let Some((key, _)) = scan.next().expect("every row is read") {
            assert!(last.as_slice() < key, "rows are in order");
            last = key.to_vec();
        }
    }
}

/// What `stitchfs` asks of a store, in any order and each at least once, while there were few
/// commits.
fn work(engine: &VtEngine, commits: u64) {
    let mut rng = Rng::new(99);
    let mut done = [0; 4];
    let is_enough = |done: &[u64; 4]| !done.contains(&0) && done.iter().sum::<u64>() > 5;
    while engine.counters().get("kv.commits") < commits || !is_enough(&done) {
        let size = 48 * MIB + rng.below(40) * MIB;
        let now = engine.volume().device_bytes();
        let (kind, result) = match rng.below(5) {
            0 => (0, engine.defrag(&mut |_, _| true).map(drop)),
            1 => (1, engine.trim(&TrimRange::ALL, &mut |_, _| true).map(drop)),
            _ if size > now => (2, engine.grow(size)),
            _ => (3, engine.shrink(size, &mut |_, _| true).map(drop)),
        };
        match result {
            Ok(()) => done[kind] += 1,
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Invalid) => {}
            Err(error) => panic!("work fails: {error}"),
        }
    }
}

#[test]
fn writers_and_readers_do_not_notice() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    format(&*device, None);
    let options = VtOptions {
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(256 << 10),
        table_bytes: Some(256 << 10),
        ..VtOptions::default()
    };
    let engine = open(device.clone(), options.clone());
    let tree = engine
        .create_tree("tree", &TreeOptions::default())
        .expect("it is made");
    let stop = AtomicBool::new(false);
    let rows = std::thread::scope(|scope| {
        let (engine, stop) = (&*engine, &stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(engine, tree, writer, stop)))
            .collect();
        let reader = scope.spawn(move || read(engine, tree, stop));
        work(engine, 3000);
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("the reader reads");
        let mut rows = Rows::new();
        for writer in writers {
            rows.extend(writer.join().expect("the writer writes"));
        }
        rows
    });
    check(&engine, tree, &rows);
    engine.close().expect("it closes");
    drop(engine);
    check(&open(device, options), tree, &rows);
}

fn check(engine: &VtEngine, tree: TreeId, rows: &Rows) {
    let found = engine.check(&mut |_, _| {}).expect("the check goes on");
    assert_eq!(found, []);
    let mut scan = engine
        .scan(tree, KeyRange::all(), Direction::Forward, None)
        .expect("a scan begins");
    for (key, value) in rows {
        let row = scan.next().expect("every row is read");
        assert!(row == Some((&key[..], &value[..])), "row {key:02x?}");
    }
    assert!(scan.next().expect("every row is read").is_none());
}

#[test]
fn a_store_does_not_shrink_into_what_is_set_aside() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    format(&*device, None);
    let engine = open(device, VtOptions::default());
    let size = 40 * MIB;
    engine.set_aside(45 * MIB).expect("as much is free");
    let refused = engine.shrink(size, &mut |_, _| true);
    let kind = refused.expect_err("no room is left").kind();
    assert_eq!(kind, ErrorKind::NoSpace);
    assert!(engine.space().free_bytes > 0, "as before");
    engine.set_aside(4 * MIB).expect("less");
    engine
        .shrink(size, &mut |_, _| true)
        .expect("it is empty, but for what is set aside");
    engine.close().expect("it closes");
}
