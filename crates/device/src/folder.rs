//! A folder of plain files that a store keeps beside itself. Names have one or two components.
//!
//! Files are opened on demand, and a bounded number stays open. Any of them may be closed at any
//! time: a sync through another descriptor makes the same bytes durable.

use crate::DeviceError;
use crate::counter::Request;
use crate::file::{allocate_range, punch_range, sync_parent, write_zeros};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use stitch_base::sync::{Arc, Mutex};

/// Number of files that stay open, if the process's limit allows it.
const OPEN_MAX: usize = 256;
/// One in this many of the files that the process may have open belongs to the folder.
const LIMIT_SHARE: u64 = 4;

/// Returns the number of files that stay open under a limit of the process.
fn open_max(limit: Option<u64>) -> usize {
    let share = limit.map_or(OPEN_MAX as u64, |limit| limit / LIMIT_SHARE);
    usize::try_from(share).map_or(OPEN_MAX, |share| share.clamp(1, OPEN_MAX))
}

/// A folder of plain files. Threads may share it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    is_read_only: bool,
    open_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<String, (Arc<File>, u64)>,
    uses: u64,
}

impl Folder {
    /// Opens the folder at a path.
    ///
    /// # Errors
    /// [`DeviceError::Io`] if the folder does not exist.
    pub fn open(path: &Path, is_read_only: bool) -> Result<Self, DeviceError> {
        std::fs::read_dir(path).map_err(|e| failed("open", path, 0, 0, e))?;
        Ok(Self {
            path: path.to_owned(),
            is_read_only,
            open_max: open_max(getrlimit(Resource::Nofile).current),
            open: Mutex::default(),
        })
    }

