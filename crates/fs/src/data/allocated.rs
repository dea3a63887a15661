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

use super::extent_maps::KnownExtents;
use super::extents::{
    Edit, Extent, are_apart, cleared_of, cover, edited, push, replaced, signed, totals,
};
use super::{ContentChanges, Staged, chunk_count, chunks_from};
use crate::change::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::locator::Locator;
use crate::{FsError, FsResult};
use std::ops::Range;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_sys::ExtentState;

/// Most chunks of a sparse file that are looked for when it gets rows of extents.
const SCANNED_MAX: u64 = 1024;
/// Extents that a change begins with.
struct Before {
    extents: Vec<Extent>,
    /// They are rows, and not those of a file that has none yet.
    are_rows: bool,
}

impl ContentChanges<'_> {
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
        debug_assert!(
            Contents::of(&staged.head).are_chunks(),
            "the host allocates what is beside the store"
        );
        debug_assert!(!range.is_empty(), "some chunks are allocated");
        debug_assert!(
            unwritten.is_empty() || (range.start <= unwritten.start && unwritten.end <= range.end),
            "what loses its contents is a part of the range"
        );
        if !staged.head.has(row_flag::HOLES) && range.end <= full && unwritten.is_empty() {
            return Ok(());
        }
        self.changes
            .mark_header(|header| header.has_allocated = true)?;
        let before = self.first_extents(staged, range)?;
        let new = edited(&before.extents, unwritten, Edit::Unwrite);
        let new = edited(&new, range, Edit::Allocate);
        debug_assert!(cover(&new, range), "every chunk of the range has a block");
        if !before.are_rows {
            // What there may be of other chunks is not in the range.
            let (known, _) = totals(&before.extents);
            let below = range.end.min(full).saturating_sub(range.start);
            debug_assert!(known <= staged.head.chunks, "what is known was counted");
            let others = (staged.head.chunks - known).min(full.saturating_sub(below));
            staged.head.chunks = known + others;
        }
        if before.are_rows && range.start == 0 && range.end >= full {
            // No chunk is elsewhere.
            let mut chunks = 0;
            self.extents
                .visit(staged.head.ino, &chunks_from(0), |extent| {
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
        debug_assert!(range.start < range.end, "some chunks are allocated");
        if staged.head.has(row_flag::ALLOCATED) {
            let extents = self.extents.at(ino, range)?;
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
            let mut scan = self
                .contents
                .store
                .scan(&self.contents.store.keys.chunks_from(own, 0))?;
            while let Some((key, _)) = scan.next()? {
                let number = Locator::chunk_of(key).ok_or(FsError::Corrupt(format!(
                    "inode {ino} has a chunk without number"
                )))?;
                push(&mut extents, number, number + 1, ExtentState::Written);
            }
            (staged.head.chunks, _) = totals(&extents);
        }
        self.inodes().note_counted(ino, None);
        staged.head.flags |= row_flag::HOLES | row_flag::ALLOCATED;
        debug_assert!(are_apart(&extents), "chunks come in order");
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
        debug_assert!(!range.is_empty(), "a write is in chunks");
        debug_assert!(staged.head.has(row_flag::ALLOCATED), "it has extents");
        let extents = self.extents.at(staged.head.ino, range)?;
        if cover(&extents, range) {
            change.fill_allocated();
        }
        let new = edited(&extents, range, Edit::Write);
        debug_assert!(cover(&new, range), "every chunk of the range has a block");
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
    /// [`FsError::FileTooBig`] if more than a batch takes of extents are concerned.
    pub(super) fn stage_rewritten(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        cut: Option<u64>,
        written: &[Range<u64>],
    ) -> FsResult<()> {
        debug_assert!(staged.head.has(row_flag::ALLOCATED), "it has extents");
        let first = written.first().map_or(u64::MAX, |range| range.start);
        let last = written.last().map_or(0, |range| range.end);
        debug_assert!(
            written.windows(2).all(|pair| pair[0].end < pair[1].start),
            "what is written comes in order and apart"
        );
        debug_assert!(
            cut.is_none_or(|cut| cut <= chunk_count(staged.head.size)),
            "it cuts the file"
        );
        let range = match cut {
            Some(cut) => chunks_from(first.min(cut)),
            None => first..last,
        };
        if range.is_empty() {
            return Ok(());
        }
        let extents = self.extents.some_at(staged.head.ino, &range)?;
        let mut new = match cut {
            Some(cut) => cleared_of(&extents, &chunks_from(cut)).unwrap_or_default(),
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

    /// Stages that the chunks of `range` have no blocks.
    pub(super) fn stage_cleared(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(range.start <= range.end, "a range of chunks");
        if !staged.head.has(row_flag::ALLOCATED) || range.is_empty() {
            return Ok(());
        }
        let ino = staged.head.ino;
        let cleared = self.extents.delete(change, ino, range)?;
        debug_assert!(
            cleared <= range.end - range.start,
            "chunks of the range alone"
        );
        staged.head.chunks = staged.head.chunks.saturating_sub(cleared);
        Ok(())
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
        debug_assert!(are_apart(new), "the next read of the rows refuses others");
        debug_assert!(staged.head.has(row_flag::ALLOCATED), "it has extents");
        let ino = staged.head.ino;
        let is_ordinary = put_rows(change, staged, before, new);
        let left = match self.extents.maps.get(ino) {
            _ if is_ordinary => None,
            _ if !before.are_rows => Some(new.to_vec()),
            Some(KnownExtents::All(all)) => Some(replaced(&all, &before.extents, new)),
            // They stay too many.
            _ => return,
        };
        change.events.push(Event::ExtentsChanged(ino, left));
    }
}

/// Stages the rows that are different, and what the inode's row counts of them. Reports whether the
/// file has every chunk, and so no rows any more.
fn put_rows(change: &mut Change<'_>, staged: &mut Staged, before: &Before, new: &[Extent]) -> bool {
    debug_assert!(
        are_apart(&before.extents),
        "extents are in order and not empty"
    );
    let ino = staged.head.ino;
    let (old_chunks, old_unwritten) = totals(&before.extents);
    let (chunks, unwritten) = totals(new);
    staged.head.chunks = staged
        .head
        .chunks
        .saturating_add(chunks)
        .saturating_sub(old_chunks);
    let old_unwritten = if before.are_rows { old_unwritten } else { 0 };
    change.unwritten_added += signed(unwritten) - signed(old_unwritten);
    let full = chunk_count(staged.head.size);
    let is_whole =
        matches!(new, [one] if one.start == 0 && one.end == full && one.unwritten() == 0);
    let is_ordinary = is_whole && staged.head.chunks == full;
    debug_assert!(unwritten <= chunks, "unwritten chunks are some of all");
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
        debug_assert_eq!(unwritten, 0, "a file without rows has no room set aside");
        staged.head.chunks = 0;
    }
    is_ordinary
}
