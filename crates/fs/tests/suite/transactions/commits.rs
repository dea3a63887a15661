//! What mainline sees of a transaction, before and after its commit.

use super::*;
use stitch_fs::XattrMode;

#[test]
fn mainline_sees_nothing_before_the_commit_and_all_of_it_afterwards() {
    let setup = setup();
    let old = setup.dir(ROOT, "old").ino;
    let kept = file(&setup.fs, old, "kept", b"before");
    file(&setup.fs, old, "gone", b"bytes");
    let view = begin(&setup, "work");
    let fs = view.fs();
    let inside = ino(fs, "old");
    assert_eq!(inside, old, "numbers are the same");
    write(fs, ino(fs, "old/kept"), b"AFTER!");
    unlink(fs, inside, "gone");
    let deep = dir(fs, dir(fs, inside, "a"), "b");
    let large = file(fs, deep, "large", &[7; 100_000]);
    fs.set_xattr(&SUPER, large, b"user.x", b"1", XattrMode::Set, false)
        .expect("it is known");
    assert_eq!(setup.names(old), ["gone", "kept"]);
    assert_eq!(setup.contents(kept), b"before");
    assert!(setup.lookup(old, "a").is_err(), "a negative entry is noted");
    let before = setup.attr(old);
    commit(&setup, &view);
    assert_eq!(setup.names(old), ["a", "kept"]);
    assert_eq!(setup.contents(kept), b"AFTER!");
    assert_eq!(contents(&setup.fs, "old/a/b/large"), [7; 100_000]);
    assert_eq!(ino(&setup.fs, "old/a/b/large"), large);
    let value = setup.fs.get_xattr(&SUPER, large, b"user.x");
    assert_eq!(&value.expect("it is set")[..], b"1");
    assert_eq!(setup.attr(old).nlink, before.nlink + 1);
    assert!(setup.lookup(old, "gone").is_err());
    let next = setup.file(old, "next");
    assert!(next.ino > large, "numbers are used once");
}

#[test]
fn a_transaction_does_not_see_what_mainline_does_meanwhile() {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"one");
    let view = begin(&setup, "work");
    setup.write(ino(&setup.fs, "f"), 0, b"two");
    setup.file(ROOT, "later");
    assert_eq!(contents(view.fs(), "f"), b"one");
    assert_eq!(names_in(view.fs(), ROOT), ["f"]);
    file(view.fs(), ROOT, "own", b"own");
    commit(&setup, &view);
    assert_eq!(setup.names(ROOT), ["f", "later", "own"]);
    assert_eq!(contents(&setup.fs, "f"), b"two");
}

#[test]
fn names_made_in_one_directory_join_with_links_and_times() {
    let setup = setup();
    let shared = setup.dir(ROOT, "shared").ino;
    let (first, second) = (begin(&setup, "first"), begin(&setup, "second"));
    setup.tick();
    dir(first.fs(), ino(first.fs(), "shared"), "a");
    setup.tick();
    let last = dir(second.fs(), ino(second.fs(), "shared"), "b");
    let time = second.fs().get_attr(last).expect("it is known").mtime;
    commit(&setup, &second);
    assert_eq!(setup.attr(shared).nlink, 3);
    // The one that was changed earlier is committed later.
    commit(&setup, &first);
    let attr = setup.attr(shared);
    assert_eq!((attr.nlink, attr.mtime, attr.ctime), (4, time, time));
    assert_eq!(setup.names(shared), ["a", "b"]);
    assert_eq!(setup.attr(ROOT).nlink, 3);
    let setup = setup.reopened();
    assert_eq!(find(&setup.fs, "shared").expect("it is there").nlink, 4);
}

#[test]
fn a_file_that_is_open_outside_is_readable_until_it_is_closed() {
    let setup = setup();
    let data = vec![9; 50_000];
    let small = file(&setup.fs, ROOT, "small", b"small");
    let large = file(&setup.fs, ROOT, "large", &data);
    let unused = file(&setup.fs, ROOT, "unused", &data);
    setup.fs.forget(unused, 1);
    let rows = setup.rows("data");
    let view = begin(&setup, "work");
    for name in ["small", "large", "unused"] {
        unlink(view.fs(), ROOT, name);
    }
    commit(&setup, &view);
    assert_eq!(setup.names(ROOT), Vec::<String>::new());
    assert_eq!(setup.contents(small), b"small");
    assert_eq!(setup.contents(large), data);
    assert_eq!(setup.attr(large).nlink, 0);
    assert_eq!(
        setup.fs.reclaim().expect("there is room"),
        1,
        "the unused one"
    );
    assert!(setup.rows("data") < rows);
    setup.fs.forget(small, 1);
    setup.fs.forget(large, 1);
    assert_eq!(setup.fs.reclaim().expect("there is room"), 2);
    assert_eq!(setup.rows("data"), 0);
    setup.check();
}

