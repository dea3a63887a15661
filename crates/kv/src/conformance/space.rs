//! A full store: refuses cleanly, loses nothing, deletes, recovers.

use super::{Ending, Factory, Store, functions};
use crate::{KvError, SpaceClass};
use stitch_base::TreeId;
use stitch_base::random::Rng;

const LEN_BYTES: u64 = 32 << 20;

fn value(key: u32) -> Vec<u8> {
    let mut value = vec![0; 3000 + usize::try_from(key % 3000).unwrap_or(0)];
    Rng::new(u64::from(key)).fill(&mut value);
    value
}

/// Writes rows from key `first` on until the store is full; answers the first key refused.
fn fill(store: &Store, tree: TreeId, first: u32) -> u32 {
    for key in first.. {
        let put = store.try_commit(|b| b.put(tree, &key.to_be_bytes(), &value(key)));
        match put {
            Ok(()) => {}
            Err(KvError::NoSpace { .. }) => return key,
            Err(other) => panic!("a full store answers NoSpace: {other}"),
        }
        assert!(
            u64::from(key - first) < LEN_BYTES / 1000,
            "a store has an end"
        );
    }
    unreachable!("the range has no end")
}

/// Bytes set aside for a row: what it takes, and what is kept for each beside it.
const ASIDE_BYTES: u64 = 6000 + 6000 / 8;

pub(super) fn what_is_set_aside_is_left(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    let tree = store.tree("tree");
    let free_bytes = store.engine().space().free_bytes;
    let rows = u32::try_from(free_bytes / 3 / ASIDE_BYTES).expect("a small store");
    let too_much = store.engine().set_aside(free_bytes + 1);
    assert!(matches!(too_much, Err(KvError::NoSpace { .. })));
    let aside = u64::from(rows) * ASIDE_BYTES;
    store.engine().set_aside(aside).expect("a third is free");
    let left = store.engine().space().free_bytes;
    assert!(left <= free_bytes - aside, "what is set aside is not free");
    // Others fill the store.
    let first = 1 << 20;
    let end = fill(&store, tree, first);
    let held: u64 = (first..end).map(|key| value(key).len() as u64).sum();
    assert!(held < free_bytes - aside, "they left it alone");
    for round in 0..3 {
        for row in 0..rows {
            store
                .try_commit_from(SpaceClass::Allocated, |b| {
                    b.put(tree, &row.to_be_bytes(), &value(row));
                })
                .unwrap_or_else(|e| panic!("row {row} of {rows}, round {round}: {e}"));
            if round == 0 {
                let aside = u64::from(rows - row - 1) * ASIDE_BYTES;
                store.engine().set_aside(aside).expect("less than before");
            }
        }
    }
    store.quiesce();
    for row in (0..rows).chain(first..end) {
        let found = store.get(tree, &row.to_be_bytes());
        assert!(found == Some(value(row)), "row {row}");
    }
    // It is not stored.
    store.reopen(Ending::Killed);
    store.engine().set_aside(0).expect("nothing");
    store.finish();
}

#[track_caller]
fn assert_rows(store: &Store, tree: TreeId, keys: std::ops::Range<u32>) {
    assert_eq!(store.keys(tree, None).len(), keys.len());
    for key in keys {
        let found = store.get(tree, &key.to_be_bytes());
        assert!(found == Some(value(key)), "row {key}");
    }
}

pub(super) fn full_store_recovers(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    let tree = store.tree("tree");
    let space = store.engine().space();
    assert!(space.total_bytes > LEN_BYTES / 4);
    assert!(space.total_bytes <= LEN_BYTES);
    assert!(space.free_bytes <= space.total_bytes);
    let end = fill(&store, tree, 0);
    let held: u64 = (0..end).map(|key| value(key).len() as u64).sum();
    assert!(
        held > LEN_BYTES / 4,
        "{held} bytes in {LEN_BYTES} are too few"
    );
    assert_rows(&store, tree, 0..end);
    assert!(store.engine().space().free_bytes < LEN_BYTES / 8);
    store.reopen(Ending::Killed);
    assert_rows(&store, tree, 0..end);
    // Deleting works, one by one and by range, and gives space back.
    for key in 0..end / 4 {
        store
            .try_commit_from(SpaceClass::Reserve, |b| b.delete(tree, &key.to_be_bytes()))
            .expect("a full store deletes");
    }
    let (from, to) = (end / 4, end / 2);
    store
        .try_commit_from(SpaceClass::Reserve, |b| {
            b.delete_range(tree, &from.to_be_bytes(), &to.to_be_bytes());
        })
        .expect("a full store deletes ranges");
    store.quiesce();
    assert_rows(&store, tree, to..end);
    let free_bytes = store.engine().space().free_bytes;
    assert!(
        free_bytes > held / 4,
        "only {free_bytes} of {held} bytes came back"
    );
    let new_end = fill(&store, tree, end);
    assert!(new_end > end + end / 8, "the space can be used again");
    assert_rows(&store, tree, to..new_end);
    store.reopen(Ending::Closed);
    assert_rows(&store, tree, to..new_end);
    // Emptied and filled again and again, it does not shrink.
    for _ in 0..3 {
        store
            .try_commit_from(SpaceClass::Reserve, |b| {
                b.delete_range(tree, b"", &[255; 5]);
            })
            .expect("a full store deletes ranges");
        store.quiesce();
        let again = fill(&store, tree, 0);
        assert!(again >= end - end / 4, "{again} rows where {end} fitted");
        assert_rows(&store, tree, 0..again);
    }
    store.finish();
}
