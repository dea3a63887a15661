//! Stores made by the library and damaged behind its back: what `fsck` says and does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_fs::{Caller, DirName, NewNode, WriteOptions};
use stitch_kv::{Batch, CommitOptions, Direction, KeyRange};
use stitchfs::{MakeOptions, Store, StoreOptions};

const STITCHFS: &str = env!("CARGO_BIN_EXE_stitchfs");
const FILE_BYTES: usize = 300_000;

/// One test at a time: a program that is being started holds, for a moment, a copy of every file
/// that this process has open, and with it the lock of a store that another test opens again.
static TURN: Mutex<()> = Mutex::new(());

/// A store with a file of two names and a directory in it, closed.
fn store_in(dir: &Path) -> PathBuf {
    let path = dir.join("store");
    let options = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    stitchfs::make(&path, &options, &mut |_, _| {}).unwrap();
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let fs = store.file_system().unwrap();
    let new = NewNode {
        perm: 0o755,
        umask: 0,
    };
    let root = |name| DirName::new(Ino::ROOT, name);
    fs.make_dir(&Caller::ROOT, root(b"dir"), &new).unwrap();
    let file = fs.create(&Caller::ROOT, root(b"file"), &new).unwrap();
    let data: Vec<u8> = (0..FILE_BYTES).map(|i| (i % 251) as u8).collect();
    fs.write(file.ino, 0, &data, WriteOptions::default())
        .unwrap();
    fs.link(&Caller::ROOT, file.ino, root(b"other")).unwrap();
    fs.close().unwrap();
    store.close().unwrap();
    path
}

/// Exit code and output of `fsck`.
fn fsck(flag: &str, path: &Path) -> (Option<i32>, String) {
    let output = Command::new(STITCHFS)
        .args(["fsck", flag])
        .arg(path)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_flipped_bit_in_a_block_is_found_and_not_repaired() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = store_in(dir.path());
    assert_eq!(fsck("-n", &path).0, Some(0));
    let mut image = fs::read(&path).unwrap();
    // Somewhere in the file's contents.
    let needle: Vec<u8> = (100..140).collect();
    let at = image.windows(needle.len()).rposition(|w| w == needle);
    image[at.unwrap()] ^= 1;
    fs::write(&path, &image).unwrap();
    for flag in ["-n", "-y"] {
        let (code, said) = fsck(flag, &path);
        assert_eq!(code, Some(4), "{flag}: {said}");
        assert!(said.contains("block"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let checked = store.check(&mut |_, _| {}).unwrap();
    assert!(checked.findings.iter().any(|f| !f.is_repairable));
}

#[test]
fn a_lost_row_is_found_and_repaired() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = store_in(dir.path());
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let engine = store.engine();
    let meta = engine
        .trees()
        .into_iter()
        .find(|t| t.name.ends_with("/meta"));
    let meta = meta.unwrap().id;
    let key = {
        let all = KeyRange::all();
        let mut scan = engine.scan(meta, all, Direction::Backward, None).unwrap();
        scan.next().unwrap().unwrap().0.to_vec()
    };
    let mut batch = Batch::new();
    batch.delete(meta, &key);
    engine.commit(&batch, CommitOptions::default()).unwrap();
    store.close().unwrap();
    drop(store);

    let before = fs::read(&path).unwrap();
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(4), "{said}");
    assert!(fs::read(&path).unwrap() == before, "-n writes nothing");
    let (code, said) = fsck("-y", &path);
    assert_eq!(code, Some(1), "{said}");
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_store_whose_making_was_interrupted_says_so() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = stitch_device::FileDevice::create(&path, 16 << 20).unwrap();
    let options = stitch_volume::FormatOptions::default();
    stitch_volume::Volume::format(&device, &options, &mut |_, _| {}).unwrap();
    drop(device);
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let error = store.file_system().unwrap_err();
    assert!(error.to_string().contains("mkfs --force"), "{error}");
    drop(store);
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(8), "{said}");
    assert!(said.contains("mkfs --force"), "{said}");
    let forced = MakeOptions {
        force: true,
        ..MakeOptions::default()
    };
    stitchfs::make(&path, &forced, &mut |_, _| {}).unwrap();
    assert_eq!(fsck("-n", &path).0, Some(0));
}
