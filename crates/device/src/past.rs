//! Direct reads of a file, which bypass the page cache.
//!
//! For long reads in order: the kernel neither takes pages for them nor copies them, and one
//! request may be long. Before a direct read, the kernel writes out dirty pages of the range (ext4,
//! XFS, Btrfs, and file systems on top of them), so that direct and cached reads return the same
//! bytes.
//!
//! Several extents are read in parallel by io_uring, if the kernel offers it: devices are many
//! times faster with parallel requests.
//!
//! Data that is in the page cache is read from there, which is faster. If the file system refuses
//! direct reads, everything is.

use crate::ring::Rings;
use crate::{Wanted, positioned};
use rustix::fs::{OFlags, fstat};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// Alignment of extents and buffers. A device with longer sectors refuses direct reads, and is read
/// through the page cache.
const ALIGN: usize = 512;
/// Average length from which extents are read one after the other.
const LONG_BYTES_MIN: usize = 32 << 10;
/// Average length from which extents are read in parallel.
const TOGETHER_BYTES_MIN: usize = 6 << 10;
/// `EINVAL`: the device or the file system refuses the alignment.
const REFUSED: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// Direct access to a file.
#[derive(Debug)]
pub(crate) struct Past {
    file: File,
    is_refused: AtomicBool,
    /// Created on first use; `None` if the kernel refuses.
    rings: OnceLock<Option<Rings>>,
}

impl Past {
    /// Opens `file` again for direct reads. Returns `None` if the file system refuses.
    pub(crate) fn open(path: &Path, file: &File) -> Option<Self> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a flag of open(2)");
        let again = File::options().read(true).custom_flags(flags).open(path);
        let again = again.ok()?;
        let (first, second) = (fstat(file).ok()?, fstat(&again).ok()?);
        let is_same = (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino);
        is_same.then(|| Self {
            file: again,
            is_refused: AtomicBool::new(false),
            rings: OnceLock::new(),
        })
    }

    /// Reads extents as [`crate::Device::read_once`] does. `buffered` reads through the page cache.
    pub(crate) fn read_each(&self, buffered: &File, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
        // If the ring or an extent fails, the reads below report the error or succeed.
        if self.read_together(buffered, pieces).is_some() {
            return Ok(());
        }
        if !are_long(pieces) {
            return positioned::read_each(buffered, pieces);
        }
        pieces
            .iter_mut()
            .try_for_each(|piece| self.read(buffered, piece))
    }

    /// Simulates that the file system refuses direct reads, or no longer.
    #[cfg(test)]
    pub(crate) fn refuse(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Reads several extents in parallel. Returns `None` if that is impossible or fails.
    fn read_together(&self, buffered: &File, pieces: &mut [Wanted<'_>]) -> Option<()> {
        let can_be = pieces.len() > 1
            && are_on_average(pieces, TOGETHER_BYTES_MIN)
            && pieces.iter().all(fits)
            && !self.is_refused.load(Ordering::Relaxed);
        if !can_be {
            return None;
        }
        let rings = self.rings.get_or_init(|| Rings::new().ok()).as_ref()?;
        let (mut cached, mut others) = (Vec::new(), Vec::new());
        for piece in pieces {
            let (offset, out) = (piece.offset, &mut *piece.out);
            let is_cached = positioned::is_resident(buffered, offset, out.len() as u64);
            let list = if is_cached { &mut cached } else { &mut others };
            list.push(Wanted { offset, out });
        }
        positioned::read_each(buffered, &mut cached).ok()?;
        let read = rings.read(&self.file, &mut others);
        read.map_err(|error| self.note(&error)).ok()
    }

    /// Records that direct reads are refused, if the error means that.
    fn note(&self, error: &io::Error) -> bool {
        let is_refused = error.raw_os_error() == Some(REFUSED);
        if is_refused {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        is_refused
    }

    fn read(&self, buffered: &File, piece: &mut Wanted<'_>) -> io::Result<()> {
        if fits(piece) && !self.is_refused.load(Ordering::Relaxed) {
            match read_by_best(&self.file, buffered, piece) {
                Err(error) if self.note(&error) => {}
                other => return other,
            }
        }
        positioned::read_exact(buffered, piece.offset, piece.out)
    }
}

/// Reads an aligned extent from the page cache if most of it is there, else directly.
pub(crate) fn read_by_best(
    direct: &File,
    buffered: &File,
    piece: &mut Wanted<'_>,
) -> io::Result<()> {
    let len_bytes = piece.out.len() as u64;
    let file = match positioned::is_resident(buffered, piece.offset, len_bytes) {
        true => buffered,
        false => direct,
    };
    positioned::read_exact(file, piece.offset, piece.out)
}

/// Reports whether extents are long enough to be read one after the other. Many short ones are read
/// in parallel through the page cache.
pub(crate) fn are_long(pieces: &[Wanted<'_>]) -> bool {
    are_on_average(pieces, LONG_BYTES_MIN)
}

fn are_on_average(pieces: &[Wanted<'_>], bytes_min: usize) -> bool {
    let bytes: usize = pieces.iter().map(|piece| piece.out.len()).sum();
    bytes >= pieces.len() * bytes_min
}

/// Reports whether an extent and its buffer are aligned for a direct read.
pub(crate) fn fits(piece: &Wanted<'_>) -> bool {
    let is_whole = piece.offset.is_multiple_of(ALIGN as u64)
        && !piece.out.is_empty()
        && piece.out.len().is_multiple_of(ALIGN);
    is_whole && piece.out.as_ptr().align_offset(ALIGN) == 0
}
