//! Directories at which clones lie, in a transaction: its file system refuses what would take them
//! for empty. A pin shows the clones as they were when it began.

use super::*;
use stitch_fs::{CloneSource, SnapshotPart, SnapshotView, Taken, XattrMode};

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
fn nothing_in_a_clone_is_read_from_its_trees() {
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

/// The clone that a transaction shows at a path, opened.
pub(super) fn shown(
    setup: &Setup,
    view: &TransactionView,
    path: &str,
) -> (SnapshotView, SnapshotPart) {
    let graft = ino(view.fs(), path);
    let shown = view.fs().shown_clone_at(graft).expect("a clone is shown");
    let past = setup.fs.history().open_pinned(shown.pin).expect("a pin");
    let (part, _) = past.part(past.info().root).expect("it is known");
    let clone = past.clone_in(&part, graft).expect("it opens");
    let clone = clone.expect("a clone lies there");
    assert_eq!(shown.number, Some(clone.number(clone.root())));
    (past, clone)
}

fn shown_contents(setup: &Setup, view: &TransactionView, path: &str, name: &str) -> Vec<u8> {
    let (_past, clone) = shown(setup, view, path);
    let found = clone.fs().lookup(at(clone.root(), name)).expect("a file");
    contents_of(clone.fs(), found.ino)
}

/// Writes to `a` in the clone that lies at a path of mainline.
fn write_in_clone(setup: &Setup, path: &str, data: &[u8]) {
    let number = setup.fs.clone_at(ino(&setup.fs, path)).expect("a clone");
    let clone = setup.fs.open_clone(number.number).expect("it opens");
    let found = clone.fs().lookup(at(clone.info().root, "a"));
    write(clone.fs(), found.expect("a file").ino, data);
}

/// The numbers of transactions that have pins.
fn pinned(setup: &Setup) -> Vec<u64> {
    let pins = setup.fs.engine().pins().expect("they are listed");
    let pins = pins.iter().filter_map(|pin| pin.name.strip_prefix("txn/"));
    pins.map(|number| number.parse().expect("a number"))
        .collect()
}

fn begin_as(setup: &Setup, name: &str, options: &BeginOptions) -> Arc<TransactionView> {
    let begun = setup.fs.transactions().begin(name, options);
    begun.expect("it begins")
}

#[test]
fn clones_are_shown_as_they_were_when_it_began() {
    let setup = with_clone();
    write_in_clone(&setup, "w/c", b"then");
    let clone = setup.fs.clones()[0].number;
    let inner = setup.fs.open_clone(clone).expect("it opens");
    let source = CloneSource {
        fs: &setup.fs,
        dir: ino(&setup.fs, "s"),
        snapshot: None,
    };
    let place = at(inner.info().root, "inner");
    let made = inner.fs().make_clone(&SUPER, &source, place);
    made.expect("a clone in the clone");
    let view = begin(&setup, "work");
    write_in_clone(&setup, "w/c", b"late");
    let made = setup.fs.make_clone(&SUPER, &source, at(ROOT, "late"));
    made.expect("a clone is made");
    drop(inner);
    let removed = setup.fs.remove_tree(&SUPER, at(ROOT, "w"), None);
    removed.expect("the clone goes with its directory");
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(64).expect("there is room");
    }
    setup.fs.reclaim().expect("there is room");
    let left: Vec<u64> = setup.fs.clones().iter().map(|info| info.number).collect();
    assert!(!left.contains(&clone), "it is gone outside: {left:?}");
    assert_eq!(shown_contents(&setup, &view, "w/c", "a"), b"then");
    let (past, clone) = shown(&setup, &view, "w/c");
    let graft = clone.fs().lookup(at(clone.root(), "inner"));
    let inner = past.clone_in(&clone, graft.expect("its name").ino);
    let inner = inner.expect("it opens").expect("a clone lies there");
    let data = inner.fs().lookup(at(inner.root(), "a")).expect("a file");
    assert_eq!(contents_of(inner.fs(), data.ino), b"data");
    let refused = inner
        .fs()
        .create(&SUPER, at(inner.root(), "x"), &new(0o644));
    assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
    assert!(find(view.fs(), "late").is_err(), "it was made later");
}

#[test]
fn a_clone_that_is_renamed_in_it_is_shown_under_its_new_name() {
    let setup = with_clone();
    let view = begin(&setup, "work");
    let above = ino(view.fs(), "w");
    rename(view.fs(), (above, "c"), (ROOT, "moved"));
    assert_eq!(shown_contents(&setup, &view, "moved", "a"), b"data");
    commit(&setup, &view);
    write_in_clone(&setup, "moved", b"more");
}