#[test]
fn what_a_transaction_made_and_removed_leaves_nothing() {
    let setup = setup();
    let view = begin(&setup, "work");
    let fs = view.fs();
    let temp = file(fs, ROOT, "temp", &[1; 50_000]);
    unlink(fs, ROOT, "temp");
    fs.forget(temp, 1);
    assert_eq!(fs.reclaim().expect("there is room"), 1);
    let open = file(fs, ROOT, "open", &[1; 50_000]);
    unlink(fs, ROOT, "open");
    assert_eq!(fs.get_attr(open).expect("it is open").nlink, 0);
    commit(&setup, &view);
    setup.fs.reclaim().expect("there is room");
    assert_eq!((setup.rows("meta"), setup.rows("data")), (1, 0));
    setup.check();
}

#[test]
fn directories_that_mainline_knows_move_below_new_ones() {
    let setup = setup();
    let known = dir(&setup.fs, dir(&setup.fs, ROOT, "a"), "known");
    let inner = file(&setup.fs, known, "inner", b"inner");
    let view = begin(&setup, "work");
    let fs = view.fs();
    let deep = dir(fs, dir(fs, ROOT, "n"), "m");
    rename(fs, (ino(fs, "a"), "known"), (deep, "moved"));
    commit(&setup, &view);
    assert_eq!(ino(&setup.fs, "n/m/moved/inner"), inner);
    let up = setup.lookup(known, "..").expect("it has a parent");
    assert_eq!(up.ino, deep);
    let file = setup.file(known, "next").ino;
    assert_eq!(ino(&setup.fs, "n/m/moved/next"), file);
    assert_eq!(find(&setup.fs, "a").expect("it stays").nlink, 2);
    setup.check();
}

#[test]
fn links_and_replaced_names_are_known_at_once() {
    let setup = setup();
    let one = file(&setup.fs, ROOT, "one", b"one");
    let two = file(&setup.fs, ROOT, "two", b"two");
    let view = begin(&setup, "work");
    let fs = view.fs();
    let inside = ino(fs, "one");
    fs.link(&SUPER, inside, at(ROOT, "again"))
        .expect("a free name");
    ino(fs, "two");
    let new = file(fs, ROOT, "new", b"new");
    rename(fs, (ROOT, "new"), (ROOT, "two"));
    let committed = setup.fs.transactions().commit(&view).expect("commits");
    let names: Vec<&[u8]> = committed.names.iter().map(|(_, name)| &name[..]).collect();
    assert!(names.contains(&&b"again"[..]) && names.contains(&&b"two"[..]));
    assert!(
        !names.contains(&&b"one"[..]),
        "it stands for the same inode"
    );
    assert!(committed.inodes.contains(&one) && committed.inodes.contains(&two));
    assert!(!committed.inodes.contains(&new), "it was never looked up");
    assert_eq!(setup.attr(one).nlink, 2);
    assert_eq!(setup.attr(two).nlink, 0);
    assert_eq!(ino(&setup.fs, "two"), new);
    assert_eq!(contents(&setup.fs, "again"), b"one");
    unlink(&setup.fs, ROOT, "one");
    assert_eq!(setup.attr(one).nlink, 1);
    setup.check();
}

#[test]
fn reads_in_mainline_are_no_conflict() {
    let setup = setup_with(|options| options.atime = stitch_fs::AtimePolicy::Strictatime);
    let read = file(&setup.fs, ROOT, "read", b"bytes");
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "read"), b"other");
    setup.tick();
    assert_eq!(setup.contents(read), b"bytes");
    let atime = setup.attr(read).atime;
    setup.names(ROOT);
    commit(&setup, &view);
    assert_eq!(setup.contents(read), b"other");
    assert!(setup.attr(read).atime >= atime);
}

#[test]
fn back_rows_that_mainline_keeps_meanwhile_are_complete() {
    let setup = setup();
    let moved = file(&setup.fs, ROOT, "moved", b"1");
    let linked = file(&setup.fs, ROOT, "linked", b"2");
    let view = begin(&setup, "work");
    let fs = view.fs();
    let inner = dir(fs, ROOT, "dir");
    ino(fs, "moved");
    rename(fs, (ROOT, "moved"), (inner, "there"));
    fs.link(&SUPER, ino(fs, "linked"), at(inner, "too"))
        .expect("a free name");
    let made = file(fs, inner, "made", b"3");
    for ino in [moved, linked] {
        setup.fs.forget(ino, 1);
        setup.fs.look_up_number(ino).expect("its back row is put");
        setup.fs.forget(ino, 1);
    }
    commit(&setup, &view);
    for ino in [moved, linked, made] {
        let found = setup.fs.look_up_number(ino).expect("its back row is right");
        assert_eq!(found.ino, ino);
    }
    setup.check();
}

