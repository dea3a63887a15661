//! File handles: `name_to_handle_at` and `open_by_handle_at`, overlayfs, the kernel's NFS server.
//!
//! A handle is the number of an inode, its generation and, where a caller wants the way up, the
//! same of its directory. The kernel makes handles by itself. To open one whose inode it has
//! forgotten it asks for `.` in that number, which then may be that of any inode; on the way up
//! from a directory it asks for `..`.
//!
//! Numbers are never used again, so all inodes of a file system have one generation. It is that of
//! the file system, so that a handle of another one is stale. The root has 0: the kernel wants it
//! so.

use stitch_base::Ino;
use stitch_fs::{DirName, FileSystem, FsError};

use super::{Adapter, refused};
use crate::handler::Answer;
use crate::wire::reply::{FOREVER, Lookup};

/// The generation of all inodes of a mount but the root. A mount that began without keeps 0: the
/// kernel would take its inodes for others.
pub(super) fn generation(fs: &FileSystem) -> u64 {
    let has_one = fs.ledger().is_none_or(|ledger| ledger.has_generations());
    if has_one { fs.generation().into() } else { 0 }
}

impl Adapter {
    pub(super) fn generation_of(&self, ino: Ino) -> u64 {
        if ino == Ino::ROOT { 0 } else { self.generation }
    }

    /// The inode of a name, or of a number. What the kernel does not know any more but asks for by
    /// its number has no open file: so an inode without a name is `ESTALE`.
    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let found = match name {
            b"." => self.fs.look_up_number(parent),
            _ => self.fs.lookup(DirName::new(parent, name)),
        };
        match found {
            Ok(attr) => Ok(Lookup::Found(self.entry(&attr))),
            Err(FsError::NotFound) => Ok(Lookup::Missing { ttl: FOREVER }),
            Err(error) => Err(refused(&error)),
        }
    }
}
