//! Removing whole trees.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{FsError, XattrMode, inode_flag};

const LARGE: usize = 100_000;

/// `top` with 300 small files, directories three deep, a large file, an attribute, a symlink, and a
/// second name of `/kept`. Nothing of it is known afterwards.
fn grow(setup: &Setup) -> Ino {
    let kept = setup.file(ROOT, "kept");
    setup.write(kept.ino, 0, b"kept");
    let top = setup.dir(ROOT, "top");
    let mut known = vec![kept.ino];
    let mut dir = top.ino;
    for depth in 0..3 {
        for index in 0..100 {
            known.push(setup.file(dir, &format!("f{index}")).ino);
        }
        dir = setup.dir(dir, &format!("d{depth}")).ino;
        known.push(dir);
    }
    let large = setup.file(dir, "large");
    setup.write(large.ino, 0, &vec![7; LARGE]);
    let set = (b"user.a".as_slice(), b"b".as_slice(), XattrMode::Set);
    let (name, value, mode) = set;
    setup
        .fs
        .set_xattr(&SUPER, large.ino, name, value, mode, false)
        .expect("a tree that grows");
    let link = setup
        .fs
        .make_symlink(&SUPER, at(dir, "link"), b"/kept")
        .expect("a tree that grows");
    setup
        .fs
        .link(&SUPER, kept.ino, at(dir, "again"))
        .expect("a tree that grows");
    known.extend([large.ino, link.ino, top.ino]);
    known.push(kept.ino);
    known.reverse();
    for ino in known {
        setup.fs.forget(ino, 1);
    }
    assert_eq!(setup.fs.known_inodes(), 1);
    top.ino
}

/// Sets the flags of an inode below `top`, which is not in memory afterwards.
fn set_flags(setup: &Setup, path: &[&str], flags: u32) {
    let mut known = Vec::new();
    let mut dir = ROOT;
    for name in path {
        dir = setup.lookup(dir, name).expect("is there").ino;
        known.push(dir);
    }
    setup
        .fs
        .set_inode_flags(&SUPER, dir, flags)
        .expect("root may");
    for ino in known.into_iter().rev() {
        setup.fs.forget(ino, 1);
    }
}

#[test]
fn a_tree_with_something_immutable_or_append_only_in_it_stays() {
    let setup = setup();
    grow(&setup);
    let paths: [&[&str]; 3] = [
        &["top", "d0", "d1", "d2", "large"],
        &["top", "d0", "d1"],
        // Has a second name outside.
        &["top", "d0", "d1", "d2", "again"],
    ];
    for path in paths {
        for flags in [inode_flag::IMMUTABLE, inode_flag::APPEND] {
            set_flags(&setup, path, flags);
            let refused = setup.fs.remove_tree(&SUPER, at(ROOT, "top"), None);
            assert!(matches!(refused, Err(FsError::Perm)), "{path:?} {flags}");
            assert_eq!(setup.fs.detached_dirs(), 0);
            set_flags(&setup, path, 0);
        }
    }
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "top"), None)
        .expect("nothing holds it");
    empty_all(&setup);
    check_kept_alone(&setup);
}

/// Removes all that is left of removed trees.
fn empty_all(setup: &Setup) {
    setup.fs.empty_detached(u64::MAX).expect("it is removed");
    assert_eq!(setup.fs.detached_dirs(), 0, "nothing is left");
}

/// What a file system has that never had the tree.
fn check_kept_alone(setup: &Setup) {
    let kept = setup.lookup(ROOT, "kept").expect("is kept");
    assert_eq!(
        (kept.nlink, setup.contents(kept.ino)),
        (1, b"kept".to_vec())
    );
    setup.fs.forget(kept.ino, 1);
    assert_eq!(setup.fs.detached_dirs(), 0);
    let rows = ["data", "xattr", "meta"].map(|tree| setup.rows(tree));
    assert_eq!(rows, [0, 0, 3], "the root, the file's row and its name");
    setup.check();
    let stat = setup.fs.stat_fs().expect("tells");
    assert_eq!(stat.inodes - stat.inodes_free, 2);
}

#[test]
fn a_tree_is_gone_at_once_and_its_space_follows() {
    let setup = setup();
    grow(&setup);
    let before = setup.attr(ROOT).nlink;
    setup.tick();
    setup.fs.remove_tree(&SUPER, at(ROOT, "top"), None).unwrap();
    assert!(matches!(setup.lookup(ROOT, "top"), Err(FsError::NotFound)));
    assert_eq!(setup.names(ROOT), ["kept"]);
    let root = setup.attr(ROOT);
    assert_eq!(root.nlink, before - 1);
    assert_eq!(root.mtime, root.ctime);
    assert!(setup.rows("data") > 0, "one step, whatever the size");
    setup.check();
    setup.dir(ROOT, "top");
    setup.fs.remove_dir(&SUPER, at(ROOT, "top")).unwrap();
    assert_eq!(setup.fs.detached_dirs(), 1);
    while setup.fs.detached_dirs() > 0 {
        assert!(
            setup.fs.empty_detached(50).unwrap() <= 200,
            "a slice is bounded"
        );
        setup.check();
    }
    assert_eq!(setup.fs.detached_removed(), 306);
    check_kept_alone(&setup);
}

