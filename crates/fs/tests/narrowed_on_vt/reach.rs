//! What is reached in a narrowed snapshot, its clones, and after a rollback to it.

use crate::side::{
    SUPER, Side, assert_contents, assert_files, assert_populated, contents, options, overwrite,
    populate, write,
};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_fs::{
    CloneInfo, CloneSource, DirAt, DirName, FileSystem, FsError, FsOptions, NewNode, RenameMode,
    RollbackRights, WriteOptions,
};
use stitch_kv::PinInfo;

const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

impl Side {
    fn snapshot(&self, dir: Ino, name: &str) {
        let before = self.narrow();
        self.fs.snapshots().create(dir, name).expect("is made");
        assert_eq!(self.narrow(), before + 1, "it is narrowed");
    }

    fn clone_of(
        &self,
        (fs, dir): (&FileSystem, Ino),
        snapshot: Option<&str>,
        to: &str,
    ) -> CloneInfo {
        let of = CloneSource { fs, dir, snapshot };
        let at = DirName::new(Ino::ROOT, to.as_bytes());
        self.fs.make_clone(&SUPER, &of, at).expect("is made")
    }

    fn clone_of_snapshot(&self, name: &str, to: &str) -> CloneInfo {
        let view = self.fs.snapshots().open(name).expect("opens");
        self.clone_of((view.fs(), view.info().root), Some(name), to)
    }

    fn destroy(&self, info: &CloneInfo, name: &str) {
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        let removed = self.fs.remove_tree(&SUPER, at, Some(info.graft));
        removed.expect("is removed");
        self.fs.reclaim().expect("its trees go");
    }

    fn changed_paths(&self, old: DirAt, new: DirAt) -> Vec<String> {
        let changes = self.fs.differences((old, new), None).expect("are listed");
        let path = |path: &[u8]| String::from_utf8(path.to_vec()).expect("is text");
        changes.iter().map(|change| path(change.path())).collect()
    }
}

/// Files outside of a directory: one with a single name, one with two, and a directory.
fn outside(side: &Side, other: Ino) -> [Ino; 4] {
    let apart = side.known(other, "file 1");
    let again = DirName::new(other, b"again");
    side.fs.link(&SUPER, apart, again).expect("succeeds");
    let large = side.known(other, "large");
    let again = DirName::new(other, b"large again");
    side.fs.link(&SUPER, large, again).expect("succeeds");
    [side.known(other, "file 2"), apart, large, other]
}

#[track_caller]
fn assert_not_reached(fs: &FileSystem, root: Ino, outside: &[Ino]) {
    for &ino in outside.iter().chain(&[Ino::ROOT]) {
        let found = fs.look_up_number_below(root, ino);
        assert!(matches!(found, Err(FsError::Stale(_))), "{ino}: {found:?}");
    }
    let link = fs.lookup(DirName::new(root, b"link"));
    let link = link.expect("it is there").ino;
    let found = fs.look_up_number_below(root, link);
    assert_eq!(found.expect("it is below").ino, link);
    let inner = fs.lookup(DirName::new(root, b"inner"));
    let inner = inner.expect("it is there").ino;
    assert!(fs.look_up_number_below(root, inner).is_ok());
}

#[test]
fn a_deep_file_of_a_clone_is_found_by_its_number_when_nothing_is_known() {
    let side = Side::new();
    let (dir, _) = populate(&side);
    let clone = side.clone_of((&side.fs, dir), None, "copy");
    let opened = side.fs.open_clone(clone.number).expect("opens");
    let (fs, mut parent, mut learned) = (opened.fs(), clone.root, Vec::new());
    for name in [b"a", b"b"] {
        let made = fs.make_dir(&SUPER, DirName::new(parent, name), &NEW);
        parent = made.expect("is made").ino;
        learned.push(parent);
    }
    let one = fs.create(&SUPER, DirName::new(parent, b"one"), &NEW);
    let one = one.expect("is made").ino;
    fs.look_up_number(one).expect("its back rows are put");
    fs.forget(one, 2);
    learned.iter().rev().for_each(|dir| fs.forget(*dir, 1));
    let found = fs.look_up_number_below(clone.root, one);
    assert_eq!(found.expect("it is below").ino, one);
    fs.forget(one, 1);
    drop(opened);
    side.assert_sound();
}

