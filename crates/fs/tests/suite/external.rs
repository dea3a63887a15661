//! Large files beside the store.

use crate::common::*;
use std::sync::Arc;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_fs::fsck::{self, Issue};
use stitch_fs::{
    ExternalFiles, ExternalName, FallocateMode, FileSystem, FsError, FsOptions, MemFiles,
    RenameMode, SeekFor, WriteOptions,
};
use stitch_kv::Engine;

fn list(setup: &Setup) -> Vec<(ExternalName, u64)> {
    files(setup).list().expect("lists")
}

#[test]
fn a_file_leaves_the_store_when_it_outgrows_the_threshold() {
    let setup = setup_external();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[1; 8192]);
    assert_eq!((setup.rows("data"), list(&setup).len()), (2, 0));
    setup.write(file.ino, 8192, &[2]);
    assert_eq!((setup.rows("data"), list(&setup).len()), (0, 1));
    let mut expected = vec![1; 8192];
    expected.push(2);
    assert_eq!(setup.contents(file.ino), expected);
    assert_eq!(setup.attr(file.ino).blocks, 24);
    assert_eq!(setup.fs.external_usage(), (1, 8193));
    setup.check();
    cut(&setup, file.ino, 100).expect("cuts");
    assert_eq!(list(&setup).len(), 1, "it stays there");
    cut(&setup, file.ino, 0).expect("cuts");
    setup.fs.sync().unwrap();
    assert_eq!(setup.fs.external_usage(), (0, 0));
    assert_eq!(list(&setup), []);
    setup.check();
}

#[test]
fn what_is_large_already_stays_inside() {
    let setup = setup_on(Arc::new(stitch_kv::ModelEngine::new(registry())), |_| {});
    let ino = large(&setup, "f");
    setup.fs.close().unwrap();
    let setup = external_on(Arc::new(setup.engine.reopened()), MemFiles::new());
    assert_eq!(setup.lookup(ROOT, "f").unwrap().ino, ino);
    setup.write(ino, 20_000, &[8; 20_000]);
    assert_eq!(list(&setup), []);
}

#[test]
fn nothing_that_was_cut_comes_back() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    cut(&setup, ino, 9000).expect("cuts");
    cut(&setup, ino, 18_000).expect("cuts");
    let mut expected = vec![7; 9000];
    expected.resize(18_000, 0);
    assert_eq!(setup.contents(ino), expected);
    cut(&setup, ino, 9000).expect("cuts");
    setup.write(ino, 12_000, &[9]);
    expected[12_000] = 9;
    assert_eq!(setup.contents(ino), expected[..12_001]);
}

#[test]
fn names_move_and_removed_trees_take_plain_files_along() {
    let setup = setup_external();
    let dir = setup.dir(ROOT, "d").ino;
    let ino = large(&setup, "f");
    let (from, to) = (at(ROOT, "f"), at(dir, "g"));
    setup
        .fs
        .rename(&SUPER, from, to, RenameMode::Replace)
        .unwrap();
    setup.fs.link(&SUPER, ino, at(dir, "h")).unwrap();
    assert_eq!(setup.contents(ino), [7; 20_000]);
    setup.fs.forget(ino, 2);
    setup.fs.remove_tree(&SUPER, at(ROOT, "d"), None).unwrap();
    while setup.fs.detached_dirs() > 0 && setup.fs.empty_detached(10).unwrap() > 0 {}
    setup.fs.forget(dir, 1);
    setup.fs.sync().unwrap();
    assert_eq!(list(&setup), []);
}

#[test]
fn an_unlinked_file_lives_until_it_is_forgotten() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    setup.write(ino, 30_000, &[1]);
    assert_eq!(setup.contents(ino).len(), 30_001);
    setup.fs.sync().unwrap();
    assert_eq!(list(&setup).len(), 1);
    setup.fs.forget(ino, 1);
    setup.fs.sync().unwrap();
    assert_eq!(list(&setup), []);
    setup.check();
}

#[test]
fn a_file_without_a_name_can_be_large_and_named() {
    let setup = setup_external();
    let ino = setup
        .fs
        .make_temp_file(&SUPER, ROOT, &new(0o600))
        .unwrap()
        .ino;
    setup.write(ino, 0, &[3; 10_000]);
    setup.fs.link(&SUPER, ino, at(ROOT, "f")).unwrap();
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    assert_eq!(setup.contents(ino), [3; 10_000]);
    setup.check();
}

