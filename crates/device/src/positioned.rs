//! Complete reads and writes at an offset of a descriptor. They are retried after a signal and
//! continued after a short transfer.
//!
//! Kernel read-ahead is off for these descriptors: readers that go in order know better what comes
//! next, and call [`prefetch`].

use crate::{Wanted, resident};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Most buffers of one `pwritev`.
const PIECES_MAX: usize = 1024;
/// Smallest page size of any machine. With larger pages, residency is underestimated.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The range of whole pages that a range touches.
pub(crate) const fn pages(range: &Range<u64>) -> Range<u64> {
    let start = range.start - range.start % PAGE_BYTES;
    start..range.end.next_multiple_of(PAGE_BYTES)
}

/// Reads exactly `out.len()` bytes. Fails if the file ends before that.
pub(crate) fn read_exact(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(out, offset)
}

/// Reads all extents. Neighbouring ones are read by one call. The others are announced to the
/// kernel first, so that it reads them in parallel.
pub(crate) fn read_each(file: &File, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
    let mut rows: Vec<&mut [Wanted<'_>]> = pieces
        .chunk_by_mut(|before, after| before.end() == after.offset)
        .collect();
    for row in rows.iter().skip(1) {
        let end = row.last().map_or(row[0].offset, Wanted::end);
        prefetch(file, row[0].offset, end - row[0].offset);
    }
    rows.iter_mut().try_for_each(|row| read_row(file, row))
}

/// Reads exactly `out.len()` bytes if the page cache holds them. Returns false if it does not, or
/// if the file system cannot tell. The buffer is undefined then.
pub(crate) fn read_resident(file: &File, offset: u64, out: &mut [u8]) -> bool {
    let len = out.len();
    let mut slices = [IoSliceMut::new(out)];
    let read = rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|read| read == len)
}

/// Reads neighbouring extents by one call.
fn read_row(file: &File, row: &mut [Wanted<'_>]) -> io::Result<()> {
    if let [only] = row {
        return read_exact(file, only.offset, only.out);
    }
    let mut at = row.first().map_or(0, |first| first.offset);
    let outs = row.iter_mut().map(|piece| IoSliceMut::new(piece.out));
    let mut slices: Vec<IoSliceMut<'_>> = outs.collect();
    let mut left = &mut slices[..];
    IoSliceMut::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let batch = left.len().min(PIECES_MAX);
        match rustix::io::preadv(file, &mut left[..batch], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                at += read as u64;
                IoSliceMut::advance_slices(&mut left, read);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Writes zeros in large buffers, for which the page cache takes large folios.
pub(crate) fn write_zeros(file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
    static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
    let mut at = offset;
    let end = offset + len_bytes;
    while at < end {
        let len = (end - at).min(ZEROS.len() as u64);
        let zeros = &ZEROS[..usize::try_from(len).unwrap_or(ZEROS.len())];
        write_all(file, at, &[zeros])?;
        at += len;
    }
    Ok(())
}

/// Turns kernel read-ahead off.
pub(crate) fn expect_any_order(file: &File) {
    // This is advice: a file system that ignores it reads more than needed.
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// Starts reading a range into the page cache.
pub(crate) fn prefetch(file: &File, offset: u64, len_bytes: u64) {
    if let Some(len) = NonZeroU64::new(len_bytes) {
        // This is advice: without it, the read itself waits.
        let _ = fadvise(file, offset, Some(len), Advice::WillNeed);
    }
}

/// Drops the clean pages that a range touches from the page cache.
pub(crate) fn forget(file: &File, range: &Range<u64>) {
    let pages = pages(range);
    if let Some(len) = NonZeroU64::new(pages.end - pages.start) {
        // A file system that ignores this advice has dropped the pages before the write.
        let _ = fadvise(file, pages.start, Some(len), Advice::DontNeed);
    }
}

/// Reports whether the page cache holds at least half of a range, as far as the kernel tells.
pub(crate) fn is_resident(file: &File, offset: u64, len_bytes: u64) -> bool {
    let pages = resident::pages(file, offset, len_bytes).unwrap_or(0);
    pages * PAGE_BYTES * 2 >= len_bytes
}

/// Writes all of `pieces` from `offset`.
pub(crate) fn write_all(file: &File, offset: u64, pieces: &[&[u8]]) -> io::Result<()> {
    if let [only] = pieces {
        return file.write_all_at(only, offset);
    }
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    let mut at = offset;
    while !left.is_empty() {
        let batch = left.len().min(PIECES_MAX);
        match rustix::io::pwritev(file, &left[..batch], at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_pieces_than_one_call_takes_are_all_written() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..5000u32).map(|i| i.to_le_bytes()[0]).collect();
        let mut pieces: Vec<&[u8]> = bytes.chunks(2).collect();
        pieces.insert(1, &[]);
        assert!(pieces.len() > PIECES_MAX);
        write_all(&file, 4096, &pieces).unwrap();
        let mut back = vec![0u8; bytes.len()];
        read_exact(&file, 4096, &mut back).unwrap();
        assert_eq!(back, bytes);
    }

    #[test]
    fn pieces_are_read_wherever_they_lie() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        write_all(&file, 0, &[&bytes]).unwrap();
        let places: Vec<(u64, usize)> = (0..2000)
            .map(|i| (i * 10, 10))
            .chain([
                (50_000, 7),
                (50_007, 0),
                (50_007, 9000),
                (20_000, 5),
                (99_999, 1),
            ])
            .collect();
        let mut outs: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![0; *len]).collect();
        let wanted = |outs: &mut [Vec<u8>]| {
            let pieces = places.iter().zip(outs);
            let mut pieces: Vec<Wanted<'_>> = pieces
                .map(|(&(offset, _), out)| Wanted { offset, out })
                .collect();
            read_each(&file, &mut pieces)
        };
        wanted(&mut outs).unwrap();
        for ((offset, len), out) in places.iter().zip(&outs) {
            let offset = usize::try_from(*offset).unwrap();
            assert_eq!(*out, bytes[offset..offset + len]);
        }
        file.set_len(99_999).unwrap();
        assert!(wanted(&mut outs).is_err(), "the last piece is gone");
        read_each(&file, &mut []).unwrap();
    }

    #[test]
    fn what_the_page_cache_holds_is_read_at_once() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        write_all(&file, 0, &[&bytes]).unwrap();
        let mut out = vec![0; 5000];
        if !read_resident(&file, 777, &mut out) {
            println!("the file system cannot tell");
            return;
        }
        assert_eq!(out, bytes[777..5777]);
        assert!(!read_resident(&file, 99_000, &mut out), "beyond the end");
        file.sync_all().unwrap();
        forget(&file, &(0..100_000));
        if !is_resident(&file, 0, 100_000) {
            assert!(!read_resident(&file, 777, &mut out));
        }
    }

    #[test]
    fn nothing_at_all_is_written_without_a_call() {
        let file = tempfile::tempfile().unwrap();
        write_all(&file, 0, &[]).unwrap();
        write_all(&file, 0, &[&[], &[]]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
