//! Bytes that a program wrote through a live mapping, seen by programs that look for holes.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::in_store_and_beside;
use crate::harness::context::{Context, Target};
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::shell;
use crate::harness::stats::Stats;
use crate::harness::transport::Transport;
use crate::harness::views;

const PAGE: u64 = 4096;
/// Bytes of the file, and where the program writes.
const LEN: u64 = 1 << 20;
const AT: u64 = 256 << 10;
/// Mounts of which the first requests look for a hole.
const MOUNTS: u32 = 12;
const WRITTEN: &[u8] = b"data";
/// Copies that keep holes, and those that read all bytes. Each makes `copy` of `file`.
const COPIES: &[&str] = &[
    "cp file copy",
    "cp --sparse=always file copy",
    "cp --sparse=never file copy",
    "tar -S -cf a.tar file; mkdir -p out; tar -xf a.tar -C out; mv out/file copy",
    "tar -cf a.tar file; mkdir -p out; tar -xf a.tar -C out; mv out/file copy",
];

/// In the store, and in a plain file beside it.
pub(super) fn a_search_for_holes_sees_mapped_bytes(context: &Context) -> Result<()> {
    in_store_and_beside(context, "co-holes", "64K", &mut |mount, is_beside| {
        in_one_hole(mount.dir())?;
        between_extents(mount.dir())?;
        if context.target == Target::Stitch && !is_beside {
            cost_of_a_search(mount)?;
        }
        Ok(())
    })?;
    if context.target == Target::Stitch {
        right_after_a_mount(context)?;
    }
    if context.target == Target::Stitch && context.transport == Transport::Dev {
        where_no_request_may_wait(context)?;
    }
    Ok(())
}

