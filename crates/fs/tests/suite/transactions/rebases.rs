//! Rebase, resolutions that hold or do not, expiry, removal of trees.

use super::random::shown;
use super::*;
use ConflictKind::{Inode, Name};
use stitch_base::clock::Timestamp;
use stitch_fs::{Side, TransactionLife, TransactionState};

fn rebase(setup: &Setup, view: &TransactionView) -> Arc<TransactionView> {
    let rebased = setup.fs.transactions().rebase(view);
    let rebased = rebased.expect("nothing conflicts");
    setup.check();
    rebased
}

fn open(setup: &Setup, name: &str) -> Arc<TransactionView> {
    setup.fs.transactions().open(name).expect("it is open")
}

#[test]
fn a_rebased_transaction_has_the_changes_of_both_sides() {
    let setup = setup();
    let top = dir(&setup.fs, ROOT, "d");
    file(&setup.fs, top, "kept", b"before");
    file(&setup.fs, top, "gone", b"before");
    file(&setup.fs, top, "moved", &[7; 50_000]);
    let view = begin(&setup, "work");
    let fs = view.fs();
    write(fs, ino(fs, "d/kept"), b"inside");
    unlink(fs, ino(fs, "d"), "gone");
    let new = dir(fs, dir(fs, ino(fs, "d"), "new"), "deep");
    rename(fs, (ino(fs, "d"), "moved"), (new, "moved"));
    file(fs, new, "large", &[8; 60_000]);
    setup.tick();
    dir(&setup.fs, dir(&setup.fs, top, "outside"), "deep");
    file(&setup.fs, ROOT, "later", b"outside");
    let (created, number) = (view.info().created, view.info().number);
    let rebased = rebase(&setup, &view);
    assert_eq!(rebased.info().created, created);
    assert!(rebased.info().number > number, "it is another one");
    let stale = view.fs().create(&SUPER, at(ROOT, "x"), &new_mode());
    assert!(matches!(stale, Err(FsError::Ended)));
    let again = setup.fs.transactions().commit(&view);
    assert!(matches!(again, Err(FsError::Ended)));
    let fs = rebased.fs();
    assert_eq!(contents(fs, "later"), b"outside");
    assert_eq!(contents(fs, "d/kept"), b"inside");
    assert_eq!(names_in(fs, ino(fs, "d")), ["kept", "new", "outside"]);
    assert_eq!(find(fs, "d").expect("it is there").nlink, 4);
    assert_eq!(contents(fs, "d/new/deep/large"), [8; 60_000]);
    let before = shown(fs);
    let expected = rebased.changes().expect("it is open");
    drop((view, rebased));
    let setup = setup.reopened();
    let rebased = open(&setup, "work");
    assert_eq!(shown(rebased.fs()), before, "it survives");
    assert_eq!(rebased.changes().expect("it is open"), expected);
    file(rebased.fs(), ROOT, "more", b"more");
    unlink(rebased.fs(), ino(rebased.fs(), "d/new/deep"), "large");
    let inside = shown(rebased.fs());
    commit(&setup, &rebased);
    assert_eq!(shown(&setup.fs), inside);
    setup.fs.reclaim().expect("there is room");
    setup.check();
}

fn new_mode() -> stitch_fs::NewNode {
    new(0o644)
}

#[test]
fn a_rebase_that_conflicts_changes_nothing() {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"before");
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "f"), b"inside");
    file(view.fs(), ROOT, "g", b"inside");
    setup.tick();
    write(&setup.fs, ino(&setup.fs, "f"), b"outside");
    file(&setup.fs, ROOT, "g", b"outside");
    let before = shown(view.fs());
    let Err(FsError::Conflict(found)) = setup.fs.transactions().rebase(&view) else {
        panic!("it conflicts");
    };
    let paths: Vec<&[u8]> = found.iter().map(|conflict| &conflict.path[..]).collect();
    assert_eq!(paths, [b"f", b"g"]);
    assert_eq!(shown(view.fs()), before);
    expect_conflicts(&setup, &view, &[("f", Inode), ("g", Name)]);
    let run = BeginOptions {
        life: TransactionLife::Run,
        ..BeginOptions::default()
    };
    let run = setup
        .fs
        .transactions()
        .begin("run", &run)
        .expect("it begins");
    let refused = setup.fs.transactions().rebase(&run);
    assert!(matches!(refused, Err(FsError::Invalid(_))));
}

