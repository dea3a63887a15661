//! Branch trees of a VT-tree store: what they cost, what they hold, and who else meets them.

mod common;

use common::{MIB, Setup, Store, format, open};
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_format::superblock::{FEATURE_BRANCHES, FEATURE_PINS, FEATURE_SHIFTS};
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::{APPEND, HASH, registry};
use stitch_kv::{
    BRANCH_DEPTH_MAX, Batch, CommitOptions, Direction, Engine, Guards, KeyRange, KvError,
    NewBranch, Snapshot, TreeOptions,
};
use stitch_volume::Volume;
use stitch_vt::{VtEngine, VtOptions};

fn setup() -> Setup {
    Setup::sized(256 << 10, 128 << 10, false)
}

fn options() -> VtOptions {
    VtOptions {
        upserts: registry(),
        ..setup().options
    }
}

fn store() -> Store {
    Store::new(&setup(), 64 * MIB, Some(4 * MIB), registry())
}

fn tree(engine: &VtEngine, name: &str) -> TreeId {
    let made = engine.create_tree(name, &TreeOptions::default());
    made.expect("the tree is made")
}

fn branch(engine: &VtEngine, parent: TreeId, name: &str) -> TreeId {
    let made = engine.branch_trees(&[NewBranch::new(parent, name)], None);
    made.expect("the branch is made")[0]
}

fn commit(engine: &VtEngine, fill: impl FnOnce(&mut Batch<'_>)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
}

fn put(engine: &VtEngine, tree: TreeId, rows: std::ops::Range<u32>, seed: u64) {
    let mut rng = Rng::new(seed);
    for number in rows {
        let mut value = vec![0; 1000];
        rng.fill(&mut value);
        commit(engine, |batch| {
            batch.put(tree, &number.to_be_bytes(), &value)
        });
    }
}

fn count(engine: &VtEngine, tree: TreeId, at: Option<&Snapshot>) -> usize {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, at);
    let mut scan = scan.expect("a scan begins");
    let mut rows = 0;
    while scan.next().expect("it reads").is_some() {
        rows += 1;
    }
    rows
}

fn get(engine: &VtEngine, tree: TreeId, key: &[u8]) -> Option<Vec<u8>> {
    let found = engine.get(tree, key, None).expect("it reads");
    found.map(|value| value.to_vec())
}

fn owned(engine: &VtEngine) -> u64 {
    engine.quiesce().expect("background work succeeds");
    engine.holdings().owned_bytes()
}

fn features(device: &dyn Device) -> u64 {
    let found = Volume::identify(device).expect("it is a volume");
    found.incompatible
}

#[test]
fn a_branch_costs_a_sync_and_its_absorb_two() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    format(&*device, None);
    let engine = open(device, options());
    let parent = tree(&engine, "parent");
    // The first one has the volume note that there are branches.
    branch(&engine, parent, "first");
    put(&engine, parent, 0..10, 1);
    engine.sync().expect("it syncs");
    let syncs = || engine.counters().get("device.syncs");
    let before = syncs();
    let second = branch(&engine, parent, "second");
    assert_eq!(syncs() - before, 1, "the version: the log is durable");
    put(&engine, parent, 0..10, 1);
    let before = syncs();
    branch(&engine, parent, "third");
    assert_eq!(syncs() - before, 2, "the log, then the version");
    let branch = second;
    put(&engine, branch, 5..15, 2);
    let moment = engine.branch_moment(branch).expect("it is a branch");
    let (batch, guards) = (Batch::new(), Guards::since(&moment));
    let before = syncs();
    let absorbed = engine.absorb(&[branch], &batch, &guards, CommitOptions::default());
    absorbed.expect("nothing else was written");
    engine.sync().expect("it syncs");
    assert_eq!(syncs() - before, 2, "its record is durable with the edit");
}

#[test]
fn a_branch_costs_the_same_whatever_its_parent_holds() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let parent = tree(&engine, "parent");
    branch(&engine, parent, "first");
    let cost = |name: &str| {
        engine.sync().expect("it syncs");
        let before = device.counters();
        branch(&engine, parent, name);
        let after = device.counters();
        (
            after.syncs - before.syncs,
            after.read_bytes - before.read_bytes,
        )
    };
    let empty = cost("of an empty tree");
    put(&engine, parent, 0..4000, 1);
    engine.quiesce().expect("background work succeeds");
    assert_eq!(cost("of a full tree"), empty);
    assert_eq!(empty.1, 0, "nothing is read");
}

