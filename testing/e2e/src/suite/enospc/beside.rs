//! Large files beside the store, on a file system of the host that gets full, and beside a store
//! that is full.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{content, write};
use crate::harness::context::Context;
use crate::harness::host::Host;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, run};
use crate::harness::tree::expect_content;
use crate::suite::passthrough;

/// Files that become larger are plain files.
const FROM: &str = "large_files=external:64K";
/// Below that.
const SMALL: usize = 60 << 10;
const LARGE: usize = 3 << 20;
const HOST_BYTES: u64 = 48 << 20;

/// The daemon reads and writes what fills the host.
pub(super) fn the_hosts_file_system_gets_full(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let folder = Mount::folder(context, "full-host");
    let host = Host::create(context, &folder, HOST_BYTES)?;
    let spec = Spec::new("full-host", "256M").option(FROM);
    fill_the_host(context, &host, Mount::create(context, &spec)?, false)
}

/// Others have the files open, and the kernel reads them.
pub(super) fn the_hosts_file_system_gets_full_of_lent_files(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let folder = Mount::folder(context, "full-lent");
    let host = Host::create(context, &folder, HOST_BYTES)?;
    let mount = passthrough::mount_with(context, &passthrough::spec("full-lent"))?;
    fill_the_host(context, &host, mount, true)
}

fn path(mount: &Mount<'_>, index: u64) -> PathBuf {
    mount.dir().join(format!("file{index}"))
}

pub(super) fn expect_full(error: &Error) -> Result<()> {
    let kind = error.kind();
    ensure!(kind == ErrorKind::StorageFull, "not ENOSPC but {error:?}");
    Ok(())
}

fn fill_the_host(
    context: &Context,
    host: &Host,
    mut mount: Mount<'_>,
    is_lent: bool,
) -> Result<()> {
    let free_at_first = host.free_bytes()?;
    let growing = mount.dir().join("growing");
    write(&growing, &content(1000, SMALL))?;
    let mut open = Vec::new();
    let mut count = 0;
    let error = loop {
        if let Err(error) = write(&path(&mount, count), &content(count, LARGE)) {
            break error;
        }
        if is_lent {
            open.push(File::open(path(&mount, count))?);
        }
        count += 1;
        ensure!(count < 100, "it never gets full");
    };
    expect_full(&error)?;
    println!("      full after {count} files of {LARGE} bytes");
    ensure!(count >= 10, "full after {count} files");
    let whole = content(count, LARGE);
    let part = fs::read(path(&mount, count))?;
    ensure!(whole.starts_with(&part), "what did not fit is no beginning");
    let free = fill_to_the_last(&mount, count)?;
    println!("      {free} bytes are left to the host");

    full_and_nothing_changes(&mount, &growing).context("while full")?;
    expect_all(&mount, count)?;
    drop(open);
    mount.remount().context("remount while full")?;
    expect_all(&mount, count).context("after a remount while full")?;
    expect_content(&growing, &content(1000, SMALL))?;
    mount.expect_no_stray_files()?;

    replaced_at_once(&mount, &growing, count).context("removed and written at once")?;
    give_all_back(context, host, &mount, free_at_first)?;
    for index in 0..count * 8 / 10 {
        write(&path(&mount, index), &content(index + 7, LARGE))
            .with_context(|| format!("writing file {index} again"))?;
    }
    mount.remount()?;
    for index in 0..count * 8 / 10 {
        expect_content(&path(&mount, index), &content(index + 7, LARGE))?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn expect_all(mount: &Mount<'_>, count: u64) -> Result<()> {
    (0..count).try_for_each(|index| expect_content(&path(mount, index), &content(index, LARGE)))
}

/// Appends to a file that did not fit until not one block does. What is left then.
fn fill_to_the_last(mount: &Mount<'_>, count: u64) -> Result<u64> {
    let mut file = OpenOptions::new().append(true).open(path(mount, count))?;
    let block = [7; 4096];
    loop {
        if let Err(error) = file.write_all(&block) {
            expect_full(&error)?;
            file.sync_all()?;
            return mount.free_bytes();
        }
    }
}

/// A file that would become large stays as it is, and leaves nothing beside the store; small ones
/// are made.
fn full_and_nothing_changes(mount: &Mount<'_>, growing: &Path) -> Result<()> {
    let before = mount.plain_files()?;
    let more = content(1001, SMALL);
    let file = OpenOptions::new().write(true).open(growing)?;
    let refused = file.write_all_at(&more, SMALL as u64);
    expect_full(&refused.err().context("there was room")?)?;
    let mut whole = content(1000, SMALL);
    expect_content(growing, &whole)?;
    ensure!(mount.plain_files()? == before, "a plain file was left");
    let small = mount.dir().join("small");
    write(&small, &more).context("a small file")?;
    expect_content(&small, &more)?;
    // Over what is there.
    file.write_all_at(b"new", 0)?;
    whole[..3].copy_from_slice(b"new");
    expect_content(growing, &whole)?;
    file.write_all_at(&content(1000, SMALL)[..3], 0)?;
    Ok(())
}

/// What a removed file had can be used at once: by a file that is there and by one that becomes
/// large.
fn replaced_at_once(mount: &Mount<'_>, growing: &Path, count: u64) -> Result<()> {
    fs::remove_file(path(mount, 0))?;
    let more = content(1001, SMALL);
    let file = OpenOptions::new().write(true).open(growing)?;
    file.write_all_at(&more, SMALL as u64)
        .context("one that becomes large")?;
    let whole = [content(1000, SMALL), more].concat();
    expect_content(growing, &whole)?;
    fs::remove_file(path(mount, 1))?;
    let last = File::options().write(true).open(path(mount, count))?;
    let size = last.metadata()?.len();
    let ahead = rustix::fs::fallocate(
        &last,
        rustix::fs::FallocateFlags::empty(),
        size,
        LARGE as u64 / 2,
    );
    ahead.context("allocating")?;
    last.write_all_at(&content(5, LARGE / 2), size)
        .context("what was allocated")?;
    Ok(())
}

fn give_all_back(
    context: &Context,
    host: &Host,
    mount: &Mount<'_>,
    free_at_first: u64,
) -> Result<()> {
    for entry in fs::read_dir(mount.dir())? {
        fs::remove_file(entry?.path())?;
    }
    let (mut free, mut left) = (0, 0);
    let returned = context.wait_until(Duration::from_secs(20), || {
        free = host.free_bytes()?;
        left = mount.plain_files()?;
        Ok(left == 0 && free >= free_at_first / 100 * 99)
    })?;
    ensure!(
        returned,
        "{free} bytes free and {left} plain files after removing all, {free_at_first} at first"
    );
    Ok(())
}

/// The store is full, and the host is not: a large file is as it was, or as it should be.
pub(super) fn the_store_is_full_of_small_files(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("full-store", "16M").option(FROM);
    let mut mount = Mount::create(context, &spec)?;
    let large = mount.dir().join("large");
    let mut whole = content(1, LARGE);
    write(&large, &whole)?;
    let mut count = 0;
    let error = loop {
        if let Err(error) = write(&path(&mount, count), &content(count, 2000)) {
            break error;
        }
        count += 1;
        ensure!(count < 100_000, "it never gets full");
    };
    expect_full(&error)?;
    let file = OpenOptions::new().read(true).write(true).open(&large)?;
    for round in 0..200_u64 {
        let more = content(round, 5000);
        match file.write_all_at(&more, whole.len() as u64) {
            Ok(()) => whole.extend_from_slice(&more),
            Err(error) => {
                expect_full(&error)?;
                // The kernel sends the rest of the last page first, for which there may have been
                // room.
                let size = usize::try_from(file.metadata()?.len())?;
                let part = size.checked_sub(whole.len()).and_then(|n| more.get(..n));
                whole.extend_from_slice(part.context("a part of it is there, or nothing")?);
            }
        }
        let half = whole.len() / 2 + usize::try_from(round)?;
        if round % 10 == 3 && file.set_len(half as u64).is_ok() {
            whole.truncate(half);
        }
        let size = usize::try_from(file.metadata()?.len())?;
        ensure!(size == whole.len(), "{size} bytes, not {}", whole.len());
    }
    drop(file);
    expect_content(&large, &whole)?;
    // One that would become large now either does so, or stays.
    let growing = mount.dir().join("growing");
    let grown = write(&growing, &content(2, LARGE / 2));
    if let Err(error) = &grown {
        expect_full(error)?;
    }
    fs::remove_file(path(&mount, 0))?;
    mount.remount()?;
    expect_content(&large, &whole)?;
    mount.expect_no_stray_files()?;
    fs::remove_file(&large)?;
    mount.remount()?;
    mount.expect_no_stray_files()?;
    mount.unmount()?;
    mount.fsck()
}

/// Beyond what the host lets a file have, a write is refused with `EFBIG`, as without a daemon, and
/// changes nothing.
pub(super) fn a_file_larger_than_the_host_takes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("too-large", "32M").option(FROM);
    too_large(&mut Mount::create(context, &spec)?)
}

/// The same while the kernel reads it.
pub(super) fn a_lent_file_larger_than_the_host_takes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("too-large-lent", "32M");
    let spec = spec.option(FROM).option("passthrough");
    too_large(&mut passthrough::mount_with(context, &spec)?)
}

