//! `fallocate`: growing, punching and zeroing.

use super::read::check_regular;
use super::write::check_may_write;
use super::{ContentChanges, FILE_BYTES_MAX, Staged, chunk_count, within};
use crate::change::Change;
use crate::contents::Contents;
use crate::inode::Inode;
use crate::{Attr, ClearSetId, FallocateMode, FsError, FsResult};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::{FileKind, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

/// Chunks that a punch counts at most: 128 MiB, the longest discard of an ext4 in an image file.
const COUNTED_CHUNKS_MAX: u64 = 32 << 10;

impl ContentChanges<'_> {
    /// Allocates, removes or zeroes a range of a file.
    pub(super) fn fallocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<Attr> {
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooBig)?;
        debug_assert!(offset < end, "a range that is not empty");
        let _inode = self.locks().inode_write(ino);
        let inode = self.inodes().get(ino)?;
        check_regular(&inode)?;
        check_may_write(&inode, offset)?;
        self.contents.atomic_writes.check_none(ino)?;
        let grown = match mode {
            FallocateMode::Allocate { keep_size: false }
            | FallocateMode::ZeroRange { keep_size: false } => end,
            _ => inode.head.size,
        };
        let inode = self.with_room_for(inode, grown)?;
        let mut inode = self.with_own_chunks(inode, mode, end)?;
        debug_assert_eq!(inode.head.ino, ino, "the file that is changed");
        if matches!(mode, FallocateMode::Allocate { .. }) {
            self.check_room(&inode, offset, end)?;
        }
        let mut at = offset;
        loop {
            let chunks = at / CHUNK_BYTES..chunk_count(end);
            let stop = match mode {
                FallocateMode::PunchHole => chunks.end,
                _ => self.extents.stop(&inode, &chunks, self.batch_bytes_max())?,
            };
            let stop = end.min(stop.saturating_mul(CHUNK_BYTES));
            debug_assert!(stop <= end, "no batch comes too far");
            debug_assert!(at < stop, "each batch comes further");
            let attr = self.fallocate_batch(inode, mode, &(at..stop))?;
            if stop == end {
                debug_assert!(attr.size >= grown, "it is as long as was asked for");
                return Ok(attr);
            }
            at = stop;
            inode = self.inodes().get(ino)?;
        }
    }

    /// Does what fits a batch. The inode is locked.
    fn fallocate_batch(
        &self,
        inode: Inode,
        mode: FallocateMode,
        range: &Range<u64>,
    ) -> FsResult<Attr> {
        debug_assert_eq!(
            inode.head.kind,
            FileKind::Regular,
            "files alone have contents"
        );
        debug_assert!(range.start < range.end, "a range that is not empty");
        let mut staged = match mode {
            FallocateMode::PunchHole => self.stage_with_extent_to_spare(inode)?,
            _ => self.stage(inode)?,
        };
        let (mut change, keeps_size) = match mode {
            FallocateMode::PunchHole => (self.changes.begin_giving_back(), true),
            FallocateMode::Allocate { keep_size } | FallocateMode::ZeroRange { keep_size } => {
                (self.changes.begin(), keep_size)
            }
        };
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            self.stage_zeros(&mut change, &mut staged, range)?;
        }
        match mode {
            FallocateMode::PunchHole => {
                let whole = punched(range, staged.head.size);
                self.stage_cleared(&mut change, &mut staged, &whole)?;
            }
            _ => self.stage_blocks(&mut change, &mut staged, mode, range)?,
        }
        if !keeps_size && range.end > staged.head.size {
            self.stage_growth(&mut change, &mut staged, range.end)?;
            debug_assert!(staged.head.size >= range.end, "the size is staged");
        }
        if mode != FallocateMode::PunchHole {
            count_external(&mut staged, range);
        }
        self.stage_modified(&mut change, &mut staged, ClearSetId::None);
        staged.finish(&mut change)?;
        change.commit()?;
        debug_assert!(staged.head.perm <= 0o7777, "the kind is not among the bits");
        Ok(Attr::of(&staged.head))
    }

    /// Stages that a range has blocks. Zeros within the size are bytes of the row, where it has the
    /// contents.
    fn stage_blocks(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        mode: FallocateMode,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(range.start < range.end, "a range that is not empty");
        let size = staged.head.size;
        debug_assert_ne!(mode, FallocateMode::PunchHole, "a punch takes blocks away");
        let is_zeroing = matches!(mode, FallocateMode::ZeroRange { .. });
        let contents = Contents::of(&staged.head);
        let is_inline = contents == Contents::Inline;
        match contents {
            Contents::External => return self.allocate_external(staged, range.start, range.end),
            Contents::Inline if is_zeroing && range.end <= size => {
                staged.extend_tail(range.end);
                return Ok(());
            }
            Contents::Inline | Contents::Chunked | Contents::Shared => {}
        }
        staged.leave_row(self.contents.store, change, false)?;
        let chunks = range.start / CHUNK_BYTES..chunk_count(range.end);
        debug_assert!(!chunks.is_empty(), "a range of bytes is in chunks");
        let zeroed = match is_zeroing && !is_inline {
            true => zeroed(range, size),
            false => chunks.start..chunks.start,
        };
        self.stage_allocated(change, staged, &chunks, &zeroed)
    }

    /// Refuses a range that the host cannot hold at this moment. Of a file in the store, room is
    /// set aside with the commit.
    fn check_room(&self, inode: &Inode, offset: u64, end: u64) -> FsResult<()> {
        debug_assert!(offset < end, "a range that is not empty");
        let head = &inode.head;
        if Contents::of(head) != Contents::External {
            return Ok(());
        }
        let new = if head.has(row_flag::HOLES) {
            end - offset
        } else {
            end.saturating_sub(offset.max(head.size))
        };
        let files = self.contents.plain_files.externals.files()?;
        let mut is_room = new <= files.free_bytes()?;
        if !is_room && self.changes.make_room_beside()? {
            is_room = new <= files.free_bytes()?;
        }
        is_room.then_some(()).ok_or(FsError::NoSpace)
    }

    /// Returns the number of chunks in a range that are stored as its own, at least as far as
    /// [`COUNTED_CHUNKS_MAX`]. In a file without holes the size tells.
    fn stored_chunks(&self, staged: &Staged, range: &Range<u64>) -> FsResult<u64> {
        debug_assert!(
            !staged.head.has(row_flag::ALLOCATED),
            "rows of extents tell what is allocated"
        );
        if !staged.head.has(row_flag::HOLES) {
            return Ok(0);
        }
        let own = staged.number();
        let mut scan = self
            .contents
            .store
            .scan(&self.contents.store.keys.chunks(own, range))?;
        let mut count = 0;
        debug_assert!(range.start <= range.end, "a range of chunks");
        while count < COUNTED_CHUNKS_MAX && scan.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Stages zeros in a range as far as the file goes.
    fn stage_zeros(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(range.start < range.end, "a range that is not empty");
        let range = range.start..range.end.min(staged.head.size);
        if range.is_empty() {
            return Ok(());
        }
        match Contents::of(&staged.head) {
            Contents::Inline => self.zero_inline(staged, &range),
            Contents::Chunked | Contents::Shared => self.zero_chunks(change, staged, &range),
            Contents::External => {
                self.inodes().note_counted(staged.head.ino, None);
                self.zero_external(staged, &range)
            }
        }
    }

    /// Stages zeros in the row.
    fn zero_inline(&self, staged: &mut Staged, range: &Range<u64>) -> FsResult<()> {
        debug_assert_eq!(
            Contents::of(&staged.head),
            Contents::Inline,
            "contents are in the row"
        );
        debug_assert!(range.end <= staged.head.size, "zeros lie within the size");
        let mut tail = Vec::from(self.contents.store.tail(&staged.inode)?);
        let within_row = |at: u64| usize::try_from(at).expect("within a row");
        let stop = within_row(range.end).min(tail.len());
        let start = within_row(range.start).min(stop);
        tail[start..stop].fill(0);
        staged.set_tail(tail);
        Ok(())
    }

    /// Stages that whole chunks of a range are absent, and zeros in those at its edges.
    fn zero_chunks(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        range: &Range<u64>,
    ) -> FsResult<()> {
        debug_assert!(range.start < range.end, "a range that is not empty");
        debug_assert!(range.end <= staged.head.size, "zeros lie within the size");
        self.inodes().note_counted(staged.head.ino, None);
        staged.unshare(self.contents.store, change, range)?;
        let own = staged.number();
        let whole = zeroed(range, staged.head.size);
        if !whole.is_empty() {
            // Of a file with rows of extents, these are counted.
            if !staged.head.has(row_flag::ALLOCATED) {
                let removed = self.stored_chunks(staged, &whole)?;
                staged.head.chunks = staged.head.chunks.saturating_sub(removed);
            }
            change.delete_chunks(own, whole.start, whole.end);
            staged.note_absent(&whole);
        }
        zero_edges(change, own, staged.head.size, range);
        Ok(())
    }
}

