//! The use of space by snapshots, clones and directories, on the VT-tree.

use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::{Clock, ManualClock};
use stitch_base::random::Rng;
use stitch_device::{Device, MemDevice};
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_format::fs_key;
use stitch_fs::{
    BeginOptions, Caller, CloneInfo, CloneSource, DirName, FileSystem, FsOptions, NewNode,
    RollbackRights, SpaceShare, Usage, WriteOptions, XattrMode, register_upserts,
};
use stitch_kv::{Batch, CommitOptions, Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;
const SUPER: Caller<'static> = Caller::ROOT;
const FILES: u64 = 60;
const FILE_BYTES: u64 = 40_000;
/// Contents of all files, and what chunks take: whole sectors.
const ALL_BYTES: u64 = FILES * FILE_BYTES;

fn new_engine() -> Arc<dyn Engine> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 * MIB));
    let format = FormatOptions {
        uuid: [7; 16],
        ..FormatOptions::default()
    };
    Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
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
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    VtEngine::open(opened, options).expect("the store opens")
}

struct Side {
    engine: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    fs: FileSystem,
}

impl Side {
    fn new() -> Self {
        Self::with(None)
    }

    /// One that keeps the moments of an hour.
    fn with_history() -> Self {
        Self::with(Some(3600))
    }

    fn with(history_s: Option<u64>) -> Self {
        let engine = new_engine();
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let options = FsOptions {
            history_s,
            ..Self::options(&clock)
        };
        FileSystem::format(&engine, &options, (0, 0)).expect("formats");
        let fs = FileSystem::open(Arc::clone(&engine), options).expect("opens");
        Self { engine, clock, fs }
    }

    fn options(clock: &Arc<ManualClock>) -> FsOptions {
        FsOptions {
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            ..FsOptions::default()
        }
    }

    /// The same store, opened anew.
    fn reopened(self) -> Self {
        let Self { engine, clock, fs } = self;
        drop(fs);
        let options = Self::options(&clock);
        let fs = FileSystem::open(Arc::clone(&engine), options).expect("opens");
        Self { engine, clock, fs }
    }

    /// A check of the file systems finds nothing wrong.
    fn check(&self) {
        let issues = stitch_fs::fsck::check(&self.engine, &mut |_| {});
        assert_eq!(issues.expect("it is checked"), []);
    }

    /// Narrows all clones that are old enough.
    fn narrow_clones(&self) {
        while self
            .fs
            .snapshots()
            .narrow_clones_ahead()
            .expect("it is walked")
            == Some(Duration::ZERO)
        {}
    }

    fn dir(&self, parent: Ino, name: &str) -> Ino {
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let at = DirName::new(parent, name.as_bytes());
        self.fs.make_dir(&SUPER, at, &new).expect("succeeds").ino
    }

    fn usage(&self) -> Usage {
        let usage = self.fs.usage(&mut |_, _| true).expect("it is told");
        usage.expect("it is not cancelled")
    }

    fn free(&self) -> u64 {
        self.engine.quiesce().expect("background work succeeds");
        self.engine.space().free_bytes
    }
}

/// Writes files of a directory anew, with contents of `seed`.
fn write(fs: &FileSystem, dir: Ino, files: std::ops::Range<u64>, seed: u64) {
    write_bytes(fs, dir, files, (seed, FILE_BYTES));
}

fn write_bytes(
    fs: &FileSystem,
    dir: Ino,
    files: std::ops::Range<u64>,
    (seed, file_bytes): (u64, u64),
) {
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
        let mut bytes = vec![0; usize::try_from(file_bytes).expect("short")];
        Rng::new(seed << 32 | file).fill(&mut bytes);
        fs.write(ino, 0, &bytes, WriteOptions::default())
            .expect("succeeds");
        fs.forget(ino, 1);
    }
}

fn share(fs: &FileSystem, dir: Ino) -> SpaceShare {
    let share = fs
        .directory_space(dir, &mut |_, _| true)
        .expect("it is told");
    share.expect("it is not cancelled")
}

#[track_caller]
fn assert_near(bytes: u64, expected: u64) {
    let difference = bytes.abs_diff(expected);
    assert!(
        difference <= expected / 10 + 50_000,
        "{bytes} bytes, not about {expected}"
    );
}

