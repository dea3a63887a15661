//! Clones on the VT-tree, where branch trees are in tables and in the log.

use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::random::bytes16;
use stitch_device::{Device, MemDevice};
use stitch_fs::{
    Caller, CloneInfo, CloneSource, DirAt, DirName, FileSystem, FsOptions, NewNode, PathChange,
    RenameMode, RollbackRights, WriteOptions, fsck, register_upserts,
};
use stitch_kv::{Engine, UpsertRegistry, counters};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;
const SUPER: Caller<'static> = Caller::ROOT;
const ROOT: Ino = Ino::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const FILES: u32 = 300;

struct Side {
    device: Arc<dyn Device>,
    engine: Arc<dyn Engine>,
    fs: FileSystem,
}

fn open_engine(device: &Arc<dyn Device>) -> Arc<dyn Engine> {
    let mut upserts = UpsertRegistry::default();
    register_upserts(&mut upserts);
    let options = VtOptions {
        upserts,
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(64 << 10),
        table_bytes: Some(64 << 10),
        background: false,
        ..VtOptions::default()
    };
    let opened = Volume::open(device.clone(), &OpenOptions::default()).expect("the volume opens");
    VtEngine::open(opened, options).expect("the store opens")
}

impl Side {
    fn new() -> Self {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 * MIB));
        let options = FormatOptions {
            uuid: bytes16().expect("the system has randomness"),
            ..FormatOptions::default()
        };
        Volume::format(&*device, &options, &mut |_, _| {}).expect("the device is large enough");
        let engine = open_engine(&device);
        FileSystem::format(&engine, &fs_options(), (0, 0)).expect("formats");
        Self::on(device, engine)
    }

    fn on(device: Arc<dyn Device>, engine: Arc<dyn Engine>) -> Self {
        let fs = FileSystem::open(engine.clone(), fs_options()).expect("opens");
        Self { device, engine, fs }
    }

    fn reopened(self) -> Self {
        drop(self.fs);
        drop(self.engine);
        let engine = open_engine(&self.device);
        Self::on(self.device, engine)
    }

    fn make(&self, dir: Ino, name: &str) -> CloneInfo {
        let source = CloneSource {
            fs: &self.fs,
            dir,
            snapshot: None,
        };
        let made = self.fs.make_clone(&SUPER, &source, at(ROOT, name));
        made.expect("makes a clone")
    }

    fn check(&self) {
        let found = fsck::check(&self.engine, &mut |_| {}).expect("checks");
        assert_eq!(found, []);
    }

    /// Removes the only clone. None of its trees is left.
    #[track_caller]
    fn remove(&self, info: &CloneInfo, name: &str) {
        let graft = Some(info.graft);
        let removed = self.fs.remove_tree(&SUPER, at(ROOT, name), graft);
        removed.expect("removes it");
        self.fs.reclaim().expect("reclaims");
        assert_eq!(self.clone_trees(), 0);
    }

    fn clone_trees(&self) -> usize {
        let trees = self.engine.trees();
        let theirs = trees.iter().filter(|info| info.name.starts_with("fs~"));
        theirs.count()
    }
}

fn fs_options() -> FsOptions {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000_000));
    FsOptions {
        clock: Arc::new(clock),
        name_seed: Some(7),
        ..FsOptions::default()
    }
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

/// Makes a directory of files, each of 1,000 bytes of `byte`.
fn grow(fs: &FileSystem, byte: u8) -> Ino {
    let made = fs.make_dir(&SUPER, at(ROOT, "src"), &NEW);
    let dir = made.expect("makes a directory").ino;
    for index in 0..FILES {
        let made = fs.create(&SUPER, at(dir, &format!("f{index}")), &NEW);
        let ino = made.expect("creates").ino;
        let written = fs.write(ino, 0, &[byte; 1000], WriteOptions::default());
        written.expect("writes");
    }
    dir
}

