//! What a file system offers of extended attributes. They are read and changed by [`Xattrs`].

use super::Xattrs;
#[cfg(doc)]
use crate::FsError;
use crate::system::FileSystem;
use crate::{Caller, FsResult, XattrMode};
use bytes::Bytes;
use stitch_base::Ino;

impl FileSystem {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoData`] if there is none, or it is not the caller's to see;
    /// [`FsError::Unsupported`] for a prefix that is not offered, or ACLs of symbolic links;
    /// [`FsError::Stale`].
    pub fn get_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<Bytes> {
        Xattrs::of(self).get(caller, ino, name)
    }

    /// The names of the extended attributes, each with a zero byte after it.
    ///
    /// # Errors
    /// [`FsError::TooBig`] for more than 64 KiB of names; [`FsError::Stale`].
    pub fn list_xattr(&self, caller: &Caller<'_>, ino: Ino) -> FsResult<Vec<u8>> {
        Xattrs::of(self).list(caller, ino)
    }

    /// Sets an extended attribute. `kill_setgid`: setting an access ACL also clears set-gid.
    ///
    /// # Errors
    /// [`FsError::Exists`] and [`FsError::NoData`] by `mode`; [`FsError::TooBig`] beyond 255 bytes
    /// of name or 64 KiB of value; [`FsError::Perm`] for `user.` on what is neither file nor
    /// directory, `trusted.` without privilege, or what is immutable; [`FsError::Access`] for a
    /// default ACL on what is no directory; [`FsError::Invalid`] for what is no ACL;
    /// [`FsError::Unsupported`] as above; [`FsError::NoSpace`], [`FsError::ReadOnly`],
    /// [`FsError::Stale`].
    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_setgid: bool,
    ) -> FsResult<()> {
        self.check_writable()?;
        self.grafts.refuse(ino)?;
        Xattrs::of(self).set(caller, ino, (name, value), mode, kill_setgid)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoData`] if there is none, and as [`Self::set_xattr`]. Removing an ACL that is
    /// not there is well.
    pub fn remove_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        self.check_writable()?;
        self.grafts.refuse(ino)?;
        Xattrs::of(self).remove(caller, ino, name)
    }
}
