//! Opening stores for golden tests: the engine and the file system as users get them, with a clock
//! that stands still.

use std::error::Error;
use std::time::Duration;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_fs::{AtimePolicy, DirName, FileSystem, FsOptions, FsResult, fsck};
use stitch_kv::{Compression, Direction, Engine, KeyRange, Snapshot, TreeOptions, UpsertRegistry};
use stitch_sim::files::{self, Tree};
use stitch_volume::{FormatOptions, InstanceOptions, OpenOptions, VOLUME_BYTES_MIN, Volume};
use stitch_vt::{VtEngine, VtOptions};

/// Whether a store was closed in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clean {
    /// It was.
    Closed,
    /// Its process was killed.
    Killed,
}

fn options() -> FsOptions {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000_000_000));
    FsOptions {
        clock: Arc::new(clock),
        atime: AtimePolicy::Noatime,
        name_seed: Some(0x5eed),
        ..FsOptions::default()
    }
}

fn engine(device: Arc<dyn Device>) -> Result<Arc<VtEngine>, Box<dyn Error>> {
    let opened = Volume::open(device, &OpenOptions::default())?;
    let mut upserts = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut upserts);
    let options = VtOptions {
        upserts,
        background: false,
        // An absorb always moves tables.
        absorb_copy_bytes_max: 0,
        ..VtOptions::default()
    };
    Ok(VtEngine::open(opened, options)?)
}

/// Gives the tree of contents other options, as a mount option does.
fn alter(engine: &dyn Engine) -> Result<(), Box<dyn Error>> {
    let trees = engine.trees();
    let data = trees.iter().find(|tree| tree.name == "fs/data");
    let data = data.ok_or("the file system has a tree of contents")?;
    let options = TreeOptions {
        compression: Compression::Zstd,
        stitch_bytes: 32 << 10,
        ..data.options.clone()
    };
    Ok(engine.alter_tree(data.id, &options)?)
}

/// A new store of the smallest size, after `fill`, with these further instances.
///
/// # Errors
/// Whatever the store says.
pub fn with_new(
    clean: Clean,
    further: &[&str],
    fill: impl FnOnce(&FileSystem) -> FsResult<()>,
) -> Result<MemDevice, Box<dyn Error>> {
    with_engine(clean, further, |fs, _| Ok(fill(fs)?))
}

/// A new store of the smallest size, after `fill` with its first engine, with these further
/// instances.
///
/// # Errors
/// Whatever the store says.
pub fn with_engine(
    clean: Clean,
    further: &[&str],
    fill: impl FnOnce(&FileSystem, &dyn Engine) -> Result<(), Box<dyn Error>>,
) -> Result<MemDevice, Box<dyn Error>> {
    let (device, first) = formatted()?;
    let engine = Arc::clone(&first) as Arc<dyn Engine>;
    let fs = FileSystem::open(Arc::clone(&engine), options())?;
    fill(&fs, &*engine)?;
    for name in further {
        let made = first.create_instance(name, &InstanceOptions::default())?;
        let made = made as Arc<dyn Engine>;
        FileSystem::format(&made, &options(), (0, 0))?;
        let fs = FileSystem::open(made, options())?;
        crate::sample::brief(&fs, name)?;
        if clean == Clean::Closed {
            fs.close()?;
        }
    }
    if clean == Clean::Closed {
        fs.close()?;
        engine.close()?;
    }
    Ok(device.kill_image())
}

/// A device with a new store of the smallest size, and its engine.
fn formatted() -> Result<(Arc<CrashDevice>, Arc<VtEngine>), Box<dyn Error>> {
    let medium = MemDevice::new(VOLUME_BYTES_MIN);
    let format = FormatOptions {
        label: "golden".to_owned(),
        ..FormatOptions::default()
    };
    Volume::format(&medium, &format, &mut |_, _| ())?;
    let device = Arc::new(CrashDevice::from_image(&medium, CrashPlan::NEVER));
    let first = engine(Arc::clone(&device) as Arc<dyn Device>)?;
    let engine = Arc::clone(&first) as Arc<dyn Engine>;
    FileSystem::format(&engine, &options(), (0, 0))?;
    alter(&*engine)?;
    Ok((device, first))
}

/// A new store of the smallest size, after `prepare`, whose process was killed while `change` ran:
/// its `write`-th write to the device, from 1, fails. Each batch of a rollback is as small as it
/// can be.
///
/// # Errors
/// Whatever the store says before `change`; that `change` came to its end.
pub fn killed_at<T>(
    write: u64,
    prepare: impl FnOnce(&FileSystem) -> FsResult<T>,
    change: impl FnOnce(&FileSystem, T) -> FsResult<()>,
) -> Result<MemDevice, Box<dyn Error>> {
    let (device, engine) = formatted()?;
    let options = FsOptions {
        rollback_batch_bytes: Some(1),
        ..options()
    };
    let fs = FileSystem::open(engine as Arc<dyn Engine>, options)?;
    let prepared = prepare(&fs)?;
    fs.sync()?;
    device.set_plan(CrashPlan::at_write(write));
    match change(&fs, prepared) {
        Ok(()) => Err("it came to its end".into()),
        Err(_) => Ok(device.kill_image()),
    }
}