#[test]
fn numbers_of_files_outside_are_stale_in_a_snapshot_and_its_clones() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    let outside = outside(&side, other);
    side.snapshot(dir, "snap");
    overwrite(&side, (dir, other), 2);
    let view = side.fs.snapshots().open("snap").expect("opens");
    assert_not_reached(view.fs(), dir, &outside);
    drop(view);
    let first = side.clone_of_snapshot("snap", "first");
    let opened = side.fs.open_clone(first.number).expect("opens");
    assert_not_reached(opened.fs(), first.root, &outside);
    let nested = side.clone_of((opened.fs(), first.root), None, "nested");
    drop(opened);
    let opened = side.fs.open_clone(nested.number).expect("opens");
    assert_not_reached(opened.fs(), nested.root, &outside);
    assert_populated(opened.fs(), nested.root);
    drop(opened);
    side.assert_sound();
}

#[test]
fn contents_that_leave_the_directory_stay_in_the_snapshot() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.snapshot(dir, "snap");
    let inner = side.known(dir, "inner");
    let fs = &side.fs;
    // One moves out, one moves in, one is removed, and the names of one are outside alone.
    let rename = |from, to| fs.rename(&SUPER, from, to, RenameMode::default());
    let out = DirName::new(other, b"moved out");
    rename(DirName::new(inner, b"file 3"), out).expect("succeeds");
    let into = DirName::new(dir, b"moved in");
    rename(DirName::new(other, b"file 4"), into).expect("succeeds");
    fs.unlink(&SUPER, DirName::new(inner, b"file 5"))
        .expect("succeeds");
    fs.unlink(&SUPER, DirName::new(dir, b"link"))
        .expect("succeeds");
    fs.unlink(&SUPER, DirName::new(dir, b"copy"))
        .expect("succeeds");
    fs.reclaim().expect("succeeds");
    let moved = side.known(other, "moved out");
    let bytes = contents(77, 5);
    fs.write(moved, 0, &bytes, WriteOptions::default())
        .expect("succeeds");
    write(fs, other, 0..30, 3);
    side.engine.quiesce().expect("background work succeeds");

    let view = fs.snapshots().open("snap").expect("opens");
    assert_populated(view.fs(), view.info().root);
    drop(view);
    let clone = side.clone_of_snapshot("snap", "clone");
    let view = fs.open_clone(clone.number).expect("opens");
    assert_populated(view.fs(), clone.root);
    drop(view);
    fs.snapshots().create(dir, "before").expect("is made");
    fs.roll_back("snap", dir, RollbackRights::default())
        .expect("rolls back");
    assert_populated(fs, dir);
    assert!(fs.lookup(DirName::new(dir, b"moved in")).is_err());
    side.narrow();
    side.engine.quiesce().expect("background work succeeds");
    // And back again, to what the directory was before.
    fs.roll_back("before", dir, RollbackRights::default())
        .expect("rolls back");
    assert_contents(fs, dir, "moved in", &contents(4, 1));
    assert!(fs.lookup(DirName::new(dir, b"copy")).is_err());
    side.assert_sound();
    let side = side.reopen();
    let dir = side.known(Ino::ROOT, "dir");
    assert_contents(&side.fs, dir, "moved in", &contents(4, 1));
    side.assert_sound();
}

#[test]
fn a_snapshot_in_a_clone_of_a_narrowed_one_is_narrowed_and_cloned() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.snapshot(dir, "snap");
    overwrite(&side, (dir, other), 2);
    let first = side.clone_of_snapshot("snap", "first");
    let opened = side.fs.open_clone(first.number).expect("opens");
    write(opened.fs(), first.root, 0..5, 7);
    let made = side.fs.snapshots().create_in(&opened, first.root, "inside");
    made.expect("is made");
    assert_eq!(side.narrow(), 2);
    write(opened.fs(), first.root, 0..5, 8);
    let inner = opened.fs().lookup(DirName::new(first.root, b"inner"));
    write(opened.fs(), inner.expect("it is there").ino, 0..30, 8);
    drop(opened);
    side.engine.quiesce().expect("background work succeeds");
    let view = side.fs.snapshots().open("inside").expect("opens");
    assert_populated(view.fs(), view.info().root);
    assert_files(view.fs(), view.info().root, 0..5, 7);
    drop(view);
    let second = side.clone_of_snapshot("inside", "second");
    side.fs.snapshots().delete("inside").expect("it goes");
    side.fs.snapshots().delete("snap").expect("it goes");
    side.destroy(&first, "first");
    overwrite(&side, (dir, other), 3);
    let side = side.reopen();
    let opened = side.fs.open_clone(second.number).expect("opens");
    assert_populated(opened.fs(), second.root);
    assert_files(opened.fs(), second.root, 0..5, 7);
    write(opened.fs(), second.root, 0..5, 9);
    assert_files(opened.fs(), second.root, 0..5, 9);
    drop(opened);
    side.assert_sound();
}

