//! Rows of allocated extents: the chunks of a file that have blocks, written or not.
//!
//! A file gets them with its first `fallocate` of what it has no blocks for, and the row flag
//! `ALLOCATED`. From then on `chunks` of its row counts them. A file loses them when it is cut to
//! nothing, leaves the store, or has every chunk written.
//!
//! Invariants, of a file with the flag:
//! - every chunk of a written extent exists; one of an unwritten extent may;
//! - `chunks` is at least the number of chunks in extents. It is equal, and no chunk exists
//!   elsewhere, unless the file had more than [`SCANNED_MAX`] chunks and holes before;
//! - the row [`SYS_UNWRITTEN`](stitch_format::fs_key::SYS_UNWRITTEN) has the number of chunks in
//!   unwritten extents of all files.

use super::extent_maps::{EXTENTS_MAX, KnownExtents};
use super::extents::{Edit, Extent, cover, edited, push, totals};
use super::{Staged, chunk_count};
use crate::change::Change;
use crate::events::Event;
use crate::inode::Inode;
use crate::locator::{Locator, SysRow};
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_sys::{AllocatedRow, ExtentState};

/// Most chunks of a sparse file that are looked for when it gets rows of extents.
const SCANNED_MAX: u64 = 1024;
/// Most extents that one batch changes.
const BATCH_EXTENTS_MAX: u64 = 4096;
/// Bytes of messages that an extent may take in a batch.
const EXTENT_BYTES: u64 = 128;
/// Rows up to which extents are deleted one by one.
const POINT_DELETES_MAX: usize = 16;
/// After every chunk.
const LAST: u64 = u64::MAX;

/// Extents that a change begins with.
struct Before {
    extents: Vec<Extent>,
    /// They are rows, and not those of a file that has none yet.
    are_rows: bool,
}

impl FileSystem {
    /// Returns an extent of a row, after those that end at `before`.
    fn extent_of(ino: Ino, before: u64, (key, row): (&[u8], &[u8])) -> FsResult<Extent> {
        let corrupt = || FsError::Corrupt(format!("extents of inode {ino} are damaged"));
        let Some(SysRow::Extent(_, end)) = Locator::sys_row(key) else {
            return Err(corrupt());
        };
        let AllocatedRow { start, state } = AllocatedRow::decode(row)?;
        if start < before || start >= end {
            return Err(corrupt());
        }
        Ok(Extent { start, end, state })
    }

    /// Calls `visit` with the extents that end at `range.start` or after it, up to those that start
    /// at its end, until it returns false.
    fn visit_extents(
        &self,
        ino: Ino,
        range: &Range<u64>,
        visit: impl FnMut(Extent) -> bool,
    ) -> FsResult<()> {
        match self.known_extents(ino)? {
            KnownExtents::All(extents) => {
                let first = extents.partition_point(|extent| extent.end < range.start);
                let near = extents[first..].iter().copied();
                near.take_while(|extent| extent.start <= range.end)
                    .all(visit);
                Ok(())
            }
            KnownExtents::Many => self.scan_extents(ino, range, visit),
        }
    }

    /// Returns what is known of the extents of a file, after reading its rows if nothing was.
    fn known_extents(&self, ino: Ino) -> FsResult<KnownExtents> {
        if let Some(known) = self.extents.get(ino) {
            return Ok(known);
        }
        let mut extents = Vec::new();
        self.scan_extents(ino, &Self::chunks_from(0), |extent| {
            extents.push(extent);
            extents.len() <= EXTENTS_MAX
        })?;
        self.extents.set(ino, Some(extents));
        Ok(self.extents.get(ino).unwrap_or(KnownExtents::Many))
    }

