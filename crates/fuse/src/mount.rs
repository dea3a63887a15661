//! Mounts and unmounts: by `mount(2)` as root, by `fusermount3` as a user.
//!
//! Invariants:
//! - nothing here touches a file of the mount, whose daemon may be this process and not serve yet:
//!   the mounts are read from `/proc/self/mountinfo` ([`table`]);
//! - a mount that lost its daemon is recognised by `statfs`, which the kernel never serves from a
//!   cache.

mod direct;
mod error;
mod helper;
mod mode;
pub mod table;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno as OsError;
use rustix::mount::{MountFlags, UnmountFlags};

pub use error::MountError;
pub use mode::MountMode;
use table::MountEntry;

use crate::transport::dev::DEVICE_PATH;

/// Subtype of the mounts in the mount table.
pub const SUBTYPE: &str = "stitchfs";

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that the mount table shows.
    pub source: OsString,
    /// Read-only.
    pub read_only: bool,
    /// Set-id bits have no effect.
    pub no_suid: bool,
    /// Device files cannot be opened.
    pub no_dev: bool,
    /// Nothing can be executed.
    pub no_exec: bool,
    /// Access times are not kept.
    pub no_atime: bool,
    /// Access times of directories are not kept.
    pub no_dir_atime: bool,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dir_sync: bool,
    /// Users other than the mounting one may enter.
    pub allow_other: bool,
    /// The kernel checks permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Most bytes of a READ; `None` leaves it to the kernel.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: SUBTYPE.into(),
            read_only: false,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_atime: false,
            no_dir_atime: false,
            sync: false,
            dir_sync: false,
            allow_other: false,
            default_permissions: true,
            max_read: None,
        }
    }
}

impl MountOptions {
    /// Options of a mount by root for all users: `allow_other` and `default_permissions`.
    #[must_use]
    pub fn shared(source: &str) -> Self {
        Self {
            source: source.into(),
            allow_other: true,
            ..Self::default()
        }
    }

    fn flags(&self) -> MountFlags {
        let pairs = [
            (self.read_only, MountFlags::RDONLY),
            (self.no_suid, MountFlags::NOSUID),
            (self.no_dev, MountFlags::NODEV),
            (self.no_exec, MountFlags::NOEXEC),
            (self.no_atime, MountFlags::NOATIME),
            (self.no_dir_atime, MountFlags::NODIRATIME),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dir_sync, MountFlags::DIRSYNC),
        ];
        let set = pairs.into_iter().filter(|(wanted, _)| *wanted);
        set.fold(MountFlags::empty(), |flags, (_, flag)| flags | flag)
    }
}

/// A mount. Dropping it unmounts it, even if it is busy, unless it is held.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    device: Option<(u32, u32)>,
    is_held: bool,
}

impl Mount {
    /// Mounts at `path` and returns the descriptor for the requests.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn new(path: &Path, options: &MountOptions) -> Result<(Self, OwnedFd), MountError> {
        if !Path::new(DEVICE_PATH).exists() {
            return Err(MountError::NoDevice);
        }
        let path = check_mount_point(path)?;
        let is_root = rustix::process::geteuid().is_root();
        let fd = if is_root {
            direct::mount(&path, options)?
        } else {
            helper::mount(&path, options)?
        };
        let device = table::find(&path)?.map(|entry| entry.device);
        let mount = Self {
            path,
            device,
            is_held: false,
        };
        Ok((mount, fd))
    }

    /// Adopts a mount that another process has made.
    pub(crate) const fn adopted(path: PathBuf, device: Option<(u32, u32)>) -> Self {
        Self {
            path,
            device,
            is_held: false,
        }
    }

    /// Marks the mount as held by another process.
    pub(crate) const fn hold(&mut self) {
        self.is_held = true;
    }

    /// Reports whether another process holds the mount.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns its device number, major and minor.
    #[must_use]
    pub const fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets how far the kernel reads ahead. The default is 128 KiB, which also limits the length of
    /// read requests, and INIT can only reduce it. Only root may change it; other mounts keep the
    /// default.
    pub(crate) fn set_read_ahead(&self, len_bytes: u64) {
        let Some((major, minor)) = self.device else {
            return;
        };
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&path, (len_bytes >> 10).to_string()) {
            tracing::debug!(%error, path, "the kernel reads ahead as it does by default");
        }
    }

    /// Reports whether it is mounted and not covered by another mount. Returns true if the mount
    /// table cannot be read.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        // A wrong "no" would leave the mount, and the caller would wait for its end forever.
        let is_same =
            |top: Option<MountEntry>| top.is_some_and(|top| Some(top.device) == self.device);
        table::find(&self.path).map_or(true, is_same)
    }

    /// Unmounts, if it is still mounted.
    ///
    /// # Errors
    /// `Busy` if it is in use and `how` does not allow for that.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        if self.is_mounted() {
            unmount(&self.path, how)
        } else {
            Ok(())
        }
    }

    /// Aborts the connection: waiting callers get an error, and the workers end. Then unmounts.
    ///
    /// # Errors
    /// Those of unmounting.
    pub fn abort(&self) -> Result<(), MountError> {
        if let Some((_, minor)) = self.device {
            // Works for the mount's owner too, if the control file system is mounted.
            let control = format!("/sys/fs/fuse/connections/{minor}/abort");
            if let Err(error) = std::fs::write(&control, "1") {
                tracing::debug!(%error, control, "no control file: unmounting by force");
            }
        }
        if rustix::process::geteuid().is_root() && self.is_mounted() {
            // Aborts the connection even if the mount is busy. Returns `EBUSY` then.
            let force = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
            if rustix::mount::unmount(&self.path, force).is_ok() {
                return Ok(());
            }
        }
        self.unmount(Unmount::Lazy)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_held {
            return;
        }
        if let Err(error) = self.unmount(Unmount::Lazy) {
            tracing::warn!(path = %self.path.display(), %error, "the mount was not removed");
        }
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if it is not in use.
    IfIdle,
    /// Detach at once; the mount ends when the last user leaves.
    Lazy,
    /// Only if it is not in use, after aborting requests that wait for the daemon. For root only;
    /// for other users the same as [`Self::IfIdle`].
    Force,
}

