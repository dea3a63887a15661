//! Every way to ask for durability syncs the device, or nothing was pending.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;

use crate::harness::context::Context;
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec};
use crate::harness::views;

/// Files above this are plain files beside the store, where there are such.
const LARGE_BYTES: usize = 256 << 10;

type Sync = fn(&File, &[u8]) -> Result<()>;
/// An open file in the folder, and a call that makes it durable.
type Way = (&'static str, fn(&Path) -> Result<File>, Sync);

const WAYS: &[Way] = &[
    ("fsync of a folder", |dir| Ok(File::open(dir)?), fsync),
    ("fsync of an empty file", new_file, fsync),
    ("fsync of a written file", |dir| written(dir, 5000), fsync),
    (
        "fsync of a large file",
        |dir| written(dir, LARGE_BYTES),
        fsync,
    ),
    (
        "fsync of an unlinked empty file",
        |dir| unlinked(dir, 0),
        fsync,
    ),
    (
        "fsync of an unlinked file",
        |dir| unlinked(dir, 5000),
        fsync,
    ),
    (
        "fsync of an unlinked large file",
        |dir| unlinked(dir, LARGE_BYTES),
        fsync,
    ),
    ("fsync of an O_TMPFILE", temporary, fsync),
    ("fdatasync of a file", new_file, fdatasync),
    ("fdatasync of an O_TMPFILE", temporary, fdatasync),
    (
        "a write with O_SYNC",
        |dir| opened(dir, OFlags::SYNC),
        write,
    ),
    (
        "a write with O_DSYNC",
        |dir| opened(dir, OFlags::DSYNC),
        write,
    ),
    (
        "a direct write with O_DSYNC",
        |dir| opened(dir, OFlags::DSYNC | OFlags::DIRECT),
        write,
    ),
    ("a write with RWF_DSYNC", new_file, write_dsync),
    ("msync of a mapping", |dir| written(dir, 5000), msync),
];

/// Also with large files beside the store.
pub(super) fn each_way_syncs_the_device(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    for (name, option) in [
        ("rq-syncs", None),
        ("rq-syncs-beside", Some("large_files=external:64K")),
    ] {
        // Nothing is synced by the clock.
        let mut spec = Spec::new(name, "256M").option("commit=3600");
        spec.options.extend(option.map(str::to_owned));
        let mount = Mount::create(context, &spec)?;
        check_ways(&mount, mount.dir()).context(name)?;
    }
    Ok(())
}

/// In a clone and in a transaction, where operations on mainline are made durable, too.
pub(super) fn each_way_syncs_the_device_in_a_view(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("rq-syncs-views", "256M").option("commit=3600");
    let mount = Mount::create(context, &spec)?;
    let clone = views::clone(context, &mount)?;
    check_ways(&mount, &clone).context("in a clone")?;
    let transaction = views::begin(context, &mount)?;
    check_ways(&mount, &transaction).context("in a transaction")
}

/// All ways, in a folder of the mount.
fn check_ways(mount: &Mount<'_>, top: &Path) -> Result<()> {
    for (index, way) in WAYS.iter().enumerate() {
        let dir = top.join(format!("way{index}"));
        check(mount, &dir, way).context(way.0)?;
    }
    Ok(())
}

fn check(mount: &Mount<'_>, dir: &Path, (what, open, sync): &Way) -> Result<()> {
    fs::create_dir(dir)?;
    let file = open(dir)?;
    // An operation that was acknowledged, and has nothing to do with the file.
    let before = mount.dir().join("before");
    fs::create_dir(&before)?;
    fs::remove_dir(&before)?;
    let buffer = Aligned([7; 4096]);
    let before = mount.stats()?;
    sync(&file, &buffer.0)?;
    let after = mount.stats()?;
    let syncs = after.since(&before, "device.syncs")?;
    ensure!(syncs > 0, "{what} syncs nothing");
    sync(&file, &buffer.0)?;
    Ok(())
}

/// As direct I/O wants it.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

fn new_file(dir: &Path) -> Result<File> {
    opened(dir, OFlags::empty())
}

fn opened(dir: &Path, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits()).context("flags")?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    Ok(options.custom_flags(flags).open(dir.join("file"))?)
}

fn written(dir: &Path, len: usize) -> Result<File> {
    let mut file = new_file(dir)?;
    file.write_all(&vec![7; len])?;
    Ok(file)
}

fn unlinked(dir: &Path, len: usize) -> Result<File> {
    let file = written(dir, len)?;
    fs::remove_file(dir.join("file"))?;
    Ok(file)
}

fn temporary(dir: &Path) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    Ok(rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600))?.into())
}

fn fsync(file: &File, _: &[u8]) -> Result<()> {
    Ok(file.sync_all()?)
}

fn fdatasync(file: &File, _: &[u8]) -> Result<()> {
    Ok(file.sync_data()?)
}

fn write(file: &File, bytes: &[u8]) -> Result<()> {
    Ok(file.write_all_at(bytes, 0)?)
}

fn write_dsync(file: &File, bytes: &[u8]) -> Result<()> {
    let pieces = [IoSlice::new(bytes)];
    let count = rustix::io::pwritev2(file, &pieces, 0, ReadWriteFlags::DSYNC)?;
    ensure!(count == bytes.len(), "{count} bytes written");
    Ok(())
}

fn msync(file: &File, _: &[u8]) -> Result<()> {
    let map = Map::new(file, 5000, true)?;
    map.write(0, b"mapped")?;
    map.sync()
}
