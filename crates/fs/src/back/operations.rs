//! What a file system offers of file handles. Numbers are resolved by [`NumberLookup`],
//! and by [`ShownLookup`] where one directory is shown.

use super::NumberLookup;
use super::below::ShownLookup;
#[cfg(doc)]
use crate::FsError;
use crate::system::FileSystem;
use crate::{Attr, FsResult};
use stitch_base::Ino;

impl FileSystem {
    /// The inode of a number, as a file handle has it; counts a lookup. The inode need not be
    /// known.
    ///
    /// # Errors
    /// [`FsError::Stale`] for a number that no inode has, or an inode without a name;
    /// [`FsError::NoSpace`] where back rows are not complete and there is no room for them.
    ///
    /// # Cost
    /// None for an inode that is known. Otherwise two point reads and a scan of one name, for it
    /// and for each directory above it that is not known. The first call that finds nothing runs a
    /// pass over all names, once in the life of a store. A file system that is read-only, and a
    /// transaction, has no pass: what has no back row is stale.
    pub fn look_up_number(&self, ino: Ino) -> FsResult<Attr> {
        NumberLookup::of(self).look_up(ino)
    }

    /// The inode of a number, as [`Self::look_up_number`] returns it, in a view that shows the
    /// directory `top` alone.
    ///
    /// # Errors
    /// As [`Self::look_up_number`]; [`FsError::Stale`] for an inode outside of the directory. A
    /// file whose several names are all outside is refused only where the view does not have its
    /// contents.
    ///
    /// # Cost
    /// As [`Self::look_up_number`], for the inode and for its directory. For a file with several
    /// names the engine lists its trees.
    pub fn look_up_number_below(&self, top: Ino, ino: Ino) -> FsResult<Attr> {
        ShownLookup::of(self).look_up(top, ino)
    }

    /// Generation of all inode numbers, to stand beside them in file handles: another file system
    /// has another one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.store.header.generation()
    }
}