#[test]
fn the_next_life_goes_on_where_a_crash_has_stopped_it() {
    for steps in 0..7 {
        let mut setup = setup();
        grow(&setup);
        setup.fs.remove_tree(&SUPER, at(ROOT, "top"), None).unwrap();
        for _ in 0..steps {
            setup.fs.empty_detached(1).unwrap();
            setup = setup.reopened();
            setup.check();
        }
        setup = setup.reopened();
        assert_eq!(setup.names(ROOT), ["kept"]);
        empty_all(&setup);
        check_kept_alone(&setup.reopened());
    }
}

#[test]
fn who_is_inside_finds_nothing_and_open_files_live() {
    let setup = setup();
    let top = grow(&setup);
    assert_eq!(setup.lookup(ROOT, "top").unwrap().ino, top);
    let inner = setup.lookup(top, "d0").unwrap();
    let open = setup.lookup(inner.ino, "f7").unwrap();
    setup.write(open.ino, 0, &vec![9; LARGE]);
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "top"), Some(top))
        .unwrap();
    let refused = setup.fs.create(&SUPER, at(top, "new"), &new(0o644));
    assert!(matches!(refused, Err(FsError::NotFound)));
    assert!(matches!(setup.lookup(top, "d0"), Err(FsError::NotFound)));
    assert_eq!(setup.names(top), [""; 0]);
    // The removal has not come to the directories deeper down yet.
    setup.file(inner.ino, "late");
    empty_all(&setup);
    let refused = setup.fs.create(&SUPER, at(inner.ino, "new"), &new(0o644));
    assert!(matches!(refused, Err(FsError::NotFound)));
    assert_eq!(setup.contents(open.ino), vec![9; LARGE]);
    setup.check();
    let late = setup.fs.known_inodes() - 4;
    assert_eq!(late, 1, "root, top, inner, open, late");
    for ino in [open.ino, inner.ino, top] {
        setup.fs.forget(ino, 1);
    }
    setup.fs.reclaim().unwrap();
    empty_all(&setup);
    check_kept_alone(&setup.reopened());
}

#[test]
fn a_directory_forgotten_before_it_is_empty_is_emptied_all_the_same() {
    let setup = setup();
    let top = grow(&setup);
    setup.lookup(ROOT, "top").unwrap();
    setup.fs.remove_tree(&SUPER, at(ROOT, "top"), None).unwrap();
    setup.fs.forget(top, 1);
    assert_eq!(setup.fs.reclaim().unwrap(), 0, "it is not empty");
    setup.check();
    empty_all(&setup);
    check_kept_alone(&setup);
}

#[test]
fn what_may_not_be_removed_stays() {
    let setup = setup_with(|options| options.check_permissions = true);
    let top = setup.dir(ROOT, "top").ino;
    let file = setup.file(top, "file").ino;
    let tree =
        |caller, parent, name: &str, ino| setup.fs.remove_tree(caller, at(parent, name), ino);
    assert!(matches!(
        tree(&SUPER, top, "file", None),
        Err(FsError::NotDir)
    ));
    assert!(matches!(
        tree(&SUPER, ROOT, "none", None),
        Err(FsError::NotFound)
    ));
    assert!(matches!(
        tree(&SUPER, ROOT, "top", Some(file)),
        Err(FsError::NotFound)
    ));
    assert!(matches!(
        tree(&SUPER, top, "..", None),
        Err(FsError::Invalid(_))
    ));
    assert!(matches!(
        tree(&USER, ROOT, "top", None),
        Err(FsError::Access)
    ));
    setup
        .fs
        .set_inode_flags(&SUPER, top, inode_flag::IMMUTABLE)
        .unwrap();
    assert!(matches!(
        tree(&SUPER, ROOT, "top", None),
        Err(FsError::Perm)
    ));
    setup.fs.set_inode_flags(&SUPER, top, 0).unwrap();
    assert_eq!(
        (setup.names(top), setup.fs.detached_dirs()),
        (vec!["file".to_owned()], 0)
    );
    tree(&SUPER, ROOT, "top", Some(top)).unwrap();
    setup.check();
}
