//! A whole store with changed numbers and correct checksums, used as a person uses it: checked,
//! read, repaired, written to, compacted and opened again.
//!
//! Every step may fail with an error, and none may panic or run forever. A store that a repair
//! calls sound must open, and be sound when it is opened again.

mod changes;
mod records;

use super::views;
use changes::Choices;
use records::{Kind, Record};
use std::sync::OnceLock;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_format::block::BlockKind;
use stitch_format::superblock::Superblock;
use stitch_fs::{
    Caller, DirName, FileSystem, FsOptions, FsResult, NewNode, SetAttr, WriteOptions, fsck,
};
use stitch_kv::{Compression, Engine, LostKeys, TreeOptions, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, VOLUME_BYTES_MIN, Volume};
use stitch_vt::{VtEngine, VtOptions};

type Failure = Box<dyn std::error::Error>;

/// Records that are changed at a time, at most.
const CHANGES_MAX: usize = 4;
/// Rounds of check and repair.
const REPAIRS_MAX: usize = 3;
/// Steps of background work; the sample needs a few.
const STEPS_MAX: usize = 2000;

/// A valid store, with its records.
struct Sample {
    device: MemDevice,
    records: Vec<Record>,
    salt: u64,
}

/// Changes a whole store as `bytes` say, makes its checksums right and uses it.
pub fn whole(bytes: &[u8]) {
    let device = Arc::new(changed(bytes));
    let _ = (check_only(&device), read_only(&device));
    if repair(&device).is_ok_and(|is_sound| is_sound) {
        expect_sound(&device);
    }
    let _ = (write(&device), check_only(&device));
}

/// The sample with changes.
fn changed(bytes: &[u8]) -> MemDevice {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| Sample::new().expect("the sample is made"));
    let mut records = sample.records.clone();
    let mut by = Choices(bytes);
    let mut which = Vec::new();
    for _ in 0..CHANGES_MAX {
        if by.is_over() {
            break;
        }
        let index = sample.pick(&mut by);
        changes::change(&mut records[index], &mut by);
        which.push(index);
    }
    let mended = records::mend(&mut records, &which, sample.salt);
    let device = sample.device.clone();
    records::write(&device, &records, &mended);
    device
}

impl Sample {
    fn new() -> Result<Self, Failure> {
        let device = made()?;
        let mut image = vec![0; usize::try_from(VOLUME_BYTES_MIN)?];
        device.read_at(0, &mut image)?;
        let superblock = Superblock::decode(&image, 0)?.ok_or("a superblock")?;
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let opened = Volume::open(Arc::new(device.clone()), &options)?;
        let records = records::find(&image, &superblock, opened.log_start);
        let sample = Self {
            device,
            records,
            salt: superblock.salt,
        };
        for (class, least) in CLASSES {
            let count = sample.of(*class).len();
            if count < *least {
                return Err(format!("the sample has {count} records of {class:?}").into());
            }
        }
        Ok(sample)
    }

    fn of(&self, class: Class) -> Vec<usize> {
        let all = self.records.iter().enumerate();
        let of_class = all.filter(|(_, record)| Class::of(record.kind) == class);
        of_class.map(|(index, _)| index).collect()
    }

    /// Picks a class first: there are many more data blocks than versions.
    fn pick(&self, by: &mut Choices<'_>) -> usize {
        let class = CLASSES[by.below(CLASSES.len())].0;
        let all = self.of(class);
        match (class, by.below(2)) {
            // Counters of the others are bounded by those of the last.
            (Class::Version, 1) => all[all.len() - 1],
            _ => all[by.below(all.len())],
        }
    }
}

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Superblock,
    Version,
    Log,
    Data,
    Index,
    Root,
    RangeDeletes,
}

