//! The two looks of a guarded commit.

use super::*;
use crate::testing::{MIB, Small};
use stitch_kv::{Batch, Capabilities, Engine, Snapshot};

fn on_keys(since: &Snapshot, tree: TreeId, keys: impl Iterator<Item = u64>) -> Guards {
    let mut guards = Guards::since(since);
    for key in keys {
        guards.key(tree, &key.to_be_bytes());
    }
    guards
}

fn conflict(result: Result<impl Sized, KvError>) -> u64 {
    match result.err().expect("it is refused") {
        KvError::Conflict { key, .. } => u64::from_be_bytes(key.try_into().expect("8 bytes")),
        other => panic!("{other}"),
    }
}

#[test]
fn the_engine_says_that_it_checks_guards() {
    let small = Small::new(64 * MIB);
    let Capabilities { guards, .. } = small.engine.capabilities();
    assert!(guards);
}

/// What is committed between the two looks is found by the second, and nothing else is looked at.
#[test]
fn the_second_look_finds_what_came_after_the_first() {
    let mut small = Small::new(64 * MIB);
    small.put(0, 100, 100);
    let since = small.engine.snapshot();
    let store = Arc::clone(&small.engine.store);
    let guards = on_keys(&since, small.tree, 0..100);
    let first = store
        .committer
        .check_guards(&guards)
        .expect("nothing changed");
    assert_eq!(first, since.seqno());
    small.put(50, 1, 100);
    assert_eq!(
        conflict(store.committer.check_guards_from(&guards, first)),
        50
    );
    // A look from now on passes over it, as it would have been found before.
    let now = small.engine.snapshot().seqno();
    store
        .committer
        .check_guards_from(&guards, now)
        .expect("it is not newer");
    small.engine.quiesce().expect("it settles");
    assert_eq!(
        conflict(store.committer.check_guards_from(&guards, first)),
        50
    );
    let mut range = Guards::since(&since);
    range.range(small.tree, KeyRange::all());
    assert_eq!(
        conflict(store.committer.check_guards_from(&range, first)),
        50
    );
    store
        .committer
        .check_guards_from(&range, now)
        .expect("it is not newer");
    small.check();
}

#[test]
fn guards_of_another_store_are_refused() {
    let (small, other) = (Small::new(64 * MIB), Small::new(64 * MIB));
    let strange = on_keys(&other.engine.snapshot(), small.tree, 0..1);
    let mut batch = Batch::new();
    batch.put(small.tree, b"k", b"v");
    let refused =
        small
            .engine
            .commit_guarded(&batch, &strange, stitch_kv::CommitOptions::default());
    assert!(matches!(refused, Err(KvError::Invalid(_))));
    small.check();
}
