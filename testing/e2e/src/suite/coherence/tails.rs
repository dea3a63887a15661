//! Bytes beyond the end of a file, written through a live mapping: they are no part of the file,
//! and read as zeros when it grows over them, whichever way it grows.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags};

use super::in_store_and_beside;
use crate::harness::context::Context;
use crate::harness::map::Map;

const PAGE: usize = 4096;
/// Where the last page of the file begins: files of this size are large ones with the option.
const LAST: usize = 5 * PAGE;
/// Length of the file before it grows.
const END: usize = LAST + 100;
/// Where the program writes behind the end.
const BEHIND: usize = LAST + 110;
const STRAY: &[u8] = b"behind the end";

/// A way to grow; returns the bytes that it wrote.
type Grow = fn(&File, &Path) -> Result<Vec<(usize, Vec<u8>)>>;

const WAYS: &[(&str, Grow)] = &[
    ("truncate within the page", |file, _| {
        truncate(file, LAST + 1000)
    }),
    ("truncate to the page's end", |file, _| {
        truncate(file, LAST + PAGE)
    }),
    ("truncate to another page", |file, _| {
        truncate(file, LAST + 3 * PAGE + 5)
    }),
    ("write in another page", |file, _| {
        write(file, LAST + 2 * PAGE + 7)
    }),
    ("append, then write in another page", |file, _| {
        file.write_all_at(b"next", END as u64)?;
        let mut wrote = write(file, LAST + 2 * PAGE + 7)?;
        wrote.push((END, b"next".to_vec()));
        Ok(wrote)
    }),
    ("direct write in another page", |_, path| write_direct(path)),
    ("allocate within the page", |file, _| {
        allocate(file, FallocateFlags::empty(), 0, LAST + 1000)
    }),
    ("allocate other pages", |file, _| {
        allocate(file, FallocateFlags::empty(), LAST + PAGE, PAGE)
    }),
    ("zero a range within the page", |file, _| {
        allocate(file, FallocateFlags::ZERO_RANGE, LAST + 500, 500)
    }),
    ("zero a range of other pages", |file, _| {
        allocate(file, FallocateFlags::ZERO_RANGE, LAST + PAGE, PAGE)
    }),
    ("copy within the page", |file, path| {
        copy(file, path, LAST + 300)
    }),
    ("copy to another page", |file, path| {
        copy(file, path, LAST + PAGE + 300)
    }),
];

/// In the store, and in a plain file beside it.
pub(super) fn what_is_behind_the_end_stays_there(context: &Context) -> Result<()> {
    let mut wrong = Vec::new();
    in_store_and_beside(context, "co-tails", "16K", &mut |mount, is_beside| {
        let place = if is_beside { "beside" } else { "in" };
        for (way, grow) in WAYS {
            for is_written_back in [false, true] {
                let seen = grown(mount.dir(), *grow, is_written_back);
                if let Err(error) = seen.with_context(|| format!("{place} the store: {way}")) {
                    wrong.push(format!("{error:#} (written back: {is_written_back})"));
                }
            }
        }
        Ok(())
    })?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn grown(dir: &Path, grow: Grow, is_written_back: bool) -> Result<()> {
    let path = dir.join("file");
    if path.exists() {
        fs::remove_file(&path)?;
    }
    fs::write(&path, [b'a'; END])?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let map = Map::new(&file, LAST + PAGE, true)?;
    map.write(BEHIND, STRAY)?;
    if is_written_back {
        map.sync()?;
    }
    let wrote = grow(&file, &path)?;
    let mut expected = vec![0; usize::try_from(file.metadata()?.len())?];
    expected[..END].fill(b'a');
    for (at, bytes) in &wrote {
        expected[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    same(&fs::read(&path)?, &expected, "read")?;
    let len = expected.len().min(LAST + PAGE);
    same(&map.read(0, len)?, &expected[..len], "mapped")?;
    // What is written from now on is a part of the file.
    map.write(END + 4, b"legal")?;
    expected[END + 4..END + 9].copy_from_slice(b"legal");
    file.sync_all()?;
    same(&fs::read(&path)?, &expected, "read after a sync")?;
    drop_pages(&file, expected.len())?;
    same(&fs::read(&path)?, &expected, "stored")
}

/// Has the kernel drop its pages, so that the next read shows what is stored.
fn drop_pages(file: &File, len: usize) -> Result<()> {
    let len = std::num::NonZeroU64::new(len as u64);
    rustix::fs::fadvise(file, 0, len, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

fn same(seen: &[u8], expected: &[u8], how: &str) -> Result<()> {
    ensure!(seen.len() == expected.len(), "{how}: {} bytes", seen.len());
    let differs = seen.iter().zip(expected).position(|(a, b)| a != b);
    ensure!(differs.is_none(), "{how}: other bytes at {differs:?}");
    Ok(())
}

fn truncate(file: &File, len: usize) -> Result<Vec<(usize, Vec<u8>)>> {
    file.set_len(len as u64)?;
    Ok(Vec::new())
}

fn write(file: &File, at: usize) -> Result<Vec<(usize, Vec<u8>)>> {
    file.write_all_at(b"written", at as u64)?;
    Ok(vec![(at, b"written".to_vec())])
}

fn write_direct(path: &Path) -> Result<Vec<(usize, Vec<u8>)>> {
    let flags = i32::try_from(OFlags::DIRECT.bits())?;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let space = vec![b'd'; 2 * PAGE];
    let skip = space.as_ptr().align_offset(PAGE);
    let bytes = &space[skip..skip + PAGE];
    file.write_all_at(bytes, (LAST + 2 * PAGE) as u64)?;
    Ok(vec![(LAST + 2 * PAGE, bytes.to_vec())])
}

fn allocate(
    file: &File,
    flags: FallocateFlags,
    at: usize,
    len: usize,
) -> Result<Vec<(usize, Vec<u8>)>> {
    rustix::fs::fallocate(file, flags, at as u64, len as u64)?;
    Ok(Vec::new())
}

fn copy(file: &File, path: &Path, at: usize) -> Result<Vec<(usize, Vec<u8>)>> {
    let source_path = path.with_extension("source");
    fs::write(&source_path, [b's'; 50])?;
    let source = File::open(&source_path)?;
    let (mut from, mut to) = (0, at as u64);
    let count = rustix::fs::copy_file_range(&source, Some(&mut from), file, Some(&mut to), 50)?;
    ensure!(count == 50, "copied: {count}");
    Ok(vec![(at, vec![b's'; 50])])
}
