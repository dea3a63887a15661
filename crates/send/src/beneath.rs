//! Files beneath a directory, by paths of any length, and never through symbolic links.

use crate::SendError;
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Longest path that one system call is given; the kernel takes 4095 bytes.
const CALL_PATH_BYTES_MAX: usize = 4000;
const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// A directory, and what is beneath it.
#[derive(Debug)]
pub(crate) struct Root {
    dir: OwnedFd,
    place: PathBuf,
}

/// The directory that a name is in, and the name.
#[derive(Debug)]
pub(crate) struct Parent<'a> {
    pub(crate) dir: OwnedFd,
    pub(crate) name: &'a OsStr,
}

impl Parent<'_> {
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// A short path of the name, for calls that take no directory.
    pub(crate) fn short_path(&self) -> PathBuf {
        let dir = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        Path::new(&dir).join(self.name)
    }
}

impl Root {
    pub(crate) fn open(place: &Path) -> Result<Self, SendError> {
        let dir = rustix::fs::open(place, DIR, Mode::empty());
        let dir = dir.map_err(|errno| SendError::io("open", place.to_owned(), errno))?;
        let place = place.to_owned();
        Ok(Self { dir, place })
    }

    pub(crate) const fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// The path as users know it.
    pub(crate) fn shown(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            return self.place.clone();
        }
        self.place.join(OsStr::from_bytes(path))
    }

    /// Returns an error about a path.
    pub(crate) fn error(&self, op: &'static str, path: &[u8], errno: Errno) -> SendError {
        SendError::io(op, self.shown(path), errno)
    }

    /// Opens a path; the empty one is the directory itself.
    pub(crate) fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut path = if path.is_empty() { b"." } else { path };
        let mut base: Option<OwnedFd> = None;
        while path.len() > CALL_PATH_BYTES_MAX {
            let slash = path[..CALL_PATH_BYTES_MAX]
                .iter()
                .rposition(|byte| *byte == b'/');
            let at = slash.ok_or(Errno::NAMETOOLONG)?;
            base = Some(resolve(
                base.as_ref().unwrap_or(&self.dir),
                &path[..at],
                DIR,
            )?);
            path = &path[at + 1..];
        }
        resolve(base.as_ref().unwrap_or(&self.dir), path, flags)
    }

    /// Opens the directory that a name is in. The directory itself is `.` in itself.
    pub(crate) fn parent<'a>(&self, path: &'a [u8]) -> Result<Parent<'a>, Errno> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None if path.is_empty() => (path, &b"."[..]),
            None => (&path[..0], path),
        };
        debug_assert!(!name.is_empty(), "paths do not end in a slash");
        let dir = self.open_at(above, DIR)?;
        let name = OsStr::from_bytes(name);
        Ok(Parent { dir, name })
    }

    pub(crate) fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_at(path, DIR)
    }

    pub(crate) fn open_file(&self, path: &[u8]) -> Result<std::fs::File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(self.open_at(path, flags)?.into())
    }

    pub(crate) fn stat(&self, path: &[u8]) -> Result<Stat, Errno> {
        self.parent(path)?.stat()
    }
}

fn resolve(base: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath)
}
