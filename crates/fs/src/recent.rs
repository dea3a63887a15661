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
//! So contents and attributes of such an inode are compared, where the engine lists any of their
//! keys as written after the moment. Of all others a change after the moment has left a later time.

use crate::data::chunks_from;
use crate::locator::{Locator, RowRange, Tree};
use crate::schema::Store;
use crate::shared::Piece;
use crate::{FsError, FsResult};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_db::Scan;
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_kv::{Engine, KvError, Snapshot};

/// Longest time by which a stamp can be older than its change, in nanoseconds: ten ticks of the
/// slowest clock that kernels are built with (100 Hz).
const STAMP_LAG_NS: i64 = 100_000_000;
/// Keys that the engine is asked for at a time.
const PAGE: usize = 1024;

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

/// A store, and the number of chunks in it.
type Chunks<'s> = (&'s Store, Ino);

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

/// Reports whether chunks of two stores have the same bytes, each under a number.
fn has_same_chunks(past: Chunks<'_>, present: Chunks<'_>, chunks: &Range<u64>) -> FsResult<bool> {
    debug_assert!(chunks.start <= chunks.end, "a range of chunks");
    let rows = |(store, number): Chunks<'_>| [store.keys.chunks(number, chunks)];
    let (before, after) = (rows(past), rows(present));
    let sides = ((past.0, &before[..]), (present.0, &after[..]));
    are_same(sides, |scan| scan.next_with_bytes())
}

/// Returns the chunks of a range that two stores do not both have as the same row, each under a
/// number. A chunk of zeros is not the same as none: files count those that are there.
pub(crate) fn changed_chunks(
    (past, present): (Chunks<'_>, Chunks<'_>),
    chunks: &Range<u64>,
) -> FsResult<Vec<Range<u64>>> {
    debug_assert!(chunks.start <= chunks.end, "a range of chunks");
    let rows = |(store, number): Chunks<'_>| [store.keys.chunks(number, chunks)];
    let (old_rows, new_rows) = (rows(past), rows(present));
    let mut before = Scans::new(past.0, &old_rows);
    let mut after = Scans::new(present.0, &new_rows);
    let (mut old, mut new) = (before.next()?, after.next()?);
    let mut changed = Vec::new();
    loop {
        let number = |row: &Option<Row>| row.as_ref().map(|(key, _)| chunk_number(key)).transpose();
        let (at_old, at_new) = (number(&old)?, number(&new)?);
        let Some(at) = at_old.into_iter().chain(at_new).min() else {
            break;
        };
        debug_assert!(chunks.contains(&at), "rows of the range");
        let is_same = at_old == at_new
            && old.as_ref().map(|(_, bytes)| bytes) == new.as_ref().map(|(_, bytes)| bytes);
        if !is_same {
            changed.push(at);
        }
        if at_old == Some(at) {
            old = before.next()?;
        }
        if at_new == Some(at) {
            new = after.next()?;
        }
    }
    Ok(runs(changed.into_iter()))
}

