//! Modes, owners, times, flags and access.

use crate::common::*;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_fs::{
    AtimePolicy, Caller, ClearSetId, FallocateMode, FileSystem, FsError, RenameMode, SetAttr,
    SetTime, WriteOptions, XattrMode, access_mask, inode_flag,
};

const OTHER: Caller<'static> = Caller {
    uid: 2000,
    gid: 2000,
    groups: &[],
};

#[test]
fn attributes_stay_after_reopening() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.tick();
    let set = SetAttr {
        perm: Some(0o4711),
        uid: Some(5),
        gid: Some(6),
        atime: Some(SetTime::At(Timestamp(-1))),
        mtime: Some(SetTime::At(Timestamp(i64::MAX))),
        ..SetAttr::default()
    };
    let changed = setup.fs.set_attr(&SUPER, file.ino, &set).unwrap();
    assert_eq!((changed.perm, changed.uid, changed.gid), (0o4711, 5, 6));
    assert_eq!((changed.atime.0, changed.mtime.0), (-1, i64::MAX));
    assert!(changed.ctime > file.ctime);
    assert_eq!(changed.btime, file.btime);
    assert_eq!(setup.reopened().lookup(ROOT, "f").unwrap(), changed);
}

#[test]
fn attributes_are_set_and_read_by_name() {
    let setup = setup();
    let fs = &setup.fs;
    let dir = setup.dir(ROOT, "d");
    let file = setup.file(dir.ino, "f");
    setup.write(file.ino, 0, b"behind the head");
    let linked = fs.link(&SUPER, file.ino, at(ROOT, "l")).unwrap();
    let inner = setup.file(dir.ino, "g");
    setup.write(inner.ino, 0, b"contents");
    let link = fs.make_symlink(&SUPER, at(dir.ino, "s"), b"f").unwrap();
    // Each while it is known, and while it is not.
    for (round, forgets) in [(1, false), (2, true), (3, true)] {
        if forgets {
            for ino in [file.ino, linked.ino, inner.ino, link.ino] {
                fs.forget(ino, 1);
            }
        }
        let set = SetAttr {
            uid: Some(round),
            ..SetAttr::default()
        };
        for name in ["f", "g", "."] {
            setup.tick();
            let changed = fs.set_attr_at(&SUPER, at(dir.ino, name), &set);
            let changed = changed.unwrap().expect("no symbolic link");
            assert_eq!(changed.uid, round);
            assert_eq!(fs.stat(at(dir.ino, name)).unwrap(), changed);
            let found = setup.lookup(dir.ino, name).unwrap();
            assert_eq!(found, changed);
            fs.forget(found.ino, 1);
        }
        assert_eq!(fs.stat(at(ROOT, "l")).unwrap().uid, round);
        let refused = fs.set_attr_at(&SUPER, at(dir.ino, "s"), &set);
        assert_eq!(refused.unwrap(), None);
        assert_eq!(fs.stat(at(dir.ino, "s")).unwrap().uid, 0);
    }
    assert_eq!(fs.stat(at(dir.ino, "..")).unwrap().ino, ROOT);
    for name in ["", "none"] {
        let missing = fs.set_attr_at(&SUPER, at(dir.ino, name), &SetAttr::default());
        assert!(matches!(missing, Err(FsError::NotFound)));
        assert!(matches!(fs.stat(at(dir.ino, name)), Err(FsError::NotFound)));
    }
    assert_eq!(fs.known_inodes(), 2, "the root and the directory");
    let found = setup.lookup(dir.ino, "g").unwrap();
    assert_eq!(setup.contents(found.ino), b"contents");
    setup.check();
}

#[test]
fn a_time_to_keep_is_kept() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.tick();
    let set = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let changed = setup.fs.set_attr(&SUPER, file.ino, &set).unwrap();
    assert_eq!(changed.atime, file.atime);
    assert!(changed.mtime > file.mtime);
    let nothing = setup
        .fs
        .set_attr(&SUPER, file.ino, &SetAttr::default())
        .unwrap();
    assert_eq!(nothing, changed);
}