#[test]
fn snapshots_and_directories_share_what_is_not_changed() {
    let side = Side::new();
    let fs = &side.fs;
    let (dir, other) = (side.dir(Ino::ROOT, "dir"), side.dir(Ino::ROOT, "other"));
    let inner = side.dir(dir, "inner");
    write(fs, inner, 0..FILES, 1);
    write(fs, other, 0..1, 1);
    fs.set_xattr(&SUPER, inner, b"user.a", &[5; 3000], XattrMode::Set, false)
        .expect("succeeds");
    let before = share(fs, dir);
    assert_near(before.exclusive_bytes, ALL_BYTES + 3000);
    assert_eq!(before.shared_bytes(), 0);
    fs.snapshots().create(dir, "first").expect("is made");
    assert_eq!(share(fs, dir).exclusive_bytes, 0, "all of it is kept now");
    write(fs, inner, 0..FILES / 2, 2);
    let after = share(fs, dir);
    assert_near(after.exclusive_bytes, ALL_BYTES / 2);
    assert_near(after.shared_bytes(), ALL_BYTES / 2);
    assert_near(
        share(fs, Ino::ROOT).referenced_bytes,
        ALL_BYTES + FILE_BYTES,
    );
    let usage = side.usage();
    assert_eq!(usage.snapshots.len(), 1);
    let (info, used) = &usage.snapshots[0];
    assert_eq!(info.name, "first");
    assert_near(*used, ALL_BYTES / 2);
    for _ in 0..2 {
        let size = fs
            .snapshot_size("first", &mut |_, _| true)
            .expect("it is told");
        assert_near(size.expect("it is not cancelled"), ALL_BYTES);
    }
    let full = side.free();
    fs.snapshots().delete("first").expect("it goes");
    assert_near(side.free() - full, *used);
    assert!(fs.snapshot_size("first", &mut |_, _| true).is_err());
    assert_eq!(share(fs, dir).shared_bytes(), 0);
}

#[test]
fn a_clone_needs_what_was_written_to_it_and_what_its_source_replaced() {
    let side = Side::new();
    let fs = &side.fs;
    let source = side.dir(Ino::ROOT, "source");
    write(fs, source, 0..FILES, 1);
    let empty = side.usage();
    assert!(empty.clones.is_empty() && empty.snapshots.is_empty());
    let of = CloneSource {
        fs,
        dir: source,
        snapshot: None,
    };
    let at = DirName::new(Ino::ROOT, b"clone");
    let info = fs.make_clone(&SUPER, &of, at).expect("is made");
    let view = fs.open_clone(info.number).expect("opens");
    write(view.fs(), info.root, 0..FILES / 4, 2);
    let inside = share(view.fs(), info.root);
    assert_near(inside.referenced_bytes, ALL_BYTES);
    assert_near(inside.exclusive_bytes, ALL_BYTES / 4);
    assert_near(side.usage().clones[0].1, ALL_BYTES / 4);
    write(fs, source, FILES / 2..FILES, 3);
    let alone = side.usage().clones[0].1;
    assert_near(alone, ALL_BYTES / 4 + ALL_BYTES / 2);
    let ended = fs.usage(&mut |_, _| false).expect("it is told");
    assert!(ended.is_none());
    // Of the source all was deleted: the clone alone needs it.
    fs.lookup(at).expect("is there");
    let path = fs.clone_path(&info).expect("its name is known");
    assert_eq!(path, b"clone");
}

#[test]
fn names_of_one_file_are_counted_once() {
    let side = Side::new();
    let fs = &side.fs;
    let dir = side.dir(Ino::ROOT, "dir");
    write(fs, dir, 0..FILES, 1);
    for file in 0..FILES {
        let (name, link) = (format!("file {file}"), format!("link {file}"));
        let ino = fs
            .lookup(DirName::new(dir, name.as_bytes()))
            .expect("is there")
            .ino;
        let at = DirName::new(dir, link.as_bytes());
        fs.link(&SUPER, ino, at).expect("succeeds");
    }
    assert_near(share(fs, dir).referenced_bytes, ALL_BYTES);
    assert!(
        fs.directory_space(dir, &mut |_, _| false)
            .expect("it is told")
            .is_none()
    );
}

