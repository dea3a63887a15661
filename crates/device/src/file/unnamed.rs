//! A new file that has no name until it is complete.
//!
//! 1. [`FileDevice::create_unnamed`] opens it by `O_TMPFILE` in the directory of its later name and
//!    allocates its space.
//! 2. The caller writes what belongs into it.
//! 3. [`Unnamed::publish`] makes the contents durable, links the name, and makes that durable.
//!
//! If the process ends before step 3, the host removes the file.

use super::{FileDevice, allocate, parent_of, sync_parent};
use crate::DeviceError;
use crate::counter::Request;
use crate::open::{self, Locked};
use crate::past::Past;
use rustix::fs::{AtFlags, CWD, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The future name of a file that [`FileDevice::create_unnamed`] made.
#[derive(Debug)]
#[must_use = "without its name the file is removed when it is closed"]
pub struct Unnamed {
    file: File,
    path: PathBuf,
}

impl FileDevice {
    /// Creates a file as [`Self::create`] does, but without a name. Returns `None` where the host's
    /// file system has no such files.
    ///
    /// # Errors
    /// The errors of [`Self::create`]. A name that is taken is found only by [`Unnamed::publish`].
    pub fn create_unnamed(
        path: &Path,
        len_bytes: u64,
    ) -> Result<Option<(Self, Unnamed)>, DeviceError> {
        let path = open::resolve(path);
        let name = path.display().to_string();
        open::check_len(&name, len_bytes)?;
        open::check_limit(&name, len_bytes)?;
        let Ok(file) = open_unnamed(&path) else {
            return Ok(None);
        };
        let request = Request::new("create", 0, len_bytes);
        let file = Locked::new(file, &path, false)?;
        allocate(&file, 0, len_bytes).map_err(|e| request.failed(&name, e))?;
        let again = file.try_clone().map_err(|e| request.failed(&name, e))?;
        let unnamed = Unnamed { file: again, path };
        let past = Past::open(&unnamed.by_descriptor(), &file);
        let device = Self::of_file(file, unnamed.path.clone(), past, len_bytes);
        Ok(Some((device, unnamed)))
    }
}

impl Unnamed {
    /// Gives the file its name.
    ///
    /// # Errors
    /// [`DeviceError::Io`] if the name is taken by now, or the host fails.
    ///
    /// # Durability
    /// Contents and name are on the medium when this returns.
    pub fn publish(self) -> Result<(), DeviceError> {
        let request = Request::new("create", 0, 0);
        self.file
            .sync_all()
            .and_then(|()| self.link())
            .and_then(|()| sync_parent(&self.path))
            .map_err(|e| request.failed(&self.path.display().to_string(), e))
    }

    fn link(&self) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_FOLLOW;
        let linked = rustix::fs::linkat(CWD, self.by_descriptor(), CWD, &self.path, flags);
        Ok(linked?)
    }

    /// Returns a path by which the file can be opened and linked.
    fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

fn open_unnamed(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::TMPFILE.bits()).expect("a flag of open(2)");
    File::options()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .mode(0o600)
        .open(parent_of(path))
}
