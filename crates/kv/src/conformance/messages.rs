//! Each kind of message, alone and together.

use super::functions::{ADD, APPEND, HASH, REMOVE_IF, number};
use super::{Factory, Store};
use crate::KvError;
use stitch_base::TreeId;

pub(super) fn every_kind(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    store.assert_value(tree, b"a", None);
    store.commit(|b| b.put(tree, b"a", b"1"));
    store.assert_value(tree, b"a", Some(b"1"));
    store.commit(|b| b.put(tree, b"a", b"2"));
    store.assert_value(tree, b"a", Some(b"2"));
    store.commit(|b| b.upsert(tree, b"a", APPEND, b"3"));
    store.assert_value(tree, b"a", Some(b"23"));
    store.commit(|b| b.delete(tree, b"a"));
    store.assert_value(tree, b"a", None);
    store.commit(|b| b.delete(tree, b"never there"));
    store.commit(|b| b.put(tree, b"b", b"4"));
    store.commit(|b| b.delete_range(tree, b"a", b"c"));
    store.assert_value(tree, b"b", None);
    store.assert_keys(tree, &[]);
    store.commit(|_| {});
    store.finish();
}

pub(super) fn order_within_a_batch(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    store.commit(|b| b.put(tree, b"k", b"old"));
    store.commit(|b| {
        b.put(tree, b"k", b"new");
        b.upsert(tree, b"k", APPEND, b"+1");
        b.upsert(tree, b"k", APPEND, b"+2");
    });
    store.assert_value(tree, b"k", Some(b"new+1+2"));
    store.commit(|b| {
        b.upsert(tree, b"k", APPEND, b"lost");
        b.delete_range(tree, b"k", b"l");
        b.put(tree, b"k", b"after");
        b.put(tree, b"kk", b"too");
    });
    store.assert_value(tree, b"k", Some(b"after"));
    store.assert_value(tree, b"kk", Some(b"too"));
    store.commit(|b| {
        b.put(tree, b"k", b"x");
        b.delete(tree, b"k");
        b.upsert(tree, b"k", APPEND, b"alone");
        b.put(tree, b"kk", b"x");
        b.delete_range(tree, b"kk", b"kl");
    });
    store.assert_value(tree, b"k", Some(b"alone"));
    store.assert_value(tree, b"kk", None);
    store.quiesce();
    store.assert_keys(tree, &[b"k"]);
    store.assert_value(tree, b"k", Some(b"alone"));
    store.finish();
}

pub(super) fn batches_over_trees(factory: &dyn Factory) {
    let store = Store::new(factory);
    let trees = [store.tree("a"), store.tree("b"), store.tree("c")];
    for round in 0..50u8 {
        store.commit(|b| {
            for tree in trees {
                b.put(tree, b"round", &[round]);
                b.put(tree, &[round], b"x");
                b.delete_range(tree, &[0], &[round]);
            }
        });
        for tree in trees {
            store.assert_value(tree, b"round", Some(&[round]));
            store.assert_keys(tree, &[&[round], b"round"]);
        }
    }
    store.finish();
}

pub(super) fn refused_whole(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    store.commit(|b| b.put(tree, b"k", b"v"));
    let unknown = TreeId(tree.0 + 1000);
    let refused = store.try_commit(|b| {
        b.put(tree, b"k", b"changed");
        b.put(unknown, b"k", b"v");
    });
    assert!(matches!(refused, Err(KvError::NoTree(t)) if t == unknown));
    let refused = store.try_commit(|b| {
        b.delete(tree, b"k");
        b.upsert(tree, b"k", 0xdead, b"");
    });
    assert!(matches!(refused, Err(KvError::Invalid(_))), "{refused:?}");
    store.assert_value(tree, b"k", Some(b"v"));
    store.assert_keys(tree, &[b"k"]);
    store.finish();
}

