//! Writing.

use super::read::check_regular;
use super::{ContentChanges, FILE_BYTES_MAX, INLINE_BYTES_MAX, Staged, chunk_count, within};
use crate::atomic::Writer;
use crate::change::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::inode::Inode;
use crate::{Attr, ClearSetId, FsError, FsResult, WriteOptions, inode_flag};
use stitch_base::Ino;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::{FileKind, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

/// Most bytes written in one batch.
const PIECE_BYTES_MAX: u64 = 2 << 20;
/// What a chunk takes in a batch beside its bytes.
const MESSAGE_BYTES: u64 = 64;
/// Buffers of programs have a multiple of it.
const BUFFER_BYTES: u64 = 512;
/// From so many bytes on, writes are not copied together.
const LENT_BYTES_MIN: usize = 32 << 10;
const _: () = assert!(
    PIECE_BYTES_MAX.is_multiple_of(CHUNK_BYTES),
    "pieces end where chunks end"
);
const _: () = assert!(
    CHUNK_BYTES.is_multiple_of(BUFFER_BYTES),
    "chunks end where buffers end"
);
const _: () = assert!(
    LENT_BYTES_MIN as u64 >= CHUNK_BYTES,
    "short writes are copied"
);

impl ContentChanges<'_> {
    /// Writes all of `data`, by a writer that may have an atomic write of the file.
    pub(super) fn write(
        &self,
        writer: Writer,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FsResult<Attr> {
        let _inode = self.locks().inode_write(ino);
        let inode = self.inodes().get(ino)?;
        check_regular(&inode)?;
        let offset = if options.append {
            self.contents
                .atomic_writes
                .size(ino)
                .unwrap_or(inode.head.size)
        } else {
            offset
        };
        check_may_write(&inode, offset)?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(FsError::FileTooBig);
        }
        let range = offset..offset + data.len() as u64;
        debug_assert!(range.end <= FILE_BYTES_MAX, "a file is no longer");
        if self.contents.atomic_writes.takes(ino, writer, &range)? {
            return self.write_staged(&inode, offset, data, options.clear_setid);
        }
        self.write_locked(inode, offset, data, options.clear_setid)
    }

    /// Writes to an inode that is locked, within the largest size.
    pub(super) fn write_locked(
        &self,
        mut inode: Inode,
        offset: u64,
        data: &[u8],
        clear_setid: ClearSetId,
    ) -> FsResult<Attr> {
        let ino = inode.head.ino;
        debug_assert!(
            data.len() as u64 <= FILE_BYTES_MAX - offset,
            "the caller has checked the end"
        );
        if !data.is_empty() {
            inode = self.with_room_for(inode, offset + data.len() as u64)?;
        }
        let piece_bytes = self.write_step_bytes();
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            // Pieces end where chunks end.
            let len = usize::try_from(piece_bytes - at % CHUNK_BYTES).expect("fits in memory");
            let (piece, after) = rest.split_at(len.min(rest.len()));
            debug_assert!(!piece.is_empty(), "each piece comes further");
            self.write_piece(inode, at, piece, clear_setid)?;
            at += piece.len() as u64;
            rest = after;
            inode = self.inodes().get(ino)?;
        }
        debug_assert!(
            data.is_empty() || inode.head.size >= at,
            "the size has all that was written"
        );
        debug_assert_eq!(at, offset + data.len() as u64, "all of it is written");
        Ok(Attr::of(&inode.head))
    }

    /// Returns the longest write that is one batch, in bytes from a multiple of 4 KiB on.
    pub(super) fn write_step_bytes(&self) -> u64 {
        // An eighth is for the rows of the inode and of extents.
        let batch = self.batch_bytes_max() / 8 * 7;
        let chunks = batch / (CHUNK_BYTES + MESSAGE_BYTES);
        let bytes = (chunks.max(1) * CHUNK_BYTES).min(PIECE_BYTES_MAX);
        debug_assert!(bytes >= CHUNK_BYTES, "a step takes a chunk");
        debug_assert!(
            bytes.is_multiple_of(CHUNK_BYTES),
            "steps end where chunks end"
        );
        bytes
    }

    fn write_piece(
        &self,
        inode: Inode,
        at: u64,
        piece: &[u8],
        clear_setid: ClearSetId,
    ) -> FsResult<()> {
        debug_assert_eq!(
            inode.head.kind,
            FileKind::Regular,
            "files alone have contents"
        );
        debug_assert!(!piece.is_empty(), "it writes something");
        debug_assert!(
            piece.len() as u64 <= self.write_step_bytes(),
            "it fits a batch"
        );
        let mut staged = self.stage_with_extent_to_spare(inode)?;
        let mut change = self.changes.begin();
        let end = at + piece.len() as u64;
        self.stage_modified(&mut change, &mut staged, clear_setid);
        let fits_row = end.max(staged.head.size) <= INLINE_BYTES_MAX;
        match Contents::of(&staged.head) {
            Contents::Inline if fits_row => self.stage_inline_write(&mut staged, at, piece)?,
            Contents::Inline | Contents::Chunked | Contents::Shared => {
                self.stage_chunked_write(&mut change, &mut staged, at, piece)?;
            }
            Contents::External => {
                self.stage_external_write(&mut staged, at, piece)?;
                self.count_chunks(&mut staged, at, end);
            }
        }
        staged.finish(&mut change)?;
        debug_assert!(staged.head.size >= end, "the size is staged");
        if staged.head.has(row_flag::HOLES) && !staged.head.has(row_flag::ALLOCATED) {
            let last = chunk_count(end) - 1;
            let counted = Event::ChunkCounted(staged.head.ino, last);
            change.events.push(counted);
        }
        change.commit()
    }

    /// Stages a write into the row, which it fits.
    fn stage_inline_write(&self, staged: &mut Staged, at: u64, piece: &[u8]) -> FsResult<()> {
        debug_assert_eq!(
            Contents::of(&staged.head),
            Contents::Inline,
            "contents are in the row"
        );
        let mut tail = Vec::from(self.contents.store.tail(&staged.inode)?);
        debug_assert!(
            at + piece.len() as u64 <= INLINE_BYTES_MAX,
            "it fits the row"
        );
        let start = usize::try_from(at).expect("within a row");
        tail.resize(tail.len().max(start + piece.len()), 0);
        tail[start..start + piece.len()].copy_from_slice(piece);
        staged.head.size = staged.head.size.max(at + piece.len() as u64);
        staged.set_tail(tail);
        Ok(())
    }

    /// Stages a write into chunks, after inline contents have left their row.
    fn stage_chunked_write<'a>(
        &self,
        change: &mut Change<'a>,
        staged: &mut Staged,
        at: u64,
        piece: &'a [u8],
    ) -> FsResult<()> {
        debug_assert!(!piece.is_empty(), "it writes something");
        let end = at + piece.len() as u64;
        let is_first_whole = at == 0 && end >= staged.head.size.min(CHUNK_BYTES);
        staged.leave_row(self.contents.store, change, is_first_whole)?;
        staged.unshare(self.contents.store, change, &(at..end))?;
        debug_assert!(
            Contents::of(&staged.head).are_chunks(),
            "contents have left the row"
        );
        let chunks = piece.len() as u64 / CHUNK_BYTES + 2;
        let messages = usize::try_from(chunks * MESSAGE_BYTES).expect("a piece is bounded");
        let copied = if is_borrowed(piece) { 0 } else { piece.len() };
        change.batch.reserve(copied + messages);
        stage_chunks(change, staged, at, piece);
        if staged.head.has(row_flag::ALLOCATED) {
            let written = at / CHUNK_BYTES..chunk_count(end);
            return self.stage_written(change, staged, &written);
        }
        self.count_chunks(staged, at, end);
        Ok(())
    }

    /// Counts the chunks that a write may have added to a file with holes: all that it touches, but
    /// one that is known to be counted.
    pub(super) fn count_chunks(&self, staged: &mut Staged, at: u64, end: u64) {
        debug_assert!(at < end, "a write has bytes");
        debug_assert!(
            !staged.head.has(row_flag::ALLOCATED),
            "rows of extents tell what is allocated"
        );
        if !staged.head.has(row_flag::HOLES) {
            return;
        }
        let touched = at / CHUNK_BYTES..chunk_count(end);
        debug_assert!(!touched.is_empty(), "a write is in chunks");
        let counted = self.inodes().counted_chunk(staged.head.ino);
        let is_there = counted.is_some_and(|number| touched.contains(&number));
        let added = touched.end - touched.start - u64::from(is_there);
        let full = chunk_count(staged.head.size);
        staged.head.chunks = staged.head.chunks.saturating_add(added).min(full);
        debug_assert!(staged.head.chunks <= full, "no chunk lies beyond the size");
    }
}

