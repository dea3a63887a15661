//! Snapshots of directories that hold the contents below them alone, on the VT-tree.

mod reach;
mod side;
mod space;

use side::{FILE_BYTES, SUPER, Side, assert_files, assert_populated, overwrite};
use side::{populate, write};
use stitch_base::Ino;
use stitch_fs::{CloneSource, DirName, RollbackRights};

/// The space of a store after ten rounds of writes to one directory, with a snapshot of another.
fn after_ten_rounds(with_snapshot: bool) -> u64 {
    const BUSY: u64 = 400;
    let mut side = Side::new();
    let (kept, busy) = (side.dir(Ino::ROOT, "kept"), side.dir(Ino::ROOT, "busy"));
    write(&side.fs, kept, 0..20, 1);
    write(&side.fs, busy, 0..BUSY, 1);
    if with_snapshot {
        side.fs.snapshots().create(kept, "snap").expect("is made");
        assert_eq!(side.narrow(), 1);
    }
    for round in 2..12 {
        if round == 6 {
            side = side.reopen();
        }
        let busy = side.known(Ino::ROOT, "busy");
        write(&side.fs, busy, 0..BUSY, round);
        side.engine.quiesce().expect("background work succeeds");
    }
    let used = side.used();
    if with_snapshot {
        let view = side.fs.snapshots().open("snap").expect("opens");
        assert_files(view.fs(), view.info().root, 0..20, 1);
        let usage = side.fs.usage(&mut |_, _| true).expect("it is told");
        let (_, own) = usage.expect("it was not ended").snapshots[0];
        assert!(own < FILE_BYTES, "{own} bytes are the snapshot's own");
    }
    used
}

#[test]
fn a_snapshot_keeps_nothing_that_is_overwritten_in_other_directories() {
    let (without, with) = (after_ten_rounds(false), after_ten_rounds(true));
    assert!(
        with <= without / 10 * 12,
        "{with} bytes, {without} without it"
    );
}

#[test]
fn what_a_snapshot_held_of_other_directories_comes_back_once_it_is_narrowed() {
    let side = Side::new();
    let (kept, busy) = (side.dir(Ino::ROOT, "kept"), side.dir(Ino::ROOT, "busy"));
    write(&side.fs, kept, 0..20, 1);
    write(&side.fs, busy, 0..200, 1);
    let before = side.used();
    side.fs.snapshots().create(kept, "snap").expect("is made");
    write(&side.fs, busy, 0..200, 2);
    let whole = side.used();
    assert!(whole > before + 150 * FILE_BYTES, "it holds all at first");
    assert_eq!(side.narrow(), 1);
    let narrowed = side.used();
    assert!(
        narrowed < before + 20 * FILE_BYTES,
        "{narrowed}, {before} before"
    );
}

#[test]
fn a_narrowed_snapshot_shows_all_of_its_directory_and_is_cloned_and_rolled_back_to() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.fs.snapshots().create(dir, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    overwrite(&side, (dir, other), 2);
    let view = side.fs.snapshots().open("snap").expect("opens");
    assert_populated(view.fs(), view.info().root);
    let size = side
        .fs
        .snapshot_size("snap", &mut |_, _| true)
        .expect("it is told");
    assert!(size.expect("it was not ended") > 30 * FILE_BYTES);
    drop(view);

    let of = CloneSource {
        fs: &side.fs,
        dir,
        snapshot: Some("snap"),
    };
    let clone = side
        .fs
        .make_clone(&SUPER, &of, DirName::new(Ino::ROOT, b"clone"));
    let clone = clone.expect("is made");
    side.fs.snapshots().delete("snap").expect("it goes");
    overwrite(&side, (dir, other), 3);
    let side = side.reopen();
    overwrite(
        &side,
        (side.known(Ino::ROOT, "dir"), side.known(Ino::ROOT, "other")),
        4,
    );
    let view = side.fs.open_clone(clone.number).expect("opens");
    assert_populated(view.fs(), clone.root);
    write(view.fs(), clone.root, 0..5, 9);
    assert_files(view.fs(), clone.root, 0..5, 9);
    assert_populated(view.fs(), clone.root);
    drop(view);
    side.assert_sound();
}

#[test]
fn a_directory_is_rolled_back_to_a_narrowed_snapshot() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.fs.snapshots().create(dir, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    overwrite(&side, (dir, other), 2);
    write(&side.fs, dir, 0..3, 2);
    side.fs
        .roll_back("snap", dir, RollbackRights::default())
        .expect("rolls back");
    assert_populated(&side.fs, dir);
    assert!(side.fs.lookup(DirName::new(dir, b"file 0")).is_err());
    assert_files(&side.fs, other, 1..30, 2);
    side.assert_sound();
}

#[test]
fn snapshots_of_the_root_and_deleted_ones_are_not_narrowed() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.fs
        .snapshots()
        .create(Ino::ROOT, "all")
        .expect("is made");
    side.fs.snapshots().create(dir, "gone").expect("is made");
    side.fs.snapshots().delete("gone").expect("it goes");
    assert_eq!(side.narrow(), 0);
    side.fs.snapshots().create(dir, "one").expect("is made");
    side.fs.snapshots().create(other, "two").expect("is made");
    // A walk that a crash has ended begins anew.
    let side = side.reopen();
    assert_eq!(side.narrow(), 2);
    assert!(!side.fs.snapshots().narrow_ahead().expect("nothing fails"));
    let (dir, other) = (side.known(Ino::ROOT, "dir"), side.known(Ino::ROOT, "other"));
    overwrite(&side, (dir, other), 2);
    for name in ["all", "two"] {
        let view = side.fs.snapshots().open(name).expect("opens");
        let root = view.info().root;
        let other = match name {
            "all" => {
                view.fs()
                    .lookup(DirName::new(root, b"other"))
                    .expect("it is there")
                    .ino
            }
            _ => root,
        };
        assert_files(view.fs(), other, 0..30, 1);
    }
}
