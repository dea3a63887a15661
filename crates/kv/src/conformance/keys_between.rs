//! Keys that may hold something else at one moment than at another one.

use super::functions::APPEND;
use super::{Factory, Store};
use crate::{Engine, KeyRange, KvError, NewBranch, Snapshot};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};

/// The first moment, and the second one or now.
pub(super) type Moments<'a> = (&'a Snapshot, Option<&'a Snapshot>);

/// An engine that does not claim to list them refuses to.
pub(super) fn unsupported(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    if store.engine().capabilities().keys_between {
        return;
    }
    let from = store.engine().snapshot();
    let refused = store
        .engine()
        .keys_between(tree, KeyRange::all(), (&from, None), 1);
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    store.finish();
}

/// A store with a tree, of an engine that lists them.
fn listing(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    let lists = store.engine().capabilities().keys_between;
    lists.then_some((store, tree))
}

/// All keys that may hold something else, asked for in pages.
pub(super) fn listed(
    engine: &dyn Engine,
    tree: TreeId,
    moments: Moments<'_>,
    page: usize,
) -> Result<Vec<Vec<u8>>, KvError> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let start = keys.last().map(|last| [last, &[0][..]].concat());
        let range = KeyRange::from(start.as_deref().unwrap_or_default());
        let found = engine.keys_between(tree, range, moments, page)?;
        assert!(found.len() <= page, "no more than were asked for");
        let is_last = found.len() < page;
        keys.extend(found);
        assert!(keys.is_sorted_by(|a, b| a < b), "in order, each once");
        if is_last {
            return Ok(keys);
        }
    }
}

impl Store {
    #[track_caller]
    fn between(&self, tree: TreeId, from: &Snapshot, to: Option<&Snapshot>) -> Vec<Vec<u8>> {
        listed(self.engine(), tree, (from, to), usize::MAX).expect("the keys are listed")
    }

    /// Compares what is listed with what reads at both moments see. `written` are the keys that may
    /// be listed.
    #[track_caller]
    fn assert_between(
        &self,
        tree: TreeId,
        (from, to): Moments<'_>,
        is_written: &dyn Fn(&[u8]) -> bool,
    ) {
        let found = self.between(tree, from, to);
        let unwritten = found.iter().find(|key| !is_written(key));
        assert_eq!(unwritten, None, "not written between");
        let mut keys = self.keys(tree, Some(from));
        keys.extend(self.keys(tree, to));
        for key in keys {
            let values = (
                self.get_at(tree, &key, Some(from)),
                self.get_at(tree, &key, to),
            );
            let is_listed = found.binary_search(&key).is_ok();
            assert!(values.0 == values.1 || is_listed, "{key:?} is not listed");
        }
    }
}

const CHANGED: [&[u8]; 7] = [
    b"deleted",
    b"new",
    b"put",
    b"range1",
    b"range2",
    b"twice",
    b"upserted",
];

/// Every kind of message, before and after background work.
pub(super) fn messages(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    let other = store.tree("other");
    store.commit(|b| {
        for key in CHANGED.into_iter().filter(|key| *key != b"new") {
            b.put(tree, key, b"1");
        }
        b.put(tree, b"kept", b"1");
    });
    store.quiesce();
    let from = store.engine().snapshot();
    assert!(store.between(tree, &from, None).is_empty());
    store.commit(|b| {
        b.put(tree, b"put", b"2");
        b.delete(tree, b"deleted");
        b.upsert(tree, b"upserted", APPEND, b"2");
        b.delete_range(tree, b"range", b"s");
        b.put(tree, b"new", b"2");
        b.put(tree, b"twice", b"2");
        b.put(other, b"kept", b"2");
    });
    store.commit(|b| {
        b.delete(tree, b"twice");
        b.put(tree, b"range3", b"3");
        b.delete_range(tree, b"range3", b"range4");
    });
    for _ in 0..2 {
        let found = store.between(tree, &from, None);
        let found: Vec<&[u8]> = found.iter().map(Vec::as_slice).collect();
        // What came and went again may be listed.
        let found: Vec<&[u8]> = found.into_iter().filter(|key| key != b"range3").collect();
        assert_eq!(found, CHANGED);
        assert_eq!(store.between(other, &from, None), [b"kept"]);
        store.quiesce();
    }
    store.finish();
}

