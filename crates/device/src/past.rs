//! Reading a file past the page cache.
//!
//! For long reads in order: the kernel then neither takes pages for them nor copies them, and one
//! request may be long. A direct read of a range whose pages are not written yet has the kernel write
//! them first (ext4, XFS, Btrfs, and what stands on these), so that both ways give the same bytes.
//!
//! What the page cache has is read from there, which is faster. Where the file system cannot, all is.

use crate::{Wanted, positioned};
use rustix::fs::{OFlags, fstat};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// What pieces and the memory for them begin and end with. A device with longer sectors refuses, and
/// is read through the page cache.
const ALIGN: usize = 512;
/// Pieces of at least so many bytes on average are long.
const LONG_BYTES_MIN: usize = 32 << 10;
/// `EINVAL`: the device, or the file system, has other wishes.
const REFUSED: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// The way past the page cache to a file.
#[derive(Debug)]
pub(crate) struct Past {
    file: File,
    is_refused: AtomicBool,
}

impl Past {
    /// The same file as `file` once more; `None` if it cannot be read so.
    pub(crate) fn open(path: &Path, file: &File) -> Option<Self> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a flag of open(2)");
        let again = File::options().read(true).custom_flags(flags).open(path);
        let again = again.ok()?;
        let (first, second) = (fstat(file).ok()?, fstat(&again).ok()?);
        let is_same = (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino);
        is_same.then(|| Self {
            file: again,
            is_refused: AtomicBool::new(false),
        })
    }

    /// Reads pieces as [`crate::Device::read_once`] does; `buffered` is the way through the page cache.
    pub(crate) fn read_each(&self, buffered: &File, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
        if !are_long(pieces) {
            return positioned::read_each(buffered, pieces);
        }
        pieces
            .iter_mut()
            .try_for_each(|piece| self.read(buffered, piece))
    }

    fn read(&self, buffered: &File, piece: &mut Wanted<'_>) -> io::Result<()> {
        if fits(piece) && !self.is_refused.load(Ordering::Relaxed) {
            match read_by_best(&self.file, buffered, piece) {
                Err(error) if error.raw_os_error() == Some(REFUSED) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        positioned::read_exact(buffered, piece.offset, piece.out)
    }
}

/// Reads a piece that fits from the page cache, if that has most of it, else past it.
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

/// True if pieces are long enough to be read one after the other. Many short ones are better asked for all at
/// once, which the page cache can.
pub(crate) fn are_long(pieces: &[Wanted<'_>]) -> bool {
    let bytes: usize = pieces.iter().map(|piece| piece.out.len()).sum();
    bytes >= pieces.len() * LONG_BYTES_MIN
}

/// True if a piece, and the memory for it, are as a direct read wants them.
pub(crate) fn fits(piece: &Wanted<'_>) -> bool {
    let is_whole = piece.offset.is_multiple_of(ALIGN as u64)
        && !piece.out.is_empty()
        && piece.out.len().is_multiple_of(ALIGN);
    is_whole && piece.out.as_ptr().align_offset(ALIGN) == 0
}
