//! File handles: `name_to_handle_at` and `open_by_handle_at`, overlayfs, the kernel's NFS server.
//!
//! A handle is an inode number and its generation and, if the caller wants the way up, those of the
//! parent directory. The kernel makes handles without a request. To open one whose inode it has
//! forgotten, it looks up `.` in that number, which may then be any inode. On the way up from a
//! directory it looks up `..`.
//!
//! Numbers are never reused, so all inodes of a file system have one generation. It identifies the
//! file system, so that handles of another one are stale. The generation of the root must be 0 for
//! the kernel.

use stitch_base::Ino;
use stitch_fs::{DirName, FileSystem, FsError};

use super::{Adapter, refused};
use crate::handler::Answer;
use crate::wire::reply::{FOREVER, Lookup};

/// Returns the generation of all inodes of a mount except the root. A mount that began without
/// generations keeps 0: the kernel would take its inodes for others.
pub(super) fn generation(fs: &FileSystem) -> u64 {
    let has_one = fs.ledger().is_none_or(|ledger| ledger.has_generations());
    if has_one { fs.generation().into() } else { 0 }
}

impl Adapter {
    pub(super) fn generation_of(&self, ino: Ino) -> u64 {
        // The root of a view is not that of the mount.
        if self.number(ino) == Ino::ROOT {
            0
        } else {
            self.generation
        }
    }

    /// Looks up a name, or an inode by its number. An inode that the kernel looks up by number has
    /// no open file, so one without a name is `ESTALE`, and one that is not below `top`, the
    /// directory that is shown.
    pub(super) fn find(&self, top: Ino, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let found = match name {
            b"." => self.fs.look_up_number_below(top, parent),
            _ => self.fs.lookup(DirName::new(parent, name)),
        };
        match found {
            Ok(attr) => Ok(Lookup::Found(self.entry(&attr))),
            Err(FsError::NotFound) => Ok(Lookup::Missing { ttl: FOREVER }),
            Err(error) => Err(refused(&error)),
        }
    }
}
