//! What a memtable's deletes have emptied, written as range deletes.
//!
//! 1. Rows of many deletes are found, one after the other in the order of keys, in whatever order
//!    they were committed, and cut into pieces.
//! 2. Pieces are scanned over as of the memtable's last write, each until too much is still there.
//!    What is empty and long becomes a range delete of that moment.
//! 3. It takes the place of the deletes in the table, as any range delete does; and what it hides
//!    in older sources is never stepped through again, after the next open neither.
//!
//! Invariants:
//! - no reader can tell: those who see the range delete find nothing there anyway, and it hides
//!   nothing that came later;
//! - it is not newer than the memtable, so that the medium never knows of more than was written
//!   out;
//! - it reaches no further than the deletes: the table is no wider for it;
//! - it is never of a branch tree: an absorb gives what was written there to the parent, which may
//!   have got other rows between the deleted ones.

use super::WriteOuts;
use super::writer::MemtableWriter;
use crate::VtError;
use crate::buffer::TABLE_OVERHEAD_BYTES;
use crate::entry::{EntryIter, Op, RangeDelete};
use crate::gaps::{Hint, successor};
use crate::memtable::Memtable;
use crate::read::{EmptyRange, short_row_bytes};
use crate::signals::Worker;
use crate::version::TreeVersion;
use std::collections::BTreeMap;
use stitch_base::{Seqno, TreeId};

/// Most pieces of rows of one memtable that are looked at.
const PIECES_MAX: usize = 1024;
/// A look at one of them ends after so many rows of the tree, which are none that are deleted.
const LOOK_ROWS_MAX: u64 = 64;
/// Every so manieth piece is looked at in any case.
const STRIDE_MAX: usize = 32;
/// A row of so many is looked at where the tables have many deletes.
const ROW_COUNT_MIN: u64 = 64;
/// Keys of the range deletes of one table have at most so many bytes: so much more is always
/// promised.
const KEYS_BYTES_MAX: u64 = TABLE_OVERHEAD_BYTES / 4;
/// A look reads no more than about so many memtables.
const LOOK_MEMTABLES_MAX: u64 = 4;

/// Some of the deletes of a row, and how many.
struct RowPiece {
    keys: Hint,
    count: u64,
    /// It begins where the one before ends.
    goes_on: bool,
}

/// How long a row of deletes is that is worth a look, and pieces of it are.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    row_min: u64,
    piece: u64,
}

impl MemtableWriter<'_> {
    /// Ranges of a tree that are empty for readers that see all of a sealed memtable, the oldest.
    pub(super) fn emptied(&self, tree: &TreeVersion) -> Vec<RangeDelete> {
        if !self.buffer.has_deletes() || tree.is_branch() {
            return Vec::new();
        }
        let mut out = match self.find_emptied(tree) {
            Ok(found) => found,
            Err(error) => {
                // A read of these rows returns the error.
                tracing::debug!(%error, "deletes are written as they are");
                return Vec::new();
            }
        };
        let mut bytes = 0;
        out.retain(|delete| {
            bytes += (delete.start.len() + delete.end.len()) as u64;
            bytes <= KEYS_BYTES_MAX
        });
        debug_assert!(
            out.iter().all(|delete| delete.start < delete.end),
            "ranges hold keys"
        );
        self.counters.emptied_ranges.add(out.len() as u64);
        out
    }

    fn find_emptied(&self, tree: &TreeVersion) -> Result<Vec<RangeDelete>, VtError> {
        let (memtable, seqno) = (&self.buffer.memtable, self.buffer.last_seqno());
        let lengths = self.row_lengths(tree);
        let mut left = self.look_count_max(tree);
        let pieces = pieces_of(memtable, tree.info.id, lengths)?;
        let mut found: BTreeMap<usize, Vec<EmptyRange>> = BTreeMap::new();
        probe(pieces.len(), &mut |at| {
            let Some(rest) = left.checked_sub(pieces[at].count) else {
                return Ok(false);
            };
            left = rest;
            let (ranges, is_whole) =
                self.reads
                    .empty_ranges(&pieces[at].keys, seqno, LOOK_ROWS_MAX)?;
            found.insert(at, ranges);
            Ok(is_whole)
        })?;
        let mut all: Vec<EmptyRange> = Vec::new();
        for range in found.into_values().flatten() {
            match all.last_mut() {
                Some(before) if before.end == range.start => before.join(range),
                _ => all.push(range),
            }
        }
        debug_assert!(
            all.is_sorted_by(|range, next| range.end < next.start),
            "ranges are in order and do not touch"
        );
        let mut out = Vec::new();
        for EmptyRange { start, end, passed } in all {
            let is_long = passed >= lengths.piece
                || memtable.holds(
                    tree.info.id,
                    (&start, &end),
                    self.reads.gap_look_count_min(),
                )?;
            debug_assert!(start < end, "a range is not empty");
            if is_long {
                out.push(RangeDelete { start, end, seqno });
            }
        }
        Ok(out)
    }

    fn row_lengths(&self, tree: &TreeVersion) -> Lengths {
        let tables = tree.tables().map(|(_, table)| table.meta());
        let in_tables: u64 = tables.map(|meta| meta.delete_count).sum();
        let piece = self.reads.gap_run_count();
        let row_min = match in_tables >= piece {
            true => piece.min(ROW_COUNT_MIN),
            false => piece,
        };
        debug_assert!(row_min > 0, "a row has bytes");
        debug_assert!(row_min <= piece, "a piece is as long as a short row");
        Lengths { row_min, piece }
    }

    /// How many deleted rows of a tree may be looked at without reading too much.
    fn look_count_max(&self, tree: &TreeVersion) -> u64 {
        short_row_bytes(self.version, tree.info.id).map_or(0, |row_bytes| {
            debug_assert!(row_bytes > 0, "a row has a key");
            self.reads.memtable_bytes * LOOK_MEMTABLES_MAX / row_bytes
        })
    }
}

