//! Writable views: clones of directories.

use crate::common::*;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_fs::fsck::Issue;
use stitch_fs::{
    CloneInfo, CloneSource, FallocateMode, FileSystem, FsError, FsResult, LiveView, RenameMode,
    SetAttr, WriteOptions, XattrMode,
};
use stitch_kv::{Batch, Engine};

const LARGE: usize = 100_000;

/// `/src/sub` with a small file, a large one, a link and an attribute.
fn grow(setup: &Setup) -> Ino {
    let source = setup.dir(ROOT, "src");
    let sub = setup.dir(source.ino, "sub");
    let small = setup.file(sub.ino, "small");
    setup.write(small.ino, 0, b"before");
    let large = setup.file(sub.ino, "large");
    setup.write(large.ino, 0, &vec![1; LARGE]);
    let fs = &setup.fs;
    fs.link(&SUPER, small.ino, at(source.ino, "link"))
        .expect("succeeds");
    fs.set_xattr(&SUPER, small.ino, b"user.a", b"1", XattrMode::Set, false)
        .expect("succeeds");
    source.ino
}

fn live(fs: &FileSystem, dir: Ino) -> CloneSource<'_> {
    CloneSource {
        fs,
        dir,
        snapshot: None,
    }
}

fn clone(setup: &Setup, dir: Ino, name: &str) -> CloneInfo {
    let source = live(&setup.fs, dir);
    setup
        .fs
        .make_clone(&SUPER, &source, at(ROOT, name))
        .expect("makes a clone")
}

fn open(setup: &Setup, info: &CloneInfo) -> Arc<LiveView> {
    setup.fs.open_clone(info.number).expect("opens a clone")
}

fn contents(fs: &FileSystem, dir: Ino, name: &str) -> Vec<u8> {
    let attr = fs.lookup(at(dir, name)).expect("the file is there");
    contents_of(fs, attr.ino)
}

fn write(fs: &FileSystem, dir: Ino, name: &str, bytes: &[u8]) {
    let ino = match fs.lookup(at(dir, name)) {
        Ok(attr) => attr.ino,
        Err(_) => {
            fs.create(&SUPER, at(dir, name), &new(0o644))
                .expect("succeeds")
                .ino
        }
    };
    fs.write(ino, 0, bytes, WriteOptions::default())
        .expect("succeeds");
}

/// Expects what [`grow`] made.
fn expect_before(fs: &FileSystem, root: Ino) {
    assert_eq!(names_in(fs, root), ["link", "sub"]);
    let sub = fs.lookup(at(root, "sub")).expect("is there").ino;
    assert_eq!(names_in(fs, sub), ["large", "small"]);
    assert_eq!(contents(fs, sub, "small"), b"before");
    assert_eq!(contents(fs, sub, "large"), vec![1; LARGE]);
    let small = fs.lookup(at(sub, "small")).expect("succeeds");
    assert_eq!(small.nlink, 2);
    let value = fs
        .get_xattr(&SUPER, small.ino, b"user.a")
        .expect("succeeds");
    assert_eq!(&value[..], b"1");
}

/// Overwrites, adds, renames and removes what [`grow`] made.
fn change_all(fs: &FileSystem, root: Ino) {
    let sub = fs.lookup(at(root, "sub")).expect("is there").ino;
    write(fs, sub, "small", b"AFTER!");
    write(fs, sub, "large", &vec![2; LARGE / 2]);
    write(fs, sub, "new", b"new");
    fs.unlink(&SUPER, at(root, "link")).expect("succeeds");
    let small = fs.lookup(at(sub, "small")).expect("succeeds").ino;
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.set_attr(&SUPER, small, &set).expect("succeeds");
    fs.remove_xattr(&SUPER, small, b"user.a").expect("succeeds");
    let (source, target) = (at(root, "sub"), at(root, "moved"));
    fs.rename(&SUPER, source, target, RenameMode::Replace)
        .expect("succeeds");
}

