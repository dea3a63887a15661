//! Pins of a VT-tree store: what they cost, and who else meets them.

mod common;

use common::{MIB, Setup, Store, format, open};
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_format::superblock::{FEATURE_PIN_RANGES, FEATURE_PIN_SCOPES, FEATURE_PINS};
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::registry;
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KeyRanges, KvError, PIN_USER_BYTES_MAX,
    PinRanges, PinScope, Snapshot, TreeInfo, TreeOptions,
};
use stitch_volume::{FormatOptions, InstanceOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

fn options() -> VtOptions {
    Setup::sized(256 << 10, 128 << 10, false).options
}

fn tree(engine: &VtEngine, name: &str) -> TreeId {
    let made = engine.create_tree(name, &TreeOptions::default());
    made.expect("the tree is made")
}

fn put(engine: &VtEngine, tree: TreeId, rows: std::ops::Range<u32>, seed: u64) {
    let mut rng = Rng::new(seed);
    for number in rows {
        let mut value = vec![0; 1000];
        rng.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(tree, &number.to_be_bytes(), &value);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
    }
}

fn count(engine: &VtEngine, tree: TreeId, at: &Snapshot) -> usize {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, Some(at));
    let mut scan = scan.expect("a scan begins");
    let mut rows = 0;
    while scan.next().expect("it reads").is_some() {
        rows += 1;
    }
    rows
}

fn owned(engine: &VtEngine) -> u64 {
    engine.quiesce().expect("background work succeeds");
    engine.holdings().owned_bytes()
}

/// What the device was asked for: writes, syncs and bytes.
type Cost = [u64; 3];

fn cost(device: &dyn Device, work: impl FnOnce()) -> Cost {
    let of = || {
        let counters = device.counters();
        [counters.writes, counters.syncs, counters.write_bytes]
    };
    let before = of();
    work();
    let after = of();
    [0, 1, 2].map(|n| after[n] - before[n])
}

#[test]
fn the_last_of_ten_thousand_pins_costs_what_the_first_does() {
    const PINS: u32 = 10_000;
    const WINDOW: u32 = 250;
    let device = Arc::new(MemDevice::new(64 * MIB));
    let format = FormatOptions {
        uuid: [7; 16],
        version_log_bytes: Some(16 * MIB),
        ..FormatOptions::default()
    };
    Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
    let engine = open(device.clone(), options());
    let tree = tree(&engine, "tree");
    let create = |pins: std::ops::Range<u32>| {
        for number in pins {
            // Something for the sync of the log.
            put(&engine, tree, number % 100..number % 100 + 1, 1);
            let made = engine.create_pin(&format!("daily snapshot {number}"), b"policy");
            made.expect("it is made");
        }
    };
    // The very first raises the format.
    create(0..1);
    let first = cost(&*device, || create(1..1 + WINDOW));
    create(1 + WINDOW..PINS - WINDOW);
    let last = cost(&*device, || create(PINS - WINDOW..PINS));
    // Bases are rewritten in both windows, or would be within their length.
    for (first, last) in first.iter().zip(last) {
        assert!(
            last <= first / 2 * 3,
            "{first} for the first, {last} for the last"
        );
    }
    assert_eq!(engine.pins().expect("they are listed").len(), PINS as usize);
    drop(engine);
    let engine = open(device.clone(), options());
    let pins = engine.pins().expect("they are listed");
    assert_eq!(pins.len(), PINS as usize);
    assert!(
        pins.windows(2)
            .all(|two| two[0].id < two[1].id && two[0].seqno < two[1].seqno)
    );
    let middle = &pins[5000];
    let at = engine.open_pin(&middle.name).expect("it opens");
    assert_eq!((at.seqno(), count(&engine, tree, &at)), (middle.seqno, 100));
    drop(at);
    let dropping = |names: &[stitch_kv::PinInfo]| {
        for pin in names {
            engine.drop_pin(&pin.name).expect("it goes");
        }
    };
    let window = WINDOW as usize;
    let first = cost(&*device, || dropping(&pins[..window]));
    dropping(&pins[window..pins.len() - window]);
    let last = cost(&*device, || dropping(&pins[pins.len() - window..]));
    for (first, last) in first.iter().zip(last) {
        assert!(*first <= last / 2 * 3, "{first} with many, {last} with few");
    }
    assert_eq!(engine.pins().expect("they are listed"), []);
    assert_eq!(engine.check(&mut |_, _| {}).expect("it ends"), []);
}

#[test]
fn the_space_of_a_hidden_tree_is_held_by_an_open_snapshot_of_its_last_pin() {
    let setup = Setup::sized(64 << 10, 64 << 10, false);
    let store = Store::new(&setup, 64 * MIB, None, registry());
    let engine = store.engine();
    let none = engine.space().free_bytes;
    let hidden = tree(engine, "tree");
    put(engine, hidden, 0..4000, 1);
    // Some of it in memory only.
    engine.quiesce().expect("background work succeeds");
    put(engine, hidden, 4000..4020, 1);
    engine.create_pin("pin", b"").expect("it is made");
    engine.drop_tree(hidden).expect("it is hidden");
    let at = engine.open_pin("pin").expect("it opens");
    engine.drop_pin("pin").expect("it goes");
    engine.quiesce().expect("background work succeeds");
    assert_eq!(count(engine, hidden, &at), 4020);
    let held = none - engine.space().free_bytes;
    assert!(held > 4000 * 1000, "{held} bytes are held");
    drop(at);
    engine.quiesce().expect("background work succeeds");
    let left = none - engine.space().free_bytes;
    assert!(left < 200_000, "{left} of {held} bytes are held");
}

