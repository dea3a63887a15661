//! Files of the host, by system calls. Paths can be of any length.

use crate::SendError;
use crate::beneath::{Beneath, FileStat, OpenFile, OpenFor};
use crate::tree::Node;
use crate::xattrs::{self, Xattrs};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{
    Access, AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags,
    ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Longest path that one system call is given; the kernel takes 4095 bytes.
const CALL_PATH_BYTES_MAX: usize = 4000;
const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);
const SECOND_NS: i64 = 1_000_000_000;
/// `f_type` of FUSE.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// A directory of the host.
#[derive(Debug)]
pub(crate) struct Host {
    dir: OwnedFd,
    is_locked: bool,
}

/// The directory that a name is in, and the name.
struct Parent<'a> {
    dir: OwnedFd,
    name: &'a OsStr,
}

impl Parent<'_> {
    fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// A short path of the name, for calls that take no directory.
    fn short_path(&self) -> PathBuf {
        let dir = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        Path::new(&dir).join(self.name)
    }
}

impl Host {
    pub(crate) fn open(place: &Path) -> Result<Self, SendError> {
        let dir = rustix::fs::open(place, DIR, Mode::empty());
        let dir = dir.map_err(|errno| SendError::io("open", place.to_owned(), errno))?;
        let is_locked = false;
        Ok(Self { dir, is_locked })
    }

    /// Opens a directory that no other process receives into meanwhile.
    pub(crate) fn open_locked(place: &Path) -> Result<Self, SendError> {
        let mut host = Self::open(place)?;
        match rustix::fs::flock(&host.dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => host.is_locked = true,
            Err(Errno::WOULDBLOCK) => {
                return Err(SendError::refused(format!(
                    "{}: another stream is being received there",
                    place.display()
                )));
            }
            Err(errno) => return Err(SendError::io("lock", place.to_owned(), errno)),
        }
        Ok(host)
    }

    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
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
    fn parent<'a>(&self, path: &'a [u8]) -> Result<Parent<'a>, Errno> {
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
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_locked {
            // A child that was forked meanwhile may share the descriptor: closing is not enough.
            let _ = rustix::fs::flock(&self.dir, FlockOperation::Unlock);
        }
    }
}

fn resolve(base: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath)
}

fn stat_of(stat: &Stat) -> FileStat {
    let nanos = |seconds: i64, nanos: u64| {
        let nanos = i64::try_from(nanos).unwrap_or_default();
        seconds.saturating_mul(SECOND_NS).saturating_add(nanos)
    };
    let node = Node {
        mode: stat.st_mode,
        user: stat.st_uid,
        group: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        device: stat.st_rdev,
        accessed: nanos(stat.st_atime, stat.st_atime_nsec),
        modified: nanos(stat.st_mtime, stat.st_mtime_nsec),
        changed: nanos(stat.st_ctime, stat.st_ctime_nsec),
    };
    FileStat {
        file_system: stat.st_dev,
        ino: stat.st_ino,
        node,
    }
}

const fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(SECOND_NS),
        tv_nsec: ns.rem_euclid(SECOND_NS),
    }
}

impl Beneath for Host {
    fn stat(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.parent(path)?.stat().map(|stat| stat_of(&stat))
    }

