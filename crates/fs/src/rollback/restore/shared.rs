//! Contents that a file shared, or shares: their chunks become its own.

use super::super::plan::Target;
use super::Restore;
use crate::FsResult;
use stitch_format::fs_shared::SharedRow;

impl Restore<'_> {
    /// Puts where the chunks of a file are, which shares none any more.
    pub(super) fn unshare(&mut self, target: &Target) -> FsResult<()> {
        let (store, ino) = (self.fs.store, target.head.ino);
        let present = store.get(&store.keys.shared(ino))?;
        let present = present.map(|row| SharedRow::decode(&row)).transpose()?;
        if let Some(contents) = present.as_ref().and_then(|row| row.contents) {
            self.change.leave_contents(contents, ino);
        }
        if target.chunks != ino {
            let row = SharedRow {
                own: target.chunks,
                contents: None,
                extents: Vec::new(),
            };
            self.change.put_shared(ino, &row);
        } else if present.is_some() {
            self.change.delete_shared(ino);
        }
        Ok(())
    }
}
