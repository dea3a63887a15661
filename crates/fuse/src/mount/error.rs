//! Errors of mounting, and what to do about them.

use std::io;
use std::path::PathBuf;

use stitch_base::ErrorKind;

/// The reason that a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE, or this container lacks the device.
    #[error(
        "/dev/fuse is missing: load the kernel module `fuse`, or give the container the device"
    )]
    NoDevice,
    /// The device cannot be opened, in most cases because its mode does not let users open it.
    #[error("/dev/fuse cannot be opened; its mode should be 666 for users to mount")]
    DeviceRefused {
        /// Why.
        source: io::Error,
    },
    /// The mount point does not exist.
    #[error("mount point {} does not exist", path.display())]
    NoMountPoint {
        /// Where.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", path.display())]
    NotADirectory {
        /// Where.
        path: PathBuf,
    },
    /// A FUSE mount without its daemon is in the way: [`super::detach_dead`].
    #[error("{} is a mount whose daemon is gone", path.display())]
    Dead {
        /// Where.
        path: PathBuf,
    },
    /// A user asked for `allow_other`.
    #[error(
        "allow_other is not allowed: add a line `user_allow_other` to /etc/fuse.conf, mount as \
         root, or mount without allow_other"
    )]
    AllowOtherRefused,
    /// Users need `fusermount3`.
    #[error("fusermount3 is missing: install the package `fuse3`, or mount as root")]
    NoHelper,
    /// `fusermount3` refused.
    #[error("fusermount3: {message}")]
    HelperRefused {
        /// Its message.
        message: String,
    },
    /// The mount is in use.
    #[error("{} is busy: a process has a file open or its directory there", path.display())]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// There is nothing to unmount.
    #[error("nothing is mounted at {}", path.display())]
    NotMounted {
        /// Where.
        path: PathBuf,
    },
    /// The caller lacks the permission.
    #[error("not permitted to {op} at {}", path.display())]
    NotPermitted {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {op} {}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl MountError {
    /// Returns the kind, which tells what a caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoMountPoint { .. } | Self::NotMounted { .. } => ErrorKind::NotFound,
            Self::NoDevice | Self::NoHelper => ErrorKind::Unsupported,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::DeviceRefused { .. }
            | Self::NotADirectory { .. }
            | Self::Dead { .. }
            | Self::AllowOtherRefused
            | Self::HelperRefused { .. }
            | Self::NotPermitted { .. } => ErrorKind::Invalid,
            Self::Io { .. } => ErrorKind::Io,
        }
    }
}
