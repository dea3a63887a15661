//! Making, finding, removing, linking and moving names.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{FileKind, FsError, RenameMode, SetAttr, Taken};

#[test]
fn what_is_made_is_found_also_after_reopening() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    let file = setup.file(dir.ino, "f");
    assert_ne!(dir.ino, file.ino);
    assert_eq!(setup.lookup(dir.ino, "f").unwrap().ino, file.ino);
    assert_eq!(setup.attr(ROOT).nlink, 3);
    assert!(matches!(setup.lookup(ROOT, "f"), Err(FsError::NotFound)));
    assert!(matches!(setup.lookup(file.ino, "x"), Err(FsError::NotDir)));
    let setup = setup.reopened();
    assert!(matches!(setup.fs.get_attr(dir.ino), Err(FsError::Stale(_))));
    let again = setup.lookup(ROOT, "d").unwrap();
    assert_eq!(
        (again.ino, again.nlink, again.kind),
        (dir.ino, 2, FileKind::Directory)
    );
    assert_eq!(setup.lookup(again.ino, "f").unwrap().ino, file.ino);
    assert_eq!(setup.lookup(again.ino, "..").unwrap().ino, ROOT);
    assert_eq!(setup.lookup(again.ino, ".").unwrap().ino, again.ino);
    setup.check();
}

#[test]
fn names_are_checked() {
    let setup = setup();
    let long = "x".repeat(255);
    setup.file(ROOT, &long);
    assert!(setup.lookup(ROOT, &long).is_ok());
    let longer = "x".repeat(256);
    let made = setup.fs.create(&SUPER, at(ROOT, &longer), &new(0o644));
    assert!(matches!(made, Err(FsError::NameTooLong)));
    assert!(matches!(
        setup.lookup(ROOT, &longer),
        Err(FsError::NameTooLong)
    ));
    for dots in [".", ".."] {
        let made = setup.fs.make_dir(&SUPER, at(ROOT, dots), &new(0o755));
        assert!(matches!(made, Err(FsError::Exists)));
    }
    assert!(matches!(
        setup.fs.remove_dir(&SUPER, at(ROOT, "..")),
        Err(FsError::NotEmpty)
    ));
    assert!(matches!(
        setup.fs.remove_dir(&SUPER, at(ROOT, ".")),
        Err(FsError::Invalid(_))
    ));
}

#[test]
fn inode_numbers_are_never_reused() {
    let mut setup = setup();
    let mut last = Ino(1);
    for _ in 0..3 {
        let file = setup.file(ROOT, "f");
        assert!(file.ino > last);
        last = file.ino;
        setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
        setup.fs.forget(file.ino, 1);
        setup = setup.reopened();
    }
    setup.fs.close().unwrap();
    let setup = setup.reopened();
    assert!(setup.file(ROOT, "f").ino > last);
}

#[test]
fn unlinked_files_live_until_forgotten() {
    let setup = setup();
    for (name, len) in [("small", 100), ("large", 100_000)] {
        let file = setup.file(ROOT, name);
        setup.write(file.ino, 0, &vec![7; len]);
        setup.fs.unlink(&SUPER, at(ROOT, name)).unwrap();
        assert!(matches!(setup.lookup(ROOT, name), Err(FsError::NotFound)));
        assert_eq!(setup.attr(file.ino).nlink, 0);
        assert_eq!(setup.contents(file.ino), vec![7; len]);
        setup.write(file.ino, 50, &vec![8; 10_000]);
        assert_eq!(setup.read(file.ino, 49, 2), [7, 8]);
        setup.check();
        setup.fs.open_handle(file.ino).unwrap();
        setup.fs.forget(file.ino, 1);
        assert_eq!(setup.read(file.ino, 49, 2), [7, 8]);
        setup.fs.close_handle(file.ino);
        assert!(setup.fs.get_attr(file.ino).is_err());
        assert_eq!(setup.fs.reclaim().unwrap(), 1);
        assert_eq!((setup.rows("data"), setup.rows("meta")), (0, 1));
        setup.check();
    }
}

