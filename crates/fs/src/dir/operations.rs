//! What a file system offers of the entries of directories. They are read by [`DirReader`].

use super::{DirReader, Give, Take};
#[cfg(doc)]
use crate::FsError;
use crate::FsResult;
use crate::system::FileSystem;
use stitch_base::Ino;

impl FileSystem {
    /// Hands the entries of a directory after `offset` (0: from the start) to `take`, which must
    /// not call the file system.
    ///
    /// # Errors
    /// [`FsError::NotDir`], [`FsError::Stale`], [`FsError::Invalid`] for an offset that was never
    /// given, [`FsError::Unsupported`] in a transaction where a clone lies at the directory.
    ///
    /// # Cost
    /// One scan.
    pub fn read_dir(&self, ino: Ino, offset: u64, take: Take<'_>) -> FsResult<()> {
        self.list(ino, offset, take, Give::Names)
    }

    /// As [`Self::read_dir`], with the attributes of each entry but `.` and `..`. Counts no
    /// lookups.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    ///
    /// # Cost
    /// As [`Self::read_dir_plus`].
    pub fn read_dir_stat(&self, ino: Ino, offset: u64, take: Take<'_>) -> FsResult<()> {
        self.list(ino, offset, take, Give::Attrs)
    }

    /// As [`Self::read_dir`], with attributes and a lookup counted for each entry taken but `.` and
    /// `..`.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    ///
    /// # Cost
    /// One scan, and one point read for each inode with several names that is not known.
    pub fn read_dir_plus(&self, ino: Ino, offset: u64, take: Take<'_>) -> FsResult<()> {
        self.list(ino, offset, take, Give::Lookups)
    }

    fn list(&self, ino: Ino, offset: u64, take: Take<'_>, give: Give) -> FsResult<()> {
        if DirReader::of(self).walk(ino, offset, take, give)? {
            self.touch_atime(ino);
        }
        Ok(())
    }
}
