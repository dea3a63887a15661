//! The operations on names that a file system offers. Each refuses what a whole file system
//! refuses, and leaves the rest to [`Namespace`] or [`NameChanges`].

use super::Namespace;
use super::changes::NameChanges;
use super::make::{Kind, SYMLINK_BYTES_MAX};
use crate::system::FileSystem;
use crate::views::CloneRemoval;
use crate::{Attr, Caller, DirName, FsError, FsResult, NewNode, RenameMode};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

/// Refuses what cannot be the target of a symbolic link.
fn check_target(target: &[u8]) -> FsResult<()> {
    match target {
        b"" => Err(FsError::NotFound),
        _ if target.len() > SYMLINK_BYTES_MAX => Err(FsError::NameTooLong),
        _ if target.contains(&0) => Err(FsError::Invalid("a target has no zero byte")),
        _ => Ok(()),
    }
}

impl FileSystem {
    /// The inode of a name (`.` and `..` too). Counts a lookup.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDir`], [`FsError::NameTooLong`], [`FsError::Stale`];
    /// [`FsError::Unsupported`] in a transaction, of a name in a directory that a clone lies at.
    ///
    /// # Cost
    /// One point read, none if the name is known to be missing (see [`FsOptions::names_bytes`]);
    /// one more if the inode has several names.
    ///
    /// [`FsOptions::names_bytes`]: crate::FsOptions::names_bytes
    pub fn lookup(&self, at: DirName<'_>) -> FsResult<Attr> {
        let attr = Namespace::of(self).look_up(at, false)?;
        debug_assert!(
            at.name != b"." || attr.ino == at.parent,
            "`.` is the directory itself"
        );
        Ok(attr)
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
        Namespace::of(self).look_up(at, true)
    }

    /// Attributes of what a name stands for. Counts no lookup.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    ///
    /// # Cost
    /// As [`Self::lookup`].
    pub fn stat(&self, at: DirName<'_>) -> FsResult<Attr> {
        match Namespace::of(self).dots(at)? {
            Some(ino) => self.get_attr(ino),
            None => Namespace::of(self).stat(at),
        }
    }

    /// The number of the inode of a name, if there is one. Counts no lookup.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    ///
    /// # Cost
    /// One point read at most.
    pub fn peek(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        Namespace::of(self).peek(at)
    }

    /// Makes a regular file; counts a lookup.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NameTooLong`], [`FsError::NotDir`], [`FsError::NotFound`] in
    /// a directory that was removed, [`FsError::NoSpace`], [`FsError::ReadOnly`], [`FsError::Perm`]
    /// in a directory that is immutable, [`FsError::Unsupported`] as [`Self::lookup`].
    ///
    /// # Cost
    /// One point read of the name, unless it is known to be missing; one put, one upsert on the
    /// directory.
    pub fn create(&self, caller: &Caller<'_>, at: DirName<'_>, new: &NewNode) -> FsResult<Attr> {
        self.make_kind(caller, at, new, &Kind::of(FileKind::Regular))
    }

    /// Makes a directory; counts a lookup.
    ///
    /// # Errors
    /// As [`Self::create`]; [`FsError::TooManyLinks`].
    pub fn make_dir(&self, caller: &Caller<'_>, at: DirName<'_>, new: &NewNode) -> FsResult<Attr> {
        self.make_kind(caller, at, new, &Kind::of(FileKind::Directory))
    }

