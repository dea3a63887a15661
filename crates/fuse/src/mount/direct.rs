//! Mounting as root, by system calls.

use std::ffi::CString;
use std::fmt::Write;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno as OsError;
use rustix::mount::UnmountFlags;

use super::{MountError, MountOptions, SUBTYPE, Unmount};
use crate::transport::dev::open_device;

pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fd = open_device().map_err(|source| MountError::DeviceRefused { source })?;
    let data = CString::new(data(&fd, options)).expect("numbers and words have no zero byte");
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(
        options.source.as_os_str(),
        path,
        kind.as_str(),
        options.flags(),
        &*data,
    )
    .map_err(|error| failed(error, "mount", path))?;
    Ok(fd)
}

pub(super) fn remount(path: &Path, options: &MountOptions) -> Result<(), MountError> {
    rustix::mount::mount_remount(path, options.flags(), "")
        .map_err(|error| failed(error, "remount", path))
}

/// The options that only FUSE has.
fn data(fd: &OwnedFd, options: &MountOptions) -> String {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid}",
        fd.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if let Some(max_read) = options.max_read {
        write!(data, ",max_read={max_read}").expect("a string takes all");
    }
    data
}

pub(super) fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::IfIdle => UnmountFlags::empty(),
            Unmount::Lazy => UnmountFlags::DETACH,
            Unmount::Force => UnmountFlags::FORCE,
        };
    rustix::mount::unmount(path, flags).map_err(|error| failed(error, "unmount", path))
}

fn failed(error: OsError, op: &'static str, path: &Path) -> MountError {
    let path = path.to_owned();
    match error {
        OsError::BUSY if op == "unmount" => MountError::Busy { path },
        OsError::INVAL if op == "unmount" => MountError::NotMounted { path },
        OsError::PERM | OsError::ACCESS => MountError::NotPermitted { op, path },
        OsError::NODEV if op == "mount" => MountError::NoDevice,
        other => MountError::Io {
            op,
            path,
            source: io::Error::from(other),
        },
    }
}
