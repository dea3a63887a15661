//! Rows that the parent and each of its branches have deleted or overwritten give their space back.

mod common;

use common::space::{Rows, owned, rows};
use common::{MIB, Setup, open};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device};
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{Batch, CommitOptions, Engine, Guards, KeyRanges, KvError, NewBranch, TreeOptions};
use stitch_vt::{VtEngine, VtOptions};

const KIB: u64 = 1 << 10;
/// Rows of the parent, each of two pages, or of an eighth of one.
const ROWS: u64 = 800;
/// Those that are deleted or overwritten everywhere.
const GONE: std::ops::Range<u64> = 200..600;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Deletes,
    /// Of every other row.
    SomeDeletes,
    RangeDelete,
    Puts,
}

fn device() -> Arc<CrashDevice> {
    let device = CrashDevice::new(128 * MIB, CrashPlan::default());
    common::format(&device, Some(4 * MIB));
    Arc::new(device)
}

fn engine_on(device: &Arc<CrashDevice>) -> Arc<VtEngine> {
    open(Arc::clone(device) as Arc<dyn Device>, options())
}

fn options() -> VtOptions {
    VtOptions {
        upserts: registry(),
        ..Setup::sized(128 * KIB, 64 * KIB, false).options
    }
}

fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

fn commit(engine: &VtEngine, batch: &Batch<'_>) {
    let done = engine.commit(batch, CommitOptions::default());
    done.expect("the batch is committed");
}

fn branch_of(engine: &VtEngine, parent: TreeId, name: &str) -> TreeId {
    let new = [NewBranch::new(parent, name)];
    engine.branch_trees(&new, None).expect("it is made")[0]
}

/// A parent, and the length of its rows.
fn parent(engine: &VtEngine, value_bytes: usize, rng: &mut Rng) -> TreeId {
    let options = TreeOptions {
        value_block_bytes: 4096,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options).expect("it is made");
    for row in 0..ROWS {
        let mut value = vec![0; value_bytes];
        rng.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(tree, &key(row), &value);
        commit(engine, &batch);
    }
    tree
}

fn replace(engine: &VtEngine, tree: TreeId, way: Way) {
    let mut batch = Batch::new();
    match way {
        Way::SomeDeletes => GONE
            .step_by(2)
            .for_each(|row| batch.delete(tree, &key(row))),
        Way::Deletes => GONE.for_each(|row| batch.delete(tree, &key(row))),
        Way::RangeDelete => batch.delete_range(tree, &key(GONE.start), &key(GONE.end)),
        Way::Puts => GONE.for_each(|row| batch.put(tree, &key(row), b"short")),
    }
    commit(engine, &batch);
}

fn all_rows(engine: &VtEngine, trees: &[TreeId]) -> Vec<Rows> {
    trees.iter().map(|tree| rows(engine, *tree, None)).collect()
}

/// Two branches of a tree; all three replace rows in one way, in any order, and snapshots hold
/// them as long as they are there.
fn space_comes_back(way: Way, value_bytes: usize) {
    let device = device();
    let engine = engine_on(&device);
    let mut rng = Rng::new(u64::try_from(value_bytes).expect("small"));
    let tree = parent(&engine, value_bytes, &mut rng);
    let one = branch_of(&engine, tree, "one");
    let two = branch_of(&engine, tree, "two");
    engine
        .release_replaced(&[one, two])
        .expect("they are branches");
    let full_bytes = owned(&engine);
    let gone_rows = match way {
        Way::SomeDeletes => GONE.step_by(2).count() as u64,
        _ => GONE.end - GONE.start,
    };
    let gone_bytes = gone_rows * value_bytes as u64;
    let pinned = |name: &str| {
        let made = engine.create_pin(name, b"");
        made.expect("the pin is made");
    };
    pinned("before");
    replace(&engine, one, way);
    pinned("after one");
    replace(&engine, tree, way);
    pinned("after tree");
    let trees = [tree, one, two];
    let expected = all_rows(&engine, &trees);
    assert!(
        owned(&engine) >= full_bytes,
        "{way:?}: the other branch has them"
    );
    assert!(all_rows(&engine, &trees) == expected);
    replace(&engine, two, way);
    let expected = all_rows(&engine, &trees);
    assert!(expected[0] == expected[1], "the same in all");
    assert!(owned(&engine) >= full_bytes, "{way:?}: pins have them");
    engine.drop_pin("before").expect("it goes");
    assert!(
        owned(&engine) >= full_bytes,
        "{way:?}: branches of the next pin"
    );
    for pin in ["after one", "after tree"] {
        let moment = engine.open_pin(pin).expect("it is there");
        let seen = rows(&engine, two, Some(&moment));
        assert_eq!(seen.len() as u64, ROWS, "{pin}");
        assert!(
            seen.values().all(|value| value.len() == value_bytes),
            "{pin}"
        );
        drop(moment);
        assert!(owned(&engine) >= full_bytes, "{way:?}: {pin}");
        engine.drop_pin(pin).expect("it goes");
    }
    let left_bytes = owned(&engine);
    let saved = full_bytes.saturating_sub(left_bytes);
    assert!(
        saved * 10 >= gone_bytes * 9,
        "{way:?}: {saved} of {gone_bytes} bytes came back"
    );
    assert!(all_rows(&engine, &trees) == expected);
    drop(engine);
    let engine = engine_on(&device);
    assert!(all_rows(&engine, &trees) == expected);
    assert!(owned(&engine) <= left_bytes + 64 * KIB);
    engine.drop_trees(&[tree, one]).expect("they go");
    assert!(rows(&engine, two, None) == expected[2]);
}