impl WriteOuts {
    /// Has the rows of deletes that the backup log held looked at.
    pub(crate) fn hint_replayed(&self) {
        let view = self.views.get();
        for buffer in view.buffers.iter().filter(|buffer| buffer.has_deletes()) {
            for tree in buffer.memtable.trees() {
                let lengths = Lengths {
                    row_min: self.reads.gap_run_count(),
                    piece: u64::MAX,
                };
                // A memtable can always be read.
                let rows = pieces_of(&buffer.memtable, tree, lengths);
                for row in rows.unwrap_or_default() {
                    debug_assert!(!row.goes_on, "a row is in one piece");
                    self.reads.gaps.hint(row.keys);
                    self.signals.wake(Worker::Gaps);
                }
            }
        }
    }
}

/// Looks at pieces in order, and leaves out more and more while nothing comes of it. Where
/// something does, it goes back for what was left out just before.
fn probe(
    count: usize,
    look: &mut dyn FnMut(usize) -> Result<bool, VtError>,
) -> Result<(), VtError> {
    let (mut at, mut left_out_from, mut stride) = (0, 0, 1);
    debug_assert!(count <= PIECES_MAX + 1, "pieces are listed up to a bound");
    while at < count {
        if look(at)? {
            for before in (left_out_from..at).rev() {
                if !look(before)? {
                    break;
                }
            }
            stride = 1;
        } else {
            stride = (stride * 2).min(STRIDE_MAX);
        }
        left_out_from = at + 1;
        at += stride;
    }
    Ok(())
}

/// Rows of deletes in a memtable, in pieces.
fn pieces_of(
    memtable: &Memtable,
    tree: TreeId,
    lengths: Lengths,
) -> Result<Vec<RowPiece>, VtError> {
    debug_assert!(
        lengths.row_min <= lengths.piece,
        "a piece is as long as a short row"
    );
    let mut pieces: Vec<RowPiece> = Vec::new();
    let mut open: Option<RowPiece> = None;
    let is_kept = |piece: &RowPiece| piece.goes_on || piece.count >= lengths.row_min;
    let mut entries = memtable.iter(tree);
    entries.seek(&[], Seqno(u64::MAX))?;
    while let Some(entry) = entries.current()
        && pieces.len() < PIECES_MAX
    {
        match &mut open {
            // An older version of the key.
            Some(piece) if piece.keys.last == entry.key => {}
            Some(piece) if entry.op == Op::Delete && piece.count < lengths.piece => {
                piece.keys.last.clear();
                piece.keys.last.extend_from_slice(entry.key);
                piece.count += 1;
            }
            Some(piece) if entry.op == Op::Delete => {
                let next = RowPiece::new(tree, successor(&piece.keys.last), entry.key, true);
                pieces.extend(open.replace(next));
            }
            None if entry.op == Op::Delete => {
                open = Some(RowPiece::new(tree, entry.key.to_vec(), entry.key, false));
            }
            _ => pieces.extend(open.take().filter(is_kept)),
        }
        entries.next()?;
    }
    pieces.extend(open.filter(is_kept));
    debug_assert!(
        pieces.is_sorted_by(|piece, next| piece.keys.last < next.keys.first),
        "pieces are in order and share no key"
    );
    Ok(pieces)
}

impl RowPiece {
    fn new(tree: TreeId, first: Vec<u8>, last: &[u8], goes_on: bool) -> Self {
        debug_assert!(first.as_slice() <= last, "keys are in order");
        let last = last.to_vec();
        Self {
            keys: Hint { tree, first, last },
            count: 1,
            goes_on,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_looked_at_where_nothing_is_empty() {
        let looked = |count: usize, empty: std::ops::Range<usize>| {
            let mut looked = Vec::new();
            let look = &mut |at: usize| {
                looked.push(at);
                Ok(empty.contains(&at))
            };
            probe(count, look).unwrap();
            looked
        };
        assert_eq!(looked(0, 0..0), Vec::<usize>::new());
        assert_eq!(looked(4, 0..4), [0, 1, 2, 3]);
        assert_eq!(looked(20, 0..0), [0, 2, 6, 14]);
        assert_eq!(looked(1000, 0..0).len(), 35);
        let mut found = looked(300, 100..200);
        found.sort_unstable();
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
        let inside: Vec<usize> = found
            .into_iter()
            .filter(|at| (100..200).contains(at))
            .collect();
        assert_eq!(inside, (100..200).collect::<Vec<_>>());
    }
}
