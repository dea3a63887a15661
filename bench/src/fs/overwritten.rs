//! A large file, part of whose pages are overwritten at random: read in order, cold, before and
//! after the side has put it in order, as its own means do that.
//!
//! Device reads are counted: where they are few, the file lies in order.

use super::order;
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::measure::Op;
use crate::values::{Values, mix};
use anyhow::{Result, ensure};

const PAGE_BYTES: usize = 4096;
const PIECE_BYTES: usize = 1 << 20;
/// The file is no longer than this.
const FILE_BYTES_MAX: u64 = 512 << 20;
const PATH: &str = "overwritten";
/// Second contents of a page are those of a number beyond all first ones.
const SECOND: u64 = 1 << 40;

const STEPS: &[Caches] = &[Caches::Warm, Caches::Cold, Caches::Cold, Caches::Cold];

pub(super) fn workloads() -> [FsWorkload; 2] {
    [
        workload(
            "overwritten-10",
            "10 % of the pages of a file overwritten at random until sync; cold read in order \
             before and after defrag",
            |stage, step| run(stage, step, 10),
        ),
        workload(
            "overwritten-100",
            "all pages of a file overwritten at random until sync; cold read in order before and \
             after defrag",
            |stage, step| run(stage, step, 1),
        ),
    ]
}

fn workload(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage<'_>, u32) -> Result<()>,
) -> FsWorkload {
    FsWorkload {
        why_not: super::command::why_not,
        ..FsWorkload::new(name, about, STEPS, run)
    }
}

/// One page in `part` is overwritten.
fn run(stage: &mut Stage<'_>, step: u32, part: u64) -> Result<()> {
    stage.without_cap();
    let bytes = stage.scale().bytes.min(FILE_BYTES_MAX);
    let pages = bytes / PIECE_BYTES as u64 * (PIECE_BYTES / PAGE_BYTES) as u64;
    ensure!(pages > 0, "the file is shorter than 1 MiB");
    let file = Pages { pages, part };
    match step {
        0 => {
            write(stage, &file)?;
            overwrite(stage, &file)
        }
        1 => read(stage, "read-cold", &file),
        2 => order::phase(stage, PATH),
        _ => read(stage, "read-after-defrag-cold", &file),
    }
}

/// A file that its length and the part that is overwritten say everything about.
struct Pages {
    pages: u64,
    part: u64,
}

impl Pages {
    fn is_overwritten(&self, page: u64) -> bool {
        mix(page).is_multiple_of(self.part)
    }

    /// Returns the pages that are overwritten, in random order.
    fn overwritten(&self, seed: u64) -> Vec<u64> {
        let mut pages: Vec<u64> = (0..self.pages)
            .filter(|page| self.is_overwritten(*page))
            .collect();
        pages.sort_by_key(|page| (mix(page ^ mix(seed)), *page));
        pages
    }

    /// Returns the bytes of a page as they are in the end.
    fn value<'a>(&self, values: &'a Values, page: u64) -> &'a [u8] {
        let number = if self.is_overwritten(page) {
            page + SECOND
        } else {
            page
        };
        values.value(number, PAGE_BYTES)
    }
}

fn write(stage: &mut Stage<'_>, file: &Pages) -> Result<()> {
    let (values, open) = (stage.values(), stage.target().open(PATH, true)?);
    stage.phase("write", file.pages, Ends::Synced, |record| {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        for page in 0..file.pages {
            piece.extend_from_slice(values.value(page, PAGE_BYTES));
            if piece.len() == PIECE_BYTES {
                let offset = (page + 1) * PAGE_BYTES as u64 - PIECE_BYTES as u64;
                let count = (PIECE_BYTES / PAGE_BYTES) as u64;
                record.time(Op::Write, (count, PIECE_BYTES as u64), || {
                    open.write_at(&piece, offset)
                })?;
                piece.clear();
            }
        }
        Ok(())
    })
}

fn overwrite(stage: &mut Stage<'_>, file: &Pages) -> Result<()> {
    let (values, open) = (stage.values(), stage.target().open(PATH, false)?);
    let pages = file.overwritten(stage.seed());
    stage.phase(
        "overwrite-random",
        pages.len() as u64,
        Ends::Synced,
        |record| {
            for page in pages {
                let data = file.value(&values, page);
                record.time(Op::Write, (1, PAGE_BYTES as u64), || {
                    open.write_at(data, page * PAGE_BYTES as u64)
                })?;
            }
            Ok(())
        },
    )
}

fn read(stage: &mut Stage<'_>, name: &str, file: &Pages) -> Result<()> {
    let (values, open) = (stage.values(), stage.target().open_to_read(PATH)?);
    let pieces = file.pages * PAGE_BYTES as u64 / PIECE_BYTES as u64;
    stage.phase(name, pieces, Ends::Returned, |record| {
        let mut found = Vec::new();
        for piece in 0..pieces {
            record.time(Op::Read, (1, PIECE_BYTES as u64), || {
                open.read_at(&mut found, PIECE_BYTES, piece * PIECE_BYTES as u64)
            })?;
            check(&values, file, piece, &found)?;
        }
        Ok(())
    })
}

fn check(values: &Values, file: &Pages, piece: u64, found: &[u8]) -> Result<()> {
    ensure!(found.len() == PIECE_BYTES, "piece {piece} is short");
    let first = piece * (PIECE_BYTES / PAGE_BYTES) as u64;
    for (page, found) in (first..).zip(found.chunks(PAGE_BYTES)) {
        let is_it = found == file.value(values, page);
        ensure!(is_it, "page {page} is not what was written");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_overwritten_once_each_in_random_order() {
        let all = Pages {
            pages: 1000,
            part: 1,
        };
        let mut pages = all.overwritten(3);
        assert_ne!(pages, all.overwritten(4));
        assert!(!pages.is_sorted());
        pages.sort_unstable();
        assert_eq!(pages, (0..1000).collect::<Vec<u64>>());
        let tenth = Pages {
            pages: 10_000,
            part: 10,
        };
        assert!((900..1100).contains(&tenth.overwritten(3).len()));
    }
}