#[test]
fn the_pin_goes_with_the_transaction() {
    let setup = with_clone();
    for is_committed in [true, false] {
        let view = begin(&setup, "work");
        assert_eq!(pinned(&setup), [view.info().number]);
        assert_eq!(setup.fs.snapshots().list().expect("listed"), []);
        assert_eq!(setup.fs.history().moments().expect("listed"), []);
        file(view.fs(), ROOT, &format!("f-{is_committed}"), b"1");
        match is_committed {
            true => commit(&setup, &view),
            false => setup.fs.transactions().abort("work").expect("it is open"),
        }
        assert_eq!(pinned(&setup), []);
        setup.check();
    }
    let view = begin(&setup, "work");
    write_in_clone(&setup, "w/c", b"next");
    let rebased = setup.fs.transactions().rebase(&view).expect("it can be");
    assert_eq!(pinned(&setup), [rebased.info().number]);
    assert_eq!(shown_contents(&setup, &rebased, "w/c", "a"), b"next");
    // A conflict changes nothing.
    file(rebased.fs(), ROOT, "f", b"2");
    file(&setup.fs, ROOT, "new", b"");
    file(rebased.fs(), ROOT, "new", b"");
    let refused = setup.fs.transactions().rebase(&rebased);
    assert!(matches!(refused, Err(FsError::Conflict(_))));
    assert_eq!(pinned(&setup), [rebased.info().number]);
}

#[test]
fn a_named_one_shows_the_same_in_the_next_life_and_no_pin_of_a_run_is_left() {
    let setup = with_clone();
    let run = BeginOptions {
        life: stitch_fs::TransactionLife::Run,
        ..BeginOptions::default()
    };
    let (named, run) = (begin(&setup, "work"), begin_as(&setup, "run", &run));
    let numbers = [named.info().number, run.info().number];
    assert_eq!(pinned(&setup), numbers);
    write_in_clone(&setup, "w/c", b"next");
    let engine = setup.fs.engine();
    engine
        .create_pin("txn/99999", b"")
        .expect("as a crash leaves it");
    engine.create_pin("txn/x", b"").expect("of something else");
    setup.fs.sync().expect("it is on the medium");
    drop((named, run));
    let setup = setup.reopened();
    let names = setup.fs.engine().pins().expect("they are listed");
    let names: Vec<&str> = names.iter().map(|pin| pin.name.as_str()).collect();
    assert_eq!(names, [&format!("txn/{}", numbers[0]), "txn/x"]);
    let named = setup.fs.transactions().open("work").expect("it is open");
    assert_eq!(shown_contents(&setup, &named, "w/c", "a"), b"data");
    setup.fs.engine().drop_pin("txn/x").expect("it is there");
    setup.fs.transactions().abort("work").expect("it is open");
    assert_eq!(pinned(&setup), []);
    setup.check();
}

#[test]
fn one_in_another_shows_what_the_outer_one_shows() {
    let setup = with_clone();
    let outer = begin(&setup, "outer");
    write_in_clone(&setup, "w/c", b"next");
    let inner = super::nested::begin_in(&setup, &outer, "inner");
    assert_eq!(pinned(&setup), [outer.info().number]);
    assert_eq!(shown_contents(&setup, &inner, "w/c", "a"), b"data");
    commit(&setup, &inner);
    assert_eq!(shown_contents(&setup, &outer, "w/c", "a"), b"data");
    let inner = super::nested::begin_in(&setup, &outer, "inner");
    drop(inner);
    setup.fs.transactions().abort("outer").expect("it is open");
    assert_eq!(pinned(&setup), []);
}

#[test]
fn a_store_without_clones_has_no_pins_and_a_serializable_one_has_one() {
    let setup = setup();
    let view = begin(&setup, "work");
    assert_eq!(pinned(&setup), []);
    commit(&setup, &view);
    let setup = with_clone();
    let options = BeginOptions {
        isolation: stitch_fs::TransactionIsolation::Serializable,
        ..BeginOptions::default()
    };
    let view = begin_as(&setup, "work", &options);
    assert_eq!(pinned(&setup), [view.info().number]);
    write_in_clone(&setup, "w/c", b"next");
    assert_eq!(shown_contents(&setup, &view, "w/c", "a"), b"data");
    expect_refused(view.fs().lookup(at(ino(view.fs(), "w/c"), "a")));
}