#[test]
fn holes_are_punched_and_found() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    let punch = FallocateMode::PunchHole;
    setup.fs.fallocate(ino, punch, 4096, 8192).unwrap();
    let mut expected = vec![7; 20_000];
    expected[4096..12_288].fill(0);
    assert_eq!(setup.contents(ino), expected);
    assert_eq!(setup.fs.seek(ino, 0, SeekFor::Hole).unwrap(), 4096);
    assert_eq!(setup.fs.seek(ino, 4096, SeekFor::Data).unwrap(), 12_288);
    assert_eq!(setup.attr(ino).blocks, 24);
    cut(&setup, ino, 1 << 40).expect("cuts");
    assert_eq!(setup.fs.seek(ino, 19_000, SeekFor::Hole).unwrap(), 20_000);
    let beyond = setup.fs.seek(ino, 30_000, SeekFor::Data);
    assert!(matches!(beyond, Err(FsError::NoSeekTarget)));
    setup.check();
}

#[test]
fn errors_of_plain_files_are_errors_of_the_operation() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    let plain = files(&setup);
    plain.set_room(Some(25_000));
    let full = setup
        .fs
        .write(ino, 20_000, &[1; 9000], WriteOptions::default());
    assert!(matches!(full, Err(FsError::NoSpace)));
    plain.set_room(None);
    assert_eq!(setup.contents(ino), [7; 20_000]);
    plain.fail("read", Some(ErrorKind::Io));
    let read = setup.fs.read(ino, 0, 10, &mut Vec::new());
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Io);
    plain.fail("read", None);
    setup.write(ino, 0, &[8]);
    plain.fail("sync", Some(ErrorKind::Io));
    assert!(setup.fs.sync_inode(ino).is_err());
    plain.fail("sync", None);
    assert!(
        setup.fs.sync_inode(ino).is_err(),
        "a failed sync stays failed"
    );
    assert!(
        setup
            .fs
            .write(ino, 0, &[9], WriteOptions::default())
            .is_err()
    );
    assert_eq!(setup.read(ino, 0, 2), [8, 7]);
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    setup.fs.sync_inode(ino).unwrap();
    setup.check();
}

#[test]
fn space_of_files_that_are_gone_is_used_before_a_write_is_refused() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    setup.fs.forget(ino, 1);
    setup.fs.reclaim().unwrap();
    files(&setup).set_room(Some(30_000));
    large(&setup, "g");
    let before = setup.lookup(ROOT, "g").unwrap().ino;
    setup.write(before, 20_000, &[1; 5000]);
    assert_eq!(list(&setup).len(), 1);
}

/// What leaves the store is written, and so is what is allocated, in room that forgotten files
/// still have.
#[test]
fn space_of_files_that_are_forgotten_is_used_by_what_becomes_large() {
    let setup = setup_external();
    let forgotten = |name: &str| {
        let ino = large(&setup, name);
        setup.fs.unlink(&SUPER, at(ROOT, name)).unwrap();
        setup.fs.forget(ino, 1);
    };
    forgotten("f");
    let ino = setup.file(ROOT, "g").ino;
    setup.write(ino, 0, &[1; 8000]);
    files(&setup).set_room(Some(25_000));
    setup.write(ino, 8000, &[1; 8000]);
    assert_eq!(setup.contents(ino), [1; 16_000]);
    assert_eq!(list(&setup).len(), 1);

    files(&setup).set_room(None);
    forgotten("h");
    files(&setup).set_room(Some(36_500));
    let mode = FallocateMode::Allocate { keep_size: false };
    setup.fs.fallocate(ino, mode, 16_000, 18_000).unwrap();
    assert_eq!(list(&setup).len(), 1);
    setup.check();
}

/// The host allocates, and what it refuses is refused.
#[test]
fn allocating_in_a_plain_file_is_for_the_host() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    let grow = FallocateMode::Allocate { keep_size: false };
    let allocate = |offset, len| setup.fs.fallocate(ino, grow, offset, len);
    files(&setup).fail("allocate", Some(ErrorKind::NoSpace));
    let refused = allocate(0, 1 << 20);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(setup.attr(ino).size, 20_000);
    files(&setup).fail("allocate", None);
    let attr = allocate(0, 1 << 20).expect("there is room");
    assert_eq!((attr.size, attr.blocks), (1 << 20, 2048));
    let attr = setup.write(ino, 500_000, &[1; 9000]);
    assert_eq!(attr.blocks, 2048, "a write adds none");
    setup.check();
    // What a file has allocated goes with it when it leaves the store.
    let leaving = setup.file(ROOT, "leaving").ino;
    let keep = FallocateMode::Allocate { keep_size: true };
    setup.fs.fallocate(leaving, keep, 0, 1 << 20).expect("fits");
    files(&setup).fail("allocate", Some(ErrorKind::NoSpace));
    let options = WriteOptions::default();
    let refused = setup.fs.write(leaving, 0, &[1; 9000], options);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(setup.attr(leaving).blocks, 2048);
    setup.check();
    files(&setup).fail("allocate", None);
    setup.write(leaving, 0, &[1; 9000]);
    assert_eq!(setup.contents(leaving), [1; 9000]);
    setup.check();
}