/// What a holder is said to need comes back when it goes.
#[test]
fn the_history_and_open_transactions_hold_what_was_replaced_and_written() {
    const LEN: usize = 4 << 20;
    let side = Side::with_history();
    let fs = &side.fs;
    let mut rng = Rng::new(9);
    let mut bytes = vec![0; LEN];
    let at = DirName::new(Ino::ROOT, b"file");
    let ino = fs.create(&SUPER, at, &NewNode::default());
    let ino = ino.expect("is made").ino;
    let mut write = |fs: &FileSystem, offset: usize| {
        rng.fill(&mut bytes);
        let written = fs.write(ino, offset as u64, &bytes, WriteOptions::default());
        written.expect("succeeds");
    };
    let usage = side.usage();
    assert!(usage.history.is_none() && usage.transactions.is_empty());
    // The first and the second contents are those of a moment each.
    for _ in 0..2 {
        write(fs, 0);
        fs.history()
            .run()
            .expect("it runs")
            .created
            .expect("a moment");
        side.clock.advance(Duration::from_secs(60));
    }
    write(fs, 0);
    let view = fs.transactions().begin("work", &BeginOptions::default());
    let view = view.expect("it begins");
    view.fs().lookup(at).expect("is there");
    write(view.fs(), LEN);
    let options = BeginOptions {
        outer: Some(view.info().number),
        ..BeginOptions::default()
    };
    let inner = fs.transactions().begin("inner", &options);
    let inner = inner.expect("it begins");
    inner.fs().lookup(at).expect("is there");
    write(inner.fs(), 2 * LEN);
    let usage = side.usage();
    let history = usage.history.expect("there are moments");
    assert_eq!(history.moments, 2);
    assert_eq!(history.since.seconds(), 1_000_000);
    assert_near(history.bytes, 2 * LEN as u64);
    let names = |usage: &Usage| {
        let names = usage.transactions.iter().map(|(info, _)| info.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&usage), ["work"], "with the one in it");
    assert_near(usage.transactions[0].1, 2 * LEN as u64);
    drop((view, inner));
    let before = side.free();
    fs.transactions().abort("work").expect("it is open");
    assert_near(side.free() - before, usage.transactions[0].1);
    let before = side.free();
    side.clock.advance(Duration::from_secs(7200));
    assert_eq!(fs.history().run().expect("it runs").dropped.len(), 2);
    assert_near(side.free() - before, history.bytes);
    // The round has created a moment of the present.
    let usage = side.usage();
    let left = usage.history.expect("there is one moment");
    assert_eq!((left.moments, names(&usage).len()), (1, 0));
    assert!(left.bytes < 50_000, "{left:?}");
}

/// A copy shares its contents with a file in another directory, also after a rollback.
#[test]
fn a_rollback_of_a_copy_takes_no_space_and_all_of_it_comes_back() {
    const LEN: usize = 8 << 20;
    let side = Side::new();
    let fs = &side.fs;
    let (dir, other) = (side.dir(Ino::ROOT, "dir"), side.dir(Ino::ROOT, "other"));
    let empty = side.free();
    let file = |parent, name: &'static str| {
        let at = DirName::new(parent, name.as_bytes());
        let made = fs.create(&SUPER, at, &NewNode::default());
        (at, made.expect("is made").ino)
    };
    let ((from, source), (to, copy)) = (file(other, "source"), file(dir, "copy"));
    let mut bytes = vec![0; LEN];
    Rng::new(5).fill(&mut bytes);
    let write = |ino, offset, bytes: &[u8]| {
        let written = fs.write(ino, offset, bytes, WriteOptions::default());
        written.expect("succeeds");
    };
    write(source, 0, &bytes);
    let copied = fs.copy_range((source, 0), (copy, 0), LEN as u64);
    assert_eq!(copied.expect("is copied"), LEN as u64);
    let before = side.free();
    assert!(empty - before < 2 * LEN as u64, "one file is stored");
    fs.snapshots().create(dir, "mon").expect("is made");
    write(copy, 1 << 20, &[1; 4096]);
    fs.roll_back("mon", dir, RollbackRights::default())
        .expect("is rolled back");
    fs.snapshots().delete("mon").expect("is there");
    let found = share(fs, dir);
    assert!(found.exclusive_bytes < 20_000, "{found:?}");
    assert_near(found.referenced_bytes, LEN as u64);
    assert!(before.abs_diff(side.free()) < 500_000, "it takes no space");
    let mut read = Vec::new();
    fs.read(copy, 0, LEN, &mut read).expect("it is read");
    assert!(read == bytes, "it is as it was");
    for (at, ino) in [(from, source), (to, copy)] {
        fs.unlink(&SUPER, at).expect("is there");
        fs.forget(ino, 1);
    }
    fs.reclaim().expect("succeeds");
    let left = empty.abs_diff(side.free());
    assert!(left < 500_000, "{left} bytes");
}