/// The classes, with how many records of each the sample has at least. What occurs twice is picked
/// more often.
const CLASSES: &[(Class, usize)] = &[
    (Class::Superblock, 2),
    (Class::Version, 2),
    (Class::Version, 2),
    (Class::Log, 4),
    (Class::Data, 20),
    (Class::Data, 20),
    (Class::Data, 20),
    (Class::Index, 2),
    (Class::Root, 4),
    (Class::Root, 4),
    (Class::RangeDeletes, 1),
];

impl Class {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Superblock => Self::Superblock,
            Kind::Version => Self::Version,
            Kind::Log | Kind::ShortLog(..) => Self::Log,
            Kind::Block(BlockKind::TableData | BlockKind::TableFilter) => Self::Data,
            Kind::Block(BlockKind::TableIndex) => Self::Index,
            Kind::Block(BlockKind::TableRoot) => Self::Root,
            Kind::Block(BlockKind::RangeDeletes) => Self::RangeDeletes,
        }
    }
}

fn fs_options(read_only: bool) -> FsOptions {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000_000_000));
    FsOptions {
        clock: Arc::new(clock),
        name_seed: Some(0x5eed),
        history_s: Some(3600),
        read_only,
        ..FsOptions::default()
    }
}

fn open(device: Arc<dyn Device>, read_only: bool) -> Result<Arc<VtEngine>, Failure> {
    let options = OpenOptions {
        read_only,
        ..OpenOptions::default()
    };
    let opened = Volume::open(device, &options)?;
    let mut upserts = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut upserts);
    let options = VtOptions {
        upserts,
        background: false,
        memory_bytes: 4 << 20,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(96 << 10),
        level1_bytes: Some(32 << 10),
        ..VtOptions::default()
    };
    Ok(VtEngine::open(opened, options)?)
}

