//! Scans: order, bounds, direction, and a view that holds still.

use super::functions::APPEND;
use super::random::read_hints;
use super::{Factory, Rows, Store, drain, read_all};
use crate::{Direction, KeyRange};
use stitch_base::TreeId;
use stitch_base::random::Rng;

#[track_caller]
fn scan(store: &Store, tree: TreeId, range: KeyRange<'_>, direction: Direction) -> Rows {
    let scan = store.engine().scan(tree, range, direction, None);
    drain(scan.expect("the scan begins"))
}

#[track_caller]
fn assert_scans(store: &Store, tree: TreeId, range: KeyRange<'_>, expected: &Rows) {
    let forward = scan(store, tree, range, Direction::Forward);
    assert!(forward == *expected, "forward over {range:?}");
    let mut backward = scan(store, tree, range, Direction::Backward);
    backward.reverse();
    assert!(backward == *expected, "backward over {range:?}");
    if range.end.is_some() {
        for hint in read_hints(range) {
            let whole = store.engine().scan_whole(tree, range, None);
            let whole = drain(whole.expect("the scan begins"));
            assert!(whole == *expected, "whole {range:?}");
            store.engine().read_ahead(tree, &hint);
        }
    }
}

pub(super) fn both_ways(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    assert_scans(&store, tree, KeyRange::all(), &Rows::new());
    for key in [&b"b"[..], b"a", b"ab", b"", b"c"] {
        store.commit(|b| b.put(tree, key, key));
    }
    let rows = |keys: &[&[u8]]| -> Rows { keys.iter().map(|k| (k.to_vec(), k.to_vec())).collect() };
    for _ in 0..2 {
        let all: &[&[u8]] = &[b"", b"a", b"ab", b"b", b"c"];
        assert_scans(&store, tree, KeyRange::all(), &rows(all));
        assert_scans(&store, tree, KeyRange::from(b"a"), &rows(&all[1..]));
        assert_scans(&store, tree, KeyRange::from(b"aa"), &rows(&all[2..]));
        assert_scans(&store, tree, KeyRange::from(b"d"), &Rows::new());
        assert_scans(&store, tree, KeyRange::new(b"a", b"b"), &rows(&all[1..3]));
        assert_scans(&store, tree, KeyRange::new(b"", b"a"), &rows(&all[..1]));
        assert_scans(&store, tree, KeyRange::new(b"b", b"b"), &Rows::new());
        assert_scans(&store, tree, KeyRange::new(b"c", b"a"), &Rows::new());
        store.quiesce();
    }
    store.finish();
}

pub(super) fn random_ranges(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let mut rng = Rng::new(20);
    let mut model = std::collections::BTreeMap::new();
    for round in 0..2000u32 {
        let key = u16::try_from(rng.below(3000)).unwrap_or(0).to_be_bytes();
        let value = vec![key[1]; usize::try_from(rng.below(300)).unwrap_or(0)];
        if rng.one_in(6) {
            store.commit(|b| b.delete(tree, &key));
            model.remove(&key[..]);
        } else {
            store.commit(|b| b.put(tree, &key, &value));
            model.insert(key.to_vec(), value);
        }
        if round % 700 == 699 {
            store.quiesce();
        }
    }
    for _ in 0..200 {
        let start = u16::try_from(rng.below(3100)).unwrap_or(0).to_be_bytes();
        let end = u16::try_from(rng.below(3100)).unwrap_or(0).to_be_bytes();
        let expected: Rows = if start < end {
            let range = model.range(start.to_vec()..end.to_vec());
            range.map(|(k, v)| (k.clone(), v.clone())).collect()
        } else {
            Rows::new()
        };
        assert_scans(&store, tree, KeyRange::new(&start, &end), &expected);
    }
    store.finish();
}

pub(super) fn unmoved_by_writes(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    for key in 0..100u8 {
        store.commit(|b| b.put(tree, &[key], b"before"));
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let before = read_all(store.engine(), tree, None);
        let begun = store.engine().scan(tree, KeyRange::all(), direction, None);
        let mut under_way = begun.expect("the scan begins");
        let mut seen = Rows::new();
        for step in 0..100u8 {
            store.commit(|b| {
                b.delete(tree, &[step]);
                b.put(tree, &[step, 1], b"after");
                b.upsert(tree, &[99 - step], APPEND, b"after");
            });
            if step == 50 {
                store.commit(|b| b.delete_range(tree, &[0], &[255]));
                store.quiesce();
            }
            let row = under_way.next().expect("the scan reads");
            let (key, value) = row.expect("as many rows as before");
            seen.push((key.to_vec(), value.to_vec()));
        }
        assert!(under_way.next().expect("the scan reads").is_none());
        drop(under_way);
        if direction == Direction::Backward {
            seen.reverse();
        }
        assert_eq!(seen.len(), 100);
        assert!(seen == before[..], "{direction:?}");
        store.commit(|b| {
            b.delete_range(tree, b"", &[255]);
            for key in 0..100u8 {
                b.put(tree, &[key], b"before");
            }
        });
    }
    store.finish();
}

pub(super) fn over_range_deletes(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    // Old rows below, a range delete above, new rows above that: in every layer an engine has.
    for key in 0..1000u32 {
        store.commit(|b| b.put(tree, &key.to_be_bytes(), &[1; 200]));
    }
    store.quiesce();
    for start in (0..1000u32).step_by(100) {
        let end = (start + 60).to_be_bytes();
        store.commit(|b| b.delete_range(tree, &start.to_be_bytes(), &end));
    }
    store.quiesce();
    for key in (0..1000u32).step_by(50) {
        store.commit(|b| b.put(tree, &key.to_be_bytes(), b"new"));
    }
    let mut expected = Rows::new();
    for key in 0..1000u32 {
        let key_bytes = key.to_be_bytes().to_vec();
        if key % 50 == 0 {
            expected.push((key_bytes, b"new".to_vec()));
        } else if key % 100 >= 60 {
            expected.push((key_bytes, vec![1; 200]));
        }
    }
    for _ in 0..2 {
        assert_scans(&store, tree, KeyRange::all(), &expected);
        let inside = KeyRange::new(&[0, 0, 0, 10], &[0, 0, 0, 40]);
        assert_scans(&store, tree, inside, &Rows::new());
        store.quiesce();
    }
    store.finish();
}