fn expect_after(fs: &FileSystem, root: Ino) {
    assert_eq!(names_in(fs, root), ["moved"]);
    let sub = fs.lookup(at(root, "moved")).expect("succeeds").ino;
    assert_eq!(names_in(fs, sub), ["large", "new", "small"]);
    assert_eq!(contents(fs, sub, "small"), b"AFTER!");
    let small = fs.lookup(at(sub, "small")).expect("succeeds");
    assert_eq!((small.nlink, small.perm), (1, 0o600));
}

/// Trees of clones in the engine.
fn clone_trees(setup: &Setup) -> usize {
    let trees = setup.engine.trees();
    let is_theirs = |info: &&stitch_kv::TreeInfo| info.name.starts_with("fs~");
    trees.iter().filter(is_theirs).count()
}

#[test]
fn changes_in_a_clone_stay_in_it() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    assert_eq!((info.root, info.home, info.owner), (source, 0, 0));
    let view = open(&setup, &info);
    expect_before(view.fs(), source);
    change_all(view.fs(), source);
    expect_after(view.fs(), source);
    expect_before(&setup.fs, source);
    setup.check();
}

#[test]
fn changes_of_the_source_do_not_reach_a_clone() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    change_all(&setup.fs, source);
    let view = open(&setup, &info);
    expect_before(view.fs(), source);
    expect_after(&setup.fs, source);
    setup.fs.remove_tree(&SUPER, at(ROOT, "src"), None).unwrap();
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(1000).unwrap();
    }
    expect_before(view.fs(), source);
    setup.check();
}

#[test]
fn a_clone_lies_at_its_name_and_outlives_a_killed_process() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    assert_eq!(setup.names(ROOT), ["copy", "src"]);
    change_all(open(&setup, &info).fs(), source);
    let setup = setup.reopened();
    assert_eq!(setup.fs.clones(), std::slice::from_ref(&info));
    let graft = setup.lookup(ROOT, "copy").unwrap().ino;
    assert_eq!(setup.fs.clone_at(graft), Some(info.clone()));
    expect_after(open(&setup, &info).fs(), source);
    setup.lookup(ROOT, "src").unwrap();
    expect_before(&setup.fs, source);
    setup.check();
}

#[test]
fn one_file_system_is_open_for_a_clone() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    let (first, second) = (open(&setup, &info), open(&setup, &info));
    assert!(Arc::ptr_eq(&first, &second));
    let made = first.fs().create(&SUPER, at(source, "f"), &new(0o644));
    let made = made.unwrap().ino;
    drop((first, second));
    let again = open(&setup, &info);
    let other = again.fs().create(&SUPER, at(source, "g"), &new(0o644));
    assert!(other.unwrap().ino > made, "no number is used twice");
    assert_eq!(again.fs().view_number(), info.number);
    drop(again);
    setup.check();
}

#[test]
fn a_clone_of_a_clone_and_one_in_a_clone() {
    let setup = setup();
    let source = grow(&setup);
    let first = clone(&setup, source, "first");
    let view = open(&setup, &first);
    change_all(view.fs(), source);
    let made = setup
        .fs
        .make_clone(&SUPER, &live(view.fs(), source), at(ROOT, "second"));
    let second = made.unwrap();
    // In the first one, of mainline.
    let sub = view.fs().lookup(at(source, "moved")).unwrap().ino;
    let inner = view
        .fs()
        .make_clone(&SUPER, &live(&setup.fs, source), at(sub, "inner"));
    let inner = inner.unwrap();
    assert_eq!((second.home, inner.home), (0, first.number));
    write(view.fs(), sub, "small", b"later");
    expect_after(open(&setup, &second).fs(), source);
    expect_before(open(&setup, &inner).fs(), source);
    setup.check();
    drop(view);
    let setup = setup.reopened();
    expect_after(open(&setup, &second).fs(), source);
    expect_before(open(&setup, &inner).fs(), source);
    assert_eq!(setup.fs.clones(), [first, second, inner]);
    setup.check();
}

