//! Files that share contents: what a change does to their extents, and copies of their chunks.

use super::{ContentChanges, FILE_BYTES_MAX, Staged, chunk_count, within};
use crate::FsResult;
use crate::change::Change;
use crate::contents::Contents;
use crate::inode::Inode;
use crate::locator::Locator;
use crate::schema::Store;
use crate::shared::{has, without};
use crate::{FallocateMode, FsError};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_shared::{SHARED_EXTENTS_MAX, SharedRow};

/// Where the contents of a file are that shares them: before a change, and after it.
pub(super) struct Sharing {
    pub(super) before: Option<SharedRow>,
    pub(super) row: SharedRow,
}

impl ContentChanges<'_> {
    /// Makes chunks of a file own ones, in several batches. The inode is locked. Costs what there
    /// is to copy: holes of any length cost nothing.
    fn copy_shared(&self, mut inode: Inode, range: &Range<u64>) -> FsResult<Inode> {
        debug_assert_eq!(
            Contents::of(&inode.head),
            Contents::Shared,
            "it has chunks to copy"
        );
        let step = (self.write_step_bytes() / CHUNK_BYTES).max(1);
        debug_assert!(range.start <= range.end, "a range of chunks");
        let (ino, mut at) = (inode.head.ino, range.start);
        loop {
            let mut staged = self.stage(inode)?;
            let Some(next) = staged.first_shared(range) else {
                return Ok(staged.inode);
            };
            debug_assert!(next.start >= at, "chunks are copied in their order");
            at = next.start;
            let mut change = self.changes.begin();
            staged.copy_part(self.contents.store, &mut change, &next, step)?;
            staged.finish(&mut change)?;
            change.commit()?;
            inode = self.inodes().get(ino)?;
        }
    }

    /// Stages an inode that may get one extent of shared contents more: the chunks of its shortest
    /// one become its own before, if it has very many.
    pub(super) fn stage_with_extent_to_spare(&self, inode: Inode) -> FsResult<Staged> {
        let staged = self.stage(inode)?;
        let extents = staged.sharing.as_ref().map(|sharing| &sharing.row.extents);
        let Some(many) = extents.filter(|extents| extents.len() >= SHARED_EXTENTS_MAX) else {
            return Ok(staged);
        };
        let shortest = many.iter().min_by_key(|one| one.end - one.start);
        let shortest = shortest.expect("there are many").clone();
        debug_assert!(!shortest.is_empty(), "an extent is not empty");
        let inode = self.copy_shared(staged.inode, &shortest)?;
        let staged = self.stage(inode)?;
        debug_assert!(
            staged
                .sharing
                .as_ref()
                .is_none_or(|sharing| sharing.row.extents.len() < SHARED_EXTENTS_MAX),
            "a change may add an extent"
        );
        Ok(staged)
    }

    /// Prepares a file for `fallocate`: one that may get rows of allocated extents shares nothing.
    pub(super) fn with_own_chunks(
        &self,
        inode: Inode,
        mode: FallocateMode,
        end: u64,
    ) -> FsResult<Inode> {
        if Contents::of(&inode.head) != Contents::Shared {
            return Ok(inode);
        }
        let full = chunk_count(inode.head.size);
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        let is_there = !inode.head.has(row_flag::HOLES) && chunk_count(end) <= full;
        match mode {
            FallocateMode::PunchHole => Ok(inode),
            FallocateMode::Allocate { .. } if is_there => Ok(inode),
            _ => self.copy_shared(inode, &(0..full)),
        }
    }
}

impl Staged {
    /// The number under which the chunks are that change.
    pub(super) fn number(&self) -> Ino {
        let sharing = self.sharing.as_ref();
        sharing.map_or(self.head.ino, |sharing| sharing.row.own)
    }

    /// The first chunks of a range that are shared.
    fn first_shared(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let extents = &self.sharing.as_ref()?.row.extents;
        let part = |extent: &Range<u64>| extent.start.max(range.start)..extent.end.min(range.end);
        extents.iter().map(part).find(|part| !part.is_empty())
    }