#[test]
fn a_read_that_ends_in_the_branch_asks_no_parent() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "parent");
    put(engine, parent, 0..500, 1);
    engine.quiesce().expect("background work succeeds");
    let branch = branch(engine, parent, "branch");
    put(engine, branch, 0..10, 2);
    commit(engine, |batch| {
        batch.delete(branch, &20u32.to_be_bytes());
        batch.delete_range(branch, &30u32.to_be_bytes(), &40u32.to_be_bytes());
    });
    let looked = || {
        let counters = engine.counters();
        let of = |name: &str| counters.get(name);
        [
            of("vt.data_blocks_read"),
            of(stitch_kv::counters::CACHE_HITS),
            of(stitch_kv::counters::CACHE_MISSES),
            of(stitch_kv::counters::FILTER_PROBES),
        ]
    };
    let before = looked();
    for number in 0..10u32 {
        assert!(get(engine, branch, &number.to_be_bytes()).is_some());
    }
    for number in [20u32, 30, 35, 39] {
        assert_eq!(get(engine, branch, &number.to_be_bytes()), None);
    }
    assert_eq!(looked(), before, "only memtables were searched");
    assert!(get(engine, branch, &40u32.to_be_bytes()).is_some());
    assert_ne!(looked(), before, "the parent was searched");
}

#[test]
fn upserts_over_the_value_of_a_parent_fold_after_each_compaction() {
    let mut store = store();
    let parent = tree(store.engine(), "parent");
    commit(store.engine(), |batch| {
        batch.put(parent, b"text", b"a");
        batch.put(parent, b"digest", b"0");
    });
    let first = branch(store.engine(), parent, "first");
    let second = branch(store.engine(), first, "second");
    commit(store.engine(), |batch| batch.put(parent, b"text", b"z"));
    let digest = |engine: &VtEngine, tree, deltas: usize| {
        // The same upserts over a put of the value, in a tree without a parent.
        let plain = crate::tree(engine, &format!("plain {tree} {deltas}"));
        commit(engine, |batch| {
            batch.put(plain, b"digest", b"0");
            for number in 0..deltas {
                batch.upsert(plain, b"digest", HASH, &[number as u8]);
            }
        });
        let found = get(engine, plain, b"digest");
        engine.drop_tree(plain).expect("it goes");
        found
    };
    let mut text = b"a".to_vec();
    for number in 0..30u8 {
        for tree in [first, second] {
            let delta = [number];
            commit(store.engine(), |batch| {
                batch.upsert(tree, b"text", APPEND, b"+");
                batch.upsert(tree, b"digest", HASH, &delta);
            });
        }
        text.push(b'+');
        match number % 10 {
            3 | 6 => store.engine().quiesce().expect("background work succeeds"),
            9 => store.next_life(Ending::Killed),
            _ => {}
        }
        let engine = store.engine();
        let expected = digest(engine, first, usize::from(number) + 1);
        assert!(expected.is_some());
        for tree in [first, second] {
            assert_eq!(
                get(engine, tree, b"text"),
                Some(text.clone()),
                "after {number}"
            );
            assert_eq!(get(engine, tree, b"digest"), expected, "after {number}");
        }
        assert_eq!(get(engine, parent, b"text"), Some(b"z".to_vec()));
    }
}

#[test]
fn a_dropped_parent_is_read_by_its_branches_and_goes_with_the_last() {
    let mut store = store();
    let parent = tree(store.engine(), "parent");
    put(store.engine(), parent, 0..1000, 1);
    let middle = branch(store.engine(), parent, "middle");
    let last = branch(store.engine(), middle, "last");
    let other = branch(store.engine(), parent, "other");
    let moment = store
        .engine()
        .branch_moment(middle)
        .expect("it is a branch");
    store
        .engine()
        .drop_trees(&[parent, middle])
        .expect("they are hidden");
    assert_eq!(count(store.engine(), parent, Some(&moment)), 1000);
    drop(moment);
    store.next_life(Ending::PowerCut);
    let engine = Arc::clone(store.engine());
    let names: Vec<String> = engine.trees().into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["last", "other"]);
    for hidden in [parent, middle] {
        let read = engine.get(hidden, b"key", None);
        assert!(matches!(read, Err(KvError::NoTree(_))));
        let made = engine.branch_trees(&[NewBranch::new(hidden, "late")], None);
        assert!(matches!(made, Err(KvError::NoTree(_))));
        let moment = engine.branch_moment(hidden);
        assert!(matches!(moment, Err(KvError::NoTree(_))));
    }
    assert_eq!(
        (count(&engine, last, None), count(&engine, other, None)),
        (1000, 1000)
    );
    assert!(owned(&engine) > 900_000, "the parent holds the rows");
    // The name of a hidden tree is free.
    tree(&engine, "parent");
    engine.drop_tree(last).expect("it goes, and the middle one");
    assert_eq!(count(&engine, other, None), 1000);
    engine.drop_tree(other).expect("it goes, and the parent");
    assert_eq!(owned(&engine), 0, "all space comes back");
    store.next_life(Ending::PowerCut);
    assert_eq!(owned(store.engine()), 0);
}

