//! The two sides of a rollback, and whether an inode is the same on both.

use super::tree::DirTree;
use crate::FsResult;
use crate::recent::WrittenBetween;
use crate::schema::Store;
use stitch_format::fs_inode::InodeHead;

/// The two sides of a rollback.
#[derive(Clone, Copy)]
pub(super) struct RollbackSides<'a> {
    pub(super) past: (&'a Store, &'a DirTree),
    pub(super) present: (&'a Store, &'a DirTree),
    /// What was written between them.
    pub(super) written: &'a WrittenBetween<'a>,
}

impl RollbackSides<'_> {
    /// Reports whether an inode that both sides have, with the same head, may have changed, and
    /// has: contents and extended attributes that were written since are compared.
    pub(super) fn has_changed(&self, was: &InodeHead, is: &InodeHead) -> FsResult<bool> {
        let ((past, old), (present, new)) = (self.past, self.present);
        debug_assert_eq!(was.ino, is.ino, "one inode");
        if !old.is_recent(was) {
            return Ok(false);
        }
        let has_same_tail = old.recent_tail(was.ino) == new.recent_tail(is.ino);
        Ok(!has_same_tail || self.written.has_changed((past, was), (present, is))?)
    }
}
