//! What a file system offers of attributes. They are changed by [`AttrChanges`].

use super::{AccessTimes, AttrChanges};
#[cfg(doc)]
use crate::FsError;
use crate::system::FileSystem;
use crate::{Attr, Caller, DirName, FileKind, FsResult, SetAttr, inode_flag};
use stitch_base::Ino;

impl FileSystem {
    /// Attributes, with the size that an atomic write gives a file.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn get_attr(&self, ino: Ino) -> FsResult<Attr> {
        if let Some(reads) = &self.reads {
            // All others were noted when they were looked up.
            if ino == Ino::ROOT {
                reads.note_own_inode(ino)?;
            }
        }
        let mut attr = Attr::of(&self.residents.inodes.head(ino)?);
        debug_assert_eq!(attr.ino, ino, "the inode of the number");
        attr.size = self.staged_size(ino).unwrap_or(attr.size);
        Ok(attr)
    }

    /// Changes attributes. Whether the caller may is checked elsewhere (by the kernel, or see
    /// [`Self::access`]), except for the rules of set-id bits.
    ///
    /// # Errors
    /// [`FsError::Perm`] for what is immutable or append-only; with a size [`FsError::IsDir`],
    /// [`FsError::Invalid`] for what has no size to set, [`FsError::FileTooBig`];
    /// [`FsError::NoSpace`], [`FsError::ReadOnly`], [`FsError::Stale`].
    ///
    /// # Cost
    /// One upsert that reads nothing; with a size a few messages more, whatever the sizes.
    pub fn set_attr(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = AttrChanges::of(self).set(caller, ino, set)?;
        debug_assert!(
            set.size.is_none_or(|size| attr.size == size),
            "the size is as it was asked for"
        );
        Ok(attr)
    }

    /// As [`Self::set_attr`], of what a name stands for, known or not; no size. `None` if that is a
    /// symbolic link: nothing is changed then. Counts no lookup.
    ///
    /// # Errors
    /// As [`Self::set_attr`] and [`Self::lookup`]; [`FsError::Invalid`] with a size.
    ///
    /// # Cost
    /// A point read of the name, one put or upsert.
    pub fn set_attr_at(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        set: &SetAttr,
    ) -> FsResult<Option<Attr>> {
        self.check_writable()?;
        let attr = AttrChanges::of(self).set_at(caller, at, set)?;
        debug_assert!(
            attr.is_none_or(|attr| attr.kind != FileKind::Symlink),
            "symbolic links stay as they are"
        );
        Ok(attr)
    }

    /// Flags as of `chattr`, see [`crate::inode_flag`]; others are dropped.
    ///
    /// # Errors
    /// [`FsError::Perm`] to change `IMMUTABLE` or `APPEND` without privilege, or flags of another
    /// owner's inode; [`FsError::Unsupported`] for what has no flags; [`FsError::ReadOnly`],
    /// [`FsError::Stale`].
    pub fn set_inode_flags(&self, caller: &Caller<'_>, ino: Ino, flags: u32) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = AttrChanges::of(self).set_flags(caller, ino, flags)?;
        debug_assert_eq!(
            attr.iflags,
            flags & inode_flag::ALL,
            "as they were asked for"
        );
        Ok(attr)
    }

    /// Notes that an inode was read, where the policy says so. Never fails: reading went well.
    /// Reports whether the time of access is another now.
    pub fn touch_atime(&self, ino: Ino) -> bool {
        AccessTimes::of(self).touch(ino)
    }
}
