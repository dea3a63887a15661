//! Snapshots of directories that hold the contents below them alone, on the VT-tree.

use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::random::Rng;
use stitch_device::{Device, MemDevice};
use stitch_fs::{
    Caller, CloneSource, DirName, FileSystem, FsOptions, NewNode, WriteOptions, register_upserts,
};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;
const SUPER: Caller<'static> = Caller::ROOT;
const FILE_BYTES: u64 = 40_000;

fn new_device() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(192 * MIB));
    let format = FormatOptions {
        uuid: [7; 16],
        ..FormatOptions::default()
    };
    Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
    device
}

fn engine_on(device: &Arc<dyn Device>) -> Arc<dyn Engine> {
    let mut upserts = UpsertRegistry::default();
    register_upserts(&mut upserts);
    let options = VtOptions {
        upserts,
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(256 << 10),
        table_bytes: Some(256 << 10),
        background: false,
        ..VtOptions::default()
    };
    let opened = Volume::open(Arc::clone(device), &OpenOptions::default());
    VtEngine::open(opened.expect("the volume opens"), options).expect("the store opens")
}

fn options(clock: &Arc<ManualClock>) -> FsOptions {
    clock.advance(Duration::from_secs(1_000_000));
    FsOptions {
        clock: Arc::clone(clock) as _,
        ..FsOptions::default()
    }
}

struct Side {
    clock: Arc<ManualClock>,
    device: Arc<dyn Device>,
    engine: Arc<dyn Engine>,
    fs: FileSystem,
}

impl Side {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let device = new_device();
        let engine = engine_on(&device);
        FileSystem::format(&engine, &options(&clock), (0, 0)).expect("formats");
        let fs = FileSystem::open(Arc::clone(&engine), options(&clock)).expect("opens");
        Self {
            clock,
            device,
            engine,
            fs,
        }
    }

    /// The next life of the store.
    fn reopen(self) -> Self {
        let Self {
            clock,
            device,
            engine,
            fs,
        } = self;
        fs.sync().expect("syncs");
        drop(fs);
        engine.close().expect("closes");
        drop(engine);
        let engine = engine_on(&device);
        let fs = FileSystem::open(Arc::clone(&engine), options(&clock)).expect("opens");
        Self {
            clock,
            device,
            engine,
            fs,
        }
    }

    fn dir(&self, parent: Ino, name: &str) -> Ino {
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let at = DirName::new(parent, name.as_bytes());
        self.fs.make_dir(&SUPER, at, &new).expect("succeeds").ino
    }

    fn known(&self, parent: Ino, name: &str) -> Ino {
        let found = self.fs.lookup(DirName::new(parent, name.as_bytes()));
        found.expect("it is there").ino
    }

    /// Narrows all snapshots. Returns how many pins are narrowed then.
    fn narrow(&self) -> usize {
        while self.fs.narrow_snapshots_ahead().expect("all can be walked") {}
        let pins = self.engine.pins().expect("the pins are listed");
        pins.iter().filter(|pin| !pin.ranges.is_empty()).count()
    }

    fn used(&self) -> u64 {
        self.engine.quiesce().expect("background work succeeds");
        let space = self.engine.space();
        space.total_bytes - space.free_bytes
    }

    fn assert_sound(&self) {
        self.fs.sync().expect("syncs");
        let issues = stitch_fs::fsck::check(&self.engine, &mut |_| {}).expect("it reads");
        assert!(issues.is_empty(), "{issues:?}");
    }
}

fn contents(file: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(FILE_BYTES).expect("short")];
    Rng::new(seed << 32 | file).fill(&mut bytes);
    bytes
}

/// Writes files of a directory anew, with contents of `seed`.
fn write(fs: &FileSystem, dir: Ino, files: std::ops::Range<u64>, seed: u64) {
    let new = NewNode {
        perm: 0o644,
        umask: 0,
    };
    for file in files {
        let name = format!("file {file}");
        let at = DirName::new(dir, name.as_bytes());
        let ino = match fs.lookup(at) {
            Ok(attr) => attr.ino,
            Err(_) => fs.create(&SUPER, at, &new).expect("succeeds").ino,
        };
        let written = fs.write(ino, 0, &contents(file, seed), WriteOptions::default());
        written.expect("succeeds");
        fs.forget(ino, 1);
    }
}

#[track_caller]
fn assert_contents(fs: &FileSystem, dir: Ino, name: &str, expected: &[u8]) {
    let at = DirName::new(dir, name.as_bytes());
    let ino = fs.lookup(at).expect("it is there").ino;
    let mut found = Vec::new();
    let len = expected.len() + 1;
    fs.read(ino, 0, len, &mut found).expect("it reads");
    fs.forget(ino, 1);
    assert!(found == expected, "{name} is different");
}

#[track_caller]
fn assert_files(fs: &FileSystem, dir: Ino, files: std::ops::Range<u64>, seed: u64) {
    for file in files {
        assert_contents(fs, dir, &format!("file {file}"), &contents(file, seed));
    }
}

