use super::*;
use crate::testing::{MIB, Small};
use stitch_base::TreeId;
use stitch_kv::{Engine as _, NewBranch};

/// A store that makes tables of short batches, and a temporary branch of its tree.
fn branched() -> (Small, TreeId) {
    let mut small = Small::new(64 * MIB);
    small.put(0, 100, 50);
    small.reopen_as(|options| {
        options.batch_table_bytes_min = 500;
        options.absorb_copy_bytes_max = 0;
        options.is_paranoid = true;
    });
    let new = [NewBranch::temporary(small.tree, "branch")];
    let made = small.engine.branch_trees(&new, None).expect("it is made");
    (small, made[0])
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Puts of some keys in order.
fn puts(tree: TreeId, keys: std::ops::Range<u64>, value: &[u8]) -> Batch<'static> {
    let mut batch = Batch::new();
    for number in keys {
        batch.put(tree, &key(number), value);
    }
    batch
}

/// The levels of a tree's tables, newest data first.
fn levels(small: &Small, tree: TreeId) -> Vec<usize> {
    let version = small.engine.store.version();
    version.trees[&tree].tables().map(|(n, _)| n).collect()
}

fn get(small: &Small, tree: TreeId, number: u64) -> Option<Vec<u8>> {
    let found = small.engine.get(tree, &key(number), None);
    found.expect("it reads").map(|value| value.to_vec())
}

/// A batch to a part of a tree: ranges, then keys.
fn ordered(tree: TreeId) -> Batch<'static> {
    let mut batch = Batch::new();
    batch.delete_range(tree, &key(3), &key(5));
    batch.delete_range(tree, &key(5), &key(7));
    (0..200).for_each(|number| batch.put(tree, &key(number), b"value"));
    batch.delete(tree, &key(200));
    batch
}