#[test]
fn space_of_small_rows_that_are_deleted_everywhere_comes_back() {
    space_comes_back(Way::Deletes, 500);
}

#[test]
fn space_of_large_rows_that_are_deleted_everywhere_comes_back() {
    space_comes_back(Way::Deletes, 8000);
}

#[test]
fn space_of_every_other_row_that_is_deleted_everywhere_comes_back() {
    space_comes_back(Way::SomeDeletes, 500);
    space_comes_back(Way::SomeDeletes, 8000);
}

#[test]
fn space_of_small_rows_in_a_range_that_is_deleted_everywhere_comes_back() {
    space_comes_back(Way::RangeDelete, 500);
}

#[test]
fn space_of_large_rows_in_a_range_that_is_deleted_everywhere_comes_back() {
    space_comes_back(Way::RangeDelete, 8000);
}

#[test]
fn space_of_rows_that_are_overwritten_everywhere_comes_back() {
    space_comes_back(Way::Puts, 500);
    space_comes_back(Way::Puts, 8000);
}

/// What a branch reads of its parent stays, the rest goes once it is replaced there.
#[test]
fn space_beside_what_a_branch_reads_comes_back() {
    for value_bytes in [500, 8000] {
        let device = device();
        let engine = engine_on(&device);
        let tree = parent(&engine, value_bytes, &mut Rng::new(13));
        let branch = branch_of(&engine, tree, "branch");
        let full_bytes = owned(&engine);
        let read = KeyRanges::new([(key(0).to_vec(), Some(key(250).to_vec()))]);
        let before = engine.snapshot();
        replace(&engine, branch, Way::Puts);
        let at = engine.snapshot();
        let release = || engine.release_beside(branch, &read, &at).expect("a branch");
        assert!(!release(), "there is an older reader");
        drop(before);
        assert!(release());
        replace(&engine, tree, Way::RangeDelete);
        let gone_bytes = (GONE.end - 250) * value_bytes as u64;
        drop(at);
        let saved = full_bytes.saturating_sub(owned(&engine));
        assert!(
            saved * 10 >= gone_bytes * 9,
            "{saved} of {gone_bytes} bytes"
        );
        let left = rows(&engine, branch, None);
        assert!((0..200).all(|row| left[key(row).as_slice()].len() == value_bytes));
        assert_eq!(left.len() as u64, ROWS, "of what was put, and not replaced");
    }
}

/// What the parent has deleted and the branch has not stays, also between such as both have.
#[test]
fn rows_between_replaced_ones_stay() {
    for value_bytes in [500, 8000] {
        let device = device();
        let engine = engine_on(&device);
        let tree = parent(&engine, value_bytes, &mut Rng::new(12));
        let branch = branch_of(&engine, tree, "branch");
        engine.release_replaced(&[branch]).expect("it is a branch");
        replace(&engine, branch, Way::SomeDeletes);
        replace(&engine, tree, Way::Deletes);
        let expected = rows(&engine, branch, None);
        engine.quiesce().expect("background work succeeds");
        assert!(rows(&engine, branch, None) == expected);
        assert_eq!(expected.len() as u64, ROWS - GONE.step_by(2).count() as u64);
    }
}

#[test]
fn only_branches_give_up_what_they_replace() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 500, &mut Rng::new(16));
    let branch = branch_of(&engine, tree, "branch");
    let refused = engine.release_replaced(&[branch, tree]);
    assert!(matches!(refused, Err(KvError::Invalid(_))), "{refused:?}");
    engine.drop_tree(branch).expect("it goes");
    let refused = engine.release_replaced(&[branch]);
    assert!(matches!(refused, Err(KvError::NoTree(_))), "{refused:?}");
}

/// The base of a merge stays: a branch that the engine was not told of gives up nothing.
#[test]
fn a_branch_that_may_be_merged_holds_all_it_began_with() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 500, &mut Rng::new(7));
    let branch = branch_of(&engine, tree, "branch");
    replace(&engine, branch, Way::RangeDelete);
    replace(&engine, tree, Way::Deletes);
    engine.quiesce().expect("background work succeeds");
    let moment = engine.branch_moment(branch).expect("it is a branch");
    assert_eq!(rows(&engine, tree, Some(&moment)).len() as u64, ROWS);
    drop(moment);
    let guards = Guards::since(&engine.snapshot());
    let options = CommitOptions::default();
    let absorbed = engine.absorb(&[branch], &Batch::new(), &guards, options);
    absorbed.expect("it is absorbed");
    assert_eq!(
        rows(&engine, tree, None).len() as u64,
        ROWS - (GONE.end - GONE.start)
    );
}

