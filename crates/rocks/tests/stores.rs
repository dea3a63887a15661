//! What the conformance suite cannot ask for: other openers, strangers, damage, a second program's
//! view.

#![cfg(feature = "rocksdb")]

use std::fs;
use std::path::{Path, PathBuf};
use stitch_base::{ErrorKind, TreeId};
use stitch_kv::{Batch, CommitOptions, Engine as _, KvError, TreeOptions};
use stitch_rocks::{RocksEngine, RocksOptions};

fn commit(engine: &RocksEngine, fill: impl FnOnce(&mut Batch<'_>)) -> Result<(), KvError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    engine.commit(&batch, CommitOptions::default()).map(drop)
}

fn made(path: &Path) -> (RocksEngine, TreeId) {
    let engine = RocksEngine::create(path, &RocksOptions::default()).expect("a store is made");
    let tree = engine.create_tree("tree", &TreeOptions::default());
    (engine, tree.expect("a tree is made"))
}

fn kind_of<T>(result: Result<T, KvError>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_store_that_is_open_is_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, _) = made(folder.path());
    let second = RocksEngine::open(folder.path(), &RocksOptions::default());
    assert_eq!(kind_of(second), Some(ErrorKind::Busy));
    drop(engine);
    let second = RocksEngine::open(folder.path(), &RocksOptions::default());
    assert_eq!(kind_of(second), None);
}

#[test]
fn a_lock_that_cannot_be_had_is_no_other_opener() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(made(folder.path()));
    let lock = folder.path().join("LOCK");
    fs::remove_file(&lock).expect("it is removed");
    fs::create_dir(&lock).expect("a directory is in its place");
    let opened = RocksEngine::open(folder.path(), &RocksOptions::default());
    assert_eq!(kind_of(opened), Some(ErrorKind::Io));
}

#[test]
fn a_store_is_made_once_and_not_found_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = RocksEngine::open(folder.path(), &RocksOptions::default());
    assert_eq!(kind_of(missing), Some(ErrorKind::NotFound));
    drop(made(folder.path()));
    let again = RocksEngine::create(folder.path(), &RocksOptions::default());
    assert_eq!(kind_of(again), Some(ErrorKind::Invalid));
}

#[test]
fn for_reading_only_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, tree) = made(folder.path());
    commit(&engine, |batch| batch.put(tree, b"key", b"value")).expect("committed");
    engine.close().expect("closed");
    drop(engine);
    let before = listing(folder.path());
    let options = RocksOptions {
        read_only: true,
        ..RocksOptions::default()
    };
    let engine = RocksEngine::open(folder.path(), &options).expect("it opens");
    let value = engine.get(tree, b"key", None).expect("it reads");
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    let refused = commit(&engine, |batch| batch.put(tree, b"key", b"other"));
    assert_eq!(kind_of(refused), Some(ErrorKind::ReadOnly));
    let refused = engine.create_tree("other", &TreeOptions::default());
    assert_eq!(kind_of(refused), Some(ErrorKind::ReadOnly));
    engine.close().expect("closed");
    drop(engine);
    assert_eq!(listing(folder.path()), before);
}

/// All files but RocksDB's own log of messages, with their contents.
fn listing(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = paths
        .filter(|path| !path.to_string_lossy().contains("LOG"))
        .map(|path| (path.clone(), fs::read(&path).expect("it reads")))
        .collect();
    files.sort();
    files
}

#[test]
fn a_damaged_table_is_an_error_and_found_by_a_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, tree) = made(folder.path());
    for key in 0..2000_u32 {
        commit(&engine, |batch| {
            batch.put(tree, &key.to_be_bytes(), &[7; 100])
        })
        .expect("committed");
    }
    engine.quiesce().expect("tables are written");
    let sound = engine.check(&mut |_, _| {}).expect("it checks");
    assert_eq!(sound, []);
    engine.close().expect("closed");
    drop(engine);
    let tables = listing(folder.path());
    let tables = tables
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "sst"));
    let (path, mut bytes) = tables
        .max_by_key(|(_, bytes)| bytes.len())
        .cloned()
        .expect("there is a table");
    bytes[5000] ^= 0xff;
    fs::write(path, bytes).expect("it is damaged");

    let engine = RocksEngine::open(folder.path(), &RocksOptions::default()).expect("it opens");
    let found = engine.check(&mut |_, _| {}).expect("it checks");
    let rules: Vec<_> = found.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, ["tree-unreadable"], "{found:?}");
    let reads = (0..2000_u32).map(|key| engine.get(tree, &key.to_be_bytes(), None));
    let kinds: Vec<_> = reads.filter_map(kind_of).collect();
    assert!(!kinds.is_empty(), "a block is damaged");
    assert!(
        kinds.iter().all(|kind| *kind == ErrorKind::Corrupt),
        "{kinds:?}"
    );
    let keys: Vec<[u8; 4]> = (0..2000_u32).map(u32::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let all = engine.get_many(tree, &keys, None);
    assert_eq!(
        kind_of(all),
        Some(ErrorKind::Corrupt),
        "one of them is damaged"
    );
    let is_sound = |key: &&&[u8]| engine.get(tree, key, None).is_ok();
    let sound: Vec<&[u8]> = keys.iter().filter(is_sound).copied().collect();
    assert!(sound.len() > 1000, "one block of many is damaged");
    let values = engine
        .get_many(tree, &sound, None)
        .expect("the rest is read");
    assert!(
        values
            .iter()
            .all(|value| value.as_deref() == Some(&[7; 100][..]))
    );
}

#[test]
fn several_keys_are_read_as_of_one_moment() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, tree) = made(folder.path());
    let keys: Vec<[u8; 4]> = (0..1000_u32).map(u32::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let put_all = |round: u8| {
        let fill =
            |batch: &mut Batch<'_>| keys.iter().for_each(|key| batch.put(tree, key, &[round]));
        commit(&engine, fill).expect("committed");
    };
    put_all(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..=100).for_each(put_all));
        let mut count = 0_u32;
        while !writer.is_finished() || count == 0 {
            // One group, and several.
            for len in [200, 1000] {
                let values = engine.get_many(tree, &keys[..len], None).expect("read");
                assert!(
                    values.iter().all(|value| value == &values[0]),
                    "of one commit"
                );
                assert!(values[0].is_some() && values.len() == len);
            }
            count += 1;
        }
    });
}

#[test]
fn a_store_whose_manifest_is_missing_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(made(folder.path()));
    fs::write(folder.path().join("CURRENT"), "MANIFEST-999999\n").expect("it is changed");
    let opened = RocksEngine::open(folder.path(), &RocksOptions::default());
    assert!(opened.is_err(), "a manifest is missing");
}