#[test]
fn a_clone_of_a_snapshot_begins_at_its_moment() {
    let setup = setup();
    let source = grow(&setup);
    setup.fs.snapshots().create(source, "mon").unwrap();
    change_all(&setup.fs, source);
    let past = setup.fs.snapshots().open("mon").unwrap();
    let from = CloneSource {
        fs: past.fs(),
        dir: source,
        snapshot: Some("mon"),
    };
    let info = setup.fs.make_clone(&SUPER, &from, at(ROOT, "old")).unwrap();
    drop(past);
    setup.fs.snapshots().delete("mon").unwrap();
    let view = open(&setup, &info);
    expect_before(view.fs(), source);
    change_all(view.fs(), source);
    expect_after(view.fs(), source);
    drop(view);
    let setup = setup.reopened();
    expect_after(open(&setup, &info).fs(), source);
    setup.check();
}

#[test]
fn an_empty_clone_is_removed_with_its_name_and_a_full_one_is_not() {
    let setup = setup();
    let source = setup.dir(ROOT, "src").ino;
    setup.file(source, "f");
    let info = clone(&setup, source, "copy");
    let remove = || setup.fs.remove_dir(&SUPER, at(ROOT, "copy"));
    assert!(matches!(remove(), Err(FsError::NotEmpty)));
    let view = open(&setup, &info);
    view.fs().unlink(&SUPER, at(source, "f")).unwrap();
    remove().unwrap();
    assert_eq!(setup.names(ROOT), ["src"]);
    assert!(setup.fs.clones().is_empty());
    let late = view.fs().create(&SUPER, at(source, "late"), &new(0o644));
    assert!(matches!(late, Err(FsError::NotFound)), "{late:?}");
    drop(view);
    assert_eq!(clone_trees(&setup), 4);
    setup.fs.reclaim().unwrap();
    assert_eq!(clone_trees(&setup), 0);
    assert_eq!(setup.names(source), ["f"]);
    setup.check();
}

#[test]
fn a_whole_clone_goes_at_once_with_those_in_it() {
    let setup = setup();
    let source = grow(&setup);
    let first = clone(&setup, source, "first");
    let view = open(&setup, &first);
    let inner = view
        .fs()
        .make_clone(&SUPER, &live(&setup.fs, source), at(source, "inner"))
        .unwrap();
    let kept = clone(&setup, source, "kept");
    assert_eq!(clone_trees(&setup), 12);
    let wrong = setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "first"), Some(source));
    assert!(matches!(wrong, Err(FsError::NotFound)));
    let graft = Some(first.graft);
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "first"), graft)
        .unwrap();
    let inner = setup.fs.open_clone(inner.number);
    assert!(matches!(inner, Err(FsError::NotFound)), "{inner:?}");
    drop(view);
    setup.fs.sync().unwrap();
    assert_eq!(clone_trees(&setup), 4);
    expect_before(open(&setup, &kept).fs(), source);
    setup.check();
}

#[test]
fn a_removed_tree_takes_the_clones_in_it_along() {
    let setup = setup();
    let source = grow(&setup);
    let outer = setup.dir(ROOT, "outer").ino;
    let deep = setup.dir(outer, "deep").ino;
    let made = setup
        .fs
        .make_clone(&SUPER, &live(&setup.fs, source), at(deep, "copy"));
    made.unwrap();
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "outer"), None)
        .unwrap();
    setup.fs.forget(outer, 1);
    setup.fs.forget(deep, 1);
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(1000).unwrap();
    }
    assert!(setup.fs.clones().is_empty());
    setup.fs.reclaim().unwrap();
    assert_eq!(clone_trees(&setup), 0);
    setup.check();
}

