//! File handles of the kernel, and the caches that stand between them and a file system.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The largest handle that the kernel makes, in bytes.
const BYTES_MAX: u32 = 128;
/// The handle is to lead to the path of a file too. Since Linux 6.13.
pub(crate) const CONNECTABLE: i32 = 0x2;

/// A handle as the kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHandle {
    len_bytes: u32,
    kind: i32,
    bytes: [u8; BYTES_MAX as usize],
}

impl FileHandle {
    /// The handle of what is at `path`, symbolic links included.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::with_flags(path, 0).with_context(|| path.display().to_string())
    }

    /// The same with flags of `name_to_handle_at`.
    pub(crate) fn with_flags(path: &Path, flags: i32) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut handle = Self {
            len_bytes: BYTES_MAX,
            kind: 0,
            bytes: [0; BYTES_MAX as usize],
        };
        let mut mount = 0;
        #[expect(unsafe_code, reason = "name_to_handle_at has no safe wrapper")]
        // SAFETY: the handle has room for as many bytes as it says; the path ends with a zero byte.
        let result = unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                path.as_ptr(),
                (&raw mut handle).cast(),
                &raw mut mount,
                flags,
            )
        };
        if result == 0 {
            Ok(handle)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Opens it in the mount at `mount`, to be read, or with `O_PATH`.
    pub(crate) fn open(mut self, mount: &Path, flags: i32) -> io::Result<File> {
        let mount = File::open(mount)?;
        #[expect(unsafe_code, reason = "open_by_handle_at has no safe wrapper")]
        // SAFETY: the handle is one that the kernel has made.
        let fd = unsafe {
            libc::open_by_handle_at(
                mount.as_raw_fd(),
                (&raw mut self).cast(),
                flags | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        #[expect(unsafe_code, reason = "the descriptor comes from a system call")]
        // SAFETY: it is open and has no other owner.
        Ok(unsafe { File::from_raw_fd(fd) })
    }
}

/// The path of an open file, as the kernel knows it.
pub(crate) fn path_of(file: &File) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(fs::read_link(link)?)
}

/// Has the kernel forget the inodes and names that are not in use.
pub(crate) fn drop_inodes() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("drop_caches")
}
