//! Contents that a file shared, or shares: their chunks become its own.

use super::super::plan::Target;
use super::Restore;
use crate::FsResult;
use crate::contents::Contents;
use crate::data::chunks_from;
use crate::locator::RowRange;
use crate::schema::Store;
use crate::shared::pieces;
use stitch_base::Ino;
use stitch_db::Scan;
use stitch_format::fs_shared::SharedRow;

/// The rows of several ranges, one after the other.
pub(super) struct Scans<'s> {
    store: &'s Store,
    ranges: std::slice::Iter<'s, RowRange>,
    scan: Option<Box<dyn Scan + 's>>,
}

/// Key and value of a row.
type Row = (Vec<u8>, Vec<u8>);

impl<'s> Scans<'s> {
    pub(super) fn new(store: &'s Store, ranges: &'s [RowRange]) -> Self {
        Self {
            store,
            ranges: ranges.iter(),
            scan: None,
        }
    }

    pub(super) fn next(&mut self) -> FsResult<Option<Row>> {
        loop {
            if let Some(scan) = &mut self.scan
                && let Some((key, value)) = scan.next()?
            {
                return Ok(Some((key.to_vec(), value.to_vec())));
            }
            let Some(range) = self.ranges.next() else {
                return Ok(None);
            };
            self.scan = Some(self.store.scan(range)?);
        }
    }
}

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

    /// The ranges that the chunks of a file of the snapshot are in, in the order of their numbers.
    pub(super) fn chunks_of(&self, ino: Ino) -> FsResult<Vec<RowRange>> {
        let seen = self.was.get(ino).map(|seen| seen.head);
        let is_shared =
            seen.is_some_and(|head| Contents::of_inode(&head) == Some(Contents::Shared));
        if !is_shared {
            return Ok(vec![self.past.keys.chunks_from(ino, 0)]);
        }
        let pieces = pieces(&self.past.shared_row(ino)?, &chunks_from(0));
        let range = |(number, piece)| self.past.keys.chunks(number, &piece);
        Ok(pieces.into_iter().map(range).collect())
    }
}
