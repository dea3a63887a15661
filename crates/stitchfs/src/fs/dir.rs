//! A directory to start paths from: what is read.

use super::entries::Entries;
use super::file::File;
use super::hold::{Hold, Last};
use crate::StoreError;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::{Attr, Caller, FileKind, FsError};

/// An open directory. Paths of its calls start here.
///
/// It stays the same directory when it is renamed. Once removed, it is empty and takes nothing.
pub struct Dir {
    pub(super) hold: Hold,
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dir")
            .field("ino", &self.hold.ino())
            .finish_non_exhaustive()
    }
}

impl Dir {
    pub(super) const fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// none.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let (hold, attr) = self.hold.find(path.as_ref())?;
        match attr.kind {
            FileKind::Directory => Ok(Self { hold }),
            _ => Err(FsError::NotDir.into()),
        }
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// no regular file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, StoreError> {
        let (hold, attr) = self.hold.find(path.as_ref())?;
        match attr.kind {
            FileKind::Regular => Ok(File::new(hold)),
            FileKind::Directory => Err(FsError::IsDir.into()),
            _ => Err(FsError::Invalid("not a regular file").into()),
        }
    }

    /// All that is in a file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, StoreError> {
        let fs = &self.hold.open().fs;
        self.hold.with(path.as_ref(), Last::Followed, |attr| {
            let mut out = Vec::new();
            fs.read(attr.ino, 0, usize::MAX, &mut out)?;
            Ok(out)
        })
    }

    /// Attributes of what is there, links followed.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr, StoreError> {
        self.hold.stat(path.as_ref(), Last::Followed)
    }

    /// Attributes of what is there, be it a link.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn stat_link(&self, path: impl AsRef<Path>) -> Result<Attr, StoreError> {
        self.hold.stat(path.as_ref(), Last::Itself)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// none.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, StoreError> {
        let fs = &self.hold.open().fs;
        self.hold.with(path.as_ref(), Last::Itself, |attr| {
            let target = fs.read_link(attr.ino)?;
            Ok(PathBuf::from(OsString::from_vec(target.to_vec())))
        })
    }

    /// Lists a directory with the attributes of its entries, without `.` and `..`. What is made or
    /// removed meanwhile may be among them or not; everything else comes once.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// no directory. The iterator gives those of reading.
    ///
    /// # Cost
    /// A scan for each 256 entries; nothing else for files of one name.
    pub fn entries(&self, path: impl AsRef<Path>) -> Result<Entries, StoreError> {
        Ok(Entries::new(self.open_dir(path)?.hold))
    }

    /// An extended attribute.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>, StoreError> {
        let fs = &self.hold.open().fs;
        self.hold.with(path.as_ref(), Last::Followed, |attr| {
            let value = fs.get_xattr(&Caller::ROOT, attr.ino, name.as_bytes())?;
            Ok(value.to_vec())
        })
    }
}