#[test]
fn a_pin_keeps_a_branch_and_its_parents_and_snapshots_of_it_outlive_the_pin() {
    let mut store = store();
    let parent = tree(store.engine(), "parent");
    put(store.engine(), parent, 0..500, 1);
    let child = branch(store.engine(), parent, "child");
    put(store.engine(), child, 500..700, 2);
    store.engine().create_pin("pin", b"").expect("it is made");
    put(store.engine(), child, 700..900, 3);
    store
        .engine()
        .drop_trees(&[child, parent])
        .expect("they are hidden");
    store.next_life(Ending::PowerCut);
    let engine = Arc::clone(store.engine());
    engine.quiesce().expect("background work succeeds");
    let at = engine.open_pin("pin").expect("it opens");
    assert_eq!(count(&engine, child, Some(&at)), 700);
    assert_eq!(count(&engine, parent, Some(&at)), 500);
    engine.drop_pin("pin").expect("it goes");
    assert_eq!(
        count(&engine, child, Some(&at)),
        700,
        "the snapshot goes on"
    );
    assert_eq!(count(&engine, parent, Some(&at)), 500);
    drop(at);
    assert_eq!(owned(&engine), 0);
}

#[test]
fn a_snapshot_of_a_dropped_pin_reads_a_parent_that_goes_with_its_branch() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "parent");
    put(engine, parent, 0..300, 1);
    engine.create_pin("pin", b"").expect("it is made");
    let at = engine.open_pin("pin").expect("it opens");
    let child = branch(engine, parent, "child");
    engine.drop_tree(parent).expect("it is hidden");
    engine.drop_pin("pin").expect("it goes");
    assert_eq!(count(engine, parent, Some(&at)), 300, "the branch keeps it");
    engine.drop_tree(child).expect("it goes, and its parent");
    assert_eq!(
        count(engine, parent, Some(&at)),
        300,
        "the snapshot goes on"
    );
    drop(at);
    assert_eq!(owned(engine), 0);
}

#[test]
fn what_only_a_dropped_branch_saw_comes_back() {
    let overwritten = |has_branch: bool| {
        let store = store();
        let engine = store.engine();
        let parent = tree(engine, "parent");
        put(engine, parent, 0..4000, 1);
        engine.quiesce().expect("background work succeeds");
        let child = has_branch.then(|| branch(engine, parent, "child"));
        put(engine, parent, 0..4000, 2);
        put(engine, parent, 0..4000, 3);
        let held = owned(engine);
        if let Some(child) = child {
            assert_eq!(count(engine, child, None), 4000);
            engine.drop_tree(child).expect("it goes");
        }
        (held, owned(engine))
    };
    let (_, unseen) = overwritten(false);
    let (held, after) = overwritten(true);
    assert!(held > unseen / 2 * 3, "{held} bytes, {unseen} without");
    assert!(after < unseen / 10 * 11, "{after} bytes, {unseen} without");
}

#[test]
fn deletes_in_a_branch_stay_through_compactions_and_those_end() {
    let mut store = store();
    let parent = tree(store.engine(), "parent");
    put(store.engine(), parent, 0..2000, 1);
    let child = branch(store.engine(), parent, "child");
    commit(store.engine(), |batch| {
        for number in 0..1000u32 {
            batch.delete(child, &number.to_be_bytes());
        }
        batch.delete_range(child, &1500u32.to_be_bytes(), &1600u32.to_be_bytes());
    });
    for ending in [Ending::Closed, Ending::Killed] {
        // Comes to an end though nothing of the branch can ever vanish.
        store.engine().quiesce().expect("background work succeeds");
        store.engine().quiesce().expect("background work succeeds");
        assert_eq!(count(store.engine(), child, None), 900);
        assert_eq!(count(store.engine(), parent, None), 2000);
        store.next_life(ending);
    }
    let keys = store.engine().branch_keys(child, None, usize::MAX);
    let keys = keys.expect("it reads");
    let expected = (0..1000u32)
        .chain(1500..1600)
        .map(|n| n.to_be_bytes().to_vec());
    assert!(keys.into_iter().eq(expected));
}

