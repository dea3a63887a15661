//! Passthrough: files of the host that the kernel reads itself.
//!
//! 1. A file is registered with the device, which returns its number ([`BackingFiles::register`]).
//! 2. The reply to an OPEN names the number, with `PASSTHROUGH`. Reads, writes and mappings of that
//!    open file then use the host's file. With `DIRECT_IO` too, only mappings do, and reads and
//!    writes are sent as requests that bypass the cache.
//! 3. The number may be released ([`Backing`] dropped) once the kernel has received the reply: it
//!    keeps the file as long as it needs it.
//!
//! The kernel's rules, for all open files of one inode at a time; an open that breaks one fails
//! with `EIO`:
//! - while one is open with `PASSTHROUGH`, all others are too, with the same number;
//! - while one is open without it and may use the cache, none is open with it.
//!
//! The kernel sends RELEASE after it has closed a file, so a count of opens and RELEASEs is never
//! less than the number of open files. A mapping of a host file outlives the RELEASE of the open
//! file, but not the FORGET of its inode.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno as OsError;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use stitch_base::sync::Arc;

use crate::session::Negotiated;

const MAGIC: u8 = 229;

/// The reason that passthrough is not available.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoPassthrough {
    /// The kernel does not offer it.
    NotOffered,
    /// The next daemon of a mount that survives its daemon would not know the numbers.
    Held,
    /// The store has no external files.
    NoFiles,
    /// The process lacks the right.
    NotRoot,
    /// The files are on a stacked file system.
    Stacked,
    /// Another failure.
    Failed(io::Error),
}

impl NoPassthrough {
    /// Converts the error of a handler.
    pub(crate) fn refused(error: io::Error) -> Self {
        match OsError::from_io_error(&error) {
            Some(OsError::PERM) => Self::NotRoot,
            Some(OsError::LOOP) => Self::Stacked,
            Some(OsError::OPNOTSUPP | OsError::NOTTY) => Self::NotOffered,
            None if error.kind() == io::ErrorKind::NotFound => Self::NoFiles,
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for NoPassthrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered => {
                f.write_str("the kernel lacks it: Linux 6.9 with CONFIG_FUSE_PASSTHROUGH is needed")
            }
            Self::Held => f.write_str(
                "not in a mount that survives its daemon: the next daemon would not know what the \
                 kernel has open",
            ),
            Self::NoFiles => f.write_str("this store has no large files beside it"),
            Self::NotRoot => f.write_str("only root may, outside of containers (CAP_SYS_ADMIN)"),
            Self::Stacked => f.write_str(
                "the files are on a file system that lies upon another one, as overlayfs does",
            ),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// Registers files with the kernel, through the device of a mount. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BackingFiles {
    device: Arc<OwnedFd>,
}

impl BackingFiles {
    /// Creates it for a device, if the kernel agreed to passthrough.
    pub(crate) fn new(
        device: Arc<OwnedFd>,
        negotiated: &Negotiated,
    ) -> Result<Self, NoPassthrough> {
        if negotiated.has_passthrough() {
            Ok(Self { device })
        } else {
            Err(NoPassthrough::NotOffered)
        }
    }

    /// Registers a regular file with the kernel, which opens it again, with the rights of this
    /// process, for each open file that names it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`, `ELOOP` for a file of a stacked file system.
    pub fn register(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        let id = backing_open(&self.device, file)?;
        let device = Arc::clone(&self.device);
        Ok(Backing { id, device })
    }
}

/// A registered file. After it is dropped, no further open file can name it; older ones keep it.
#[derive(Debug)]
pub struct Backing {
    id: u32,
    device: Arc<OwnedFd>,
}

impl Backing {
    /// Returns the number that replies name.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Err(error) = backing_close(&self.device, self.id) {
            // The mount is gone, and its files with it.
            tracing::debug!(%error, id = self.id, "a file was not taken back from the kernel");
        }
    }
}

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

#[expect(
    unsafe_code,
    reason = "an ioctl that takes a structure and answers a number has no wrapper"
)]
// SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads one `fuse_backing_map` through its argument, writes
// nothing, and returns a positive number.
unsafe impl Ioctl for BackingMap {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| OsError::RANGE)
    }
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn backing_open(device: &OwnedFd, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: the descriptor is open while `file` is borrowed; `BackingMap` states what is read.
    Ok(unsafe { ioctl(device, map) }?)
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn backing_close(device: &OwnedFd, id: u32) -> io::Result<()> {
    const CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one u32 through its argument and writes nothing;
    // `Setter` passes a pointer to one that lives through the call.
    unsafe { ioctl(device, Setter::<CLOSE, u32>::new(id)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctls_are_numbered_as_the_kernel_has_them() {
        let map = BackingMap {
            fd: 0,
            flags: 0,
            padding: 0,
        };
        assert_eq!(map.opcode(), 0x4010_e501);
        assert_eq!(opcode::write::<u32>(MAGIC, 2), 0x4004_e502);
    }

    #[test]
    fn refusals_say_what_is_missing() {
        let refused = |errno: OsError| NoPassthrough::refused(errno.into()).to_string();
        assert!(refused(OsError::PERM).contains("only root"));
        assert!(refused(OsError::LOOP).contains("overlayfs"));
        assert!(refused(OsError::NOTTY).contains("Linux 6.9"));
        assert!(refused(OsError::NOSPC).contains("No space"));
        let none = NoPassthrough::refused(io::ErrorKind::NotFound.into());
        assert!(none.to_string().contains("no large files beside"));
        assert!(
            NoPassthrough::Held
                .to_string()
                .contains("survives its daemon")
        );
    }
}
