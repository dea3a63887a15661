//! What is there after the store was closed, killed, or lost its power.

use super::functions::APPEND;
use super::{Ending, Factory, Store, dump};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};

/// A few thousand messages of all kinds.
fn work(store: &Store, trees: [TreeId; 2], seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..1500 {
        let key = rng.below(500).to_be_bytes();
        let tree = trees[usize::from(rng.one_in(3))];
        let value = vec![key[7]; usize::try_from(rng.below(400)).unwrap_or(0)];
        match rng.below(20) {
            0 => {
                let end = (u64::from_be_bytes(key) + rng.below(40)).to_be_bytes();
                store.commit(|b| b.delete_range(tree, &key, &end));
            }
            1..4 => store.commit(|b| b.delete(tree, &key)),
            4..9 => store.commit(|b| b.upsert(tree, &key, APPEND, &value[..value.len() / 8])),
            _ => store.commit(|b| {
                b.put(tree, &key, &value);
                b.put(trees[0], b"seed", &seed.to_le_bytes());
            }),
        }
    }
}

fn same_after(factory: &dyn Factory, ending: Ending) {
    let mut store = Store::new(factory);
    let trees = [store.tree("left"), store.tree("right")];
    for life in 0..6u64 {
        work(&store, trees, life);
        if life % 3 == 1 {
            store.quiesce();
        }
        if life % 3 == 2 {
            store.engine().sync().expect("the store syncs");
        }
        let before = dump(store.engine());
        if !store.reopen(ending) {
            return;
        }
        assert!(
            dump(store.engine()) == before,
            "life {life} was lost in part"
        );
        if life == 4 {
            // A life without a write changes nothing.
            store.reopen(ending);
            assert!(
                dump(store.engine()) == before,
                "an idle life changed the store"
            );
        }
    }
    store.finish();
}

pub(super) fn closed(factory: &dyn Factory) {
    same_after(factory, Ending::Closed);
    let (store, tree) = Store::with_tree(factory);
    store.commit(|b| b.put(tree, b"k", b"v"));
    store.engine().close().expect("the store closes");
    let late = store.try_commit(|b| b.put(tree, b"k", b"late"));
    assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::Closed));
    let options = crate::TreeOptions::default();
    let late = [
        store.engine().create_tree("late", &options).map(drop),
        store.engine().alter_tree(tree, &options),
        store.engine().drop_tree(tree),
    ];
    let kinds = late.map(|refused| refused.map_err(|error| error.kind()));
    assert_eq!(kinds, [Err(ErrorKind::Closed); 3]);
}

pub(super) fn killed(factory: &dyn Factory) {
    same_after(factory, Ending::Killed);
}

/// Each commit writes its number to one of 16 keys, so that the store's content tells exactly how
/// many commits it has seen.
pub(super) fn power_cut_leaves_a_prefix(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let mut rng = Rng::new(99);
    let (mut written, mut durable) = (0u64, 0u64);
    for life in 0..12 {
        for _ in 0..rng.below(300) {
            written += 1;
            let key = [u8::try_from(written % 16).unwrap_or(0)];
            store.commit(|b| b.put(tree, &key, &written.to_le_bytes()));
            if rng.one_in(50) {
                store.engine().sync().expect("the store syncs");
                durable = written;
            }
            if rng.one_in(200) {
                store.quiesce();
            }
        }
        if !store.reopen(Ending::PowerCut) {
            return;
        }
        let found = (0..16u8)
            .filter_map(|key| store.get(tree, &[key]))
            .map(|value| super::functions::number(&value))
            .max()
            .unwrap_or(0);
        assert!(
            found >= durable,
            "life {life}: {durable} durable, {found} left"
        );
        assert!(found <= written, "life {life}: {found} never written");
        for back in 0..found.min(16) {
            let number = found - back;
            let key = [u8::try_from(number % 16).unwrap_or(0)];
            store.assert_value(tree, &key, Some(&number.to_le_bytes()));
        }
        (written, durable) = (found, found);
    }
    store.finish();
}

pub(super) fn tree_numbers_are_not_reused(factory: &dyn Factory) {
    let mut store = Store::new(factory);
    let mut last = TreeId(0);
    for life in 0..4 {
        let tree = store.tree("tree");
        assert!(tree > last, "life {life}: {tree} after {last}");
        last = tree;
        store.commit(|b| b.put(tree, b"k", b"v"));
        store.engine().drop_tree(tree).expect("the tree goes");
        let ending = [Ending::Closed, Ending::Killed][life % 2];
        store.reopen(ending);
        assert_eq!(store.engine().trees(), []);
    }
    store.finish();
}
