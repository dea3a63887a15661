//! Contents that a file shared, or shares: their chunks become its own.
//!
//! ```text
//!                head               row of shared contents
//!   before       shares             own 19, contents 18 [0, 3072)
//!   unshare      shares             own 19                           its chunks are restored
//!   place_head   shares nothing     none                             in one batch
//! ```
//!
//! So after any batch a head that says that a file shares contents has a row that says which.

use super::super::plan::Target;
use super::Restore;
use crate::FsResult;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_shared::SharedRow;

impl Restore<'_> {
    /// Puts where the chunks of a file are from now on: it shares none any more.
    pub(super) fn unshare(&mut self, target: &Target) -> FsResult<()> {
        debug_assert_eq!(target.head.kind, FileKind::Regular, "others have no chunks");
        let (store, ino) = (self.fs.store, target.head.ino);
        let present = store.get(&store.keys.shared(ino))?;
        let present = present.map(|row| SharedRow::decode(&row)).transpose()?;
        if let Some(contents) = present.as_ref().and_then(|row| row.contents) {
            self.change.leave_contents(contents, ino);
        }
        if target.chunks == ino && present.is_none() {
            return Ok(());
        }
        let row = SharedRow {
            own: target.chunks,
            contents: None,
            extents: Vec::new(),
        };
        self.change.put_shared(ino, &row);
        if target.chunks == ino {
            self.unshared.insert(ino);
        }
        Ok(())
    }

    /// Deletes the row of a file whose head, in this batch, says that it shares nothing.
    pub(super) fn place_head(&mut self, target: &Target) {
        let ino = target.head.ino;
        if self.unshared.remove(&ino) {
            debug_assert_eq!(target.chunks, ino, "its chunks are under its own number");
            self.change.delete_shared(ino);
        }
    }
}
