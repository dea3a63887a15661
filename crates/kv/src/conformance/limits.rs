//! Limits: what is over them is refused whole, what meets them works.

use super::functions::APPEND;
use super::{Factory, Store};
use crate::{KvError, counters};

fn bytes(len: u64) -> Vec<u8> {
    vec![7; usize::try_from(len).unwrap_or(usize::MAX)]
}

#[track_caller]
fn assert_too_large(result: Result<(), KvError>, expected: &str) {
    assert!(
        matches!(result, Err(KvError::TooLarge { what, .. }) if what == expected),
        "{expected}: {result:?}"
    );
}

pub(super) fn refused(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let limits = store.engine().limits();
    assert!(limits.key_bytes_max >= 512, "names of 255 bytes fit");
    assert!(limits.value_bytes_max >= 64 << 10, "xattrs fit");
    assert!(limits.batch_bytes_max >= 1 << 20, "a request's data fits");
    let key = bytes(limits.key_bytes_max + 1);
    let value = bytes(limits.value_bytes_max + 1);
    assert_too_large(store.try_commit(|b| b.put(tree, &key, b"")), "key");
    assert_too_large(store.try_commit(|b| b.delete(tree, &key)), "key");
    assert_too_large(store.try_commit(|b| b.delete_range(tree, b"", &key)), "key");
    assert_too_large(store.try_commit(|b| b.put(tree, b"k", &value)), "value");
    assert_too_large(
        store.try_commit(|b| b.upsert(tree, b"k", APPEND, &value)),
        "delta",
    );
    let piece = bytes(limits.value_bytes_max.min(64 << 10));
    let pieces = limits.batch_bytes_max / (64 << 10).min(limits.value_bytes_max) + 1;
    let over = store.try_commit(|b| {
        for index in 0..pieces {
            b.put(tree, &index.to_be_bytes(), &piece);
        }
    });
    assert_too_large(over, "batch");
    let last = store.try_commit(|b| {
        b.put(tree, b"fine", b"fine");
        b.put(tree, &key, b"");
    });
    assert_too_large(last, "key");
    store.assert_keys(tree, &[]);
    store.finish();
}

pub(super) fn met(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let limits = store.engine().limits();
    let key = bytes(limits.key_bytes_max);
    let value = bytes(limits.value_bytes_max);
    store.commit(|b| b.put(tree, &key, b"long key"));
    store.commit(|b| b.put(tree, b"long value", &value));
    store.commit(|b| b.put(tree, &key[1..], &value));
    for _ in 0..2 {
        store.assert_value(tree, &key, Some(b"long key"));
        assert!(store.get(tree, b"long value").as_ref() == Some(&value));
        assert!(store.get(tree, &key[1..]).as_ref() == Some(&value));
        store.quiesce();
        store.reopen(super::Ending::Killed);
    }
    store.finish();
}

pub(super) fn counters_grow(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let before = store.engine().counters();
    store.commit(|b| {
        b.put(tree, b"key", b"value");
        b.delete(tree, b"key");
    });
    store.assert_value(tree, b"key", None);
    store.assert_keys(tree, &[]);
    let after = store.engine().counters();
    let grown = |name| after.get(name) - before.get(name);
    assert_eq!(grown(counters::COMMITS), 1);
    assert_eq!(grown(counters::PUT_MESSAGES), 2);
    assert_eq!(grown(counters::PUT_BYTES), 3 + 5 + 3);
    assert_eq!(grown(counters::GETS), 1);
    assert_eq!(grown(counters::SCANS), 1);
    store.finish();
}
