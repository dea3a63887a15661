//! Changes of names: what all of them have in common, and a further name of an inode.
//!
//! 1. *Lock* the directories whose names change, then their inodes and those of the names.
//! 2. *Check* that the names are as the operation needs them, and the rights of the caller.
//! 3. *Stage* one change: rows of names, of inodes and of both directories, and the events.
//! 4. *Commit* it with all locks held.
//!
//! | operation | rows of names | links of the inode | links of the directories |
//! |---|---|---|---|
//! | make (`make.rs`) | put | 1; 2 of a directory | + 1 for a directory |
//! | link | put | + 1 | |
//! | unlink, rmdir (`remove.rs`) | delete | - 1; 0 of a directory | - 1 for a directory |
//! | rename (`rename.rs`) | put, delete | of a replaced inode as by unlink | both |
//!
//! Invariants:
//! - an inode has as many links as rows of names lead to it; a directory has 2, and one for each
//!   directory in it; what loses its last name is purged, or an orphan until it is forgotten;
//! - a directory without a name takes no names;
//! - what is not in the fields of [`NameChanges`] is changed by a [`Change`] alone.

use super::make::LINKS_MAX;
use super::{Namespace, check_name};
use crate::access::Permissions;
use crate::change::{Change, Changes};
use crate::events::Untold;
use crate::inode::{Inode, Location};
use crate::lock::Locks;
use crate::system::FileSystem;
use crate::views::Standing;
use crate::{Attr, Caller, DirName, FsError, FsResult, Notices, inode_flag};
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// What operations that change names work on.
#[derive(Clone, Copy)]
pub(crate) struct NameChanges<'fs> {
    pub(crate) names: Namespace<'fs>,
    pub(crate) permissions: Permissions<'fs>,
    pub(super) changes: Changes<'fs>,
    /// Clones lie at directories of it.
    pub(super) standing: &'fs Standing,
    /// The file system is a view that was removed.
    pub(super) is_removed: &'fs AtomicBool,
    /// Keeps the attributes that the kernel has to drop after changes that it did not ask for;
    /// `None` if it asked.
    pub(super) untold: Option<&'fs Untold>,
}

impl<'fs> NameChanges<'fs> {
    /// Changes of names that the kernel, or a user of the library, asks for.
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            names: Namespace::of(fs),
            permissions: Permissions::of(fs),
            changes: Changes::of(fs),
            standing: &fs.standing,
            is_removed: &fs.is_removed,
            untold: None,
        }
    }

    /// Changes of names in a directory that the kernel has removed: files may be open, or have
    /// other names.
    pub(crate) fn unasked_of(fs: &'fs FileSystem) -> Self {
        Self {
            untold: Some(&fs.untold),
            ..Self::of(fs)
        }
    }

    pub(super) const fn locks(&self) -> &'fs Locks {
        &self.names.residents.locks
    }

    /// Commits a change. All that it is about is locked.
    pub(super) fn commit(&self, change: Change<'_>) -> FsResult<()> {
        let Some(untold) = self.untold else {
            return change.commit();
        };
        let mut notices = Notices::default();
        let committed = change.commit_unasked(&mut notices);
        untold.keep_attrs(notices);
        committed
    }

    /// A directory whose names may be changed by this caller, without a clone at it. It is locked.
    pub(crate) fn dir_to_change(&self, caller: &Caller<'_>, ino: Ino) -> FsResult<Inode> {
        let dir = self.names.residents.inodes.get_dir(ino)?;
        if dir.head.nlink == 0 || self.is_removed.load(Ordering::Acquire) {
            return Err(FsError::NotFound);
        }
        if dir.head.iflags & inode_flag::IMMUTABLE != 0 {
            return Err(FsError::Perm);
        }
        debug_assert!(dir.is_dir(), "names are in directories");
        debug_assert_eq!(dir.head.ino, ino, "the directory of the number");
        // No walk of this file system would find a name behind the clone, and a rollback that was
        // interrupted would leave the row there.
        if self.has_clone(ino) {
            return Err(FsError::Invalid("a clone lies at the directory"));
        }
        self.names.refuse_graft(ino)?;
        self.permissions.check_may_change(caller, &dir)?;
        Ok(dir)
    }

    /// Reports whether a clone lies at a directory.
    pub(super) fn has_clone(&self, dir: Ino) -> bool {
        self.standing.views.at(self.standing.number, dir).is_some()
    }

    /// Gives an inode that is no directory another name; counts a lookup.
    pub(super) fn link(&self, caller: &Caller<'_>, ino: Ino, at: DirName<'_>) -> FsResult<Attr> {
        let inodes = &self.names.residents.inodes;
        inodes.get_dir(at.parent)?;
        if matches!(at.name, b"." | b"..") {
            return Err(FsError::Exists);
        }
        check_name(at.name)?;
        let _names = self.locks().dir_write(at.parent);
        let _inodes = self.locks().inodes_write(&[at.parent, ino]);
        let dir = self.dir_to_change(caller, at.parent)?;
        let inode = inodes.get(ino)?;
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        check_takes_name(&inode)?;
        if self.names.find_dentry(at)?.is_some() {
            return Err(FsError::Exists);
        }
        let now = self.changes.now();
        let mut change = self.changes.begin();
        self.add_name(&mut change, &inode, at, now)?;
        change.touch_dir(&dir, 0, now)?;
        self.commit(change)?;
        let head = inodes.look_up(ino).ok_or(FsError::Stale(ino))?;
        debug_assert_eq!(head.nlink, inode.head.nlink + 1, "one name more");
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
        debug_assert!(!inode.is_dir(), "a directory has one name");
        debug_assert!(
            inode.head.nlink < LINKS_MAX,
            "the caller has checked the links"
        );
        let mut new = inode.head;
        new.nlink += 1;
        debug_assert!(new.nlink > 0, "it has a name now");
        new.ctime = now;
        match &inode.location {
            Location::Memory(tail) => {
                debug_assert_eq!(inode.head.nlink, 0, "one in memory alone has no name");
                change.move_to_name(inode, &new, tail, at);
                change.count_inodes(1);
                return Ok(());
            }
            Location::Own => {
                if inode.head.nlink == 0 {
                    debug_assert!(inode.is_temp, "a removed file gets no name again");
                    change.batch.delete(&self.names.store.keys.orphan(new.ino));
                    change.count_inodes(1);
                }
                change.attrs(inode, &new)?;
            }
            Location::Entry { parent, name } => {
                let tail = self.names.store.tail(inode)?;
                change.move_to_number(inode, &new, &tail);
                change.put_link_again(DirName::new(*parent, name), new.ino, new.kind);
            }
        }
        change.put_link(at, new.ino, new.kind);
        Ok(())
    }
}

/// Refuses an inode that cannot have a further name.
fn check_takes_name(inode: &Inode) -> FsResult<()> {
    if inode.is_dir() || inode.head.iflags & (inode_flag::IMMUTABLE | inode_flag::APPEND) != 0 {
        return Err(FsError::Perm);
    }
    if inode.head.nlink == 0 && !inode.is_temp {
        return Err(FsError::NotFound);
    }
    if inode.head.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}
