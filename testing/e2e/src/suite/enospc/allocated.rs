//! Ranges that `fallocate` allocated, in a store that others fill.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use stitch_base::random::Rng;

use super::{content, write};
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};

const BLOCK: u64 = 4096;
const STORE_BYTES: u64 = 64 << 20;
/// Blocks that are allocated, a third of the store.
const BLOCKS: u64 = STORE_BYTES / 3 / BLOCK;
/// Blocks that are written before the daemon is killed.
const BEFORE_KILL: u64 = BLOCKS / 2;
/// Blocks written for each `fsync`.
const SYNCED_BLOCKS: u64 = 256;

/// Others find the store full while the allocated blocks are written in any order, in parts and
/// whole.
pub(super) fn allocated_blocks_have_room(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("full-allocated", "64M"))?;
    let path = mount.dir().join("allocated");
    let file = File::create(&path)?;
    let free_at_first = mount.free_bytes()?;
    let too_much = fallocate(&file, FallocateFlags::empty(), 0, 2 * STORE_BYTES);
    ensure!(too_much == Err(rustix::io::Errno::NOSPC), "{too_much:?}");
    ensure!(
        file.metadata()?.len() == 0,
        "a refused allocation grows nothing"
    );
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, BLOCKS * BLOCK).context("a third")?;
    let blocks = file.metadata()?.blocks();
    ensure!(blocks == BLOCKS * 8, "{blocks} blocks allocated");
    let free = mount.free_bytes()?;
    ensure!(
        free + BLOCKS * BLOCK <= free_at_first,
        "df counts them as used"
    );
    drop(file);

    let filled = fill(&mount)?;
    println!("      {free} bytes free beside them, full after {filled}");
    ensure!(filled > free / 2, "only {filled} bytes fit");
    // 2,741 and the number of blocks have no common factor.
    let order: Vec<u64> = (0..BLOCKS).map(|index| index * 2741 % BLOCKS).collect();
    let (first, second) = order.split_at(usize::try_from(BEFORE_KILL)?);
    put(&path, first)?;
    mount.kill()?;
    mount.mount_again()?;
    ensure!(
        fill(&mount)? < BLOCKS * BLOCK / 4,
        "others took what is set aside"
    );
    put(&path, second)?;
    // Written again, for a log that is preallocated is.
    put(&path, &order).context("overwriting")?;

    mount.remount()?;
    let file = File::open(&path)?;
    let blocks = file.metadata()?.blocks();
    ensure!(
        blocks == BLOCKS * 8,
        "{blocks} blocks after all were written"
    );
    let mut found = vec![0; usize::try_from(BLOCK)?];
    for block in 0..BLOCKS {
        file.read_exact_at(&mut found, block * BLOCK)?;
        ensure!(found == content(block, found.len()), "block {block}");
    }
    drop(file);
    mount.unmount()?;
    mount.fsck()
}

/// Writes blocks, each in two parts of any length and then whole, for every fourth the whole alone.
fn put(path: &Path, blocks: &[u64]) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut rng = Rng::new(blocks.len() as u64);
    for (index, &block) in (1..).zip(blocks) {
        let bytes = content(block, usize::try_from(BLOCK)?);
        let at = block * BLOCK;
        let mut put = || -> std::io::Result<()> {
            if block % 4 > 0 {
                let middle = usize::try_from(rng.below(BLOCK)).expect("within a block");
                file.write_all_at(&bytes[..middle], at)?;
                file.write_all_at(&bytes[middle..], at + middle as u64)?;
            } else {
                file.write_all_at(&bytes, at)?;
            }
            if index % SYNCED_BLOCKS == 0 {
                file.sync_data()?;
            }
            Ok(())
        };
        put().with_context(|| format!("block {block}, number {index}"))?;
    }
    file.sync_all().context("fsync at the end")
}

/// Writes files until there is no space. Returns how many bytes there was space for.
fn fill(mount: &Mount<'_>) -> Result<u64> {
    const LEN: usize = 64 << 10;
    let mut written = 0;
    for index in 0.. {
        let path = mount.dir().join(format!("other{index}"));
        if path.exists() {
            continue;
        }
        match write(&path, &content(index, LEN)) {
            Ok(()) => written += LEN as u64,
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                return Ok(written);
            }
            Err(error) => bail!("not ENOSPC but {error:?}"),
        }
        ensure!(written < STORE_BYTES, "it never gets full");
    }
    bail!("it never gets full")
}
