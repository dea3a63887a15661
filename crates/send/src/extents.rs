//! Contents of files: extents with data, and the ranges that differ.

use crate::beneath::{OpenFile, read_full};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use stitch_format::send_stream::SEND_DATA_BYTES_MAX;

/// Unit in which contents are compared.
const PAGE_BYTES: usize = 4096;

/// A range of a file, as a stream has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Data(u64, &'a [u8]),
    Hole(Range<u64>),
}

/// The next extent with data at or behind an offset; `None` behind the last.
fn next_data(file: &dyn OpenFile, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if from >= size {
        return Ok(None);
    }
    let start = match file.next_data(from) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not know holes.
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some(from..size)),
        Err(errno) => return Err(errno.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let end = file.next_hole(start)?.min(size);
    debug_assert!(start < end, "an extent is not empty");
    Ok(Some(start..end))
}

/// Gives the pieces of `new` from an offset on that differ from `old`, in order. Without `old` all
/// data are given, and no holes.
pub(crate) fn pieces<E: From<io::Error>>(
    old: Option<(&dyn OpenFile, u64)>,
    new: (&dyn OpenFile, u64),
    from: u64,
    give: &mut dyn FnMut(Piece<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (file, size) = new;
    let mut at = from;
    while at < size {
        let data = next_data(file, at, size)?.unwrap_or(size..size);
        if let Some(old) = old {
            holes(old, at..data.start, give)?;
        }
        let mut block = data.start;
        while block < data.end {
            let len = (data.end - block).min(SEND_DATA_BYTES_MAX as u64);
            give_block(old, file, block..block + len, give)?;
            block += len;
        }
        at = data.end;
    }
    Ok(())
}

/// Gives the parts of a hole that had data.
fn holes<E: From<io::Error>>(
    old: (&dyn OpenFile, u64),
    hole: Range<u64>,
    give: &mut dyn FnMut(Piece<'_>) -> Result<(), E>,
) -> Result<(), E> {
    debug_assert!(hole.start <= hole.end, "a hole ends behind its start");
    let mut at = hole.start;
    while let Some(data) = next_data(old.0, at, old.1.min(hole.end))? {
        give(Piece::Hole(data.clone()))?;
        debug_assert!(
            at < data.end && data.end <= hole.end,
            "on, and within the hole"
        );
        at = data.end;
    }
    Ok(())
}

fn give_block<E: From<io::Error>>(
    old: Option<(&dyn OpenFile, u64)>,
    file: &dyn OpenFile,
    range: Range<u64>,
    give: &mut dyn FnMut(Piece<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let len = usize::try_from(range.end - range.start).expect("blocks are small");
    debug_assert!(
        len > 0 && len <= SEND_DATA_BYTES_MAX,
        "a block fits a record"
    );
    let mut new = vec![0; len];
    if read_full(file, &mut new, range.start).map_err(io::Error::from)? != len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let Some((old, _)) = old else {
        return give(Piece::Data(range.start, &new));
    };
    let mut before = vec![0; len];
    // Zeros follow its end.
    read_full(old, &mut before, range.start).map_err(io::Error::from)?;
    for run in differing(&before, &new) {
        debug_assert!(run.start < run.end && run.end <= len, "a run of the block");
        give(Piece::Data(range.start + run.start as u64, &new[run]))?;
    }
    Ok(())
}

/// Runs of pages that differ.
fn differing(before: &[u8], after: &[u8]) -> Vec<Range<usize>> {
    assert_eq!(before.len(), after.len(), "blocks of one range");
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pages = before.chunks(PAGE_BYTES).zip(after.chunks(PAGE_BYTES));
    for (index, (before, after)) in pages.enumerate() {
        if before == after {
            continue;
        }
        let (start, end) = (index * PAGE_BYTES, index * PAGE_BYTES + after.len());
        match runs.last_mut() {
            Some(run) if run.end == start => run.end = end,
            _ => runs.push(start..end),
        }
    }
    let is_apart = |two: &[Range<usize>]| two[0].end < two[1].start;
    debug_assert!(runs.windows(2).all(is_apart), "neighbours are one run");
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pages_that_differ_are_found() {
        let before = vec![0; 5 * PAGE_BYTES + 10];
        let mut after = before.clone();
        assert_eq!(differing(&before, &after), []);
        for at in [0, PAGE_BYTES, 3 * PAGE_BYTES + 5, 5 * PAGE_BYTES + 9] {
            after[at] = 1;
        }
        let page = PAGE_BYTES;
        let expected = [0..2 * page, 3 * page..4 * page, 5 * page..5 * page + 10];
        assert_eq!(differing(&before, &after), expected);
    }
}
