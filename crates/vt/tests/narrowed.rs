//! Narrowed pins keep the versions of their ranges, and nothing beside them.

mod common;

use common::{MIB, Setup, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, Holder, KeyRange, KeyRanges, PinRanges, Snapshot,
    TreeOptions,
};
use stitch_vt::VtEngine;

const KIB: u64 = 1 << 10;
const ROWS: u64 = 2000;
/// The keys of the ranges that pins are narrowed to.
const HELD: [std::ops::Range<u64>; 2] = [300..350, 1200..1250];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn device() -> Arc<CrashDevice> {
    let device = CrashDevice::new(128 * MIB, CrashPlan::default());
    common::format(&device, Some(4 * MIB));
    Arc::new(device)
}

fn engine_on(device: &Arc<CrashDevice>) -> Arc<VtEngine> {
    let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
    open(device, Setup::sized(128 * KIB, 64 * KIB, false).options)
}

fn tree(engine: &VtEngine, value_block_bytes: u32) -> TreeId {
    let options = TreeOptions {
        value_block_bytes,
        ..TreeOptions::default()
    };
    engine.create_tree("tree", &options).expect("it is made")
}

fn owned(engine: &VtEngine) -> u64 {
    engine.quiesce().expect("background work succeeds");
    engine.holdings().owned_bytes()
}

fn exclusive(engine: &VtEngine, holder: Holder<'_>) -> u64 {
    let found = engine.exclusive_space(&[holder], &mut |_, _| true);
    found.expect("it reads").expect("it is not cancelled")[0]
}

fn held() -> KeyRanges {
    let range = |keys: &std::ops::Range<u64>| {
        let [start, end] = [keys.start, keys.end].map(|key| key.to_be_bytes().to_vec());
        (start, Some(end))
    };
    KeyRanges::new(HELD.iter().map(range))
}

fn narrow(engine: &VtEngine, name: &str, tree: TreeId) {
    let narrowed = engine.narrow_pin(name, &PinRanges::from([(tree, held())]));
    assert_eq!(narrowed.expect("it is narrowed").ranges[&tree], held());
}

fn rows_in(engine: &VtEngine, tree: TreeId, range: KeyRange<'_>, at: Option<&Snapshot>) -> Rows {
    let scan = engine.scan(tree, range, Direction::Forward, at);
    let mut scan = scan.expect("it begins");
    let mut rows = Rows::new();
    while let Some((key, value)) = scan.next().expect("it reads") {
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}

/// The rows of the ranges at a pin.
fn held_rows(engine: &VtEngine, tree: TreeId, name: &str) -> Rows {
    let at = engine.open_pin(name).expect("it opens");
    let held = held();
    let ranges = held.iter();
    ranges
        .flat_map(|range| rows_in(engine, tree, range, Some(&at)))
        .collect()
}

/// Writes every row once, in batches, with range deletes that it fills again.
fn overwrite(engine: &VtEngine, tree: TreeId, (rng, value_bytes): (&mut Rng, usize)) {
    for first in (0..ROWS).step_by(50) {
        let mut batch = Batch::new();
        if rng.one_in(4) {
            let end = (first + rng.below(120)).min(ROWS);
            batch.delete_range(tree, &first.to_be_bytes(), &end.to_be_bytes());
        }
        for key in first..first + 50 {
            let mut value = vec![0; value_bytes];
            rng.fill(&mut value);
            batch.put(tree, &key.to_be_bytes(), &value);
        }
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
    }
}

/// What ten rounds of writes leave, with a pin of ranges and without.
fn space_beside_a_pin(value_block_bytes: u32, value_bytes: usize) {
    let mut left = Vec::new();
    for has_pin in [true, false] {
        let device = device();
        let mut engine = engine_on(&device);
        let tree = tree(&engine, value_block_bytes);
        let mut rng = Rng::new(7);
        overwrite(&engine, tree, (&mut rng, value_bytes));
        let mut seen = Rows::new();
        if has_pin {
            engine.create_pin("pin", b"").expect("it is made");
            narrow(&engine, "pin", tree);
            seen = held_rows(&engine, tree, "pin");
            assert!(!seen.is_empty(), "the ranges hold rows");
        }
        for round in 0..10 {
            overwrite(&engine, tree, (&mut rng, value_bytes));
            if round % 2 == 0 {
                engine.quiesce().expect("background work succeeds");
            }
            if round == 5 {
                engine.close().expect("it closes");
                drop(engine);
                engine = engine_on(&device);
            }
        }
        left.push(owned(&engine));
        if has_pin {
            assert!(held_rows(&engine, tree, "pin") == seen, "the pin changed");
            let told = exclusive(&engine, Holder::Pin("pin"));
            let value_bytes = value_bytes as u64;
            let least = seen.len() as u64 * value_bytes;
            assert!(told >= least, "{told} for {} rows", seen.len());
            assert!(
                told < 2 * least + 64 * KIB,
                "{told} for {} rows",
                seen.len()
            );
            engine.drop_pin("pin").expect("it goes");
            left.push(owned(&engine));
        }
        assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    }
    println!("{left:?} with a pin of ranges, after its drop, and without");
    let [with, after, without] = left[..] else {
        unreachable!("there are two stores");
    };
    assert!(with <= without + without / 5, "{with} of {without}");
    assert!(
        after <= without + without / 20 + 64 * KIB,
        "{after} of {without}"
    );
}

#[test]
fn a_pin_of_ranges_keeps_nothing_of_small_rows_beside_them() {
    space_beside_a_pin(0, 300);
}

#[test]
fn a_pin_of_ranges_keeps_nothing_of_large_values_beside_them() {
    space_beside_a_pin(2 << 10, 4000);
}

#[test]
fn narrowing_gives_back_what_a_pin_held_beside_its_ranges() {
    for (value_block_bytes, value_bytes) in [(0, 300), (2 << 10, 4000)] {
        let device = device();
        let engine = engine_on(&device);
        let tree = tree(&engine, value_block_bytes);
        let mut rng = Rng::new(8);
        overwrite(&engine, tree, (&mut rng, value_bytes));
        let once = owned(&engine);
        engine.create_pin("pin", b"").expect("it is made");
        let at = engine.open_pin("pin").expect("it opens");
        let all = rows_in(&engine, tree, KeyRange::all(), Some(&at));
        overwrite(&engine, tree, (&mut rng, value_bytes));
        let twice = owned(&engine);
        assert!(twice > once / 10 * 18, "{once}, then {twice}");
        let seen = held_rows(&engine, tree, "pin");
        narrow(&engine, "pin", tree);
        // What was opened before goes on.
        engine.quiesce().expect("background work succeeds");
        assert!(
            rows_in(&engine, tree, KeyRange::all(), Some(&at)) == all,
            "the snapshot changed"
        );
        drop(at);
        let narrowed = owned(&engine);
        println!("{once} once, {twice} with the pin, {narrowed} after it was narrowed");
        assert!(narrowed < once / 10 * 12, "{once}, then {narrowed}");
        assert!(exclusive(&engine, Holder::Garbage) < once / 20);
        assert!(held_rows(&engine, tree, "pin") == seen, "the pin changed");
        engine.close().expect("it closes");
        drop(engine);
        let engine = engine_on(&device);
        assert!(held_rows(&engine, tree, "pin") == seen, "the pin changed");
        assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    }
}
