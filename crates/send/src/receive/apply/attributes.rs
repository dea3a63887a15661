//! Owners, modes, times and extended attributes.

use super::Target;
use crate::SendError;
use crate::beneath::{Parent, Root};
use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use stitch_format::send_stream::SendRecord;

/// Names of attributes that are kept for messages.
const SHOWN_MAX: usize = 10;
const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";
const SECOND_NS: i64 = 1_000_000_000;

/// Mode and times of the directory itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnAttrs {
    mode: u32,
    accessed_ns: i64,
    modified_ns: i64,
}

impl OwnAttrs {
    pub(super) fn set(self, root: &Root) -> Result<(), Errno> {
        set_attrs(&root.parent(b"")?, self)
    }
}

/// Removes the access lists that a new object has from the directory that it is in.
pub(super) fn drop_inherited(parent: &Parent<'_>, kind: FileType) -> Result<(), Errno> {
    let path = parent.short_path();
    let lists = [ACCESS_LIST, DEFAULT_LIST];
    let count = if kind == FileType::Directory { 2 } else { 1 };
    for list in &lists[..count] {
        match rustix::fs::lremovexattr(&path, *list) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn set_attrs(parent: &Parent<'_>, attrs: OwnAttrs) -> Result<(), Errno> {
    let stat = parent.stat()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        let mode = Mode::from_raw_mode(attrs.mode);
        rustix::fs::chmodat(&parent.dir, parent.name, mode, AtFlags::empty())?;
    }
    let times = Timestamps {
        last_access: timespec(attrs.accessed_ns),
        last_modification: timespec(attrs.modified_ns),
    };
    rustix::fs::utimensat(&parent.dir, parent.name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

const fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(SECOND_NS),
        tv_nsec: ns.rem_euclid(SECOND_NS),
    }
}

impl Target {
    pub(super) fn apply_attribute(&mut self, record: &SendRecord<'_>) -> Result<(), SendError> {
        let (op, path, done) = match *record {
            SendRecord::Detached => return Ok(()),
            SendRecord::Owner { path, user, group } => {
                ("set the owner of", path, self.owner(path, user, group))
            }
            SendRecord::SetXattr { path, name, value } => (
                "set an attribute of",
                path,
                self.set_xattr(path, name, value),
            ),
            SendRecord::DropXattr { path, name } => {
                ("remove an attribute of", path, self.drop_xattr(path, name))
            }
            SendRecord::Attrs {
                path,
                mode,
                accessed_ns,
                modified_ns,
            } => {
                let attrs = OwnAttrs {
                    mode,
                    accessed_ns,
                    modified_ns,
                };
                ("set the mode of", path, self.attrs(path, attrs))
            }
            _ => return Err(SendError::refused("the stream has a record out of place")),
        };
        match done {
            Err(Errno::NOENT) if self.options.skip_devices => Ok(()),
            other => other.map_err(|errno| self.unfit(op, path, errno)),
        }
    }

    /// Only root gives files to others; an ordinary user owns the received files.
    fn owner(&mut self, path: &[u8], user: u32, group: u32) -> Result<(), Errno> {
        let parent = self.root.parent(path)?;
        if self.is_root {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            return rustix::fs::chownat(&parent.dir, parent.name, Some(user), Some(group), flags);
        }
        let stat = parent.stat()?;
        self.dropped = match stat.st_uid == user {
            true => Mode::empty(),
            false => Mode::SUID,
        };
        if stat.st_gid != group {
            self.dropped |= Mode::SGID;
        }
        self.left.owners += u64::from(!self.dropped.is_empty());
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let set = self.permitted(&[path], || {
            let parent = self.root.parent(path)?;
            rustix::fs::lsetxattr(parent.short_path(), name, value, XattrFlags::empty())
        });
        match set {
            Err(Errno::NOTSUP | Errno::PERM | Errno::TOOBIG | Errno::RANGE) => {
                self.lose_xattr(path, name);
                Ok(())
            }
            other => other,
        }
    }

    fn lose_xattr(&mut self, path: &[u8], name: &[u8]) {
        if self.left.xattrs.len() < SHOWN_MAX {
            let path = self.root.shown(path);
            let name = name.escape_ascii();
            self.left.xattrs.push(format!("{}: {name}", path.display()));
        }
        debug_assert!(!self.left.xattrs.is_empty(), "one is shown");
    }

    fn drop_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<(), Errno> {
        let dropped = self.permitted(&[path], || {
            let parent = self.root.parent(path)?;
            rustix::fs::lremovexattr(parent.short_path(), name)
        });
        match dropped {
            // It could not be set either.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => Ok(()),
            other => other,
        }
    }

    fn attrs(&mut self, path: &[u8], attrs: OwnAttrs) -> Result<(), Errno> {
        if path.is_empty() {
            self.own = Some(attrs);
            return Ok(());
        }
        let parent = self.root.parent(path)?;
        // Set-id bits give the rights of the owner that was sent, not of another.
        let mode = attrs.mode & !self.dropped.as_raw_mode();
        self.open = None;
        set_attrs(&parent, OwnAttrs { mode, ..attrs })
    }
}
