//! Large files beside the store, where calls on them or commits about them fail.

use crate::common::*;
use stitch_base::{ErrorKind, Ino};
use stitch_fs::{ExternalFiles, ExternalName, FileSystem, PlainFault, WriteOptions};
use stitch_kv::CommitFault;

fn write(fs: &FileSystem, ino: Ino, at: u64) -> Result<(), ErrorKind> {
    let written = fs.write(ino, at, &[8; 3000], WriteOptions::default());
    written.map(drop).map_err(|error| error.kind())
}

/// It was taken to be as long as the write would have made it, and then for damaged.
#[test]
fn a_file_whose_length_cannot_be_told_is_read_and_takes_no_more_writes() {
    let setup = setup_external();
    let ino = large(&setup, "f");
    cut(&setup, ino, 40_000).unwrap();
    for op in ["write", "open"] {
        files(&setup).fail(op, Some(ErrorKind::Io));
    }
    assert_eq!(write(&setup.fs, ino, 30_000), Err(ErrorKind::Io));
    for op in ["write", "open"] {
        files(&setup).fail(op, None);
    }
    let mut expected = vec![7; 20_000];
    expected.resize(40_000, 0);
    assert_eq!(setup.contents(ino), expected);
    assert_eq!(write(&setup.fs, ino, 0), Err(ErrorKind::Poisoned));
    assert!(setup.fs.sync_inode(ino).is_err());
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    assert_eq!(setup.contents(ino), expected);
    write(&setup.fs, ino, 0).unwrap();
    setup.fs.sync().unwrap();
    setup.check();
}

/// Each sync reports the files that failed before it, with a kind of its own: a background sync
/// tells old failures from new ones by it.
#[test]
fn a_sync_that_failed_is_told_apart_from_one_that_fails_now() {
    let setup = setup_external();
    let (old, new) = (large(&setup, "old"), large(&setup, "new"));
    write(&setup.fs, old, 0).unwrap();
    files(&setup).fail("sync", Some(ErrorKind::Io));
    assert_eq!(setup.fs.sync_inode(old).unwrap_err().kind(), ErrorKind::Io);
    write(&setup.fs, new, 0).unwrap();
    assert_eq!(setup.fs.sync().unwrap_err().kind(), ErrorKind::Io);
    files(&setup).fail("sync", None);
    assert_eq!(setup.fs.sync().unwrap_err().kind(), ErrorKind::Poisoned);
}

/// What was synced and then cut counted twice, for as long as the store was open.
#[test]
fn a_cut_of_a_file_that_was_not_read_is_counted() {
    let setup = setup_external();
    large(&setup, "f");
    setup.fs.sync().unwrap();
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    assert_eq!(setup.fs.external_usage(), (1, 20_000));
    cut(&setup, ino, 5000).unwrap();
    assert_eq!(setup.contents(ino), [7; 5000]);
    setup.fs.sync().unwrap();
    assert_eq!(setup.fs.external_usage(), (1, 5000));
    cut(&setup, ino, 0).unwrap();
    assert_eq!(setup.fs.external_usage(), (0, 0));
}

#[test]
fn a_plain_file_that_cannot_be_removed_stays_and_the_store_opens() {
    let setup = setup_external();
    large(&setup, "f");
    let known = files(&setup).list().unwrap()[0];
    let left = ExternalName {
        number: known.0.number - 1,
        ..known.0
    };
    files(&setup).create(left).unwrap();
    files(&setup).fail("remove", Some(ErrorKind::Io));
    let setup = setup.reopened();
    assert_eq!(files(&setup).list().unwrap().len(), 2);
    files(&setup).fail("remove", None);
    let setup = setup.reopened();
    assert_eq!(files(&setup).list().unwrap(), [known]);
    setup.check();
}

/// A call that fails may have been done.
#[test]
fn a_lent_file_that_could_not_grow_is_as_long_as_it_says() {
    for seed in 0..8 {
        let setup = setup_external();
        let ino = large(&setup, "f");
        let name = setup.fs.lend(ino).unwrap().expect("it is lent");
        files(&setup).add_fault(PlainFault {
            op: Some("cut"),
            nth: 1,
            count: 1,
            kind: ErrorKind::Io,
            seed,
            is_hidden: false,
        });
        let grown = cut(&setup, ino, 50_000);
        assert_eq!(grown.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(files(&setup).len(name).unwrap(), 20_000, "seed {seed}");
        assert_eq!(setup.attr(ino).size, 20_000);
    }
}

/// A file of 8000 bytes, which is not large yet.
fn small(setup: &Setup, name: &str) -> Ino {
    let ino = setup.file(ROOT, name).ino;
    setup.write(ino, 0, &[7; 8000]);
    ino
}

/// The batch that says that the contents are a plain file is there when the store is opened again,
/// and so must be the plain file.
#[test]
fn a_file_that_has_left_in_a_commit_that_fails_is_there() {
    let setup = setup_external();
    let ino = small(&setup, "f");
    setup.engine.fail_commits(CommitFault::Done, u32::MAX);
    assert_eq!(write(&setup.fs, ino, 8000), Err(ErrorKind::Io));
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    assert_eq!(setup.contents(ino), [7; 8000]);
    setup.check();
}

/// It was as if the file had not been known before.
#[test]
fn a_file_that_could_not_be_cut_to_nothing_is_as_it_was() {
    let setup = setup_external();
    let (fs, ino) = (&setup.fs, small(&setup, "f"));
    write(fs, ino, 8000).unwrap();
    files(&setup).fail("sync", Some(ErrorKind::Io));
    assert_eq!(fs.sync_inode(ino).unwrap_err().kind(), ErrorKind::Io);
    files(&setup).fail("sync", None);
    setup.engine.fail_commits(CommitFault::Full, u32::MAX);
    let refused = cut(&setup, ino, 0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    setup.engine.mend_commits();
    assert_eq!(write(fs, ino, 0), Err(ErrorKind::Poisoned));
    assert_eq!(fs.external_usage(), (1, 11_000));
    cut(&setup, ino, 0).unwrap();
    assert_eq!(fs.external_usage(), (0, 0));
    write(fs, ino, 0).unwrap();
}