#[test]
fn what_a_rebased_transaction_relies_on_stays_guarded() {
    let setup = setup();
    for names in [["a", "b"], ["x", "y"]] {
        dir(&setup.fs, dir(&setup.fs, ROOT, names[0]), names[1]);
    }
    let view = begin(&setup, "work");
    let fs = view.fs();
    ino(fs, "a");
    rename(fs, (ROOT, "a"), (ino(fs, "x/y"), "a"));
    file(&setup.fs, ROOT, "later", b"");
    let rebased = rebase(&setup, &view);
    ino(&setup.fs, "x");
    rename(&setup.fs, (ROOT, "x"), (ino(&setup.fs, "a/b"), "x"));
    expect_conflicts(&setup, &rebased, &[("x", Name)]);
}

#[test]
fn extents_and_back_rows_come_along() {
    let setup = setup();
    let both = file(&setup.fs, ROOT, "both", b"");
    let moved = file(&setup.fs, ROOT, "moved", b"1");
    let allocate = |fs: &FileSystem, ino, chunks: u64| {
        let mode = stitch_fs::FallocateMode::Allocate { keep_size: false };
        fs.fallocate(ino, mode, 0, chunks * 4096)
            .expect("there is room");
    };
    allocate(&setup.fs, both, 40);
    let view = begin(&setup, "work");
    let fs = view.fs();
    write(fs, ino(fs, "both"), &[5; 40_960]);
    let made = file(fs, dir(fs, ROOT, "d"), "new", b"");
    allocate(fs, made, 100);
    ino(fs, "moved");
    rename(fs, (ROOT, "moved"), (ino(fs, "d"), "moved"));
    let other = setup.file(ROOT, "other").ino;
    allocate(&setup.fs, other, 7);
    // From here on mainline keeps back rows.
    setup.fs.forget(moved, 1);
    setup.fs.look_up_number(moved).expect("its back row is put");
    setup.fs.forget(moved, 1);
    let rebased = rebase(&setup, &view);
    write(rebased.fs(), ino(rebased.fs(), "d/new"), &[6; 8192]);
    commit(&setup, &rebased);
    for ino in [moved, made] {
        let found = setup.fs.look_up_number(ino).expect("its back row is right");
        assert_eq!(found.ino, ino);
    }
    write(&setup.fs, both, &[6; 81_920]);
    setup.check();
}

#[test]
fn a_resolution_holds_for_what_was_seen() {
    let setup = setup();
    let inner = dir(&setup.fs, ROOT, "d");
    for name in ["f", "g"] {
        file(&setup.fs, inner, name, b"before");
    }
    let view = begin(&setup, "work");
    let fs = view.fs();
    for name in ["f", "g"] {
        write(fs, ino(fs, &format!("d/{name}")), b"inside");
        setup.tick();
        write(&setup.fs, ino(&setup.fs, &format!("d/{name}")), b"outside");
    }
    let resolve = |setup: &Setup, view: &TransactionView, path: &str, side| {
        setup.fs.transactions().resolve(view, path.as_bytes(), side)
    };
    for path in ["d/x", "e", "d/f/g", "d/"] {
        let none = resolve(&setup, &view, path, Side::Ours);
        assert!(matches!(none, Err(FsError::NotFound)), "{path}: {none:?}");
    }
    assert_eq!(resolve(&setup, &view, "d/f", Side::Ours).ok(), Some(1));
    expect_conflicts(&setup, &view, &[("d/g", Inode)]);
    let view = {
        drop(view);
        let name = "work";
        let setup = &setup;
        open(setup, name)
    };
    assert_eq!(resolve(&setup, &view, "d", Side::Theirs).ok(), Some(2));
    let sides = setup
        .fs
        .transactions()
        .conflicts(&view)
        .expect("it is open");
    assert!(sides.iter().all(|(_, side)| *side == Some(Side::Theirs)));
    assert_eq!(resolve(&setup, &view, "d/f", Side::Ours).ok(), Some(1));
    // Others change it again.
    setup.tick();
    write(&setup.fs, ino(&setup.fs, "d/f"), b"OUTSIDE");
    expect_conflicts(&setup, &view, &[("d/f", Inode), ("d/g", Inode)]);
    assert_eq!(resolve(&setup, &view, "", Side::Theirs).ok(), Some(2));
    assert_eq!(resolve(&setup, &view, "d/f", Side::Ours).ok(), Some(1));
    drop(view);
    let setup = setup.reopened();
    let view = open(&setup, "work");
    commit(&setup, &view);
    assert_eq!(contents(&setup.fs, "d/f"), b"inside");
    assert_eq!(contents(&setup.fs, "d/g"), b"outside");
    let ended = resolve(&setup, &view, "", Side::Ours);
    assert!(matches!(ended, Err(FsError::Ended)));
}

