//! Removing names, and adding further ones.

use crate::change::Change;
use crate::inode::{Inode, Location};
use crate::make::LINKS_MAX;
use crate::namespace::check_name;
use crate::system::FileSystem;
use crate::{Attr, Caller, DirName, FsError, FsResult, inode_flag};
use bytes::Bytes;
use stitch_base::Ino;

impl FileSystem {
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
        self.residents.inodes.get_dir(at.parent)?;
        check_name(at.name)?;
        let _names = self.residents.locks.dir_write(at.parent);
        let early = self.namespace().early(at)?;
        let _inodes = self.residents.locks.inodes_write(&[at.parent, early.ino()]);
        let dir = self.dir_to_change(caller, at.parent)?;
        let (inode, dentry) = self.namespace().inode_of(at, early)?;
        if inode.is_dir() {
            return Err(FsError::IsDir);
        }
        self.check_may_remove(caller, &dir, &inode)?;
        let now = self.now();
        let mut change = Change::giving_back(self);
        change.delete_entry(at);
        change.drop_name(&inode, now, dentry.tail())?;
        change.touch_dir(&dir, 0, now)?;
        change.commit()
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDir`], [`FsError::NotEmpty`] (also for `..`),
    /// [`FsError::Invalid`] for `.`, [`FsError::Perm`], [`FsError::ReadOnly`].
    pub fn remove_dir(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        self.check_writable()?;
        self.residents.inodes.get_dir(at.parent)?;
        if at.name == b".." {
            return Err(FsError::NotEmpty);
        }
        if let Some(view) = self.clone_named(at)? {
            return self.remove_clone(caller, at, &view, true);
        }
        let drop_empty = |change: &mut Change<'_>, inode: &Inode, now: i64| {
            self.namespace().check_empty(inode.head.ino)?;
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
        let (_names, early) = self.namespace().lock_with_child(at)?;
        let ino = early.ino();
        if expected.is_some_and(|expected| expected != ino) {
            return Err(FsError::NotFound);
        }
        let _inodes = self.residents.locks.inodes_write(&[at.parent, ino]);
        let dir = self.dir_to_change(caller, at.parent)?;
        let (inode, _) = self.namespace().inode_of(at, early)?;
        if !inode.is_dir() {
            return Err(FsError::NotDir);
        }
        self.check_may_remove(caller, &dir, &inode)?;
        let now = self.now();
        let mut change = Change::giving_back(self);
        change.delete_entry(at);
        take(&mut change, &inode, now)?;
        change.touch_dir(&dir, -1, now)?;
        change.commit()?;
        Ok(ino)
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
        self.residents.inodes.get_dir(at.parent)?;
        if matches!(at.name, b"." | b"..") {
            return Err(FsError::Exists);
        }
        check_name(at.name)?;
        let _names = self.residents.locks.dir_write(at.parent);
        let _inodes = self.residents.locks.inodes_write(&[at.parent, ino]);
        let dir = self.dir_to_change(caller, at.parent)?;
        let inode = self.residents.inodes.get(ino)?;
        if inode.is_dir() || inode.head.iflags & (inode_flag::IMMUTABLE | inode_flag::APPEND) != 0 {
            return Err(FsError::Perm);
        }
        if inode.head.nlink == 0 && !inode.is_temp {
            return Err(FsError::NotFound);
        }
        if inode.head.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        if self.namespace().find_dentry(at)?.is_some() {
            return Err(FsError::Exists);
        }
        let now = self.now();
        let mut change = Change::new(self);
        self.add_name(&mut change, &inode, at, now)?;
        change.touch_dir(&dir, 0, now)?;
        change.commit()?;
        let head = self
            .residents
            .inodes
            .look_up(ino)
            .ok_or(FsError::Stale(ino))?;
        Ok(Attr::of(&head))
    }

    /// One name more: the row moves to the inode's own place with the second name, and out of
    /// memory with the first.
    fn add_name<'a>(
        &self,
        change: &mut Change<'a>,
        inode: &'a Inode,
        at: DirName<'a>,
        now: i64,
    ) -> FsResult<()> {
        let mut new = inode.head;
        new.nlink += 1;
        new.ctime = now;
        match &inode.location {
            Location::Memory(tail) => {
                change.move_to_name(inode, &new, tail, at);
                change.count_inodes(1);
                return Ok(());
            }
            Location::Own => {
                if inode.head.nlink == 0 {
                    change.batch.delete(&self.store.keys.orphan(new.ino));
                    change.count_inodes(1);
                }
                change.attrs(inode, &new)?;
            }
            Location::Entry { parent, name } => {
                let tail = self.store.tail(inode)?;
                change.move_to_number(inode, &new, &tail);
                change.put_link_again(DirName::new(*parent, name), new.ino, new.kind);
            }
        }
        change.put_link(at, new.ino, new.kind);
        Ok(())
    }
}
