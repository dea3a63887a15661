//! A store that was filled in random order: it deletes, and what is deleted comes back.

mod common;

use common::{MIB, Setup, Store};
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::functions::registry;
use stitch_kv::{Batch, CommitOptions, Engine, KvError, SpaceClass, TreeOptions};
use stitch_vt::VtEngine;

fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()
}

/// False if the store is full.
fn commit(engine: &VtEngine, batch: &Batch, space: SpaceClass) -> bool {
    let options = CommitOptions {
        space,
        ..CommitOptions::default()
    };
    match engine.commit(batch, options) {
        Ok(_) => true,
        Err(KvError::NoSpace { .. }) => false,
        Err(other) => panic!("a full store answers NoSpace: {other}"),
    }
}

/// Bytes of a row.
const ROW_BYTES: u64 = 4096;

fn put(engine: &VtEngine, tree: TreeId, number: u64) -> bool {
    put_row(engine, tree, number, ROW_BYTES)
}

/// Puts a row of `row_bytes` with its key. False if the store is full.
fn put_row(engine: &VtEngine, tree: TreeId, number: u64, row_bytes: u64) -> bool {
    let mut value = vec![0; usize::try_from(row_bytes).expect("it is short") - 8];
    Rng::new(number).fill(&mut value);
    let mut batch = Batch::new();
    batch.put(tree, &key(number), &value);
    commit(engine, &batch, SpaceClass::Normal)
}

/// Bytes that the device was given while these rows were put, all of which there is space for.
fn put_rows(
    engine: &VtEngine,
    tree: TreeId,
    rows: impl Iterator<Item = u64>,
    row_bytes: u64,
) -> u64 {
    let before = engine.counters().get("device.write_bytes");
    for number in rows {
        let is_done = put_row(engine, tree, number, row_bytes);
        assert!(is_done, "row {number} is refused");
    }
    engine.quiesce().expect("background work succeeds");
    engine.counters().get("device.write_bytes") - before
}

/// What is in use, in thousandths of the space for user data.
fn fullness(engine: &VtEngine) -> u64 {
    let space = engine.space();
    (space.total_bytes - space.free_bytes) * 1000 / space.total_bytes
}

#[test]
fn at_nine_tenths_full_overwrites_go_on_at_a_steady_rate() {
    overwrite_at_nine_tenths(false, ROW_BYTES);
}

#[test]
fn at_nine_tenths_full_overwrites_go_on_with_threads() {
    overwrite_at_nine_tenths(true, ROW_BYTES);
}

#[test]
fn at_nine_tenths_full_so_do_overwrites_of_rows_of_several_pages() {
    overwrite_at_nine_tenths(false, 5 * ROW_BYTES);
}