/// Reports whether another write is likely to follow one that ends here. Programs write from
/// buffers of a multiple of this length; files end anywhere.
const fn expects_more(end: u64) -> bool {
    end.is_multiple_of(BUFFER_BYTES) && !end.is_multiple_of(CHUNK_BYTES)
}

/// Reports whether a batch borrows a piece. Long pieces go to their zone from where they are; short
/// ones are copied together first.
const fn is_borrowed(piece: &[u8]) -> bool {
    piece.len() >= LENT_BYTES_MIN
}

/// Stages the chunks of a write: a put where nothing of the old chunk stays, a patch elsewhere. The
/// trailing partial chunk stays in the log.
pub(super) fn stage_chunks<'a>(
    change: &mut Change<'a>,
    staged: &mut Staged,
    at: u64,
    piece: &'a [u8],
) {
    let ino: Ino = staged.number();
    let old_size = staged.head.size;
    let end = at + piece.len() as u64;
    let mut rest = piece;
    let mut offset = at;
    let mut zeros_and_piece = Vec::new();
    while !rest.is_empty() {
        let number = offset / CHUNK_BYTES;
        let skip = within(offset);
        let room = usize::try_from(CHUNK_BYTES).expect("4096") - usize::from(skip);
        let (bytes, after) = rest.split_at(room.min(rest.len()));
        debug_assert!(!bytes.is_empty(), "each chunk comes further");
        let chunk_start = number * CHUNK_BYTES;
        let piece_end = offset + bytes.len() as u64;
        debug_assert!(piece_end <= chunk_start + CHUNK_BYTES, "bytes of one chunk");
        let replaces_all = skip == 0 && (piece_end >= old_size || bytes.len() == room);
        let content = if replaces_all {
            Some(bytes)
        } else if chunk_start >= old_size {
            zeros_and_piece.clear();
            zeros_and_piece.resize(usize::from(skip), 0);
            zeros_and_piece.extend_from_slice(bytes);
            Some(&zeros_and_piece[..])
        } else {
            None
        };
        match content {
            None => {
                let offset = skip;
                change.chunk(ino, number, ChunkDelta::Patch { offset, bytes });
            }
            Some(partial) if expects_more(piece_end) => {
                change.put_partial_chunk(ino, number, partial)
            }
            Some(_) if replaces_all && is_borrowed(piece) => {
                change.put_borrowed_chunk(ino, number, bytes);
            }
            Some(content) => change.put_chunk(ino, number, content),
        }
        offset = piece_end;
        rest = after;
    }
    debug_assert_eq!(offset, end, "all of the piece is staged");
    staged.grow(end, at);
    debug_assert!(staged.head.size >= end, "the size is staged");
}

/// Refuses what may not be written, or only at its end.
pub(super) const fn check_may_write(inode: &Inode, offset: u64) -> FsResult<()> {
    let iflags = inode.head.iflags;
    let only_grows = iflags & inode_flag::APPEND != 0 && offset != inode.head.size;
    if iflags & inode_flag::IMMUTABLE != 0 || only_grows {
        return Err(FsError::Perm);
    }
    Ok(())
}