#[test]
fn a_store_that_is_open_for_reading_reads_its_pins_and_changes_none() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let tree = tree(&engine, "tree");
    put(&engine, tree, 0..50, 1);
    let pin = engine.create_pin("pin", b"user").expect("it is made");
    put(&engine, tree, 50..80, 1);
    engine.drop_tree(tree).expect("it is hidden");
    drop(engine);
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let opened = Volume::open(device.clone(), &read_only).expect("it opens");
    assert_eq!(
        opened.volume.superblock().incompatible & FEATURE_PINS,
        FEATURE_PINS
    );
    let engine = VtEngine::open(opened, options()).expect("it opens");
    let writes = device.counters().writes;
    assert_eq!(engine.pins().expect("they are listed"), [pin]);
    let at = engine.open_pin("pin").expect("it opens");
    assert_eq!(count(&engine, tree, &at), 50);
    for refused in [
        engine.create_pin("late", b"").map(drop),
        engine.alter_pin("pin", b""),
        engine.drop_pin("pin"),
    ] {
        assert!(matches!(refused, Err(KvError::ReadOnly)), "{refused:?}");
    }
    assert_eq!(device.counters().writes, writes);
}

/// The features that a program must know to open the volume.
fn features_of(device: &MemDevice) -> u64 {
    let found = Volume::identify(device).expect("it is a volume");
    found.incompatible
}

#[test]
fn a_store_without_a_pin_stays_readable_for_older_programs() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let features = || features_of(&device);
    let engine = open(device.clone(), options());
    put(&engine, tree(&engine, "tree"), 0..50, 1);
    assert!(engine.open_pin("pin").is_err() && engine.drop_pin("pin").is_err());
    engine.close().expect("it closes");
    assert_eq!(features(), 0);
    drop(engine);
    let engine = open(device.clone(), options());
    engine.create_pin("pin", b"").expect("it is made");
    assert_eq!(features(), FEATURE_PINS);
    engine.drop_pin("pin").expect("it goes");
    drop(engine);
    drop(open(device.clone(), options()));
    assert_eq!(features(), FEATURE_PINS, "its version log had one");
}

#[test]
fn only_a_pin_of_some_trees_needs_a_program_that_knows_it() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let features = || features_of(&device);
    let engine = open(device.clone(), options());
    let first = tree(&engine, "first");
    put(&engine, first, 0..50, 1);
    let all = engine.create_pin_of("all", b"", &|tree| tree.id == first);
    assert_eq!(all.expect("it is made").scope, PinScope::AllTrees);
    assert_eq!(features(), FEATURE_PINS, "there is no other tree");
    let second = tree(&engine, "second");
    put(&engine, second, 0..50, 2);
    let some = engine.create_pin_of("some", b"", &|tree| tree.id == first);
    let some = some.expect("it is made");
    let both = FEATURE_PINS | FEATURE_PIN_SCOPES;
    assert_eq!(features(), both);
    engine.close().expect("it closes");
    drop(engine);
    let engine = open(device.clone(), options());
    assert_eq!(engine.pins().expect("they are listed")[1], some);
    engine.drop_pin("some").expect("it goes");
    engine.close().expect("it closes");
    drop(engine);
    drop(open(device.clone(), options()));
    assert_eq!(features(), both, "its version log had one");
}

#[test]
fn only_a_pin_of_key_ranges_needs_a_program_that_knows_it() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let first = tree(&engine, "first");
    put(&engine, first, 0..50, 1);
    engine.create_pin("pin", b"user").expect("it is made");
    let none = engine.narrow_pin("pin", &PinRanges::new());
    assert_eq!(none.expect("nothing changes").scope, PinScope::AllTrees);
    assert_eq!(features_of(&device), FEATURE_PINS);
    let ranges = KeyRanges::new([(b"a".to_vec(), None)]);
    let ranges = PinRanges::from([(first, ranges)]);
    let narrowed = engine.narrow_pin("pin", &ranges).expect("it is narrowed");
    let again = engine.narrow_pin("pin", &ranges);
    assert_eq!(again.expect("nothing changes"), narrowed);
    let all = FEATURE_PINS | FEATURE_PIN_SCOPES | FEATURE_PIN_RANGES;
    assert_eq!(features_of(&device), all);
    engine.close().expect("it closes");
    drop(engine);
    let engine = open(device.clone(), options());
    assert_eq!(engine.pins().expect("they are listed"), [narrowed]);
    engine.drop_pin("pin").expect("it goes");
    engine.close().expect("it closes");
    drop(engine);
    drop(open(device.clone(), options()));
    assert_eq!(features_of(&device), all, "its version log had one");
}