    fn entries(&self, dir: &[u8]) -> Result<Vec<(Vec<u8>, FileStat)>, Errno> {
        let dir = self.open_at(dir, DIR)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            debug_assert!(
                !name.to_bytes().contains(&b'/'),
                "a name is of one directory"
            );
            entries.push((name.to_bytes().to_vec(), stat_of(&stat)));
        }
        Ok(entries)
    }

    fn is_readable(&self, path: &[u8], node: &Node) -> bool {
        let access = match node.kind() {
            FileType::Directory => Access::READ_OK | Access::EXEC_OK,
            FileType::RegularFile => Access::READ_OK,
            _ => return true,
        };
        let allowed = self.parent(path).and_then(|parent| {
            rustix::fs::accessat(&parent.dir, parent.name, access, AtFlags::EACCESS)
        });
        !matches!(allowed, Err(Errno::ACCESS | Errno::PERM))
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let parent = self.parent(path)?;
        let target = rustix::fs::readlinkat(&parent.dir, parent.name, Vec::new())?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, path: &[u8], is_wanted: fn(&[u8]) -> bool) -> Result<Xattrs, Errno> {
        let parent = self.parent(path)?;
        let short = parent.short_path();
        let mut found = Xattrs::new();
        let names = xattrs::names(&short)?.into_iter();
        for name in names.filter(|name| is_wanted(name)) {
            match xattrs::value(&short, &name) {
                Ok(value) => drop(found.insert(name, value)),
                Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(found)
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
        debug_assert!(!name.is_empty(), "attributes have names");
        xattrs::value(&self.parent(path)?.short_path(), name)
    }

    fn open(&self, path: &[u8], mode: OpenFor) -> Result<Box<dyn OpenFile>, Errno> {
        let flags = match mode {
            OpenFor::Reading => OFlags::RDONLY,
            OpenFor::Writing => OFlags::WRONLY | OFlags::NONBLOCK,
        };
        let file = self.open_at(path, flags | OFlags::NOFOLLOW)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        match kind {
            FileType::RegularFile => Ok(Box::new(File::from(file))),
            _ => Err(Errno::INVAL),
        }
    }

    fn make_dir(&self, path: &[u8]) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself exists");
        let parent = self.parent(path)?;
        rustix::fs::mkdirat(&parent.dir, parent.name, Mode::RWXU)
    }

    fn make_file(&self, path: &[u8]) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself is no file");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let parent = self.parent(path)?;
        rustix::fs::openat(&parent.dir, parent.name, flags, OWNER).map(drop)
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself is no link");
        let parent = self.parent(path)?;
        rustix::fs::symlinkat(target, &parent.dir, parent.name)
    }

    fn make_node(&self, path: &[u8], kind: FileType, device: u64) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself is no node");
        debug_assert_ne!(kind, FileType::Directory, "mkdir(2) creates those");
        let parent = self.parent(path)?;
        rustix::fs::mknodat(&parent.dir, parent.name, kind, OWNER, device)
    }

    fn link(&self, existing: &[u8], path: &[u8]) -> Result<(), Errno> {
        debug_assert_ne!(existing, path, "a link is one more name");
        let (from, to) = (self.parent(existing)?, self.parent(path)?);
        rustix::fs::linkat(&from.dir, from.name, &to.dir, to.name, AtFlags::empty())
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        debug_assert_ne!(from, to, "a move has two places");
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&from.dir, from.name, &to.dir, to.name, flags) {
            // A file system that does not know the flag.
            Err(Errno::INVAL) if to.stat().is_err() => {
                rustix::fs::renameat(&from.dir, from.name, &to.dir, to.name)
            }
            other => other,
        }
    }

    fn replace(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        debug_assert_ne!(from, to, "a move has two places");
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        rustix::fs::renameat(&from.dir, from.name, &to.dir, to.name)
    }

    fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself stays");
        let parent = self.parent(path)?;
        rustix::fs::unlinkat(&parent.dir, parent.name, AtFlags::empty())
    }

    fn remove_dir(&self, path: &[u8]) -> Result<(), Errno> {
        debug_assert!(!path.is_empty(), "the directory itself stays");
        let parent = self.parent(path)?;
        rustix::fs::unlinkat(&parent.dir, parent.name, AtFlags::REMOVEDIR)
    }

    fn set_mode(&self, path: &[u8], mode: u32) -> Result<(), Errno> {
        let parent = self.parent(path)?;
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmodat(&parent.dir, parent.name, mode, AtFlags::empty())
    }

    fn set_owner(&self, path: &[u8], user: u32, group: u32) -> Result<(), Errno> {
        let parent = self.parent(path)?;
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&parent.dir, parent.name, Some(user), Some(group), flags)
    }

    fn set_times(&self, path: &[u8], accessed: i64, modified: i64) -> Result<(), Errno> {
        let parent = self.parent(path)?;
        let times = Timestamps {
            last_access: timespec(accessed),
            last_modification: timespec(modified),
        };
        rustix::fs::utimensat(&parent.dir, parent.name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
        debug_assert!(!name.is_empty(), "attributes have names");
        let parent = self.parent(path)?;
        rustix::fs::lsetxattr(parent.short_path(), name, value, XattrFlags::empty())
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), Errno> {
        debug_assert!(!name.is_empty(), "attributes have names");
        rustix::fs::lremovexattr(self.parent(path)?.short_path(), name)
    }

    /// syncfs(2) has the kernel write back its pages; FUSE file systems do not hear of it.
    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.dir)?;
        rustix::fs::fsync(&self.dir)
    }

    fn sync_dir(&self, path: &[u8]) -> Result<(), Errno> {
        rustix::fs::fsync(self.open_at(path, DIR)?)
    }

    fn syncs_contents(&self) -> bool {
        let is_fuse = rustix::fs::fstatfs(&self.dir)
            .is_ok_and(|found| u64::try_from(found.f_type) == Ok(FUSE_MAGIC));
        !is_fuse
    }

    fn is_privileged(&self) -> bool {
        rustix::process::geteuid().is_root()
    }
}

/// The number of an error of the standard library.
fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl OpenFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(self, &mut *buffer, offset))?;
        debug_assert!(count <= buffer.len(), "no more than was asked for");
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.write_all_at(data, offset).map_err(errno)
    }

    fn size(&self) -> Result<u64, Errno> {
        let stat = rustix::fs::fstat(self)?;
        Ok(stat.st_size.unsigned_abs())
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(self, size)
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self, flags, offset, len_bytes)
    }

    fn next_data(&self, offset: u64) -> Result<u64, Errno> {
        let found = rustix::fs::seek(self, SeekFrom::Data(offset))?;
        debug_assert!(found >= offset, "data before the offset are not looked for");
        Ok(found)
    }

    fn next_hole(&self, offset: u64) -> Result<u64, Errno> {
        let found = rustix::fs::seek(self, SeekFrom::Hole(offset))?;
        debug_assert!(
            found >= offset,
            "holes before the offset are not looked for"
        );
        Ok(found)
    }

    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(self)
    }

    fn as_file(&mut self) -> Option<&mut File> {
        Some(self)
    }
}
