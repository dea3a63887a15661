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

fn put(engine: &VtEngine, tree: TreeId, number: u64) -> bool {
    let mut value = vec![0; 4088];
    Rng::new(number).fill(&mut value);
    let mut batch = Batch::new();
    batch.put(tree, &key(number), &value);
    commit(engine, &batch, SpaceClass::Normal)
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
    engine.settle().expect("background work succeeds");
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
    engine.settle().expect("background work succeeds");
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