#[test]
fn a_clone_is_renamed_and_never_replaced() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    let dir = setup.dir(ROOT, "dir").ino;
    let rename = |from, to| setup.fs.rename(&SUPER, from, to, RenameMode::Replace);
    let refused = rename(at(ROOT, "dir"), at(ROOT, "copy"));
    assert!(matches!(refused, Err(FsError::NotEmpty)), "{refused:?}");
    rename(at(ROOT, "copy"), at(dir, "moved")).unwrap();
    let graft = setup.lookup(dir, "moved").unwrap().ino;
    assert_eq!(setup.fs.clone_at(graft), Some(info.clone()));
    expect_before(open(&setup, &info).fs(), source);
    setup.check();
    let setup = setup.reopened();
    assert_eq!(setup.fs.clone_at(graft), Some(info));
}

#[test]
fn what_cannot_be_cloned_is_refused_and_leaves_nothing() {
    let setup = setup();
    let source = grow(&setup);
    let file = setup.file(ROOT, "file").ino;
    let make = |dir: Ino, name: &str| -> FsResult<CloneInfo> {
        setup
            .fs
            .make_clone(&SUPER, &live(&setup.fs, dir), at(ROOT, name))
    };
    assert!(matches!(make(source, "src"), Err(FsError::Exists)));
    assert!(matches!(make(file, "x"), Err(FsError::NotDir)));
    assert!(matches!(make(Ino(999), "x"), Err(FsError::Stale(_))));
    let long = "x".repeat(256);
    assert!(matches!(make(source, &long), Err(FsError::NameTooLong)));
    assert!(setup.fs.clones().is_empty());
    assert_eq!(clone_trees(&setup), 0);
    let info = make(source, "copy").unwrap();
    let view = open(&setup, &info);
    let snapshot = view.fs().snapshots().create(source, "s");
    assert!(matches!(snapshot, Err(FsError::Unsupported)));
    setup.check();
}

#[test]
fn a_store_with_large_files_beside_it_takes_no_clone() {
    let setup = setup_external();
    let source = setup.dir(ROOT, "src").ino;
    setup.file(source, "f");
    large(&setup, "large");
    let source = live(&setup.fs, source);
    let refused = setup.fs.make_clone(&SUPER, &source, at(ROOT, "copy"));
    assert!(matches!(refused, Err(FsError::Unsupported)), "{refused:?}");
}

#[test]
fn open_files_without_names_go_in_each_file_system() {
    let setup = setup();
    let source = grow(&setup);
    let sub = setup.lookup(source, "sub").unwrap().ino;
    let large = setup.lookup(sub, "large").unwrap().ino;
    setup.fs.unlink(&SUPER, at(sub, "large")).unwrap();
    let info = clone(&setup, source, "copy");
    let view = open(&setup, &info);
    view.fs().lookup(at(source, "sub")).unwrap();
    assert_eq!(names_in(view.fs(), sub), ["small"]);
    assert_eq!(setup.contents(large), vec![1; LARGE]);
    drop(view);
    let setup = setup.reopened();
    drop(open(&setup, &info));
    setup.check();
}

#[test]
fn allocated_room_is_one_sum() {
    let setup = setup();
    let source = setup.dir(ROOT, "src").ino;
    let file = setup.file(source, "f").ino;
    let mode = FallocateMode::Allocate { keep_size: false };
    setup.fs.fallocate(file, mode, 0, 100 * 4096).unwrap();
    let info = clone(&setup, source, "copy");
    let view = open(&setup, &info);
    write(view.fs(), source, "f", &[1; 8192]);
    write(&setup.fs, source, "f", &[2; 4096]);
    drop(view);
    setup.write(file, 4096, &[2; 99 * 4096]);
    setup.check();
    assert_eq!(
        &contents(open(&setup, &info).fs(), source, "f")[..2],
        [1; 2]
    );
}

