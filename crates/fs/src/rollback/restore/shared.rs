//! Chunks of files: which are shared, and the own ones.
//!
//! ```text
//!                 head               row of shared contents
//!   before        shares             own 19, contents 18 [0, 3072)
//!   place_chunks  shares             own 19                           its chunks are restored
//!   place_head    shares nothing     none                             in one batch
//! ```
//!
//! So after any batch a head that says that a file shares contents has a row that says which.

use super::super::plan::Target;
use super::Restore;
use crate::FsResult;
use crate::data::chunks_from;
use crate::shared::Piece;
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_shared::SharedRow;

impl Restore<'_> {
    /// Puts where the chunks of a file are, which was `was` in the snapshot.
    pub(super) fn place_chunks(&mut self, was: Ino, target: &Target) -> FsResult<()> {
        let ino = target.head.ino;
        debug_assert!(!target.is_same, "what is the same stays");
        let present = self.fs.store.find_shared_row(ino)?;
        let shares = self.plan.shares_of(was);
        let used = present.as_ref().and_then(|row| row.contents);
        let contents = shares.map(|shares| shares.contents);
        if used != contents {
            if let Some(used) = used {
                self.change.leave_contents(used, ino);
            }
            if let Some(contents) = contents {
                self.change.use_contents(contents, ino);
            }
        }
        if target.chunks != ino || contents.is_some() || present.is_some() {
            let row = SharedRow {
                own: target.chunks,
                contents,
                extents: shares.map_or_else(Vec::new, |shares| shares.extents.clone()),
            };
            debug_assert_eq!(row.contents.is_none(), row.extents.is_empty());
            let tells_number = row.own != ino && self.change.keeps_track();
            if present.as_ref() != Some(&row) || tells_number {
                self.change.put_shared(ino, &row);
            }
            if target.chunks == ino && contents.is_none() {
                self.unshared.insert(ino);
            }
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

    /// Puts the own chunks of a file under a number, and deletes all others there.
    pub(super) fn restore_chunks(&mut self, ino: Ino, number: Ino) -> FsResult<()> {
        debug_assert!(number.0 > 0, "chunks are under a number");
        let plan = self.plan;
        let pieces = self.past.pieces_of(&self.seen(ino).head, &chunks_from(0))?;
        let Some(shares) = plan.shares_of(ino) else {
            for (from, chunks) in pieces {
                self.restore_piece(ino, (from, chunks), number)?;
            }
            return Ok(());
        };
        for (from, chunks) in &pieces {
            for part in shares.own_parts(chunks) {
                self.restore_piece(ino, (*from, part), number)?;
            }
        }
        for extent in &shares.extents {
            self.drop_own(number, extent)?;
        }
        self.commit_if_full()
    }

    /// Puts own chunks of a file under a number. If the snapshot has them under the same one, those
    /// that were written since are compared.
    fn restore_piece(&mut self, ino: Ino, (from, part): Piece, number: Ino) -> FsResult<()> {
        let (written, store) = (self.written, self.fs.store);
        let (past, keys) = (self.past.keys, store.keys);
        debug_assert!(!part.is_empty(), "a piece has chunks");
        if from != number || !self.now.has(ino) {
            let rows = [past.chunks(from, &part)];
            return self.restore_rows(&rows, &keys.chunks(number, &part), number);
        }
        written.each_run(store, (number, part), |run| {
            let rows = [past.chunks(number, run)];
            self.restore_rows(&rows, &keys.chunks(number, run), number)?;
            Ok(true)
        })?;
        Ok(())
    }

    /// Deletes own chunks where shared ones are read.
    fn drop_own(&mut self, number: Ino, extent: &Range<u64>) -> FsResult<()> {
        debug_assert!(!extent.is_empty(), "an extent is not empty");
        let rows = self.fs.store.keys.chunks(number, extent);
        let is_any = self.fs.store.scan(&rows)?.next()?.is_some();
        if is_any {
            self.change.delete_chunks(number, extent.start, extent.end);
        }
        Ok(())
    }
}
