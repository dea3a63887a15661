//! Extended attributes.
//!
//! Each is a row of its own; a flag in the inode says whether there may be any, so that asking for
//! one costs nothing where there is none. ACLs live here too, and change the mode along.

mod operations;

use crate::access::Permissions;
use crate::acl::Acl;
use crate::change::{Change, Changes};
use crate::inode::Location;
use crate::locator::Locator;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::types::SET_GID;
use crate::{Caller, FsError, FsResult, XattrMode, inode_flag};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};
use stitch_format::fs_key::NAME_BYTES_MAX;

/// Largest value.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Largest list of names.
const LIST_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(LIST_BYTES_MAX > NAME_BYTES_MAX, "a list takes any name");
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// What a name is by its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

impl Class {
    fn of(name: &[u8]) -> FsResult<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let class = match name {
            ACL_ACCESS => return Ok(Self::AccessAcl),
            ACL_DEFAULT => return Ok(Self::DefaultAcl),
            _ if name.starts_with(b"user.") => (Self::User, 5),
            _ if name.starts_with(b"trusted.") => (Self::Trusted, 8),
            _ if name.starts_with(b"security.") => (Self::Security, 9),
            _ => return Err(FsError::Unsupported),
        };
        if name.len() == class.1 {
            return Err(FsError::Invalid("an attribute has a name after the prefix"));
        }
        Ok(class.0)
    }

    /// The row flag that says that this attribute is there.
    fn row_flag(self, name: &[u8]) -> u8 {
        debug_assert!(
            Self::of(name).is_ok_and(|class| class == self),
            "the class is that of the name"
        );
        match self {
            Self::AccessAcl => row_flag::ACCESS_ACL,
            Self::DefaultAcl => row_flag::DEFAULT_ACL,
            Self::Security if name == CAPABILITY => row_flag::CAPS,
            Self::Security | Self::User | Self::Trusted => row_flag::XATTRS,
        }
    }
}

/// Reports whether an inode can have an attribute of this class, and the caller may change it.
fn check_may_change(class: Class, caller: &Caller<'_>, head: &InodeHead) -> FsResult<()> {
    let has_contents = matches!(head.kind, FileKind::Regular | FileKind::Directory);
    match class {
        Class::User if !has_contents => Err(FsError::Perm),
        Class::Trusted if !caller.is_privileged() => Err(FsError::Perm),
        Class::AccessAcl | Class::DefaultAcl if head.kind == FileKind::Symlink => {
            Err(FsError::Unsupported)
        }
        Class::DefaultAcl if head.kind != FileKind::Directory => Err(FsError::Access),
        _ if head.iflags & (inode_flag::IMMUTABLE | inode_flag::APPEND) != 0 => Err(FsError::Perm),
        _ => Ok(()),
    }
}

/// The extended attributes of inodes.
///
/// Invariant: an inode has the row flag of an attribute that it has; without the flag no row is
/// read.
#[derive(Clone, Copy)]
struct Xattrs<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    /// Where a serializable transaction notes what it reads.
    reads: Option<&'fs ReadSet>,
    changes: Changes<'fs>,
}

impl<'fs> Xattrs<'fs> {
    fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            reads: fs.reads.as_deref(),
            changes: Changes::of(fs),
        }
    }
}