/// Overwrites every second file and removes every third.
fn change(fs: &FileSystem, dir: Ino, byte: u8) {
    for index in 0..FILES {
        let name = format!("f{index}");
        if index % 3 == 0 {
            fs.unlink(&SUPER, at(dir, &name)).expect("unlinks");
        } else if index % 2 == 0 {
            let ino = fs.lookup(at(dir, &name)).expect("is there").ino;
            let written = fs.write(ino, 0, &[byte; 500], WriteOptions::default());
            written.expect("writes");
        }
    }
}

/// Expects the files of [`grow`], after [`change`] with `changed` if it is some.
fn expect(fs: &FileSystem, dir: Ino, byte: u8, changed: Option<u8>) {
    for index in 0..FILES {
        let found = fs.lookup(at(dir, &format!("f{index}")));
        if changed.is_some() && index % 3 == 0 {
            assert!(found.is_err(), "f{index} is removed");
            continue;
        }
        let ino = found.expect("is there").ino;
        let mut out = Vec::new();
        fs.read(ino, 0, 2000, &mut out).expect("reads");
        let mut wanted = vec![byte; 1000];
        if let Some(changed) = changed.filter(|_| index % 2 == 0) {
            wanted[..500].fill(changed);
        }
        assert_eq!(out, wanted, "f{index}");
    }
}

#[test]
fn both_sides_change_apart_in_tables_and_after_a_reopening() {
    let side = Side::new();
    let dir = grow(&side.fs, 1);
    let info = side.make(dir, "copy");
    let view = side.fs.open_clone(info.number).expect("opens");
    change(view.fs(), dir, 2);
    expect(&side.fs, dir, 1, None);
    side.engine.quiesce().expect("background work succeeds");
    expect(view.fs(), dir, 1, Some(2));
    change(&side.fs, dir, 3);
    side.engine.quiesce().expect("background work succeeds");
    expect(view.fs(), dir, 1, Some(2));
    expect(&side.fs, dir, 1, Some(3));
    drop(view);
    let side = side.reopened();
    side.fs.lookup(at(ROOT, "src")).expect("is there");
    let view = side.fs.open_clone(info.number).expect("opens again");
    expect(view.fs(), dir, 1, Some(2));
    expect(&side.fs, dir, 1, Some(3));
    drop(view);
    side.check();
}

#[test]
fn a_removed_clone_leaves_its_source_and_no_trees() {
    let side = Side::new();
    let dir = grow(&side.fs, 1);
    let info = side.make(dir, "copy");
    let view = side.fs.open_clone(info.number).expect("opens");
    change(view.fs(), dir, 2);
    drop(view);
    assert_eq!(side.clone_trees(), 4);
    side.remove(&info, "copy");
    side.engine.quiesce().expect("background work succeeds");
    expect(&side.fs, dir, 1, None);
    side.check();
    let side = side.reopened();
    assert!(side.fs.clones().is_empty());
    side.fs.lookup(at(ROOT, "src")).expect("is there");
    expect(&side.fs, dir, 1, None);
}

#[test]
fn a_snapshot_shows_a_clone_that_is_gone_from_its_tables() {
    let side = Side::new();
    let dir = grow(&side.fs, 1);
    let info = side.make(dir, "copy");
    let view = side.fs.open_clone(info.number).expect("opens");
    change(view.fs(), dir, 2);
    side.fs.snapshots().create(ROOT, "mon").expect("creates it");
    change(&side.fs, dir, 3);
    drop(view);
    side.remove(&info, "copy");
    side.engine.quiesce().expect("background work succeeds");
    let side = side.reopened();
    side.engine.quiesce().expect("background work succeeds");
    let shown = side.fs.snapshots().open("mon").expect("opens");
    let (part, root) = shown.part(ROOT).expect("it is known");
    part.fs().lookup(at(root, "src")).expect("is there");
    expect(part.fs(), dir, 1, None);
    let graft = part.fs().lookup(at(root, "copy")).expect("is there").ino;
    let clone = shown.clone_in(&part, graft).expect("there is room");
    let clone = clone.expect("a clone lies there");
    expect(clone.fs(), clone.root(), 1, Some(2));
    // What is open reads on after the snapshot is deleted.
    side.fs.snapshots().delete("mon").expect("deletes it");
    side.engine.quiesce().expect("background work succeeds");
    expect(clone.fs(), clone.root(), 1, Some(2));
    drop((clone, part, shown));
    side.check();
}