fn overwrite_at_nine_tenths(background: bool, row_bytes: u64) {
    let setup = Setup::sized(256 << 10, 512 << 10, background);
    let store = Store::new(&setup, 64 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    // One that is longer than all others, which need no such holes for that.
    let is_done = put_row(engine, tree, u64::MAX, 10 * ROW_BYTES);
    assert!(is_done, "there is space");
    let mut rows = 0;
    while fullness(engine) < 900 {
        // Half of what is missing, so that what comes back later is not taken for what is there.
        let missing = (900 - fullness(engine)) * engine.space().total_bytes / 1000 / row_bytes;
        let more = (missing / 2).max(16);
        put_rows(engine, tree, rows..rows + more, row_bytes);
        rows += more;
    }
    assert!(rows * row_bytes > 40 * MIB, "{rows} rows in 64 MiB");
    assert!(fullness(engine) < 910, "nine tenths, not more");
    let mut rng = Rng::new(90);
    let mut third = || {
        let numbers: Vec<u64> = (0..rows / 2).map(|_| rng.below(rows)).collect();
        let written = put_rows(engine, tree, numbers.into_iter(), row_bytes);
        assert!((880..930).contains(&fullness(engine)), "as full as before");
        written
    };
    let before = engine.counters();
    let written = [third(), third(), third()];
    let after = engine.counters();
    let since = |name: &str| after.get(name) - before.get(name);
    let put_bytes = rows / 2 * 3 * row_bytes;
    // Pages go to the holes that others left: nothing is moved to make long runs, and few indexes
    // are written. Threads may find a zone with hardly anything in it.
    let evacuated_max = if background { put_bytes / 50 } else { 0 };
    let evacuated = since("vt.evacuated_bytes");
    assert!(evacuated <= evacuated_max, "{evacuated} for {put_bytes}");
    let (merged, carried) = (since("vt.merged_bytes"), since("vt.stitched_bytes"));
    assert!(merged <= put_bytes / 2, "{merged} for {put_bytes}");
    assert!(carried <= 40 * put_bytes, "{carried} for {put_bytes}");
    if !background {
        // No thread made space beforehand.
        let counters = engine.counters();
        assert!(counters.get("vt.waits") > 0, "waits for space are counted");
        assert!(counters.get("vt.wait_us_max") > 0, "with their time");
    }
    assert!(written[2] <= 2 * written[0], "{written:?} bytes");
    let check = engine.check(&mut |_, _| {});
    assert_eq!(check.expect("the check runs"), []);
}

fn run(setup: &Setup) {
    let store = Store::new(setup, 32 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let empty = engine.space().free_bytes;
    let mut end = 0;
    while put(engine, tree, end) {
        end += 1;
    }
    assert!(end * 4096 > 16 * MIB, "{end} rows in 32 MiB");
    for number in (0..end).step_by(8) {
        let mut batch = Batch::new();
        batch.delete(tree, &key(number));
        let is_done = commit(engine, &batch, SpaceClass::Reserve);
        assert!(is_done, "a full store of {end} rows deletes row {number}");
    }
    engine.quiesce().expect("background work succeeds");
    let free = engine.space().free_bytes;
    assert!(
        free > end * 4096 / 16,
        "{free} bytes of {end} rows came back"
    );
    for number in (0..end).filter(|number| number % 8 == 1) {
        assert!(put(engine, tree, number), "row {number} is overwritten");
    }
    let mut batch = Batch::new();
    batch.delete_range(tree, b"", &[255; 9]);
    assert!(commit(engine, &batch, SpaceClass::Reserve));
    engine.quiesce().expect("background work succeeds");
    assert_eq!(engine.space().free_bytes, empty);
}

#[test]
fn a_store_filled_in_random_order_deletes_without_threads() {
    let mut setup = Setup::default();
    setup.options.background = false;
    run(&setup);
}

#[test]
fn a_store_filled_in_random_order_deletes() {
    run(&Setup::default());
}

/// Fills a store in order; then deletes the first three fifths, of which nothing has come back yet.
fn emptied_in_part(has_threads: bool) -> (Store, TreeId, u64) {
    let setup = Setup::sized(MIB, MIB / 2, has_threads);
    let store = Store::new(&setup, 64 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let put = |number: u64| {
        let mut batch = Batch::new();
        let mut value = [0; 4088];
        Rng::new(number).fill(&mut value);
        batch.put(tree, &number.to_be_bytes(), &value);
        commit(engine, &batch, SpaceClass::Normal)
    };
    let count = (0..).find(|number| !put(*number)).expect("it gets full");
    assert!(count > 5000, "{count} rows");
    assert!(engine.set_aside(MIB).is_err(), "it is full");
    let gone = count / 5 * 3;
    let mut batch = Batch::new();
    batch.delete_range(tree, &0u64.to_be_bytes(), &gone.to_be_bytes());
    assert!(commit(engine, &batch, SpaceClass::Reserve));
    (store, tree, gone)
}

#[test]
fn what_was_deleted_is_room_for_the_next_commits_without_a_wait() {
    for has_threads in [false, true] {
        let (store, tree, gone) = emptied_in_part(has_threads);
        for number in 0..gone / 2 {
            let is_done = put(store.engine(), tree, number);
            assert!(is_done, "row {number} of {gone} is refused");
        }
        store.engine().close().expect("it closes");
    }
}

#[test]
fn room_is_made_of_what_was_deleted_when_it_is_asked_for() {
    for has_threads in [false, true] {
        let (store, _, gone) = emptied_in_part(has_threads);
        let engine = store.engine();
        let make = |bytes| {
            let is_set = engine.set_aside(bytes).is_ok();
            engine.set_aside(0).expect("less is never refused");
            is_set
        };
        assert!(!make(64 * MIB), "more than it ever holds");
        assert!(!make(engine.space().total_bytes), "not all was deleted");
        assert!(make(gone / 2 * ROW_BYTES));
        assert!(engine.space().free_bytes >= gone / 2 * ROW_BYTES);
    }
}