/// Opens a store, checks every rule, reads everything, changes it, closes it and opens it again:
/// all its instances. Paths of further ones have their names before them.
///
/// # Errors
/// Whatever the store says, or what is wrong with it.
pub fn exercise(medium: &MemDevice) -> Result<Tree, Box<dyn Error>> {
    let device: Arc<dyn Device> = Arc::new(medium.clone());
    let first = engine(Arc::clone(&device))?;
    let mut all = Tree::new();
    for vt in with_further(&first) {
        let prefix = prefix(&vt);
        let tree = change(&(vt as Arc<dyn Engine>))?;
        all.extend(
            tree.into_iter()
                .map(|(path, node)| (format!("{prefix}{path}"), node)),
        );
    }
    first.close()?;
    drop(first);
    let first = engine(device)?;
    let engines = with_further(&first);
    let count = engines.len();
    let mut found = 0;
    for vt in engines {
        let prefix = prefix(&vt);
        let engine = vt as Arc<dyn Engine>;
        check(&engine)?;
        let again = files::read(&FileSystem::open(engine, options())?)?;
        if !again.contains_key("new") {
            return Err("what was made is not there when opened again".into());
        }
        let is_known =
            |path: &String| path == "new" || all.contains_key(&format!("{prefix}{path}"));
        if !again.keys().all(is_known) {
            return Err("there is more when opened again".into());
        }
        found += again.len();
    }
    if found != all.len() + count {
        return Err("something is gone when opened again".into());
    }
    Ok(all)
}

/// Opens a store and finds every inode by its number, as a file handle is opened. Returns how many
/// there are.
///
/// # Errors
/// Whatever the store says, or what is wrong with it.
pub fn open_numbers(medium: &MemDevice) -> Result<usize, Box<dyn Error>> {
    let first = engine(Arc::new(medium.clone()) as Arc<dyn Device>)?;
    let mut count = 0;
    for vt in with_further(&first) {
        let engine = vt as Arc<dyn Engine>;
        let fs = FileSystem::open(Arc::clone(&engine), options())?;
        let tree = files::read(&fs)?;
        for path in tree.keys() {
            let ino = number_of(&fs, path)?;
            if fs.known_inodes() != 1 || fs.look_up_number(ino)?.ino != ino {
                return Err(format!("{path} is another inode, or was known").into());
            }
            fs.forget(ino, 1);
        }
        count += tree.len();
        check(&engine)?;
        fs.close()?;
    }
    first.close()?;
    Ok(count)
}

/// The inode number of a path. Nothing but the root is known afterwards.
fn number_of(fs: &FileSystem, path: &str) -> FsResult<Ino> {
    let mut way = vec![Ino::ROOT];
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let parent = *way.last().expect("it begins with the root");
        way.push(fs.lookup(DirName::new(parent, name.as_bytes()))?.ino);
    }
    for &ino in &way[1..] {
        fs.forget(ino, 1);
    }
    Ok(*way.last().expect("it begins with the root"))
}

/// Blocks of 512 bytes of files in the root directory of a store, by their names.
///
/// # Errors
/// Whatever the store says.
pub fn blocks(medium: &MemDevice, names: &[&str]) -> Result<Vec<u64>, Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))? as Arc<dyn Engine>;
    let fs = FileSystem::open(engine, options())?;
    let mut out = Vec::new();
    for name in names {
        let name = stitch_fs::DirName::new(stitch_base::Ino::ROOT, name.as_bytes());
        out.push(fs.lookup(name)?.blocks);
    }
    Ok(out)
}

/// The pins of a store as text: of each a line with its name, bytes of the user, and number of
/// rows that each of the first trees has, living or dropped.
///
/// # Errors
/// Whatever the store says.
pub fn pins(medium: &MemDevice) -> Result<Vec<String>, Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))?;
    let mut out = Vec::new();
    for pin in engine.pins()? {
        let at = engine.open_pin(&pin.name)?;
        let mut rows = Vec::new();
        for tree in (1..=TREES_MAX).map(TreeId) {
            rows.push(match engine.get(tree, b"", Some(&at)) {
                Ok(_) => Some(count(&*engine, tree, &at)?),
                Err(_) => None,
            });
        }
        let user = String::from_utf8_lossy(&pin.user).into_owned();
        let mut line = format!("{} {user} {rows:?}", pin.name);
        for (tree, ranges) in &pin.ranges {
            let counts = ranges
                .iter()
                .map(|range| count_in(&*engine, *tree, range, &at));
            let counts = counts.collect::<Result<Vec<_>, _>>()?;
            line.push_str(&format!(" {tree}: {counts:?}"));
        }
        out.push(line);
    }
    Ok(out)
}

