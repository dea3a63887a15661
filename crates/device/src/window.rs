//! A window: an extent of a device mapped as memory. A log writes to it without system calls.
//!
//! This process shares the extent's pages with the page cache. A write is a copy. A killed process
//! loses none of it, and a sync of the device makes it durable, as after [`Device::write_at`]. All
//! pages are written by one call before they are shared, so that none has to be read. They are
//! locked, so that none is evicted before it is full.
//!
//! A page that cannot be provided on access would end the process (`SIGBUS`). So windows are opened
//! only where the kernel needs no further resources for a cached page: on block devices, and in
//! files of ext4 and tmpfs, whose space is allocated. File systems that copy a page on rewrite
//! (Btrfs, shared extents of XFS) get no window. One danger remains: another process that truncates
//! the open file.
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

/// An extent of a device as memory, with one writer at a time.
pub trait Window: Send + Debug {
    /// Writes `bytes` at `at`, relative to the window's beginning.
    ///
    /// # Errors
    /// As for [`Device::write_at`].
    ///
    /// # Panics
    /// If they go beyond the end of the window.
    ///
    /// # Durability
    /// That of [`Device::write_at`], but a killed process may leave a part of the bytes.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads the bytes at `at`, relative to the window's beginning.
    ///
    /// # Errors
    /// As for [`Device::read_at`].
    ///
    /// # Panics
    /// If the range goes beyond the end of the window.
    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), DeviceError>;
}

/// Reports whether a cached page of a file can always be written.
pub(crate) fn has_steady_pages(file: &File) -> bool {
    fstatfs(file).is_ok_and(|host| [EXT, TMPFS].contains(&host.f_type))
}

/// Opens a window as [`Device::open_window`] does, in a file whose pages are steady.
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

/// Panics unless `len` bytes at `at` lie within a window.
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

// SAFETY: the mapping belongs to this value alone, like the memory of a `Box`.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps `len` bytes of a file from `offset` on, which were just written. Both are whole pages.
    ///
    /// # Errors
    /// The error of the kernel: it is too old, too little memory may be locked, or the file does
    /// not support it.
    pub(crate) fn new(file: &File, offset: u64, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, offset)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapped = Self { base, len };
        // SAFETY: the range is this mapping; its content stays.
        unsafe {
            mlock(base.as_ptr().cast(), len)?;
            madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite)?;
        }
        Ok(mapped)
    }

    /// Returns the address of `len` bytes at `at`.
    fn piece(&self, at: usize, len: usize) -> *mut u8 {
        check_within(self.len, at, len);
        // SAFETY: the check above keeps the address within the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping, and no reference to it is ever handed out.
        let gone = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(gone.is_ok(), "a mapping can be given back");
    }
}

impl Window for Mapped {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.piece(at, bytes.len());
        // SAFETY: `to` has room for the bytes, and no other part of this process uses the mapping.
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
