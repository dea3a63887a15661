//! What a narrowed snapshot, and a clone of one, are said to need, and what deleting them gives
//! back.

use crate::side::{FILE_BYTES, SUPER, Side, write};
use stitch_base::Ino;
use stitch_fs::{CloneSource, DirName, Usage};

const FILES: u64 = 120;

impl Side {
    fn usage(&self) -> Usage {
        self.engine.quiesce().expect("background work succeeds");
        let usage = self.fs.usage(&mut |_, _| true).expect("it is told");
        usage.expect("it was not ended")
    }
}

/// Within 5 %.
#[track_caller]
fn assert_near(bytes: u64, expected: u64) {
    let difference = bytes.abs_diff(expected);
    assert!(
        difference <= expected / 20,
        "{bytes} bytes, not about {expected}"
    );
}

/// Two directories whose inode numbers are mixed.
fn mixed(side: &Side) -> (Ino, Ino) {
    let (kept, busy) = (side.dir(Ino::ROOT, "kept"), side.dir(Ino::ROOT, "busy"));
    for part in 0..FILES / 10 {
        write(&side.fs, kept, part * 10..part * 10 + 10, 1);
        write(&side.fs, busy, part * 10..part * 10 + 10, 1);
    }
    (kept, busy)
}

#[test]
fn the_use_of_a_narrowed_snapshot_is_what_its_deletion_gives_back() {
    let side = Side::new();
    let (kept, busy) = mixed(&side);
    side.fs.snapshots().create(kept, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    write(&side.fs, busy, 0..FILES, 2);
    write(&side.fs, kept, 0..FILES / 2, 2);
    let (_, own) = side.usage().snapshots[0];
    assert_near(own, FILES / 2 * FILE_BYTES);
    let full = side.used();
    side.fs.snapshots().delete("snap").expect("it goes");
    assert_near(full - side.used(), own);
}

#[test]
fn the_use_of_a_clone_of_a_narrowed_snapshot_is_what_its_removal_gives_back() {
    let side = Side::new();
    let (kept, busy) = mixed(&side);
    side.fs.snapshots().create(kept, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    write(&side.fs, busy, 0..FILES, 2);
    let of = CloneSource {
        fs: &side.fs,
        dir: kept,
        snapshot: Some("snap"),
    };
    let at = DirName::new(Ino::ROOT, b"clone");
    let clone = side.fs.make_clone(&SUPER, &of, at).expect("is made");
    side.fs.snapshots().delete("snap").expect("it goes");
    let opened = side.fs.open_clone(clone.number).expect("opens");
    write(opened.fs(), clone.root, 0..FILES / 4, 3);
    drop(opened);
    write(&side.fs, busy, 0..FILES, 4);
    let at_first = side.usage();
    assert_near(at_first.clones[0].1, FILES / 4 * FILE_BYTES);
    // What the directory replaces is the clone's alone from now on.
    write(&side.fs, kept, FILES / 2..FILES, 4);
    let side = side.reopen();
    let (_, own) = side.usage().clones[0];
    assert_near(own, FILES / 4 * FILE_BYTES + FILES / 2 * FILE_BYTES);
    let full = side.used();
    let removed = side.fs.remove_tree(&SUPER, at, Some(clone.graft));
    removed.expect("is removed");
    side.fs.reclaim().expect("its trees go");
    assert_near(full - side.used(), own);
}

#[test]
fn the_space_of_a_directory_counts_what_its_narrowed_snapshot_shares() {
    let side = Side::new();
    let (kept, busy) = mixed(&side);
    side.fs.snapshots().create(kept, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    let share = |dir| {
        let share = side.fs.directory_space(dir, &mut |_, _| true);
        share.expect("it is told").expect("it was not ended")
    };
    let (of_kept, of_busy) = (share(kept), share(busy));
    assert_near(of_kept.referenced_bytes, FILES * FILE_BYTES);
    assert_near(of_kept.shared_bytes(), FILES * FILE_BYTES);
    assert_near(of_busy.exclusive_bytes, FILES * FILE_BYTES);
}
