//! Inodes that changed so shortly before the snapshot that their times do not tell whether they
//! changed after it, too.
//!
//! The kernel stamps the writes that it caches by a clock of few milliseconds. Two writes of one
//! length in one tick, one before the snapshot and one after it, leave the same size and times. So
//! contents and attributes of such an inode are compared, row by row. Of all others a change after
//! the snapshot has left a later time.

use super::tree::DirTree;
use crate::FsResult;
use crate::data::chunks_from;
use crate::locator::RowRange;
use crate::schema::Store;
use stitch_base::clock::Timestamp;
use stitch_db::Scan;
use stitch_format::fs_inode::{FileKind, InodeHead};

/// Longest time by which a stamp can be older than its change, in nanoseconds: ten ticks of the
/// slowest clock that kernels are built with (100 Hz).
const STAMP_LAG_NS: i64 = 100_000_000;

/// Returns the time from which on changes are recent, for a snapshot that was created at a time.
pub(super) const fn recent_since(created: Timestamp) -> i64 {
    created.0.saturating_sub(STAMP_LAG_NS)
}

/// The two sides of a rollback.
#[derive(Clone, Copy, Debug)]
pub(super) struct RollbackSides<'a> {
    pub(super) past: (&'a Store, &'a DirTree),
    pub(super) present: (&'a Store, &'a DirTree),
}

impl RollbackSides<'_> {
    /// Reports whether an inode that both sides have, with the same head, may have changed, and
    /// has: contents and extended attributes are compared.
    pub(super) fn has_changed(&self, was: &InodeHead, is: &InodeHead) -> FsResult<bool> {
        let ((past, old), (present, new)) = (self.past, self.present);
        let ino = was.ino;
        debug_assert_eq!(ino, is.ino, "one inode");
        if !old.is_recent(was) {
            return Ok(false);
        }
        if old.recent_tail(ino) != new.recent_tail(ino) {
            return Ok(true);
        }
        let xattrs = |store: &Store| vec![store.keys.xattrs(ino)];
        if differ((past, &xattrs(past)), (present, &xattrs(present)))? {
            return Ok(true);
        }
        if was.kind != FileKind::Regular {
            return Ok(false);
        }
        let (before, after) = (chunk_ranges(past, was)?, chunk_ranges(present, is)?);
        differ((past, &before), (present, &after))
    }
}

/// Reports whether rows differ behind the numbers that they are under.
fn differ(a: (&Store, &[RowRange]), b: (&Store, &[RowRange])) -> FsResult<bool> {
    let (mut a, mut b) = (Scans::new(a.0, a.1), Scans::new(b.0, b.1));
    loop {
        match (a.next()?, b.next()?) {
            (None, None) => return Ok(false),
            (Some((key, value)), Some((other_key, other_value)))
                if key.get(8..) == other_key.get(8..) && value == other_value => {}
            _ => return Ok(true),
        }
    }
}

/// Returns the ranges that the chunks of a file are in, in the order of their offsets.
pub(super) fn chunk_ranges(store: &Store, head: &InodeHead) -> FsResult<Vec<RowRange>> {
    let pieces = store.pieces_of(head, &chunks_from(0))?;
    let range = |(number, piece)| store.keys.chunks(number, &piece);
    Ok(pieces.into_iter().map(range).collect())
}

/// Key and value of a row.
type Row = (Vec<u8>, Vec<u8>);

/// The rows of several ranges, one after the other.
pub(super) struct Scans<'s> {
    store: &'s Store,
    ranges: std::slice::Iter<'s, RowRange>,
    scan: Option<Box<dyn Scan + 's>>,
}

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
