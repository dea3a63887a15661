//! Trees without end: they are refused before anything is written, and every store gets out of it,
//! also one that an older program filled.

mod common;

use common::{MIB, Setup, Store, open};
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, Lsn, TreeId};
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_format::vt_manifest::{TreeRecord, VersionEdit};
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::registry;
use stitch_kv::{Batch, CommitOptions, Engine, KvError, TreeOptions};
use stitch_volume::{OpenOptions, Volume, VolumeError};
use stitch_vt::{VtEngine, VtOptions};

fn name(number: usize, bytes: usize) -> String {
    format!("{number:0bytes$}")
}

fn put(engine: &VtEngine, tree: TreeId, key: &[u8]) -> Result<(), KvError> {
    let mut batch = Batch::new();
    batch.put(tree, key, b"value");
    engine.commit(&batch, CommitOptions::default()).map(drop)
}

fn has(engine: &VtEngine, tree: TreeId, key: &[u8]) -> bool {
    engine.get(tree, key, None).expect("it is read").is_some()
}

fn options() -> VtOptions {
    Setup::sized(256 << 10, 128 << 10, false).options
}

/// Makes trees until the engine makes no more.
fn fill(engine: &VtEngine, bytes: usize) -> KvError {
    let first = engine.trees().len();
    for number in first..100_000 {
        let made = engine.create_tree(&name(number, bytes), &TreeOptions::default());
        if let Err(error) = made {
            return error;
        }
    }
    panic!("trees have no limit");
}

#[test]
fn the_list_of_trees_is_bounded_and_nothing_is_lost_at_its_end() {
    let setup = Setup::sized(256 << 10, 128 << 10, false);
    let mut store = Store::new(&setup, 16 * MIB, None, registry());
    let error = fill(store.engine(), 60);
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("drop trees"), "{error}");
    let trees = store.engine().trees();
    assert!((1000..2000).contains(&trees.len()), "{}", trees.len());
    for ending in [Ending::Closed, Ending::Killed, Ending::PowerCut] {
        let engine = Arc::clone(store.engine());
        let some = trees[trees.len() - 1].id;
        put(&engine, some, b"key").expect("a full list of trees takes data");
        engine.quiesce().expect("it goes into tables");
        let again = fill(&engine, 60);
        assert_eq!(again.kind(), ErrorKind::NoSpace);
        engine.sync().expect("the store is not poisoned");
        drop(engine);
        store.next_life(ending);
        assert_eq!(store.engine().trees(), trees);
        assert!(has(store.engine(), some, b"key"));
    }
    let engine = store.engine();
    for tree in &trees[1..] {
        engine.drop_tree(tree.id).expect("a tree can be dropped");
    }
    assert_eq!(fill(engine, 200).kind(), ErrorKind::NoSpace);
    assert!(engine.trees().len() > 300, "{}", engine.trees().len());
    engine.close().expect("it closes");
}

#[test]
fn a_name_of_2000_bytes_is_refused_and_harms_nothing() {
    let setup = Setup::sized(256 << 10, 128 << 10, false);
    let store = Store::new(&setup, 64 * MIB, None, registry());
    let engine = store.engine();
    let error = engine.create_tree(&name(1, 2000), &TreeOptions::default());
    let error = error.expect_err("the name is too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let tree = engine.create_tree(&name(1, 255), &TreeOptions::default());
    put(engine, tree.expect("this one is not"), b"key").expect("there is space");
}

#[test]
fn tables_that_the_list_has_no_room_for_are_refused_and_a_dropped_tree_makes_room() {
    let setup = Setup::sized(256 << 10, 128 << 10, false);
    let mut store = Store::new(&setup, 16 * MIB, None, registry());
    let engine = Arc::clone(store.engine());
    let longest = usize::try_from(engine.limits().key_bytes_max).expect("it is short");
    // The list has the first and the last key of each table.
    let ends = [vec![b'a'; longest], vec![b'z'; longest]];
    let make = |number| engine.create_tree(&name(number, 8), &TreeOptions::default());
    let trees: Vec<TreeId> = (0..100).map(|n| make(n).expect("there is room")).collect();
    let mut filled = 0;
    let refused = loop {
        let mut batch = Batch::new();
        for key in &ends {
            batch.put(trees[filled], key, b"value");
        }
        let put = engine.commit(&batch, CommitOptions::default());
        filled += 1;
        if let Err(error) = put.and_then(|_| engine.quiesce()) {
            break error;
        }
    };
    assert!(matches!(refused, KvError::NoSpace { .. }), "{refused}");
    // Tables may take twice as much of the list as trees.
    assert!((20..40).contains(&filled), "{filled} trees have a table");
    let has_all = |engine: &VtEngine, trees: &[TreeId]| {
        let mut all = trees
            .iter()
            .flat_map(|tree| ends.iter().map(move |key| (tree, key)));
        all.all(|(tree, key)| has(engine, *tree, key))
    };
    assert!(has_all(&engine, &trees[..filled]));
    assert_eq!(engine.check(&mut |_, _| {}).expect("it ends"), []);
    drop(engine);
    store.next_life(Ending::Closed);
    let engine = store.engine();
    assert!(has_all(engine, &trees[..filled]));
    assert!(engine.quiesce().is_err(), "there is still no room");
    for tree in &trees[..2] {
        engine.drop_tree(*tree).expect("a tree can be dropped");
    }
    engine.quiesce().expect("there is room");
    assert!(has_all(engine, &trees[2..filled]));
    assert_eq!(engine.check(&mut |_, _| {}).expect("it ends"), []);
    engine.close().expect("it closes");
}

/// What an older program left: it made trees until its version log took neither a delta nor a base.
fn filled_by_an_older_program(len_bytes: u64, name_bytes: usize) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(len_bytes));
    common::format(&*device, None);
    let on = Arc::clone(&device) as Arc<dyn Device>;
    let opened = Volume::open(on, &OpenOptions::default()).expect("the volume opens");
    let volume = &opened.volume;
    let mut base = VersionEdit::default();
    base.next_table.0 = 1;
    loop {
        let id = TreeId(u32::try_from(base.new_trees.len()).expect("few") + 1);
        let record = TreeRecord {
            id,
            name: name(base.new_trees.len(), name_bytes),
            block_bytes: 16 << 10,
            stitch_bytes: 0,
            compression: 0,
            value_block_bytes: 0,
            branch: None,
            branch_ranges: None,
        };
        let edit = VersionEdit {
            next_tree: id.next(),
            new_trees: vec![record.clone()],
            ..base.clone()
        };
        base.next_tree = id.next();
        base.new_trees.push(record);
        let full = |error: &VolumeError| matches!(error, VolumeError::VersionLogFull { .. });
        if !volume.version_log_wants_base() {
            match volume.commit_delta(&edit.encode(), Lsn(0)) {
                Err(error) if full(&error) => {}
                other => {
                    other.expect("the device works");
                    continue;
                }
            }
        }
        if let Err(error) = volume.commit_base(&base.encode(), Lsn(0)) {
            assert!(full(&error), "{error}");
            return device;
        }
    }
}

