//! Reads of several keys at one moment.

use super::functions::APPEND;
use super::{Ending, Factory, NOW, Store};
use crate::{KvError, NewBranch, Snapshot};
use stitch_base::TreeId;
use stitch_base::random::Rng;

#[track_caller]
fn assert_as_single_reads(store: &Store, tree: TreeId, keys: &[&[u8]], at: Option<&Snapshot>) {
    let values = store.engine().get_many(tree, keys, at);
    let values = values.expect("the keys are read");
    assert_eq!(values.len(), keys.len(), "one value for each key");
    for (key, value) in keys.iter().zip(values) {
        let value = value.map(|value| value.to_vec());
        assert_eq!(value, store.get_at(tree, key, at), "key {key:?}");
    }
}

/// Several keys are read as each of them alone, in the order in which they were named.
pub(super) fn read(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let mut rng = Rng::new(41);
    for key in (0..=240u8).step_by(3) {
        store.commit(|b| b.put(tree, &[key], &[key; 300]));
    }
    let before = store.engine().snapshot();
    store.commit(|b| b.delete_range(tree, &[30], &[60]));
    store.commit(|b| b.upsert(tree, &[90], APPEND, b"more"));
    store.commit(|b| b.put(tree, &[31], b"again"));
    for at in [NOW, Some(&before)] {
        for count in [0, 1, 7, 200] {
            let keys: Vec<[u8; 1]> = (0..count)
                .map(|_| [rng.next_u64().to_le_bytes()[0]])
                .collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            assert_as_single_reads(&store, tree, &keys, at);
        }
        let named_twice: [&[u8]; 6] = [&[90], &[3], &[], &[31], &[3], &[90]];
        assert_as_single_reads(&store, tree, &named_twice, at);
    }
    drop(before);
    for ending in [Ending::Closed, Ending::Killed] {
        store.quiesce();
        store.reopen(ending);
        let keys: [&[u8]; 4] = [&[31], &[30], &[0], &[90]];
        assert_as_single_reads(&store, tree, &keys, NOW);
    }
    let gone = store.tree("gone");
    store.engine().drop_tree(gone).expect("the tree goes");
    let refused = store.engine().get_many(gone, &[b"k"], NOW);
    assert!(matches!(refused, Err(KvError::NoTree(tree)) if tree == gone));
    store.finish();
}

const RANDOM_KEYS: u64 = 400;

/// A key of several bytes, so that neighbours share most of it.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    format!("key{:04}", rng.below(RANDOM_KEYS)).into_bytes()
}

/// Messages of every kind on random keys of a tree.
fn write_random(store: &mut Store, tree: TreeId, rng: &mut Rng, count: u64) {
    const LENS: [usize; 4] = [0, 20, 700, 9000];
    for step in 0..count {
        let (key, kind) = (random_key(rng), rng.below(40));
        let fill = step.to_le_bytes()[0];
        let len = LENS[usize::try_from(rng.below(4)).expect("small")];
        let end = random_key(rng);
        store.commit(|b| match kind {
            0..22 => b.put(tree, &key, &vec![fill; len]),
            22..28 => b.delete(tree, &key),
            28..39 => b.upsert(tree, &key, APPEND, &[fill; 3]),
            // Mostly a short range, or none.
            _ if end.starts_with(&key[..5]) => b.delete_range(tree, &key, &end),
            _ => b.delete_range(tree, &key, &[&key[..], &[0]].concat()),
        });
    }
}

/// Random batches of keys, some of them named twice or not there, against single reads.
fn assert_random(store: &Store, tree: TreeId, at: Option<&Snapshot>, rng: &mut Rng) {
    for count in [2, 3, 17, 130, 600] {
        let keys: Vec<Vec<u8>> = (0..count).map(|_| random_key(rng)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        assert_as_single_reads(store, tree, &keys, at);
    }
}

/// Batches of keys are read as single reads are: while tables change, at a snapshot, in a branch,
/// and from a store that was just opened.
pub(super) fn random(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let mut rng = Rng::new(4217);
    write_random(&mut store, tree, &mut rng, 900);
    assert_random(&store, tree, NOW, &mut rng);
    store.quiesce();
    let before = store.engine().snapshot();
    let mut trees = vec![tree];
    if store.engine().capabilities().branches {
        let branch = [NewBranch::new(tree, "branch")];
        let made = store.engine().branch_trees(&branch, Some(&before));
        trees.extend(made.expect("the branch is made"));
    }
    for tree in &trees {
        write_random(&mut store, *tree, &mut rng, 500);
    }
    assert_random(&store, tree, Some(&before), &mut rng);
    drop(before);
    for ending in [Ending::Killed, Ending::Closed] {
        for tree in &trees {
            assert_random(&store, *tree, NOW, &mut rng);
        }
        store.reopen(ending);
        for tree in &trees {
            assert_random(&store, *tree, NOW, &mut rng);
        }
        store.quiesce();
    }
    for tree in trees.into_iter().rev() {
        store.engine().drop_tree(tree).expect("the tree goes");
    }
    store.finish();
}
