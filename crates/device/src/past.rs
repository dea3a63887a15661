//! Reading a file past the page cache.
//!
//! For long reads in order: the kernel then neither takes pages for them nor copies them, and one
//! request may be long. A direct read of a range whose pages are not written yet has the kernel write
//! them first (ext4, XFS, Btrfs, and what stands on these), so that both ways give the same bytes.
//!
//! Several pieces are handed over together, by io_uring where the kernel has it and lets us: a device gives
//! many times as much when it is asked for many pieces at the same time.
//!
//! What the page cache has is read from there, which is faster. Where the file system cannot, all is.

use crate::ring::Rings;
use crate::{Wanted, positioned};
use rustix::fs::{OFlags, fstat};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// What pieces and the memory for them begin and end with. A device with longer sectors refuses, and
/// is read through the page cache.
const ALIGN: usize = 512;
/// Pieces of at least so many bytes on average are long.
const LONG_BYTES_MIN: usize = 32 << 10;
/// So long they must be on average where they are read at the same time.
const TOGETHER_BYTES_MIN: usize = 6 << 10;
/// `EINVAL`: the device, or the file system, has other wishes.
const REFUSED: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// The way past the page cache to a file.
#[derive(Debug)]
pub(crate) struct Past {
    file: File,
    is_refused: AtomicBool,
    /// Made when they are first needed; `None` if they cannot be had.
    rings: OnceLock<Option<Rings>>,
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
            rings: OnceLock::new(),
        })
    }

    /// Reads pieces as [`crate::Device::read_once`] does; `buffered` is the way through the page cache.
    pub(crate) fn read_each(&self, buffered: &File, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
        // Whatever is wrong with the ring or a piece, the other way says so, or does without.
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

    /// As if the file system had refused, or no longer.
    #[cfg(test)]
    pub(crate) fn refuse(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Reads several pieces at the same time; `None` if that cannot be, or failed.
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

    /// Remembers that direct reads are refused, if that is what an error says.
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
    are_on_average(pieces, LONG_BYTES_MIN)
}

fn are_on_average(pieces: &[Wanted<'_>], bytes_min: usize) -> bool {
    let bytes: usize = pieces.iter().map(|piece| piece.out.len()).sum();
    bytes >= pieces.len() * bytes_min
}

/// True if a piece, and the memory for it, are as a direct read wants them.
pub(crate) fn fits(piece: &Wanted<'_>) -> bool {
    let is_whole = piece.offset.is_multiple_of(ALIGN as u64)
        && !piece.out.is_empty()
        && piece.out.len().is_multiple_of(ALIGN);
    is_whole && piece.out.as_ptr().align_offset(ALIGN) == 0
}