#[test]
fn small_unlinked_files_leave_no_row() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, b"abc");
    let before = setup.rows("sys");
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    assert_eq!(setup.contents(file.ino), b"abc");
    assert_eq!((setup.rows("meta"), setup.rows("sys")), (1, before));
    setup.write(file.ino, 3, b"d");
    assert_eq!(setup.contents(file.ino), b"abcd");
    assert_eq!(setup.rows("meta"), 1);
}

#[test]
fn a_crash_reclaims_unlinked_files() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[7; 100_000]);
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    let temp = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600)).unwrap();
    setup.write(temp.ino, 0, &[7; 100_000]);
    assert!(setup.rows("data") > 0);
    let setup = setup.reopened();
    assert_eq!((setup.rows("data"), setup.rows("meta")), (0, 1));
    setup.check();
}

#[test]
fn links_share_one_inode() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    let file = setup.file(ROOT, "a");
    setup.write(file.ino, 0, b"hello");
    let linked = setup.fs.link(&SUPER, file.ino, at(dir.ino, "b")).unwrap();
    assert_eq!((linked.ino, linked.nlink), (file.ino, 2));
    setup.write(file.ino, 5, b" world");
    setup.check();
    let refused = setup.fs.link(&SUPER, file.ino, at(ROOT, "a"));
    assert!(matches!(refused, Err(FsError::Exists)));
    let refused = setup.fs.link(&SUPER, dir.ino, at(ROOT, "d2"));
    assert!(matches!(refused, Err(FsError::Perm)));
    setup.fs.unlink(&SUPER, at(ROOT, "a")).unwrap();
    assert_eq!(setup.attr(file.ino).nlink, 1);
    let setup = setup.reopened();
    let dir = setup.lookup(ROOT, "d").unwrap();
    let file = setup.lookup(dir.ino, "b").unwrap();
    assert_eq!(setup.contents(file.ino), b"hello world");
    setup.check();
    setup.fs.unlink(&SUPER, at(dir.ino, "b")).unwrap();
    let refused = setup.fs.link(&SUPER, file.ino, at(ROOT, "c"));
    assert!(matches!(refused, Err(FsError::NotFound)));
    setup.check();
    setup.fs.forget(file.ino, 1);
    setup.fs.sync().unwrap();
    assert_eq!(setup.rows("meta"), 2);
    setup.check();
}

#[test]
fn temporary_files_can_be_named() {
    let setup = setup();
    for len in [0, 100, 100_000] {
        let temp = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600)).unwrap();
        assert_eq!(temp.nlink, 0);
        setup.write(temp.ino, 0, &vec![3; len]);
        setup.check();
        let name = format!("f{len}");
        let named = setup.fs.link(&SUPER, temp.ino, at(ROOT, &name)).unwrap();
        assert_eq!((named.ino, named.nlink), (temp.ino, 1));
        setup.check();
    }
    let setup = setup.reopened();
    let file = setup.lookup(ROOT, "f100000").unwrap();
    assert_eq!(setup.contents(file.ino), vec![3; 100_000]);
    assert_eq!(setup.names(ROOT), ["f0", "f100", "f100000"]);
}

#[test]
fn directories_are_removed_only_when_empty() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    setup.file(dir.ino, "f");
    assert!(matches!(
        setup.fs.remove_dir(&SUPER, at(ROOT, "d")),
        Err(FsError::NotEmpty)
    ));
    assert!(matches!(
        setup.fs.unlink(&SUPER, at(ROOT, "d")),
        Err(FsError::IsDir)
    ));
    assert!(matches!(
        setup.fs.remove_dir(&SUPER, at(dir.ino, "f")),
        Err(FsError::NotDir)
    ));
    setup.fs.unlink(&SUPER, at(dir.ino, "f")).unwrap();
    setup.fs.remove_dir(&SUPER, at(ROOT, "d")).unwrap();
    assert_eq!(setup.attr(ROOT).nlink, 2);
    assert_eq!(setup.attr(dir.ino).nlink, 0);
    let made = setup.fs.create(&SUPER, at(dir.ino, "f"), &new(0o644));
    assert!(matches!(made, Err(FsError::NotFound)));
    setup
        .fs
        .read_dir(dir.ino, 0, &mut |_| panic!("it is empty"))
        .unwrap();
    setup.check();
}

