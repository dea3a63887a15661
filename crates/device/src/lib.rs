//! Storage as a row of bytes: a raw block device, a preallocated file, memory, and wrappers that
//! fail on purpose.
//!
//! The only crate that does storage I/O. What is above it asks for bytes at offsets, and for a
//! [`Device::sync`] where the order of writes matters.
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

/// Smallest piece that a device writes atomically, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// A device's size and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; a multiple of 4,096.
    pub len_bytes: u64,
    /// What users call it: a path as text, or `memory`.
    pub name: String,
    /// Where it is: a path need not be text. `None` for memory.
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

/// What a device has done since it was opened. Counters only grow.
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
    /// Bytes that were asked for ahead of their reads.
    pub prefetch_bytes: u64,
    /// Pieces that were handed out as memory.
    pub windows: u64,
    /// Bytes that were made ready for writes; not among `write_bytes`.
    pub prepared_bytes: u64,
}

/// A piece of a device that is to be read.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Where it begins.
    pub offset: u64,
    /// Where its bytes go, and how many they are.
    pub out: &'a mut [u8],
}

impl Wanted<'_> {
    /// One request for all of them, as errors name it, after each was checked.
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

    /// Returns the number of separate extents that the pieces make up: one that begins where the
    /// one before it ends is of the same extent.
    fn extents(pieces: &[Self]) -> u64 {
        let rows = pieces.chunk_by(|before, after| before.end() == after.offset);
        rows.count() as u64
    }

    /// Offset of the first byte after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.out.len() as u64
    }
}

/// A row of bytes that survives the process. Shared by threads without locks of the caller's.
pub trait Device: Send + Sync + Debug {
    /// Size and kind. Changes only by [`Self::grow`] and [`Self::shrink`] while open.
    fn geometry(&self) -> Geometry;

    /// Reads exactly `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] beyond the end, [`DeviceError::Io`] where the medium fails.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads several pieces. A device that can, reads them at the same time.
    ///
    /// # Errors
    /// As [`Self::read_at`]; then nothing is known of what the pieces hold.
    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        for piece in pieces {
            self.read_at(piece.offset, piece.out)?;
        }
        Ok(())
    }

    /// As [`Self::read_each`], for long pieces that are read in order and not soon again: a device that
    /// can, reads what the page cache does not have past it.
    ///
    /// # Errors
    /// As [`Self::read_each`].
    fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        self.read_each(pieces)
    }

    /// Says that a range will be read soon. Returns at once, and promises nothing.
    fn prefetch(&self, _offset: u64, _len_bytes: u64) {}

    /// Writes all of `pieces`, one after the other, from `offset`.
    ///
    /// # Errors
    /// As [`Self::read_at`]; after an error any part may have been written.
    ///
    /// # Durability
    /// None until [`Self::sync`]; a killed process loses nothing that this call accepted.
    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError>;

    /// As [`Self::write_at`], for what nobody will write to again soon and nobody has to wait for.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    ///
    /// # Durability
    /// As [`Self::write_at`].
    fn write_blocks(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        self.write_at(offset, pieces)
    }

    /// As [`Self::write_blocks`], for long pieces that are not read soon: a device that can, goes on with it after the
    /// call, with `bytes` for as long as it needs them. All calls see what was written as if it had been done.
    ///
    /// # Errors
    /// As [`Self::write_at`]. Where the write goes on, its error is that of all reads of the range and of all
    /// later syncs.
    ///
    /// # Durability
    /// As [`Self::write_at`].
    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        self.write_blocks(offset, &[bytes])
    }

    /// Says that a range of whole pages of 4 KiB, whose bytes are of no meaning, will be written soon, in order and a
    /// few pages at a time. They may become zeros now, or stay as they are. Where a page cache takes
    /// writes, pages that come in one piece cost less than half of what each alone does.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let _ = (offset, len_bytes);
        Ok(())
    }

    /// A piece of the device as memory, for who writes a little at a time: `len_bytes` from `offset` on, both
    /// whole pages of 4 KiB. They become `first` and zeros, by one write. `None` where the device has no
    /// such thing now; then they may be as they were.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    ///
    /// # Durability
    /// As [`Self::write_at`], for what is written to the window too. [`Self::sync`] covers both.
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
    /// [`DeviceError::Io`]: what was not durable before may be lost for good; never retry, reopen.
    fn sync(&self) -> Result<(), DeviceError>;

    /// Tells the device that a range holds nothing of worth. What it reads back afterwards is
    /// undefined. A file gives the space back to its host, so that a later write there may find the
    /// host full. Returns false, and does nothing, if the device cannot discard.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    ///
    /// # Durability
    /// None until [`Self::sync`]: after a crash the range may read as before, as zeros, or as junk.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError>;

    /// How long the medium below is now, in bytes: a block device or a file may have been given
    /// another length since it was opened.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.geometry().len_bytes)
    }

    /// Makes the device at least `to` bytes long, with all its space from `from` on: what stands
    /// there is worth nothing. A block device cannot be made longer, but may have become so.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if it cannot be that long, [`DeviceError::Io`] if its host has no
    /// room: then it is as long as before.
    ///
    /// # Durability
    /// The length is durable when this returns.
    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        let _ = from;
        cannot_be_resized(&self.geometry(), to)
    }

    /// Gives up what lies after the first `to` bytes. A block device stays as long as it is.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; then it may be as long as before, or not.
    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        cannot_be_resized(&self.geometry(), to)
    }

    /// What it has done so far.
    fn counters(&self) -> DeviceCounters;
}

/// Without a way to give it another length, a device has the one that it has.
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
