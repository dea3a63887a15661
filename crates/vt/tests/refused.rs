//! Space is refused for a while: commits are told, nothing is lost, and it goes on when there is
//! some.

mod common;

use common::{MIB, Setup, Store};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::registry;
use stitch_kv::{Batch, CommitOptions, Engine, KvError, TreeOptions};
use stitch_volume::Refusals;
use stitch_vt::VtEngine;

fn put(engine: &VtEngine, tree: TreeId, number: u64) -> Result<(), KvError> {
    let mut batch = Batch::new();
    batch.put(tree, &number.to_be_bytes(), &[7; 1000]);
    engine.commit(&batch, CommitOptions::default()).map(drop)
}

fn count(engine: &VtEngine, tree: TreeId, until: u64) -> u64 {
    let has = |number: &u64| {
        let got = engine.get(tree, &number.to_be_bytes(), None);
        got.expect("it can be read").is_some()
    };
    (0..until).filter(has).count() as u64
}

/// Refuses all space while a store is filled; promises, or only what was promised.
fn run(has_threads: bool, spares_promises: bool) {
    let setup = Setup::sized(256 << 10, 128 << 10, has_threads);
    let mut store = Store::new(&setup, 32 * MIB, Some(4 * MIB), registry());
    let refusals = Arc::new(Refusals::default());
    refusals.spare_promises(spares_promises);
    let engine = Arc::clone(store.engine());
    engine.volume().zones().refuse_by(Arc::clone(&refusals));
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    put(&engine, tree, 0).expect("there is space");
    refusals.begin(0..u64::MAX);
    let mut end = 1;
    let error = loop {
        match put(&engine, tree, end) {
            Ok(()) => end += 1,
            Err(error) => break error,
        }
        assert!(end < 10_000, "there is no space for all that");
    };
    assert!(matches!(error, KvError::NoSpace { .. }), "{error}");
    assert!(matches!(engine.quiesce(), Err(KvError::NoSpace { .. })));
    assert_eq!(count(&engine, tree, end + 1), end);
    refusals.end();
    for number in end..end + 3000 {
        put(&engine, tree, number).expect("there is space again");
    }
    refusals.begin(0..u64::MAX);
    // What finds no space stays in the log.
    drop(engine);
    store.next_life(Ending::Closed);
    assert_eq!(count(store.engine(), tree, end + 3001), end + 3000);
    store.engine().quiesce().expect("there is space");
    assert_eq!(count(store.engine(), tree, end + 3001), end + 3000);
}

#[test]
fn commits_are_told_and_go_on_later() {
    run(false, false);
    run(false, true);
}

#[test]
fn commits_that_wait_for_a_thread_are_told_and_go_on_later() {
    run(true, false);
    run(true, true);
}
