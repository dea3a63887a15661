//! Permissions: modes, ACLs and the sticky bit.
//!
//! A kernel that checks permissions itself (`default_permissions`) asks nothing of this. Without
//! it, and for users of the library, `FsOptions::check_permissions` makes the operations on names
//! check, and [`FileSystem::access`] answers for opening.

use crate::acl::{Acl, Rights};
use crate::inode::Inode;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::xattr::{ACL_ACCESS, ACL_DEFAULT};
use crate::{Caller, FsError, FsResult, access_mask, inode_flag};
use stitch_base::Ino;
use stitch_format::fs_inode::row_flag;

const STICKY: u16 = 0o1000;

/// The rights of callers, as modes, ACLs and flags of inodes say.
///
/// Invariant: it reads nothing but ACLs, and those only of inodes that have one. A serializable
/// transaction notes each as read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permissions<'fs> {
    store: &'fs Store,
    reads: Option<&'fs ReadSet>,
    /// Operations on names are checked by mode and ACL.
    are_checked: bool,
}

impl FileSystem {
    /// Reports whether the caller has all rights of `mask` (see [`crate::access_mask`]) by mode and
    /// ACL.
    ///
    /// # Errors
    /// [`FsError::Access`] if not; [`FsError::Perm`] to write what is immutable;
    /// [`FsError::ReadOnly`]; [`FsError::Stale`].
    pub fn access(&self, caller: &Caller<'_>, ino: Ino, mask: u32) -> FsResult<()> {
        let inode = self.residents.inodes.get(ino)?;
        if mask & access_mask::WRITE != 0 {
            self.check_writable()?;
            if inode.head.iflags & inode_flag::IMMUTABLE != 0 {
                return Err(FsError::Perm);
            }
        }
        Permissions::of(self).check_access(caller, &inode, mask)
    }
}

impl<'fs> Permissions<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            reads: fs.reads.as_deref(),
            are_checked: fs.options.check_permissions,
        }
    }

    /// An ACL of an inode that has one.
    pub(crate) fn read_acl(&self, ino: Ino, name: &[u8]) -> FsResult<Option<Acl>> {
        debug_assert!(
            name == ACL_ACCESS || name == ACL_DEFAULT,
            "the name of a list"
        );
        if let Some(reads) = self.reads {
            reads.note_xattrs(ino)?;
        }
        let value = self.store.get(&self.store.keys.xattr(ino, name))?;
        value.map(|value| Acl::decode(&value)).transpose()
    }

    fn check_access(&self, caller: &Caller<'_>, inode: &Inode, mask: u32) -> FsResult<()> {
        let head = &inode.head;
        let wanted = u16::try_from(mask & 7).expect("three bits");
        debug_assert!(head.perm <= 0o7777, "the kind is not among the bits");
        if caller.is_privileged() {
            let may_run = inode.is_dir() || head.perm & 0o111 != 0;
            if mask & access_mask::EXECUTE == 0 || may_run {
                return Ok(());
            }
            return Err(FsError::Access);
        }
        let rights = Rights {
            uid: head.uid,
            gid: head.gid,
            perm: head.perm,
        };
        let acl = if head.has(row_flag::ACCESS_ACL) {
            self.read_acl(head.ino, ACL_ACCESS)?
        } else {
            None
        };
        if rights.allow(acl.as_ref(), caller, wanted) {
            return Ok(());
        }
        Err(FsError::Access)
    }

    /// Where permissions are checked here: whether the caller may change names in a directory.
    pub(crate) fn check_may_change(&self, caller: &Caller<'_>, dir: &Inode) -> FsResult<()> {
        debug_assert!(dir.is_dir(), "names are in directories");
        if !self.are_checked {
            return Ok(());
        }
        self.check_access(caller, dir, access_mask::WRITE | access_mask::EXECUTE)
    }

    /// Reports whether a name of this inode may be taken from a directory that may be changed.
    pub(crate) fn check_may_remove(
        &self,
        caller: &Caller<'_>,
        dir: &Inode,
        inode: &Inode,
    ) -> FsResult<()> {
        debug_assert!(dir.is_dir(), "names are in directories");
        let fixed = inode_flag::IMMUTABLE | inode_flag::APPEND;
        if inode.head.iflags & fixed != 0 || dir.head.iflags & inode_flag::APPEND != 0 {
            return Err(FsError::Perm);
        }
        if !self.are_checked || caller.is_privileged() {
            return Ok(());
        }
        let is_owner = caller.uid == inode.head.uid || caller.uid == dir.head.uid;
        if dir.head.perm & STICKY != 0 && !is_owner {
            return Err(FsError::Perm);
        }
        Ok(())
    }
}