#[test]
fn pins_are_narrowed_until_the_version_log_is_full_of_ranges() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let first = tree(&engine, "first");
    put(&engine, first, 0..50, 1);
    let key = |number: u32| [&number.to_be_bytes()[..], &[7; 20]].concat();
    let range = |number: u32| (key(2 * number), Some(key(2 * number + 1)));
    let ranges = KeyRanges::new((0..256).map(range));
    let ranges = PinRanges::from([(first, ranges)]);
    let mut count = 0;
    let full = loop {
        let name = format!("{count}");
        engine
            .create_pin(&name, b"")
            .expect("there is room for one");
        match engine.narrow_pin(&name, &ranges) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(count > 1, "{count} pins");
    let pins = engine.pins().expect("they are listed");
    assert!(pins[count].ranges.is_empty(), "the last one is as it was");
    put(&engine, first, 0..50, 2);
    engine.quiesce().expect("background work succeeds");
    drop(engine);
    let engine = open(device.clone(), options());
    assert_eq!(engine.pins().expect("they are listed"), pins);
    engine.drop_pin("0").expect("it goes");
    let narrowed = engine.narrow_pin(&format!("{count}"), &ranges);
    narrowed.expect("there is room again");
}

#[test]
fn pins_of_some_trees_are_made_until_the_version_log_is_full_of_them() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let trees: Vec<TreeId> = (0..40)
        .map(|number| tree(&engine, &format!("tree {number}")))
        .collect();
    put(&engine, trees[0], 0..50, 1);
    let is_held = |tree: &TreeInfo| tree.id != trees[0];
    let mut count = 0;
    let full = loop {
        match engine.create_pin_of(&format!("{count}"), b"", &is_held) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(count > 100, "{count} pins");
    put(&engine, trees[0], 0..500, 2);
    engine.quiesce().expect("tables have the rest of the log");
    // Trees are hidden, and the version gets no longer.
    engine.drop_trees(&trees[1..]).expect("they are hidden");
    engine.close().expect("it closes");
    drop(engine);
    let engine = open(device, options());
    assert_eq!(engine.pins().expect("they are listed").len(), count);
    for number in 0..count {
        engine.drop_pin(&format!("{number}")).expect("it goes");
    }
    let version = engine.trees();
    assert_eq!(version.len(), 1);
    engine.close().expect("it closes");
}

#[test]
fn each_instance_has_its_own_pins() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    format(&*device, None);
    let first = open(device.clone(), options());
    let logs = InstanceOptions {
        version_log_bytes: Some(512 << 10),
        backup_log_bytes: Some(2 * MIB),
    };
    let second = first.create_instance("second", &logs).expect("it is made");
    for engine in [&first, &second] {
        let tree = tree(engine, "tree");
        put(engine, tree, 0..20, 1);
    }
    second.create_pin("pin", b"second").expect("it is made");
    assert_eq!(first.pins().expect("they are listed"), []);
    first.create_pin("pin", b"first").expect("it is made");
    let at = second.open_pin("pin").expect("it opens");
    let foreign = first.get(TreeId(1), b"k", Some(&at));
    assert_eq!(foreign.map_err(|e| e.kind()), Err(ErrorKind::Invalid));
    drop((at, first, second));
    let first = open(device, options());
    let further = first.further();
    for (engine, user) in [(&first, "first"), (&further[0], "second")] {
        let pins = engine.pins().expect("they are listed");
        assert_eq!((pins.len(), &pins[0].user[..]), (1, user.as_bytes()));
        let at = engine.open_pin("pin").expect("it opens");
        assert_eq!(count(engine, TreeId(1), &at), 20);
    }
}

#[test]
fn trees_can_be_dropped_where_the_version_log_is_full_of_pins() {
    let setup = Setup::sized(256 << 10, 128 << 10, false);
    let mut store = Store::new(&setup, 16 * MIB, None, registry());
    let engine = Arc::clone(store.engine());
    let trees: Vec<TreeId> = (0..50).map(|n| tree(&engine, &format!("{n}"))).collect();
    for tree in &trees {
        put(&engine, *tree, 0..2, 1);
    }
    let user = vec![1; PIN_USER_BYTES_MAX];
    let mut pins = 0;
    let refused = loop {
        match engine.create_pin(&format!("{pins}"), &user) {
            Ok(_) => pins += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    // Nor does a short one fit, in the end, and nothing is harmed.
    while engine.create_pin(&format!("{pins}"), b"").is_ok() {
        pins += 1;
    }
    for tree in &trees {
        engine.drop_tree(*tree).expect("it is hidden");
    }
    drop(engine);
    store.next_life(Ending::PowerCut);
    let engine = store.engine();
    assert_eq!(engine.trees(), []);
    let at = engine.open_pin("0").expect("it opens");
    assert!(trees.iter().all(|tree| count(engine, *tree, &at) == 2));
    drop(at);
    for number in 0..pins {
        engine.drop_pin(&format!("{number}")).expect("it goes");
    }
    assert_eq!(owned(engine), 0, "every tree went with the last pin");
    assert_eq!(engine.check(&mut |_, _| {}).expect("it ends"), []);
}
