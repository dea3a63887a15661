//! Models: a few threads at a list.

use super::chunks::Chunks;
use super::skiplist::{Cursor, Position, SkipList};
use crate::entry::{EntryRef, Op};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Weakened, weakened};
use crate::{Seqno, TreeId};
use loom::thread;
use std::sync::Arc;

const TREE: TreeId = TreeId(1);

fn new_list() -> Arc<SkipList> {
    Arc::new(SkipList::new(Arc::new(Chunks::new(4096, 0))))
}

/// Puts a key with itself as value; every third one has it elsewhere.
fn put(list: &SkipList, key: &[u8], seqno: u64) {
    if seqno.is_multiple_of(3) {
        return list.insert_placed(TREE, key, Seqno(seqno), key);
    }
    let entry = EntryRef {
        key,
        seqno: Seqno(seqno),
        op: Op::Put(key),
    };
    list.insert(TREE, &entry);
}

fn at(key: &[u8]) -> Position<'_> {
    Position {
        tree: TREE,
        key,
        seqno: Seqno(u64::MAX),
    }
}

/// All keys from the first on, each checked to be whole.
fn keys(list: &Arc<SkipList>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = Cursor::new(Arc::clone(list));
    cursor.seek(&at(b""));
    while let Some((tree, entry)) = cursor.current() {
        assert_eq!(tree, TREE);
        match cursor.place() {
            Some(place) => assert_eq!(place, entry.key, "a place is whole"),
            None => assert_eq!(entry.op, Op::Put(entry.key), "an entry is whole"),
        }
        keys.push(entry.key.to_vec());
        cursor.next();
    }
    assert!(keys.is_sorted(), "keys are in order");
    keys
}

/// A reader meets a node while it is linked in before another one.
fn reader_meets_insert() {
    let list = new_list();
    put(&list, b"c", 1);
    let writer = {
        let list = Arc::clone(&list);
        thread::spawn(move || put(&list, b"b", 2))
    };
    let found = keys(&list);
    assert!(found.contains(&b"c".to_vec()), "what was there is found");
    writer.join().expect("the writer ends");
    assert_eq!(keys(&list), [b"b".to_vec(), b"c".to_vec()]);
    assert!(list.bytes() > 0);
}

/// A reader goes along while one node is linked in before, and one behind, what was there.
fn reader_meets_two_inserts() {
    let list = new_list();
    put(&list, b"c", 1);
    let writer = {
        let list = Arc::clone(&list);
        thread::spawn(move || {
            put(&list, b"d", 2);
            put(&list, b"b", 3);
        })
    };
    let found = keys(&list);
    assert!(found.contains(&b"c".to_vec()), "what was there is found");
    // The search looks at a link once only, so that it may pass `b` and still find what is older.
    let has = |key: &[u8]| found.iter().any(|found| found == key);
    assert!(
        has(b"d") || !has(b"b"),
        "what was added first is seen first"
    );
    writer.join().expect("the writer ends");
    assert_eq!(keys(&list).len(), 3);
}

/// A reader goes back from a node while others are linked in.
fn reader_goes_back() {
    let list = new_list();
    put(&list, b"c", 1);
    let writer = {
        let list = Arc::clone(&list);
        thread::spawn(move || put(&list, b"b", 2))
    };
    let mut cursor = Cursor::new(Arc::clone(&list));
    cursor.seek_before(&at(b"d"));
    let last = cursor.current().map(|(_, entry)| entry.key.to_vec());
    assert_eq!(last, Some(b"c".to_vec()));
    cursor.prev();
    let before = cursor.current().map(|(_, entry)| entry.key.to_vec());
    assert!(
        before.is_none_or(|key| key == b"b"),
        "nothing else is there"
    );
    writer.join().expect("the writer ends");
}

/// A writer looks around and notes something of an entry while a reader goes along.
fn reader_meets_notes() {
    let list = new_list();
    put(&list, b"b", 1);
    let writer = {
        let list = Arc::clone(&list);
        thread::spawn(move || {
            let around = list.around(TREE, b"c");
            let before = around.before.expect("an entry is before it");
            assert!(around.is_new, "the key is not there");
            assert_eq!((before.key(), before.bytes()), (&b"b"[..], 2));
            assert_eq!(before.note(), Some(0), "nothing is noted at first");
            before.set_note(7);
            put(&list, b"c", 2);
            let noted = list.oldest(TREE, b"b").and_then(|entry| entry.note());
            assert_eq!(noted, Some(7), "the note stays");
            let after = list.after(TREE, b"b").map(|entry| entry.key());
            assert_eq!(after, Some(&b"c"[..]));
        })
    };
    assert!(
        keys(&list).contains(&b"b".to_vec()),
        "what was there is found"
    );
    writer.join().expect("the writer ends");
    assert_eq!(keys(&list), [b"b".to_vec(), b"c".to_vec()]);
}

/// Two writers and no reader but the last.
fn writers_meet() {
    let list = new_list();
    let writers = [b"a", b"b"].map(|key: &'static [u8; 1]| {
        let list = Arc::clone(&list);
        thread::spawn(move || put(&list, key, u64::from(key[0])))
    });
    for writer in writers {
        writer.join().expect("a writer ends");
    }
    assert_eq!(keys(&list), [b"a".to_vec(), b"b".to_vec()]);
}

/// As commits do: what is inserted is published by its number, and a reader of that number finds
/// it.
fn what_is_published_is_found() {
    let list = new_list();
    let visible = Arc::new(AtomicU64::new(0));
    let writer = {
        let (list, visible) = (Arc::clone(&list), Arc::clone(&visible));
        thread::spawn(move || {
            put(&list, b"a", 1);
            visible.store(1, Ordering::Release);
        })
    };
    if visible.load(Ordering::Acquire) == 1 {
        assert_eq!(keys(&list), [b"a".to_vec()], "what is visible is found");
    }
    writer.join().expect("the writer ends");
}

#[test]
fn readers_meet_inserts() {
    weakened(Weakened::Nothing, reader_meets_insert);
}

#[test]
fn readers_meet_two_inserts() {
    weakened(Weakened::Nothing, reader_meets_two_inserts);
}

#[test]
fn readers_go_back_while_nodes_are_linked() {
    weakened(Weakened::Nothing, reader_goes_back);
}

#[test]
fn readers_meet_notes() {
    weakened(Weakened::Nothing, reader_meets_notes);
}

#[test]
fn writers_take_turns() {
    weakened(Weakened::Nothing, writers_meet);
}

#[test]
fn published_writes_are_found() {
    weakened(Weakened::Nothing, what_is_published_is_found);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_store_is_found() {
    weakened(Weakened::Stores, reader_meets_insert);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_load_is_found() {
    weakened(Weakened::Loads, reader_meets_insert);
}

#[test]
#[should_panic(expected = "what is visible is found")]
fn a_relaxed_publication_is_found() {
    weakened(Weakened::Stores, what_is_published_is_found);
}