/// The host's limits of a file are told as such, and what was asked has done nothing.
#[test]
fn what_is_too_long_for_the_host_is_too_long() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    files(&setup).fail("write", Some(ErrorKind::Invalid));
    let written = setup
        .fs
        .write(ino, 20_000, &[1; 9000], WriteOptions::default());
    assert!(matches!(written, Err(FsError::FileTooBig)), "{written:?}");
    files(&setup).fail("write", None);
    assert_eq!(setup.contents(ino), [7; 20_000]);
    setup.check();
}

#[test]
fn space_beside_the_store_is_counted() {
    let setup = setup_external();
    files(&setup).set_room(Some(1 << 20));
    let before = setup.fs.stat_fs().unwrap();
    large(&setup, "f");
    let after = setup.fs.stat_fs().unwrap();
    let used = before.blocks_free - after.blocks_free;
    assert!((4..=6).contains(&used), "{used} blocks");
    assert!(before.blocks.abs_diff(after.blocks) <= 1, "the sum stays");
}

#[test]
fn what_no_row_names_goes_at_the_next_open_and_nothing_else() {
    let setup = setup_external();
    large(&setup, "f");
    let plain = files(&setup);
    let known = list(&setup)[0].0;
    let left = ExternalName {
        number: known.number - 1,
        ..known
    };
    let foreign = ExternalName {
        number: 1 << 40,
        ..known
    };
    plain.create(left).unwrap();
    plain.create(foreign).unwrap();
    let extra = |issue: &Issue| matches!(issue, Issue::ExtraPlainFile { .. });
    assert_eq!(
        setup.issues().iter().filter(|issue| extra(issue)).count(),
        2
    );
    let setup = setup.reopened();
    assert_eq!(list(&setup), [(known, 20_000)]);
    setup.check();
}

#[test]
fn a_store_with_such_files_does_not_open_without_their_folder() {
    let setup = setup_external();
    let dynamic: Arc<dyn Engine> = setup.engine.clone();
    assert!(!stitch_fs::has_external_files(&dynamic).unwrap());
    large(&setup, "f");
    assert!(stitch_fs::has_external_files(&dynamic).unwrap());
    setup.fs.close().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(setup.engine.reopened());
    let opened = FileSystem::open(engine, FsOptions::default());
    assert!(matches!(opened, Err(FsError::NoFolder)));
}

#[test]
fn missing_and_short_plain_files_are_found_and_never_read_as_zeros() {
    let setup = setup_external();
    let (lost, short) = (large(&setup, "lost"), large(&setup, "short"));
    setup.fs.close().unwrap();
    let plain = files(&setup);
    for (name, _) in list(&setup) {
        match name.ino {
            ino if ino == lost => plain.remove(name).unwrap(),
            _ => plain.set_len(name, 500).unwrap(),
        }
    }
    let setup = setup.reopened();
    setup.lookup(ROOT, "lost").unwrap();
    setup.lookup(ROOT, "short").unwrap();
    for ino in [lost, short] {
        let read = setup.fs.read(ino, 0, 10, &mut Vec::new()).unwrap_err();
        assert!(
            matches!(read.kind(), ErrorKind::Io | ErrorKind::Corrupt),
            "{read}"
        );
    }
    let issues = setup.issues();
    assert!(matches!(
        issues[..],
        [
            Issue::MissingPlainFile { .. },
            Issue::ShortPlainFile { len: 500, .. }
        ]
    ));
    assert!(!issues[0].is_repairable() && issues[1].is_repairable());
    let dynamic: Arc<dyn Engine> = setup.engine.clone();
    assert_eq!(
        fsck::repair_with_files(&dynamic, Some(&plain), &issues).unwrap(),
        1
    );
    let setup = setup.reopened();
    setup.lookup(ROOT, "short").unwrap();
    assert_eq!(setup.contents(short)[..501], [&[7; 500][..], &[0]].concat());
    setup.fs.unlink(&SUPER, at(ROOT, "lost")).unwrap();
    setup.fs.sync().unwrap();
    setup.check();
}

#[test]
fn a_power_cut_leaves_what_was_synced() {
    for seed in 0..50 {
        let setup = setup_external();
        let ino = large(&setup, "f");
        setup.fs.sync_inode(ino).unwrap();
        setup.write(ino, 20_000, &[8; 20_000]);
        let left = files(&setup).freeze().cut(&mut Rng::new(seed));
        // Of the rows everything is left, of the plain file what was synced.
        let setup = external_on(Arc::new(setup.engine.reopened()), left);
        let ino = setup.lookup(ROOT, "f").unwrap().ino;
        let contents = setup.contents(ino);
        assert_eq!(contents.len(), 40_000);
        assert_eq!(contents[..20_000], [7; 20_000]);
        assert!(contents[20_000..].iter().all(|byte| [0, 8].contains(byte)));
        setup.check();
    }
}
