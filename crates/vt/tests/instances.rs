//! Several instances on one volume: what each holds, who moves whose data, and a crash at every
//! sync.

mod common;

use common::{MIB, format, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{CrashDevice, CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KvError, SpaceClass, TreeOptions,
};
use stitch_volume::{InstanceOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtError, VtOptions};

const LEN: u64 = 32 * MIB;
const LOGS: InstanceOptions = InstanceOptions {
    version_log_bytes: Some(512 << 10),
    backup_log_bytes: Some(2 * MIB),
};

type Rows = BTreeMap<u64, Vec<u8>>;
/// What each instance holds, by name.
type All = BTreeMap<String, Rows>;

fn options() -> VtOptions {
    VtOptions {
        memory_bytes: 48 * MIB,
        memtable_bytes: Some(256 << 10),
        table_bytes: Some(256 << 10),
        background: false,
        ..VtOptions::default()
    }
}

fn engines(first: &Arc<VtEngine>) -> Vec<Arc<VtEngine>> {
    let mut all = vec![Arc::clone(first)];
    all.extend(first.further());
    all
}

/// The one tree of an instance; it is made if there is none.
fn tree(engine: &VtEngine) -> TreeId {
    if let Some(tree) = engine.trees().first() {
        return tree.id;
    }
    let options = TreeOptions {
        stitch_bytes: 0,
        ..TreeOptions::default()
    };
    engine.create_tree("tree", &options).expect("it is made")
}

fn try_put(engine: &VtEngine, rows: &mut Rows, first: u64, count: u64) -> Result<(), KvError> {
    let tree = tree(engine);
    let mut rng = Rng::new(first ^ u64::from(engine.name().as_bytes()[0]));
    for start in (first..first + count).step_by(32) {
        let mut batch = Batch::new();
        let mut written = Rows::new();
        for number in start..start + 32 {
            let mut value = vec![0; 1000];
            rng.fill(&mut value);
            batch.put(tree, &number.to_be_bytes(), &value);
            written.insert(number, value);
        }
        engine.commit(&batch, CommitOptions::default())?;
        rows.extend(written);
    }
    Ok(())
}

fn put(engine: &VtEngine, all: &mut All, first: u64, count: u64) {
    let rows = all.entry(engine.name().to_owned()).or_default();
    try_put(engine, rows, first, count).expect("there is room");
}

fn delete(engine: &VtEngine, all: &mut All, first: u64, end: u64) {
    let mut batch = Batch::new();
    let (from, to) = (first.to_be_bytes(), end.to_be_bytes());
    batch.delete_range(tree(engine), &from, &to);
    let options = CommitOptions {
        space: SpaceClass::Reserve,
        ..CommitOptions::default()
    };
    engine.commit(&batch, options).expect("deletes are taken");
    let rows = all.get_mut(engine.name()).expect("it holds something");
    rows.retain(|key, _| !(first..end).contains(key));
}

/// Every instance of `all` that is there holds what it must, and nothing is broken.
fn check(first: &Arc<VtEngine>, all: &All) {
    for engine in engines(first) {
        let found = engine.check(&mut |_, _| {}).expect("the check goes on");
        assert_eq!(found, []);
        let rows = all.get(engine.name()).cloned().unwrap_or_default();
        if rows.is_empty() && engine.trees().is_empty() {
            continue;
        }
        let tree = tree(&engine);
        let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
        let mut scan = scan.expect("a scan begins");
        for (key, value) in &rows {
            let row = scan.next().expect("every row is read");
            let expected = Some((&key.to_be_bytes()[..], &value[..]));
            assert!(row == expected, "row {key} of {}", engine.name());
        }
        assert!(scan.next().expect("every row is read").is_none());
    }
    first.volume().zones().check();
}

/// A volume of three instances that have their rows in the same zones, with holes; killed, with
/// rows in the logs of all.
fn image() -> (MemDevice, All) {
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let first = open(device.clone(), options());
    for name in ["b", "a"] {
        first.create_instance(name, &LOGS).expect("there is room");
    }
    let mut all = All::new();
    for round in 0..12 {
        for engine in engines(&first) {
            put(&engine, &mut all, round * 256, 256);
        }
    }
    for engine in engines(&first) {
        engine.quiesce().expect("background work succeeds");
        for start in (0..3072).step_by(256) {
            delete(&engine, &mut all, start, start + 150);
        }
        engine.quiesce().expect("background work succeeds");
        put(&engine, &mut all, 100_000, 96);
        engine.sync().expect("the device syncs");
    }
    drop(first);
    (MemDevice::clone(&device), all)
}

#[test]
fn instances_hold_each_its_own_and_come_back() {
    let (image, mut all) = image();
    let device = Arc::new(image);
    let first = open(device.clone(), options());
    let names: Vec<_> = engines(&first)
        .iter()
        .map(|e| e.name().to_owned())
        .collect();
    assert_eq!(names, ["main", "a", "b"]);
    check(&first, &all);
    for (number, engine) in (0..).zip(engines(&first)) {
        put(&engine, &mut all, 200_000 + number * 1000, 640);
    }
    check(&first, &all);
    first.close().expect("it closes");
    let error = first.further()[0].commit(&Batch::new(), CommitOptions::default());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    let superblock = first.volume().superblock();
    for instance in &superblock.instances {
        assert_eq!(instance.closed.generation, superblock.generation);
    }
    drop(first);
    let first = open(device.clone(), options());
    check(&first, &all);
    drop(first);
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let opened = Volume::open(device, &read_only).expect("it opens");
    check(&VtEngine::open(opened, options()).expect("it opens"), &all);
}

#[test]
fn an_instance_that_was_removed_leaves_its_space() {
    let (image, mut all) = image();
    let device = Arc::new(image);
    let first = open(device.clone(), options());
    let before = first.volume().zones().usage().free;
    let a = &first.further()[0];
    let held = a.holdings();
    let logs = first.volume().superblock().instances[0].logs;
    let of_a = tree(a);
    let mut scan = a
        .scan(of_a, KeyRange::all(), Direction::Forward, None)
        .expect("a scan begins");
    scan.next().expect("a row is read");
    let error = a.remove_instance("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    first.remove_instance("a").expect("it goes");
    let error = first.remove_instance("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let late = a.commit(&Batch::new(), CommitOptions::default());
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    let late = a.create_tree("late", &TreeOptions::default());
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    assert!(a.trees().is_empty() && a.get(of_a, b"0", None).is_err());
    // What a scan reads stays until it ends, the rest does not.
    let freed = || first.volume().zones().usage().free - before;
    let logs = logs.version_log_bytes + logs.backup_log_bytes;
    assert_eq!(freed(), logs);
    let rows = all.remove("a").expect("it held something");
    put(&first, &mut all, 400_000, 640);
    first.quiesce().expect("background work succeeds");
    for key in rows.keys().skip(1) {
        let row = scan.next().expect("every row is read").expect("a row");
        assert_eq!(row.0, key.to_be_bytes());
    }
    let before_end = first.volume().zones().usage().free;
    drop(scan);
    let after_end = first.volume().zones().usage().free;
    assert_eq!(after_end - before_end, held.owned_bytes());
    assert_eq!(a.holdings(), Default::default());
    a.close().expect("there is nothing to close");
    check(&first, &all);
    let mut owned = 0;
    for engine in engines(&first) {
        owned += engine.holdings().owned_bytes();
    }
    let kept = first.volume().superblock().instances;
    let kept: u64 = kept
        .iter()
        .map(|i| i.logs.version_log_bytes + i.logs.backup_log_bytes)
        .sum();
    assert_eq!(first.volume().zones().usage().live, owned + kept);
    first.close().expect("it closes");
    drop(first);
    let first = open(device, options());
    check(&first, &all);
    // The name is free, too, and what it held is not there.
    let a = first.create_instance("a", &LOGS).expect("there is room");
    assert!(a.trees().is_empty());
    put(&a, &mut all, 0, 64);
    check(&first, &all);
}

#[test]
fn evacuation_moves_what_any_instance_has_in_a_zone() {
    let (image, all) = image();
    let first = open(Arc::new(image), options());
    let before = first.volume().zones().usage();
    // By the engine of any instance.
    let done = first.further()[1].defrag(&mut |_, _| true);
    let done = done.expect("there is room");
    assert!(
        !done.is_stopped && done.moved_bytes <= before.live,
        "{done:?}"
    );
    let after = first.volume().zones().usage();
    let holes = |usage: stitch_volume::Usage| usage.free - usage.zones_free_bytes;
    assert!(holes(after) < holes(before) / 2, "{before:?} {after:?}");
    check(&first, &all);
    // Again, there is nothing to do, and it ends.
    let again = first.defrag(&mut |_, _| true).expect("there is room");
    assert!(again.moved_bytes <= MIB, "{again:?}");
}

#[test]
fn a_defrag_counts_what_it_moved_while_an_instance_is_removed() {
    let (image, mut all) = image();
    let first = open(Arc::new(image), options());
    first.defrag(&mut |_, _| true).expect("there is room");
    // What all have moved so far is less without this one.
    let moved = |engine: &VtEngine| {
        let counters = engine.counters();
        counters.get("vt.evacuated_bytes") + counters.get("vt.ordered_bytes")
    };
    let gone = first.further().into_iter().find(|engine| moved(engine) > 0);
    let name = gone.expect("one had something in holes").name().to_owned();
    let mut is_there = true;
    let again = first.defrag(&mut |_, _| {
        if std::mem::take(&mut is_there) {
            first.remove_instance(&name).expect("it goes");
        }
        true
    });
    let again = again.expect("there is room");
    assert!(!is_there && again.moved_bytes <= LEN, "{again:?}");
    all.remove(&name);
    check(&first, &all);
}

#[test]
fn a_volume_shrinks_to_what_all_instances_need_and_grows() {
    let (image, mut all) = image();
    let device = Arc::new(image);
    let first = open(device.clone(), options());
    // The logs of the last instance come to lie behind the cut.
    first.remove_instance("a").expect("it goes");
    all.remove("a");
    drop(first);
    let first = open(device.clone(), options());
    let logs = first.volume().superblock().instances[0].logs;
    let cut = 12 * MIB;
    let late = first.create_instance("late", &LOGS).expect("there is room");
    put(&late, &mut all, 0, 64);
    let done = first.shrink(cut, &mut |_, _| true);
    if let Err(error) = &done {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
    let cut = 24 * MIB;
    assert!(first.shrink(cut, &mut |_, _| true).expect("it fits"));
    assert_eq!(first.volume().device_bytes(), cut);
    assert!(logs.version_log_at < cut);
    check(&first, &all);
    for engine in engines(&first) {
        put(&engine, &mut all, 300_000, 64);
    }
    first.grow(40 * MIB).expect("the device grows");
    for engine in engines(&first) {
        put(&engine, &mut all, 310_000, 640);
    }
    check(&first, &all);
    first.close().expect("it closes");
    drop(first);
    check(&open(device, options()), &all);
}

#[test]
fn a_shrink_moves_logs_that_are_behind_the_cut() {
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let first = open(device.clone(), options());
    let mut all = All::new();
    // Eight instances in a row, of which the last stays.
    for number in 0..8 {
        let name = format!("i{number}");
        first.create_instance(&name, &LOGS).expect("there is room");
    }
    let last = first.further().pop().expect("the last");
    put(&last, &mut all, 0, 960);
    for number in 0..7 {
        let name = format!("i{number}");
        first.remove_instance(&name).expect("it goes");
    }
    first.close().expect("it closes");
    drop((first, last));
    let first = open(device.clone(), options());
    let before = first.volume().superblock().instances[0].logs;
    let cut = before.version_log_at;
    assert!(first.shrink(cut, &mut |_, _| true).expect("it fits"));
    let after = first.volume().superblock().instances[0].logs;
    assert!(after.backup_log_at < cut, "{after:?}");
    let last = first.further().pop().expect("the last");
    put(&last, &mut all, 5000, 960);
    check(&first, &all);
    drop((first, last));
    check(&open(device, options()), &all);
}

#[test]
fn an_instance_gets_the_room_that_others_give_back() {
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let first = open(device, options());
    let b = first.create_instance("b", &LOGS).expect("there is room");
    let mut all = All::new();
    let rows = all.entry("main".to_owned()).or_default();
    let mut at = 0;
    let full = loop {
        match try_put(&first, rows, at, 32) {
            Ok(()) => at += 32,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    let mut none = Rows::new();
    let refused = try_put(&b, &mut none, 0, 4096).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "one space for all");
    all.insert("b".to_owned(), none);
    delete(&first, &mut all, 0, at);
    // Its own background work does not run: b finds what the other can give back.
    let mut tries = 0;
    while try_put(&b, all.entry("b".to_owned()).or_default(), 10_000, 4096).is_err() {
        tries += 1;
        assert!(tries < 100, "the space comes back");
        while first.step().expect("it works") {}
    }
    check(&first, &all);
}

#[test]
fn bytes_of_two_instances_are_damage_that_names_both() {
    let (image, _) = image();
    let device = Arc::new(image);
    // As if b's version log were a copy of a's.
    let opened = Volume::open(device.clone(), &OpenOptions::default()).expect("it opens");
    let [a, b] = &opened.volume.superblock().instances[..] else {
        panic!("two further instances");
    };
    let (from, to) = (a.logs, b.logs);
    drop(opened);
    let len = usize::try_from(from.version_log_bytes + from.backup_log_bytes).unwrap();
    let mut bytes = vec![0; len];
    device
        .read_at(from.version_log_at, &mut bytes)
        .expect("it is read");
    device
        .write_at(to.version_log_at, &[&bytes])
        .expect("it is written");
    let opened = Volume::open(device, &OpenOptions::default()).expect("it opens");
    let error = VtEngine::open(opened, options()).expect_err("two owners");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let said = error.to_string();
    assert!(
        said.contains("instance a and instance b both own"),
        "{said}"
    );
}

type Work = fn(&VtEngine) -> Result<(), VtError>;

/// Does `work`, with a crash at each sync and at many writes, and checks what is left. Answers the
/// names that were found.
fn with_crashes(work: Work) -> Vec<String> {
    let (image, all) = image();
    let mut rng = Rng::new(11);
    let mut seen = Vec::new();
    for (plan, step) in [
        (CrashPlan::at_sync as fn(u64) -> CrashPlan, 1),
        (CrashPlan::at_write, 13),
    ] {
        for nth in (1..).step_by(step) {
            let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
            let first = open(device.clone(), options());
            device.set_plan(plan(nth));
            let done = work(&first);
            drop(first);
            assert!(done.is_ok() || device.is_stopped(), "{done:?}");
            let images = [
                device.crash_image(&mut rng),
                device.crash_image(&mut rng),
                device.kill_image(),
            ];
            for image in images {
                let first = open(Arc::new(image), options());
                check(&first, &all);
                let names: Vec<_> = engines(&first)
                    .iter()
                    .map(|e| e.name().to_owned())
                    .collect();
                seen.push(names.join(" "));
            }
            if !device.is_stopped() {
                assert!(nth > 1, "something was written");
                break;
            }
        }
    }
    seen.sort();
    seen.dedup();
    seen
}

#[test]
fn crashes_while_an_instance_is_made() {
    let seen = with_crashes(|first| first.create_instance("c", &LOGS).map(drop));
    assert_eq!(seen, ["main a b", "main a b c"]);
}

#[test]
fn crashes_while_an_instance_is_removed() {
    let seen = with_crashes(|first| first.remove_instance("a"));
    assert_eq!(seen, ["main a b", "main b"]);
}

#[test]
fn crashes_while_all_is_moved() {
    let seen = with_crashes(|first| {
        first.defrag(&mut |_, _| true)?;
        first.shrink(24 * MIB, &mut |_, _| true).map(drop)
    });
    assert_eq!(seen, ["main a b"]);
}

#[test]
fn crashes_while_all_is_closed() {
    let seen = with_crashes(|first| {
        let closed = first.close();
        closed.map_err(|_| VtError::Poisoned)
    });
    assert_eq!(seen, ["main a b"]);
}

#[test]
fn room_that_an_instance_does_not_use_is_there_for_others() {
    let device = Arc::new(MemDevice::new(LEN));
    format(&*device, None);
    let first = open(device, options());
    let b = first.create_instance("b", &LOGS).expect("there is room");
    let mut all = All::new();
    put(&b, &mut all, 0, 32);
    let before = b.holdings().promised_bytes;
    assert!(before > 200 << 10, "not every commit asks: {before}");
    let rows = all.entry("main".to_owned()).or_default();
    let mut at = 0;
    while try_put(&first, rows, at, 32).is_ok() {
        at += 32;
    }
    let after = b.holdings().promised_bytes;
    assert!(after < 64 << 10, "what the rows need: {after}");
    delete(&b, &mut all, 0, 8);
    check(&first, &all);
}

#[test]
fn an_instance_that_cannot_be_made_is_not_there() {
    let (image, all) = image();
    for nth in 1.. {
        let device = Arc::new(FaultDevice::new(image.clone()));
        let first = open(device.clone(), options());
        let reads = device.calls().reads;
        device.add(Fault::once(FaultOp::Read, reads + nth));
        let free = first.volume().zones().usage().free;
        let Err(error) = first.create_instance("c", &LOGS) else {
            assert!(nth > 1, "something is read");
            break;
        };
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(first.further().len(), 2);
        assert_eq!(first.volume().superblock().instances.len(), 2);
        assert_eq!(first.volume().zones().usage().free, free);
        first.create_instance("c", &LOGS).expect("the name is free");
        drop(first);
        let first = open(device, options());
        assert_eq!(first.further().len(), 3);
        check(&first, &all);
    }
}

#[test]
fn a_failure_in_another_instance_is_told_with_its_name() {
    let (image, _) = image();
    let mut named = Vec::new();
    for nth in (1..).step_by(7) {
        let device = Arc::new(FaultDevice::new(image.clone()));
        let first = open(device.clone(), options());
        let writes = device.calls().writes;
        device.add(Fault::once(FaultOp::Write, writes + nth));
        let b = first.further().pop().expect("b");
        let Err(error) = b.defrag(&mut |_, _| true) else {
            break;
        };
        if first.volume().is_poisoned() {
            continue;
        }
        let said = error.to_string();
        let name = said.strip_prefix("instance ");
        let name = name.and_then(|rest| rest.split_once(": "));
        let name = name.map_or("b", |(name, _)| name).to_owned();
        for engine in engines(&first) {
            let mut rows = Rows::new();
            let put = try_put(&engine, &mut rows, 500_000, 32);
            assert_eq!(put.is_err(), engine.name() == name, "{said}: {put:?}");
        }
        named.push(name);
    }
    assert!(named.iter().any(|name| name != "b"), "{named:?}");
}
