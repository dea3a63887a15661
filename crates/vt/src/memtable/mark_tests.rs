//! What marks and filters deny is not there.

use super::key_filter::KeyFilter;
use super::*;
use crate::entry::Op;
use proptest::prelude::*;
use std::collections::BTreeSet;
use stitch_base::random::Rng;

const BRANCH: TreeId = TreeId(9);

fn put(key: &[u8], seqno: u64) -> EntryRef<'_> {
    EntryRef {
        key,
        seqno: Seqno(seqno),
        op: Op::Put(b"value"),
    }
}

/// Reports whether a read through branches searches a memtable for a key.
fn searches(memtable: &Memtable, tree: TreeId, key: &[u8]) -> bool {
    memtable.may_hold_key(tree, || key_hash(key))
}

fn versions(memtable: &Memtable, tree: TreeId, key: &[u8]) -> usize {
    let mut count = 0;
    memtable.versions_of(tree, key, Seqno(u64::MAX), &mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    });
    count
}

#[test]
fn trees_are_marked_by_the_residues_of_their_numbers() {
    let marks = TreeMarks::default();
    assert!(marks.is_empty());
    for tree in [3, 70] {
        marks.add(TreeId(tree));
    }
    let marked: Vec<u32> = (0..80)
        .filter(|tree| marks.may_have(TreeId(*tree)))
        .collect();
    assert_eq!(marked, [3, 6, 67, 70]);
    assert!(!marks.is_empty());
}

#[test]
fn keys_of_a_branch_are_denied_unless_they_were_added() {
    let memtable = Memtable::new(1 << 20);
    memtable.filter_keys_of(BRANCH);
    for (key, seqno) in [b"a", b"b"].into_iter().zip(1..) {
        memtable.insert(BRANCH, &put(key, seqno));
    }
    let delete = EntryRef {
        op: Op::Delete,
        ..put(b"c", 3)
    };
    let upsert = Op::Upsert {
        function: 1,
        delta: b"",
    };
    memtable.insert(BRANCH, &delete);
    memtable.insert(
        BRANCH,
        &EntryRef {
            op: upsert,
            ..put(b"d", 4)
        },
    );
    for key in [b"a", b"b", b"c", b"d"] {
        assert!(searches(&memtable, BRANCH, key), "{key:?}");
    }
    assert!(!searches(&memtable, BRANCH, b"e"));
    assert!(!searches(&memtable, TreeId(8), b"a"), "another tree");
    assert!(
        memtable.may_hold(BRANCH),
        "scans and reads of the tree go on"
    );
    assert_eq!(versions(&memtable, BRANCH, b"c"), 1);
}

#[test]
fn a_tree_that_was_written_to_before_is_not_filtered() {
    let memtable = Memtable::new(1 << 20);
    let same_mark = TreeId(BRANCH.0 + 64);
    memtable.insert(same_mark, &put(b"a", 1));
    let before = memtable.bytes();
    memtable.filter_keys_of(BRANCH);
    assert_eq!(memtable.bytes(), before, "there is no filter");
    memtable.insert(BRANCH, &put(b"b", 2));
    for tree in [BRANCH, same_mark] {
        assert!(searches(&memtable, tree, b"any"));
    }
}

#[test]
fn a_tree_with_the_mark_of_a_branch_is_filtered_with_it() {
    let memtable = Memtable::new(1 << 20);
    let same_mark = TreeId(BRANCH.0 + 64);
    memtable.filter_keys_of(BRANCH);
    memtable.insert(BRANCH, &put(b"a", 1));
    memtable.insert(same_mark, &put(b"b", 2));
    assert!(searches(&memtable, BRANCH, b"a") && searches(&memtable, same_mark, b"b"));
    assert!(!searches(&memtable, BRANCH, b"b") && !searches(&memtable, same_mark, b"a"));
}

