//! What a comparison of two moments of a directory reads, on the VT-tree.

use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::ManualClock;
use stitch_base::{Ino, PinId};
use stitch_device::{Device, MemDevice};
use stitch_fs::{
    Caller, DirName, FileSystem, FsOptions, NewNode, PathChange, WriteOptions, register_upserts,
};
use stitch_kv::{Engine, UpsertRegistry, counters};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;
const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const DIRS: u64 = 100;

/// A store in memory, and what it is mounted with.
struct Bed {
    device: Arc<MemDevice>,
    clock: Arc<ManualClock>,
}

impl Bed {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(256 * MIB));
        let format = FormatOptions {
            uuid: [7; 16],
            ..FormatOptions::default()
        };
        Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let bed = Self { device, clock };
        FileSystem::format(&bed.engine(), &bed.options(), (0, 0)).expect("formats");
        bed
    }

    fn engine(&self) -> Arc<dyn Engine> {
        let mut upserts = UpsertRegistry::default();
        register_upserts(&mut upserts);
        let options = VtOptions {
            upserts,
            memory_bytes: 64 * MIB,
            background: false,
            ..VtOptions::default()
        };
        let device: Arc<dyn Device> = Arc::clone(&self.device) as _;
        let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
        VtEngine::open(opened, options).expect("the store opens")
    }

    fn options(&self) -> FsOptions {
        FsOptions {
            clock: Arc::clone(&self.clock) as _,
            ..FsOptions::default()
        }
    }

    /// Opens the file system. Nothing of it is cached.
    fn open(&self) -> FileSystem {
        FileSystem::open(self.engine(), self.options()).expect("opens")
    }

    fn close(fs: FileSystem) {
        fs.engine().quiesce().expect("it settles");
        fs.close().expect("closes");
    }
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

/// A comparison of two moments of a directory.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A list of differences.
    Differences,
    /// The paths that a copy needs.
    Paths,
}

/// Data blocks that one comparison of a directory reads, and its point reads and scans, of each
/// kind. The directory has `files` files in a hundred directories, `changes` of which have changed.
fn costs(files: u64, changes: u64) -> [(Asked, u64, u64); 2] {
    let bed = Bed::new();
    let fs = bed.open();
    let top = fs
        .make_dir(&SUPER, at(Ino::ROOT, "top"), &NEW)
        .expect("it is made")
        .ino;
    for dir in 0..DIRS {
        let made = fs.make_dir(&SUPER, at(top, &dir.to_string()), &NEW);
        let dir = made.expect("it is made").ino;
        for file in 0..files / DIRS {
            let made = fs.create(&SUPER, at(dir, &file.to_string()), &NEW);
            fs.forget(made.expect("it is made").ino, 1);
        }
    }
    let first = fs.create_snapshot(top, "first").expect("it is created");
    // The first comparison puts the back rows.
    let none = fs.differences(top, first.id, None, None);
    assert_eq!(none.expect("it is read"), []);
    let old = fs.create_snapshot(top, "old").expect("it is created");
    bed.clock.advance(Duration::from_secs(1));
    for change in 0..changes {
        let dir = fs
            .lookup(at(top, &(change % DIRS).to_string()))
            .expect("it is there")
            .ino;
        let name = (change / DIRS).to_string();
        let file = fs.lookup(at(dir, &name)).expect("it is there").ino;
        fs.write(file, 0, b"written", WriteOptions::default())
            .expect("it is written");
    }
    Bed::close(fs);

    [Asked::Differences, Asked::Paths].map(|asked| {
        let (blocks, reads) = cost(&bed, (top, old.id), changes, asked);
        (asked, blocks, reads)
    })
}

/// What one comparison reads. Nothing is cached before.
fn cost(bed: &Bed, (top, old): (Ino, PinId), changes: u64, asked: Asked) -> (u64, u64) {
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
            let found = fs.differences(top, old, None, None).expect("it is read");
            let is_modified = |change: &PathChange| matches!(change, PathChange::Modified(_));
            assert!(found.iter().all(is_modified), "{found:?}");
            found.len() as u64
        }
        Asked::Paths => {
            let found = fs.touched_paths(top, old, None, None);
            let found = found.expect("it is read");
            assert_eq!(found.old, found.new, "no name came or went");
            found.new.len() as u64 - changes.min(DIRS)
        }
    };
    let after = read();
    assert_eq!(found, changes);
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
