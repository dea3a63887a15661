//! Owners, modes, times and extended attributes.

use super::Target;
use crate::SendError;
use crate::beneath::Root;
use rustix::fs::FileType;
use rustix::io::Errno;
use stitch_format::send_stream::SendRecord;

/// Names of attributes that are kept for messages.
const SHOWN_MAX: usize = 10;
const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// Mode and times of the directory itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnAttrs {
    mode: u32,
    accessed_ns: i64,
    modified_ns: i64,
}

impl OwnAttrs {
    /// Reports whether an owner without other rights can remove names in the directory.
    pub(super) const fn lets_owner_write(self) -> bool {
        const WRITE_AND_LOOK_UP: u32 = 0o300;
        self.mode & WRITE_AND_LOOK_UP == WRITE_AND_LOOK_UP
    }

    pub(super) fn set(self, root: &Root) -> Result<(), Errno> {
        set_attrs(root, b"", self)
    }
}

/// Removes the access lists that a new object has from the directory that it is in.
pub(super) fn drop_inherited(root: &Root, path: &[u8], kind: FileType) -> Result<(), Errno> {
    let lists = [ACCESS_LIST, DEFAULT_LIST];
    let count = if kind == FileType::Directory { 2 } else { 1 };
    for list in &lists[..count] {
        match root.remove_xattr(path, list.as_bytes()) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn set_attrs(root: &Root, path: &[u8], attrs: OwnAttrs) -> Result<(), Errno> {
    if root.stat(path)?.kind() != FileType::Symlink {
        root.set_mode(path, attrs.mode)?;
    }
    root.set_times(path, attrs.accessed_ns, attrs.modified_ns)
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
        if self.is_privileged {
            return self.root.set_owner(path, user, group);
        }
        let node = self.root.stat(path)?.node;
        let set_user = if node.user == user { 0 } else { SET_USER };
        let set_group = if node.group == group { 0 } else { SET_GROUP };
        self.dropped = set_user | set_group;
        self.left.owners += u64::from(self.dropped != 0);
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let set = self.permitted(&[path], || self.root.set_xattr(path, name, value));
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
        let dropped = self.permitted(&[path], || self.root.remove_xattr(path, name));
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
        // Set-id bits give the rights of the owner that was sent, not of another.
        let mode = attrs.mode & !self.dropped;
        self.open = None;
        set_attrs(&self.root, path, OwnAttrs { mode, ..attrs })
    }
}