#[test]
fn differences_to_a_narrowed_snapshot_are_those_below_the_directory() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    // Of fewer names a walk is better.
    let many = side.dir(dir, "many");
    for number in 0..600 {
        side.dir(many, &number.to_string());
    }
    side.snapshot(dir, "snap");
    side.clock.advance(Duration::from_secs(1));
    let pin = side.fs.snapshots().get("snap").expect("is there").id;
    let now = DirAt {
        view: 0,
        dir,
        pin: None,
    };
    let then = DirAt {
        pin: Some(pin),
        ..now
    };
    assert_eq!(side.changed_paths(then, now), Vec::<String>::new());
    write(&side.fs, other, 5..30, 2);
    let inner = side.known(dir, "inner");
    write(&side.fs, inner, 3..5, 2);
    write(&side.fs, dir, 50..51, 2);
    let expected = ["file 50", "inner/file 3", "inner/file 4"];
    assert_eq!(side.changed_paths(then, now), expected);
    let clone = side.clone_of_snapshot("snap", "clone");
    let opened = side.fs.open_clone(clone.number).expect("opens");
    write(opened.fs(), clone.root, 60..61, 2);
    drop(opened);
    let cloned = DirAt {
        view: clone.number,
        dir: clone.root,
        pin: None,
    };
    let expected = ["file 50", "file 60", "inner/file 3", "inner/file 4"];
    assert_eq!(side.changed_paths(now, cloned), expected);
    assert_eq!(side.changed_paths(then, cloned), ["file 60"]);
}

#[test]
fn moments_of_the_history_stay_whole_and_are_gone_back_to() {
    let mut side = Side::new();
    populate(&side);
    side.fs.close().expect("closes");
    let options = FsOptions {
        history_s: Some(3600),
        ..options(&side.clock)
    };
    side.fs = FileSystem::open(Arc::clone(&side.engine), options).expect("opens");
    let (dir, other) = (side.known(Ino::ROOT, "dir"), side.known(Ino::ROOT, "other"));
    write(&side.fs, other, 40..41, 1);
    side.fs.history().run().expect("a moment is due");
    let moment = side.fs.history().moments().expect("are listed")[0].id;
    side.snapshot(dir, "snap");
    let is_whole = |pin: &PinInfo| pin.id == moment && pin.ranges.is_empty();
    let pins = side.engine.pins().expect("are listed");
    assert!(pins.iter().any(is_whole));
    overwrite(&side, (dir, other), 2);
    let view = side.fs.history().open(moment).expect("opens");
    let place = |name: &[u8]| view.fs().lookup(DirName::new(Ino::ROOT, name));
    assert_populated(view.fs(), place(b"dir").expect("it is there").ino);
    assert_files(
        view.fs(),
        place(b"other").expect("it is there").ino,
        0..30,
        1,
    );
    drop(view);
    let undone = side
        .fs
        .roll_back_to_moment(moment, other, RollbackRights::default());
    undone.expect("goes back");
    assert_files(&side.fs, other, 0..30, 1);
    side.assert_sound();
}

#[test]
fn a_narrowed_snapshot_shows_a_clone_that_was_destroyed_since() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    let of = CloneSource {
        fs: &side.fs,
        dir: other,
        snapshot: None,
    };
    let at = DirName::new(dir, b"clone");
    let clone = side.fs.make_clone(&SUPER, &of, at).expect("is made");
    side.snapshot(dir, "snap");
    let removed = side.fs.remove_tree(&SUPER, at, Some(clone.graft));
    removed.expect("is removed");
    side.fs.reclaim().expect("its trees go");
    overwrite(&side, (dir, other), 2);
    let side = side.reopen();
    let (dir, other) = (side.known(Ino::ROOT, "dir"), side.known(Ino::ROOT, "other"));
    overwrite(&side, (dir, other), 3);
    let view = side.fs.snapshots().open("snap").expect("opens");
    let (part, root) = view.part(view.info().root).expect("it is there");
    let graft = part.fs().lookup(DirName::new(root, b"clone"));
    let graft = graft.expect("it is there").ino;
    let inner = view.clone_in(&part, graft).expect("opens");
    let inner = inner.expect("a clone lies there");
    assert_files(inner.fs(), inner.root(), 0..30, 1);
    drop((inner, part, view));
    side.assert_sound();
}
