//! What a comparison of two moments of a directory reads, on the VT-tree.

#[path = "common/vt_bed.rs"]
mod vt_bed;
#[path = "common/vt_store.rs"]
mod vt_store;

use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_fs::{
    Caller, CloneInfo, CloneSource, DirAt, DirName, FileSystem, NewNode, PathChange, WriteOptions,
};
use stitch_kv::counters;
use vt_bed::Bed;

const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const DIRS: u64 = 100;

/// Makes a store whose clock is some days past its beginning.
fn new_bed() -> Bed {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000_000));
    Bed::new(clock)
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

/// A directory on two sides.
type Sides = (DirAt, DirAt);

/// The question to two sides.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A list of differences.
    Differences,
    /// The paths that a copy needs.
    Paths,
}

/// Makes `/top` with `files` files in a hundred directories.
fn grow(fs: &FileSystem, files: u64) -> Ino {
    let made = fs.make_dir(&SUPER, at(Ino::ROOT, "top"), &NEW);
    let top = made.expect("it is made").ino;
    for dir in 0..DIRS {
        let made = fs.make_dir(&SUPER, at(top, &dir.to_string()), &NEW);
        let dir = made.expect("it is made").ino;
        for file in 0..files / DIRS {
            let made = fs.create(&SUPER, at(dir, &file.to_string()), &NEW);
            fs.forget(made.expect("it is made").ino, 1);
        }
    }
    top
}

/// Writes to files of a directory that was grown, the ones from `first` on.
fn change(bed: &Bed, (fs, top): (&FileSystem, Ino), first: u64, count: u64) {
    bed.clock.advance(Duration::from_secs(1));
    for change in first..first + count {
        let found = fs.lookup(at(top, &(change % DIRS).to_string()));
        let dir = found.expect("it is there").ino;
        let name = (change / DIRS).to_string();
        let file = fs.lookup(at(dir, &name)).expect("it is there").ino;
        fs.write(file, 0, b"written", WriteOptions::default())
            .expect("it is written");
    }
}

fn clone(fs: &FileSystem, dir: Ino, to: DirName<'_>) -> CloneInfo {
    let source = CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let made = fs.make_clone(&SUPER, &source, to);
    made.expect("it is made")
}

/// A directory as the pin `old` has it, and as it is.
fn since(view: u64, dir: Ino, old: stitch_base::PinId) -> Sides {
    let at = |pin| DirAt { view, dir, pin };
    (at(Some(old)), at(None))
}

/// Data blocks that one comparison of a directory reads, and its point reads and scans, of each
/// kind. The directory has `files` files in a hundred directories, `changes` of which have changed.
fn costs(files: u64, changes: u64) -> [(Asked, u64, u64); 2] {
    let bed = new_bed();
    let fs = bed.open();
    let top = grow(&fs, files);
    let first = fs.snapshots().create(top, "first").expect("it is created");
    // The first comparison puts the back rows.
    let none = fs.differences(since(0, top, first.id), None);
    assert_eq!(none.expect("it is read"), []);
    let old = fs.snapshots().create(top, "old").expect("it is created");
    change(&bed, (&fs, top), 0, changes);
    Bed::close(fs);

    [Asked::Differences, Asked::Paths].map(|asked| {
        let expected = changes + extra(asked, changes.min(DIRS));
        let (blocks, reads) = cost(&bed, since(0, top, old.id), expected, asked);
        (asked, blocks, reads)
    })
}

/// The number of paths above those that changed that are listed with them.
fn extra(asked: Asked, dirs: u64) -> u64 {
    match asked {
        Asked::Differences => 0,
        Asked::Paths => dirs,
    }
}

/// What one comparison reads, which is to find so many paths. Nothing is cached before.
fn cost(bed: &Bed, sides: Sides, expected: u64, asked: Asked) -> (u64, u64) {
    let fs = bed.open();
    let names = [
        stitch_vt::counters::DATA_BLOCKS_READ,
        counters::GETS,
        counters::SCANS,
    ];
    let read = || names.map(|name| fs.engine().counters().get(name));
    let before = read();
    let found = match asked {
        Asked::Differences => {
            let found = fs.differences(sides, None).expect("it is read");
            let is_modified = |change: &PathChange| matches!(change, PathChange::Modified(_));
            assert!(found.iter().all(is_modified), "{found:?}");
            found.len() as u64
        }
        Asked::Paths => {
            let found = fs.touched_paths(sides, None).expect("it is read");
            assert_eq!(found.old, found.new, "no name came or went");
            found.new.len() as u64
        }
    };
    let after = read();
    assert_eq!(found, expected);
    let [blocks, gets, scans] = std::array::from_fn(|index| after[index] - before[index]);
    Bed::close(fs);
    (blocks, gets + scans)
}