#[test]
fn each_tree_has_ranges_then_rising_keys_or_the_log_gets_the_batch() {
    let (small, one) = branched();
    let new = [NewBranch::temporary(small.tree, "other")];
    let two = small.engine.branch_trees(&new, None).expect("it is made")[0];
    let wrong: [&dyn Fn(&mut Batch<'_>); 4] = [
        &|batch| batch.put(two, &key(200), b"again"),
        &|batch| batch.delete_range(two, &key(300), &key(301)),
        &|batch| batch.put(one, &key(300), b"back to the first tree"),
        &|batch| batch.put(two, &key(100), b"before"),
    ];
    let live_bytes = small.live_bytes();
    for add in wrong {
        let mut batch = ordered(one);
        ordered(two)
            .messages()
            .for_each(|(tree, message)| batch.push(tree, message));
        add(&mut batch);
        small.commit(&batch);
        assert_eq!(small.counter("vt.table_batches"), 0);
        assert_eq!(small.live_bytes(), live_bytes, "nothing is left of tables");
    }
    small.engine.quiesce().expect("it is written out");
    let mut overlapping = Batch::new();
    overlapping.delete_range(one, &key(0), &key(9));
    ordered(one)
        .messages()
        .for_each(|(tree, message)| overlapping.push(tree, message));
    small.commit(&overlapping);
    assert_eq!(small.counter("vt.table_batches"), 0);
    small.engine.quiesce().expect("it is written out");
    small.commit(&ordered(one));
    assert_eq!(small.counter("vt.table_batches"), 1);
    assert_eq!(get(&small, one, 199), Some(b"value".to_vec()));
    small.check();
}

#[test]
fn batches_in_order_are_tables_that_no_log_has() {
    let (small, branch) = branched();
    let (log, edits) = (small.counter("kv.log_bytes"), version_log_bytes(&small));
    small.commit(&puts(branch, 100..200, b"one"));
    small.commit(&puts(branch, 200..300, b"two"));
    assert_eq!(levels(&small, branch), [1, 1], "they do not overlap");
    small.commit(&puts(branch, 150..250, b"three"));
    assert_eq!(levels(&small, branch), [0, 1, 1]);
    assert_eq!(small.counter("kv.log_bytes"), log);
    assert_eq!(version_log_bytes(&small), edits, "no edit on the medium");
    assert_eq!(small.counter("vt.table_batches"), 3);
    let expected = |number| match number {
        0..100 => Some(small.rows[&number].clone()),
        100..150 => Some(b"one".to_vec()),
        150..250 => Some(b"three".to_vec()),
        250..300 => Some(b"two".to_vec()),
        _ => None,
    };
    for number in 0..310 {
        assert_eq!(get(&small, branch, number), expected(number), "{number}");
    }
    small.check();
}

fn version_log_bytes(small: &Small) -> u64 {
    small.engine.volume().version_log_live_bytes()
}

#[test]
fn a_tree_with_entries_in_a_memtable_gets_no_table() {
    let (small, branch) = branched();
    small.commit(&puts(branch, 0..3, b"short"));
    small.commit(&puts(branch, 0..100, b"long"));
    assert_eq!(levels(&small, branch), [0_usize; 0]);
    assert_eq!(small.counter("vt.table_batches"), 0);
    assert_eq!(get(&small, branch, 1), Some(b"long".to_vec()));
    small.engine.quiesce().expect("it is written out");
    small.commit(&puts(branch, 0..100, b"table"));
    assert_eq!(small.counter("vt.table_batches"), 1);
    assert_eq!(get(&small, branch, 1), Some(b"table".to_vec()));
    // A later one in a memtable is newer.
    small.commit(&puts(branch, 1..2, b"short"));
    assert_eq!(get(&small, branch, 1), Some(b"short".to_vec()));
    assert_eq!(get(&small, branch, 2), Some(b"table".to_vec()));
}

#[test]
fn trees_that_last_and_short_batches_go_through_the_log() {
    let (small, branch) = branched();
    small.commit(&puts(small.tree, 500..600, b"of a tree that lasts"));
    small.commit(&puts(branch, 500..510, b"few"));
    let mut unordered = puts(branch, 500..600, b"rising");
    unordered.put(branch, &key(500), b"again");
    small.commit(&unordered);
    let mut both = puts(branch, 600..700, b"both");
    both.put(small.tree, &key(600), b"both");
    small.commit(&both);
    assert_eq!(small.counter("vt.table_batches"), 0);
    assert_eq!(get(&small, branch, 500), Some(b"again".to_vec()));
}

#[test]
fn snapshots_from_before_do_not_see_a_table_batch() {
    let (small, branch) = branched();
    small.commit(&puts(branch, 0..50, b"before"));
    let snapshot = small.engine.snapshot();
    let mut batch = Batch::new();
    batch.delete_range(branch, &key(0), &key(30));
    (40..150).for_each(|number| batch.put(branch, &key(number), b"after"));
    small.commit(&batch);
    let then = |number: u64| {
        let found = small.engine.get(branch, &key(number), Some(&snapshot));
        found.expect("it reads").map(|value| value.to_vec())
    };
    for _ in 0..2 {
        for number in 0..50 {
            assert_eq!(then(number), Some(b"before".to_vec()), "{number}");
            let now = match number {
                0..30 => None,
                30..40 => Some(b"before".to_vec()),
                _ => Some(b"after".to_vec()),
            };
            assert_eq!(get(&small, branch, number), now, "{number}");
        }
        small.engine.quiesce().expect("it is compacted");
    }
}

#[test]
fn a_dropped_branch_gives_its_space_back() {
    let (small, branch) = branched();
    small.engine.quiesce().expect("the rows are written out");
    let before = small.live_bytes();
    (0..30).for_each(|_| small.commit(&puts(branch, 0..500, &[7; 100])));
    assert!(small.live_bytes() > before);
    small.check();
    small.engine.drop_tree(branch).expect("it goes");
    assert_eq!(small.live_bytes(), before);
    small.check();
}

#[test]
fn an_absorb_makes_table_batches_durable() {
    let (mut small, branch) = branched();
    for first in [100, 5000, 10_000] {
        let mut batch = Batch::new();
        for number in first..first + 400 {
            let mut value = vec![0; 1000];
            small.rng.fill(&mut value);
            batch.put(branch, &key(number), &value);
            small.rows.insert(number, value);
        }
        small.commit(&batch);
    }
    assert_eq!(levels(&small, branch), [1, 1, 1]);
    let compacted = small.counter("vt.merged_bytes");
    let none = stitch_kv::Guards::since(&small.engine.snapshot());
    let options = CommitOptions::default();
    let absorbed = small
        .engine
        .absorb(&[branch], &Batch::new(), &none, options);
    absorbed.expect("there is room");
    assert_eq!(small.counter("vt.merged_bytes"), compacted, "tables moved");
    small.check();
    small.reopen();
    small.check();
}