#[test]
fn range_deletes_of_a_branch_are_seen_beside_its_filter() {
    let memtable = Memtable::new(1 << 20);
    memtable.filter_keys_of(BRANCH);
    memtable.insert(BRANCH, &put(b"x", 1));
    let delete = RangeDelete {
        start: b"a".to_vec(),
        end: b"c".to_vec(),
        seqno: Seqno(2),
    };
    memtable.insert_range_delete(BRANCH, delete);
    let covering = |tree| memtable.newest_covering(tree, b"b", Seqno(9));
    assert!(!searches(&memtable, BRANCH, b"b"), "no entry is of the key");
    assert!(memtable.may_delete_ranges(BRANCH) && memtable.may_hold(BRANCH));
    assert_eq!(covering(BRANCH), Some(Seqno(2)));
    let parent = TreeId(2);
    assert!(!memtable.may_delete_ranges(parent) && !memtable.may_hold(parent));
    assert_eq!(covering(parent), None);
}

#[test]
fn a_filter_takes_a_64th_of_the_memtable_and_is_counted_once() {
    let memtable = Memtable::new(1 << 20);
    let before = memtable.bytes();
    memtable.insert(TreeId(2), &put(b"", 1));
    let plain = memtable.fresh();
    plain.insert(TreeId(2), &put(b"", 1));
    for tree in [BRANCH, BRANCH, BRANCH.next()] {
        memtable.filter_keys_of(tree);
        assert_eq!(memtable.bytes() - plain.bytes(), 16 << 10);
    }
    let next = memtable.fresh();
    assert_eq!(next.bytes(), before, "the next one has none");
    next.filter_keys_of(BRANCH);
    assert_eq!(next.bytes() - before, 16 << 10);
    assert_eq!(KeyFilter::for_memtable(0).bytes(), 8);
    assert_eq!(KeyFilter::for_memtable(usize::MAX).bytes(), 4 << 20);
}

/// In a filter with as many keys as its memtable holds rows of 100 bytes.
#[test]
fn other_keys_are_searched_for_seldom() {
    let mut rng = Rng::new(1);
    let filter = KeyFilter::for_memtable(1 << 20);
    let hashes: Vec<u64> = (0..6500).map(|_| rng.next_u64()).collect();
    for (hash, tree) in hashes.iter().zip((1..=8).cycle()) {
        filter.add(TreeId(tree), *hash);
    }
    for (hash, tree) in hashes.iter().zip((1..=8).cycle()) {
        assert!(filter.may_have(TreeId(tree), *hash));
    }
    let found = |hash: u64| {
        let trees = (1..=8).map(TreeId);
        trees.filter(|tree| filter.may_have(*tree, hash)).count()
    };
    let others: usize = (0..20_000).map(|_| found(rng.next_u64())).sum();
    assert!(others < 8 * 20_000 / 100, "{others} of 160,000");
    // A key that one tree has is denied in the other seven.
    let siblings: usize = hashes.iter().map(|hash| found(*hash) - 1).sum();
    assert!(siblings < 7 * 6500 / 50, "{siblings} of 45,500");
}

fn writes() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    // Trees 1 and 65, 2 and 66 have one mark.
    let tree = prop::sample::select(vec![1, 2, 3, 65, 66]);
    let key = prop::collection::vec(0u8..4, 0..4);
    prop::collection::vec((tree, key), 0..120)
}

proptest! {
    /// Branches are those trees whose bit is set in `branches`.
    #[test]
    fn what_is_denied_is_not_there(
        writes in writes(),
        branches in 0u32..32,
        capacity in prop::sample::select(vec![0usize, 4 << 10, 1 << 20]),
        probes in prop::collection::vec(prop::collection::vec(0u8..4, 0..4), 40),
    ) {
        let memtable = Memtable::new(capacity);
        let trees = [1, 2, 3, 65, 66].map(TreeId);
        let is_branch = |tree: TreeId| {
            let at = trees.iter().position(|other| *other == tree).unwrap();
            branches & 1 << at != 0
        };
        let mut added = BTreeSet::new();
        for ((tree, key), seqno) in writes.iter().zip(1..) {
            let tree = TreeId(*tree);
            if memtable.lacks(tree) && is_branch(tree) {
                memtable.filter_keys_of(tree);
            }
            memtable.insert(tree, &put(key, seqno));
            added.insert((tree, key.clone()));
            for (tree, key) in &added {
                prop_assert!(searches(&memtable, *tree, key));
            }
        }
        for tree in trees {
            for key in &probes {
                let is_there = added.contains(&(tree, key.clone()));
                prop_assert_eq!(versions(&memtable, tree, key) > 0, is_there);
                prop_assert!(searches(&memtable, tree, key) || !is_there);
            }
        }
    }
}
