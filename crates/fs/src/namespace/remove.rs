//! Removing names.

use super::changes::NameChanges;
use super::check_name;
use crate::change::Change;
use crate::inode::Inode;
use crate::{Caller, DirName, FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;

impl NameChanges<'_> {
    /// Removes a name of what is no directory.
    pub(crate) fn unlink(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        self.names.residents.inodes.get_dir(at.parent)?;
        check_name(at.name)?;
        let _names = self.locks().dir_write(at.parent);
        let early = self.names.early(at)?;
        let _inodes = self.locks().inodes_write(&[at.parent, early.ino()]);
        let dir = self.dir_to_change(caller, at.parent)?;
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        let (inode, dentry) = self.names.inode_of(at, early)?;
        debug_assert_eq!(inode.head.ino, dentry.ino, "the inode of the name");
        if inode.is_dir() {
            return Err(FsError::IsDir);
        }
        self.permissions.check_may_remove(caller, &dir, &inode)?;
        let now = self.changes.now();
        let mut change = self.changes.begin_giving_back();
        change.delete_entry(at);
        change.drop_name(&inode, now, dentry.tail())?;
        change.touch_dir(&dir, 0, now)?;
        self.commit(change)
    }

    /// Removes an empty directory that no clone lies at.
    pub(crate) fn remove_dir(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        let drop_empty = |change: &mut Change<'_>, inode: &Inode, now: i64| {
            debug_assert!(inode.is_dir(), "the caller has checked the type");
            self.names.check_empty(inode.head.ino)?;
            // A directory has nothing in its row but itself.
            change.drop_name(inode, now, Bytes::new())
        };
        self.take_dir(caller, at, None, drop_empty).map(drop)
    }

    /// Removes the name of a directory, which must be `expected` if that is given. `take` stages
    /// what becomes of the directory. Returns the directory.
    pub(crate) fn take_dir(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        expected: Option<Ino>,
        take: impl FnOnce(&mut Change<'_>, &Inode, i64) -> FsResult<()>,
    ) -> FsResult<Ino> {
        check_name(at.name)?;
        let (_names, early) = self.names.lock_with_child(at)?;
        let ino = early.ino();
        if expected.is_some_and(|expected| expected != ino) {
            return Err(FsError::NotFound);
        }
        let _inodes = self.locks().inodes_write(&[at.parent, ino]);
        let dir = self.dir_to_change(caller, at.parent)?;
        let (inode, _) = self.names.inode_of(at, early)?;
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        if !inode.is_dir() {
            return Err(FsError::NotDir);
        }
        self.names.refuse_graft(ino)?;
        self.permissions.check_may_remove(caller, &dir, &inode)?;
        let now = self.changes.now();
        let mut change = self.changes.begin_giving_back();
        change.delete_entry(at);
        debug_assert_eq!(inode.head.ino, ino, "the inode that was locked");
        take(&mut change, &inode, now)?;
        change.touch_dir(&dir, -1, now)?;
        self.commit(change)?;
        Ok(ino)
    }
}
