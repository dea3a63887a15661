//! Stores made by the library and damaged behind its back: what `fsck` says and does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::FileExt;
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
    run(&["fsck", flag, path.to_str().unwrap()])
}

/// Exit code and output of a command.
fn run(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(STITCHFS).args(words).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Changes bytes of a store.
fn damage(path: &Path, at: u64, len: usize) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0xa5);
    file.write_all_at(&bytes, at).unwrap();
}

fn file_name(number: usize) -> String {
    format!("file-{number:03}.txt")
}

/// A store whose daemon was killed after it had synced 400 files. Answers where file 200 stands in
/// the log.
fn killed_store_in(dir: &Path) -> (PathBuf, u64) {
    let path = store_in(dir);
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let fs = store.file_system().unwrap();
    let new = NewNode {
        perm: 0o644,
        umask: 0,
    };
    for number in 0..400 {
        let name = file_name(number);
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        let file = fs.create(&Caller::ROOT, at, &new).unwrap();
        let text = format!("contents of {name}");
        fs.write(file.ino, 0, text.as_bytes(), WriteOptions::default())
            .unwrap();
    }
    store.engine().sync().unwrap();
    drop(fs);
    drop(store);
    let areas = {
        let device = stitch_device::open_path(&path, stitch_device::OpenOptions::default());
        stitch_volume::Volume::identify(&*device.unwrap())
            .unwrap()
            .areas
    };
    let image = fs::read(&path).unwrap();
    let from = usize::try_from(areas.backup_log_at).unwrap();
    let needle = file_name(200);
    let found = image[from..]
        .windows(needle.len())
        .position(|w| w == needle.as_bytes());
    (path, areas.backup_log_at + found.unwrap() as u64)
}

fn numbers_in(path: &Path) -> Vec<usize> {
    let store = Store::open(path, &StoreOptions::default()).unwrap();
    let fs = store.file_system().unwrap();
    let has = |number: &usize| {
        let name = file_name(*number);
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        fs.lookup(at).is_ok()
    };
    let numbers = (0..400).filter(has).collect();
    fs.close().unwrap();
    store.close().unwrap();
    numbers
}

#[test]
fn damage_in_the_live_end_of_the_log_is_no_torn_write() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let (path, at) = killed_store_in(dir.path());
    damage(&path, at, 16);
    let mount_point = dir.path().join("mnt");
    let words = [
        "mount",
        path.to_str().unwrap(),
        mount_point.to_str().unwrap(),
    ];
    let before = fs::read(&path).unwrap();
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("--drop-log-tail"), "{said}");
    assert!(said.contains("bytes of log"), "{said}");
    assert!(fs::read(&path).unwrap() == before, "-n writes nothing");
    for flag in ["-f", "-y", "-a"] {
        let (code, said) = fsck(flag, &path);
        assert_eq!(code, Some(4), "{flag}: {said}");
        assert!(said.contains("--drop-log-tail"), "{said}");
    }
    let (code, said) = run(&words);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("fsck -y --drop-log-tail"), "{said}");
    assert!(!mount_point.exists(), "nothing was mounted");
    let (code, said) = run(&["fsck", "--drop-log-tail", path.to_str().unwrap()]);
    assert_eq!(code, Some(16), "{said}");
    let (code, said) = run(&["fsck", "-y", "--drop-log-tail", path.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("given up"), "{said}");
    assert_eq!(fsck("-n", &path).0, Some(0));
    let left = numbers_in(&path);
    assert_eq!(left, (0..200).collect::<Vec<_>>());
}

#[test]
fn dropping_the_log_s_tail_drops_nothing_where_nothing_is_damaged() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = killed_store_in(dir.path());
    let (code, said) = run(&["fsck", "-y", "--drop-log-tail", path.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(numbers_in(&path).len(), 400);
}

#[test]
fn one_bad_superblock_is_told_and_written_anew() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = store_in(dir.path());
    for at in [100, 4096 + 100, 0, 4096] {
        damage(&path, at, 8);
        let (code, said) = fsck("-n", &path);
        assert_eq!(code, Some(4), "byte {at}: {said}");
        assert!(said.contains("superblock"), "{said}");
        let flag = if at < 4096 { "-y" } else { "-p" };
        let (code, said) = fsck(flag, &path);
        assert_eq!(code, Some(1), "byte {at}: {said}");
        assert!(said.contains("written anew"), "{said}");
        assert_eq!(fsck("-n", &path).0, Some(0), "byte {at}");
    }
    damage(&path, 100, 8);
    damage(&path, 4096 + 100, 8);
    for flag in ["-n", "-y"] {
        let (code, said) = fsck(flag, &path);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("both copies"), "{said}");
        assert!(said.contains("restore it from a copy"), "{said}");
    }
}

#[test]
fn the_first_block_of_the_version_log_is_written_anew() {
    const VERSION_LOG_AT: u64 = 8192;
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = store_in(dir.path());
    damage(&path, VERSION_LOG_AT, 4096);
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("what it held is known"), "{said}");
    let (code, said) = fsck("-y", &path);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("written anew"), "{said}");
    assert_eq!(fsck("-n", &path).0, Some(0));
}

#[test]
fn a_write_protected_store_is_only_checked() {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let path = store_in(dir.path());
    // Rights do not keep root out.
    let is_root = rustix::process::geteuid().is_root();
    let protect = |flag: &str, mode: &str| {
        let word = if is_root { flag } else { mode };
        let program = if is_root { "chattr" } else { "chmod" };
        let ended = Command::new(program).arg(word).arg(&path).status();
        ended.is_ok_and(|status| status.success())
    };
    if !protect("+i", "a-w") {
        // This file system has no such attribute.
        return;
    }
    let checked = fsck("-n", &path);
    let repaired = ["-y", "-a"].map(|flag| fsck(flag, &path));
    assert!(protect("-i", "u+w"));
    assert_eq!(checked.0, Some(0), "{}", checked.1);
    for (code, said) in repaired {
        assert_eq!(code, Some(8), "{said}");
        assert!(said.contains("write-protected"), "{said}");
        assert!(said.contains("fsck -n"), "{said}");
    }
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
    let text = fsck("-n", &path).1;
    let mut lines = text.lines();
    assert!(
        lines.any(|line| ["    \"/file\"", "    \"/other\""].contains(&line)),
        "{text}"
    );
    let json = run(&["fsck", "-n", "--json", path.to_str().unwrap()]).1;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let lost = json["findings"].as_array().unwrap().iter();
    let mut lost = lost.filter(|finding| finding["paths"] != serde_json::json!([]));
    let lost = lost.next().expect("a finding has a path");
    let name = lost["paths"][0].as_str().unwrap();
    assert!(["/file", "/other"].contains(&name), "{json}");
    assert!(!lost["detail"].as_str().unwrap().contains(name), "{json}");
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
    assert!(error.to_string().contains("is empty"), "{error}");
    drop(store);
    let (code, said) = fsck("-n", &path);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("mkfs --force"), "{said}");
    let forced = MakeOptions {
        force: true,
        ..MakeOptions::default()
    };
    stitchfs::make(&path, &forced, &mut |_, _| {}).unwrap();
    assert_eq!(fsck("-n", &path).0, Some(0));
}