#[test]
fn what_a_crash_leaves_between_the_steps_is_dropped() {
    let setup = setup();
    let source = grow(&setup);
    let kept = clone(&setup, source, "kept");
    // A removed clone whose trees are not dropped.
    let gone = clone(&setup, source, "gone");
    let graft = Some(gone.graft);
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "gone"), graft)
        .unwrap();
    // Trees without a record, of a clone and of one in it.
    let parent = setup.engine.trees()[0].id;
    for name in ["fs~3/meta", "fs~4/meta"] {
        let branch = stitch_kv::NewBranch::new(parent, name);
        setup.engine.branch_trees(&[branch], None).unwrap();
    }
    assert_eq!(clone_trees(&setup), 10);
    let setup = setup.reopened();
    assert_eq!(clone_trees(&setup), 4);
    assert_eq!(setup.fs.clones(), std::slice::from_ref(&kept));
    setup.lookup(ROOT, "src").unwrap();
    let next = clone(&setup, source, "next");
    assert!(next.number > gone.number, "numbers are not used again");
    expect_before(open(&setup, &kept).fs(), source);
    setup.check();
}

/// Deletes rows of a tree.
fn delete(setup: &Setup, tree: &str, keys: &[&[u8]]) {
    let trees = setup.engine.trees();
    let tree = trees
        .iter()
        .find(|info| info.name == tree)
        .expect("the tree is there")
        .id;
    let mut batch = Batch::new();
    for key in keys {
        batch.delete(tree, key);
    }
    setup
        .engine
        .commit(&batch, Default::default())
        .expect("succeeds");
}

#[test]
fn a_check_finds_clones_without_a_place_or_trees() {
    let setup = setup();
    let source = grow(&setup);
    let (adrift, bare) = (clone(&setup, source, "a"), clone(&setup, source, "b"));
    let view = open(&setup, &adrift);
    write(view.fs(), source, "own", b"own");
    drop(view);
    // The row of the name.
    let key = {
        let trees = setup.engine.trees();
        let meta = trees.iter().find(|info| info.name == "fs/meta").unwrap().id;
        let mut rows = setup
            .engine
            .scan(meta, stitch_kv::KeyRange::all(), Default::default(), None)
            .unwrap();
        let mut found = None;
        while let Some((key, _)) = rows.next().unwrap() {
            if key.len() == 17 && key[16] == b'a' {
                found = Some(key.to_vec());
            }
        }
        found.expect("the name is there")
    };
    delete(&setup, "fs/meta", &[&key]);
    for info in setup.engine.trees() {
        if info.name.starts_with(&format!("fs~{}/", bare.number)) {
            setup.engine.drop_tree(info.id).unwrap();
        }
    }
    let issues = setup.issues();
    let number = adrift.number;
    assert!(
        issues.contains(&Issue::CloneAdrift { number }),
        "{issues:?}"
    );
    let number = bare.number;
    assert!(issues.contains(&Issue::CloneWithoutTrees { number }));
    let engine: Arc<dyn Engine> = setup.engine.clone();
    let mut issues = issues;
    for _ in 0..5 {
        stitch_fs::fsck::repair(&engine, &issues).unwrap();
        issues = setup.issues();
    }
    assert_eq!(issues, []);
    let setup = setup.reopened();
    let [found] = &setup.fs.clones()[..] else {
        panic!("one is left");
    };
    let lost = setup.lookup(ROOT, "lost+found").unwrap().ino;
    assert_eq!(setup.names(lost), [format!("#{}", found.graft)]);
    assert_eq!(contents(open(&setup, found).fs(), source, "own"), b"own");
    assert_eq!(setup.names(ROOT), ["b", "lost+found", "src"]);
}

#[test]
fn a_check_looks_into_clones() {
    let setup = setup();
    let source = grow(&setup);
    let info = clone(&setup, source, "copy");
    delete(&setup, &format!("fs~{}/sys", info.number), &[b"n"]);
    let issues = setup.issues();
    assert!(
        matches!(&issues[..], [Issue::InClone { number, .. }] if *number == info.number),
        "{issues:?}"
    );
    let engine: Arc<dyn Engine> = setup.engine.clone();
    assert_eq!(stitch_fs::fsck::repair(&engine, &issues).unwrap(), 1);
    setup.check();
}
