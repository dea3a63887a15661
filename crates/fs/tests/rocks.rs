//! The file system on RocksDB, beside the same operations on the model engine: all rows must be
//! equal.
//!
//! `cargo test -p stitch-fs --features rocksdb --test rocks`

#![cfg(feature = "rocksdb")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::random::Rng;
use stitch_fs::fsck;
use stitch_fs::{
    Caller, DirName, FileSystem, FsOptions, FsResult, NewNode, SetAttr, WriteOptions,
    register_upserts,
};
use stitch_kv::conformance::dump;
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};
use stitch_rocks::{RocksEngine, RocksOptions};

const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const NAMES: u64 = 12;

fn upserts() -> UpsertRegistry {
    let mut registry = UpsertRegistry::default();
    register_upserts(&mut registry);
    registry
}

/// An engine, a file system on it and its clock.
struct Side {
    engine: Arc<dyn Engine>,
    fs: FileSystem,
    clock: Arc<ManualClock>,
}

impl Side {
    fn new(engine: Arc<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let options = FsOptions {
            clock: clock.clone(),
            name_seed: Some(7),
            ..FsOptions::default()
        };
        FileSystem::format(&engine, &options, (0, 0)).expect("formats");
        let fs = FileSystem::open(Arc::clone(&engine), options).expect("opens");
        Self { engine, fs, clock }
    }

    /// The inode of a name, known as often as it was looked up.
    fn find(&self, parent: Ino, name: &str) -> FsResult<Ino> {
        Ok(self.fs.lookup(at(parent, name))?.ino)
    }

    /// One operation, chosen by `rng`; what came of it.
    fn operate(&self, rng: &mut Rng) -> String {
        self.clock.advance(Duration::from_millis(1));
        let (name, other) = (name_of(rng), name_of(rng));
        let kind = rng.below(9);
        let (offset, len) = (rng.below(20_000), rng.below(9_000));
        let done = self.find(Ino::ROOT, "work").and_then(|dir| match kind {
            0 => self.fs.create(&SUPER, at(dir, &name), &NEW).map(drop),
            1 => self.fs.make_dir(&SUPER, at(dir, &name), &NEW).map(drop),
            2 => self.fs.unlink(&SUPER, at(dir, &name)),
            3 => self.fs.remove_dir(&SUPER, at(dir, &name)),
            4 => {
                let found = self.find(dir, &name)?;
                self.fs.link(&SUPER, found, at(dir, &other)).map(drop)
            }
            5 => self.cut(self.find(dir, &name)?, offset),
            _ => self.write(self.find(dir, &name)?, (offset, len)),
        });
        format!("{kind} {name} {other}: {done:?}")
    }

    fn cut(&self, ino: Ino, size: u64) -> FsResult<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.set_attr(&SUPER, ino, &set).map(drop)
    }

    fn write(&self, ino: Ino, (offset, len): (u64, u64)) -> FsResult<()> {
        let data = vec![7; usize::try_from(len).expect("short")];
        let options = WriteOptions::default();
        self.fs.write(ino, offset, &data, options).map(drop)
    }

    fn check(&self) {
        let issues = fsck::check(&self.engine, &mut |_| {}).expect("checks");
        assert_eq!(issues, []);
    }
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

fn name_of(rng: &mut Rng) -> String {
    format!("n{}", rng.below(NAMES))
}

fn rocks(folder: &Path) -> Arc<dyn Engine> {
    let options = RocksOptions {
        memory_bytes: 8 << 20,
        upserts: upserts(),
        ..RocksOptions::default()
    };
    Arc::new(RocksEngine::create(folder, &options).expect("a store is made"))
}

#[test]
fn the_same_operations_leave_the_same_rows() {
    for seed in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let sides = [
            Side::new(Arc::new(ModelEngine::new(upserts()))),
            Side::new(rocks(folder.path())),
        ];
        for side in &sides {
            let made = side.fs.make_dir(&SUPER, at(Ino::ROOT, "work"), &NEW);
            made.expect("makes a directory");
        }
        let mut rngs = [Rng::new(seed), Rng::new(seed)];
        for step in 0..300 {
            let [model, tested] = [0, 1].map(|side| sides[side].operate(&mut rngs[side]));
            assert_eq!(model, tested, "seed {seed}, step {step}");
        }
        sides[1].engine.quiesce().expect("compacts");
        let [model, tested] = [0, 1].map(|side| dump(&*sides[side].engine));
        assert!(model == tested, "seed {seed}: rows differ");
        sides[1].check();
    }
}
