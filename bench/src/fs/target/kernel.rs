//! A mounted file system, by system calls.

use super::{Entries, OpenFile, Stat, Target};
use anyhow::{Context as _, Result};
use rustix::fs::{self as sys, AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A mounted file system. Paths are walked from its root, which is held open.
#[derive(Debug)]
pub(crate) struct Kernel {
    root: OwnedFd,
    /// The file system that keeps what it is given, if that is another.
    below: Option<OwnedFd>,
}

impl Kernel {
    /// The file system that is mounted at `path`, over the one at `below` if there is one.
    pub(crate) fn open(path: &Path, below: Option<&Path>) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| {
            let fd = sys::openat(CWD, path, flags, Mode::empty());
            fd.with_context(|| path.display().to_string())
        };
        Ok(Self {
            root: open(path)?,
            below: below.map(open).transpose()?,
        })
    }

    fn open_file(&self, path: &str, flags: OFlags) -> Result<File> {
        let mode = Mode::from_raw_mode(0o644);
        let fd = sys::openat(&self.root, path, flags | OFlags::CLOEXEC, mode);
        Ok(File::from(fd.with_context(|| path.to_owned())?))
    }
}

fn stat_of(stat: &sys::Stat) -> Stat {
    Stat {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        perm: stat.st_mode & 0o7777,
        mtime_s: stat.st_mtime,
    }
}

impl Target for Kernel {
    fn create(&self, path: &str) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.open_file(path, flags).map(drop)
    }

    fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(self.open_file(path, flags)?.write_all(data)?)
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        sys::mkdirat(&self.root, path, mode).with_context(|| path.to_owned())
    }

    fn unlink(&self, path: &str) -> Result<()> {
        sys::unlinkat(&self.root, path, AtFlags::empty()).with_context(|| path.to_owned())
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        sys::unlinkat(&self.root, path, AtFlags::REMOVEDIR).with_context(|| path.to_owned())
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        sys::renameat(&self.root, source, &self.root, target).with_context(|| source.to_owned())
    }

    fn stat(&self, path: &str) -> Result<Option<Stat>> {
        match sys::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat_of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).with_context(|| path.to_owned()),
        }
    }

    fn set_perm(&self, path: &str, perm: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(perm);
        sys::chmodat(&self.root, path, mode, AtFlags::empty()).with_context(|| path.to_owned())
    }

    fn set_times(&self, path: &str, seconds: i64) -> Result<()> {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        sys::utimensat(&self.root, path, &times, AtFlags::empty()).with_context(|| path.to_owned())
    }

    fn list(&self, path: &str, is_plus: bool, see: &mut Entries<'_>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            sys::openat(&self.root, path, flags, Mode::empty()).with_context(|| path.to_owned())?;
        for entry in sys::Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match is_plus {
                true => Some(stat_of(&sys::statat(
                    &dir,
                    name,
                    AtFlags::SYMLINK_NOFOLLOW,
                )?)),
                false => None,
            };
            see(name.to_bytes(), stat);
        }
        Ok(())
    }

    fn read(&self, path: &str, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mut file = self.open_file(path, OFlags::RDONLY)?;
        let mut piece = [0; 4096];
        loop {
            let len = file.read(&mut piece)?;
            out.extend_from_slice(&piece[..len]);
            if len < piece.len() {
                return Ok(());
            }
        }
    }

    fn open(&self, path: &str, is_new: bool) -> Result<Box<dyn OpenFile>> {
        let flags = match is_new {
            true => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            false => OFlags::RDWR,
        };
        Ok(Box::new(self.open_file(path, flags)?))
    }

    fn open_to_read(&self, path: &str) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(self.open_file(path, OFlags::RDONLY)?))
    }

    fn sync(&self) -> Result<()> {
        // FUSE mounts are told of the second only.
        sys::syncfs(&self.root)?;
        sys::fsync(&self.root)?;
        Ok(self.below.as_ref().map_or(Ok(()), sys::syncfs)?)
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl OpenFile for File {
    fn read_at(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> Result<()> {
        // It keeps its length from one call to the next: nothing is cleared.
        out.resize(len, 0);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            match FileExt::read_at(self, &mut out[done..], at)? {
                0 => break,
                more => done += more,
            }
        }
        out.truncate(done);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}