/// The delete of a branch is on the medium before its parent gives the row up.
#[test]
fn a_crash_leaves_a_row_or_its_delete() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 500, &mut Rng::new(8));
    let branch = branch_of(&engine, tree, "branch");
    engine.release_replaced(&[branch]).expect("it is a branch");
    replace(&engine, tree, Way::RangeDelete);
    engine.quiesce().expect("background work succeeds");
    engine.sync().expect("it syncs");
    replace(&engine, branch, Way::RangeDelete);
    engine.quiesce().expect("background work succeeds");
    let mut rng = Rng::new(9);
    for _ in 0..20 {
        let image = Arc::new(device.crash_image(&mut rng));
        let after = open(image, options());
        let found = rows(&after, branch, None).len() as u64;
        let left = ROWS - (GONE.end - GONE.start);
        assert!(found == ROWS || found == left, "{found} rows");
    }
}

/// An upsert reads the row below it.
#[test]
fn an_upsert_in_a_branch_keeps_the_row_of_its_parent() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 500, &mut Rng::new(10));
    let branch = branch_of(&engine, tree, "branch");
    engine.release_replaced(&[branch]).expect("it is a branch");
    let mut batch = Batch::new();
    GONE.for_each(|row| batch.upsert(branch, &key(row), APPEND, b"more"));
    commit(&engine, &batch);
    replace(&engine, tree, Way::Deletes);
    let expected = rows(&engine, branch, None);
    engine.quiesce().expect("background work succeeds");
    assert!(rows(&engine, branch, None) == expected);
    let found = &expected[key(GONE.start).as_slice()];
    assert_eq!(found.len(), 504, "it has the parent's row and more");
}

/// A branch that was dropped, and is read by a branch of it, gives up what it has replaced.
#[test]
fn a_dropped_branch_that_is_read_gives_up_what_it_replaced() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 8000, &mut Rng::new(11));
    let one = branch_of(&engine, tree, "one");
    let full_bytes = owned(&engine);
    replace(&engine, one, Way::RangeDelete);
    let two = branch_of(&engine, one, "two");
    engine.drop_tree(one).expect("it goes");
    replace(&engine, tree, Way::Deletes);
    let expected = rows(&engine, two, None);
    let left_bytes = owned(&engine);
    let gone_bytes = (GONE.end - GONE.start) * 8000;
    assert!((full_bytes - left_bytes) * 10 >= gone_bytes * 9);
    assert!(rows(&engine, two, None) == expected);
}

/// The middle one of three was dropped: what the last one replaced, the first one gives up.
#[test]
fn what_the_branches_of_a_dropped_branch_replaced_is_given_up() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 8000, &mut Rng::new(14));
    let one = branch_of(&engine, tree, "one");
    let (two, three) = (
        branch_of(&engine, one, "two"),
        branch_of(&engine, one, "three"),
    );
    engine
        .release_replaced(&[one, two, three])
        .expect("they are branches");
    let full_bytes = owned(&engine);
    replace(&engine, two, Way::RangeDelete);
    replace(&engine, tree, Way::RangeDelete);
    assert!(owned(&engine) >= full_bytes, "the middle one has them");
    engine.drop_tree(one).expect("it goes");
    assert!(owned(&engine) >= full_bytes, "the third one has them");
    assert_eq!(rows(&engine, three, None).len() as u64, ROWS);
    replace(&engine, three, Way::Deletes);
    let expected = all_rows(&engine, &[tree, two, three]);
    let saved = full_bytes.saturating_sub(owned(&engine));
    let gone_bytes = (GONE.end - GONE.start) * 8000;
    assert!(
        saved * 10 >= gone_bytes * 9,
        "{saved} of {gone_bytes} bytes"
    );
    assert!(all_rows(&engine, &[tree, two, three]) == expected);
}

/// Rows that a dropped branch takes from its parent lie between those that its branch replaced.
#[test]
fn rows_of_a_grandparent_between_replaced_ones_stay() {
    let device = device();
    let engine = engine_on(&device);
    let tree = parent(&engine, 500, &mut Rng::new(15));
    let one = branch_of(&engine, tree, "one");
    replace(&engine, one, Way::SomeDeletes);
    let two = branch_of(&engine, one, "two");
    engine.release_replaced(&[two]).expect("it is a branch");
    replace(&engine, two, Way::SomeDeletes);
    engine.drop_tree(one).expect("it goes");
    replace(&engine, tree, Way::Deletes);
    let expected = rows(&engine, two, None);
    assert_eq!(expected.len() as u64, ROWS - GONE.step_by(2).count() as u64);
    engine.quiesce().expect("background work succeeds");
    assert!(rows(&engine, two, None) == expected);
}
