//! Read-only snapshots of directories.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{
    DirName, FileSystem, FsError, FsResult, RenameMode, SNAPSHOT_NAME_BYTES_MAX, SetAttr,
    SnapshotView, WriteOptions, XattrMode,
};
use stitch_kv::{Engine, KvError};

const LARGE: usize = 100_000;

/// `/d/e` with a small file, a large one and an attribute.
fn grow(setup: &Setup) -> Ino {
    let dir = setup.dir(ROOT, "d");
    let inner = setup.dir(dir.ino, "e");
    let small = setup.file(inner.ino, "small");
    setup.write(small.ino, 0, b"before");
    let large = setup.file(inner.ino, "large");
    setup.write(large.ino, 0, &vec![1; LARGE]);
    setup
        .fs
        .set_xattr(&SUPER, small.ino, b"user.a", b"1", XattrMode::Set, false)
        .expect("the file is there");
    inner.ino
}

/// Overwrites, adds, renames and removes what [`grow`] made.
fn change_all(setup: &Setup, inner: Ino) {
    setup.tick();
    let small = setup.lookup(inner, "small").expect("the file is there").ino;
    setup.write(small, 0, b"AFTER!");
    let large = setup.lookup(inner, "large").expect("the file is there").ino;
    setup.write(large, 10, &vec![2; LARGE / 2]);
    setup
        .fs
        .unlink(&SUPER, at(inner, "large"))
        .expect("the file is there");
    setup.file(inner, "new");
    let perm = Some(0o600);
    let set = SetAttr {
        perm,
        ..SetAttr::default()
    };
    setup
        .fs
        .set_attr(&SUPER, small, &set)
        .expect("the file is there");
    setup
        .fs
        .remove_xattr(&SUPER, small, b"user.a")
        .expect("the file is there");
    let (source, target) = (at(ROOT, "d"), at(ROOT, "moved"));
    setup
        .fs
        .rename(&SUPER, source, target, RenameMode::Replace)
        .expect("the file is there");
}

fn contents(fs: &FileSystem, dir: Ino, name: &str) -> Vec<u8> {
    let attr = fs.lookup(at(dir, name)).expect("the file is there");
    contents_of(fs, attr.ino)
}

/// Expects what [`grow`] made.
fn expect_before(view: &SnapshotView, inner: Ino) {
    let fs = view.fs();
    assert_eq!(view.info().root, inner);
    assert_eq!(names_in(fs, inner), ["large", "small"]);
    assert_eq!(contents(fs, inner, "small"), b"before");
    assert_eq!(contents(fs, inner, "large"), vec![1; LARGE]);
    let small = fs.lookup(at(inner, "small")).expect("the file is there");
    assert_eq!(small.perm, 0o644);
    let value = fs
        .get_xattr(&SUPER, small.ino, b"user.a")
        .expect("the file is there");
    assert_eq!(&value[..], b"1");
}

#[test]
fn it_shows_the_directory_as_it_was_whatever_changes_and_after_a_reopen() {
    let setup = setup();
    let inner = grow(&setup);
    let info = setup.fs.snapshots().create(inner, "mon").unwrap();
    assert_eq!(
        (&info.path[..], info.root, info.owner),
        (&b"d/e"[..], inner, 0)
    );
    change_all(&setup, inner);
    expect_before(&setup.fs.snapshots().open("mon").unwrap(), inner);
    assert_eq!(setup.names(inner), ["new", "small"]);
    setup.check();
    let setup = setup.reopened();
    assert_eq!(setup.fs.snapshots().list().unwrap(), [info]);
    expect_before(&setup.fs.snapshots().open("mon").unwrap(), inner);
    setup.check();
}

#[test]
fn two_snapshots_show_two_moments() {
    let setup = setup();
    let inner = grow(&setup);
    let first = setup.fs.snapshots().create(inner, "first").unwrap();
    change_all(&setup, inner);
    let second = setup.fs.snapshots().create(ROOT, "second").unwrap();
    setup.fs.unlink(&SUPER, at(inner, "new")).unwrap();
    assert_eq!(setup.fs.snapshots().list().unwrap(), [first, second]);
    expect_before(&setup.fs.snapshots().open("first").unwrap(), inner);
    let view = setup.fs.snapshots().open("second").unwrap();
    assert_eq!((view.info().root, &view.info().path[..]), (ROOT, &b""[..]));
    assert_eq!(names_in(view.fs(), ROOT), ["moved"]);
    view.fs().lookup(at(ROOT, "moved")).unwrap();
    view.fs()
        .lookup(DirName::new(Ino(inner.0 - 1), b"e"))
        .unwrap();
    assert_eq!(names_in(view.fs(), inner), ["new", "small"]);
}