/// In a clone and in a transaction.
pub(super) fn a_search_in_a_view_sees_mapped_bytes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("co-holes-views", "256M"))?;
    let clone = views::clone(context, &mount)?;
    let transaction = views::begin(context, &mount)?;
    for (view, what) in [(clone, "a clone"), (transaction, "a transaction")] {
        in_one_hole(&view).context(what)?;
        between_extents(&view).context(what)?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// A hole is found by the first requests of a mount as by later ones.
fn right_after_a_mount(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("co-holes-first", "256M"))?;
    new_file(mount.dir())?.set_len(LEN)?;
    for round in 0..MOUNTS {
        mount.remount()?;
        let file = File::open(mount.dir().join("file"))?;
        file.read_exact_at(&mut [0; 1], 0)?;
        expect(&file, &[(SeekFrom::Data(0), None)]).with_context(|| format!("mount {round}"))?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// A mount that survives its daemon: all of a file that was read is data.
fn where_no_request_may_wait(context: &Context) -> Result<()> {
    let spec = Spec::new("co-holes-restart", "256M").option("restart");
    let mut mount = Mount::create(context, &spec)?;
    copies_have_mapped_bytes(mount.dir())?;
    let file = new_file(mount.dir())?;
    file.set_len(LEN)?;
    expect(&file, &[(SeekFrom::Data(0), None)])?;
    let map = Map::new(&file, usize::try_from(LEN)?, true)?;
    map.write(usize::try_from(AT)?, WRITTEN)?;
    expect(
        &file,
        &[
            (SeekFrom::Data(0), Some(0)),
            (SeekFrom::Hole(0), Some(LEN)),
            (SeekFrom::Data(LEN), None),
        ],
    )?;
    drop(map);
    drop(file);
    mount.unmount()?;
    mount.fsck()
}

/// A file that is one hole, but for what is in the mapping.
fn in_one_hole(dir: &Path) -> Result<()> {
    copies_have_mapped_bytes(dir)?;
    let file = new_file(dir)?;
    file.set_len(LEN)?;
    let map = Map::new(&file, usize::try_from(LEN)?, true)?;
    map.write(usize::try_from(AT)?, WRITTEN)?;
    map.write(usize::try_from(AT + PAGE)?, WRITTEN)?;
    expect(
        &file,
        &[(SeekFrom::Data(0), Some(AT)), (SeekFrom::Hole(0), Some(0))],
    )?;
    map.write(usize::try_from(AT + 2 * PAGE)?, WRITTEN)?;
    let end = AT + 3 * PAGE;
    expect(
        &file,
        &[
            (SeekFrom::Hole(AT), Some(end)),
            (SeekFrom::Data(end), None),
            (SeekFrom::Hole(end), Some(end)),
            (SeekFrom::Data(LEN), None),
        ],
    )
}

fn copies_have_mapped_bytes(dir: &Path) -> Result<()> {
    for copy in COPIES {
        let file = new_file(dir)?;
        file.set_len(LEN)?;
        let map = Map::new(&file, usize::try_from(LEN)?, true)?;
        map.write(usize::try_from(AT)?, WRITTEN)?;
        ensure!(blocks(&file)? > 0, "{copy}: no blocks");
        shell(dir, copy)?;
        let mut seen = [0; 4];
        File::open(dir.join("copy"))?.read_exact_at(&mut seen, AT)?;
        ensure!(seen == WRITTEN, "{copy}: {seen:?}");
        fs::remove_file(dir.join("copy"))?;
    }
    Ok(())
}

/// Mapped pages that fill the hole between two extents: the data goes on to the next hole.
fn between_extents(dir: &Path) -> Result<()> {
    let file = new_file(dir)?;
    file.set_len(LEN)?;
    let extent = vec![1; usize::try_from(16 * PAGE)?];
    file.write_all_at(&extent, 0)?;
    file.write_all_at(&extent, 18 * PAGE)?;
    let map = Map::new(&file, usize::try_from(LEN)?, true)?;
    map.write(usize::try_from(16 * PAGE)?, WRITTEN)?;
    map.write(usize::try_from(17 * PAGE)?, WRITTEN)?;
    map.write(usize::try_from(34 * PAGE)?, WRITTEN)?;
    let end = 35 * PAGE;
    expect(
        &file,
        &[
            (SeekFrom::Hole(0), Some(end)),
            (SeekFrom::Data(17 * PAGE), Some(17 * PAGE)),
            (SeekFrom::Data(end), None),
        ],
    )
}

/// A file that no program has read costs no notice; a search in one that was read costs one.
fn cost_of_a_search(mount: &Mount<'_>) -> Result<()> {
    let file = new_file(mount.dir())?;
    file.set_len(LEN)?;
    let notices = |before: &Stats| mount.stats()?.since(before, "fuse.page_notices");
    let before = mount.stats()?;
    for offset in 0..100 {
        expect(&file, &[(SeekFrom::Data(offset), None)])?;
    }
    ensure!(notices(&before)? == 0, "unread: {}", notices(&before)?);
    file.read_exact_at(&mut [0; 1], 0)?;
    for offset in 0..100 {
        expect(&file, &[(SeekFrom::Hole(offset), Some(offset))])?;
    }
    ensure!(notices(&before)? == 100, "read: {}", notices(&before)?);
    Ok(())
}

fn new_file(dir: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let path = dir.join("file");
    if path.exists() {
        fs::remove_file(&path)?;
    }
    Ok(options.open(path)?)
}

/// Asks for nothing else, so that no other attribute makes the kernel ask.
fn blocks(file: &File) -> Result<u64> {
    let mask = StatxFlags::BLOCKS;
    let status = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask)?;
    Ok(status.stx_blocks)
}

fn expect(file: &File, seeks: &[(SeekFrom, Option<u64>)]) -> Result<()> {
    for &(seek, expected) in seeks {
        let found = match rustix::fs::seek(file, seek) {
            Ok(at) => Some(at),
            Err(Errno::NXIO) => None,
            Err(error) => return Err(error.into()),
        };
        let fd = file.as_raw_fd();
        ensure!(
            found == expected,
            "{seek:?} of {fd}: {found:?}, not {expected:?}"
        );
    }
    Ok(())
}
