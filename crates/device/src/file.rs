//! A preallocated file as a device.
//!
//! All space is allocated from the host's file system when the file is created or grows. So no
//! later write finds the host full, and no sync has metadata of the host to write. A discard
//! punches a hole and gives up both: a write into the hole allocates again, and fails if the host
//! has no space.
//!
//! One process at a time may have the file open for writing. Any number may have it open for
//! reading while no process writes. The lock belongs to the open file: it ends with the process, or
//! when the device is dropped in the process that opened it, even if forked children still run.

use crate::counter::{Counters, Request};
use crate::open::{self, LEN_UNIT_BYTES, Locked, OpenOptions};
use crate::past::Past;
use crate::{Device, DeviceCounters, DeviceError, Geometry, Wanted, Window, positioned, window};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// Length of the writes that fill a file with zeros where the host cannot preallocate.
const ZEROS_BYTES: usize = 1 << 20;

/// A device in a file of fixed size.
#[derive(Debug)]
pub struct FileDevice {
    file: Locked,
    /// The same file with direct I/O, where the host supports it.
    past: Option<Past>,
    /// True if the device can open windows.
    has_steady_pages: bool,
    name: String,
    path: PathBuf,
    len_bytes: AtomicU64,
    counters: Counters,
}

impl FileDevice {
    /// Creates the file with all its space allocated, and makes its name durable. A directory means
    /// the file [`crate::STORE_FILE_NAME`] inside. Only the owner may read and write it: it holds
    /// the contents of files whatever their modes.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if the size is not a multiple of 4 KiB. [`DeviceError::Io`] if
    /// the file exists or the host has no space; no file is left behind then.
    pub fn create(path: &Path, len_bytes: u64) -> Result<Self, DeviceError> {
        let path = open::resolve(path);
        let name = path.display().to_string();
        open::check_len(&name, len_bytes)?;
        open::check_limit(&name, len_bytes)?;
        let request = Request::new("create", 0, len_bytes);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| request.failed(&name, e))?;
        let made = Locked::new(file, &path, false).and_then(|file| {
            allocate(&file, 0, len_bytes)
                .and_then(|()| file.sync_all())
                .and_then(|()| sync_parent(&path))
                .map_err(|e| request.failed(&name, e))?;
            Ok(file)
        });
        let file = match made {
            Ok(file) => file,
            Err(error) => {
                // The first error is more useful than that of a failed clean-up.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        };
        let reopened = Past::open(&path, &file);
        Ok(Self::of_file(file, path, reopened, len_bytes))
    }

    /// Returns the device in a file that is open and locked. `path` is or will be its name.
    fn of_file(file: Locked, path: PathBuf, past: Option<Past>, len_bytes: u64) -> Self {
        positioned::expect_any_order(&file);
        Self {
            past,
            has_steady_pages: window::has_steady_pages(&file),
            file,
            name: path.display().to_string(),
            path,
            len_bytes: AtomicU64::new(len_bytes),
            counters: Counters::default(),
        }
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if it is not a regular file or has an impossible size,
    /// [`DeviceError::Busy`] if another process has it open, [`DeviceError::Io`] otherwise.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let path = open::resolve(path);
        let name = path.display().to_string();
        let request = Request::new("open", 0, 0);
        open::require_type(&path, &name, open::PathType::File)?;
        let file = File::options()
            .read(true)
            .write(!options.read_only)
            .open(&path)
            .map_err(|e| request.failed(&name, e))?;
        let file = Locked::new(file, &path, options.read_only)?;
        let metadata = file.metadata().map_err(|e| request.failed(&name, e))?;
        open::check_len(&name, metadata.len())?;
        if !options.read_only {
            open::check_limit(&name, metadata.len())?;
        }
        if options.reserve && !options.read_only {
            reserve(&file, metadata.len()).map_err(|e| request.failed(&name, e))?;
        }
        let reopened = Past::open(&path, &file);
        Ok(Self::of_file(file, path, reopened, metadata.len()))
    }
}

impl FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes(),
            name: self.name.clone(),
            path: Some(self.path.clone()),
            is_block_device: false,
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

    fn read_resident(&self, offset: u64, out: &mut [u8]) -> bool {
        let request = Request::read(offset, out);
        let is_inside = request.check(&self.name, self.len_bytes()).is_ok();
        let is_read = is_inside && positioned::read_resident(&self.file, offset, out);
        if is_read {
            self.counters.read(request.len_bytes);
        }
        is_read
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        let whole = Wanted::request(pieces, &self.name, self.len_bytes())?;
        positioned::read_each(&self.file, pieces).map_err(|e| whole.failed(&self.name, e))?;
        self.counters.read_each(pieces);
        Ok(())
    }

    fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        let Some(past) = &self.past else {
            return self.read_each(pieces);
        };
        let whole = Wanted::request(pieces, &self.name, self.len_bytes())?;
        past.read_each(&self.file, pieces)
            .map_err(|e| whole.failed(&self.name, e))?;
        self.counters.read_each(pieces);
        Ok(())
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) {
        positioned::prefetch(&self.file, offset, len_bytes);
        self.counters.prefetch(len_bytes);
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        request.check(&self.name, self.len_bytes())?;
        positioned::write_all(&self.file, offset, pieces)
            .map_err(|e| request.failed(&self.name, e))?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let request = Request::new("prepare", offset, len_bytes);
        request.check(&self.name, self.len_bytes())?;
        if self.has_steady_pages {
            positioned::write_zeros(&self.file, offset, len_bytes)
                .map_err(|e| request.failed(&self.name, e))?;
            self.counters.prepared(len_bytes);
        }
        Ok(())
    }

    fn open_window(
        &self,
        offset: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, DeviceError> {
        if !self.has_steady_pages {
            return Ok(None);
        }
        let file = (&*self.file, &self.counters);
        window::open(self, file, offset, len_bytes, first)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.counters.sync();
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
        match punch_range(&self.file, offset, len_bytes) {
            Ok(()) => self.counters.discard(len_bytes),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(errno) => return Err(request.failed(&self.name, errno)),
        }
        Ok(true)
    }

    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        let metadata = self.file.metadata();
        let found = metadata.map_err(|e| Request::new("open", 0, 0).failed(&self.name, e))?;
        Ok(found.len() - found.len() % LEN_UNIT_BYTES)
    }

    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        open::check_len(&self.name, to)?;
        open::check_limit(&self.name, to)?;
        let request = Request::new("grow", from, to.saturating_sub(from));
        let failed = |e: io::Error| request.failed(&self.name, e);
        let before = self.file.metadata().map_err(failed)?.len();
        let grown = allocate(&self.file, from.min(to), to).and_then(|()| self.file.sync_all());
        if let Err(error) = grown {
            // The first error is more useful than that of a failed clean-up.
            let _ = self.file.set_len(before);
            return Err(failed(error));
        }
        self.len_bytes.fetch_max(to, Ordering::AcqRel);
        Ok(())
    }

    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        open::check_len(&self.name, to)?;
        if to >= self.len_bytes() {
            return Ok(());
        }
        let request = Request::new("shrink", to, 0);
        self.len_bytes.store(to, Ordering::Release);
        let cut = self.file.set_len(to).and_then(|()| self.file.sync_all());
        cut.map_err(|e| request.failed(&self.name, e))
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.load()
    }
}

/// Allocates all space of a file up to `to`. The file ends at `from`, or has nothing of value after
/// it.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    if from == to {
        return Ok(());
    }
    match fallocate_range(file, FallocateFlags::empty(), from, to - from) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, from, to),
        other => other.map_err(io::Error::from),
    }
}

/// Fills the holes of an existing file without touching what it holds.
fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    match fallocate_range(file, FallocateFlags::empty(), 0, len_bytes) {
        // Writing zeros would destroy the contents: the holes stay on such a host.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.sync_all(),
        Err(errno) => Err(errno.into()),
    }
}

/// Punches a hole into a file. The file's length stays.
pub(crate) fn punch_range(file: &File, from: u64, len_bytes: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate_range(file, flags, from, len_bytes)
}

/// Allocates the space of a range; length and contents stay. Holes stay on a host that cannot
/// allocate.
pub(crate) fn allocate_range(file: &File, from: u64, len_bytes: u64) -> io::Result<()> {
    match fallocate_range(file, FallocateFlags::KEEP_SIZE, from, len_bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `fallocate`, again if a signal interrupts it.
fn fallocate_range(
    file: &File,
    flags: FallocateFlags,
    from: u64,
    len_bytes: u64,
) -> Result<(), Errno> {
    loop {
        match fallocate(file, flags, from, len_bytes) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Writes zeros to `[from, to)`, for hosts without `fallocate`.
pub(crate) fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0u8; ZEROS_BYTES];
    let mut at = from;
    while at < to {
        let piece = usize::try_from(to - at).map_or(ZEROS_BYTES, |n| n.min(ZEROS_BYTES));
        positioned::write_all(file, at, &[&zeros[..piece]])?;
        at += piece as u64;
    }
    Ok(())
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// Returns the directory of a path that may not exist yet.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

mod unnamed;
pub use unnamed::Unnamed;

#[cfg(test)]
mod tests;