#[test]
fn the_features_of_a_store_change_with_its_first_branch() {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let parent = tree(&engine, "parent");
    put(&engine, parent, 0..50, 1);
    let refused = engine.branch_trees(&[NewBranch::new(TreeId(9), "child")], None);
    assert!(matches!(refused, Err(KvError::NoTree(TreeId(9)))));
    assert_eq!(engine.branch_trees(&[], None).expect("nothing to do"), []);
    engine.close().expect("it closes");
    assert_eq!(features(&*device), 0);
    drop(engine);
    let engine = open(device.clone(), options());
    let child = branch(&engine, parent, "child");
    assert_eq!(features(&*device), FEATURE_BRANCHES);
    engine
        .drop_tree(parent)
        .expect("it is hidden, without a pin");
    drop(engine);
    let engine = open(device.clone(), options());
    assert_eq!(count(&engine, child, None), 50);
    engine.create_pin("pin", b"").expect("it is made");
    assert_eq!(features(&*device), FEATURE_BRANCHES | FEATURE_PINS);
    engine.drop_tree(child).expect("it is hidden");
    engine.drop_pin("pin").expect("it goes, and both trees");
    engine.close().expect("it closes");
    drop(engine);
    let engine = open(device.clone(), options());
    assert_eq!((engine.trees(), owned(&engine)), (vec![], 0));
}

#[test]
fn branches_of_a_call_are_made_all_or_none() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "parent");
    put(engine, parent, 0..20, 1);
    let before = engine.trees();
    let at = engine.snapshot();
    let young = tree(engine, "young");
    let kind = |second: NewBranch<'_>, at: Option<&Snapshot>| {
        let made = engine.branch_trees(&[NewBranch::new(parent, "one"), second], at);
        made.map_err(|error| error.kind())
    };
    let exists = kind(NewBranch::new(parent, "one"), None);
    assert_eq!(exists, Err(ErrorKind::Exists), "both have one name");
    assert!(kind(NewBranch::new(parent, "young"), None).is_err());
    assert!(kind(NewBranch::new(TreeId(77), "two"), None).is_err());
    let long = "n".repeat(stitch_kv::TREE_NAME_BYTES_MAX + 1);
    assert!(kind(NewBranch::new(parent, &long), None).is_err());
    let later = engine.branch_trees(&[NewBranch::new(young, "two")], Some(&at));
    assert!(matches!(later, Err(KvError::NoTree(tree)) if tree == young));
    engine.drop_tree(young).expect("it goes");
    assert_eq!(engine.trees(), before);
    put(engine, parent, 20..30, 1);
    let two = [NewBranch::new(parent, "one"), NewBranch::new(parent, "two")];
    let made = engine.branch_trees(&two, Some(&at)).expect("they are made");
    assert!(made.iter().all(|tree| count(engine, *tree, None) == 20));
    let points: Vec<_> = engine.trees().iter().filter_map(|t| t.branch).collect();
    assert!(points.len() == 2 && points.iter().all(|p| p.seqno == at.seqno()));
}

#[test]
fn a_chain_has_at_most_so_many_parents() {
    let store = store();
    let engine = store.engine();
    let mut newest = tree(engine, "0");
    put(engine, newest, 0..3, 1);
    for number in 1..=BRANCH_DEPTH_MAX {
        newest = branch(engine, newest, &number.to_string());
    }
    assert_eq!(count(engine, newest, None), 3);
    let deeper = engine.branch_trees(&[NewBranch::new(newest, "deeper")], None);
    assert!(matches!(deeper, Err(KvError::TooDeep)), "{deeper:?}");
    assert_eq!(engine.trees().len(), BRANCH_DEPTH_MAX + 1);
}