/// Deletes every other file, or all.
fn unlink(fs: &FileSystem, dir: Ino, files: u64, step: usize) {
    for file in (0..files).step_by(step) {
        let name = format!("file {file}");
        let at = DirName::new(dir, name.as_bytes());
        fs.unlink(&SUPER, at).expect("is there");
    }
    fs.reclaim().expect("what was deleted goes");
}

/// A file takes space as long as the directory, or a clone of it, or a snapshot of one has it.
fn deleted_everywhere(files: u64, file_bytes: u64, step: usize) {
    let side = Side::new();
    let fs = &side.fs;
    let dir = side.dir(Ino::ROOT, "dir");
    let empty = side.free();
    write_bytes(fs, dir, 0..files, (1, file_bytes));
    let full = side.free();
    let gone_bytes = (empty - full) / step as u64;
    let source = CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let clones = ["one", "two"].map(|name| {
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        fs.make_clone(&SUPER, &source, at).expect("is made")
    });
    let unlink_in = |clone: &CloneInfo| {
        let view = fs.open_clone(clone.number).expect("opens");
        unlink(view.fs(), clone.root, files, step);
    };
    let little = gone_bytes / 4;
    unlink(fs, dir, files, step);
    assert!(side.free() <= full + little, "both clones have the files");
    unlink_in(&clones[0]);
    assert!(side.free() <= full + little, "a clone has the files");
    let view = fs.open_clone(clones[1].number).expect("opens");
    fs.snapshots()
        .create_in(&view, clones[1].root, "mon")
        .expect("is made");
    drop(view);
    unlink_in(&clones[1]);
    assert!(side.free() <= full + little, "a snapshot has the files");
    fs.snapshots().delete("mon").expect("is there");
    let freed = side.free() - full.min(side.free());
    assert!(
        freed >= gone_bytes * 8 / 10,
        "{freed} of {gone_bytes} bytes came back"
    );
    for (clone, fs_of) in clones
        .iter()
        .map(|clone| (clone, fs.open_clone(clone.number)))
    {
        let view = fs_of.expect("opens");
        let at = DirName::new(clone.root, b"file 1");
        assert_eq!(
            view.fs().lookup(at).is_ok(),
            step > 1,
            "what is left is there"
        );
    }
}

#[test]
fn small_files_that_are_deleted_in_all_clones_give_space_back() {
    deleted_everywhere(2000, 900, 1);
}

#[test]
fn files_of_chunks_that_are_deleted_in_all_clones_give_space_back() {
    deleted_everywhere(60, 40_000, 1);
}

#[test]
fn every_other_file_that_is_deleted_in_all_clones_gives_space_back() {
    deleted_everywhere(60, 40_000, 2);
}

fn contents(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let (len, mut out) = (usize::try_from(FILE_BYTES).expect("short"), Vec::new());
    fs.read(ino, 0, len, &mut out).expect("it reads");
    out
}