    /// Does what [`Self::visit_extents`] does, from the rows.
    fn scan_extents(
        &self,
        ino: Ino,
        range: &Range<u64>,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> FsResult<()> {
        let rows = self.store.keys.extents_from(ino, range.start);
        let mut scan = self.store.scan(&rows)?;
        let mut before = 0;
        while let Some(entry) = scan.next()? {
            let extent = Self::extent_of(ino, before, entry)?;
            before = extent.end;
            // The scan ends with an extent that ends beyond the range: to find the next one it
            // would have to pass the deleted rows that sequential writes leave behind.
            if extent.start > range.end || !visit(extent) || extent.end > range.end {
                break;
            }
        }
        Ok(())
    }

    /// Returns the extents that overlap or touch `range`.
    pub(super) fn extents_at(&self, ino: Ino, range: &Range<u64>) -> FsResult<Vec<Extent>> {
        let mut extents = Vec::new();
        self.visit_extents(ino, range, |extent| {
            extents.push(extent);
            true
        })?;
        Ok(extents)
    }

    /// Returns where a change of the extents in `range` has to stop, so that it fits a batch.
    pub(super) fn extents_stop(&self, inode: &Inode, range: &Range<u64>) -> FsResult<u64> {
        let mut stop = range.end;
        let batch_bytes = self.engine().limits().batch_bytes_max;
        let count_max = BATCH_EXTENTS_MAX.min(batch_bytes / 2 / EXTENT_BYTES);
        if inode.head.has(row_flag::ALLOCATED) {
            let mut count = 0_u64;
            self.visit_extents(inode.head.ino, range, |extent| {
                count += 1;
                if count == count_max && extent.end > range.start {
                    stop = extent.end.min(range.end);
                }
                count < count_max
            })?;
        }
        Ok(stop)
    }

    /// Stages that chunks of `range` have blocks, and that those of `unwritten`, which is within
    /// it, have none of what was in them.
    pub(super) fn stage_allocated(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
        unwritten: &Range<u64>,
    ) -> FsResult<()> {
        let full = chunk_count(staged.head.size);
        if !staged.head.has(row_flag::HOLES) && range.end <= full && unwritten.is_empty() {
            return Ok(());
        }
        self.mark_header(|header| header.has_allocated = true)?;
        let before = self.first_extents(staged, range)?;
        let new = edited(&before.extents, unwritten, Edit::Unwrite);
        let new = edited(&new, range, Edit::Allocate);
        if !before.are_rows {
            // What there may be of other chunks is not in the range.
            let (known, _) = totals(&before.extents);
            let below = range.end.min(full).saturating_sub(range.start);
            let others = (staged.head.chunks - known).min(full.saturating_sub(below));
            staged.head.chunks = known + others;
        }
        if before.are_rows && range.start == 0 && range.end >= full {
            // No chunk is elsewhere.
            let mut chunks = 0;
            self.visit_extents(staged.head.ino, &Self::chunks_from(0), |extent| {
                chunks += extent.chunks();
                true
            })?;
            staged.head.chunks = chunks;
        }
        self.put_extents(change, staged, &before, &new);
        Ok(())
    }

    /// Returns the extents that a change of `range` needs: rows, or those of a file without rows.
    fn first_extents(&self, staged: &mut Staged, range: &Range<u64>) -> FsResult<Before> {
        let ino = staged.head.ino;
        if staged.head.has(row_flag::ALLOCATED) {
            let extents = self.extents_at(ino, range)?;
            return Ok(Before {
                extents,
                are_rows: true,
            });
        }
        let full = chunk_count(staged.head.size);
        let mut extents = Vec::new();
        if !staged.head.has(row_flag::HOLES) {
            push(&mut extents, 0, full, ExtentState::Written);
            staged.head.chunks = full;
        } else if (1..=SCANNED_MAX).contains(&staged.head.chunks) {
            let own = staged.number();
            let mut scan = self.store.scan(&self.store.keys.chunks_from(own, 0))?;
            while let Some((key, _)) = scan.next()? {
                let number = Locator::chunk_of(key).ok_or(FsError::Corrupt(format!(
                    "inode {ino} has a chunk without number"
                )))?;
                push(&mut extents, number, number + 1, ExtentState::Written);
            }
            (staged.head.chunks, _) = totals(&extents);
        }
        self.residents.inodes.note_counted(ino, None);
        staged.head.flags |= row_flag::HOLES | row_flag::ALLOCATED;
        Ok(Before {
            extents,
            are_rows: false,
        })
    }

    /// Stages that the chunks of `range` are written, of a file with rows of extents.
    pub(super) fn stage_written(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(staged.head.has(row_flag::ALLOCATED), "it has extents");
        let extents = self.extents_at(staged.head.ino, range)?;
        if cover(&extents, range) {
            change.fill_allocated();
        }
        let new = edited(&extents, range, Edit::Write);
        let before = Before {
            extents,
            are_rows: true,
        };
        self.put_extents(change, staged, &before, &new);
        Ok(())
    }

    /// Stages that chunks from `cut` on have no blocks, and then that those of `written`, which are
    /// in order and apart, are written. The size is staged, of a file with rows of extents.
    ///
    /// ```text
    /// old       |-----U-----|     |--W--|   |--U--|
    /// written        |==|                              cut
    /// new       |-U-||W-|-U-|     |--W--|               |
    /// ```
    ///
    /// # Errors
    /// [`FsError::FileTooBig`] if more than [`BATCH_EXTENTS_MAX`] extents are concerned.
    pub(super) fn stage_rewritten(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        cut: Option<u64>,
        written: &[Range<u64>],
    ) -> FsResult<()> {
        debug_assert!(staged.head.has(row_flag::ALLOCATED), "it has extents");
        let first = written.first().map_or(LAST, |range| range.start);
        let last = written.last().map_or(0, |range| range.end);
        let range = match cut {
            Some(cut) => first.min(cut)..LAST,
            None => first..last,
        };
        if range.is_empty() {
            return Ok(());
        }
        let extents = self.some_extents_at(staged.head.ino, &range)?;
        let mut new = match cut {
            Some(cut) => cleared_of(&extents, &Self::chunks_from(cut)).unwrap_or_default(),
            None => extents.clone(),
        };
        if !written.is_empty() && written.iter().all(|range| cover(&new, range)) {
            change.fill_allocated();
        }
        for range in written {
            new = edited(&new, range, Edit::Write);
        }
        let before = Before {
            extents,
            are_rows: true,
        };
        self.put_extents(change, staged, &before, &new);
        if cut.is_some() {
            staged.head.chunks = staged.head.chunks.min(chunk_count(staged.head.size));
        }
        Ok(())
    }

    /// Does what [`Self::extents_at`] does, for a batch that may change all of them.
    fn some_extents_at(&self, ino: Ino, range: &Range<u64>) -> FsResult<Vec<Extent>> {
        let mut extents = Vec::new();
        self.visit_extents(ino, range, |extent| {
            extents.push(extent);
            extents.len() as u64 <= BATCH_EXTENTS_MAX
        })?;
        match extents.len() as u64 <= BATCH_EXTENTS_MAX {
            true => Ok(extents),
            false => Err(FsError::FileTooBig),
        }
    }

    /// Stages that the chunks of `range` have no blocks.
    pub(super) fn stage_cleared(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
    ) -> FsResult<()> {
        if !staged.head.has(row_flag::ALLOCATED) || range.is_empty() {
            return Ok(());
        }
        let ino = staged.head.ino;
        let cleared = self.delete_extents(change, ino, range)?;
        staged.head.chunks = staged.head.chunks.saturating_sub(cleared);
        Ok(())
    }

    /// Adds that the extents of `range` go, up to what is left of the first and the last. Returns
    /// how many chunks were in them. After an error nothing was added.
    pub(crate) fn delete_extents(
        &self,
        change: &mut Change<'_>,
        ino: Ino,
        range: &Range<u64>,
    ) -> FsResult<u64> {
        let (mut cleared, mut unwritten) = (0, 0);
        let mut ends = Vec::new();
        let mut count = 0;
        let mut left = Vec::new();
        self.visit_extents(ino, range, |extent| {
            let within = Extent {
                start: extent.start.max(range.start),
                end: extent.end.min(range.end),
                ..extent
            };
            if within.start >= within.end {
                return true;
            }
            cleared += within.chunks();
            unwritten += within.unwritten();
            push(&mut left, extent.start, within.start, extent.state);
            push(&mut left, within.end, extent.end, extent.state);
            count += 1;
            if ends.len() < POINT_DELETES_MAX {
                ends.push(extent.end);
            }
            true
        })?;
        if count <= POINT_DELETES_MAX {
            for end in ends {
                change.delete_extent(ino, end);
            }
        } else {
            let rows = self.store.keys.extents_ending_in(ino, range);
            change.batch.delete_range(&rows);
        }
        for extent in left {
            change.put_extent(ino, extent.end, &extent.row());
        }
        change.unwritten_added -= signed(unwritten);
        if let Some(KnownExtents::All(extents)) = self.extents.get(ino) {
            let left = cleared_of(&extents, range);
            change.events.push(Event::ExtentsChanged(ino, left));
        }
        Ok(cleared)
    }

    /// Stages what is different of extents, and what the row counts of them. A file that has every
    /// chunk needs no rows any more.
    fn put_extents(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        before: &Before,
        new: &[Extent],
    ) {
        let ino = staged.head.ino;
        let is_ordinary = put_rows(change, staged, before, new);
        let left = match self.extents.get(ino) {
            _ if is_ordinary => None,
            _ if !before.are_rows => Some(new.to_vec()),
            Some(KnownExtents::All(all)) => Some(replaced(&all, &before.extents, new)),
            // They stay too many.
            _ => return,
        };
        change.events.push(Event::ExtentsChanged(ino, left));
    }

    /// Every chunk of a file from this one on.
    pub(crate) const fn chunks_from(start: u64) -> Range<u64> {
        start..LAST
    }
}

/// Stages the rows that are different, and what the inode's row counts of them. Reports whether the
/// file has every chunk, and so no rows any more.
fn put_rows(change: &mut Change<'_>, staged: &mut Staged, before: &Before, new: &[Extent]) -> bool {
    let ino = staged.head.ino;
    let (old_chunks, old_unwritten) = totals(&before.extents);
    let (chunks, unwritten) = totals(new);
    staged.head.chunks = (staged.head.chunks + chunks).saturating_sub(old_chunks);
    let old_unwritten = if before.are_rows { old_unwritten } else { 0 };
    change.unwritten_added += signed(unwritten) - signed(old_unwritten);
    let full = chunk_count(staged.head.size);
    let is_whole =
        matches!(new, [one] if one.start == 0 && one.end == full && one.unwritten() == 0);
    let is_ordinary = is_whole && staged.head.chunks == full;
    let rows = if is_ordinary { &[] } else { new };
    let old = if before.are_rows {
        &before.extents[..]
    } else {
        &[]
    };
    for extent in old {
        if rows.binary_search_by_key(&extent.end, |e| e.end).is_err() {
            change.delete_extent(ino, extent.end);
        }
    }
    for extent in rows {
        let same = old.binary_search_by_key(&extent.end, |e| e.end);
        if same.is_ok_and(|at| old[at] == *extent) {
            continue;
        }
        change.put_extent(ino, extent.end, &extent.row());
    }
    if is_ordinary {
        staged.head.flags &= !(row_flag::HOLES | row_flag::ALLOCATED);
        staged.head.chunks = 0;
    }
    is_ordinary
}

/// Returns all extents, with `new` instead of `old`, which is a part of them.
fn replaced(all: &[Extent], old: &[Extent], new: &[Extent]) -> Vec<Extent> {
    let at = match (old.first(), new.first()) {
        (Some(first), _) | (None, Some(first)) => {
            all.partition_point(|extent| extent.start < first.start)
        }
        (None, None) => 0,
    };
    [&all[..at], new, &all[at + old.len()..]].concat()
}

/// Returns the extents without `range`; `None` if none is left.
fn cleared_of(all: &[Extent], range: &Range<u64>) -> Option<Vec<Extent>> {
    let mut left = Vec::with_capacity(all.len() + 1);
    for extent in all {
        let (start, end) = (extent.start, extent.end);
        push(&mut left, start, end.min(range.start), extent.state);
        push(&mut left, start.max(range.end), end, extent.state);
    }
    (!left.is_empty()).then_some(left)
}

fn signed(chunks: u64) -> i64 {
    i64::try_from(chunks).expect("fewer than 2^51 chunks in a file")
}