#[test]
fn guards_on_a_branch_see_writes_to_it_and_not_to_its_parent() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "parent");
    commit(engine, |batch| batch.put(parent, b"key", b"1"));
    let child = branch(engine, parent, "child");
    let at = engine.snapshot();
    let guarded = |batch: &Batch<'_>| {
        let mut guards = Guards::since(&at);
        guards.key(child, b"key");
        engine.commit_guarded(batch, &guards, CommitOptions::default())
    };
    commit(engine, |batch| batch.put(parent, b"key", b"2"));
    guarded(&Batch::new()).expect("the branch did not change");
    commit(engine, |batch| batch.put(child, b"key", b"3"));
    let conflict = guarded(&Batch::new());
    assert!(
        matches!(conflict, Err(KvError::Conflict { .. })),
        "{conflict:?}"
    );
    let moment = engine.branch_moment(child).expect("it is a branch");
    let mut guards = Guards::since(&moment);
    guards.key(parent, b"key");
    let changed = engine.changed_keys(&guards, 10).expect("it reads");
    assert_eq!(changed.len(), 1, "the parent changed after the branch");
}

#[test]
fn branches_can_be_dropped_where_the_version_log_is_full_of_them() {
    let mut store = Store::new(&setup(), 16 * MIB, None, registry());
    let engine = Arc::clone(store.engine());
    let parent = tree(&engine, "parent");
    put(&engine, parent, 0..5, 1);
    let mut made = Vec::new();
    let refused = loop {
        let name = format!("{:0200}", made.len());
        match engine.branch_trees(&[NewBranch::new(parent, &name)], None) {
            Ok(trees) => made.extend(trees),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert_eq!(engine.trees().len(), made.len() + 1);
    engine.drop_tree(parent).expect("it is hidden");
    drop(engine);
    store.next_life(Ending::PowerCut);
    let engine = store.engine();
    assert_eq!(count(engine, made[0], None), 5);
    for tree in &made {
        engine.drop_tree(*tree).expect("it goes");
    }
    assert_eq!((engine.trees(), owned(engine)), (vec![], 0));
    assert_eq!(engine.check(&mut |_, _| {}).expect("it ends"), []);
}

/// Absorbs a branch without guards.
fn absorb(engine: &VtEngine, branch: TreeId) -> Result<(), KvError> {
    let none = Guards::since(&engine.snapshot());
    let (batch, options) = (Batch::new(), CommitOptions::default());
    engine.absorb(&[branch], &batch, &none, options).map(drop)
}

/// A store that moves the tables of branches, however short they are.
fn moving() -> Store {
    Store::new(&setup().moving(), 64 * MIB, Some(4 * MIB), registry())
}

/// How many absorbs have moved tables.
fn moved(engine: &VtEngine) -> u64 {
    let counters = engine.counters();
    counters.get("vt.absorbs_moved")
}

#[test]
fn a_branch_of_any_length_is_absorbed() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "tree");
    put(engine, parent, 0..10, 1);
    let before = engine.snapshot();
    let child = branch(engine, parent, "branch");
    let limit = engine.limits().batch_bytes_max;
    let rows = u32::try_from(3 * limit / 1000).expect("a batch is short");
    put(engine, child, 5..rows, 2);
    commit(engine, |batch| {
        batch.put(parent, &7u32.to_be_bytes(), b"the parent's")
    });
    let bytes = owned(engine);
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(moved(engine), 1);
    assert_eq!(count(engine, parent, None), rows as usize);
    assert_eq!(count(engine, parent, Some(&before)), 10);
    let seven = get(engine, parent, &7u32.to_be_bytes()).expect("it is there");
    assert_ne!(seven, b"the parent's");
    assert!(owned(engine) < bytes + limit, "nothing is written twice");
    assert_eq!(engine.trees().len(), 1);
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    drop(before);
    engine.quiesce().expect("it settles");
    assert_eq!(count(engine, parent, None), rows as usize);
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
}