#[test]
fn allocated_extents_come_along() {
    let setup = setup();
    let both = file(&setup.fs, ROOT, "both", b"");
    let allocate = |fs: &FileSystem, ino, chunks: u64| {
        let mode = stitch_fs::FallocateMode::Allocate { keep_size: false };
        fs.fallocate(ino, mode, 0, chunks * 4096)
            .expect("there is room");
    };
    allocate(&setup.fs, both, 40);
    let view = begin(&setup, "work");
    let fs = view.fs();
    write(fs, ino(fs, "both"), &[5; 40_960]);
    let new = fs.create(&SUPER, at(ROOT, "new"), &super::new(0o644));
    allocate(fs, new.expect("a free name").ino, 100);
    let other = setup.file(ROOT, "other").ino;
    allocate(&setup.fs, other, 7);
    commit(&setup, &view);
    write(&setup.fs, both, &[6; 81_920]);
    write(&setup.fs, ino(&setup.fs, "new"), &[7; 81_920]);
    assert_eq!(contents(&setup.fs, "both")[..81_920], [6; 81_920]);
    setup.check();
}

/// By rename(2) it does nothing, so there is nothing to commit and nothing to be in conflict with.
#[test]
fn a_rename_of_a_name_to_itself_is_no_change() {
    let setup = setup();
    let ino = file(&setup.fs, ROOT, "f", b"one");
    let view = begin(&setup, "work");
    let found = view.fs().lookup(at(ROOT, "f")).expect("it is there").ino;
    assert_eq!(found, ino, "numbers are the same");
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let renamed = view.fs().rename(&SUPER, at(ROOT, "f"), at(ROOT, "f"), mode);
        renamed.expect("it does nothing");
    }
    setup.tick();
    unlink(&setup.fs, ROOT, "f");
    commit(&setup, &view);
    assert_eq!(setup.names(ROOT), [""; 0]);
}

#[test]
fn what_was_written_after_a_read_ahead_is_committed_too() {
    type Change = fn(&FileSystem);
    let changes: [(&str, Change); 5] = [
        ("nothing", |_| {}),
        ("a new name", |fs| {
            assert!(file(fs, ROOT, "new", b"new").0 > 0)
        }),
        ("contents", |fs| write(fs, ino(fs, "dir/kept"), b"LATER")),
        ("a removal", |fs| unlink(fs, ino(fs, "dir"), "gone")),
        ("attributes", |fs| {
            let kept = ino(fs, "dir/kept");
            fs.set_xattr(&SUPER, kept, b"user.x", b"1", XattrMode::Set, false)
                .expect("it is known");
        }),
    ];
    for (what, change) in changes {
        let setup = setup();
        let view = begin(&setup, "work");
        let inside = dir(view.fs(), ROOT, "dir");
        file(view.fs(), inside, "kept", b"first");
        file(view.fs(), inside, "gone", b"bytes");
        let transactions = setup.fs.transactions();
        let ahead = transactions.read_ahead(&view).expect("it is open");
        change(view.fs());
        let expected = view.changes().expect("it is open");
        let committed = transactions.commit_ahead(&view, ahead);
        committed.unwrap_or_else(|error| panic!("{what}: {error}"));
        setup.check();
        let names = names_in(&setup.fs, ino(&setup.fs, "dir"));
        assert_eq!(
            names.len(),
            if what == "a removal" { 1 } else { 2 },
            "{what}"
        );
        let kept = contents(&setup.fs, "dir/kept");
        assert_eq!(
            kept,
            if what == "contents" {
                b"LATER"
            } else {
                b"first"
            },
            "{what}"
        );
        let xattr = setup
            .fs
            .get_xattr(&SUPER, ino(&setup.fs, "dir/kept"), b"user.x");
        assert_eq!(xattr.is_ok(), what == "attributes", "{what}");
        assert_eq!(
            find(&setup.fs, "new").is_ok(),
            what == "a new name",
            "{what}"
        );
        assert!(!expected.is_empty(), "{what}");
    }
}

#[test]
fn what_was_read_of_another_transaction_is_not_used() {
    let setup = setup();
    let (first, second) = (begin(&setup, "first"), begin(&setup, "second"));
    file(first.fs(), ROOT, "first", b"1");
    file(second.fs(), ROOT, "second", b"2");
    let transactions = setup.fs.transactions();
    let ahead = transactions.read_ahead(&first).expect("it is open");
    let committed = transactions.commit_ahead(&second, ahead);
    committed.expect("nothing conflicts");
    setup.check();
    assert_eq!(setup.names(ROOT), ["second"]);
    assert_eq!(setup.attr(ROOT).nlink, 2);
}

#[test]
fn a_conflict_after_a_read_ahead_is_found() {
    let setup = setup();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "same", b"ours");
    let transactions = setup.fs.transactions();
    let ahead = transactions.read_ahead(&view).expect("it is open");
    file(&setup.fs, ROOT, "same", b"theirs");
    let refused = transactions.commit_ahead(&view, ahead);
    assert!(matches!(refused, Err(FsError::Conflict(found)) if found.len() == 1));
    expect_conflicts(&setup, &view, &[("same", ConflictKind::Name)]);
}