pub(super) fn upserts(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let mut digest = None;
    for round in 0..100u64 {
        store.commit(|b| {
            b.upsert(tree, b"sum", ADD, &round.to_le_bytes());
            b.upsert(
                tree,
                b"text",
                APPEND,
                &[b'a' + u8::try_from(round % 26).unwrap_or(0)],
            );
            b.upsert(tree, b"digest", HASH, &round.to_le_bytes());
        });
        digest = Some(fold_hash(b"digest", digest, &round.to_le_bytes()));
        if round % 30 == 29 {
            store.quiesce();
        }
        if round == 70 {
            store.reopen(super::Ending::Killed);
        }
    }
    assert_eq!(number(&store.get(tree, b"sum").unwrap_or_default()), 4950);
    assert_eq!(store.get(tree, b"text").map(|t| t.len()), Some(100));
    assert_eq!(store.get(tree, b"digest"), digest);

    store.commit(|b| b.put(tree, b"gone", b"yes"));
    store.quiesce();
    store.commit(|b| b.upsert(tree, b"gone", REMOVE_IF, b"no"));
    store.assert_value(tree, b"gone", Some(b"yes"));
    store.commit(|b| b.upsert(tree, b"gone", REMOVE_IF, b"ye"));
    store.assert_value(tree, b"gone", None);
    store.assert_keys(tree, &[b"digest", b"sum", b"text"]);
    store.commit(|b| b.upsert(tree, b"gone", APPEND, b"back"));
    store.quiesce();
    store.assert_value(tree, b"gone", Some(b"back"));
    store.finish();
}

fn fold_hash(key: &[u8], old: Option<Vec<u8>>, delta: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    crate::UpsertFn::fold(
        &super::functions::Hash,
        key,
        old.as_deref(),
        delta,
        &mut out,
    );
    out
}

pub(super) fn range_deletes(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    for key in 0..200u8 {
        store.commit(|b| b.put(tree, &[key], &[key; 100]));
    }
    store.quiesce();
    store.commit(|b| b.delete_range(tree, &[50], &[100]));
    store.commit(|b| b.delete_range(tree, &[80], &[120]));
    store.commit(|b| b.put(tree, &[90], b"in the middle"));
    store.commit(|b| b.upsert(tree, &[91], APPEND, b"on nothing"));
    let expected: Vec<Vec<u8>> = (0..50)
        .chain([90, 91])
        .chain(120..200)
        .map(|k| vec![k])
        .collect();
    for _ in 0..2 {
        assert_eq!(store.keys(tree, None), expected);
        store.assert_value(tree, &[49], Some(&[49; 100]));
        store.assert_value(tree, &[50], None);
        store.assert_value(tree, &[90], Some(b"in the middle"));
        store.assert_value(tree, &[91], Some(b"on nothing"));
        store.assert_value(tree, &[119], None);
        store.assert_value(tree, &[120], Some(&[120; 100]));
        store.quiesce();
    }
    store.commit(|b| b.delete_range(tree, b"", &[255]));
    store.assert_keys(tree, &[]);
    store.quiesce();
    store.assert_keys(tree, &[]);
    store.finish();
}

pub(super) fn empty_keys_and_values(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    store.commit(|b| {
        b.put(tree, b"", b"empty key");
        b.put(tree, b"empty value", b"");
        b.put(tree, b"", b"");
        b.put(tree, &[0], b"zero");
        b.put(tree, &[0, 0], b"");
        b.put(tree, &[255; 40], b"last");
    });
    for _ in 0..2 {
        store.assert_value(tree, b"", Some(b""));
        store.assert_value(tree, b"empty value", Some(b""));
        store.assert_value(tree, &[0], Some(b"zero"));
        store.assert_value(tree, &[0, 0, 0], None);
        store.assert_keys(tree, &[b"", &[0], &[0, 0], b"empty value", &[255; 40]]);
        store.quiesce();
        store.reopen(super::Ending::Closed);
    }
    store.commit(|b| b.delete_range(tree, b"", &[0]));
    store.assert_value(tree, b"", None);
    store.assert_value(tree, &[0], Some(b"zero"));
    store.commit(|b| b.upsert(tree, b"", APPEND, b""));
    store.assert_value(tree, b"", Some(b""));
    store.finish();
}

pub(super) fn big_values(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let sizes = [1, 4095, 4096, 4097, 65_535, 65_536, 300_000];
    let value = |size: usize, with: usize| -> Vec<u8> {
        let byte = |i: usize| u8::try_from((i * 31 + i / 251 + with) % 256).unwrap_or(0);
        (0..size).map(byte).collect()
    };
    for (i, size) in sizes.into_iter().enumerate() {
        store.commit(|b| b.put(tree, format!("key {i}").as_bytes(), &value(size, i)));
    }
    for round in 0..3 {
        for (i, size) in sizes.into_iter().enumerate() {
            let found = store.get(tree, format!("key {i}").as_bytes());
            assert!(found == Some(value(size, i)), "value {i} of {size} bytes");
        }
        match round {
            0 => store.quiesce(),
            _ => drop(store.reopen(super::Ending::Killed)),
        }
    }
    store.finish();
}
