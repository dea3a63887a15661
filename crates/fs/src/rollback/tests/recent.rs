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
    open_with(&model, options)
}

/// Changes a directory after a snapshot, and checks that a rollback restores all of it.
fn assert_restored(tester: Tester, dir: Ino, change: impl Fn(&Tester)) {
    let before = tester.listing(dir);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    change(&tester);
    assert_ne!(tester.listing(dir), before);
    tester.fs.roll_back("mon", dir, ANY).unwrap();
    assert_eq!(tester.listing(dir), before);
    tester.check();
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
    assert_restored(tester, dir, |tester| {
        tester.overwrite(dir, "small", b"AFTER!");
        tester.overwrite(dir, "large", &[2; 100_000]);
    });
}

#[test]
fn one_byte_of_a_shared_file_is_restored() {
    let tester = at_one_time();
    let dir = grow(&tester);
    tester.file(dir, "source", &vec![1; LARGE]);
    tester.copy(dir, "source", "copy");
    assert_restored(tester, dir, |tester| {
        tester.overwrite(dir, "copy", b"2");
    });
}

#[test]
fn attributes_of_the_same_length_and_times_are_restored() {
    let tester = at_one_time();
    let dir = grow(&tester);
    let linked = tester.find(dir, "linked").unwrap();
    tester.fs.lookup(DirName::new(dir, b"linked")).unwrap();
    tester.fs.snapshots().create(dir, "mon").unwrap();
    set_xattr(&tester, linked, b"2");
    tester.fs.roll_back("mon", dir, ANY).unwrap();
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
    tester.fs.snapshots().create(dir, "mon").unwrap();
    let done = tester.fs.roll_back("mon", dir, owned_by(4711)).unwrap();
    assert!(done.names.is_empty() && done.inodes.is_empty(), "{done:?}");
    assert_eq!(tester.listing(dir), before);
    tester.check();
}