#[test]
fn a_new_owner_takes_set_id_bits_and_capabilities() {
    let setup = setup();
    let file = setup
        .fs
        .create(&SUPER, at(ROOT, "f"), &new(0o6775))
        .unwrap();
    let dir = setup
        .fs
        .make_dir(&SUPER, at(ROOT, "d"), &new(0o6775))
        .unwrap();
    let caps = b"security.capability";
    let mode = stitch_fs::XattrMode::Set;
    setup
        .fs
        .set_xattr(&SUPER, file.ino, caps, b"1", mode, false)
        .unwrap();
    assert!(setup.fs.get_xattr(&SUPER, file.ino, caps).is_ok());
    let set = SetAttr {
        uid: Some(9),
        ..SetAttr::default()
    };
    assert_eq!(
        setup.fs.set_attr(&SUPER, file.ino, &set).unwrap().perm,
        0o775
    );
    let gone = setup.fs.get_xattr(&SUPER, file.ino, caps);
    assert!(matches!(gone, Err(FsError::NoData)));
    assert_eq!(
        setup.fs.set_attr(&SUPER, dir.ino, &set).unwrap().perm,
        0o6775
    );
}

#[test]
fn writing_takes_capabilities() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let caps = b"security.capability";
    let mode = stitch_fs::XattrMode::Set;
    setup
        .fs
        .set_xattr(&SUPER, file.ino, caps, b"1", mode, false)
        .unwrap();
    setup.write(file.ino, 0, b"x");
    let gone = setup.fs.get_xattr(&SUPER, file.ino, caps);
    assert!(matches!(gone, Err(FsError::NoData)));
    assert_eq!(setup.rows("xattr"), 0);
    setup.check();
}