impl Xattrs<'_> {
    /// See [`crate::FileSystem::get_xattr`].
    fn get(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<Bytes> {
        let class = Class::of(name)?;
        let _inode = self.residents.locks.inode_read(ino);
        let head = self.residents.inodes.head(ino)?;
        self.note_read(ino)?;
        let is_acl = matches!(class, Class::AccessAcl | Class::DefaultAcl);
        if is_acl && head.kind == FileKind::Symlink {
            return Err(FsError::Unsupported);
        }
        let is_hidden = class == Class::Trusted && !caller.is_privileged();
        if is_hidden || !head.has(class.row_flag(name)) {
            return Err(FsError::NoData);
        }
        let key = self.store.keys.xattr(ino, name);
        let value = self.store.get(&key)?;
        value.ok_or(FsError::NoData)
    }

    /// See [`crate::FileSystem::list_xattr`].
    fn list(&self, caller: &Caller<'_>, ino: Ino) -> FsResult<Vec<u8>> {
        let _inode = self.residents.locks.inode_read(ino);
        let head = self.residents.inodes.head(ino)?;
        self.note_read(ino)?;
        let mut out = Vec::new();
        if !head.has(row_flag::XATTRS) {
            return Ok(out);
        }
        let mut scan = self.store.scan(&self.store.keys.xattrs(ino))?;
        while let Some((key, _)) = scan.next()? {
            let name = Locator::xattr_of(key).unwrap_or_default();
            if name.starts_with(b"trusted.") && !caller.is_privileged() {
                continue;
            }
            out.extend_from_slice(name);
            out.push(0);
            if out.len() > LIST_BYTES_MAX {
                return Err(FsError::TooBig);
            }
        }
        debug_assert!(out.len() <= LIST_BYTES_MAX, "a caller takes no more");
        debug_assert!(
            out.last().is_none_or(|byte| *byte == 0),
            "names end with zeros"
        );
        Ok(out)
    }

    /// See [`crate::FileSystem::set_xattr`].
    fn set(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        kill_setgid: bool,
    ) -> FsResult<()> {
        let class = Class::of(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let _lock = self.residents.locks.inode_write(ino);
        let mut inode = self.residents.inodes.get(ino)?;
        check_may_change(class, caller, &inode.head)?;
        self.check_mode(&inode.head, class, name, mode)?;
        let mut change = self.changes.begin();
        if matches!(inode.location, Location::Memory(_)) {
            let tail = self.store.tail(&inode)?;
            inode = change.put_orphan(&inode, &tail);
            debug_assert_eq!(inode.location, Location::Own, "attributes are beside a row");
        }
        let mut new = inode.head;
        new.ctime = self.changes.now();
        let key = self.store.keys.xattr(ino, name);
        let stored = match class {
            Class::AccessAcl | Class::DefaultAcl => acl_to_store(class, value, &mut new)?,
            Class::User | Class::Trusted | Class::Security => Some(Bytes::copy_from_slice(value)),
        };
        if class == Class::AccessAcl && kill_setgid {
            new.perm &= !SET_GID;
        }
        if let Some(value) = stored {
            new.flags |= row_flag::XATTRS | class.row_flag(name);
            debug_assert!(new.has(row_flag::XATTRS), "a listing finds it");
            change.batch.put(&key, &value);
        } else {
            let flag = class.row_flag(name);
            debug_assert_ne!(flag, row_flag::XATTRS, "access lists alone are removed so");
            new.flags &= !flag;
            change.batch.delete(&key);
        }
        change.attrs(&inode, &new)?;
        change.commit()
    }

    fn check_mode(
        &self,
        head: &InodeHead,
        class: Class,
        name: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        if mode == XattrMode::Set {
            return Ok(());
        }
        self.note_read(head.ino)?;
        let exists = head.has(class.row_flag(name)) && {
            let key = self.store.keys.xattr(head.ino, name);
            self.store.get(&key)?.is_some()
        };
        match mode {
            XattrMode::Create if exists => Err(FsError::Exists),
            XattrMode::Replace if !exists => Err(FsError::NoData),
            _ => Ok(()),
        }
    }

    /// See [`crate::FileSystem::remove_xattr`].
    fn remove(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let class = Class::of(name)?;
        let _lock = self.residents.locks.inode_write(ino);
        let inode = self.residents.inodes.get(ino)?;
        check_may_change(class, caller, &inode.head)?;
        self.note_read(ino)?;
        let is_acl = matches!(class, Class::AccessAcl | Class::DefaultAcl);
        let flag = class.row_flag(name);
        let key = self.store.keys.xattr(ino, name);
        let exists = inode.head.has(flag) && self.store.get(&key)?.is_some();
        match (exists, is_acl) {
            (true, _) => {}
            (false, true) => return Ok(()),
            (false, false) => return Err(FsError::NoData),
        }
        let mut new = inode.head;
        new.ctime = self.changes.now();
        if flag != row_flag::XATTRS {
            new.flags &= !flag;
        }
        debug_assert!(
            new.flags & !inode.head.flags == 0,
            "flags go, and none comes"
        );
        let mut change = self.changes.begin_giving_back();
        change.batch.delete(&key);
        change.attrs(&inode, &new)?;
        change.commit()
    }

    /// Notes that extended attributes are read, in a serializable transaction.
    fn note_read(&self, ino: Ino) -> FsResult<()> {
        debug_assert!(ino.0 > 0, "0 is no inode");
        match self.reads {
            Some(reads) => reads.note_xattrs(ino),
            None => Ok(()),
        }
    }
}

/// Changes the access ACL of an inode with its mode, as `chmod` does.
pub(crate) fn mask_acl(
    permissions: &Permissions<'_>,
    change: &mut Change<'_>,
    new: &InodeHead,
) -> FsResult<()> {
    debug_assert!(new.has(row_flag::ACCESS_ACL), "it may have one");
    let Some(mut acl) = permissions.read_acl(new.ino, ACL_ACCESS)? else {
        return Ok(());
    };
    acl.set_mode(new.perm);
    let key = change.keys().xattr(new.ino, ACL_ACCESS);
    change.batch.put(&key, &acl.to_store());
    Ok(())
}

/// The ACL to store, if one is; an access ACL changes the mode.
fn acl_to_store(class: Class, value: &[u8], new: &mut InodeHead) -> FsResult<Option<Bytes>> {
    debug_assert!(
        matches!(class, Class::AccessAcl | Class::DefaultAcl),
        "other attributes are stored as they are"
    );
    if value.is_empty() {
        return Ok(None);
    }
    let acl = Acl::decode(value)?;
    if class == Class::AccessAcl {
        new.perm = new.perm & !0o777 | acl.mode_bits();
        debug_assert!(new.perm <= 0o7777, "the kind is not among the bits");
        if acl.is_minimal() {
            return Ok(None);
        }
    }
    Ok(Some(Bytes::from(acl.to_store())))
}