#[test]
fn changes_in_it_are_refused() {
    let setup = setup();
    let inner = grow(&setup);
    setup.fs.snapshots().create(inner, "mon").unwrap();
    let view = setup.fs.snapshots().open("mon").unwrap();
    let fs = view.fs();
    let small = fs.lookup(at(inner, "small")).unwrap().ino;
    let is_refused = |result: FsResult<()>| matches!(result, Err(FsError::ReadOnly));
    let write = fs.write(small, 0, b"x", WriteOptions::default());
    assert!(is_refused(write.map(drop)));
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert!(is_refused(fs.set_attr(&SUPER, small, &set).map(drop)));
    assert!(is_refused(
        fs.create(&SUPER, at(inner, "new"), &new(0o644)).map(drop)
    ));
    assert!(is_refused(fs.unlink(&SUPER, at(inner, "small"))));
    assert!(is_refused(fs.snapshots().create(inner, "again").map(drop)));
    assert!(is_refused(fs.snapshots().delete("mon")));
    fs.close().unwrap();
    expect_before(&view, inner);
}

#[test]
fn a_deleted_one_frees_its_name_and_is_readable_where_it_is_open() {
    let setup = setup();
    let inner = grow(&setup);
    setup.fs.snapshots().create(inner, "mon").unwrap();
    let open = setup.fs.snapshots().open("mon").unwrap();
    change_all(&setup, inner);
    setup.fs.snapshots().delete("mon").unwrap();
    expect_before(&open, inner);
    assert!(matches!(
        setup.fs.snapshots().open("mon"),
        Err(FsError::NotFound)
    ));
    assert!(matches!(
        setup.fs.snapshots().delete("mon"),
        Err(FsError::NotFound)
    ));
    let again = setup.fs.snapshots().create(inner, "mon").unwrap();
    assert!(again.id > open.info().id, "numbers are not used again");
    assert_eq!(again.path, b"moved/e");
}

#[test]
fn only_directories_with_a_name_have_one() {
    let setup = setup();
    let file = setup.file(ROOT, "file").ino;
    let refused = setup.fs.snapshots().create(file, "x");
    assert!(matches!(refused, Err(FsError::NotDir)), "{refused:?}");
    let gone = setup.dir(ROOT, "gone").ino;
    setup.fs.remove_dir(&SUPER, at(ROOT, "gone")).unwrap();
    let refused = setup.fs.snapshots().create(gone, "x");
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    let refused = setup.fs.snapshots().create(Ino(999), "x");
    assert!(matches!(refused, Err(FsError::Stale(_))), "{refused:?}");
    assert_eq!(setup.fs.snapshots().list().unwrap(), []);
}

#[test]
fn names_are_checked_and_taken_once() {
    let setup = setup();
    for name in ["", ".", "..", "a/b", "a\0"] {
        let refused = setup.fs.snapshots().create(ROOT, name);
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{name:?}");
    }
    let longest = "x".repeat(SNAPSHOT_NAME_BYTES_MAX);
    setup.fs.snapshots().create(ROOT, &longest).unwrap();
    let refused = setup.fs.snapshots().create(ROOT, &(longest + "x"));
    assert!(matches!(refused, Err(FsError::NameTooLong)));
    setup.fs.snapshots().create(ROOT, "\u{e9}").unwrap();
    assert!(matches!(
        setup.fs.snapshots().create(ROOT, "\u{e9}"),
        Err(FsError::Exists)
    ));
}

#[test]
fn one_below_a_closed_directory_is_private() {
    let setup = setup();
    let inner = grow(&setup);
    setup.fs.snapshots().create(inner, "open").unwrap();
    let dir = setup.lookup(ROOT, "d").unwrap().ino;
    let set = SetAttr {
        perm: Some(0o750),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, dir, &set).unwrap();
    setup.fs.snapshots().create(inner, "closed").unwrap();
    setup.fs.snapshots().create(dir, "itself").unwrap();
    let is_private = |name| setup.fs.snapshots().open(name).unwrap().is_private();
    assert!(!is_private("open"), "as it was then");
    assert!(is_private("closed"));
    assert!(!is_private("itself"), "its own mode counts inside");
}

#[test]
fn pins_of_others_are_no_snapshots_and_damaged_ones_can_be_deleted() {
    let setup = setup();
    setup.engine.create_pin("other", b"").unwrap();
    setup.engine.create_pin("fs/damaged", b"no record").unwrap();
    assert_eq!(setup.fs.snapshots().list().unwrap(), []);
    assert!(matches!(
        setup.fs.snapshots().open("damaged"),
        Err(FsError::NotFound)
    ));
    setup.fs.snapshots().delete("damaged").unwrap();
    let pins = setup.engine.pins().unwrap();
    assert_eq!(pins.len(), 1);
    assert!(matches!(
        setup.engine.open_pin("fs/damaged"),
        Err(KvError::PinNotFound(_))
    ));
}

#[test]
fn a_store_with_large_files_beside_it_takes_none() {
    let setup = setup_external();
    large(&setup, "large");
    let refused = setup.fs.snapshots().create(ROOT, "x");
    assert!(matches!(refused, Err(FsError::Unsupported)), "{refused:?}");
}
