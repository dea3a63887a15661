//! Files beneath a directory, by paths from it on, and never through symbolic links.
//!
//! [`Beneath`] is all that reading a tree and applying a stream need of a file system: by system
//! calls it is [`Host`], and a simulation can have its own. The empty path is the directory itself;
//! other paths have no slash at their ends. No call follows a symbolic link.

use crate::SendError;
use crate::host::Host;
use crate::tree::Node;
use crate::xattrs::Xattrs;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Attributes of a file, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Number of the file system that the file is in.
    pub file_system: u64,
    /// Number of its inode.
    pub ino: u64,
    /// Attributes.
    pub node: Node,
}

impl FileStat {
    pub(crate) fn kind(&self) -> FileType {
        self.node.kind()
    }
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// Reads.
    Reading,
    /// Writes. The file exists.
    Writing,
}

/// Files beneath a directory. Errors are those of the system calls of the same names.
#[expect(clippy::missing_errors_doc, reason = "errno(3) has them")]
pub trait Beneath: Debug + Send + Sync {
    /// Returns the attributes of a file.
    fn stat(&self, path: &[u8]) -> Result<FileStat, Errno>;

    /// Returns the names in a directory, without `.` and `..`, and the attributes of the files.
    fn entries(&self, dir: &[u8]) -> Result<Vec<(Vec<u8>, FileStat)>, Errno>;

    /// Reports whether the caller may read a file, or list a directory and look up names in it.
    fn is_readable(&self, path: &[u8], node: &Node) -> bool;

    /// Returns the target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Returns the extended attributes of a file whose names are wanted. A file system without
    /// attributes has none.
    fn xattrs(&self, path: &[u8], is_wanted: fn(&[u8]) -> bool) -> Result<Xattrs, Errno>;

    /// Returns one extended attribute.
    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Opens a regular file; `INVAL` if it is of another kind.
    fn open(&self, path: &[u8], mode: OpenFor) -> Result<Box<dyn OpenFile>, Errno>;

    /// Creates a directory that its owner alone can use.
    fn make_dir(&self, path: &[u8]) -> Result<(), Errno>;

    /// Creates an empty file that its owner alone can use.
    fn make_file(&self, path: &[u8]) -> Result<(), Errno>;

    /// Creates a symbolic link.
    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno>;

    /// Creates a device node, a pipe or a socket.
    fn make_node(&self, path: &[u8], kind: FileType, device: u64) -> Result<(), Errno>;

    /// Gives a file one more name.
    fn link(&self, existing: &[u8], path: &[u8]) -> Result<(), Errno>;

    /// Renames a file to a name that does not exist.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno>;

    /// Renames a file. One that has the new name is replaced.
    fn replace(&self, from: &[u8], to: &[u8]) -> Result<(), Errno>;

    /// Removes a name of a file that is no directory.
    fn remove(&self, path: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &[u8]) -> Result<(), Errno>;

    /// Sets the mode of what is no symbolic link, by the bits of `chmod`.
    fn set_mode(&self, path: &[u8], mode: u32) -> Result<(), Errno>;

    /// Sets user and group.
    fn set_owner(&self, path: &[u8], user: u32, group: u32) -> Result<(), Errno>;

    /// Sets the times of access and modification, in nanoseconds since 1970.
    fn set_times(&self, path: &[u8], accessed: i64, modified: i64) -> Result<(), Errno>;

    /// Sets an extended attribute, whether it exists or not.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), Errno>;

    /// Makes all names and attributes durable, and contents if [`Self::syncs_contents`].
    fn sync(&self) -> Result<(), Errno>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &[u8]) -> Result<(), Errno>;

    /// Reports whether [`Self::sync`] makes contents durable. Else each file needs its own sync.
    fn syncs_contents(&self) -> bool;

    /// Reports whether the caller can give files to others.
    fn is_privileged(&self) -> bool;
}

/// A file that is open.
#[expect(clippy::missing_errors_doc, reason = "errno(3) has them")]
pub trait OpenFile: Send {
    /// Reads some bytes at an offset; none at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes all bytes at an offset.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Errno>;

    /// Returns the length in bytes.
    fn size(&self) -> Result<u64, Errno>;

    /// Sets the length in bytes.
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Makes a hole of a range, and leaves the size as it is.
    fn punch(&self, offset: u64, len_bytes: u64) -> Result<(), Errno>;

    /// Returns the offset of the next data; `NXIO` if there are none.
    fn next_data(&self, offset: u64) -> Result<u64, Errno>;

    /// Returns the offset of the next hole. The end of the file is one.
    fn next_hole(&self, offset: u64) -> Result<u64, Errno>;

    /// Makes contents and attributes durable.
    fn sync(&self) -> Result<(), Errno>;

    /// Returns the file of the host, if it is one.
    fn as_file(&mut self) -> Option<&mut File>;
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub(crate) fn read_full(
    file: &dyn OpenFile,
    buffer: &mut [u8],
    offset: u64,
) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    debug_assert!(filled <= buffer.len(), "no more than was asked for");
    Ok(filled)
}

/// A directory, and what is beneath it.
#[derive(Debug)]
pub struct Root {
    files: Box<dyn Beneath>,
    place: PathBuf,
}

impl Root {
    /// A directory that messages call by this path.
    #[must_use]
    pub fn new(files: Box<dyn Beneath>, place: PathBuf) -> Self {
        Self { files, place }
    }

    /// Opens a directory of the host.
    pub(crate) fn open(place: &Path) -> Result<Self, SendError> {
        let host = Host::open(place)?;
        Ok(Self::new(Box::new(host), place.to_owned()))
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

    pub(crate) fn open_file(&self, path: &[u8]) -> Result<Box<dyn OpenFile>, Errno> {
        self.files.open(path, OpenFor::Reading)
    }
}

impl std::ops::Deref for Root {
    type Target = dyn Beneath;

    fn deref(&self) -> &Self::Target {
        &*self.files
    }
}