#[test]
fn symlinks_keep_their_target() {
    let setup = setup();
    let target = "t".repeat(4095);
    let link = setup
        .fs
        .make_symlink(&SUPER, at(ROOT, "l"), target.as_bytes())
        .unwrap();
    assert_eq!((link.size, link.perm), (4095, 0o777));
    let refused = setup
        .fs
        .make_symlink(&SUPER, at(ROOT, "m"), "t".repeat(4096).as_bytes());
    assert!(matches!(refused, Err(FsError::NameTooLong)));
    setup.fs.link(&SUPER, link.ino, at(ROOT, "l2")).unwrap();
    let setup = setup.reopened();
    let link = setup.lookup(ROOT, "l2").unwrap();
    assert_eq!(setup.fs.read_link(link.ino).unwrap(), target.as_bytes());
    assert!(matches!(setup.fs.read_link(ROOT), Err(FsError::Invalid(_))));
}

#[test]
fn devices_and_pipes_keep_their_type() {
    let setup = setup();
    let kinds = [
        (FileKind::Fifo, 0),
        (FileKind::Socket, 0),
        (FileKind::CharDevice, 0x0103),
        (FileKind::BlockDevice, 0x0801),
    ];
    for (index, (kind, rdev)) in kinds.into_iter().enumerate() {
        let name = format!("n{index}");
        setup
            .fs
            .make_node(&SUPER, at(ROOT, &name), kind, rdev, &new(0o600))
            .unwrap();
    }
    let setup = setup.reopened();
    for (index, kind) in kinds.into_iter().enumerate() {
        let attr = setup.lookup(ROOT, &format!("n{index}")).unwrap();
        assert_eq!((attr.kind, attr.rdev), kind);
        let read = setup.fs.read(attr.ino, 0, 1, &mut Vec::new());
        assert!(matches!(read, Err(FsError::Invalid(_))));
    }
}

#[test]
fn a_set_gid_directory_gives_its_group() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    let set = SetAttr {
        perm: Some(0o2777),
        gid: Some(77),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, dir.ino, &set).unwrap();
    let set = SetAttr {
        perm: Some(0o2777),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, dir.ino, &set).unwrap();
    let file = setup
        .fs
        .create(&USER, at(dir.ino, "f"), &new(0o2775))
        .unwrap();
    assert_eq!((file.gid, file.perm), (77, 0o775));
    let sub = setup
        .fs
        .make_dir(&USER, at(dir.ino, "s"), &new(0o755))
        .unwrap();
    assert_eq!((sub.gid, sub.perm), (77, 0o2755));
}

#[test]
fn rename_moves_and_replaces() {
    let setup = setup();
    let (one, two) = (setup.dir(ROOT, "1"), setup.dir(ROOT, "2"));
    let file = setup.file(one.ino, "f");
    setup.write(file.ino, 0, b"data");
    let old = setup.file(two.ino, "g");
    let rename = |a, b, mode| setup.fs.rename(&SUPER, a, b, mode);
    let no_replace = rename(at(one.ino, "f"), at(two.ino, "g"), RenameMode::NoReplace);
    assert!(matches!(no_replace, Err(FsError::Exists)));
    rename(at(one.ino, "f"), at(two.ino, "g"), RenameMode::Replace).unwrap();
    assert_eq!(setup.attr(old.ino).nlink, 0);
    assert_eq!(setup.names(one.ino), [""; 0]);
    assert_eq!(setup.lookup(two.ino, "g").unwrap().ino, file.ino);
    assert_eq!(setup.contents(file.ino), b"data");
    setup.check();
    rename(at(ROOT, "1"), at(two.ino, "sub"), RenameMode::Replace).unwrap();
    assert_eq!((setup.attr(ROOT).nlink, setup.attr(two.ino).nlink), (3, 3));
    assert_eq!(setup.lookup(one.ino, "..").unwrap().ino, two.ino);
    let inside = rename(at(ROOT, "2"), at(one.ino, "x"), RenameMode::Replace);
    assert!(matches!(inside, Err(FsError::Invalid(_))));
    let onto_parent = rename(at(two.ino, "sub"), at(ROOT, "2"), RenameMode::Replace);
    assert!(matches!(onto_parent, Err(FsError::NotEmpty)));
    let onto_file = rename(at(two.ino, "sub"), at(two.ino, "g"), RenameMode::Replace);
    assert!(matches!(onto_file, Err(FsError::NotDir)));
    let onto_dir = rename(at(two.ino, "g"), at(two.ino, "sub"), RenameMode::Replace);
    assert!(matches!(onto_dir, Err(FsError::IsDir)));
    setup.check();
}

