//! Plain files that the kernel reads without us.

use crate::common::*;
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_fs::{ExternalFiles, ExternalName, FallocateMode, FsError, WriteOptions};

/// A file of 20,000 bytes beside the store, lent.
fn lent(setup: &Setup) -> (Ino, ExternalName) {
    let ino = large(setup, "f");
    let lent = setup.fs.lend(ino).expect("it can be lent");
    (ino, lent.expect("it is external"))
}

/// What a process reads that has the plain file open.
fn beside(setup: &Setup, name: ExternalName) -> Vec<u8> {
    let mut out = Vec::new();
    let read = files(setup).read_at(name, 0, 1 << 20, &mut out);
    read.expect("it is there");
    out
}

#[test]
fn only_external_files_are_lent() {
    let setup = setup_external();
    let small = setup.file(ROOT, "small").ino;
    setup.write(small, 0, &[1; 5000]);
    assert_eq!(setup.fs.lend(small).unwrap(), None);
    let (ino, name) = lent(&setup);
    assert_eq!(setup.fs.lend(ino).unwrap(), Some(name), "again");
    assert_eq!(beside(&setup, name), [7; 20_000]);
}

#[test]
fn a_lent_file_is_as_long_as_it_says_and_stays_when_it_is_cut_to_nothing() {
    let setup = setup_external();
    let (ino, name) = lent(&setup);
    cut(&setup, ino, 9000).unwrap();
    assert_eq!(beside(&setup, name), [7; 9000]);
    cut(&setup, ino, 30_000).unwrap();
    let mut expected = vec![7; 9000];
    expected.resize(30_000, 0);
    assert_eq!(beside(&setup, name), expected);
    cut(&setup, ino, 0).unwrap();
    assert_eq!(beside(&setup, name), []);
    setup.write(ino, 0, b"new");
    assert_eq!(beside(&setup, name), b"new");
    setup.check();
    setup.fs.take_back(ino);
    cut(&setup, ino, 0).unwrap();
    setup.fs.sync().unwrap();
    assert_eq!(files(&setup).list().unwrap(), []);
    setup.check();
}

#[test]
fn a_file_that_ends_in_a_hole_gets_its_length_when_it_is_lent() {
    let setup = setup_external();
    let ino = setup.file(ROOT, "f").ino;
    setup.write(ino, 0, &[7; 9000]);
    cut(&setup, ino, 50_000).unwrap();
    let name = setup.fs.lend(ino).unwrap().expect("it is external");
    assert_eq!(beside(&setup, name).len(), 50_000);
    assert_eq!(setup.contents(ino), beside(&setup, name));
}

#[test]
fn a_file_that_was_cut_is_lent_once_its_plain_file_is() {
    let setup = setup_external();
    let ino = setup.file(ROOT, "f").ino;
    setup.write(ino, 0, &[7; 20_000]);
    cut(&setup, ino, 9000).unwrap();
    assert_eq!(setup.fs.lend(ino).unwrap(), None);
    setup.fs.sync().unwrap();
    assert!(setup.fs.lend(ino).unwrap().is_some());
}

#[test]
fn what_could_not_be_written_is_not_seen() {
    let setup = setup_external();
    let (ino, name) = lent(&setup);
    files(&setup).set_room(Some(25_000));
    let written = setup
        .fs
        .write(ino, 20_000, &[9; 10_000], WriteOptions::default());
    assert!(matches!(written, Err(FsError::NoSpace)), "{written:?}");
    assert_eq!(beside(&setup, name), [7; 20_000]);
    files(&setup).set_room(None);
    files(&setup).fail("cut", Some(stitch_base::ErrorKind::Io));
    assert!(cut(&setup, ino, 50_000).is_err(), "it cannot grow");
    assert_eq!(setup.attr(ino).size, 20_000);
}

#[test]
fn a_lent_file_lives_as_long_as_its_inode_is_known() {
    let setup = setup_external();
    let (ino, name) = lent(&setup);
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    setup.fs.sync().unwrap();
    assert_eq!(beside(&setup, name), [7; 20_000]);
    setup.fs.forget(ino, 1);
    assert!(!setup.fs.knows(ino));
    setup.fs.take_back(ino);
    setup.fs.sync().unwrap();
    assert_eq!(files(&setup).list().unwrap(), []);
}

#[test]
fn changes_through_a_mapping_move_the_times_and_are_synced() {
    let setup = setup_external();
    let (ino, name) = lent(&setup);
    setup.fs.sync().unwrap();
    setup.fs.lend_to_writer(ino).unwrap();
    let before = setup.attr(ino);
    setup.tick();
    assert!(!setup.fs.note_mapped_writes(ino).unwrap());
    setup.write(ino, 5, b"ours");
    assert!(!setup.fs.note_mapped_writes(ino).unwrap(), "it is ours");
    setup.tick();
    files(&setup).write_at(name, 100, b"theirs").unwrap();
    assert!(setup.fs.has_unsettled_files());
    setup.fs.sync_inode(ino).unwrap();
    let after = setup.attr(ino);
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    let durable = files(&setup).freeze().cut(&mut Rng::new(1));
    let mut out = Vec::new();
    durable.read_at(name, 100, 6, &mut out).unwrap();
    assert_eq!(out, b"theirs");
    // It could be changed again at any time, until it is taken back.
    assert!(setup.fs.has_unsettled_files());
    setup.fs.take_back(ino);
    setup.fs.sync().unwrap();
    assert!(!setup.fs.has_unsettled_files());
}

/// Any operation, and the plain file is the file.
#[test]
fn whatever_is_done_the_plain_file_has_the_contents() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let setup = setup_external();
        let (ino, name) = lent(&setup);
        let other = setup.file(ROOT, "other").ino;
        setup.write(other, 0, &[5; 30_000]);
        for round in 0..100_u8 {
            let (offset, len) = (rng.below(40_000), 1 + rng.below(9000));
            let allocate = |mode| setup.fs.fallocate(ino, mode, offset, len).map(drop);
            let done = match rng.below(8) {
                0 | 1 => {
                    let data = vec![round; usize::try_from(len).unwrap()];
                    setup.write(ino, offset, &data);
                    Ok(())
                }
                2 => cut(&setup, ino, offset),
                3 => cut(
                    &setup,
                    ino,
                    [0, 1, 4096][usize::try_from(rng.below(3)).unwrap()],
                ),
                4 => allocate(FallocateMode::PunchHole),
                5 => allocate(FallocateMode::ZeroRange { keep_size: false }),
                6 => allocate(FallocateMode::Allocate { keep_size: false }),
                _ => setup
                    .fs
                    .copy_range((other, rng.below(30_000)), (ino, offset), len)
                    .map(drop),
            };
            done.unwrap();
            if rng.one_in(20) {
                setup.fs.sync().unwrap();
            }
            let contents = beside(&setup, name);
            assert!(
                contents == setup.contents(ino),
                "seed {seed}, round {round}"
            );
        }
        setup.check();
        let cut = files(&setup).freeze().kill();
        let engine = std::sync::Arc::new(setup.engine.reopened());
        let expected = setup.contents(ino);
        let setup = external_on(engine, cut);
        assert_eq!(setup.lookup(ROOT, "f").unwrap().ino, ino);
        assert!(setup.contents(ino) == expected, "seed {seed}");
        setup.check();
    }
}
