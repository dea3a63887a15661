//! A whole disk or partition as a device.
//!
//! The device is opened with `O_EXCL`, which the kernel refuses while it is mounted or part of
//! another device. A lock, as on files, keeps readers out while a process writes. Both may be held
//! for a moment by programs that only look at the device: a busy one is tried again for a second.
//!
//! Reads and writes of blocks in whole sectors use direct I/O ([`IoMode`]): the layers above have a
//! cache of their own. All other writes go through the page cache. Appends to a log must only
//! survive the process. For short blocks a direct write would wait for the device once for each;
//! the kernel is told to write neighbouring ones out together ([`strip`]).

mod aio;
mod behind;
mod direct;
mod ioctl;
mod strip;

use crate::counter::{Counters, Request};
use crate::open::{self, LEN_UNIT_BYTES, Locked, OpenOptions, PathType};
use crate::ring::Rings;
use crate::{
    Device, DeviceCounters, DeviceError, Geometry, IoMode, Wanted, Window, past, positioned, window,
};
use behind::Behind;
use bytes::Bytes;
use direct::Direct;
use rustix::fs::{OFlags, fstat, ioctl_blksszget};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// How long a claim of a busy device is tried again.
const CLAIM_TIME: Duration = Duration::from_secs(1);
/// Pause between two tries.
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// A device on a raw block device.
#[derive(Debug)]
pub struct RawDevice {
    file: Locked,
    name: String,
    path: PathBuf,
    len_bytes: AtomicU64,
    counters: Counters,
    /// The same device with direct I/O.
    direct: Option<Direct>,
    /// Asynchronous direct writes.
    behind: Option<Behind>,
    io: IoMode,
}

impl RawDevice {
    /// Opens a block device. Its size is rounded down to a multiple of 4 KiB.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if it is not a block device or has no medium,
    /// [`DeviceError::Busy`] if it is mounted, or another process has it open for a second;
    /// [`DeviceError::Io`] otherwise.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        open::require_type(path, &name, PathType::BlockDevice)?;
        let request = Request::new("open", 0, 0);
        let file = claim_in_time(path, options)?;
        let len_bytes = length(&file).map_err(|e| request.failed(&name, e))?;
        open::check_len(&name, len_bytes)?;
        positioned::expect_any_order(&file);
        let direct = open_direct(path, &name, &file, options)?;
        let behind = match direct.as_ref().filter(|_| !options.read_only) {
            Some(direct) => Some(Behind::new(
                direct.again().map_err(|e| request.failed(&name, e))?,
            )),
            None => None,
        };
        Ok(Self {
            direct,
            behind,
            io: options.io,
            file,
            name,
            path: path.to_owned(),
            len_bytes: AtomicU64::new(len_bytes),
            counters: Counters::default(),
        })
    }
}

/// Claims a block device. One that is busy is tried again for [`CLAIM_TIME`]: udev locks a device
/// while it looks what is on it, and a process that was forked has the claim until it runs its own
/// program.
fn claim_in_time(path: &Path, options: OpenOptions) -> Result<Locked, DeviceError> {
    let clock = SystemClock::default();
    let end = clock.monotonic() + CLAIM_TIME;
    loop {
        match claim(path, options) {
            Err(DeviceError::Busy { .. }) if clock.monotonic() < end => clock.sleep(CLAIM_PAUSE),
            claimed => return claimed,
        }
    }
}

/// Opens and locks a block device, if no other opener has it.
fn claim(path: &Path, options: OpenOptions) -> Result<Locked, DeviceError> {
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
            return Err(DeviceError::Busy {
                path: path.to_owned(),
            });
        }
        other => other.map_err(|e| {
            let name = path.display().to_string();
            Request::new("open", 0, 0).failed(&name, e)
        })?,
    };
    Locked::new(file, path, options.read_only)
}

impl RawDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }
}

/// Returns the current length, rounded down to a multiple of 4 KiB.
fn length(mut file: &File) -> std::io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    Ok(end - end % LEN_UNIT_BYTES)
}

/// Opens the device again with direct I/O, if the options ask for it and the device supports it.
fn open_direct(
    path: &Path,
    name: &str,
    file: &File,
    options: OpenOptions,
) -> Result<Option<Direct>, DeviceError> {
    if options.io == IoMode::Buffered {
        return Ok(None);
    }
    let refused = |what: &str, error: std::io::Error| {
        open::unsuitable(name, format!("cannot be used with {what}: {error}"))
    };
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a flag of open(2)");
    let again = File::options()
        .read(true)
        .write(!options.read_only)
        .custom_flags(flags)
        .open(path);
    let again = match again {
        Err(error) if options.io != IoMode::Auto => return Err(refused("O_DIRECT", error)),
        Err(_) => return Ok(None),
        Ok(again) => again,
    };
    let failed = |errno: Errno| Request::new("open", 0, 0).failed(name, errno);
    let (first, second) = (fstat(file).map_err(failed)?, fstat(&again).map_err(failed)?);
    if first.st_rdev != second.st_rdev {
        let reason = "was replaced while it was opened".to_owned();
        return Err(open::unsuitable(name, reason));
    }
    let sector_bytes = ioctl_blksszget(file).map_err(failed)?;
    let rings = match options.io {
        IoMode::Ring => Some(Rings::new().map_err(|e| refused("io_uring", e))?),
        IoMode::Auto | IoMode::Direct | IoMode::Buffered => None,
    };
    Ok(Some(Direct::new(again, u64::from(sector_bytes), rings)))
}