#[test]
fn rename_exchanges_and_leaves_whiteouts() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    let sub = setup.dir(dir.ino, "sub");
    let file = setup.file(ROOT, "f");
    let rename = |a, b, mode| setup.fs.rename(&SUPER, a, b, mode);
    rename(at(dir.ino, "sub"), at(ROOT, "f"), RenameMode::Exchange).unwrap();
    assert_eq!(setup.lookup(ROOT, "f").unwrap().ino, sub.ino);
    assert_eq!(setup.lookup(dir.ino, "sub").unwrap().ino, file.ino);
    assert_eq!((setup.attr(ROOT).nlink, setup.attr(dir.ino).nlink), (4, 2));
    setup.check();
    let missing = rename(at(dir.ino, "sub"), at(ROOT, "x"), RenameMode::Exchange);
    assert!(matches!(missing, Err(FsError::NotFound)));
    let inside = rename(at(ROOT, "d"), at(dir.ino, "sub"), RenameMode::Exchange);
    assert!(matches!(inside, Err(FsError::Invalid(_))));
    rename(at(dir.ino, "sub"), at(ROOT, "x"), RenameMode::Whiteout).unwrap();
    let white = setup.lookup(dir.ino, "sub").unwrap();
    assert_eq!(
        (white.kind, white.rdev, white.perm),
        (FileKind::CharDevice, 0, 0)
    );
    assert_eq!(setup.lookup(ROOT, "x").unwrap().ino, file.ino);
    setup.check();
}

#[test]
fn two_names_of_one_inode_stay_in_a_rename() {
    let setup = setup();
    let file = setup.file(ROOT, "a");
    setup.fs.link(&SUPER, file.ino, at(ROOT, "b")).unwrap();
    setup
        .fs
        .rename(&SUPER, at(ROOT, "a"), at(ROOT, "b"), RenameMode::Replace)
        .unwrap();
    assert_eq!(setup.names(ROOT), ["a", "b"]);
    setup.check();
}

#[test]
fn times_and_links_of_directories_follow_their_names() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    setup.tick();
    setup.file(dir.ino, "f");
    let made = setup.attr(dir.ino);
    assert!(made.mtime > dir.mtime && made.ctime > dir.ctime);
    setup.tick();
    setup.fs.unlink(&SUPER, at(dir.ino, "f")).unwrap();
    assert!(setup.attr(dir.ino).mtime > made.mtime);
    let last = setup.attr(dir.ino);
    let setup = setup.reopened();
    assert_eq!(setup.lookup(ROOT, "d").unwrap(), last);
}

#[test]
fn forgotten_inodes_leave_the_table() {
    let setup = setup();
    let mut dir = ROOT;
    for depth in 0..5 {
        dir = setup.dir(dir, &format!("d{depth}")).ino;
    }
    let file = setup.file(dir, "f");
    assert_eq!(setup.fs.known_inodes(), 7);
    // Directories in use keep the way up, even when they are forgotten themselves.
    let mut up = setup.lookup(dir, "..").unwrap().ino;
    setup.fs.forget(up, 2);
    while up != ROOT {
        up = setup.lookup(up, "..").unwrap().ino;
        if up != ROOT {
            setup.fs.forget(up, 2);
        }
    }
    assert_eq!(setup.fs.known_inodes(), 7);
    setup.fs.forget(file.ino, 1);
    setup.fs.forget(dir, 1);
    assert_eq!(setup.fs.known_inodes(), 1);
}

