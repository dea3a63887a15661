//! Changing attributes.

mod operations;

use crate::access::Permissions;
use crate::change::{Change, Changes};
use crate::data::{ContentChanges, frees_space};
use crate::events::Event;
use crate::fixed::{self, FixedFiles};
use crate::inode::Inode;
use crate::namespace::{Namespace, low_bits};
use crate::residents::Residents;
use crate::system::FileSystem;
use crate::types::SET_GID;
use crate::xattr::mask_acl;
use crate::{
    AtimePolicy, Attr, Caller, ClearSetId, DirName, FsError, FsOptions, FsResult, SetAttr, SetTime,
    inode_flag,
};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};

const DAY_NS: i64 = 86_400_000_000_000;

/// Changes attributes: mode, owner, size, times and flags.
///
/// Invariant: a change is one batch, and attributes of an inode change while it is locked.
#[derive(Clone, Copy)]
struct AttrChanges<'fs> {
    residents: &'fs Residents,
    names: Namespace<'fs>,
    /// Reads ACLs, which follow the mode.
    permissions: Permissions<'fs>,
    /// Changes sizes.
    contents: ContentChanges<'fs>,
    fixed: FixedFiles<'fs>,
    changes: Changes<'fs>,
    /// The set-group-ID bit follows the caller's groups.
    checks_permissions: bool,
}

impl<'fs> AttrChanges<'fs> {
    fn of(fs: &'fs FileSystem) -> Self {
        Self {
            residents: &fs.residents,
            names: Namespace::of(fs),
            permissions: Permissions::of(fs),
            contents: ContentChanges::of(fs),
            fixed: FixedFiles::of(fs),
            changes: Changes::of(fs),
            checks_permissions: fs.options.check_permissions,
        }
    }
}

impl AttrChanges<'_> {
    /// See [`crate::FileSystem::set_attr`].
    fn set(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let _inode = self.residents.locks.inode_write(ino);
        let inode = self.residents.inodes.get(ino)?;
        self.set_locked(caller, inode, set)
    }

    /// See [`crate::FileSystem::set_attr_at`].
    fn set_at(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        set: &SetAttr,
    ) -> FsResult<Option<Attr>> {
        if set.size.is_some() {
            return Err(FsError::Invalid("sizes are set of what is known"));
        }
        if let Some(ino) = self.names.dots(at)? {
            return self.set(caller, ino, set).map(Some);
        }
        let _names = self.residents.locks.dir_read(at.parent);
        let early = self.names.early(at)?;
        let _inode = self.residents.locks.inode_write(early.ino());
        let (inode, _) = self.names.inode_of(at, early)?;
        if inode.head.kind == FileKind::Symlink {
            return Ok(None);
        }
        self.set_locked(caller, inode, set).map(Some)
    }

    /// Changes attributes of an inode that is locked.
    fn set_locked(&self, caller: &Caller<'_>, inode: Inode, set: &SetAttr) -> FsResult<Attr> {
        check_may_set(&inode, set)?;
        self.names.refuse_graft(inode.head.ino)?;
        if *set == SetAttr::default() {
            return Ok(Attr::of(&inode.head));
        }
        let contents = &self.contents;
        let inode = match set.size {
            Some(size) => contents.with_room_for_size(inode, size)?,
            None => inode,
        };
        let gives_back = |size| frees_space(&inode.head, size);
        let mut change = if set.size.is_some_and(gives_back) {
            self.changes.begin_giving_back()
        } else {
            self.changes.begin()
        };
        let mut staged = contents.stage(inode)?;
        if let Some(size) = set.size {
            contents.stage_size(&mut change, &mut staged, size, set.clear_setid)?;
            debug_assert_eq!(staged.head.size, size, "the size is staged");
            debug_assert_eq!(
                staged.head.kind,
                FileKind::Regular,
                "files alone have a size to set"
            );
        }
        self.set_owner(&mut change, caller, set, &mut staged.head);
        self.set_perm(&mut change, caller, set, &mut staged.head)?;
        self.set_times(set, &mut staged.head);
        debug_assert_eq!(
            set.uid.unwrap_or(staged.head.uid),
            staged.head.uid,
            "the owner is staged"
        );
        debug_assert_eq!(
            set.gid.unwrap_or(staged.head.gid),
            staged.head.gid,
            "the group is staged"
        );
        debug_assert!(
            set.perm
                .is_none_or(|perm| low_bits(perm) & 0o777 == staged.head.perm & 0o777),
            "the permissions are staged"
        );
        staged.finish(&mut change)?;
        change.commit()?;
        Ok(Attr::of(&staged.head))
    }

    /// A change of owner or group takes set-id bits and capabilities from what is no directory.
    fn set_owner(
        &self,
        change: &mut Change<'_>,
        caller: &Caller<'_>,
        set: &SetAttr,
        new: &mut InodeHead,
    ) {
        if set.uid.is_none() && set.gid.is_none() {
            return;
        }
        debug_assert!(new.perm <= 0o7777, "the kind is not among the bits");
        new.uid = set.uid.unwrap_or(new.uid);
        if new.kind != FileKind::Directory {
            let is_outside = !caller.is_privileged() && !caller.is_in_group(new.gid);
            let cleared = if is_outside {
                ClearSetId::All
            } else {
                ClearSetId::Executable
            };
            new.perm = cleared.apply(new.perm);
            change.drop_capabilities(new);
            debug_assert!(!new.has(row_flag::CAPS), "a new owner gets no capabilities");
        }
        new.gid = set.gid.unwrap_or(new.gid);
    }

    fn set_perm(
        &self,
        change: &mut Change<'_>,
        caller: &Caller<'_>,
        set: &SetAttr,
        new: &mut InodeHead,
    ) -> FsResult<()> {
        let Some(perm) = set.perm else { return Ok(()) };
        new.perm = low_bits(perm);
        let keeps_group = caller.is_privileged() || caller.is_in_group(new.gid);
        if self.checks_permissions && new.kind != FileKind::Directory && !keeps_group {
            new.perm &= !SET_GID;
        }
        debug_assert!(new.perm <= 0o7777, "the kind is not among the bits");
        if new.has(row_flag::ACCESS_ACL) {
            mask_acl(&self.permissions, change, new)?;
        }
        Ok(())
    }

    fn set_times(&self, set: &SetAttr, new: &mut InodeHead) {
        let now = self.changes.now();
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(at) => at.0,
        };
        new.atime = set.atime.map_or(new.atime, time);
        new.mtime = set.mtime.map_or(new.mtime, time);
        new.ctime = set.ctime.map_or(now, |at| at.0);
    }

    /// See [`crate::FileSystem::set_inode_flags`].
    fn set_flags(&self, caller: &Caller<'_>, ino: Ino, flags: u32) -> FsResult<Attr> {
        let _inode = self.residents.locks.inode_write(ino);
        let inode = self.residents.inodes.get(ino)?;
        if !matches!(inode.head.kind, FileKind::Regular | FileKind::Directory) {
            return Err(FsError::Unsupported);
        }
        self.names.refuse_graft(ino)?;
        let fixed = inode_flag::IMMUTABLE | inode_flag::APPEND;
        let changes_fixed = (flags ^ inode.head.iflags) & fixed != 0;
        if !caller.is_privileged() && (changes_fixed || caller.uid != inode.head.uid) {
            return Err(FsError::Perm);
        }
        let mut new = inode.head;
        new.iflags = flags & inode_flag::ALL;
        new.ctime = self.changes.now();
        let mut change = self.changes.begin();
        change.attrs(&inode, &new)?;
        debug_assert_eq!(new.iflags & !inode_flag::ALL, 0, "others were dropped");
        let is_fixed = fixed::is_fixed(new.iflags);
        if is_fixed && !self.fixed.any() {
            let key = change.keys().fixed();
            change.batch.put(&key, &fixed::MARK);
        }
        if is_fixed {
            change.events.push(Event::Fixed);
        }
        change.commit()?;
        debug_assert!(!is_fixed || self.fixed.any(), "fixed files are known of");
        Ok(Attr::of(&new))
    }
}