impl RawDevice {
    /// Returns how the device is read and written.
    #[must_use]
    pub const fn io_mode(&self) -> IoMode {
        match self.direct {
            Some(_) => self.io,
            None => IoMode::Buffered,
        }
    }

    /// Reports whether reads in order are read ahead into the page cache.
    fn reads_ahead(&self) -> bool {
        matches!(self.io_mode(), IoMode::Auto | IoMode::Buffered)
    }

    /// Returns the direct access, if an extent is aligned for it.
    fn direct(&self, offset: u64, len: usize) -> Option<&Direct> {
        self.direct.as_ref().filter(|d| d.fits(offset, len))
    }

    /// Waits for asynchronous writes to the range of a request.
    fn wait(&self, request: Request) {
        if let Some(behind) = &self.behind {
            behind.wait(&request.range());
        }
    }

    /// Waits as [`Self::wait`] does, before a read of the range.
    fn wait_to_read(&self, request: Request) -> Result<(), DeviceError> {
        match &self.behind {
            Some(behind) => behind
                .wait_to_read(&request.range())
                .map_err(|lost| lost.error(&self.name)),
            None => Ok(()),
        }
    }

    fn wait_to_read_each(&self, pieces: &[Wanted<'_>]) -> Result<(), DeviceError> {
        let mut requests = pieces.iter().map(|p| Request::read(p.offset, p.out));
        requests.try_for_each(|request| self.wait_to_read(request))
    }
}

impl Device for RawDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes(),
            name: self.name.clone(),
            path: Some(self.path.clone()),
            is_block_device: true,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = Request::read(offset, out);
        request.check(&self.name, self.len_bytes())?;
        self.wait_to_read(request)?;
        match self.direct(offset, out.len()) {
            Some(direct) => direct.read(offset, out),
            None => positioned::read_exact(&self.file, offset, out),
        }
        .map_err(|e| request.failed(&self.name, e))?;
        self.counters.read(request.len_bytes);
        Ok(())
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        let whole = Wanted::request(pieces, &self.name, self.len_bytes())?;
        self.wait_to_read_each(pieces)?;
        let fit = |direct: &&Direct| pieces.iter().all(|p| direct.fits(p.offset, p.out.len()));
        match self.direct.as_ref().filter(fit) {
            Some(direct) if !self.reads_ahead() => direct.read_each(pieces),
            _ => positioned::read_each(&self.file, pieces),
        }
        .map_err(|e| whole.failed(&self.name, e))?;
        self.counters.read_each(pieces);
        Ok(())
    }

    fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        let fit = |direct: &&Direct| {
            past::are_long(pieces) && pieces.iter().all(|p| direct.fits_memory(p))
        };
        let Some(direct) = self.direct.as_ref().filter(fit) else {
            return self.read_each(pieces);
        };
        let whole = Wanted::request(pieces, &self.name, self.len_bytes())?;
        self.wait_to_read_each(pieces)?;
        direct
            .read_into(&self.file, pieces)
            .map_err(|e| whole.failed(&self.name, e))?;
        self.counters.read_each(pieces);
        Ok(())
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) {
        if self.reads_ahead() {
            self.wait(Request::new("prefetch", offset, len_bytes));
            positioned::prefetch(&self.file, offset, len_bytes);
            self.counters.prefetch(len_bytes);
        }
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        request.check(&self.name, self.len_bytes())?;
        self.wait(request);
        positioned::write_all(&self.file, offset, pieces)
            .map_err(|e| request.failed(&self.name, e))?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn write_blocks(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        let len = usize::try_from(request.len_bytes).unwrap_or(0);
        if self.io_mode() == IoMode::Auto && strip::is_short(&request.range()) {
            self.write_at(offset, pieces)?;
            strip::begin(&self.file, &request.range());
            return Ok(());
        }
        let Some(direct) = self.direct(offset, len) else {
            return self.write_at(offset, pieces);
        };
        request.check(&self.name, self.len_bytes())?;
        self.wait(request);
        direct
            .write(offset, pieces)
            .map_err(|e| request.failed(&self.name, e))?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        let request = Request::write(offset, &[bytes]);
        request.check(&self.name, self.len_bytes())?;
        let is_whole = self.direct(offset, bytes.len()).is_some();
        let behind = self.behind.as_ref().filter(|_| is_whole);
        if behind.is_some_and(|behind| behind.write(offset, bytes)) {
            self.counters.write(request.len_bytes);
            return Ok(());
        }
        self.write_blocks(offset, &[bytes])
    }

    fn open_window(
        &self,
        offset: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, DeviceError> {
        self.wait(Request::new("write", offset, len_bytes as u64));
        let file = (&*self.file, &self.counters);
        window::open(self, file, offset, len_bytes, first)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.counters.sync();
        if let Some(behind) = &self.behind {
            behind.sync().map_err(|lost| lost.error(&self.name))?;
        }
        self.file
            .sync_data()
            .map_err(|e| Request::sync().failed(&self.name, e))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        let request = Request::new("discard", offset, len_bytes);
        request.check(&self.name, self.len_bytes())?;
        if len_bytes == 0 {
            return Ok(true);
        }
        self.wait(request);
        match ioctl::discard(&self.file, offset, len_bytes) {
            Ok(()) => self.counters.discard(len_bytes),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => return Ok(false),
            Err(errno) => return Err(request.failed(&self.name, errno)),
        }
        Ok(true)
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
