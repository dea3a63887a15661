//! Cutting files and letting them grow.

use super::read::check_regular;
use super::{
    ContentChanges, FILE_BYTES_MAX, INLINE_BYTES_MAX, Staged, chunk_count, chunks_from, within,
};
use crate::change::Change;
use crate::contents::Contents;
use crate::inode::Inode;
use crate::{ClearSetId, FsError, FsResult};
use stitch_base::Ino;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

impl ContentChanges<'_> {
    /// Returns the inode, whose contents have left the store if they get too long for it. What
    /// cannot have the size is refused when that is staged.
    pub(crate) fn with_room_for_size(&self, inode: Inode, size: u64) -> FsResult<Inode> {
        if inode.head.kind != FileKind::Regular || size > FILE_BYTES_MAX {
            return Ok(inode);
        }
        self.with_room_for(inode, size)
    }

    /// Stages a new size, and what comes with it. The inode is locked.
    pub(crate) fn stage_size(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        size: u64,
        clear_setid: ClearSetId,
    ) -> FsResult<()> {
        debug_assert!(staged.tail.is_none(), "no contents are staged yet");
        check_regular(&staged.inode)?;
        self.contents.atomic_writes.check_none(staged.head.ino)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }
        self.stage_modified(change, staged, clear_setid);
        if size > staged.head.size {
            self.stage_growth(change, staged, size)
        } else if size < staged.head.size {
            self.stage_cut(change, staged, size)
        } else {
            // What is allocated beyond the end goes, as on ext4.
            self.stage_cleared(change, staged, &chunks_from(chunk_count(size)))
        }
    }

    /// Makes a file longer by a hole.
    pub(super) fn stage_growth(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        size: u64,
    ) -> FsResult<()> {
        debug_assert!(size > staged.head.size, "it grows");
        debug_assert_eq!(staged.head.kind, FileKind::Regular, "files alone grow");
        if size > INLINE_BYTES_MAX {
            staged.leave_row(self.contents.store, change, false)?;
        }
        self.prepare_growth(staged, size)?;
        staged.grow(size, chunk_count(size) * CHUNK_BYTES);
        debug_assert_eq!(staged.head.size, size, "the size is staged");
        Ok(())
    }

    pub(super) fn stage_cut(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        size: u64,
    ) -> FsResult<()> {
        debug_assert!(size < staged.head.size, "it is cut");
        let old_size = staged.head.size;
        debug_assert_eq!(staged.head.kind, FileKind::Regular, "files alone are cut");
        self.inodes().note_counted(staged.head.ino, None);
        staged.unshare(self.contents.store, change, &(size..u64::MAX))?;
        staged.head.size = size;
        match Contents::of(&staged.head) {
            Contents::Inline => {
                let tail = match size {
                    0 => Vec::new(),
                    _ => Vec::from(self.contents.store.tail(&staged.inode)?),
                };
                staged.set_tail(tail);
                Ok(())
            }
            Contents::Chunked | Contents::Shared => {
                self.stage_chunked_cut(change, staged, size, old_size)
            }
            Contents::External => self.stage_external_cut(change, staged, size),
        }
    }

    /// Stages that chunks beyond a smaller size go. With 0 the contents are inline again, unless
    /// the inode's number is one of shared contents.
    fn stage_chunked_cut(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        size: u64,
        old_size: u64,
    ) -> FsResult<()> {
        debug_assert!(Contents::of(&staged.head).are_chunks(), "chunks are cut");
        debug_assert_eq!(staged.head.size, size, "the size is staged");
        debug_assert!(size < old_size, "it is cut");
        cut_chunks(change, staged.number(), (old_size, size));
        self.stage_cleared(change, staged, &chunks_from(chunk_count(size)))?;
        if size == 0 {
            let gone = row_flag::HOLES | row_flag::ALLOCATED;
            staged.head.flags &= !gone;
            // Else the inode's number is, or was, one of shared contents: it is never used for own
            // chunks again.
            if staged.number() == staged.head.ino {
                staged.head.flags = Contents::Inline.mark(staged.head.flags);
            }
            staged.head.chunks = 0;
            return Ok(());
        }
        staged.head.chunks = staged.head.chunks.min(chunk_count(size));
        debug_assert!(
            staged.head.chunks <= chunk_count(size),
            "no chunk lies beyond the size"
        );
        Ok(())
    }
}

/// Reports whether a new size gives space back: of what is beyond it, or is allocated beyond the
/// end.
pub(crate) const fn frees_space(head: &InodeHead, size: u64) -> bool {
    size < head.size || (size == head.size && head.has(row_flag::ALLOCATED))
}

/// Stages that what lies in chunks beyond a smaller size goes, of the chunks under a number. Counts
/// nothing.
pub(super) fn cut_chunks(change: &mut Change<'_>, own: Ino, (old_size, size): (u64, u64)) {
    debug_assert!(size < old_size, "it is cut");
    change.delete_chunks(own, chunk_count(size), chunk_count(old_size));
    let len = within(size);
    debug_assert!(
        u64::from(len) < CHUNK_BYTES,
        "the last chunk is cut, or stays whole"
    );
    if len > 0 {
        change.chunk(own, size / CHUNK_BYTES, ChunkDelta::Cut { len });
    }
}