    /// Stages that the first shared chunks of a part are own ones, with their contents: so many of
    /// those that are there, and the holes before and after them.
    fn copy_part(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        part: &Range<u64>,
        count_max: u64,
    ) -> FsResult<()> {
        debug_assert!(count_max > 0, "a loop of these comes to an end");
        debug_assert!(!part.is_empty(), "some chunks are copied");
        let Some(sharing) = &mut self.sharing else {
            return Ok(());
        };
        debug_assert!(sharing.row.contents.is_some(), "extents are of contents");
        let contents = sharing.row.contents.unwrap_or_default();
        let mut scan = store.scan_whole(&store.keys.chunks(contents, part))?;
        let (mut count, mut end) = (0, part.end);
        while let Some((key, bytes)) = scan.next()? {
            let number = Locator::chunk_of(key).ok_or_else(|| {
                FsError::Corrupt(format!("contents {contents} have a chunk without number"))
            })?;
            if count == count_max {
                end = number;
                break;
            }
            change.put_chunk(sharing.row.own, number, bytes);
            count += 1;
        }
        debug_assert!(part.start < end, "each step comes further");
        debug_assert!(end <= part.end, "no more than the part");
        debug_assert!(count <= count_max, "no more than a step");
        sharing.row.extents = without(&sharing.row.extents, &(part.start..end));
        Ok(())
    }

    /// Stages that the chunks of a range of bytes, which is about to change, are own ones. Of those
    /// at its edges a part stays, and is copied.
    pub(super) fn unshare(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(range.start <= range.end, "a range of bytes");
        let chunks = range.start / CHUNK_BYTES..chunk_count(range.end);
        debug_assert!(chunks.start <= chunks.end, "a range of chunks");
        let is_shared = |at: &u64| self.sharing.as_ref().is_some_and(|s| has(&s.row, *at));
        let first = (within(range.start) > 0).then_some(chunks.start);
        let has_rest = within(range.end) > 0 && range.end < self.head.size;
        let last = has_rest.then(|| chunks.end - 1);
        let mut edges: Vec<u64> = first.into_iter().chain(last).collect();
        edges.dedup();
        edges.retain(is_shared);
        debug_assert!(edges.len() <= 2, "a range has two ends");
        for edge in edges {
            self.copy_part(store, change, &(edge..edge + 1), 1)?;
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.row.extents = without(&sharing.row.extents, &chunks);
            debug_assert!(
                sharing
                    .row
                    .extents
                    .iter()
                    .all(|one| one.end <= chunks.start || chunks.end <= one.start),
                "chunks of the range are own ones"
            );
        }
        Ok(())
    }

    /// Stages the rows of a file that shares contents, or has shared them.
    pub(super) fn finish_sharing(&mut self, change: &mut Change<'_>) {
        let Some(Sharing { before, mut row }) = self.sharing.take() else {
            return;
        };
        let ino = self.head.ino;
        let had = before.as_ref().is_some_and(|row| !row.extents.is_empty());
        if had && row.extents.is_empty() {
            row.contents = None;
        }
        let used = before.as_ref().and_then(|row| row.contents);
        if used != row.contents {
            if let Some(used) = used {
                change.leave_contents(used, ino);
            }
            if let Some(contents) = row.contents {
                change.use_contents(contents, ino);
            }
        }
        debug_assert!(
            row.contents.is_some() || row.extents.is_empty(),
            "extents are of contents"
        );
        if row.own == ino && row.contents.is_none() {
            debug_assert!(row.extents.is_empty(), "no chunk is shared");
            self.head.flags = Contents::unshared(self.head.flags);
            change.delete_shared(ino);
            return;
        }
        debug_assert_eq!(
            self.head.kind,
            FileKind::Regular,
            "files alone share contents"
        );
        self.head.flags = Contents::Shared.mark(self.head.flags);
        let tells_number = row.own != ino && change.keeps_track();
        if before.as_ref() != Some(&row) || tells_number {
            change.put_shared(ino, &row);
        }
    }
}
