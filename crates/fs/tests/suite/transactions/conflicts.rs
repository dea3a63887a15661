//! What both sides change: the commit is refused and lists it.

use super::*;
use ConflictKind::{Inode, Name};
use stitch_fs::RollbackRights;

#[test]
fn one_name_made_twice() {
    let setup = setup();
    let (first, second) = (begin(&setup, "first"), begin(&setup, "second"));
    file(first.fs(), ROOT, "same", b"1");
    file(second.fs(), ROOT, "same", b"2");
    file(second.fs(), ROOT, "other", b"2");
    commit(&setup, &first);
    expect_conflicts(&setup, &second, &[("same", Name)]);
    assert_eq!(contents(&setup.fs, "same"), b"1");
    assert!(setup.lookup(ROOT, "other").is_err(), "all or nothing");
    // The transaction is whole: without what conflicts, it commits.
    rename(second.fs(), (ROOT, "same"), (ROOT, "same2"));
    expect_conflicts(&setup, &second, &[("same", Name)]);
    setup.fs.transactions().abort("second").expect("it is open");
    setup.check();
}

#[test]
fn one_file_written_twice() {
    let setup = setup();
    let inner = setup.dir(ROOT, "dir").ino;
    for len in [10, 100_000] {
        let name = format!("f{len}");
        file(&setup.fs, inner, &name, &vec![1; len]);
        let view = begin(&setup, &name);
        let path = format!("dir/{name}");
        write(view.fs(), ino(view.fs(), &path), b"inside");
        write(&setup.fs, ino(&setup.fs, &path), b"outside");
        let view_path: &[(&str, ConflictKind)] = &[(&path, Inode)];
        expect_conflicts(&setup, &view, view_path);
        assert_eq!(contents(&setup.fs, &path)[..7], *b"outside");
        assert_eq!(contents(view.fs(), &path)[..6], *b"inside");
    }
}

#[test]
fn a_directory_removed_and_filled() {
    let setup = setup();
    let (one, two) = (setup.dir(ROOT, "one").ino, setup.dir(ROOT, "two").ino);
    let view = begin(&setup, "work");
    let fs = view.fs();
    ino(fs, "one");
    fs.remove_dir(&SUPER, at(ROOT, "one")).expect("it is empty");
    file(fs, ino(fs, "two"), "inside", b"");
    setup.file(one, "outside");
    setup
        .fs
        .remove_dir(&SUPER, at(ROOT, "two"))
        .expect("it is empty");
    expect_conflicts(&setup, &view, &[("one", Name), ("two", Name)]);
    assert_eq!(setup.names(one), ["outside"]);
    assert_eq!(setup.attr(two).nlink, 0);
}

#[test]
fn a_file_removed_and_written() {
    let setup = setup();
    for name in ["a", "b"] {
        file(&setup.fs, ROOT, name, b"old");
    }
    let view = begin(&setup, "work");
    unlink(view.fs(), ROOT, "a");
    write(&setup.fs, ino(&setup.fs, "a"), b"new");
    write(view.fs(), ino(view.fs(), "b"), b"new");
    unlink(&setup.fs, ROOT, "b");
    expect_conflicts(&setup, &view, &[("a", Name), ("b", Name)]);
}

#[test]
fn attributes_changed_twice() {
    let setup = setup();
    let (file, dir) = (file(&setup.fs, ROOT, "f", b""), setup.dir(ROOT, "d").ino);
    let view = begin(&setup, "work");
    for (path, known) in [("f", file), ("d", dir)] {
        chmod(view.fs(), ino(view.fs(), path), 0o700);
        chmod(&setup.fs, known, 0o600);
    }
    expect_conflicts(&setup, &view, &[("d", Inode), ("f", Inode)]);
    assert_eq!(setup.attr(file).perm, 0o600);
}

#[test]
fn a_file_with_several_names_linked_twice() {
    let setup = setup();
    let known = file(&setup.fs, ROOT, "f", b"");
    setup
        .fs
        .link(&SUPER, known, at(ROOT, "g"))
        .expect("a free name");
    let view = begin(&setup, "work");
    unlink(view.fs(), ROOT, "f");
    unlink(&setup.fs, ROOT, "g");
    let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&view) else {
        panic!("both count its names");
    };
    assert_eq!(
        (found.len(), found[0].ino, found[0].kind),
        (1, known, Inode)
    );
    assert_eq!(setup.attr(known).nlink, 1);
    setup.check();
}

#[test]
fn a_parent_renamed() {
    let setup = setup();
    setup.dir(ROOT, "d");
    let view = begin(&setup, "work");
    file(view.fs(), ino(view.fs(), "d"), "inside", b"");
    rename(&setup.fs, (ROOT, "d"), (ROOT, "e"));
    expect_conflicts(&setup, &view, &[("d", Name)]);
}