/// Unmounts whatever is mounted at `path`.
///
/// # Errors
/// `Busy` if it is in use, `NotMounted` if nothing is mounted there.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    if rustix::process::geteuid().is_root() {
        direct::unmount(path, how)
    } else {
        helper::unmount(path, how)
    }
}

/// Changes the kernel's flags of the mount at `path`, such as `read_only`. The daemon is not
/// involved. For root only.
///
/// # Errors
/// `NotMounted` if no StitchFS mount is there, `Busy` if the mount becomes read-only while a file
/// is open for writing.
pub fn remount(path: &Path, options: &MountOptions) -> Result<(), MountError> {
    let path = absolute(path)?;
    if !table::find(&path)?.is_some_and(|entry| entry.is_ours()) {
        return Err(MountError::NotMounted { path });
    }
    direct::remount(&path, options)
}

/// Reports whether a FUSE mount at `path` has lost its daemon.
///
/// # Errors
/// When the table of mounts cannot be read.
pub fn is_dead(path: &Path) -> Result<bool, MountError> {
    let path = absolute(path)?;
    let is_fuse = table::find(&path)?.is_some_and(|entry| entry.is_fuse());
    let gone = [
        OsError::NOTCONN,
        // It ended during the call.
        OsError::CONNABORTED,
        // The same, with requests by `io_uring`.
        OsError::CANCELED,
    ];
    let error = rustix::fs::statfs(&path).err();
    Ok(is_fuse && error.is_some_and(|error| gone.contains(&error)))
}

/// Reports whether a file system with this device number exists, wherever it is mounted, or only
/// held by open files. Returns `None` if `/sys` does not tell.
#[must_use]
pub fn is_alive((major, minor): (u32, u32)) -> Option<bool> {
    let devices = Path::new("/sys/class/bdi");
    let device = devices.join(format!("{major}:{minor}"));
    devices.is_dir().then(|| device.exists())
}

/// Unmounts every FUSE mount at `path` that has lost its daemon, and returns their number.
///
/// # Errors
/// Those of unmounting.
pub fn detach_dead(path: &Path) -> Result<usize, MountError> {
    let path = absolute(path)?;
    let mut count = 0;
    while is_dead(&path)? {
        unmount(&path, Unmount::Lazy)?;
        count += 1;
    }
    Ok(count)
}

/// Returns the topmost mount at `path`, if any.
///
/// # Errors
/// When the table of mounts cannot be read.
pub fn mounted_at(path: &Path) -> Result<Option<MountEntry>, MountError> {
    table::find(&absolute(path)?)
}

/// Resolves links except in the last component, which may be a mount that does not respond.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |source| MountError::Io {
        op: "resolve",
        path: path.to_owned(),
        source,
    };
    if let (Some(name), Some(parent)) = (path.file_name(), path.parent()) {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        let candidate = parent.canonicalize().map_err(failed)?.join(name);
        let is_link = table::find(&candidate)?.is_none() && candidate.is_symlink();
        if !is_link {
            return Ok(candidate);
        }
    }
    path.canonicalize().map_err(failed)
}

fn check_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let absolute = match absolute(path) {
        Ok(absolute) => absolute,
        Err(MountError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(MountError::NoMountPoint {
                path: path.to_owned(),
            });
        }
        Err(other) => return Err(other),
    };
    if is_dead(&absolute)? {
        return Err(MountError::Dead { path: absolute });
    }
    match std::fs::metadata(&absolute) {
        Ok(metadata) if metadata.is_dir() => Ok(absolute),
        Ok(_) => Err(MountError::NotADirectory { path: absolute }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(MountError::NoMountPoint { path: absolute })
        }
        Err(source) => Err(MountError::Io {
            op: "stat",
            path: absolute,
            source,
        }),
    }
}