/// Notes times of access.
#[derive(Clone, Copy)]
struct AccessTimes<'fs> {
    residents: &'fs Residents,
    options: &'fs FsOptions,
    changes: Changes<'fs>,
}

impl<'fs> AccessTimes<'fs> {
    const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            residents: &fs.residents,
            options: &fs.options,
            changes: Changes::of(fs),
        }
    }
}

impl AccessTimes<'_> {
    /// See [`crate::FileSystem::touch_atime`].
    fn touch(&self, ino: Ino) -> bool {
        let Ok(head) = self.residents.inodes.head(ino) else {
            return false;
        };
        if !self.wants(&head) {
            return false;
        }
        let _inode = self.residents.locks.inode_write(ino);
        let Ok(inode) = self.residents.inodes.get(ino) else {
            return false;
        };
        debug_assert_eq!(inode.head.ino, ino, "the inode that was read");
        let mut new = inode.head;
        new.atime = self.changes.now();
        debug_assert!(!self.options.read_only, "nothing is changed");
        let mut change = self.changes.begin();
        let committed = change.attrs(&inode, &new).and_then(|()| change.commit());
        if let Err(error) = committed {
            tracing::debug!(ino = ino.0, %error, "the time of access stays as it was");
            return false;
        }
        true
    }

    fn wants(&self, head: &InodeHead) -> bool {
        if self.options.read_only || head.iflags & inode_flag::NOATIME != 0 {
            return false;
        }
        match self.options.atime {
            AtimePolicy::Noatime => false,
            AtimePolicy::Strictatime => true,
            AtimePolicy::Relatime => {
                let is_old = self.changes.now().saturating_sub(head.atime) >= DAY_NS;
                head.atime <= head.mtime || head.atime <= head.ctime || is_old
            }
        }
    }
}

/// Refuses changes of what is immutable, and of an append-only file more than its times to now.
fn check_may_set(inode: &Inode, set: &SetAttr) -> FsResult<()> {
    if inode.head.iflags & inode_flag::IMMUTABLE != 0 {
        return Err(FsError::Perm);
    }
    if inode.head.iflags & inode_flag::APPEND != 0 {
        let is_fixed_time = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let changes = set.perm.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some()
            || is_fixed_time(set.atime)
            || is_fixed_time(set.mtime);
        if changes {
            return Err(FsError::Perm);
        }
    }
    Ok(())
}
