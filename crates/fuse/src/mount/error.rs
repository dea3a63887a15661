//! What can go wrong in mounting, and what to do about it.

use std::io;
use std::path::PathBuf;

use stitch_base::ErrorKind;

/// Why something was not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE, or this container does not show it.
    #[error(
        "/dev/fuse is missing: load the kernel module `fuse`, or give the container the device"
    )]
    NoDevice,
    /// The device may not be opened by everybody.
    #[error("/dev/fuse cannot be opened; its mode should be 666 for users to mount")]
    DeviceRefused {
        /// Why.
        source: io::Error,
    },
    /// Where to mount is not there.
    #[error("mount point {} does not exist", path.display())]
    NoMountPoint {
        /// Where.
        path: PathBuf,
    },
    /// Where to mount is not a directory.
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
    /// A user asked to let others in.
    #[error(
        "allow_other is not allowed: add a line `user_allow_other` to /etc/fuse.conf, mount as \
         root, or mount without allow_other"
    )]
    AllowOtherRefused,
    /// Users need it.
    #[error("fusermount3 is missing: install the package `fuse3`, or mount as root")]
    NoHelper,
    /// `fusermount3` said no.
    #[error("fusermount3: {message}")]
    HelperRefused {
        /// What it said.
        message: String,
    },
    /// Somebody is in it.
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
    /// The caller may not.
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
    /// What the caller can do about it.
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
