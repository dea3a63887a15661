//! Storage as an array of bytes: a raw block device, a preallocated file, memory, and wrappers that
//! inject faults.
//!
//! This is the only crate that does storage I/O. The layers above read and write bytes at offsets,
//! and call [`Device::sync`] where the order of writes matters.
//!
//! Durability contract: a write may reach the medium at any time after the call, in any order with
//! other writes, and torn at a sector boundary. After [`Device::sync`] returns `Ok`, every write
//! that had returned before the call began is on the medium.

mod counter;
mod crash;
mod dir_lock;
mod error;
mod fault;
mod file;
mod folder;
mod mem;
mod mounts;
mod open;
mod pages;
mod past;
mod positioned;
mod raw;
mod resident;
mod ring;
mod window;

pub use crash::{CrashDevice, CrashPlan, CrashPoint, Moment};
pub use dir_lock::DirLock;
pub use error::DeviceError;
pub use fault::{CallCounts, Fault, FaultDevice, FaultOp};
pub use file::{FileDevice, Unnamed};
pub use folder::Folder;
pub use mem::MemDevice;
pub use mounts::mounted_at;
pub use open::{IoMode, LEN_UNIT_BYTES, OpenOptions, STORE_FILE_NAME, open_path};
pub use raw::RawDevice;
pub use window::Window;

use bytes::Bytes;
use counter::Request;
use std::fmt::Debug;
use std::path::PathBuf;
use stitch_base::sync::Arc;

/// The length that a device writes atomically, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// A device's size and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; a multiple of 4,096.
    pub len_bytes: u64,
    /// The name for messages: a path as text, or `memory`.
    pub name: String,
    /// The path, which need not be text. `None` for memory.
    pub path: Option<PathBuf>,
    /// True for a raw block device, false for a file or memory.
    pub is_block_device: bool,
}

impl Geometry {
    /// Returns where the device is, or its name if it has no path.
    #[must_use]
    pub fn into_path(self) -> PathBuf {
        self.path.unwrap_or_else(|| PathBuf::from(self.name))
    }
}

/// Counters of a device since it was opened. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Separate extents that were read. A request for several extents counts as several.
    pub reads: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Write calls.
    pub writes: u64,
    /// Sync calls.
    pub syncs: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Bytes that were prefetched.
    pub prefetch_bytes: u64,
    /// Windows that were opened.
    pub windows: u64,
    /// Bytes that were prepared for writes; not included in `write_bytes`.
    pub prepared_bytes: u64,
}

/// A read request: an extent of the device and its buffer.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Offset of the first byte.
    pub offset: u64,
    /// The buffer, whose length is that of the extent.
    pub out: &'a mut [u8],
}

impl Wanted<'_> {
    /// Checks each extent, and returns one request over all of them for error messages.
    pub(crate) fn request(
        pieces: &[Self],
        name: &str,
        device_bytes: u64,
    ) -> Result<Request, DeviceError> {
        let at = pieces.first().map_or(0, |first| first.offset);
        let mut len_bytes = 0;
        for piece in pieces {
            let request = Request::read(piece.offset, piece.out);
            request.check(name, device_bytes)?;
            len_bytes += request.len_bytes;
        }
        Ok(Request::new("read", at, len_bytes))
    }

    /// Returns the number of separate extents. Neighbouring extents count as one.
    fn extents(pieces: &[Self]) -> u64 {
        let rows = pieces.chunk_by(|before, after| before.end() == after.offset);
        rows.count() as u64
    }

    /// Offset of the first byte after the extent.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.out.len() as u64
    }
}

/// An array of bytes that outlives the process. Threads share it without a lock of their own.
pub trait Device: Send + Sync + Debug {
    /// Returns size and kind. Only [`Self::grow`] and [`Self::shrink`] change them.
    fn geometry(&self) -> Geometry;

    /// Reads exactly `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] beyond the end, [`DeviceError::Io`] if the medium fails.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads exactly `out.len()` bytes from `offset`, if that does not wait for the medium. Returns
    /// false if it would, if the device cannot tell, or after an error, which [`Self::read_at`]
    /// reports. The buffer is undefined then.
    fn read_resident(&self, offset: u64, out: &mut [u8]) -> bool {
        let _ = (offset, out);
        false
    }