fn too_large(mount: &mut Mount<'_>) -> Result<()> {
    let path = mount.dir().join("large");
    let whole = content(1, LARGE);
    write(&path, &whole)?;
    mount.remount()?;
    let reader = File::open(&path)?;
    // The store's own file is below that.
    let limit = 40_u64 << 20;
    let daemon = mount.daemon_id()?;
    let limited = format!("--fsize={limit}");
    run(&mut command(
        "prlimit",
        &["--pid", &daemon.to_string(), &limited],
    ))?;
    let writer = OpenOptions::new().read(true).write(true).open(&path)?;
    let end = whole.len() as u64;
    // Of the second one the host takes a page, which is cut off again.
    for (what, at) in [("a write behind it", limit), ("one over it", limit - 4096)] {
        let refused = writer.write_all_at(&content(2, 8192), at);
        let error = refused.err().with_context(|| format!("{what} is taken"))?;
        let kind = error.kind();
        ensure!(
            kind == ErrorKind::FileTooLarge,
            "{what}: not EFBIG but {error:?}"
        );
        let size = writer.metadata()?.len();
        ensure!(size == end, "{what}: {size} bytes");
    }
    let mut found = vec![0; LARGE + 10];
    let count = reader.read_at(&mut found, 0)?;
    ensure!(found[..count] == whole, "{count} bytes for a reader");
    writer.write_all_at(b"end", end)?;
    writer.sync_all()?;
    let whole = [whole, b"end".to_vec()].concat();
    expect_content(&path, &whole)?;
    drop((reader, writer));
    mount.remount()?;
    expect_content(&path, &whole)?;
    mount.unmount()?;
    mount.fsck()
}
