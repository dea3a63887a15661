//! Contents of files.
//!
//! Up to [`INLINE_BYTES_MAX`] bytes are in the inode's row; more are chunks of 4 KiB in the `data`
//! tree. A file changes over when it outgrows its row, and back only when it is cut to nothing.
//!
//! A write of a whole chunk is a put, of a part an upsert that patches it: neither reads. What is
//! absent reads as zeros, and so does what lies behind the end of a short chunk.
//!
//! Large ones may be a plain file beside the store; see `external`. Chunks may be shared with other
//! files; see `shared`. Which of the four it is: [`Contents`].
//!
//! | part | has |
//! |---|---|
//! | [`FileContents`] | reads: rows, chunks, plain files, holes, and atomic writes above them |
//! | [`ContentChanges`] | write, new size, `fallocate`, copy, atomic writes ([`changes`]) |
//! | [`ExtentRows`] | rows of allocated extents, through [`ExtentMaps`] of a few files in memory |
//! | [`SharedContents`](crate::shared::SharedContents) | which files may share, which contents go |
//! | [`PlainFiles`] | contents beside the store, one file at a time ([`crate::external`]) |
//! | [`AtomicWrites`] | changes that are not in their files yet ([`crate::atomic`]) |
//! | `operations.rs` | what [`crate::FileSystem`] offers of all of them |
//!
//! Invariants:
//! - no chunk, and no byte of a chunk, lies at or beyond the size: cutting cuts the last chunk too,
//!   so that growing again shows zeros;
//! - without the row flag `HOLES` every chunk below the size exists; with it at most `chunks` do;
//! - with `ALLOCATED`, which comes with `HOLES`, rows tell which chunks have blocks; see
//!   `allocated`.

mod allocate;
mod allocated;
mod atomic;
mod changes;
mod copy;
mod extent_maps;
mod extent_rows;
mod extents;
mod external;
mod operations;
mod read;
mod resize;
mod seek;
mod share;
mod shared;
mod write;

pub(crate) use changes::ContentChanges;
pub(crate) use extent_maps::ExtentMaps;
pub(crate) use extent_rows::ExtentRows;
pub(crate) use extents::Extent;
pub(crate) use resize::frees_space;

use self::shared::Sharing;
use crate::FsResult;
use crate::atomic::AtomicWrites;
use crate::change::Change;
use crate::contents::Contents;
use crate::external::PlainFiles;
use crate::inode::{Inode, Location};
use crate::prefetch::Prefetcher;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use bytes::Bytes;
use std::ops::Range;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

/// Largest contents of a file that are in its row.
pub const INLINE_BYTES_MAX: u64 = 4096;
/// Largest size of a file, and end of any range of one.
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();
const _: () = assert!(
    INLINE_BYTES_MAX <= CHUNK_BYTES,
    "contents that leave a row fit a chunk"
);
const _: () = assert!(
    FILE_BYTES_MAX / CHUNK_BYTES < 1 << 51,
    "chunks are counted with a sign"
);

/// The contents of the files of a file system, to be read: rows, plain files, and the atomic writes
/// above them.
///
/// Invariant: a read changes nothing but the access history and what is known of plain files. The
/// inode is locked from the read of its attributes to that of its last byte.
#[derive(Clone, Copy)]
pub(crate) struct FileContents<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    /// Where a serializable transaction notes what it reads.
    reads: Option<&'fs ReadSet>,
    prefetcher: Prefetcher<'fs>,
    plain_files: PlainFiles<'fs>,
    atomic_writes: &'fs AtomicWrites,
}

impl<'fs> FileContents<'fs> {
    fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            reads: fs.reads.as_deref(),
            prefetcher: fs.prefetcher(),
            plain_files: PlainFiles::of(fs),
            atomic_writes: &fs.atomic_writes,
        }
    }
}

/// An inode whose contents are changing, in one batch with its row.
pub(crate) struct Staged {
    pub(crate) inode: Inode,
    pub(crate) head: InodeHead,
    /// New inline contents.
    tail: Option<Vec<u8>>,
    /// Of a file that shares contents, or begins to.
    sharing: Option<Sharing>,
}

impl Staged {
    /// Checks that a change keeps a sound row sound. One that was damaged before is not judged.
    fn check(&self) {
        debug_assert_eq!(
            self.head.ino, self.inode.head.ino,
            "an inode keeps its number"
        );
        debug_assert_eq!(self.head.kind, self.inode.head.kind, "a type never changes");
        let tail_bytes = self.tail.as_ref().map_or(0, |tail| tail.len() as u64);
        debug_assert!(tail_bytes <= self.head.size, "no byte lies beyond the size");
        debug_assert!(
            tail_bytes == 0 || Contents::of_inode(&self.head) == Some(Contents::Inline),
            "bytes are in the row or beside it"
        );
        debug_assert!(
            is_sound(&self.head) || !is_sound(&self.inode.head),
            "a change keeps a row sound"
        );
    }

    /// Puts the row, whole only where it must, and those of shared contents.
    pub(crate) fn finish(&mut self, change: &mut Change<'_>) -> FsResult<()> {
        self.finish_sharing(change);
        debug_assert!(self.sharing.is_none(), "its rows are staged");
        self.check();
        match &self.tail {
            Some(tail) => {
                change.row(&self.inode, &self.head, tail);
                Ok(())
            }
            None => change.attrs(&self.inode, &self.head),
        }
    }

