//! Directories at which clones lie, in a transaction: nothing of a clone is there, and so they
//! refuse what would take it for empty.

use super::*;
use stitch_fs::{CloneSource, Taken, XattrMode};

/// `/s/a`, `/w`, `/over`, and a clone of `/s` at `/w/c`.
fn with_clone() -> Setup {
    let setup = setup();
    let source = dir(&setup.fs, ROOT, "s");
    file(&setup.fs, source, "a", b"data");
    let above = dir(&setup.fs, ROOT, "w");
    dir(&setup.fs, ROOT, "over");
    let source = CloneSource {
        fs: &setup.fs,
        dir: source,
        snapshot: None,
    };
    let made = setup.fs.make_clone(&SUPER, &source, at(above, "c"));
    made.expect("a clone is made");
    setup
}

#[track_caller]
fn expect_refused<T: std::fmt::Debug>(result: FsResult<T>) {
    assert!(matches!(result, Err(FsError::Unsupported)), "{result:?}");
}

#[test]
fn nothing_in_a_clone_is_read() {
    let setup = with_clone();
    let view = begin(&setup, "work");
    let fs = view.fs();
    let graft = find(fs, "w/c").expect("its own attributes are there");
    assert_eq!(names_in(fs, ino(fs, "w")), ["c"]);
    expect_refused(fs.lookup(at(graft.ino, "a")));
    expect_refused(fs.stat(at(graft.ino, "a")));
    expect_refused(fs.read_dir(graft.ino, 0, &mut |_| Taken::More));
    expect_refused(fs.read_dir_plus(graft.ino, 0, &mut |_| Taken::More));
}

#[test]
fn nothing_in_a_clone_and_nothing_of_it_is_changed() {
    let setup = with_clone();
    let view = begin(&setup, "work");
    let fs = view.fs();
    let (above, graft) = (ino(fs, "w"), ino(fs, "w/c"));
    ino(fs, "over");
    expect_refused(fs.create(&SUPER, at(graft, "x"), &new(0o644)));
    expect_refused(fs.make_dir(&SUPER, at(graft, "x"), &new(0o755)));
    expect_refused(fs.make_temp_file(&SUPER, graft, &new(0o644)));
    expect_refused(fs.remove_dir(&SUPER, at(above, "c")));
    expect_refused(fs.remove_tree(&SUPER, at(ROOT, "w"), None));
    let (over, into) = (at(ROOT, "over"), RenameMode::Replace);
    expect_refused(fs.rename(&SUPER, over, at(above, "c"), into));
    expect_refused(fs.rename(&SUPER, over, at(graft, "x"), into));
    let set = SetAttr {
        perm: Some(0o700),
        ..SetAttr::default()
    };
    expect_refused(fs.set_attr(&SUPER, graft, &set));
    expect_refused(fs.set_xattr(&SUPER, graft, b"user.a", b"1", XattrMode::Set, false));
    assert_eq!(view.changes().expect("it is open"), []);
    commit(&setup, &view);
}

#[test]
fn a_clone_is_moved_by_a_transaction() {
    let setup = with_clone();
    let number = setup.fs.clones()[0].number;
    let view = begin(&setup, "work");
    let above = ino(view.fs(), "w");
    rename(view.fs(), (above, "c"), (ROOT, "moved"));
    expect_refused(view.fs().lookup(at(ino(view.fs(), "moved"), "a")));
    commit(&setup, &view);
    let moved = setup.fs.clone_at(ino(&setup.fs, "moved"));
    assert_eq!(moved.map(|info| info.number), Some(number));
    let clone = setup.fs.open_clone(number).expect("it opens");
    let data = clone.fs().lookup(at(clone.info().root, "a"));
    assert_eq!(
        contents_of(clone.fs(), data.expect("it stays").ino),
        b"data"
    );
}