/// The branch trees of a store as text: of each a line with its name, its parent and its number of
/// rows.
///
/// # Errors
/// Whatever the store says.
pub fn branches(medium: &MemDevice) -> Result<Vec<String>, Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))?;
    let at = engine.snapshot();
    let mut out = Vec::new();
    for tree in engine.trees() {
        let Some(point) = tree.branch else {
            continue;
        };
        let rows = count(&*engine, tree.id, &at)?;
        out.push(format!("{} of {}: {rows}", tree.name, point.parent));
    }
    Ok(out)
}

/// The rows of a tree as text: of each a line with its key and its value.
///
/// # Errors
/// Whatever the store says; there is no such tree.
pub fn rows(medium: &MemDevice, name: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))?;
    let trees = engine.trees();
    let tree = trees.iter().find(|tree| tree.name == name);
    let tree = tree.ok_or("there is no such tree")?.id;
    let mut scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None)?;
    let mut out = Vec::new();
    while let Some((key, value)) = scan.next()? {
        out.push(format!("{key:?} {}", String::from_utf8_lossy(value)));
    }
    Ok(out)
}

/// Trees that [`pins`] looks for.
const TREES_MAX: u32 = 8;

fn count(engine: &dyn Engine, tree: TreeId, at: &Snapshot) -> Result<usize, Box<dyn Error>> {
    count_in(engine, tree, KeyRange::all(), at)
}

fn count_in(
    engine: &dyn Engine,
    tree: TreeId,
    range: KeyRange<'_>,
    at: &Snapshot,
) -> Result<usize, Box<dyn Error>> {
    let mut scan = engine.scan(tree, range, Direction::Forward, Some(at))?;
    let mut count = 0;
    while scan.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn with_further(first: &Arc<VtEngine>) -> Vec<Arc<VtEngine>> {
    let mut all = vec![Arc::clone(first)];
    all.extend(first.further());
    all
}

fn prefix(vt: &VtEngine) -> String {
    match vt.volume().is_first() {
        true => String::new(),
        false => format!("{}:", vt.name()),
    }
}

/// What a file system holds, before a directory is made in it.
fn change(engine: &Arc<dyn Engine>) -> Result<Tree, Box<dyn Error>> {
    let fs = FileSystem::open(Arc::clone(engine), options())?;
    check(engine)?;
    let tree = files::read(&fs)?;
    let name = stitch_fs::DirName::new(Ino::ROOT, b"new");
    let new = stitch_fs::NewNode {
        perm: 0o700,
        umask: 0,
    };
    fs.make_dir(&stitch_fs::Caller::ROOT, name, &new)?;
    fs.close()?;
    Ok(tree)
}

fn check(engine: &Arc<dyn Engine>) -> Result<(), Box<dyn Error>> {
    let broken = engine.check(&mut |_, _| ())?;
    let issues = fsck::check(engine, &mut |_| ())?;
    if broken.is_empty() && issues.is_empty() {
        return Ok(());
    }
    Err(format!("{broken:?} {issues:?}").into())
}

/// A tree as text, a line for each path.
#[must_use]
pub fn text(tree: &Tree) -> String {
    tree.iter()
        .map(|(path, node)| format!("{path:?} {node:?}\n"))
        .collect()
}

/// What is wrong with a store, a line for each issue. Nothing is opened that would mend it.
///
/// # Errors
/// Whatever the store says.
pub fn issues(medium: &MemDevice) -> Result<Vec<String>, Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))? as Arc<dyn Engine>;
    let issues = fsck::check(&engine, &mut |_| ())?;
    Ok(issues.iter().map(ToString::to_string).collect())
}

/// The first bytes of a file in the directory of a store's only clone, and in that of mainline
/// which it is a clone of.
///
/// # Errors
/// Whatever the store says.
pub fn begins(medium: &MemDevice, dir: &str, name: &str) -> Result<[Vec<u8>; 2], Box<dyn Error>> {
    let engine = engine(Arc::new(medium.clone()))? as Arc<dyn Engine>;
    let fs = FileSystem::open(engine, options())?;
    let clones = fs.clones();
    let [info] = &clones[..] else {
        return Err("there is not one clone".into());
    };
    let clone = fs.open_clone(info.number)?;
    let dir = fs.lookup(DirName::new(Ino::ROOT, dir.as_bytes()))?.ino;
    let read = |fs: &FileSystem, dir| {
        let ino = fs.lookup(DirName::new(dir, name.as_bytes()))?.ino;
        let mut bytes = Vec::new();
        fs.read(ino, 0, 8, &mut bytes)?;
        FsResult::Ok(bytes)
    };
    Ok([read(clone.fs(), info.root)?, read(&fs, dir)?])
}
