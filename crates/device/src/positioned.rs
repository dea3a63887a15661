//! Whole reads and writes at an offset of a descriptor: retried when interrupted, continued when
//! short.

use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

/// Most pieces that one `pwritev` takes.
const PIECES_MAX: usize = 1024;

/// Reads exactly `out.len()` bytes. A file that ends early is an error.
pub(crate) fn read_exact(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(out, offset)
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
    fn nothing_at_all_is_written_without_a_call() {
        let file = tempfile::tempfile().unwrap();
        write_all(&file, 0, &[]).unwrap();
        write_all(&file, 0, &[&[], &[]]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
