//! Trees: making, listing, dropping.

use super::{Ending, Factory, NOW, Store};
use crate::{Compression, Direction, KeyRange, KvError, TREE_NAME_BYTES_MAX, TreeOptions};

pub(super) fn create_list_drop(factory: &dyn Factory) {
    let mut store = Store::new(factory);
    assert_eq!(store.engine().trees(), []);
    let options = TreeOptions {
        block_bytes: 32 << 10,
        stitch_bytes: 128 << 10,
        compression: Compression::Lz4,
        value_block_bytes: 3 << 10,
    };
    let made = store.engine().create_tree("second", &options);
    let second = made.expect("the tree is made");
    let first = store.tree("first");
    assert!(second.0 > 0 && first > second);
    for _ in 0..2 {
        let trees = store.engine().trees();
        let list: Vec<_> = trees.iter().map(|t| (t.id, t.name.as_str())).collect();
        assert_eq!(list, [(second, "second"), (first, "first")]);
        assert_eq!(trees[0].options, options);
        assert_eq!(trees[1].options, TreeOptions::default());
        store.reopen(Ending::Closed);
    }
    let twice = store.engine().create_tree("first", &options);
    assert!(matches!(twice, Err(KvError::TreeExists(name)) if name == "first"));

    let longest = "n".repeat(TREE_NAME_BYTES_MAX);
    let too_long = store.engine().create_tree(&format!("{longest}n"), &options);
    assert!(matches!(too_long, Err(KvError::Invalid(why)) if why.contains("255 bytes")));
    let long = store.tree(&longest);
    store.reopen(Ending::Killed);
    store.engine().drop_tree(long).expect("the tree goes");

    store.commit(|b| b.put(first, b"k", b"v"));
    let snapshot = store.engine().snapshot();
    store.engine().drop_tree(first).expect("the tree goes");
    let again = store.engine().drop_tree(first);
    assert!(matches!(again, Err(KvError::NoTree(t)) if t == first));
    let write = store.try_commit(|b| b.put(first, b"k", b"v"));
    assert!(matches!(write, Err(KvError::NoTree(t)) if t == first));
    for at in [NOW, Some(&snapshot)] {
        let read = store.engine().get(first, b"k", at);
        assert!(matches!(read, Err(KvError::NoTree(t)) if t == first));
        let all = KeyRange::all();
        let scan = store.engine().scan(first, all, Direction::Forward, at);
        assert!(matches!(scan.map(drop), Err(KvError::NoTree(t)) if t == first));
    }
    assert_eq!(store.engine().trees().len(), 1);
    drop(snapshot);
    store.finish();
}

pub(super) fn name_used_again(factory: &dyn Factory) {
    let (mut store, mut tree) = Store::with_tree(factory);
    for round in 0..5u8 {
        for key in 0..100u8 {
            store.commit(|b| b.put(tree, &[round, key], &[round; 500]));
        }
        if round % 2 == 0 {
            store.quiesce();
        }
        store.engine().drop_tree(tree).expect("the tree goes");
        let new = store.tree("tree");
        assert!(new > tree, "tree numbers are not reused");
        tree = new;
        store.assert_keys(tree, &[]);
        if round == 3 {
            store.reopen(Ending::Killed);
            store.assert_keys(tree, &[]);
        }
    }
    store.quiesce();
    store.assert_keys(tree, &[]);
    store.finish();
}

pub(super) fn apart(factory: &dyn Factory) {
    let store = Store::new(factory);
    let (left, right) = (store.tree("left"), store.tree("right"));
    for key in 0..100u8 {
        store.commit(|b| b.put(left, &[key], b"left"));
        store.commit(|b| b.put(right, &[key, key], b"right"));
    }
    store.quiesce();
    store.commit(|b| b.delete_range(left, b"", &[255]));
    store.assert_keys(left, &[]);
    assert_eq!(store.keys(right, None).len(), 100);
    store.quiesce();
    store.engine().drop_tree(left).expect("the tree goes");
    store.quiesce();
    assert_eq!(store.keys(right, None).len(), 100);
    store.assert_value(right, &[7, 7], Some(b"right"));
    store.assert_value(right, &[7], None);
    store.finish();
}

pub(super) fn altered(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let other = store.tree("other");
    let fill = |store: &Store, round: u8| {
        for key in 0..200u8 {
            store.commit(|b| b.put(tree, &[key], &[round; 300]));
        }
    };
    let compressions = [Compression::None, Compression::Lz4];
    let thresholds = [0, 4 << 10, 64 << 10, u64::MAX];
    let mut options = TreeOptions::default();
    for (round, stitch_bytes) in (0u8..).zip(thresholds) {
        fill(&store, round);
        options = TreeOptions {
            block_bytes: 4 << 10,
            stitch_bytes,
            compression: compressions[usize::from(round % 2)],
            value_block_bytes: 1 << 10,
        };
        let altered = store.engine().alter_tree(tree, &options);
        altered.expect("the tree takes other options");
        assert_eq!(store.engine().trees()[0].options, options);
        if round % 2 == 0 {
            store.quiesce();
        }
        store.assert_value(tree, &[7], Some(&[round; 300]));
        if round == 2 {
            store.reopen(Ending::Killed);
        }
    }
    for _ in 0..2 {
        let trees = store.engine().trees();
        assert_eq!(trees[0].options, options);
        assert_eq!(trees[1].options, TreeOptions::default());
        store.assert_value(tree, &[199], Some(&[3; 300]));
        store.reopen(Ending::Closed);
    }
    store.engine().drop_tree(other).expect("the tree goes");
    let gone = store.engine().alter_tree(other, &options);
    assert!(matches!(gone, Err(KvError::NoTree(t)) if t == other));
    store.finish();
}
