//! Syncs of the device that changes of snapshots and clones take, on the VT-tree.

use std::sync::Arc;
use stitch_base::Ino;
use stitch_base::random::bytes16;
use stitch_device::{Device, MemDevice};
use stitch_fs::{
    Caller, CloneSource, DirName, FileSystem, FsOptions, FsResult, NewNode, register_upserts,
};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;
const SUPER: Caller<'static> = Caller::ROOT;

struct Side {
    device: Arc<dyn Device>,
    fs: FileSystem,
    dir: Ino,
}

fn at(name: &str) -> DirName<'_> {
    DirName::new(Ino::ROOT, name.as_bytes())
}

fn side() -> Side {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 * MIB));
    let options = FormatOptions {
        uuid: bytes16().expect("the system has randomness"),
        ..FormatOptions::default()
    };
    Volume::format(&*device, &options, &mut |_, _| {}).expect("the device is large enough");
    let mut upserts = UpsertRegistry::default();
    register_upserts(&mut upserts);
    let options = VtOptions {
        upserts,
        memory_bytes: 16 * MIB,
        background: false,
        ..VtOptions::default()
    };
    let opened = Volume::open(Arc::clone(&device), &OpenOptions::default());
    let engine = VtEngine::open(opened.expect("the volume opens"), options);
    let engine: Arc<dyn Engine> = engine.expect("the store opens");
    let fs_options = FsOptions::default();
    FileSystem::format(&engine, &fs_options, (0, 0)).expect("formats");
    let fs = FileSystem::open(engine, fs_options).expect("opens");
    let dir = fs.make_dir(&SUPER, at("d"), &NewNode::default());
    let dir = dir.expect("it is made").ino;
    Side { device, fs, dir }
}

impl Side {
    /// Syncs of a change, when all was durable before it, and right after a write that was not.
    /// The first change, which marks what the store has in it, is not counted.
    fn syncs<T>(&self, change: impl Fn(&str) -> FsResult<T>) -> [u64; 2] {
        change("first").expect("it is done");
        ["quiet", "busy"].map(|name| {
            self.fs.sync().expect("the device syncs");
            if name == "busy" {
                let made = self.fs.create(&SUPER, at("file"), &NewNode::default());
                made.expect("it is made");
                self.fs.unlink(&SUPER, at("file")).expect("it is there");
            }
            let before = self.device.counters().syncs;
            change(name).expect("it is done");
            self.device.counters().syncs - before
        })
    }

    fn clone(&self, name: &str) -> FsResult<()> {
        let source = CloneSource {
            fs: &self.fs,
            dir: self.dir,
            snapshot: None,
        };
        self.fs.make_clone(&SUPER, &source, at(name)).map(drop)
    }

    fn destroy(&self, name: &str) -> FsResult<()> {
        let graft = self.fs.lookup(at(name))?.ino;
        self.fs.remove_tree(&SUPER, at(name), Some(graft))?;
        self.fs.reclaim().map(drop)
    }
}

#[test]
fn a_snapshot_takes_one_and_one_for_writes_before_it() {
    let side = side();
    let created = side.syncs(|name| side.fs.snapshots().create(side.dir, name));
    assert_eq!(created, [1, 2]);
    let deleted = side.syncs(|name| side.fs.snapshots().delete(name));
    assert_eq!(deleted, [1, 2]);
}

#[test]
fn a_clone_takes_one_for_its_trees_and_one_for_its_name() {
    let side = side();
    assert_eq!(side.syncs(|name| side.clone(name)), [2, 3]);
    // What removes the name is not synced before the trees go.
    assert_eq!(side.syncs(|name| side.destroy(name)), [2, 2]);
}