#[test]
fn readdir_positions_survive_changes_and_remounts() {
    let mut setup = setup();
    for index in 0..500 {
        setup.file(ROOT, &format!("file{index}"));
    }
    let mut seen = Vec::new();
    let mut offset = 0;
    let mut round = 0;
    loop {
        let mut batch = Vec::new();
        setup
            .fs
            .read_dir(ROOT, offset, &mut |entry| {
                if batch.len() == 7 {
                    return Taken::Full;
                }
                assert!(i64::try_from(entry.offset).is_ok() && entry.offset > offset);
                offset = entry.offset;
                batch.push(String::from_utf8(entry.name.to_vec()).unwrap());
                Taken::More
            })
            .unwrap();
        if batch.is_empty() {
            break;
        }
        // Remove what was read, as `rm -r` does, add something else, and now and then reopen.
        for name in batch.iter().filter(|name| name.starts_with("file")) {
            setup.fs.unlink(&SUPER, at(ROOT, name)).unwrap();
        }
        setup.file(ROOT, &format!("new{round}"));
        round += 1;
        if round % 10 == 0 {
            setup = setup.reopened();
        }
        seen.extend(batch);
    }
    let mut old: Vec<_> = seen
        .iter()
        .filter(|name| name.starts_with("file"))
        .collect();
    old.sort();
    old.dedup();
    assert_eq!(old.len(), 500);
    assert_eq!(
        seen.iter().filter(|name| name.starts_with("file")).count(),
        500
    );
    assert!(setup.names(ROOT).iter().all(|name| name.starts_with("new")));
    assert_eq!(seen[..2], [".", ".."]);
}

#[test]
fn readdirplus_counts_a_lookup_for_what_was_taken() {
    let setup = setup();
    let files: Vec<Ino> = (0..10)
        .map(|i| setup.file(ROOT, &format!("f{i}")).ino)
        .collect();
    setup.fs.link(&SUPER, files[0], at(ROOT, "second")).unwrap();
    let setup = setup.reopened();
    let mut taken = 0;
    let mut inos = std::collections::BTreeSet::new();
    setup
        .fs
        .read_dir_plus(ROOT, 0, &mut |entry| {
            if entry.attr.is_some() {
                if taken == 4 {
                    return Taken::Full;
                }
                taken += 1;
                inos.insert(entry.ino);
            }
            Taken::More
        })
        .unwrap();
    assert_eq!(setup.fs.known_inodes() - 1, inos.len());
    let mut all = 0;
    setup
        .fs
        .read_dir_plus(ROOT, 0, &mut |entry| {
            if let Some(attr) = entry.attr {
                assert_eq!(attr.ino, entry.ino);
                assert_eq!(attr.nlink, if attr.ino == files[0] { 2 } else { 1 });
                all += 1;
            }
            Taken::More
        })
        .unwrap();
    assert_eq!((all, setup.fs.known_inodes()), (11, 11));
}

#[test]
fn inodes_are_counted() {
    let setup = setup();
    let used = |setup: &Setup| {
        let stat = setup.fs.stat_fs().unwrap();
        stat.inodes - stat.inodes_free
    };
    setup.file(ROOT, "a");
    setup.dir(ROOT, "b");
    let temp = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600)).unwrap();
    assert_eq!(used(&setup), 3);
    setup.fs.link(&SUPER, temp.ino, at(ROOT, "c")).unwrap();
    assert_eq!(used(&setup), 4);
    setup.fs.unlink(&SUPER, at(ROOT, "a")).unwrap();
    setup.fs.remove_dir(&SUPER, at(ROOT, "b")).unwrap();
    assert_eq!(used(&setup), 2);
    assert_eq!(used(&setup.reopened()), 2);
}
