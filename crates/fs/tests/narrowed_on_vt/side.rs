//! Stores, their files, and what is expected of them.

use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::random::Rng;
use stitch_device::{Device, MemDevice};
use stitch_fs::{Caller, DirName, FileSystem, FsOptions, NewNode, WriteOptions, register_upserts};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SUPER: Caller<'static> = Caller::ROOT;
pub(crate) const FILE_BYTES: u64 = 40_000;

pub(crate) fn new_device() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(192 * MIB));
    let format = FormatOptions {
        uuid: [7; 16],
        ..FormatOptions::default()
    };
    Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
    device
}

pub(crate) fn engine_on(device: &Arc<dyn Device>) -> Arc<dyn Engine> {
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

pub(crate) fn options(clock: &Arc<ManualClock>) -> FsOptions {
    clock.advance(Duration::from_secs(1_000_000));
    FsOptions {
        clock: Arc::clone(clock) as _,
        ..FsOptions::default()
    }
}

pub(crate) struct Side {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) fs: FileSystem,
}

impl Side {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let device = new_device();
        let engine = engine_on(&device);
        FileSystem::format(&engine, &options(&clock), (0, 0)).expect("formats");
        Self::open(clock, device, engine)
    }

    fn open(clock: Arc<ManualClock>, device: Arc<dyn Device>, engine: Arc<dyn Engine>) -> Self {
        let fs = FileSystem::open(Arc::clone(&engine), options(&clock)).expect("opens");
        Self {
            clock,
            device,
            engine,
            fs,
        }
    }

    /// The next life of the store.
    pub(crate) fn reopen(self) -> Self {
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
        Self::open(clock, device, engine)
    }

    pub(crate) fn dir(&self, parent: Ino, name: &str) -> Ino {
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let at = DirName::new(parent, name.as_bytes());
        self.fs.make_dir(&SUPER, at, &new).expect("succeeds").ino
    }

    pub(crate) fn known(&self, parent: Ino, name: &str) -> Ino {
        let found = self.fs.lookup(DirName::new(parent, name.as_bytes()));
        found.expect("it is there").ino
    }

    /// Narrows all snapshots. Returns how many pins are narrowed then.
    pub(crate) fn narrow(&self) -> usize {
        while self
            .fs
            .snapshots()
            .narrow_ahead()
            .expect("all can be walked")
        {}
        let pins = self.engine.pins().expect("the pins are listed");
        pins.iter().filter(|pin| !pin.ranges.is_empty()).count()
    }

    pub(crate) fn used(&self) -> u64 {
        self.engine.quiesce().expect("background work succeeds");
        let space = self.engine.space();
        space.total_bytes - space.free_bytes
    }

    pub(crate) fn assert_sound(&self) {
        self.fs.sync().expect("syncs");
        let issues = stitch_fs::fsck::check(&self.engine, &mut |_| {}).expect("it reads");
        assert!(issues.is_empty(), "{issues:?}");
    }
}

pub(crate) fn contents(file: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(FILE_BYTES).expect("short")];
    Rng::new(seed << 32 | file).fill(&mut bytes);
    bytes
}

/// Writes files of a directory anew, with contents of `seed`.
pub(crate) fn write(fs: &FileSystem, dir: Ino, files: std::ops::Range<u64>, seed: u64) {
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
pub(crate) fn assert_contents(fs: &FileSystem, dir: Ino, name: &str, expected: &[u8]) {
    let at = DirName::new(dir, name.as_bytes());
    let ino = fs.lookup(at).expect("it is there").ino;
    let mut found = Vec::new();
    let len = expected.len() + 1;
    fs.read(ino, 0, len, &mut found).expect("it reads");
    fs.forget(ino, 1);
    assert!(found == expected, "{name} is different");
}

#[track_caller]
pub(crate) fn assert_files(fs: &FileSystem, dir: Ino, files: std::ops::Range<u64>, seed: u64) {
    for file in files {
        assert_contents(fs, dir, &format!("file {file}"), &contents(file, seed));
    }
}

/// A directory with files, files below it, a second name of a file elsewhere, and a shared copy.
pub(crate) fn populate(side: &Side) -> (Ino, Ino) {
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
pub(crate) fn assert_populated(fs: &FileSystem, dir: Ino) {
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
pub(crate) fn overwrite(side: &Side, (dir, other): (Ino, Ino), seed: u64) {
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
