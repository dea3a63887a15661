//! A whole disk or partition as a device.
//!
//! Opened with `O_EXCL`, which the kernel refuses while the device is mounted or part of something
//! else, and locked like a file, which keeps readers out while somebody writes.

mod ioctl;

use crate::counter::{Counters, Request};
use crate::open::{self, LEN_UNIT_BYTES, OpenOptions, PathType};
use crate::{Device, DeviceCounters, DeviceError, Geometry, positioned};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// A device on a raw block device.
#[derive(Debug)]
pub struct RawDevice {
    file: File,
    name: String,
    len_bytes: AtomicU64,
    counters: Counters,
}

impl RawDevice {
    /// Opens a block device. Its size is rounded down to a multiple of 4 KiB.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] when it is no block device or has no medium,
    /// [`DeviceError::Busy`] when it is mounted or another process has it, [`DeviceError::Io`]
    /// otherwise.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        open::require_type(path, &name, PathType::BlockDevice)?;
        let request = Request::new("open", 0, 0);
        let exclusive = if options.read_only {
            OFlags::empty()
        } else {
            OFlags::EXCL
        };
        let flags = i32::try_from(exclusive.bits()).expect("a flag of open(2)");
        let opened = File::options()
            .read(true)
            .write(!options.read_only)
            .custom_flags(flags)
            .open(path);
        let file = match opened {
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                return Err(DeviceError::Busy { name });
            }
            other => other.map_err(|e| request.failed(&name, e))?,
        };
        open::lock(&file, &name, options.read_only)?;
        let len_bytes = length(&file).map_err(|e| request.failed(&name, e))?;
        open::check_len(&name, len_bytes)?;
        Ok(Self {
            file,
            name,
            len_bytes: AtomicU64::new(len_bytes),
            counters: Counters::default(),
        })
    }
}

impl RawDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }
}

/// Where a device ends now, rounded down to a multiple of 4 KiB.
fn length(mut file: &File) -> std::io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    Ok(end - end % LEN_UNIT_BYTES)
}

impl Device for RawDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes(),
            name: self.name.clone(),
            is_block_device: true,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = Request::read(offset, out);
        request.check(&self.name, self.len_bytes())?;
        positioned::read_exact(&self.file, offset, out)
            .map_err(|e| request.failed(&self.name, e))?;
        self.counters.read(request.len_bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        request.check(&self.name, self.len_bytes())?;
        positioned::write_all(&self.file, offset, pieces)
            .map_err(|e| request.failed(&self.name, e))?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.counters.sync();
        self.file
            .sync_data()
            .map_err(|e| Request::sync().failed(&self.name, e))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let request = Request::new("discard", offset, len_bytes);
        request.check(&self.name, self.len_bytes())?;
        if len_bytes == 0 {
            return Ok(());
        }
        match ioctl::discard(&self.file, offset, len_bytes) {
            Ok(()) => self.counters.discard(len_bytes),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {}
            Err(errno) => return Err(request.failed(&self.name, errno)),
        }
        Ok(())
    }

    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        let request = Request::new("open", 0, 0);
        length(&self.file).map_err(|e| request.failed(&self.name, e))
    }

    fn grow(&self, _from: u64, to: u64) -> Result<(), DeviceError> {
        let found = self.medium_bytes()?;
        if found < to {
            return Err(crate::too_short(&self.name, found, to));
        }
        self.len_bytes.fetch_max(found, Ordering::AcqRel);
        Ok(())
    }

    fn shrink(&self, _to: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.load()
    }
}

#[cfg(test)]
mod tests;