/// A store with tables on several levels, range deletes, values in zones, views, and records in its
/// log.
fn made() -> Result<MemDevice, Failure> {
    let medium = MemDevice::new(VOLUME_BYTES_MIN);
    Volume::format(&medium, &FormatOptions::default(), &mut |_, _| ())?;
    let device = Arc::new(CrashDevice::from_image(&medium, CrashPlan::NEVER));
    let vt = open(Arc::clone(&device) as Arc<dyn Device>, false)?;
    let engine = Arc::clone(&vt) as Arc<dyn Engine>;
    FileSystem::format(&engine, &fs_options(false), (0, 0))?;
    for tree in engine.trees() {
        let options = TreeOptions {
            compression: Compression::None,
            block_bytes: 1 << 10,
            ..tree.options.clone()
        };
        engine.alter_tree(tree.id, &options)?;
    }
    for round in 0..3 {
        let fs = FileSystem::open(Arc::clone(&engine), fs_options(false))?;
        fill(&fs, round)?;
        if round == 1 {
            views::plant_views(&fs)?;
        }
        fs.sync()?;
        drop(fs);
        while round < 2 && vt.step()? {}
    }
    Ok(device.kill_image())
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

fn fill(fs: &FileSystem, round: u64) -> FsResult<()> {
    let new = NewNode {
        perm: 0o755,
        umask: 0,
    };
    let root = &Caller::ROOT;
    let dir = fs
        .make_dir(root, at(Ino::ROOT, &format!("dir{round}")), &new)?
        .ino;
    let mut files = Vec::new();
    for number in 0..40u64 {
        let file = fs
            .create(root, at(dir, &format!("file{number}")), &new)?
            .ino;
        let bytes = vec![u8::try_from(number).expect("small"); 300 * usize::from(number as u8)];
        fs.write(file, 0, &bytes, WriteOptions::default())?;
        files.push(file);
    }
    let large = fs.create(root, at(dir, "large"), &new)?.ino;
    fs.write(large, 0, &[7; 200_000], WriteOptions::default())?;
    fs.write(large, 5_000, b"patched", WriteOptions::default())?;
    fs.link(root, large, at(Ino::ROOT, &format!("link{round}")))?;
    let cut = SetAttr {
        size: Some(100_000),
        ..SetAttr::default()
    };
    fs.set_attr(root, large, &cut)?;
    for number in 30..36 {
        fs.unlink(root, at(dir, &format!("file{number}")))?;
    }
    files.into_iter().for_each(|ino| fs.forget(ino, 1));
    Ok(())
}

fn shared(device: &Arc<MemDevice>) -> Arc<dyn Device> {
    Arc::clone(device) as Arc<dyn Device>
}

/// What `fsck` finds: issues of the rows, and whether there is anything else.
fn check(engine: &Arc<dyn Engine>) -> Result<(Vec<fsck::Issue>, bool), Failure> {
    let broken = engine.check(&mut |_, _| ())?;
    let lost: Vec<LostKeys> = broken.iter().filter_map(|v| v.lost.clone()).collect();
    let issues = fsck::check_around(engine, &lost, &mut |_| {})?;
    Ok((issues, !broken.is_empty()))
}

/// `fsck -n`.
fn check_only(device: &Arc<MemDevice>) -> Result<(), Failure> {
    let engine = open(shared(device), true)? as Arc<dyn Engine>;
    check(&engine).map(drop)
}

/// Reads all that can be read.
fn read_only(device: &Arc<MemDevice>) -> Result<(), Failure> {
    let engine = open(shared(device), true)? as Arc<dyn Engine>;
    read(&engine, true)
}

fn read(engine: &Arc<dyn Engine>, read_only: bool) -> Result<(), Failure> {
    let fs = FileSystem::open(Arc::clone(engine), fs_options(read_only))?;
    views::read_views(&fs);
    Ok(())
}

/// `fsck -y`. Reports whether the store is sound then.
fn repair(device: &Arc<MemDevice>) -> Result<bool, Failure> {
    for _ in 0..REPAIRS_MAX {
        let vt = open(shared(device), false)?;
        let engine = Arc::clone(&vt) as Arc<dyn Engine>;
        let (issues, is_broken) = check(&engine)?;
        if issues.is_empty() {
            engine.close()?;
            return Ok(!is_broken);
        }
        fsck::repair(&engine, &issues)?;
        engine.close()?;
    }
    Ok(false)
}

/// A store that was called sound opens and is sound.
fn expect_sound(device: &Arc<MemDevice>) {
    let engine = open(shared(device), true).expect("a sound store opens");
    let engine = engine as Arc<dyn Engine>;
    let found = check(&engine).expect("a sound store is checked");
    assert_eq!(found, (Vec::new(), false), "a sound store is sound again");
    let fs = FileSystem::open(engine, fs_options(true)).expect("a sound file system opens");
    assert!(fs.get_attr(Ino::ROOT).is_ok(), "it has a root");
}

/// Reads and changes what can be, and lets background work come to its end.
fn write(device: &Arc<MemDevice>) -> Result<(), Failure> {
    let vt = open(shared(device), false)?;
    let engine = Arc::clone(&vt) as Arc<dyn Engine>;
    let changed = change_files(&engine);
    let settled = quiesce(&vt);
    let _ = (changed, settled, engine.close());
    Ok(())
}

fn change_files(engine: &Arc<dyn Engine>) -> Result<(), Failure> {
    read(engine, false)?;
    let fs = FileSystem::open(Arc::clone(engine), fs_options(false))?;
    let _ = fill(&fs, 9);
    for round in 0..3 {
        let name = format!("dir{round}");
        let Ok(dir) = fs.lookup(at(Ino::ROOT, &name)) else {
            continue;
        };
        for name in ["large", "file0", "file20"] {
            let _ = fs.unlink(&Caller::ROOT, at(dir.ino, name));
        }
    }
    views::use_views(&fs);
    Ok(fs.close()?)
}

fn quiesce(vt: &Arc<VtEngine>) -> Result<(), Failure> {
    vt.quiesce()?;
    let mut steps = 0;
    while vt.step()? {
        steps += 1;
        assert!(steps < STEPS_MAX, "background work comes to an end");
    }
    vt.defrag(&mut |_, _| true).map(drop)?;
    Ok(())
}