/// Contents of other directories, which are replaced while a clone is there, take no space for its
/// sake; those of its own do, also of files that are open and have no name.
#[test]
fn a_clone_keeps_the_contents_of_its_directory_alone() {
    let side = Side::new();
    let (dir, other) = (side.dir(Ino::ROOT, "dir"), side.dir(Ino::ROOT, "other"));
    write(&side.fs, dir, 0..10, 1);
    write(&side.fs, other, 0..FILES, 1);
    let (of, at) = (
        CloneSource {
            fs: &side.fs,
            dir,
            snapshot: None,
        },
        DirName::new(Ino::ROOT, b"clone"),
    );
    let info = side.fs.make_clone(&SUPER, &of, at).expect("is made");
    let full = side.free();
    assert!(
        side.fs
            .snapshots()
            .narrow_clones_ahead()
            .expect("no walk yet")
            > Some(Duration::ZERO),
        "it is not old enough"
    );
    let view = side.fs.open_clone(info.number).expect("opens");
    let open = view
        .fs()
        .lookup(DirName::new(info.root, b"file 3"))
        .expect("is there");
    view.fs()
        .unlink(&SUPER, DirName::new(info.root, b"file 3"))
        .expect("is there");
    side.clock.advance(Duration::from_secs(61));
    side.narrow_clones();
    write(&side.fs, other, 0..FILES, 2);
    write(&side.fs, other, 0..FILES, 3);
    write(&side.fs, dir, 0..10, 2);
    // The clone keeps ten files of forty thousand bytes.
    let kept = full - side.free().min(full);
    assert!(kept < 10 * FILE_BYTES * 3 / 2, "{kept} bytes");
    let expected = |file: u64| {
        let mut bytes = vec![0; usize::try_from(FILE_BYTES).expect("short")];
        Rng::new(1 << 32 | file).fill(&mut bytes);
        bytes
    };
    assert!(contents(view.fs(), open.ino) == expected(3), "it is open");
    side.check();
    view.fs().forget(open.ino, 1);
    drop(view);
    // In the next life all is held until the clone is walked.
    let side = side.reopened();
    side.narrow_clones();
    let found = side.fs.lookup(DirName::new(Ino::ROOT, b"other"));
    assert_eq!(found.expect("is there").ino, other);
    write(&side.fs, other, 0..FILES, 4);
    let kept = full - side.free().min(full);
    assert!(kept < 10 * FILE_BYTES * 3 / 2, "{kept} bytes");
    let view = side.fs.open_clone(info.number).expect("opens");
    for file in (0..10).filter(|file| *file != 3) {
        let name = format!("file {file}");
        let found = view.fs().lookup(DirName::new(info.root, name.as_bytes()));
        let ino = found.expect("is there").ino;
        assert!(contents(view.fs(), ino) == expected(file), "{name}");
        view.fs().forget(ino, 1);
    }
}

/// A damaged directory that is in itself, further down: the walk had no end.
#[test]
fn a_ring_of_directories_is_counted_once() {
    let side = Side::new();
    let top = side.dir(Ino::ROOT, "top");
    let below = side.dir(top, "below");
    write(&side.fs, below, 0..FILES, 1);
    let before = share(&side.fs, top);
    let trees = side.engine.trees();
    let meta = trees.iter().find(|tree| tree.name == "fs/meta");
    let key = [&fs_key::dentry_start(below, 77)[..], b"above"].concat();
    let head = InodeHead {
        nlink: 2,
        ..InodeHead::new(top, FileKind::Directory)
    };
    let mut batch = Batch::new();
    batch.put(meta.expect("there is such a tree").id, &key, &head.encode());
    let committed = side.engine.commit(&batch, CommitOptions::default());
    committed.expect("there is room");
    let after = share(&side.fs, top);
    assert!(after.referenced_bytes >= before.referenced_bytes);
    assert!(after.referenced_bytes < before.referenced_bytes + ALL_BYTES);
}

/// A snapshot of a clone from before the walk may show what the clone has no more.
#[test]
fn a_clone_with_an_older_snapshot_keeps_all() {
    let side = Side::new();
    let dir = side.dir(Ino::ROOT, "dir");
    write(&side.fs, dir, 0..10, 1);
    let of = CloneSource {
        fs: &side.fs,
        dir,
        snapshot: None,
    };
    let at = DirName::new(Ino::ROOT, b"clone");
    let info = side.fs.make_clone(&SUPER, &of, at).expect("is made");
    let view = side.fs.open_clone(info.number).expect("opens");
    let made = side.fs.snapshots().create_in(&view, info.root, "mon");
    made.expect("is made");
    unlink(view.fs(), info.root, 10, 1);
    drop(view);
    // It does not hold the source itself.
    while side.fs.snapshots().narrow_ahead().expect("it is walked") {}
    side.clock.advance(Duration::from_secs(61));
    side.narrow_clones();
    let next = side.fs.snapshots().narrow_clones_ahead();
    assert_eq!(next.expect("it waits"), Some(Duration::from_secs(600)));
    unlink(&side.fs, dir, 10, 1);
    side.free();
    let view = side.fs.snapshots().open("mon").expect("is there");
    for file in 0..10 {
        let name = format!("file {file}");
        let at = DirName::new(info.root, name.as_bytes());
        let ino = view.fs().lookup(at).expect("is there").ino;
        let mut bytes = vec![0; usize::try_from(FILE_BYTES).expect("short")];
        Rng::new(1 << 32 | file).fill(&mut bytes);
        assert!(contents(view.fs(), ino) == bytes, "{name}");
    }
}