#[test]
fn a_store_that_an_older_program_filled_with_trees_is_emptied() {
    for (len_bytes, name_bytes) in [(16 * MIB, 60), (64 * MIB, 200), (64 * MIB, 2000)] {
        let image = filled_by_an_older_program(len_bytes, name_bytes);
        let mut rng = Rng::new(len_bytes + name_bytes as u64);
        let mut device = Arc::new(CrashDevice::from_image(&image, CrashPlan::default()));
        let mut engine = open(device.clone(), options());
        let mut trees: Vec<TreeId> = engine.trees().iter().map(|t| t.id).collect();
        assert!(trees.len() > 100, "{} trees", trees.len());
        let error = engine.create_tree("one more", &TreeOptions::default());
        let error = error.expect_err("there is no room for one");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        engine.quiesce().expect("nothing is due");
        engine.close().expect("it closes");
        engine = open(device.clone(), options());
        while let Some(tree) = trees.pop() {
            engine.drop_tree(tree).expect("a tree can be dropped");
            if rng.one_in(60) {
                drop(engine);
                let image: Arc<MemDevice> = Arc::new(device.crash_image(&mut rng));
                device = Arc::new(CrashDevice::from_image(&image, CrashPlan::default()));
                engine = open(device.clone(), options());
                let left: Vec<TreeId> = engine.trees().iter().map(|t| t.id).collect();
                assert_eq!(left, trees);
            }
        }
        let tree = engine.create_tree("one more", &TreeOptions::default());
        put(&engine, tree.expect("there is room"), b"key").expect("there is space");
        engine.quiesce().expect("background work succeeds");
        engine.close().expect("it closes");
    }
}

#[test]
fn where_dropping_one_tree_finds_no_room_dropping_several_does() {
    let image = filled_by_an_older_program(128 * MIB, 2000);
    let engine = open(image.clone(), options());
    let mut trees: Vec<TreeId> = engine.trees().iter().map(|t| t.id).collect();
    let error = loop {
        match engine.drop_tree(trees[0]) {
            Ok(()) => trees.remove(0),
            Err(error) => break error,
        };
    };
    assert!(matches!(error, KvError::NoSpace { .. }), "{error}");
    let left = |engine: &VtEngine| -> Vec<TreeId> { engine.trees().iter().map(|t| t.id).collect() };
    assert_eq!(left(&engine), trees);
    put(&engine, trees[0], b"key").expect("a tree that was not dropped takes writes");
    let unknown = [trees[1], TreeId(9999)];
    let refused = engine.drop_trees(&unknown);
    assert!(matches!(refused, Err(KvError::NoTree(tree)) if tree == unknown[1]));
    put(&engine, trees[1], b"key").expect("none of them was dropped");
    let half = trees.split_off(trees.len() / 2);
    engine.drop_trees(&half).expect("there is room");
    assert_eq!(left(&engine), trees);
    drop(engine);
    let engine = open(image, options());
    assert_eq!(left(&engine), trees);
    for tree in trees {
        engine.drop_tree(tree).expect("there is room for each");
    }
    engine.close().expect("it closes");
}

#[test]
fn a_store_that_an_older_program_filled_with_trees_grows() {
    let image = filled_by_an_older_program(64 * MIB, 2000);
    let engine = open(image, options());
    engine.grow(96 * MIB).expect("it grows");
    let tree = engine.trees()[0].id;
    engine.drop_tree(tree).expect("a tree can be dropped");
    engine.close().expect("it closes");
}