/// Returns what changed below the root since a snapshot.
fn changed_since(fs: &FileSystem, name: &str) -> Vec<PathChange> {
    let pin = fs.snapshots().get(name).expect("it is there").id;
    let root = |pin| DirAt {
        view: 0,
        dir: ROOT,
        pin,
    };
    let changes = fs.differences((root(Some(pin)), root(None)), None);
    changes.expect("they are compared")
}

/// Expects the files of a clone after [`change`] with 2, by a new look at it.
fn expect_changed(fs: &FileSystem, info: &CloneInfo) {
    let view = fs.open_clone(info.number).expect("opens");
    expect(view.fs(), info.root, 1, Some(2));
}

/// Its trees are branches of trees that the snapshot alone keeps.
#[test]
fn a_clone_that_a_rollback_brings_back_is_read_from_tables_and_gives_its_space_back() {
    let side = Side::new();
    let dir = grow(&side.fs, 1);
    // So many names are not walked.
    for index in 0..FILES / 2 {
        let made = side
            .fs
            .create(&SUPER, at(ROOT, &format!("more{index}")), &NEW);
        made.expect("creates");
    }
    side.engine.quiesce().expect("background work succeeds");
    let free = side.engine.space().free_bytes;
    let old = side.make(dir, "copy");
    side.fs.snapshots().create(ROOT, "sun").expect("creates it");
    let view = side.fs.open_clone(old.number).expect("opens");
    change(view.fs(), dir, 2);
    drop(view);
    side.fs.snapshots().create(ROOT, "mon").expect("creates it");
    side.engine.quiesce().expect("background work succeeds");
    let since_sun = changed_since(&side.fs, "sun");
    assert!(since_sun.len() > 100, "{since_sun:?}");
    side.remove(&old, "copy");
    side.engine.quiesce().expect("background work succeeds");
    let rights = RollbackRights::default();
    side.fs.roll_back("mon", ROOT, rights).expect("rolls back");
    let made = side.fs.clones().remove(0);
    assert!(made.number > old.number, "it is another one");
    assert_eq!(changed_since(&side.fs, "mon"), []);
    assert_eq!(changed_since(&side.fs, "sun"), since_sun);
    expect_changed(&side.fs, &made);
    side.engine.quiesce().expect("background work succeeds");
    expect_changed(&side.fs, &made);
    let side = side.reopened();
    side.fs.lookup(at(ROOT, "src")).expect("is there");
    side.fs.snapshots().delete("mon").expect("deletes it");
    side.engine.quiesce().expect("background work succeeds");
    expect_changed(&side.fs, &made);
    assert_eq!(changed_since(&side.fs, "sun"), since_sun);
    let view = side.fs.open_clone(made.number).expect("opens");
    let ino = view.fs().lookup(at(made.root, "f2")).expect("is there").ino;
    let written = view.fs().write(ino, 0, &[9; 10], WriteOptions::default());
    written.expect("writes");
    drop(view);
    side.check();
    side.remove(&made, "copy");
    side.fs.snapshots().delete("sun").expect("deletes it");
    side.engine.quiesce().expect("background work succeeds");
    let left = free.saturating_sub(side.engine.space().free_bytes);
    assert!(left <= 64 << 10, "{left} bytes do not come back");
    expect(&side.fs, dir, 1, None);
    side.check();
}