    /// Moves inline contents into the first chunk. `is_replaced`: the chunk is about to be put
    /// whole.
    fn leave_row(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        is_replaced: bool,
    ) -> FsResult<()> {
        debug_assert_eq!(
            self.head.kind,
            FileKind::Regular,
            "files alone have contents"
        );
        if Contents::of(&self.head) != Contents::Inline {
            return Ok(());
        }
        let tail = match self.tail.take() {
            Some(staged) => Bytes::from(staged),
            None => store.tail(&self.inode)?,
        };
        if matches!(self.inode.location, Location::Memory(_)) {
            self.inode = change.put_orphan(&self.inode, &[]);
        }
        if !tail.is_empty() && !is_replaced {
            change.put_chunk(self.head.ino, 0, &tail);
        }
        self.head.flags = Contents::Chunked.mark(self.head.flags);
        if tail.is_empty() && self.head.size > 0 {
            self.head.flags |= row_flag::HOLES;
            self.head.chunks = 0;
        }
        self.tail = Some(Vec::new());
        debug_assert!(
            Contents::of(&self.head).are_chunks(),
            "contents have left the row"
        );
        Ok(())
    }

    /// Notes that chunks below the size may be absent from now on.
    fn note_holes(&mut self) {
        debug_assert_eq!(self.head.kind, FileKind::Regular, "files alone have holes");
        if !self.head.has(row_flag::HOLES) {
            self.head.flags |= row_flag::HOLES;
            self.head.chunks = chunk_count(self.head.size);
        }
        debug_assert!(self.head.has(row_flag::HOLES), "holes are noted");
    }

    /// Notes that chunks of a range, all below the size, are absent. Rows of extents count them
    /// where there are any.
    fn note_absent(&mut self, absent: &Range<u64>) {
        debug_assert_eq!(self.head.kind, FileKind::Regular, "files alone have holes");
        debug_assert!(absent.end <= chunk_count(self.head.size), "below the size");
        debug_assert!(absent.start <= absent.end, "a range of chunks");
        if absent.is_empty() || self.head.has(row_flag::ALLOCATED) {
            return;
        }
        self.note_holes();
        let left = chunk_count(self.head.size) - (absent.end - absent.start);
        self.head.chunks = self.head.chunks.min(left);
        debug_assert!(self.head.has(row_flag::HOLES), "absent chunks are holes");
    }

    /// Notes a new size, and absent chunks between the old one and `offset`.
    fn grow(&mut self, size: u64, offset: u64) {
        debug_assert!(size <= FILE_BYTES_MAX, "a valid size");
        let is_in_row = Contents::of(&self.head) == Contents::Inline;
        if !is_in_row && offset / CHUNK_BYTES > chunk_count(self.head.size) {
            self.note_holes();
        }
        self.head.size = self.head.size.max(size);
        debug_assert!(self.head.size >= size, "it has grown");
    }

    /// Extends a new tail by zeros to `end`, which is within the size.
    fn extend_tail(&mut self, end: u64) {
        debug_assert!(end <= self.head.size, "zeros lie within the size");
        if let Some(tail) = &mut self.tail {
            let end = usize::try_from(end).expect("within a row");
            debug_assert!(tail.len() as u64 <= INLINE_BYTES_MAX, "it fits the row");
            tail.resize(tail.len().max(end), 0);
        }
    }

    /// Puts a new tail, without the zeros at its end.
    fn set_tail(&mut self, mut tail: Vec<u8>) {
        debug_assert!(tail.len() as u64 <= INLINE_BYTES_MAX, "it fits the row");
        tail.truncate(usize::try_from(self.head.size).unwrap_or(usize::MAX));
        debug_assert!(
            tail.len() as u64 <= self.head.size,
            "no byte lies beyond the size"
        );
        self.tail = Some(tail);
    }
}

/// Reports whether an inode row is as its fields promise, as far as the row alone tells.
const fn is_sound(head: &InodeHead) -> bool {
    let has_extents = head.has(row_flag::ALLOCATED);
    let fits_row = head.size <= INLINE_BYTES_MAX;
    let is_inline = matches!(Contents::of_inode(head), Some(Contents::Inline));
    let has_holes = head.has(row_flag::HOLES);
    let is_counted = if has_holes {
        has_extents || head.chunks <= chunk_count(head.size)
    } else {
        head.chunks == 0
    };
    head.size <= FILE_BYTES_MAX
        && (!has_extents || has_holes)
        && (!is_inline || (fits_row && !has_holes))
        && is_counted
}

/// Number of chunks of a file of this size without holes.
pub(crate) const fn chunk_count(size: u64) -> u64 {
    size.div_ceil(CHUNK_BYTES)
}

/// Every chunk of a file from this one on.
pub(crate) const fn chunks_from(start: u64) -> Range<u64> {
    start..u64::MAX
}

/// An offset within its chunk.
fn within(offset: u64) -> u16 {
    u16::try_from(offset % CHUNK_BYTES).expect("below 4096")
}

/// Appends what of `[offset, offset + len)` a row holds, and zeros for the rest.
fn extend_padded(out: &mut Vec<u8>, bytes: &Bytes, offset: usize, len: usize) {
    let base = out.len();
    let start = offset.min(bytes.len());
    let end = (offset + len).min(bytes.len());
    out.extend_from_slice(&bytes[start..end]);
    out.resize(out.len() + len - (end - start), 0);
    debug_assert_eq!(out.len(), base + len, "what the row lacks is zeros");
}

#[cfg(test)]
mod tests;