/// Between two moments of the past there is nothing of before or after them.
pub(super) fn moments(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    let mut moments = vec![store.engine().snapshot()];
    for key in [b"a", b"b", b"c", b"d"] {
        store.commit(|b| b.put(tree, key, b"1"));
        moments.push(store.engine().snapshot());
    }
    store.commit(|b| b.delete_range(tree, b"b", b"d"));
    for _ in 0..2 {
        let between = |from: usize, to: usize| {
            let keys = store.between(tree, &moments[from], Some(&moments[to]));
            String::from_utf8(keys.concat()).expect("keys are letters")
        };
        assert_eq!(between(0, 4), "abcd");
        assert_eq!(between(1, 3), "bc");
        assert_eq!(between(3, 3), "");
        assert_eq!(store.between(tree, &moments[3], None), [b"b", b"c", b"d"]);
        assert_eq!(store.between(tree, &moments[4], None), [b"b", b"c"]);
        store.quiesce();
    }
    store.finish();
}

/// The first keys of a range are listed, and the list goes on behind them.
pub(super) fn pages(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    let key = |number: u32| number.to_be_bytes();
    store.commit(|b| (0..500).for_each(|n| b.put(tree, &key(n), b"1")));
    store.quiesce();
    let from = store.engine().snapshot();
    store.commit(|b| (0..500).step_by(7).for_each(|n| b.put(tree, &key(n), b"2")));
    store.commit(|b| b.delete_range(tree, &key(100), &key(150)));
    store.commit(|b| b.delete_range(tree, &key(120), &key(180)));
    let is_changed = |n: &u32| n.is_multiple_of(7) || (100..180).contains(n);
    let changed: Vec<Vec<u8>> = (0..500)
        .filter(is_changed)
        .map(|n| key(n).to_vec())
        .collect();
    for _ in 0..2 {
        for page in [1, 2, 50, 1000] {
            let found = listed(store.engine(), tree, (&from, None), page);
            assert_eq!(found.expect("the keys are listed"), changed, "by {page}");
        }
        let (start, end) = (key(140), key(190));
        let range = KeyRange::new(&start, &end);
        let found = store
            .engine()
            .keys_between(tree, range, (&from, None), usize::MAX);
        let within = |key: &&Vec<u8>| start.as_slice() <= &***key && &***key < end.as_slice();
        let expected: Vec<Vec<u8>> = changed.iter().filter(within).cloned().collect();
        assert_eq!(found.expect("the keys are listed"), expected);
        store.quiesce();
    }
    store.finish();
}

/// Empty ranges, none asked for, and trees that are not there at a moment.
pub(super) fn edges(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    let from = store.engine().snapshot();
    let later = store.tree("later");
    store.commit(|b| {
        b.put(tree, b"", b"1");
        b.put(later, b"a", b"1");
    });
    assert_eq!(store.between(tree, &from, None), [b""]);
    let list = |tree, range, count_max| {
        let engine = store.engine();
        engine.keys_between(tree, range, (&from, None), count_max)
    };
    let none = list(tree, KeyRange::new(b"b", b"b"), 9);
    assert_eq!(none.expect("an empty range has none"), [] as [Vec<u8>; 0]);
    let none = list(tree, KeyRange::all(), 0);
    assert_eq!(none.expect("none was asked for"), [] as [Vec<u8>; 0]);
    for tree in [later, TreeId(999)] {
        let refused = list(tree, KeyRange::all(), 9);
        let refused = refused.expect_err("it was not there");
        assert!(
            matches!(refused, KvError::NoTree(of) if of == tree),
            "{refused}"
        );
    }
    let now = store.engine().snapshot();
    assert!(store.between(later, &now, None).is_empty());
    store.engine().drop_tree(later).expect("the tree goes");
    let moments = (&now, None);
    let gone = listed(store.engine(), later, moments, 9).expect_err("it is gone");
    assert!(matches!(gone, KvError::NoTree(of) if of == later), "{gone}");
    store.finish();
}