#[test]
fn clones_in_the_source_are_branched_with_it_and_go_in_another_order() {
    let side = Side::new();
    let dir = grow(&side.fs, 1);
    let all = side.fs.make_dir(&SUPER, at(ROOT, "all"), &NEW);
    let all = all.expect("makes a directory").ino;
    let source = |fs, dir| CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let inner = source(&side.fs, dir);
    let inner = side.fs.make_clone(&SUPER, &inner, at(all, "inner"));
    let inner = inner.expect("makes a clone");
    let view = side.fs.open_clone(inner.number).expect("opens");
    change(view.fs(), dir, 2);
    let outer = side.make(all, "outer");
    // Written out and compacted apart from each other.
    let copied = side.fs.open_clone(outer.number).expect("opens");
    let graft = copied.fs().lookup(at(all, "inner")).expect("is there").ino;
    let copy = copied.fs().clone_at(graft).expect("a clone lies there");
    drop(copied);
    change(&side.fs, dir, 3);
    side.engine.quiesce().expect("background work succeeds");
    drop(view);
    let side = side.reopened();
    side.fs.lookup(at(ROOT, "all")).expect("is there");
    assert_eq!(side.clone_trees(), 12);
    let removed = side
        .fs
        .remove_tree(&SUPER, at(all, "inner"), Some(inner.graft));
    removed.expect("removes the source");
    side.fs.reclaim().expect("reclaims");
    side.engine.quiesce().expect("background work succeeds");
    assert_eq!(side.clone_trees(), 8);
    let view = side.fs.open_clone(copy.number).expect("opens");
    expect(view.fs(), dir, 1, Some(2));
    drop(view);
    side.check();
    // With the outer one go those in it.
    side.remove(&outer, "outer");
    side.engine.quiesce().expect("background work succeeds");
    side.fs.lookup(at(ROOT, "src")).expect("is there");
    expect(&side.fs, dir, 1, Some(3));
    side.check();
}

/// Point reads and scans of some work.
fn reads<T>(side: &Side, work: impl FnOnce() -> T) -> u64 {
    let count = || {
        let counters = side.engine.counters();
        counters.get(counters::GETS) + counters.get(counters::SCANS)
    };
    let before = count();
    work();
    count() - before
}

/// Reads of clones of a directory of `names` directories, one after the other, in a store without
/// back rows. Each clone after the first one has to learn which clones lie in the directory.
fn reads_of_clones(names: u32) -> [u64; 5] {
    let side = Side::new();
    let dir = |parent, name: &str| {
        let made = side.fs.make_dir(&SUPER, at(parent, name), &NEW);
        made.expect("makes").ino
    };
    let (src, other) = (dir(ROOT, "src"), dir(ROOT, "other"));
    for number in 0..names {
        side.fs.forget(dir(src, &format!("d{number}")), 1);
    }
    let copy = |dir, to: (&FileSystem, Ino), name: &str| {
        let source = CloneSource {
            fs: &side.fs,
            dir,
            snapshot: None,
        };
        let made = to.0.make_clone(&SUPER, &source, at(to.1, name));
        made.expect("makes a clone")
    };
    let first = copy(src, (&side.fs, other), "first");
    let second = reads(&side, || copy(src, (&side.fs, ROOT), "second"));
    let (from, to) = (at(ROOT, "other"), at(src, "moved"));
    let renamed = side.fs.rename(&SUPER, from, to, RenameMode::Replace);
    renamed.expect("it moves");
    let third = reads(&side, || copy(src, (&side.fs, ROOT), "third"));
    let count = side.fs.clones().len();
    assert_eq!(count, 4, "the first one lies in the third one's source");
    let view = side.fs.open_clone(first.number).expect("opens");
    let in_clone = |name| copy(src, (view.fs(), first.root), name);
    let inner = reads(&side, || in_clone("inner"));
    let snapshots = side.fs.snapshots();
    snapshots.create(src, "mon").expect("is created");
    let past = snapshots.open("mon").expect("opens");
    let of_past = reads(&side, || {
        let source = CloneSource {
            fs: past.fs(),
            dir: src,
            snapshot: Some("mon"),
        };
        let made = side.fs.make_clone(&SUPER, &source, at(ROOT, "past"));
        made.expect("makes a clone");
    });
    let last = reads(&side, || copy(src, (&side.fs, ROOT), "last"));
    let asked = side.fs.put_back_rows_ahead().expect("none is asked for");
    assert!(!asked);
    side.check();
    [second, third, inner, of_past, last]
}

#[test]
fn clones_read_no_more_in_a_directory_of_more_names() {
    let (few, many) = (reads_of_clones(20), reads_of_clones(800));
    assert_eq!(few, many);
    assert!(many.iter().all(|reads| *reads < 200), "{many:?}");
}