    /// Creates a folder that only its owner may enter, and makes its name durable. An existing
    /// folder stays as it is.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn create(path: &Path) -> Result<Self, DeviceError> {
        make_dir(path).map_err(|e| failed("open", path, 0, 0, e))?;
        Self::open(path, false)
    }

    /// Returns the path of a file.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn failed(&self, op: &'static str, name: &str, at: u64, len: u64, e: io::Error) -> DeviceError {
        failed(op, &self.path(name), at, len, e)
    }

    fn file(&self, name: &str) -> Result<Arc<File>, DeviceError> {
        {
            let mut open = self.open.lock();
            open.uses += 1;
            let now = open.uses;
            if let Some((file, used)) = open.files.get_mut(name) {
                *used = now;
                return Ok(Arc::clone(file));
            }
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(!self.is_read_only)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.path(name));
        let file = Arc::new(opened.map_err(|e| self.failed("open", name, 0, 0, e))?);
        self.keep(name, &file);
        Ok(file)
    }

    fn keep(&self, name: &str, file: &Arc<File>) {
        let mut open = self.open.lock();
        if open.files.len() >= self.open_max {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                open.files.remove(&oldest);
            }
        }
        let now = open.uses;
        open.files.insert(name.to_owned(), (Arc::clone(file), now));
    }

    /// Creates an empty file, and the subfolder of its name.
    ///
    /// # Errors
    /// [`DeviceError::Io`], of the kind `Exists` if the file exists.
    pub fn make(&self, name: &str) -> Result<(), DeviceError> {
        let path = self.path(name);
        let make = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(&path)
        };
        let mut made = make();
        if made
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            made = self.make_parent(name).and_then(|()| make());
        }
        let file = made.map_err(|e| self.failed("open", name, 0, 0, e))?;
        self.keep(name, &Arc::new(file));
        Ok(())
    }

    fn make_parent(&self, name: &str) -> io::Result<()> {
        match name.split_once('/') {
            Some((parent, _)) => make_dir(&self.path(parent)),
            None => Ok(()),
        }
    }

    /// Appends the bytes of `[offset, offset + len)` that exist to `out`. Returns their number.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn read_at(
        &self,
        name: &str,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, DeviceError> {
        let file = self.file(name)?;
        let base = out.len();
        out.resize(base + len, 0);
        let mut done = 0;
        while done < len {
            match file.read_at(&mut out[base + done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    out.truncate(base);
                    return Err(self.failed("read", name, offset, len as u64, e));
                }
            }
        }
        out.truncate(base + done);
        Ok(done)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; any part may have been written.
    pub fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let written = self.file(name)?.write_all_at(bytes, offset);
        written.map_err(|e| self.failed("write", name, offset, bytes.len() as u64, e))
    }

    /// Truncates a file, or extends it by a hole.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn set_len(&self, name: &str, len: u64) -> Result<(), DeviceError> {
        let set = self.file(name)?.set_len(len);
        set.map_err(|e| self.failed("shrink", name, len, 0, e))
    }

    /// Zeroes a range within a file, by a hole where the host can punch one.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn punch(&self, name: &str, offset: u64, len: u64) -> Result<(), DeviceError> {
        let file = self.file(name)?;
        let punched = match punch_range(&file, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&file, offset, offset + len),
            other => other.map_err(io::Error::from),
        };
        punched.map_err(|e| self.failed("discard", name, offset, len, e))
    }

    /// Allocates the space of a range, also beyond the end; length and contents stay. Does nothing
    /// on a host that cannot allocate.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn allocate(&self, name: &str, offset: u64, len: u64) -> Result<(), DeviceError> {
        let file = self.file(name)?;
        let allocated = allocate_range(&file, offset, len);
        allocated.map_err(|e| self.failed("write", name, offset, len, e))
    }

    /// Returns the offset of the next data at or after `offset`.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn seek_data(&self, name: &str, offset: u64) -> Result<Option<u64>, DeviceError> {
        self.seek(name, SeekFrom::Data(offset))
    }

    /// Returns the offset of the next hole at or after `offset`; the end counts as a hole.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn seek_hole(&self, name: &str, offset: u64) -> Result<Option<u64>, DeviceError> {
        self.seek(name, SeekFrom::Hole(offset))
    }

    fn seek(&self, name: &str, to: SeekFrom) -> Result<Option<u64>, DeviceError> {
        match rustix::fs::seek(&*self.file(name)?, to) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(self.failed("read", name, 0, 0, errno.into())),
        }
    }

    /// Length of a file in bytes.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn len(&self, name: &str) -> Result<u64, DeviceError> {
        let metadata = self.file(name)?.metadata();
        let metadata = metadata.map_err(|e| self.failed("open", name, 0, 0, e))?;
        Ok(metadata.len())
    }

    /// Returns the modification time by the host's clock, in nanoseconds; it wraps around.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn modified(&self, name: &str) -> Result<u64, DeviceError> {
        let metadata = self.file(name)?.metadata();
        let metadata = metadata.map_err(|e| self.failed("open", name, 0, 0, e))?;
        let seconds = metadata.mtime().cast_unsigned().wrapping_mul(1_000_000_000);
        Ok(seconds.wrapping_add(metadata.mtime_nsec().cast_unsigned()))
    }

    /// Opens a file for reading, with a descriptor of its own.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn open_file(&self, name: &str) -> Result<File, DeviceError> {
        self.open_with(name, OFlags::NOFOLLOW)
    }

    /// Opens a file for reading with direct I/O.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if the host does not support direct I/O.
    pub fn open_direct(&self, name: &str) -> Result<File, DeviceError> {
        self.open_with(name, OFlags::NOFOLLOW | OFlags::DIRECT)
    }

    fn open_with(&self, name: &str, flags: OFlags) -> Result<File, DeviceError> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed());
        let opened = options.open(self.path(name));
        opened.map_err(|e| self.failed("open", name, 0, 0, e))
    }

    /// Makes contents and length of a file durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]: what was not durable may be lost for good; never retry.
    pub fn sync(&self, name: &str) -> Result<(), DeviceError> {
        let synced = self.file(name)?.sync_data();
        synced.map_err(|e| self.failed("sync", name, 0, 0, e))
    }

    /// Makes contents, length and name of a file durable.
    ///
    /// # Errors
    /// The errors of [`Self::sync`].
    pub fn publish(&self, name: &str) -> Result<(), DeviceError> {
        self.sync(name)?;
        let synced = sync_parent(&self.path(name));
        synced.map_err(|e| self.failed("sync", name, 0, 0, e))
    }

    /// Removes a file. Succeeds if the file does not exist.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.open.lock().files.remove(name);
        match std::fs::remove_file(self.path(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("discard", name, 0, 0, e))
            }
            _ => Ok(()),
        }
    }

    /// Moves a file to another name, whose subfolder is created. Both names are durable when this
    /// returns.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn rename(&self, name: &str, target: &str) -> Result<(), DeviceError> {
        self.open.lock().files.remove(name);
        let (from, to) = (self.path(name), self.path(target));
        let moved = self
            .make_parent(target)
            .and_then(|()| std::fs::rename(&from, &to))
            .and_then(|()| sync_parent(&to))
            .and_then(|()| sync_parent(&from));
        moved.map_err(|e| self.failed("open", name, 0, 0, e))
    }

    /// Lists the files of all subfolders: names with their subfolders, and lengths. The order is
    /// arbitrary.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn list(&self) -> Result<Vec<(String, u64)>, DeviceError> {
        let failed = |e| self.failed("open", "", 0, 0, e);
        let mut found = Vec::new();
        for folder in std::fs::read_dir(&self.path).map_err(failed)? {
            let folder = folder.map_err(failed)?;
            if !folder.file_type().map_err(failed)?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(folder.path()).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let metadata = entry.metadata().map_err(failed)?;
                let (folder, name) = (folder.file_name(), entry.file_name());
                if let (true, Some(folder), Some(name)) =
                    (metadata.is_file(), folder.to_str(), name.to_str())
                {
                    found.push((format!("{folder}/{name}"), metadata.len()));
                }
            }
        }
        Ok(found)
    }

    /// Returns the free space of the host's file system in bytes.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        let stat = rustix::fs::statvfs(&self.path);
        let stat = stat.map_err(|e| self.failed("open", "", 0, 0, e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

fn failed(
    op: &'static str,
    path: &Path,
    at: u64,
    len_bytes: u64,
    source: io::Error,
) -> DeviceError {
    let name = path.display().to_string();
    Request::new(op, at, len_bytes).failed(&name, source)
}

/// Creates a directory and makes its name durable.
fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_parent(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use stitch_base::ErrorKind;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(&dir.path().join("files")).unwrap();
        (dir, folder)
    }

    #[test]
    fn files_are_made_written_read_cut_and_removed() {
        let (_dir, folder) = folder();
        folder.make("ab/one").unwrap();
        assert_eq!(folder.make("ab/one").unwrap_err().kind(), ErrorKind::Exists);
        folder.write_at("ab/one", 3, b"text").unwrap();
        folder.publish("ab/one").unwrap();
        let mut out = vec![9];
        assert_eq!(folder.read_at("ab/one", 2, 100, &mut out).unwrap(), 5);
        assert_eq!(out, b"\x09\0text");
        folder.set_len("ab/one", 4).unwrap();
        assert_eq!(folder.len("ab/one").unwrap(), 4);
        assert_eq!(folder.list().unwrap(), [("ab/one".to_owned(), 4)]);
        folder.rename("ab/one", "aside/one").unwrap();
        assert_eq!(
            folder.len("ab/one").unwrap_err().kind(),
            ErrorKind::NotFound
        );
        folder.remove("aside/one").unwrap();
        folder.remove("aside/one").unwrap();
        assert_eq!(folder.list().unwrap(), []);
    }

    #[test]
    fn holes_are_punched_and_found() {
        let (_dir, folder) = folder();
        folder.make("f").unwrap();
        folder.write_at("f", 0, &[7; 3 * 4096]).unwrap();
        folder.punch("f", 4096, 4096).unwrap();
        let mut out = Vec::new();
        folder.read_at("f", 4095, 4098, &mut out).unwrap();
        assert_eq!((out[0], out[4097]), (7, 7));
        assert!(out[1..4097].iter().all(|&byte| byte == 0));
        let hole = folder.seek_hole("f", 0).unwrap();
        assert!(hole == Some(4096) || hole == Some(3 * 4096), "{hole:?}");
        assert_eq!(folder.seek_data("f", 9000).unwrap(), Some(9000));
        assert_eq!(folder.seek_data("f", 3 * 4096).unwrap(), None);
    }

    #[test]
    fn allocated_ranges_have_space_and_no_contents() {
        let (dir, folder) = folder();
        folder.make("f").unwrap();
        folder.write_at("f", 0, b"x").unwrap();
        folder.allocate("f", 0, 1 << 20).unwrap();
        let metadata = std::fs::metadata(dir.path().join("files/f")).unwrap();
        assert_eq!(metadata.len(), 1);
        // A host that cannot allocate leaves the file empty.
        if metadata.blocks() <= 8 {
            return;
        }
        assert!(metadata.blocks() >= 2048, "{}", metadata.blocks());
        let error = folder.allocate("f", 0, 1 << 60).unwrap_err();
        assert!(matches!(error, DeviceError::Io { .. }), "{error}");
    }

    #[test]
    fn only_its_owner_may_enter_and_few_files_stay_open() {
        let (dir, folder) = folder();
        let mode = std::fs::metadata(dir.path().join("files"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        for number in 0..OPEN_MAX + 20 {
            let name = format!("{}/{number}", number % 3);
            folder.make(&name).unwrap();
            folder.write_at(&name, 0, &[1]).unwrap();
        }
        assert_eq!(folder.open.lock().files.len(), folder.open_max);
        assert_eq!(folder.len("0/0").unwrap(), 1, "the oldest is opened again");
        assert!(folder.free_bytes().unwrap() > 0);
    }

    #[test]
    fn few_files_stay_open_where_the_process_may_have_few() {
        assert_eq!(
            [None, Some(1 << 20), Some(24), Some(3)].map(open_max),
            [OPEN_MAX, OPEN_MAX, 6, 1]
        );
    }

    #[test]
    fn read_only_nothing_is_written() {
        let (dir, folder) = folder();
        folder.make("a/f").unwrap();
        let folder = Folder::open(&dir.path().join("files"), true).unwrap();
        assert!(folder.write_at("a/f", 0, &[1]).is_err());
        assert_eq!(folder.len("a/f").unwrap(), 0);
        assert!(Folder::open(&dir.path().join("none"), true).is_err());
    }
}
