//! A piece of a device as memory, for a log: what is written there needs no call of the operating system.
//!
//! The kernel's page cache holds the piece, and this process shares its pages. A write is a copy; a
//! killed process loses none of it, and a sync of the device takes it to the medium, as after
//! [`Device::write_at`]. The pages are written once, in one call, before they are shared, so
//! that none has to be read; and they are locked, so that none can go before it is full.
//!
//! A page that cannot be had when it is touched would end the process (`SIGBUS`). So windows are made
//! only where the kernel needs nothing more for a page that is there: on block devices, and in files of
//! ext4 and tmpfs, whose space is taken already. Where a page is copied when it is written again (Btrfs,
//! shared extents of XFS), there is none. What is left is a file that somebody cuts while it is open.
#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use crate::counter::Counters;
use crate::{Device, DeviceError};
use rustix::fs::{FsWord, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};
use std::fmt::Debug;
use std::fs::File;
use std::ptr::{self, NonNull};

/// `f_type` of ext2, ext3 and ext4.
const EXT: FsWord = 0xef53;
/// `f_type` of tmpfs.
const TMPFS: FsWord = 0x0102_1994;

/// A piece of a device as memory. One at a time writes.
pub trait Window: Send + Debug {
    /// Writes `bytes` at `at`, counted from the window's beginning.
    ///
    /// # Errors
    /// As [`Device::write_at`].
    ///
    /// # Panics
    /// If they do not fit.
    ///
    /// # Durability
    /// As [`Device::write_at`]; a killed process may leave a part of them.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads what stands at `at`.
    ///
    /// # Errors
    /// As [`Device::read_at`].
    ///
    /// # Panics
    /// If that is not within the window.
    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), DeviceError>;
}

/// True if a file's pages, once there, can always be written.
pub(crate) fn has_steady_pages(file: &File) -> bool {
    fstatfs(file).is_ok_and(|host| [EXT, TMPFS].contains(&host.f_type))
}

/// As [`Device::open_window`], for a device in a file whose pages are steady.
pub(crate) fn open(
    device: &impl Device,
    (file, counters): (&File, &Counters),
    offset: u64,
    len_bytes: usize,
    first: &[u8],
) -> Result<Option<Box<dyn Window>>, DeviceError> {
    let rest = vec![0; len_bytes - first.len()];
    device.write_at(offset, &[first, &rest])?;
    let Ok(mapped) = Mapped::new(file, offset, len_bytes) else {
        return Ok(None);
    };
    counters.window();
    Ok(Some(Box::new(mapped)))
}

/// Panics unless `len` bytes at `at` are within a window.
pub(crate) fn check_within(window_bytes: usize, at: usize, len: usize) {
    let fits = at.checked_add(len).is_some_and(|end| end <= window_bytes);
    assert!(fits, "{len} bytes at {at} in a window of {window_bytes}");
}

/// Pages of a file, shared with the kernel.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a box.
unsafe impl Send for Mapped {}

impl Mapped {
    /// `len` bytes of a file from `offset` on, which were just written; both whole pages.
    ///
    /// # Errors
    /// What the kernel says: too old, too little memory that may be locked, or no way for such a file.
    pub(crate) fn new(file: &File, offset: u64, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping, at a place of the kernel's choice, of a file that is open.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, offset)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapped = Self { base, len };
        // SAFETY: just this mapping; its content stays.
        unsafe {
            mlock(base.as_ptr().cast(), len)?;
            madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite)?;
        }
        Ok(mapped)
    }

    /// Where `len` bytes at `at` are.
    fn piece(&self, at: usize, len: usize) -> *mut u8 {
        check_within(self.len, at, len);
        // SAFETY: within the mapping, as was just seen.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mapping, and no reference to it is ever handed out.
        let gone = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(gone.is_ok(), "a mapping can be given back");
    }
}

impl Window for Mapped {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.piece(at, bytes.len());
        // SAFETY: `to` has room for them, and the mapping is nobody else's in this process.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.piece(at, out.len());
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