#[test]
fn what_others_put_below_is_seen() {
    let setup = setup();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "same", b"inside");
    let deep = dir(&setup.fs, dir(&setup.fs, ROOT, "same"), "deep");
    let resolved = setup.fs.transactions().resolve(&view, b"same", Side::Ours);
    assert_eq!(resolved.ok(), Some(1));
    // Neither the name nor its directory changes.
    file(&setup.fs, deep, "new", b"outside");
    expect_conflicts(&setup, &view, &[("same", Name)]);
    let resolved = setup.fs.transactions().resolve(&view, b"same", Side::Ours);
    assert_eq!(resolved.ok(), Some(1));
    commit(&setup, &view);
    assert_eq!(contents(&setup.fs, "same"), b"inside");
}

#[test]
fn a_time_of_expiry_is_changed_and_kept() {
    let setup = setup();
    let view = begin(&setup, "work");
    let number = view.info().number;
    let expires = |setup: &Setup| {
        let all = setup.fs.transactions().list().expect("they are read");
        all.iter().map(|info| info.expires).collect::<Vec<_>>()
    };
    assert_eq!(expires(&setup), [None]);
    let later = Timestamp(i64::MAX - 1);
    setup
        .fs
        .transactions()
        .expire(number, Some(later))
        .expect("it is open");
    let rebased = rebase(&setup, &view);
    assert_eq!(expires(&setup), [Some(later)]);
    let gone = setup.fs.transactions().expire(number, None);
    assert!(matches!(gone, Err(FsError::Ended)));
    drop((view, rebased));
    let setup = setup.reopened();
    let view = open(&setup, "work");
    assert_eq!(view.info().expires, Some(later));
    let born = setup.fs.get_attr(ROOT).expect("known").btime;
    let number = view.info().number;
    let due = setup.fs.transactions().expire(number, Some(born));
    due.expect("it is open");
    assert!(view.info().state == TransactionState::Open);
    drop(view);
    let setup = setup.reopened();
    assert_eq!(expires(&setup), []);
}

#[test]
fn a_tree_is_removed_in_a_transaction() {
    let setup = setup();
    let top = dir(&setup.fs, ROOT, "top");
    let inner = dir(&setup.fs, dir(&setup.fs, top, "a"), "b");
    for name in 0..300 {
        file(&setup.fs, inner, &format!("f{name}"), b"");
    }
    file(&setup.fs, inner, "large", &[1; 50_000]);
    let remove = |view: &TransactionView| {
        let at = at(ROOT, "top");
        let known = view.fs().known_inodes();
        let wrong = view.fs().remove_tree(&SUPER, at, Some(ROOT));
        assert!(matches!(wrong, Err(FsError::NotFound)));
        view.fs().remove_tree(&SUPER, at, None).expect("it may go");
        assert!(view.fs().known_inodes() <= known, "nothing is held");
        assert_eq!(names_in(view.fs(), ROOT), Vec::<String>::new());
    };
    let view = begin(&setup, "late");
    remove(&view);
    let other = begin(&setup, "work");
    file(view.fs(), ROOT, "own", b"");
    let plain = view.fs().remove_tree(&SUPER, at(ROOT, "own"), None);
    assert!(matches!(plain, Err(FsError::NotDir)));
    file(&setup.fs, inner, "new", b"");
    expect_conflicts(&setup, &view, &[("top/a/b", Name)]);
    remove(&other);
    let changes = other.changes();
    assert!(changes.is_ok_and(|changes| changes.len() > 300));
    setup.fs.transactions().abort("work").expect("it is open");
    let again = begin(&setup, "again");
    remove(&again);
    commit(&setup, &again);
    assert_eq!(setup.names(ROOT), Vec::<String>::new());
    setup.check();
    for ino in setup.fs.known_numbers() {
        setup.fs.forget(ino, u64::MAX);
    }
    setup.fs.reclaim().expect("there is room");
    assert_eq!((setup.rows("meta"), setup.rows("data")), (1, 0));
    setup.check();
}

#[test]
fn open_files_of_a_tree_that_a_transaction_removes_have_other_links() {
    let setup = setup();
    let top = dir(&setup.fs, ROOT, "top");
    for name in ["open", "closed"] {
        file(&setup.fs, top, name, b"");
    }
    let view = begin(&setup, "work");
    view.fs().readers_keep_contents();
    let look_up = |dir, name| view.fs().lookup(at(dir, name)).expect("it is there").ino;
    look_up(ROOT, "top");
    let open = look_up(top, "open");
    let removed = view.fs().remove_tree(&SUPER, at(ROOT, "top"), None);
    removed.expect("it may go");
    let notices = view.fs().send_notices(|kept| kept);
    assert_eq!(notices.attrs.into_iter().collect::<Vec<_>>(), [open]);
    assert!(notices.names.is_empty(), "the kernel has dropped them");
    assert_eq!(view.fs().get_attr(open).expect("known").nlink, 0);
}
