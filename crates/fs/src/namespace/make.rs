//! Making inodes.

use super::changes::NameChanges;
use super::check_name;
use crate::acl::Acl;
use crate::change::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::inode::{Inode, Location};
use crate::schema::FIRST_INO;
use crate::types::SET_GID;
use crate::xattr::{ACL_ACCESS, ACL_DEFAULT};
use crate::{Attr, Caller, DirName, FsError, FsResult, NewNode};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};

/// Most names that an inode can have, and directories that a directory can hold.
pub(super) const LINKS_MAX: u32 = 0x7fff_ffff;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
const _: () = assert!(
    SYMLINK_BYTES_MAX as u64 <= crate::data::INLINE_BYTES_MAX,
    "a target fits the row"
);
const _: () = assert!(LINKS_MAX < u32::MAX, "one more is counted");
const GROUP_EXECUTE: u16 = 0o010;

/// What a new inode is, beyond what the caller asks for.
pub(super) struct Kind<'a> {
    pub(super) kind: FileKind,
    pub(super) rdev: u32,
    pub(super) target: &'a [u8],
}

impl<'a> Kind<'a> {
    pub(super) const fn of(kind: FileKind) -> Self {
        Self {
            kind,
            rdev: 0,
            target: &[],
        }
    }
}

/// A new inode with the ACLs that it inherits.
struct Made {
    head: InodeHead,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl NameChanges<'_> {
    /// Makes an inode; counts a lookup. `also` stages more in the same batch, for the inode of this
    /// number.
    pub(super) fn make(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        new: &NewNode,
        kind: &Kind<'_>,
        also: impl FnOnce(&mut Change<'_>, Ino),
    ) -> FsResult<Attr> {
        self.names.residents.inodes.get_dir(at.parent)?;
        if matches!(at.name, b"." | b"..") {
            return Err(FsError::Exists);
        }
        check_name(at.name)?;
        let _names = self.locks().dir_write(at.parent);
        let _inodes = self.locks().inode_write(at.parent);
        let dir = self.dir_to_change(caller, at.parent)?;
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        if self.names.find_dentry(at)?.is_some() {
            return Err(FsError::Exists);
        }
        let is_dir = kind.kind == FileKind::Directory;
        debug_assert!(dir.head.nlink > 0, "the directory has a name");
        if is_dir && dir.head.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let made = self.new_inode(caller, &dir, new, kind)?;
        debug_assert_eq!(made.head.kind, kind.kind, "as it was asked for");
        debug_assert_eq!(
            made.head.size,
            kind.target.len() as u64,
            "the target alone is contents"
        );
        debug_assert_eq!(made.head.nlink, 1 + u32::from(is_dir), "its name, and `.`");
        let mut change = self.changes.begin();
        change.put_entry(at, &made.head, kind.target);
        self.put_acls(&mut change, &made);
        change.count_inodes(1);
        change.touch_dir(&dir, i64::from(is_dir), made.head.ctime)?;
        change.events.push(Event::Made(Inode {
            head: made.head,
            location: Location::entry(at.parent, at.name),
            chain: 0,
            is_temp: false,
        }));
        also(&mut change, made.head.ino);
        self.commit(change)?;
        Ok(Attr::of(&made.head))
    }

    /// Makes a directory as [`Self::make`] does.
    pub(crate) fn make_dir_with(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        new: &NewNode,
        also: impl FnOnce(&mut Change<'_>, Ino),
    ) -> FsResult<Attr> {
        self.make(caller, at, new, &Kind::of(FileKind::Directory), also)
    }

    /// Makes a regular file without a name.
    pub(super) fn make_temp_file(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        new: &NewNode,
    ) -> FsResult<Attr> {
        let dir = self.dir_to_change(caller, parent)?;
        debug_assert_eq!(dir.head.ino, parent, "the directory that was asked for");
        let mut made = self.new_inode(caller, &dir, new, &Kind::of(FileKind::Regular))?;
        made.head.nlink = 0;
        debug_assert_eq!(made.head.size, 0, "a new file is empty");
        debug_assert!(
            made.default.is_none(),
            "directories alone have default lists"
        );
        let mut inode = Inode {
            head: made.head,
            location: Location::Memory(Arc::default()),
            chain: 0,
            is_temp: true,
        };
        let mut change = self.changes.begin();
        if made.access.is_some() {
            inode = change.put_orphan(&inode, &[]);
            self.put_acls(&mut change, &made);
        }
        change.events.push(Event::Made(inode));
        self.commit(change)?;
        Ok(Attr::of(&made.head))
    }

    /// Puts a whiteout, a character device 0:0 that no bits allow, under a name.
    pub(super) fn put_whiteout<'a>(
        &self,
        change: &mut Change<'a>,
        caller: &Caller<'_>,
        dir: &Inode,
        at: DirName<'a>,
    ) -> FsResult<()> {
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        let new = NewNode { perm: 0, umask: 0 };
        let made = self.new_inode(caller, dir, &new, &Kind::of(FileKind::CharDevice))?;
        debug_assert_eq!(made.head.rdev, 0, "a whiteout is the device 0:0");
        debug_assert_eq!(made.head.perm, 0, "no bits allow it");
        change.put_entry(at, &made.head, &[]);
        self.put_acls(change, &made);
        change.count_inodes(1);
        Ok(())
    }

    /// A new inode in a directory: its owner, group, mode and ACLs as it inherits them.
    fn new_inode(
        &self,
        caller: &Caller<'_>,
        dir: &Inode,
        new: &NewNode,
        kind: &Kind<'_>,
    ) -> FsResult<Made> {
        let is_dir = kind.kind == FileKind::Directory;
        let (gid, mut perm) = group_of_new(caller, dir, new, is_dir);
        debug_assert_eq!(
            kind.kind == FileKind::Symlink,
            !kind.target.is_empty(),
            "symbolic links alone have targets"
        );
        let inherited = self.inherited_acl(dir, kind.kind)?;
        let mut access = None;
        if let Some(default) = &inherited {
            let (acl, masked) = default.for_new_inode(perm);
            perm = masked;
            access = acl;
        } else if kind.kind != FileKind::Symlink {
            perm &= !low_bits(new.umask & 0o777);
        }
        if is_dir && dir.head.perm & SET_GID != 0 {
            perm |= SET_GID;
        }
        debug_assert!(perm <= 0o7777, "the kind is not among the bits");
        let (default, now) = (inherited.filter(|_| is_dir), self.changes.now());
        let mut flags = match kind.kind {
            FileKind::Regular => Contents::Inline.mark(0),
            _ => 0,
        };
        if access.is_some() {
            flags |= row_flag::XATTRS | row_flag::ACCESS_ACL;
        }
        if default.is_some() {
            flags |= row_flag::XATTRS | row_flag::DEFAULT_ACL;
        }
        let head = InodeHead {
            ino: self.changes.new_ino()?,
            kind: kind.kind,
            perm,
            flags,
            uid: caller.uid,
            gid,
            nlink: if is_dir { 2 } else { 1 },
            size: kind.target.len() as u64,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            rdev: kind.rdev,
            iflags: 0,
            chunks: 0,
        };
        debug_assert!(head.ino.0 >= FIRST_INO, "smaller numbers are kept");
        Ok(Made {
            head,
            access,
            default,
        })
    }

    fn inherited_acl(&self, dir: &Inode, kind: FileKind) -> FsResult<Option<Acl>> {
        debug_assert!(dir.is_dir(), "directories alone have default lists");
        if kind == FileKind::Symlink || !dir.head.has(row_flag::DEFAULT_ACL) {
            return Ok(None);
        }
        self.permissions.read_acl(dir.head.ino, ACL_DEFAULT)
    }

    fn put_acls(&self, change: &mut Change<'_>, made: &Made) {
        let ino = made.head.ino;
        debug_assert_eq!(
            made.default.is_some(),
            made.head.has(row_flag::DEFAULT_ACL),
            "as the row tells"
        );
        debug_assert_eq!(
            made.access.is_some(),
            made.head.has(row_flag::ACCESS_ACL),
            "as the row tells"
        );
        for (name, acl) in [(ACL_ACCESS, &made.access), (ACL_DEFAULT, &made.default)] {
            if let Some(acl) = acl {
                let key = self.names.store.keys.xattr(ino, name);
                change.batch.put(&key, &acl.to_store());
            }
        }
    }
}

/// Returns the group of a new inode in a directory, and the permissions that were asked for, as far
/// as the caller may give them in that group.
fn group_of_new(caller: &Caller<'_>, dir: &Inode, new: &NewNode, is_dir: bool) -> (u32, u16) {
    debug_assert!(dir.is_dir(), "names are in directories");
    let inherits_group = dir.head.perm & SET_GID != 0;
    let gid = match inherits_group {
        true => dir.head.gid,
        false => caller.gid,
    };
    let mut perm = low_bits(new.perm);
    if !is_dir
        && perm & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE
        && inherits_group
        && !caller.is_privileged()
        && !caller.is_in_group(gid)
    {
        perm &= !SET_GID;
    }
    debug_assert!(
        gid == caller.gid || gid == dir.head.gid,
        "the group of the caller or of the directory"
    );
    (gid, perm)
}

/// The twelve permission bits.
pub(crate) fn low_bits(perm: u32) -> u16 {
    u16::try_from(perm & 0o7777).expect("twelve bits")
}