/// Builds `a/b/c` and `x/y/z`.
fn two_chains(setup: &Setup) {
    for names in [["a", "b", "c"], ["x", "y", "z"]] {
        let top = dir(&setup.fs, ROOT, names[0]);
        dir(&setup.fs, dir(&setup.fs, top, names[1]), names[2]);
    }
}

#[test]
fn directories_moved_into_each_other() {
    let setup = setup();
    two_chains(&setup);
    let view = begin(&setup, "work");
    let fs = view.fs();
    ino(fs, "a");
    rename(fs, (ROOT, "a"), (ino(fs, "x/y/z"), "a"));
    let below = ino(&setup.fs, "a/b/c");
    rename(&setup.fs, (ROOT, "x"), (below, "x"));
    expect_conflicts(&setup, &view, &[("x", Name)]);
    // Mainline has moved none of those above: no conflict.
    let view = begin(&setup, "again");
    let fs = view.fs();
    rename(fs, (ino(fs, "a/b/c/x"), "y"), (ROOT, "y"));
    setup.file(ino(&setup.fs, "a/b"), "new");
    commit(&setup, &view);
    assert_eq!(setup.names(ROOT), ["a", "y"]);
}

#[test]
fn a_directory_exchanged_below_one_that_moved() {
    let setup = setup();
    two_chains(&setup);
    let view = begin(&setup, "work");
    let fs = view.fs();
    let (deep, top) = (ino(fs, "x/y"), ino(fs, "a"));
    let (source, target) = (at(top, "b"), at(deep, "z"));
    fs.rename(&SUPER, source, target, RenameMode::Exchange)
        .expect("both are there");
    rename(&setup.fs, (ROOT, "x"), (ino(&setup.fs, "a/b/c"), "x"));
    expect_conflicts(&setup, &view, &[("x", Name)]);
}

#[test]
fn what_mainline_put_back_is_no_conflict() {
    let setup = setup();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "f", b"inside");
    file(&setup.fs, ROOT, "f", b"outside");
    unlink(&setup.fs, ROOT, "f");
    commit(&setup, &view);
    assert_eq!(contents(&setup.fs, "f"), b"inside");
}

/// Expects conflicts at these paths, in a store in which a tree was removed and is not empty yet.
fn expect_conflicts_in_removed(setup: &Setup, view: &TransactionView, expected: &[&str]) {
    assert!(setup.fs.detached_dirs() > 0, "it is not empty yet");
    let refused = setup.fs.transactions().commit(view);
    let Err(FsError::Conflict(found)) = refused else {
        panic!("{refused:?}");
    };
    let paths = found
        .iter()
        .map(|conflict| String::from_utf8_lossy(&conflict.path));
    assert_eq!(paths.collect::<Vec<_>>(), expected);
}

/// A tree of two directories and a file, `dir/sub/f`.
fn tree_of_two(setup: &Setup) {
    let sub = setup.dir(setup.dir(ROOT, "dir").ino, "sub").ino;
    file(&setup.fs, sub, "f", b"before");
}

fn remove_tree(setup: &Setup) {
    let removed = setup.fs.remove_tree(&SUPER, at(ROOT, "dir"), None);
    removed.expect("it is there");
}

/// Regression: names below a tree that was removed are there until it is emptied. Until then what a
/// transaction wrote there went with them, and its commit succeeded.
#[test]
fn a_file_is_written_in_a_tree_that_was_removed() {
    let setup = setup();
    tree_of_two(&setup);
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "dir/sub/f"), b"inside");
    remove_tree(&setup);
    expect_conflicts_in_removed(&setup, &view, &["dir/sub/f"]);
    assert_eq!(contents(view.fs(), "dir/sub/f"), b"inside");
    setup.fs.transactions().abort("work").expect("it is open");
    setup.check();
}

#[test]
fn a_file_is_made_in_a_tree_that_was_removed() {
    let setup = setup();
    tree_of_two(&setup);
    let view = begin(&setup, "work");
    file(view.fs(), ino(view.fs(), "dir/sub"), "new", b"inside");
    remove_tree(&setup);
    expect_conflicts_in_removed(&setup, &view, &["dir/sub"]);
    setup.fs.transactions().abort("work").expect("it is open");
    setup.check();
}

/// A rollback removes trees in the same way.
#[test]
fn a_file_is_written_in_a_tree_that_a_rollback_removes() {
    let setup = setup();
    let top = setup.dir(ROOT, "top").ino;
    setup.fs.snapshots().create(top, "mon").expect("it pins");
    let sub = setup.dir(setup.dir(top, "dir").ino, "sub").ino;
    file(&setup.fs, sub, "f", b"before");
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "top/dir/sub/f"), b"inside");
    let done = setup.fs.roll_back("mon", top, RollbackRights::default());
    done.expect("it rolls back");
    expect_conflicts_in_removed(&setup, &view, &["top/dir/sub/f"]);
    setup.fs.transactions().abort("work").expect("it is open");
    setup.check();
}
