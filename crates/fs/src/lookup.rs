//! From names to inodes.

use crate::system::FileSystem;
use crate::{Attr, DirName, FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

impl FileSystem {
    /// The inode of a name (`.` and `..` too). Counts a lookup.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDir`], [`FsError::NameTooLong`], [`FsError::Stale`].
    ///
    /// # Cost
    /// One point read, none if the name is known to be missing (see [`FsOptions::names_bytes`]);
    /// one more if the inode has several names.
    ///
    /// [`FsOptions::names_bytes`]: crate::FsOptions::names_bytes
    pub fn lookup(&self, at: DirName<'_>) -> FsResult<Attr> {
        self.namespace().look_up(at, false)
    }

    /// As [`Self::lookup`], on the way along a path: a directory stays known for a while after it
    /// is forgotten, so that the next path that leads through it reads nothing.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    ///
    /// # Cost
    /// As [`Self::lookup`]; no read of a directory that paths led through lately.
    pub fn step(&self, at: DirName<'_>) -> FsResult<Attr> {
        self.namespace().look_up(at, true)
    }

    /// Attributes of what a name stands for. Counts no lookup.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    ///
    /// # Cost
    /// As [`Self::lookup`].
    pub fn stat(&self, at: DirName<'_>) -> FsResult<Attr> {
        if let Some(ino) = self.namespace().dots(at)? {
            return self.get_attr(ino);
        }
        let _names = self.residents.locks.dir_read(at.parent);
        let dentry = self.namespace().dentry(at)?;
        self.namespace().attr_of(at, &dentry)
    }

    /// The number of the inode of a name, if there is one. Counts no lookup.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    ///
    /// # Cost
    /// One point read at most.
    pub fn peek(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        let _names = self.residents.locks.dir_read(at.parent);
        Ok(self.namespace().find_dentry(at)?.map(|dentry| dentry.ino))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is none; [`FsError::Stale`].
    pub fn read_link(&self, ino: Ino) -> FsResult<Bytes> {
        let target = {
            let _inode = self.residents.locks.inode_read(ino);
            let inode = self.residents.inodes.get(ino)?;
            if inode.head.kind != FileKind::Symlink {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            self.note_contents_read(ino)?;
            self.store.tail(&inode)?
        };
        self.touch_atime(ino);
        Ok(target)
    }
}