/// The reads follow the changes, and not the files: a walk of the larger directory would read all
/// blocks of a hundred thousand rows on both sides.
#[test]
fn reads_are_proportional_to_the_changes() {
    for files in [10_000, 100_000] {
        for changes in [10, 100] {
            for (asked, blocks, reads) in costs(files, changes) {
                assert!(
                    blocks <= 30 + 6 * changes && reads <= 60 + 12 * changes,
                    "{asked:?} of {files} files, {changes} changes: {blocks} blocks, {reads} reads"
                );
            }
        }
    }
}

/// Two clones lie in the directory: what changed in one of them is found by the rows of it.
#[test]
fn reads_are_proportional_to_the_changes_in_clones() {
    let (files, changes) = (20_000, 100);
    let bed = new_bed();
    let fs = bed.open();
    let top = grow(&fs, files);
    let made = fs.make_dir(&SUPER, at(Ino::ROOT, "outer"), &NEW);
    let outer = made.expect("it is made").ino;
    let inner = clone(&fs, top, at(outer, "a"));
    clone(&fs, top, at(outer, "b"));
    let first = fs
        .snapshots()
        .create(outer, "first")
        .expect("it is created");
    let none = fs.differences(since(0, outer, first.id), None);
    assert_eq!(none.expect("it is read"), []);
    let old = fs.snapshots().create(outer, "old").expect("it is created");
    let live = fs.open_clone(inner.number).expect("it opens");
    change(&bed, (live.fs(), inner.root), 0, changes);
    drop(live);
    Bed::close(fs);
    for asked in [Asked::Differences, Asked::Paths] {
        // The directories of both clones are always among the paths.
        let expected = changes + extra(asked, DIRS + 2);
        let (blocks, reads) = cost(&bed, since(0, outer, old.id), expected, asked);
        assert!(
            blocks <= 60 + 6 * changes && reads <= 150 + 12 * changes,
            "{asked:?}: {blocks} blocks, {reads} reads"
        );
    }
}

/// A clone and its source with other files changed in each.
#[test]
fn reads_are_proportional_to_the_changes_since_a_clone_was_made() {
    let (files, changes) = (20_000, 50);
    let bed = new_bed();
    let fs = bed.open();
    let top = grow(&fs, files);
    // The clones in both are compared, too.
    let made = fs.make_dir(&SUPER, at(Ino::ROOT, "small"), &NEW);
    clone(&fs, made.expect("it is made").ino, at(top, "inner"));
    let copy = clone(&fs, top, at(Ino::ROOT, "copy"));
    let sides = |view, other| {
        let at = |view| DirAt {
            view,
            dir: top,
            pin: None,
        };
        (at(view), at(other))
    };
    // The first comparison puts the back rows of the second side.
    for (one, other) in [(0, copy.number), (copy.number, 0)] {
        let none = fs.differences(sides(one, other), None);
        assert_eq!(none.expect("it is read"), []);
    }
    change(&bed, (&fs, top), 0, changes);
    let live = fs.open_clone(copy.number).expect("it opens");
    change(&bed, (live.fs(), top), changes, changes);
    drop(live);
    Bed::close(fs);
    for (one, other) in [(0, copy.number), (copy.number, 0)] {
        let sides = sides(one, other);
        for asked in [Asked::Differences, Asked::Paths] {
            // The directory of the clone in both is always among the paths.
            let inner = u64::from(matches!(asked, Asked::Paths));
            let expected = 2 * changes + extra(asked, DIRS.min(2 * changes)) + inner;
            let (blocks, reads) = cost(&bed, sides, expected, asked);
            assert!(
                blocks <= 60 + 12 * changes && reads <= 120 + 24 * changes,
                "{asked:?} of {one} and {other}: {blocks} blocks, {reads} reads"
            );
        }
    }
}