    /// Reads several extents, in parallel if the device supports it.
    ///
    /// # Errors
    /// The errors of [`Self::read_at`]. The contents of all buffers are undefined then.
    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        for piece in pieces {
            self.read_at(piece.offset, piece.out)?;
        }
        Ok(())
    }

    /// Reads several extents that are long, read in order and not needed again soon. Data that is
    /// not in the page cache is read with direct I/O if the device supports it.
    ///
    /// # Errors
    /// The errors of [`Self::read_each`].
    fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        self.read_each(pieces)
    }

    /// Hints that a range will be read soon. Returns at once, and guarantees nothing.
    fn prefetch(&self, _offset: u64, _len_bytes: u64) {}

    /// Writes all of `pieces`, one after the other, from `offset`.
    ///
    /// # Errors
    /// The errors of [`Self::read_at`]. After an error any part may have been written.
    ///
    /// # Durability
    /// None until [`Self::sync`]; a killed process loses nothing that this call accepted.
    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError>;

    /// Writes `pieces` as [`Self::write_at`] does. The caller neither overwrites them soon nor
    /// waits for the medium.
    ///
    /// # Errors
    /// As for [`Self::write_at`].
    ///
    /// # Durability
    /// As for [`Self::write_at`].
    fn write_blocks(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        self.write_at(offset, pieces)
    }

    /// Writes long data that is not read soon. The device may continue after the call, and keeps
    /// `bytes` as long as it needs them. All calls see the data as if it had been written.
    ///
    /// # Errors
    /// The errors of [`Self::write_at`]. If the write continues after the call, its error is
    /// returned by every read of the range and by every later sync.
    ///
    /// # Durability
    /// As for [`Self::write_at`].
    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        self.write_blocks(offset, &[bytes])
    }

    /// Prepares a range of whole 4 KiB pages, whose bytes have no meaning, for small writes in
    /// order. The bytes may become zeros now, or stay. In a page cache, one large write of all
    /// pages costs less than half of many small ones.
    ///
    /// # Errors
    /// As for [`Self::write_at`].
    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let _ = (offset, len_bytes);
        Ok(())
    }

    /// Opens a window: `len_bytes` from `offset` on as memory, for frequent small writes. Both are
    /// multiples of 4 KiB. One write fills the range with `first` and zeros. Returns `None` if the
    /// device has no window now; the bytes are then undefined.
    ///
    /// # Errors
    /// As for [`Self::write_at`].
    ///
    /// # Durability
    /// That of [`Self::write_at`], also for writes to the window. [`Self::sync`] covers both.
    fn open_window(
        &self,
        offset: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, DeviceError> {
        let _ = (offset, len_bytes, first);
        Ok(None)
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]: data that was not durable may be lost for good. Never retry; reopen the
    /// device.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Discards a range: its contents are undefined afterwards. A file gives the space back to its
    /// host, so that a later write there may find the host full. Returns false, and does nothing,
    /// if the device cannot discard.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    ///
    /// # Durability
    /// None until [`Self::sync`]: after a crash the range may read as before, as zeros, or as junk.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError>;

    /// Returns the current length of the medium in bytes. A block device or a file may have changed
    /// its length since it was opened.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.geometry().len_bytes)
    }

    /// Extends the device to at least `to` bytes and allocates all space from `from` on, whose
    /// contents have no value. A block device cannot be extended, but may have become longer.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if the device cannot be that long, [`DeviceError::Io`] if its
    /// host has no space. The length stays as it was then.
    ///
    /// # Durability
    /// The length is durable when this returns.
    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        let _ = from;
        cannot_be_resized(&self.geometry(), to)
    }

    /// Truncates the device to `to` bytes. A block device keeps its length.
    ///
    /// # Errors
    /// [`DeviceError::Io`]. The device may have either length then.
    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        cannot_be_resized(&self.geometry(), to)
    }

    /// Returns the counters.
    fn counters(&self) -> DeviceCounters;
}

/// Refuses another length than the current one, for devices that cannot change it.
fn cannot_be_resized(geometry: &Geometry, to: u64) -> Result<(), DeviceError> {
    if geometry.len_bytes >= to {
        return Ok(());
    }
    Err(too_short(&geometry.name, geometry.len_bytes, to))
}

fn too_short(name: &str, len_bytes: u64, wanted_bytes: u64) -> DeviceError {
    let reason = format!("has {len_bytes} bytes only, not {wanted_bytes}");
    open::unsuitable(name, reason)
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(offset, out)
    }

    fn read_resident(&self, offset: u64, out: &mut [u8]) -> bool {
        (**self).read_resident(offset, out)
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        (**self).read_each(pieces)
    }

    fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        (**self).read_once(pieces)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) {
        (**self).prefetch(offset, len_bytes);
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        (**self).write_at(offset, pieces)
    }

    fn write_blocks(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        (**self).write_blocks(offset, pieces)
    }

    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        (**self).write_behind(offset, bytes)
    }

    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        (**self).prepare(offset, len_bytes)
    }

    fn open_window(
        &self,
        offset: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, DeviceError> {
        (**self).open_window(offset, len_bytes, first)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        (**self).sync()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        (**self).discard(offset, len_bytes)
    }

    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        (**self).medium_bytes()
    }

    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        (**self).grow(from, to)
    }

    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        (**self).shrink(to)
    }

    fn counters(&self) -> DeviceCounters {
        (**self).counters()
    }
}