/// What absorbs of a branch of so many tables of level 0 cost in compactions. The rows are written
/// in the order of their keys, or each part of them among all others.
fn compactions_of_absorb(is_in_order: bool) -> u64 {
    const PARTS: u32 = 6;
    const PART_ROWS: u32 = 230;
    let mut setup = setup().moving();
    // They stay in level 0 until the absorb.
    setup.options.level0_tables_max = 40;
    let store = Store::new(&setup, 64 * MIB, Some(4 * MIB), registry());
    let engine = store.engine();
    let parent = tree(engine, "tree");
    put(engine, parent, 0..10, 1);
    let child = branch(engine, parent, "branch");
    for part in 0..PARTS {
        for row in 0..PART_ROWS {
            let number = match is_in_order {
                true => 100 + PART_ROWS * part + row,
                false => 100 + PARTS * row + part,
            };
            put(engine, child, number..number + 1, u64::from(number));
        }
    }
    let compactions = || engine.counters().get("vt.compactions");
    let before = compactions();
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(moved(engine), 1);
    let rows = 10 + PARTS * PART_ROWS;
    assert_eq!(count(engine, parent, None), rows as usize);
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    compactions() - before
}

#[test]
fn a_branch_that_was_written_in_key_order_is_absorbed_without_a_compaction() {
    assert_eq!(compactions_of_absorb(true), 0, "its tables are one run");
    assert!(
        compactions_of_absorb(false) > 0,
        "each table has keys of all"
    );
}

#[test]
fn a_long_branch_is_not_read_to_find_out_that_it_is_moved() {
    let mut setup = setup();
    setup.options.absorb_copy_bytes_max = 256 << 10;
    setup.options.level0_tables_max = 40;
    let mut store = Store::new(&setup, 64 * MIB, Some(4 * MIB), registry());
    let parent = tree(store.engine(), "tree");
    let child = branch(store.engine(), parent, "branch");
    put(store.engine(), child, 0..1200, 1);
    // What was written is not in memory any more.
    store.next_life(Ending::Closed);
    let engine = store.engine();
    let before = engine.counters().get("vt.data_blocks_read");
    engine.prepare_absorb(&[child]).expect("there is space");
    absorb(engine, child).expect("it is absorbed");
    let read = engine.counters().get("vt.data_blocks_read") - before;
    assert_eq!(moved(engine), 1);
    assert_eq!(read, 0, "the sizes of its tables say enough");
    assert_eq!(count(engine, parent, None), 1200);
}

#[test]
fn a_branch_that_a_pin_sees_is_copied_and_stays_hidden() {
    let mut store = moving();
    let engine = store.engine();
    let parent = tree(engine, "tree");
    put(engine, parent, 0..100, 1);
    let child = branch(engine, parent, "branch");
    put(engine, child, 50..200, 2);
    commit(engine, |batch| {
        batch.delete_range(child, &[0, 0, 0, 0], &[0, 0, 0, 9])
    });
    engine.create_pin("pin", b"").expect("it is made");
    put(engine, child, 190..210, 3);
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(moved(engine), 1);
    assert_eq!(count(engine, parent, None), 201);
    store.next_life(Ending::PowerCut);
    let engine = store.engine();
    assert_eq!(count(engine, parent, None), 201);
    let pin = engine.open_pin("pin").expect("it opens");
    assert_eq!(count(engine, child, Some(&pin)), 191);
    assert_eq!(count(engine, parent, Some(&pin)), 100);
    drop(pin);
    engine.drop_pin("pin").expect("it goes");
    engine.drop_tree(parent).expect("it goes");
    engine.quiesce().expect("it settles");
    assert_eq!(owned(engine), 0);
}

#[test]
fn stores_that_moved_tables_have_a_feature_bit() {
    let mut store = moving();
    let engine = store.engine();
    let parent = tree(engine, "tree");
    put(engine, parent, 0..100, 1);
    let child = branch(engine, parent, "branch");
    put(engine, child, 0..100, 2);
    let features = |engine: &VtEngine| engine.volume().superblock().incompatible;
    assert_eq!(features(engine), FEATURE_BRANCHES);
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(features(engine), FEATURE_BRANCHES | FEATURE_SHIFTS);
    store.next_life(Ending::Killed);
    let engine = store.engine();
    assert_eq!(features(engine), FEATURE_BRANCHES | FEATURE_SHIFTS);
    assert_eq!(count(engine, parent, None), 100);
}

