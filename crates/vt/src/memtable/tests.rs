use super::arena::Arena;
use super::chunks::{ALIGN, Chunk};
use super::node_index::NodeIndex;
use super::*;
use crate::entry::Op;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

fn put<'a>(key: &'a [u8], seqno: u64, value: &'a [u8]) -> EntryRef<'a> {
    EntryRef {
        key,
        seqno: Seqno(seqno),
        op: Op::Put(value),
    }
}

const TREE: TreeId = TreeId(7);

#[test]
fn an_empty_memtable_has_nothing() {
    let memtable = Memtable::new(1 << 20);
    assert!(memtable.is_empty());
    assert!(memtable.trees().is_empty());
    let mut iter = memtable.iter(TREE);
    iter.seek(b"", Seqno(u64::MAX)).unwrap();
    assert_eq!(iter.current(), None);
    iter.seek_before(None).unwrap();
    assert_eq!(iter.current(), None);
}

#[test]
fn a_memtable_takes_the_memory_of_one_before_it() {
    let first = Memtable::new(64 << 10);
    let fill = |memtable: &Memtable| {
        for seqno in 1..100 {
            memtable.insert(TREE, &put(b"k", seqno, &[7; 500]));
        }
    };
    fill(&first);
    let second = first.fresh();
    let mut iter = first.iter(TREE);
    drop(first);
    assert_eq!(second.chunks.kept_bytes(), 0, "a reader has it still");
    iter.seek(b"k", Seqno(1)).unwrap();
    assert_eq!(iter.current(), Some(put(b"k", 1, &[7; 500])));
    drop(iter);
    let kept = second.chunks.kept_bytes();
    assert!(kept >= 99 * 500, "{kept}");
    fill(&second);
    assert!(second.chunks.kept_bytes() < 16 << 10, "it was taken");
    let third = second.fresh();
    drop(second);
    third.give_back();
    assert_eq!(third.chunks.kept_bytes(), 0);
}

#[test]
fn versions_come_newest_first() {
    let memtable = Memtable::new(1 << 20);
    for seqno in [3, 1, 2] {
        memtable.insert(TREE, &put(b"k", seqno, &seqno.to_be_bytes()));
    }
    memtable.insert(TREE, &put(b"l", 9, b""));
    memtable.insert(TreeId(8), &put(b"k", 5, b""));
    let mut seen = Vec::new();
    memtable.versions_of(TREE, b"k", Seqno(2), &mut |entry, _| {
        seen.push(entry.seqno.0);
        ControlFlow::Continue(())
    });
    assert_eq!(seen, [2, 1]);
    let mut visits = 0;
    memtable.versions_of(TREE, b"k", Seqno(9), &mut |_, _| {
        visits += 1;
        ControlFlow::Break(())
    });
    assert_eq!(visits, 1);
    assert_eq!(memtable.trees(), [TREE, TreeId(8)]);
}

