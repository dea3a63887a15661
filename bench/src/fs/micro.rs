//! One large file by small requests of one thread: written in order, read in order and at random,
//! overwritten at random; each until all of it is durable, or cold.
//!
//! Paper: Shetty, Spillane, Malpani, Andrews, Seyster, Zadok, *Building Workload-Independent
//! Storage with VT-Trees*, FAST 2013, section 4.2.1 (table 2): Filebench's `singlestreamwrite`,
//! `singlestreamread`, `randomread` and `randomwrite`, by 4 KiB but for reads in order, by 16 KiB.
//!
//! Differs: by our own loop. The paper has 30 GB for 4 GiB of memory and runs for a time; we have
//! `--bytes`, a quarter as many random reads as there are pages, and as many random writes. So a
//! read finds its page in memory about as seldom as in the paper (one in nine, the paper's one in
//! eight) whatever memory there is; for writes to be more than what memory holds, `--cgroup` and a
//! `--memory` far below `--bytes` are needed. All is compared with what was written. No
//! transactions: the paper measures those on a compilation (section 4.3).

use super::stage::{Ends, Stage};
use super::target::OpenFile;
use super::{Caches, FsWorkload};
use crate::measure::Op;
use crate::values::mix;
use anyhow::{Result, ensure};

const PAGE_BYTES: usize = 4096;
/// Pages of a read in order.
const READ_PAGES: u64 = 4;
/// The file has so many pages for each one that is read at random.
const PAGES_PER_READ: u64 = 4;
const PATH: &str = "micro";

pub(super) fn workload() -> FsWorkload {
    FsWorkload::new(
        "micro-4k",
        "a file of --bytes by 4 KiB: written in order until sync; cold: read in order, at random, \
         overwritten at random until sync",
        &[
            Caches::Warm,
            Caches::Cold,
            Caches::Cold,
            Caches::Cold,
            Caches::Cold,
        ],
        run,
    )
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    let pages = stage.scale().bytes / PAGE_BYTES as u64;
    let pages = pages / READ_PAGES * READ_PAGES;
    let target = stage.target();
    let file = match step {
        0 | 3 => target.open(PATH, step == 0)?,
        _ => target.open_to_read(PATH)?,
    };
    match step {
        0 => write_in_order(stage, &*file, pages),
        1 => read_in_order(stage, &*file, pages),
        2 => read_at_random(stage, &*file, pages),
        3 => write_at_random(stage, &*file, pages),
        _ => check(stage, &*file, pages),
    }
}

const fn offset(page: u64) -> u64 {
    page * PAGE_BYTES as u64
}

/// The whole file, whatever time it takes: later steps count on it. Page 0 holds value 0, and so
/// on.
fn write_in_order(stage: &mut Stage<'_>, file: &dyn OpenFile, pages: u64) -> Result<()> {
    stage.without_cap();
    let values = stage.values();
    stage.phase("write-seq", pages, Ends::Synced, |record| {
        for page in 0..pages {
            let data = values.value(page, PAGE_BYTES);
            record.time(Op::Write, (1, PAGE_BYTES as u64), || {
                file.write_at(data, offset(page))
            })?;
        }
        Ok(())
    })
}

fn read_in_order(stage: &mut Stage<'_>, file: &dyn OpenFile, pages: u64) -> Result<()> {
    let values = stage.values();
    let len = PAGE_BYTES * usize::try_from(READ_PAGES)?;
    let reads = pages / READ_PAGES;
    stage.phase("read-seq-cold", reads, Ends::Returned, |record| {
        let mut found = Vec::new();
        for read in 0..reads {
            if record.is_over() {
                break;
            }
            let first = read * READ_PAGES;
            record.time(Op::Read, (1, len as u64), || {
                file.read_at(&mut found, len, offset(first))
            })?;
            ensure!(found.len() == len, "page {first}: {} bytes", found.len());
            for (page, bytes) in (first..).zip(found.chunks(PAGE_BYTES)) {
                let is_it = values.is_value(page, PAGE_BYTES, bytes);
                ensure!(is_it, "page {page} is not what was written");
            }
        }
        Ok(())
    })
}

fn read_at_random(stage: &mut Stage<'_>, file: &dyn OpenFile, pages: u64) -> Result<()> {
    let (values, seed) = (stage.values(), stage.seed());
    let reads = pages / PAGES_PER_READ;
    stage.phase("read-random-cold", reads, Ends::Returned, |record| {
        let mut found = Vec::new();
        for read in 0..reads {
            if record.is_over() {
                break;
            }
            let page = mix(seed + read) % pages;
            record.time(Op::Read, (1, PAGE_BYTES as u64), || {
                file.read_at(&mut found, PAGE_BYTES, offset(page))
            })?;
            let is_it = values.is_value(page, PAGE_BYTES, &found);
            ensure!(is_it, "page {page} is not what was written");
        }
        Ok(())
    })
}

/// The page that a random write goes to, and the number of the value that it writes.
const fn random_write(seed: u64, number: u64, pages: u64) -> (u64, u64) {
    // Other pages than those that are read.
    (mix(!(seed + number)) % pages, pages + number)
}

/// Hands on how many there were.
fn write_at_random(stage: &mut Stage<'_>, file: &dyn OpenFile, pages: u64) -> Result<()> {
    let (values, seed) = (stage.values(), stage.seed());
    stage.carry = stage.phase("write-random-cold", pages, Ends::Synced, |record| {
        for number in 0..pages {
            if record.is_over() {
                return Ok(number);
            }
            let (page, value) = random_write(seed, number, pages);
            let data = values.value(value, PAGE_BYTES);
            record.time(Op::Write, (1, PAGE_BYTES as u64), || {
                file.write_at(data, offset(page))
            })?;
        }
        Ok(pages)
    })?;
    Ok(())
}

/// The number of the value in each page, after so many random writes. A later one lies over an
/// earlier one.
fn contents(seed: u64, pages: u64, writes: u64) -> Result<Vec<u64>> {
    let mut contents: Vec<u64> = (0..pages).collect();
    for number in 0..writes {
        let (page, value) = random_write(seed, number, pages);
        contents[usize::try_from(page)?] = value;
    }
    Ok(contents)
}

/// What is read is what was written, byte by byte.
fn check(stage: &Stage<'_>, file: &dyn OpenFile, pages: u64) -> Result<()> {
    let values = stage.values();
    let mut found = Vec::new();
    let contents = contents(stage.seed(), pages, stage.carry)?;
    for (page, value) in (0..).zip(contents) {
        file.read_at(&mut found, PAGE_BYTES, offset(page))?;
        let is_it = found == values.value(value, PAGE_BYTES);
        ensure!(is_it, "page {page} is not what was written");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_was_written_to_it_last() {
        let (seed, pages) = (7, 64);
        assert!(contents(seed, pages, 0).unwrap().into_iter().eq(0..pages));
        let contents = contents(seed, pages, pages).unwrap();
        let is_kept = |page: u64| contents[usize::try_from(page).unwrap()] == page;
        let kept = (0..pages).filter(|page| is_kept(*page)).count();
        // Of as many writes as there are pages, one in e misses a page.
        assert!((12..36).contains(&kept), "{kept}");
        let (last, value) = random_write(seed, pages - 1, pages);
        assert_eq!(contents[usize::try_from(last).unwrap()], value);
    }
}
