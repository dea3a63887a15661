//! Changes right before the snapshot and right after it have the same times.

use super::*;
use crate::testing::SetClock;

/// A file system whose clock stands still.
fn at_one_time() -> Tester {
    let clock = Arc::new(SetClock::default());
    clock.set(1_000_000);
    let options = FsOptions {
        clock,
        ..FsOptions::default()
    };
    let model = crate::testing::formatted(&options);
    let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
    let fs = FileSystem::open(engine, options).expect("it opens");
    let fs = Arc::new(fs);
    Tester { fs, model }
}

fn xattr(tester: &Tester, ino: Ino) -> Vec<u8> {
    let value = tester.fs.get_xattr(&SUPER, ino, b"user.a");
    value.expect("it is set").to_vec()
}

fn set_xattr(tester: &Tester, ino: Ino, value: &[u8]) {
    let mode = XattrMode::Set;
    let set = tester
        .fs
        .set_xattr(&SUPER, ino, b"user.a", value, mode, false);
    set.expect("it is set");
}

#[test]
fn contents_of_the_same_length_and_times_are_restored() {
    let tester = at_one_time();
    let dir = grow(&tester);
    let before = tester.listing(dir);
    tester.fs.create_snapshot(dir, "mon").unwrap();
    tester.overwrite(dir, "small", b"AFTER!");
    tester.overwrite(dir, "large", &[2; 100_000]);
    assert_ne!(tester.listing(dir), before);
    tester.fs.roll_back("mon", dir, None).unwrap();
    assert_eq!(tester.listing(dir), before);
    tester.check();
}

#[test]
fn one_byte_of_a_shared_file_is_restored() {
    let tester = at_one_time();
    let dir = grow(&tester);
    tester.file(dir, "source", &vec![1; LARGE]);
    tester.copy(dir, "source", "copy");
    let before = tester.listing(dir);
    tester.fs.create_snapshot(dir, "mon").unwrap();
    tester.overwrite(dir, "copy", b"2");
    assert_ne!(tester.listing(dir), before);
    tester.fs.roll_back("mon", dir, None).unwrap();
    assert_eq!(tester.listing(dir), before);
    tester.check();
}

#[test]
fn attributes_of_the_same_length_and_times_are_restored() {
    let tester = at_one_time();
    let dir = grow(&tester);
    let linked = tester.find(dir, "linked").unwrap();
    tester.fs.lookup(DirName::new(dir, b"linked")).unwrap();
    tester.fs.create_snapshot(dir, "mon").unwrap();
    set_xattr(&tester, linked, b"2");
    tester.fs.roll_back("mon", dir, None).unwrap();
    assert_eq!(xattr(&tester, linked), b"1");
    tester.check();
}

#[test]
fn what_did_not_change_is_not_written_and_may_be_of_another_owner() {
    let tester = at_one_time();
    let dir = grow(&tester);
    tester.file(dir, "source", &vec![1; LARGE]);
    tester.copy(dir, "source", "copy");
    let before = tester.listing(dir);
    tester.fs.create_snapshot(dir, "mon").unwrap();
    let done = tester.fs.roll_back("mon", dir, Some(4711)).unwrap();
    assert!(done.names.is_empty() && done.inodes.is_empty(), "{done:?}");
    assert_eq!(tester.listing(dir), before);
    tester.check();
}