#[test]
fn all_kinds_come_back() {
    let memtable = Memtable::new(0);
    let big = vec![0xab; 1 << 20];
    let ops = [
        Op::Put(&big),
        Op::Put(b""),
        Op::Delete,
        Op::Upsert {
            function: 9,
            delta: b"delta",
        },
    ];
    for (seqno, op) in (1..).zip(ops) {
        let seqno = Seqno(seqno);
        memtable.insert(
            TREE,
            &EntryRef {
                key: b"k",
                seqno,
                op,
            },
        );
    }
    let mut seen = 0;
    memtable.versions_of(TREE, b"k", Seqno(9), &mut |entry, _| {
        assert_eq!(entry.op, ops[usize::try_from(entry.seqno.0).unwrap() - 1]);
        seen += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(seen, 4);
}

#[test]
fn memory_is_counted() {
    let memtable = Memtable::new(1 << 20);
    let empty = memtable.bytes();
    let value = [0; 100];
    for n in 0..1000u64 {
        memtable.insert(TREE, &put(&n.to_be_bytes(), n + 1, &value));
    }
    let grown = memtable.bytes() - empty;
    assert!(grown >= 108_000, "{grown}");
    assert!(grown < 108_000 * 2, "{grown}");
    let delete = RangeDelete {
        start: vec![0; 1000],
        end: vec![1; 1000],
        seqno: Seqno(1),
    };
    let before = memtable.bytes();
    memtable.insert_range_delete(TREE, delete);
    assert!(memtable.bytes() >= before + 2000);
    assert_eq!(memtable.range_deletes(TREE).len(), 1);
    assert!(memtable.range_deletes(TreeId(8)).is_empty());
}

#[test]
fn readers_see_order_while_a_writer_writes() {
    let memtable = Arc::new(Memtable::new(1 << 20));
    let count = 20_000u64;
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let memtable = Arc::clone(&memtable);
            stitch_base::thread::spawn("reader", move || {
                let mut seen = 0;
                while seen < count {
                    seen = 0;
                    let mut iter = memtable.iter(TREE);
                    iter.seek(b"", Seqno(u64::MAX)).unwrap();
                    let mut last: Option<Vec<u8>> = None;
                    while let Some(entry) = iter.current() {
                        assert!(last.is_none_or(|last| last.as_slice() < entry.key));
                        let Op::Put(value) = entry.op else {
                            panic!("{entry:?}");
                        };
                        assert_eq!(value, entry.key);
                        last = Some(entry.key.to_vec());
                        iter.next().unwrap();
                        seen += 1;
                    }
                }
            })
            .unwrap()
        })
        .collect();
    for n in 0..count {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        memtable.insert(TREE, &put(&key, n + 1, &key));
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

type Model = BTreeMap<(u32, Vec<u8>, Reverse<u64>), Vec<u8>>;

fn writes() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let key = proptest::collection::vec(0u8..4, 0..5);
    proptest::collection::vec((1u32..4, key), 0..200)
}

proptest! {
    #[test]
    fn order_is_that_of_a_map(
        writes in writes(),
        target in proptest::collection::vec(0u8..4, 0..5),
        target_seqno in 0u64..200,
        tree in 1u32..4,
    ) {
        let memtable = Memtable::new(0);
        let mut model = Model::new();
        for (seqno, (tree, key)) in (1u64..).zip(&writes) {
            memtable.insert(TreeId(*tree), &put(key, seqno, &seqno.to_be_bytes()));
            model.insert((*tree, key.clone(), Reverse(seqno)), seqno.to_be_bytes().to_vec());
        }
        let rows: Vec<(Vec<u8>, u64)> = model
            .keys()
            .filter(|row| row.0 == tree)
            .map(|row| (row.1.clone(), row.2.0))
            .collect();
        let mut iter = memtable.iter(TreeId(tree));
        crate::iter::tests::check_against(&mut iter, &rows, &target, target_seqno);
    }
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn a_reader_never_meets_versions_newer_than_it_asked_for() {
    use stitch_base::sync::atomic::{AtomicU64, Ordering};
    let memtable = Arc::new(Memtable::new(1 << 20));
    let published = Arc::new(AtomicU64::new(0));
    let (writes, until) = (Arc::clone(&memtable), Arc::clone(&published));
    let writer = stitch_base::thread::spawn("writer", move || {
        for seqno in 1..=200_000 {
            writes.insert(TREE, &put(b"key", seqno, b""));
            until.store(seqno, Ordering::Release);
        }
    })
    .unwrap();
    while !writer.is_finished() {
        let now = Seqno(published.load(Ordering::Acquire));
        let mut found = Seqno(0);
        memtable.versions_of(TREE, b"key", now, &mut |entry, _| {
            found = entry.seqno;
            ControlFlow::Break(())
        });
        assert_eq!(found, now);
    }
    writer.join().unwrap();
}

#[test]
fn keys_that_differ_by_zeros_only_are_in_order() {
    let memtable = Memtable::new(0);
    let zeros = [0; 20];
    let mut keys: Vec<Vec<u8>> = (0..zeros.len()).map(|len| zeros[..len].to_vec()).collect();
    keys.extend((0..zeros.len()).map(|len| [b"prefix", &zeros[..len]].concat()));
    keys.extend((0..3).map(|last| [b"long pre", &zeros[..5], &[last]].concat()));
    for (key, seqno) in keys.iter().rev().zip(1..) {
        memtable.insert(TREE, &put(key, seqno, key));
    }
    keys.sort();
    let mut iter = memtable.iter(TREE);
    iter.seek(b"", Seqno(u64::MAX)).unwrap();
    for key in &keys {
        assert_eq!(iter.current().map(|entry| entry.key), Some(&key[..]));
        iter.next().unwrap();
    }
    for key in &keys {
        iter.seek(key, Seqno(u64::MAX)).unwrap();
        assert_eq!(iter.current().map(|entry| entry.key), Some(&key[..]));
    }
}

#[test]
fn pieces_are_aligned_and_apart() {
    let mut arena = Arena::new(Arc::new(Chunks::new(256, 0)));
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for len in [1, 8, 9, 60, 64, 65, 1000, 3, 255] {
        let at = arena.allocate(len).addr();
        assert!(at.is_multiple_of(ALIGN));
        let apart = |&(start, end): &(usize, usize)| at + len <= start || end <= at;
        assert!(taken.iter().all(apart));
        taken.push((at, at + len));
    }
}

#[test]
fn memory_of_an_arena_is_counted() {
    let mut arena = Arena::new(Arc::new(Chunks::new(4096, 0)));
    let empty = arena.bytes();
    arena.allocate(100);
    let one_chunk = arena.bytes();
    assert!(one_chunk >= empty + 4096);
    arena.allocate(100);
    assert_eq!(arena.bytes(), one_chunk);
    arena.allocate(1 << 20);
    assert!(arena.bytes() >= one_chunk + (1 << 20));
}

#[test]
fn chunks_are_kept_within_the_budget() {
    let chunks = Chunks::new(64, 256);
    let taken: Vec<_> = (0..6).map(|_| chunks.take(64)).collect();
    let at = taken.iter().map(Chunk::as_ptr).collect::<Vec<_>>();
    let large = chunks.take(100);
    chunks.leave(taken);
    assert_eq!(chunks.kept_bytes(), 128, "two beside the large one");
    chunks.leave(vec![large]);
    assert_eq!(chunks.kept_bytes(), 128, "no other length is kept");
    let again = chunks.take(64);
    assert!(at.contains(&again.as_ptr()), "it is one of them");
    assert_eq!(chunks.kept_bytes(), 64);
    chunks.leave(vec![again]);
    chunks.give_back();
    assert_eq!(chunks.kept_bytes(), 0);
}

#[test]
fn who_holds_much_leaves_room_for_nothing() {
    let chunks = Chunks::new(64, 256);
    let kept = chunks.take(64);
    chunks.leave(vec![kept]);
    let large = chunks.take(1 << 10);
    let one = chunks.take(64);
    chunks.leave(vec![one]);
    assert_eq!(chunks.kept_bytes(), 0);
    chunks.leave(vec![large]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn indexed_nodes_are_a_set_in_order(numbers in prop::collection::vec(0u64..3000, 1..1500)) {
        let mut set = BTreeSet::new();
        let mut index = NodeIndex::new();
        // Many have the same front.
        let front = |number: u64| (1, number / 7);
        for number in numbers {
            let found = index.last_before(front(number), |n: u64| n < number);
            prop_assert_eq!(found, set.range(..number).next_back().copied());
            if set.insert(number) {
                index.add(front(number), number, |n| n < number);
            }
        }
        for number in 0..3000 {
            let found = index.last_before(front(number), |n| n < number);
            prop_assert_eq!(found, set.range(..number).next_back().copied());
        }
    }
}

/// Most keys of the file system begin alike, many come in rows, and some are upserted again and
/// again.
#[test]
fn lists_of_any_shape_are_in_order() {
    let mut rng = stitch_base::random::Rng::new(7);
    for shape in 0..4u64 {
        let memtable = Memtable::new(1 << 20);
        let mut model = BTreeSet::new();
        let mut row = 0u64;
        for seqno in 1..6000u64 {
            let random = rng.next_u64();
            row = if rng.one_in(10) {
                random
            } else {
                row.wrapping_add(1)
            };
            let number = if shape.is_multiple_of(2) { random } else { row };
            let mut key = if shape < 2 {
                Vec::new()
            } else {
                b"all alike".to_vec()
            };
            let is_busy = rng.one_in(4);
            let number = if is_busy { random % 12 * 400 } else { number };
            key.extend((number % 5000).to_be_bytes());
            if rng.one_in(3) {
                memtable.around(TREE, &(random % 5000).to_be_bytes());
            }
            if rng.one_in(3) {
                let around = memtable.around(TREE, &key);
                let from = (key.clone(), Reverse(u64::MAX));
                let found: Option<&(Vec<u8>, _)> = model.range(from..).next();
                let is_new = found.is_none_or(|(found, _)| *found != key);
                assert_eq!(around.is_new, is_new);
            }
            let op = match is_busy {
                true => Op::Upsert {
                    function: 1,
                    delta: b"",
                },
                false => Op::Put(b""),
            };
            let entry = put(&key, seqno, b"");
            memtable.insert(TREE, &EntryRef { op, ..entry });
            model.insert((key, Reverse(seqno)));
        }
        let place = |entry: Option<EntryRef<'_>>| entry.map(|e| (e.key.to_vec(), e.seqno));
        let mut iter = memtable.iter(TREE);
        iter.seek(b"", Seqno(u64::MAX)).unwrap();
        for (key, Reverse(seqno)) in &model {
            let expected = Some((key.clone(), Seqno(*seqno)));
            assert_eq!(place(iter.current()), expected, "shape {shape}");
            iter.next().unwrap();
        }
        assert_eq!(iter.current(), None);
        for (key, Reverse(seqno)) in model.iter().step_by(7) {
            iter.seek(key, Seqno(*seqno)).unwrap();
            let expected = Some((key.clone(), Seqno(*seqno)));
            assert_eq!(place(iter.current()), expected, "shape {shape}");
        }
    }
}

#[test]
fn trees_without_entries_are_not_searched() {
    let memtable = Memtable::new(1 << 20);
    let other = TREE.next();
    assert!(!memtable.may_hold(TREE), "it is empty");
    memtable.insert(TREE, &put(b"k", 1, b"v"));
    assert!(memtable.may_hold(TREE) && !memtable.may_hold(other));
    let found = |tree: TreeId| {
        let mut seqnos = Vec::new();
        memtable.versions_of(tree, b"k", Seqno(9), &mut |entry, _| {
            seqnos.push(entry.seqno);
            ControlFlow::Continue(())
        });
        seqnos
    };
    assert_eq!((found(TREE), found(other)), (vec![Seqno(1)], vec![]));
    // One with the same bit is searched, and has nothing.
    let same_bit = TreeId(TREE.0 + 64);
    assert!(memtable.may_hold(same_bit));
    assert_eq!(found(same_bit), []);
    let delete = RangeDelete {
        start: b"a".to_vec(),
        end: b"z".to_vec(),
        seqno: Seqno(2),
    };
    memtable.insert_range_delete(other, delete);
    assert!(memtable.may_hold(other), "a range delete counts");
    assert_eq!(memtable.trees(), [TREE, other]);
}
