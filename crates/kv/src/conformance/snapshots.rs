//! Snapshots: what they see does not change, whatever is written or compacted after.

use super::functions::APPEND;
use super::{Factory, NOW, Store, read_all};
use crate::Snapshot;

pub(super) fn isolation(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    store.commit(|b| b.put(tree, b"a", b"1"));
    store.commit(|b| b.put(tree, b"b", b"1"));
    let before = store.engine().snapshot();
    store.commit(|b| {
        b.put(tree, b"a", b"2");
        b.delete(tree, b"b");
        b.put(tree, b"c", b"2");
    });
    let after = store.engine().snapshot();
    store.commit(|b| b.upsert(tree, b"a", APPEND, b"3"));
    store.commit(|b| b.delete_range(tree, b"b", b"d"));
    assert!(before.seqno() < after.seqno());
    for _ in 0..2 {
        let at = |key: &[u8], at: Option<&Snapshot>| store.get_at(tree, key, at);
        assert_eq!(at(b"a", Some(&before)).as_deref(), Some(&b"1"[..]));
        assert_eq!(at(b"b", Some(&before)).as_deref(), Some(&b"1"[..]));
        assert_eq!(at(b"c", Some(&before)), None);
        assert_eq!(at(b"a", Some(&after)).as_deref(), Some(&b"2"[..]));
        assert_eq!(at(b"b", Some(&after)), None);
        assert_eq!(at(b"c", Some(&after)).as_deref(), Some(&b"2"[..]));
        assert_eq!(at(b"a", NOW).as_deref(), Some(&b"23"[..]));
        assert_eq!(at(b"c", NOW), None);
        assert_eq!(store.keys(tree, Some(&before)), [b"a", b"b"]);
        assert_eq!(store.keys(tree, Some(&after)), [b"a", b"c"]);
        assert_eq!(store.keys(tree, NOW), [b"a"]);
        store.quiesce();
    }
    store.finish();
}

pub(super) fn survive_compaction(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let mut taken = Vec::new();
    for round in 0..12u32 {
        for key in 0..100u32 {
            let key = (key * 7 + round).to_be_bytes();
            match round % 4 {
                0 => store.commit(|b| b.put(tree, &key, &round.to_le_bytes().repeat(50))),
                1 => store.commit(|b| b.upsert(tree, &key, APPEND, &round.to_le_bytes())),
                2 => store.commit(|b| b.delete(tree, &key)),
                _ if key[3] % 8 == 0 => {
                    let end = u32::from_be_bytes(key) + 40;
                    store.commit(|b| b.delete_range(tree, &key, &end.to_be_bytes()));
                }
                _ => {}
            }
        }
        let snapshot = store.engine().snapshot();
        let seen = read_all(store.engine(), tree, Some(&snapshot));
        taken.push((snapshot, seen));
        store.quiesce();
    }
    for (snapshot, seen) in &taken {
        let now = read_all(store.engine(), tree, Some(snapshot));
        assert!(&now == seen, "a snapshot changed: {:?}", snapshot.seqno());
        for (key, value) in seen.iter().step_by(7) {
            let got = store.get_at(tree, key, Some(snapshot));
            assert_eq!(got.as_ref(), Some(value));
        }
    }
    drop(taken);
    store.quiesce();
    store.finish();
}

pub(super) fn released_in_any_order(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let mut held = Vec::new();
    for round in 0..40u8 {
        store.commit(|b| b.put(tree, b"k", &[round]));
        held.push((round, store.engine().snapshot()));
        let twin = held.last().map(|(_, snapshot)| snapshot.clone());
        drop(twin);
    }
    while !held.is_empty() {
        let index = held.len() * 5 / 8;
        held.swap_remove(index);
        if held.len() % 10 == 0 {
            store.quiesce();
        }
        for (round, snapshot) in &held {
            let seen = store.get_at(tree, b"k", Some(snapshot));
            assert_eq!(seen, Some(vec![*round]));
        }
    }
    store.assert_value(tree, b"k", Some(&[39]));
    store.finish();
}