/// Stages zeros in the chunks that a range begins and ends in, where it has a part of them.
fn zero_edges(change: &mut Change<'_>, own: Ino, size: u64, range: &Range<u64>) {
    let (first, last) = (range.start / CHUNK_BYTES, range.end / CHUNK_BYTES);
    let (start, end) = (within(range.start), within(range.end));
    debug_assert!(first <= last, "the edges come in order");
    debug_assert!(range.start < range.end, "a range that is not empty");
    debug_assert!(range.end <= size, "zeros lie within the size");
    if first == last && start > 0 {
        change.chunk(own, first, ChunkDelta::Zero { start, end });
        return;
    }
    if start > 0 {
        let end = u16::try_from(CHUNK_BYTES).expect("4096");
        change.chunk(own, first, ChunkDelta::Zero { start, end });
    }
    if end > 0 && range.end != size {
        change.chunk(own, last, ChunkDelta::Zero { start: 0, end });
    }
}

/// Counts what the host has allocated, of a sparse external file: at most all up to the end.
fn count_external(staged: &mut Staged, range: &Range<u64>) {
    debug_assert!(range.start < range.end, "a range that is not empty");
    let head = &mut staged.head;
    if Contents::of(head) == Contents::External && head.has(row_flag::HOLES) {
        let full = chunk_count(head.size);
        let end = chunk_count(range.end).min(full);
        let added = end.saturating_sub(range.start / CHUNK_BYTES);
        head.chunks = head.chunks.saturating_add(added).min(full);
    }
}

/// Returns the chunks of which nothing is left where `range` is zeroed: whole ones, and the last of
/// the file if its end is in the range.
pub(super) fn zeroed(range: &Range<u64>, size: u64) -> Range<u64> {
    debug_assert!(range.start <= range.end, "a range of bytes");
    let end = range.end.min(size);
    let after = if end == size {
        chunk_count(end)
    } else {
        end / CHUNK_BYTES
    };
    let first = chunk_count(range.start);
    debug_assert!(after <= chunk_count(size), "zeros lie within the size");
    first..after.max(first)
}

/// Returns the chunks that lose their blocks where `range` is punched: those zeroed, and whole ones
/// beyond the end.
fn punched(range: &Range<u64>, size: u64) -> Range<u64> {
    let zeroed = zeroed(range, size);
    let after = zeroed.end.max(range.end / CHUNK_BYTES);
    debug_assert!(zeroed.start <= after, "a range of chunks");
    zeroed.start..after
}