/// Of a branch tree what was written to it, and what absorbs write to its parent.
pub(super) fn branches(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    if !store.engine().capabilities().branches {
        return;
    }
    store.commit(|b| {
        for key in [b"a", b"b", b"c", b"d"] {
            b.put(tree, key, b"1");
        }
    });
    let before = store.engine().snapshot();
    let made = store
        .engine()
        .branch_trees(&[NewBranch::new(tree, "branch")], None);
    let branch = made.expect("the branch is made")[0];
    let from = store.engine().snapshot();
    store.commit(|b| {
        b.put(tree, b"d", b"2");
        b.put(branch, b"a", b"2");
        b.delete_range(branch, b"b", b"d");
    });
    for _ in 0..2 {
        assert_eq!(store.between(branch, &from, None), [b"a", b"b", b"c"]);
        assert_eq!(store.between(tree, &from, None), [b"d"]);
        store.quiesce();
    }
    let moment = store.engine().branch_moment(branch).expect("it has one");
    assert_eq!(store.between(tree, &moment, None), [b"d"]);
    drop(moment);
    if !store.engine().capabilities().absorb {
        return;
    }
    let (batch, none) = (crate::Batch::new(), crate::Guards::since(&from));
    let absorbed = store
        .engine()
        .absorb(&[branch], &batch, &none, crate::CommitOptions::default());
    absorbed.expect("it is absorbed");
    for _ in 0..2 {
        let changed = [b"a", b"b", b"c", b"d"];
        assert_eq!(store.between(tree, &before, None), changed);
        store.quiesce();
    }
    store.finish();
}

const KEYS: u64 = 60;

/// The listed keys agree with reads at both moments.
pub(super) fn random(factory: &dyn Factory) {
    let Some((store, tree)) = listing(factory) else {
        return;
    };
    let mut rng = Rng::new(194);
    let byte = |number: u64| [u8::try_from(number).expect("a key is a byte")];
    // Moments, each with the keys that were written since the one before.
    let mut held: Vec<(Snapshot, Vec<u8>)> = vec![(store.engine().snapshot(), Vec::new())];
    let mut written = Vec::new();
    for round in 0..300u64 {
        let key = rng.below(KEYS);
        store.commit(|b| {
            let value = round.to_le_bytes();
            let end = (key + 1 + rng.below(9)).min(KEYS);
            let mut last = key;
            match rng.below(7) {
                0 => {
                    b.delete_range(tree, &byte(key), &byte(end));
                    last = end - 1;
                }
                1 | 2 => b.delete(tree, &byte(key)),
                3 => b.upsert(tree, &byte(key), APPEND, &value),
                _ => b.put(tree, &byte(key), &value),
            }
            written.extend((key..=last).map(|key| byte(key)[0]));
        });
        if rng.one_in(5) {
            let now = store.engine().snapshot();
            held.push((now, std::mem::take(&mut written)));
        }
        if rng.one_in(30) {
            store.quiesce();
        }
        if held.len() > 7 {
            held.remove(1);
            held[1].1.extend(0..byte(KEYS)[0]);
        }
        let from = usize::try_from(rng.below(held.len() as u64)).expect("it is small");
        let to = from + 1 + usize::try_from(rng.below(3)).expect("it is small");
        let mut may_differ: Vec<u8> = Vec::new();
        let later = held.iter().take(to + 1).skip(from + 1);
        later.for_each(|(_, keys)| may_differ.extend(keys));
        let to = held.get(to).map(|(moment, _)| moment);
        if to.is_none() {
            may_differ.extend(&written);
        }
        let is_written = |key: &[u8]| may_differ.contains(&key[0]);
        store.assert_between(tree, (&held[from].0, to), &is_written);
    }
    store.finish();
}