#[test]
fn a_full_store_refuses_the_absorb_and_takes_other_writes() {
    let store = moving();
    let engine = store.engine();
    let parent = tree(engine, "tree");
    put(engine, parent, 0..100, 1);
    let child = branch(engine, parent, "branch");
    put(engine, child, 0..2000, 2);
    engine.create_pin("pin", b"").expect("it is made");
    // The pin keeps the branch, so it is written anew: there is no room for that.
    let filler = tree(engine, "filler");
    let mut from = 0;
    loop {
        let mut batch = Batch::new();
        for number in from..from + 50u32 {
            let mut value = vec![0; 1000];
            Rng::new(u64::from(number)).fill(&mut value);
            batch.put(filler, &number.to_be_bytes(), &value);
        }
        match engine.commit(&batch, CommitOptions::default()) {
            Ok(_) => from += 50,
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => panic!("{error}"),
        }
    }
    let refused = absorb(engine, child).expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert_eq!(count(engine, parent, None), 100);
    assert_eq!(count(engine, child, None), 2000);
    engine.drop_tree(filler).expect("it goes");
    engine.quiesce().expect("it settles");
    put(engine, parent, 0..10, 3);
    put(engine, child, 0..10, 3);
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(count(engine, parent, None), 2000);
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
}

#[test]
fn a_refused_branch_takes_writes_again() {
    let store = store();
    let engine = store.engine();
    let parent = tree(engine, "tree");
    let child = branch(engine, parent, "branch");
    let before = engine.snapshot();
    commit(engine, |batch| batch.put(parent, b"k", b"parent"));
    commit(engine, |batch| batch.put(child, b"k", b"child"));
    let mut guards = Guards::since(&before);
    guards.key(parent, b"k");
    let (batch, options) = (Batch::new(), CommitOptions::default());
    let refused = engine.absorb(&[child], &batch, &guards, options);
    assert!(
        matches!(refused, Err(KvError::Conflict { .. })),
        "{refused:?}"
    );
    commit(engine, |batch| batch.put(child, b"k", b"again"));
    let grandchild = branch(engine, child, "grandchild");
    let refused = absorb(engine, child);
    assert!(matches!(refused, Err(KvError::Invalid(_))), "{refused:?}");
    commit(engine, |batch| batch.put(child, b"l", b"more"));
    engine.drop_tree(grandchild).expect("it goes");
    absorb(engine, child).expect("it is absorbed");
    assert_eq!(get(engine, parent, b"k"), Some(b"again".to_vec()));
    assert_eq!(get(engine, parent, b"l"), Some(b"more".to_vec()));
    let gone = absorb(engine, child);
    assert!(matches!(gone, Err(KvError::NoTree(tree)) if tree == child));
}

/// A write-out may turn a row of deletes into a range delete, since no reader of the tree can tell.
/// The parent of a branch has other rows in that range by then.
#[test]
fn deletes_of_many_rows_spare_what_the_parent_got_between_them() {
    for store in [store(), moving()] {
        let engine = store.engine();
        let parent = tree(engine, "t");
        let key = |number: u32| number.to_be_bytes();
        commit(engine, |batch| {
            (0..4000).for_each(|number| batch.put(parent, &key(number), b"old"));
        });
        let child = branch(engine, parent, "b");
        let between = [&key(2000)[..], b"new"].concat();
        commit(engine, |batch| {
            (0..4000).for_each(|number| batch.delete(child, &key(number)));
        });
        commit(engine, |batch| batch.put(parent, &between, b"new"));
        engine.quiesce().expect("it is written out");
        let ranges = engine.branch_deleted_ranges(child).expect("it reads");
        assert_eq!(ranges, [], "no range was deleted");
        absorb(engine, child).expect("nothing is in the way");
        assert_eq!(get(engine, parent, &between).as_deref(), Some(&b"new"[..]));
        assert_eq!(count(engine, parent, None), 1);
    }
}

#[test]
fn memtables_filled_by_the_log_are_filtered_too() {
    let mut store = store();
    let main = tree(store.engine(), "tree");
    put(store.engine(), main, 0..20, 1);
    let above = branch(store.engine(), main, "branch");
    put(store.engine(), above, 0..5, 2);
    let keys: Vec<[u8; 4]> = (0..20).map(u32::to_be_bytes).collect();
    let read = |store: &Store| {
        let get = |key: &[u8; 4]| store.engine().get(above, key, None).expect("it reads");
        let before = store.engine().counters();
        let rows: Vec<_> = keys.iter().map(get).collect();
        let denied = "vt.filtered_memtables";
        let grown = store.engine().counters().get(denied) - before.get(denied);
        (rows, grown)
    };
    let (rows, denied) = read(&store);
    assert!((14..=15).contains(&denied), "{denied} of 15 others");
    store.next_life(Ending::Killed);
    assert_eq!(read(&store), (rows, denied), "the same after a replay");
}