/// Returns the number in the key of a chunk.
fn chunk_number(key: &[u8]) -> FsResult<u64> {
    let number = Locator::chunk_of(key);
    number.ok_or_else(|| FsError::Corrupt("contents have a chunk without number".to_owned()))
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
    let bytes = &chunk[..last.map_or(0, |last| last + 1)];
    debug_assert!(bytes.last() != Some(&0), "zeros at the end are cut off");
    bytes
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

/// What was written between two moments, where the engine can list it. Chunks of a large file that
/// were not written are not read.
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
    /// That of listing what was written of it, and of reading the chunks that were, up to the first
    /// difference. Of a file that shares contents at one of the moments, also the chunks that are
    /// under another number at the other one.
    pub(crate) fn has_changed(&self, past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
        debug_assert_eq!(past.1.ino, present.1.ino, "one inode");
        debug_assert_eq!(past.1.kind, present.1.kind, "a type never changes");
        Ok(self.has_other_xattrs(past, present)? || self.has_other_contents(past, present)?)
    }

    fn has_other_xattrs(&self, past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
        let rows = [past.0.keys.xattrs(past.1.ino)];
        let written = self.written_keys(present.0, &rows[0], 1)?;
        if written.is_some_and(|keys| keys.is_empty()) {
            return Ok(false);
        }
        let sides = ((past.0, &rows[..]), (present.0, &rows[..]));
        Ok(!are_same(sides, |scan| scan.next())?)
    }

    fn has_other_contents(&self, past: InodeAt<'_>, present: InodeAt<'_>) -> FsResult<bool> {
        if past.1.kind != FileKind::Regular {
            return Ok(false);
        }
        let pieces = |(store, head): InodeAt<'_>| store.pieces_of(head, &chunks_from(0));
        for (chunks, (old, new)) in aligned(&pieces(past)?, &pieces(present)?) {
            let is_other = match old == new {
                // Of those under the same number, only chunks that were written are read.
                true => !self.each_run(present.0, (old, chunks), |run| {
                    has_same_chunks((past.0, old), (present.0, old), run)
                })?,
                false => !has_same_chunks((past.0, old), (present.0, new), &chunks)?,
            };
            if is_other {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `visit` with runs of chunks under a number, in order, until it returns false. All that
    /// were written are in them; those of an engine that does not list them are one run. Returns
    /// what `visit` returned last, or true.
    pub(crate) fn each_run(
        &self,
        store: &Store,
        (number, mut chunks): Piece,
        mut visit: impl FnMut(&Range<u64>) -> FsResult<bool>,
    ) -> FsResult<bool> {
        debug_assert!(chunks.start <= chunks.end, "a range of chunks");
        loop {
            let rows = store.keys.chunks(number, &chunks);
            let Some(keys) = self.written_keys(store, &rows, PAGE)? else {
                return visit(&chunks);
            };
            let written = runs(keys.iter().filter_map(|key| Locator::chunk_of(key)));
            for run in &written {
                debug_assert!(chunks.start <= run.start, "a run lies in the range");
                debug_assert!(run.end <= chunks.end, "a run lies in the range");
                if !visit(run)? {
                    return Ok(false);
                }
            }
            match written.last() {
                Some(last) if keys.len() == PAGE && last.end < chunks.end => {
                    debug_assert!(last.end > chunks.start, "each page comes further");
                    chunks.start = last.end;
                }
                _ => return Ok(true),
            }
        }
    }

    /// Returns the first keys of a range that were written; `None` if the engine does not list
    /// them, or not of this tree.
    fn written_keys(
        &self,
        store: &Store,
        range: &RowRange,
        count_max: usize,
    ) -> FsResult<Option<Vec<Vec<u8>>>> {
        debug_assert!(count_max > 0, "some keys are asked for");
        debug_assert!(
            matches!(range.tree(), Tree::Data | Tree::Xattr),
            "rows of one inode"
        );
        let (tree, ends) = (store.tree(range.tree()), (&self.from, self.to.as_ref()));
        match self
            .engine
            .keys_between(tree, range.keys(), ends, count_max)
        {
            Err(KvError::Unsupported(_) | KvError::NoTree(_)) => Ok(None),
            keys => {
                let keys = keys?;
                debug_assert!(keys.len() <= count_max, "no more than was asked for");
                debug_assert!(keys.is_sorted(), "keys come in order");
                Ok(Some(keys))
            }
        }
    }
}

/// Cuts a file into ranges of chunks that are under one number on each side. Both sides have all of
/// its chunks, in order:
///
/// ```text
///   old   |--- 16 ---|------ 20 ------|
///   new   |------ 16 ------|--- 20 ---|
///            (16,16)  (20,16)  (20,20)
/// ```
fn aligned(old: &[Piece], new: &[Piece]) -> Vec<(Range<u64>, (Ino, Ino))> {
    let mut cut = Vec::with_capacity(old.len() + new.len());
    let (mut in_old, mut in_new, mut at) = (0, 0, 0);
    while let (Some((before, old)), Some((after, new))) = (old.get(in_old), new.get(in_new)) {
        debug_assert!(old.start <= at, "no chunk is left out");
        debug_assert!(new.start <= at, "no chunk is left out");
        debug_assert!(at <= old.end, "pieces come in order");
        debug_assert!(at <= new.end, "pieces come in order");
        let end = old.end.min(new.end);
        debug_assert!(at < end, "each cut has chunks");
        cut.push((at..end, (*before, *after)));
        in_old += usize::from(old.end == end);
        in_new += usize::from(new.end == end);
        at = end;
    }
    debug_assert!(cut.len() <= old.len() + new.len(), "each cut ends a piece");
    debug_assert_eq!(
        in_old == old.len(),
        in_new == new.len(),
        "both sides have all chunks"
    );
    cut
}

/// Joins numbers that follow each other.
fn runs(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        debug_assert!(
            runs.last().is_none_or(|last| last.end <= number),
            "numbers come in order, each once"
        );
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    debug_assert!(
        runs.windows(2).all(|pair| pair[0].end < pair[1].start),
        "runs do not touch"
    );
    runs
}

/// Returns a number that stands for the bytes behind a head. Two inodes with the same one are taken
/// to have the same bytes.
pub(crate) fn hash_of(tail: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tail.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_where_either_side_changes_its_number() {
        let (one, other) = (Ino(16), Ino(20));
        let old = [(one, 0..3), (other, 3..9)];
        let new = [(one, 0..5), (other, 5..9)];
        let cut = [
            (0..3, (one, one)),
            (3..5, (other, one)),
            (5..9, (other, other)),
        ];
        assert_eq!(aligned(&old, &new), cut);
        assert_eq!(aligned(&old, &old).len(), 2);
    }

    #[test]
    fn numbers_that_follow_each_other_are_one_run() {
        assert_eq!(
            runs([3, 4, 5, 9, 11, 12].into_iter()),
            [3..6, 9..10, 11..13]
        );
        assert_eq!(runs(std::iter::empty()), []);
    }
}