/// No change says that its caller lacks privilege ([`ClearSetId::None`]): a mount without extended
/// attributes is not told.
#[test]
fn all_changes_of_contents_take_capabilities_from_all_callers() {
    type Change<'a> = &'a dyn Fn(&FileSystem, Ino) -> Result<(), FsError>;
    let write = |append, at, len| {
        move |fs: &FileSystem, ino| {
            let options = WriteOptions {
                append,
                clear_setid: ClearSetId::None,
            };
            fs.write(ino, at, &vec![1; len], options).map(drop)
        }
    };
    let resize = |size| {
        move |fs: &FileSystem, ino| {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.set_attr(&SUPER, ino, &set).map(drop)
        }
    };
    let allocate = |mode| move |fs: &FileSystem, ino| fs.fallocate(ino, mode, 100, 9000).map(drop);
    let copy = |fs: &FileSystem, ino| {
        let source = fs.lookup(at(ROOT, "source"))?.ino;
        fs.copy_range((source, 0), (ino, 5), 4000).map(drop)
    };
    let changes: [(&str, Change<'_>); 10] = [
        ("write", &write(false, 0, 1)),
        ("append", &write(true, 0, 1)),
        ("long write", &write(false, 3, 9000)),
        ("cut", &resize(7)),
        ("cut to nothing", &resize(0)),
        ("growth", &resize(30_000)),
        (
            "allocation",
            &allocate(FallocateMode::Allocate { keep_size: false }),
        ),
        ("hole", &allocate(FallocateMode::PunchHole)),
        (
            "zeros",
            &allocate(FallocateMode::ZeroRange { keep_size: true }),
        ),
        ("copy", &copy),
    ];
    // In its row, in chunks, and beside the store.
    for (len, setup) in [(100, setup()), (8000, setup()), (20_000, setup_external())] {
        let source = setup.file(ROOT, "source").ino;
        setup.write(source, 0, &[7; 5000]);
        for (what, change) in &changes {
            let file = setup.file(ROOT, what).ino;
            setup.write(file, 0, &vec![2; len]);
            give_capability(&setup, file);
            change(&setup.fs, file).unwrap();
            assert_eq!(setup.rows("xattr"), 0, "{what} of {len} bytes");
        }
        setup.fs.sync().unwrap();
        setup.check();
    }
}

fn give_capability(setup: &Setup, ino: Ino) {
    let (name, mode) = (b"security.capability", XattrMode::Set);
    let set = setup.fs.set_xattr(&SUPER, ino, name, b"1", mode, false);
    set.expect("is set");
    assert_eq!(setup.rows("xattr"), 1);
}

#[test]
fn reading_changes_the_time_of_access_by_policy() {
    let policies = [
        (AtimePolicy::Relatime, [true, false, true]),
        (AtimePolicy::Noatime, [false, false, false]),
        (AtimePolicy::Strictatime, [true, true, true]),
    ];
    for (policy, expected) in policies {
        let setup = setup_with(|options| options.atime = policy);
        let file = setup.file(ROOT, "f");
        setup.write(file.ino, 0, b"x");
        let mut changes = Vec::new();
        for seconds in [1, 1, 90_000] {
            setup.clock.advance(std::time::Duration::from_secs(seconds));
            let before = setup.attr(file.ino).atime;
            setup.read(file.ino, 0, 1);
            changes.push(setup.attr(file.ino).atime > before);
        }
        assert_eq!(changes, expected, "{policy:?}");
        let last = setup.attr(file.ino).atime;
        assert_eq!(setup.reopened().lookup(ROOT, "f").unwrap().atime, last);
    }
}

#[test]
fn reading_a_directory_or_link_changes_its_time_of_access() {
    let setup = setup();
    let link = setup.fs.make_symlink(&SUPER, at(ROOT, "l"), b"t").unwrap();
    setup.tick();
    setup.names(ROOT);
    setup.fs.read_link(link.ino).unwrap();
    assert!(setup.attr(ROOT).atime > setup.attr(ROOT).mtime);
    assert!(setup.attr(link.ino).atime > link.atime);
    let file = setup.file(ROOT, "f");
    setup
        .fs
        .set_inode_flags(&SUPER, file.ino, inode_flag::NOATIME)
        .unwrap();
    setup.tick();
    setup.write(file.ino, 0, b"x");
    setup.read(file.ino, 0, 1);
    assert_eq!(setup.attr(file.ino).atime, file.atime);
}

#[test]
fn the_umask_and_the_caller_shape_new_files() {
    let setup = setup();
    let made = stitch_fs::NewNode {
        perm: 0o7777,
        umask: 0o027,
    };
    let file = setup.fs.create(&USER, at(ROOT, "f"), &made).unwrap();
    assert_eq!((file.perm, file.uid, file.gid), (0o7750, 1000, 1000));
    assert_eq!(file.btime, file.mtime);
}

#[test]
fn access_is_granted_by_mode() {
    let setup = setup();
    let file = setup.fs.create(&USER, at(ROOT, "f"), &new(0o640)).unwrap();
    let access = |caller: &Caller<'_>, mask| setup.fs.access(caller, file.ino, mask).is_ok();
    assert!(access(&USER, access_mask::READ | access_mask::WRITE));
    assert!(!access(&OTHER, access_mask::READ));
    let member = Caller {
        groups: &[1000],
        ..OTHER
    };
    assert!(access(&member, access_mask::READ) && !access(&member, access_mask::WRITE));
    assert!(access(&SUPER, access_mask::WRITE) && !access(&SUPER, access_mask::EXECUTE));
}

#[test]
fn names_are_guarded_where_permissions_are_checked_here() {
    let setup = setup_with(|options| options.check_permissions = true);
    let refused = setup.fs.create(&USER, at(ROOT, "f"), &new(0o644));
    assert!(matches!(refused, Err(FsError::Access)));
    let dir = setup
        .fs
        .make_dir(&SUPER, at(ROOT, "tmp"), &new(0o1777))
        .unwrap();
    setup
        .fs
        .create(&USER, at(dir.ino, "f"), &new(0o644))
        .unwrap();
    let refused = setup.fs.unlink(&OTHER, at(dir.ino, "f"));
    assert!(matches!(refused, Err(FsError::Perm)));
    let mode = RenameMode::Replace;
    let refused = setup
        .fs
        .rename(&OTHER, at(dir.ino, "f"), at(dir.ino, "g"), mode);
    assert!(matches!(refused, Err(FsError::Perm)));
    setup.fs.unlink(&USER, at(dir.ino, "f")).unwrap();
}

#[test]
fn immutable_directories_keep_their_names() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    setup.file(dir.ino, "f");
    setup
        .fs
        .set_inode_flags(&SUPER, dir.ino, inode_flag::IMMUTABLE)
        .unwrap();
    let refused = setup.fs.create(&SUPER, at(dir.ino, "g"), &new(0o644));
    assert!(matches!(refused, Err(FsError::Perm)));
    let refused = setup.fs.unlink(&SUPER, at(dir.ino, "f"));
    assert!(matches!(refused, Err(FsError::Perm)));
    let set = SetAttr {
        perm: Some(0),
        ..SetAttr::default()
    };
    let refused = setup.fs.set_attr(&SUPER, dir.ino, &set);
    assert!(matches!(refused, Err(FsError::Perm)));
    setup
        .fs
        .set_inode_flags(&SUPER, dir.ino, inode_flag::APPEND)
        .unwrap();
    setup.file(dir.ino, "g");
    let refused = setup.fs.unlink(&SUPER, at(dir.ino, "f"));
    assert!(matches!(refused, Err(FsError::Perm)));
}