    /// Makes a regular file, fifo, socket or device; counts a lookup.
    ///
    /// # Errors
    /// As [`Self::create`]; [`FsError::Invalid`] for a kind that has its own operation.
    pub fn make_node(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        kind: FileKind,
        rdev: u32,
        new: &NewNode,
    ) -> FsResult<Attr> {
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            FileKind::Regular | FileKind::Fifo | FileKind::Socket => 0,
            FileKind::Directory | FileKind::Symlink => {
                return Err(FsError::Invalid("not made by mknod"));
            }
        };
        let kind = Kind {
            kind,
            rdev,
            target: &[],
        };
        self.make_kind(caller, at, new, &kind)
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes); counts a lookup.
    ///
    /// # Errors
    /// As [`Self::create`]; [`FsError::NameTooLong`] for the target too.
    pub fn make_symlink(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        target: &[u8],
    ) -> FsResult<Attr> {
        check_target(target)?;
        let new = NewNode {
            perm: 0o777,
            umask: 0,
        };
        let kind = Kind {
            kind: FileKind::Symlink,
            rdev: 0,
            target,
        };
        let attr = self.make_kind(caller, at, &new, &kind)?;
        debug_assert_eq!(attr.size, target.len() as u64, "the length of its target");
        Ok(attr)
    }

    fn make_kind(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        new: &NewNode,
        kind: &Kind<'_>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = NameChanges::of(self).make(caller, at, new, kind, |_, _| ())?;
        debug_assert_eq!(attr.kind, kind.kind, "as it was asked for");
        debug_assert_eq!(attr.rdev, kind.rdev, "as it was asked for");
        debug_assert!(attr.nlink > 0, "it has its name");
        Ok(attr)
    }

    /// Makes a regular file without a name, as of `O_TMPFILE`; counts a lookup. `link` can name it.
    ///
    /// # Errors
    /// As [`Self::create`], except for the name.
    pub fn make_temp_file(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        new: &NewNode,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = NameChanges::of(self).make_temp_file(caller, parent, new)?;
        debug_assert_eq!(attr.nlink, 0, "it has no name yet");
        debug_assert_eq!(attr.kind, FileKind::Regular, "a link can name it");
        Ok(attr)
    }

    /// Gives an inode that is no directory another name; counts a lookup.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Perm`] for a directory or an immutable or append-only inode,
    /// [`FsError::NotFound`] for one without names (unless it was made so),
    /// [`FsError::TooManyLinks`], [`FsError::NameTooLong`], [`FsError::NoSpace`],
    /// [`FsError::ReadOnly`].
    pub fn link(&self, caller: &Caller<'_>, ino: Ino, at: DirName<'_>) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = NameChanges::of(self).link(caller, ino, at)?;
        debug_assert_eq!(attr.ino, ino, "the inode that got the name");
        debug_assert!(attr.nlink > 0, "it has the name");
        debug_assert_ne!(attr.kind, FileKind::Directory, "a directory has one name");
        Ok(attr)
    }

    /// Removes a name of what is no directory. Contents stay until the inode is forgotten.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDir`], [`FsError::Perm`] if the inode or the directory
    /// is immutable or append-only, [`FsError::ReadOnly`].
    ///
    /// # Cost
    /// One point read, none if the inode is known and all of its row (see `hints`), another if the
    /// inode was changed meanwhile; at most one delete, two puts and one upsert, whatever the size.
    pub fn unlink(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        self.check_writable()?;
        NameChanges::of(self).unlink(caller, at)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDir`], [`FsError::NotEmpty`] (also for `..`),
    /// [`FsError::Invalid`] for `.`, [`FsError::Perm`], [`FsError::ReadOnly`],
    /// [`FsError::Unsupported`] in a transaction where a clone lies at it.
    pub fn remove_dir(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        self.check_writable()?;
        self.residents.inodes.get_dir(at.parent)?;
        if at.name == b".." {
            return Err(FsError::NotEmpty);
        }
        let removal = CloneRemoval::of(self);
        match removal.find(at)? {
            Some(view) => removal.remove(caller, at, &view, true),
            None => NameChanges::of(self).remove_dir(caller, at),
        }
    }

    /// Moves a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Exists`] (with `NoReplace`), [`FsError::NotDir`],
    /// [`FsError::IsDir`], [`FsError::NotEmpty`], [`FsError::Invalid`] for a directory into itself
    /// or for `.` and `..`, [`FsError::TooManyLinks`], [`FsError::Perm`] for what is immutable or
    /// append-only, [`FsError::NameTooLong`], [`FsError::NoSpace`], [`FsError::ReadOnly`],
    /// [`FsError::Unsupported`] in a transaction to replace a directory that a clone lies at.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        source: DirName<'_>,
        target: DirName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.check_writable()?;
        NameChanges::of(self).rename(caller, source, target, mode)
    }
}