/// The space of a store after ten rounds of writes to one directory, with a snapshot of another.
fn after_ten_rounds(with_snapshot: bool) -> u64 {
    const BUSY: u64 = 400;
    let mut side = Side::new();
    let (kept, busy) = (side.dir(Ino::ROOT, "kept"), side.dir(Ino::ROOT, "busy"));
    write(&side.fs, kept, 0..20, 1);
    write(&side.fs, busy, 0..BUSY, 1);
    if with_snapshot {
        side.fs.create_snapshot(kept, "snap").expect("is made");
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
        let view = side.fs.open_snapshot("snap").expect("opens");
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
    side.fs.create_snapshot(kept, "snap").expect("is made");
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

/// A directory with files, files below it, a second name of a file elsewhere, and a shared copy.
fn populate(side: &Side) -> (Ino, Ino) {
    let fs = &side.fs;
    let (other, dir) = (side.dir(Ino::ROOT, "other"), side.dir(Ino::ROOT, "dir"));
    let inner = side.dir(dir, "inner");
    for part in 0..6 {
        // The numbers of both are mixed.
        write(fs, other, part * 5..part * 5 + 5, 1);
        write(fs, inner, part * 5..part * 5 + 5, 1);
    }
    let far = side.known(other, "file 0");
    fs.link(&SUPER, far, DirName::new(dir, b"link"))
        .expect("succeeds");
    let new = NewNode {
        perm: 0o644,
        umask: 0,
    };
    let large = fs.create(&SUPER, DirName::new(other, b"large"), &new);
    let large = large.expect("succeeds").ino;
    let bytes = [contents(100, 1), contents(101, 1)].concat();
    fs.write(large, 0, &bytes, WriteOptions::default())
        .expect("succeeds");
    let copy = fs.create(&SUPER, DirName::new(dir, b"copy"), &new);
    let copy = copy.expect("succeeds").ino;
    fs.copy_range((large, 0), (copy, 0), bytes.len() as u64)
        .expect("succeeds");
    (dir, other)
}

#[track_caller]
fn assert_populated(fs: &FileSystem, dir: Ino) {
    let inner = fs
        .lookup(DirName::new(dir, b"inner"))
        .expect("it is there")
        .ino;
    assert_files(fs, inner, 0..30, 1);
    assert_contents(fs, dir, "link", &contents(0, 1));
    let bytes = [contents(100, 1), contents(101, 1)].concat();
    assert_contents(fs, dir, "copy", &bytes);
}

/// Overwrites all files of both directories.
fn overwrite(side: &Side, (dir, other): (Ino, Ino), seed: u64) {
    side.clock.advance(Duration::from_secs(1));
    let inner = side.known(dir, "inner");
    write(&side.fs, inner, 0..30, seed);
    write(&side.fs, other, 0..30, seed);
    for (parent, name) in [(dir, "copy"), (other, "large")] {
        let ino = side.known(parent, name);
        let bytes = contents(200, seed);
        side.fs
            .write(ino, 0, &bytes, WriteOptions::default())
            .expect("succeeds");
    }
    side.engine.quiesce().expect("background work succeeds");
}

#[test]
fn a_narrowed_snapshot_shows_all_of_its_directory_and_is_cloned_and_rolled_back_to() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.fs.create_snapshot(dir, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    overwrite(&side, (dir, other), 2);
    let view = side.fs.open_snapshot("snap").expect("opens");
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
    side.fs.delete_snapshot("snap").expect("it goes");
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
    side.fs.create_snapshot(dir, "snap").expect("is made");
    assert_eq!(side.narrow(), 1);
    overwrite(&side, (dir, other), 2);
    write(&side.fs, dir, 0..3, 2);
    side.fs.roll_back("snap", dir, None).expect("rolls back");
    assert_populated(&side.fs, dir);
    assert!(side.fs.lookup(DirName::new(dir, b"file 0")).is_err());
    assert_files(&side.fs, other, 1..30, 2);
    side.assert_sound();
}

#[test]
fn snapshots_of_the_root_and_deleted_ones_are_not_narrowed() {
    let side = Side::new();
    let (dir, other) = populate(&side);
    side.fs.create_snapshot(Ino::ROOT, "all").expect("is made");
    side.fs.create_snapshot(dir, "gone").expect("is made");
    side.fs.delete_snapshot("gone").expect("it goes");
    assert_eq!(side.narrow(), 0);
    side.fs.create_snapshot(dir, "one").expect("is made");
    side.fs.create_snapshot(other, "two").expect("is made");
    // A walk that a crash has ended begins anew.
    let side = side.reopen();
    assert_eq!(side.narrow(), 2);
    assert!(!side.fs.narrow_snapshots_ahead().expect("nothing fails"));
    let (dir, other) = (side.known(Ino::ROOT, "dir"), side.known(Ino::ROOT, "other"));
    overwrite(&side, (dir, other), 2);
    for name in ["all", "two"] {
        let view = side.fs.open_snapshot(name).expect("opens");
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
