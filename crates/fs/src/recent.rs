//! Inodes that changed so shortly before a moment that their times do not tell whether they changed
//! after it, too.
//!
//! The kernel stamps the writes that it caches by a clock of few milliseconds. Two writes of one
//! length in one tick, one before the moment and one after it, leave the same size and times:
//!
//! ```text
//!   tick        |--------- 8 ms ---------|
//!                 write a    moment   write b      both have the time at the begin of the tick
//! ```
//!
//! So contents and attributes of such an inode are compared, row by row. Of all others a change
//! after the moment has left a later time.

use crate::FsResult;
use crate::data::chunks_from;
use crate::locator::{RowRange, Tree};
use crate::schema::Store;
use stitch_base::clock::Timestamp;
use stitch_db::Scan;
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_kv::{Engine, KvError, Snapshot};

/// Longest time by which a stamp can be older than its change, in nanoseconds: ten ticks of the
/// slowest clock that kernels are built with (100 Hz).
const STAMP_LAG_NS: i64 = 100_000_000;

/// The time from which on changes are recent, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecentSince(i64);

impl RecentSince {
    /// For a moment that was created at a time.
    pub(crate) const fn of_moment(created: Timestamp) -> Self {
        Self(created.0.saturating_sub(STAMP_LAG_NS))
    }

    /// Reports whether an inode changed so late that its times do not tell of a later change.
    pub(crate) const fn is_recent(self, head: &InodeHead) -> bool {
        head.ctime >= self.0
    }
}

/// An inode at some moment: rows, and its head in them.
pub(crate) type InodeAt<'a> = (&'a Store, &'a InodeHead);

/// Reports whether an inode has the same extended attributes and contents at two moments, beside
/// what is in its own row.
pub(crate) fn has_same_rows(past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
    let ino = past.1.ino;
    debug_assert_eq!(ino, present.1.ino, "one inode");
    let xattrs = |store: &Store| [store.keys.xattrs(ino)];
    let (before, after) = (xattrs(past.0), xattrs(present.0));
    let sides = ((past.0, &before[..]), (present.0, &after[..]));
    Ok(are_same(sides, |scan| scan.next())? && has_same_contents(past, present)?)
}

/// Reports whether an inode has the same contents at two moments, if any, beside what is in its own
/// row. A chunk that is not there is one of zeros.
pub(crate) fn has_same_contents(past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
    if past.1.kind != FileKind::Regular {
        return Ok(true);
    }
    let (before, after) = (chunk_ranges(past)?, chunk_ranges(present)?);
    let sides = ((past.0, &before[..]), (present.0, &after[..]));
    are_same(sides, |scan| scan.next_with_bytes())
}

/// Ranges of rows of a store.
type Ranges<'s> = (&'s Store, &'s [RowRange]);

/// Reports whether rows are the same behind the numbers that they are under.
fn are_same(
    (past, present): (Ranges<'_>, Ranges<'_>),
    next: for<'s> fn(&mut Scans<'s>) -> FsResult<Option<Row>>,
) -> FsResult<bool> {
    let mut before = Scans::new(past.0, past.1);
    let mut after = Scans::new(present.0, present.1);
    loop {
        match (next(&mut before)?, next(&mut after)?) {
            (None, None) => return Ok(true),
            (Some((key, value)), Some((other_key, other_value)))
                if key.get(8..) == other_key.get(8..) && value == other_value => {}
            _ => return Ok(false),
        }
    }
}

/// Returns the ranges that the chunks of a file are in, in the order of their offsets.
pub(crate) fn chunk_ranges((store, head): InodeAt<'_>) -> FsResult<Vec<RowRange>> {
    let pieces = store.pieces_of(head, &chunks_from(0))?;
    let range = |(number, piece)| store.keys.chunks(number, &piece);
    Ok(pieces.into_iter().map(range).collect())
}

/// Returns the bytes of a chunk up to the last one that is not zero.
pub(crate) fn without_zeros(chunk: &[u8]) -> &[u8] {
    let last = chunk.iter().rposition(|byte| *byte != 0);
    &chunk[..last.map_or(0, |last| last + 1)]
}

/// Key and value of a row.
type Row = (Vec<u8>, Vec<u8>);

/// The rows of several ranges, one after the other.
pub(crate) struct Scans<'s> {
    store: &'s Store,
    ranges: std::slice::Iter<'s, RowRange>,
    scan: Option<Box<dyn Scan + 's>>,
}

impl<'s> Scans<'s> {
    pub(crate) fn new(store: &'s Store, ranges: &'s [RowRange]) -> Self {
        Self {
            store,
            ranges: ranges.iter(),
            scan: None,
        }
    }

    pub(crate) fn next(&mut self) -> FsResult<Option<Row>> {
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

    /// Returns the next chunk with anything but zeros, without the zeros at its end.
    fn next_with_bytes(&mut self) -> FsResult<Option<Row>> {
        while let Some((key, mut value)) = self.next()? {
            value.truncate(without_zeros(&value).len());
            if !value.is_empty() {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

/// What was written between two moments, where the engine can list it. It spares the comparison of
/// a large file that was not written.
pub(crate) struct WrittenBetween<'e> {
    engine: &'e dyn Engine,
    from: Snapshot,
    /// The present for `None`.
    to: Option<Snapshot>,
}

impl<'e> WrittenBetween<'e> {
    pub(crate) fn new(engine: &'e dyn Engine, from: Snapshot, to: Option<Snapshot>) -> Self {
        debug_assert!(
            to.as_ref().is_none_or(|to| to.seqno() >= from.seqno()),
            "the first moment is not later"
        );
        Self { engine, from, to }
    }

    /// Reports whether an inode that both moments have, with the same row, has other extended
    /// attributes or contents at the second one.
    ///
    /// # Cost
    /// That of listing what was written of it; if anything was, of reading all of it.
    pub(crate) fn has_changed(&self, past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
        Ok(self.may_have_changed(past, present)? && !has_same_rows(past, present)?)
    }

    fn may_have_changed(&self, past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
        let mut ranges = vec![past.0.keys.xattrs(past.1.ino)];
        if past.1.kind == FileKind::Regular {
            let chunks = chunk_ranges(past)?;
            if chunks != chunk_ranges(present)? {
                return Ok(true);
            }
            ranges.extend(chunks);
        }
        for range in &ranges {
            if self.may_hold_other(present.0, range)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn may_hold_other(&self, store: &Store, range: &RowRange) -> FsResult<bool> {
        debug_assert!(
            matches!(range.tree(), Tree::Data | Tree::Xattr),
            "rows of one inode"
        );
        let (tree, ends) = (store.tree(range.tree()), (&self.from, self.to.as_ref()));
        match self.engine.keys_between(tree, range.keys(), ends, 1) {
            // It does not list them, or not of this tree.
            Err(KvError::Unsupported(_) | KvError::NoTree(_)) => Ok(true),
            keys => Ok(!keys?.is_empty()),
        }
    }
}
