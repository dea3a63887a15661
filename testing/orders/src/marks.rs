//! Models: a writer that marks a tree, adds a key to the filter and publishes, and a reader.

use super::key_marks::KeyMarks;
use crate::TreeId;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Weakened, weakened};
use loom::thread;
use std::sync::Arc;

const BRANCH: TreeId = TreeId(9);
/// Of a memtable whose filter has two words.
const MEMTABLE_BYTES: usize = 2 * 64 * 8;
/// Of keys in either word.
const HASHES: [u64; 2] = [1, u64::MAX - 1];

/// As commits do: the filter is made, then come marks and keys, then the number of the entry.
fn published_keys_are_not_denied() {
    publish_keys(Arc::new(KeyMarks::default()));
}

/// The same, with a filter that is there from the beginning.
fn keys_published_later_are_not_denied() {
    let marks = KeyMarks::default();
    marks.filter_keys_of(BRANCH, MEMTABLE_BYTES);
    publish_keys(Arc::new(marks));
}

fn publish_keys(marks: Arc<KeyMarks>) {
    let visible = Arc::new(AtomicU64::new(0));
    let writer = {
        let (marks, visible) = (Arc::clone(&marks), Arc::clone(&visible));
        thread::spawn(move || {
            marks.filter_keys_of(BRANCH, MEMTABLE_BYTES);
            for (hash, seqno) in HASHES.into_iter().zip(1..) {
                marks.add(BRANCH, || hash);
                visible.store(seqno, Ordering::Release);
            }
        })
    };
    let seen = visible.load(Ordering::Acquire);
    for (hash, seqno) in HASHES.into_iter().zip(1..) {
        let may_have = marks.may_have_key(BRANCH, || hash);
        assert!(may_have || seqno > seen, "what is visible is found");
    }
    writer.join().expect("the writer ends");
    assert!(
        HASHES
            .iter()
            .all(|hash| marks.may_have_key(BRANCH, || *hash))
    );
    assert!(!marks.may_have_key(BRANCH, || 1 << 40), "others are denied");
}

/// A tree with the mark of a branch writes while the branch is first met. Writers take turns in an
/// engine; here they do not, and no key is denied all the same.
fn first_writers_meet() {
    let marks = Arc::new(KeyMarks::default());
    let plain = {
        let marks = Arc::clone(&marks);
        thread::spawn(move || marks.add(TreeId(BRANCH.0 + 64), || HASHES[0]))
    };
    marks.filter_keys_of(BRANCH, MEMTABLE_BYTES);
    marks.add(BRANCH, || HASHES[1]);
    plain.join().expect("the writer ends");
    assert!(marks.may_have_key(TreeId(BRANCH.0 + 64), || HASHES[0]));
    assert!(marks.may_have_key(BRANCH, || HASHES[1]));
}

#[test]
fn no_published_key_is_denied() {
    weakened(Weakened::Nothing, published_keys_are_not_denied);
    weakened(Weakened::Nothing, keys_published_later_are_not_denied);
}

#[test]
fn no_key_is_denied_after_first_writers_meet() {
    weakened(Weakened::Nothing, first_writers_meet);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_mark_is_found() {
    weakened(Weakened::Stores, published_keys_are_not_denied);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_look_at_a_mark_is_found() {
    weakened(Weakened::Loads, published_keys_are_not_denied);
}

#[test]
#[should_panic(expected = "what is visible is found")]
fn a_relaxed_publication_denies_keys() {
    weakened(Weakened::Stores, keys_published_later_are_not_denied);
}

#[test]
#[should_panic(expected = "what is visible is found")]
fn a_relaxed_reader_is_denied_keys() {
    weakened(Weakened::Loads, keys_published_later_are_not_denied);
}
