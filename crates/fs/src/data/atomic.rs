//! Atomic writes: started, written, committed, ended; see `atomic`.

use super::read::check_regular;
use super::resize::cut_chunks;
use super::write::{check_may_write, stage_chunks};
use super::{ContentChanges, FILE_BYTES_MAX, FileContents, INLINE_BYTES_MAX, Staged, chunk_count};
use crate::atomic::{AtomicWrite, AtomicWriter};
use crate::change::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::inode::Inode;
use crate::{Attr, Caller, ClearSetId, FsError, FsResult};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

/// What a message of a batch takes beside its bytes.
const MESSAGE_BYTES: u64 = 64;

impl FileContents<'_> {
    /// Reads from a file with an atomic write. The inode is locked.
    pub(super) fn read_staged(
        &self,
        inode: &Inode,
        write: &AtomicWrite,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let overlay = &write.overlay;
        let left = overlay.size().saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let kept = overlay.kept().saturating_sub(offset);
        let kept = len.min(usize::try_from(kept).unwrap_or(usize::MAX));
        debug_assert!(
            overlay.kept() <= inode.head.size,
            "the file itself is not cut meanwhile"
        );
        let start = out.len();
        self.read_locked(inode, offset, kept, out)?;
        out.resize(start + len, 0);
        overlay.patch(offset, &mut out[start..]);
        debug_assert_eq!(
            out.len(),
            start + len,
            "as many bytes as there are up to the end"
        );
        Ok(len)
    }
}

impl ContentChanges<'_> {
    /// Starts an atomic write of a file.
    pub(super) fn start_atomic_write(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        writer: AtomicWriter,
    ) -> FsResult<()> {
        let _inode = self.locks().inode_write(ino);
        let inode = self.inodes().get(ino)?;
        check_regular(&inode)?;
        if !caller.is_privileged() && caller.uid != inode.head.uid {
            return Err(FsError::Access);
        }
        check_may_write(&inode, inode.head.size.wrapping_add(1))?;
        if !takes_atomic_writes(&inode.head) {
            return Err(FsError::Unsupported);
        }
        debug_assert!(
            !Contents::are_external(&inode.head),
            "contents stay in the store meanwhile"
        );
        self.contents
            .atomic_writes
            .start(ino, writer, inode.head.size)
    }

    /// Puts the changes of an atomic write into the file, all of them or none, and ends it. They
    /// are not durable yet.
    pub(super) fn commit_atomic_write(&self, ino: Ino, process: u32) -> FsResult<Attr> {
        let _inode = self.locks().inode_write(ino);
        let write = self.contents.atomic_writes.of(ino, process)?;
        let inode = self.inodes().get(ino)?;
        self.put_atomic_write(inode, &write)?;
        self.contents.atomic_writes.remove(ino);
        let attr = Attr::of(&self.inodes().head(ino)?);
        debug_assert_eq!(
            attr.size,
            write.overlay.size(),
            "the file is as it was staged"
        );
        Ok(attr)
    }

    /// Ends the atomic write of a file. Returns whether there is one.
    pub(super) fn end_atomic_write(&self, ino: Ino) -> bool {
        if !self.contents.atomic_writes.any() {
            return false;
        }
        let _inode = self.locks().inode_write(ino);
        self.contents.atomic_writes.end(ino)
    }

    /// Drops an atomic write that was ended.
    pub(super) fn remove_atomic_write(&self, ino: Ino) {
        let _inode = self.locks().inode_write(ino);
        self.contents.atomic_writes.remove(ino);
    }

    /// Sets the size of a file in its atomic write.
    pub(super) fn resize_staged(
        &self,
        ino: Ino,
        process: u32,
        size: u64,
        clear_setid: ClearSetId,
    ) -> FsResult<()> {
        let _inode = self.locks().inode_write(ino);
        let inode = self.inodes().get(ino)?;
        self.contents.atomic_writes.of(ino, process)?;
        if size > super::FILE_BYTES_MAX
            || self
                .contents
                .plain_files
                .externals
                .wants(inode.head.size, size)
        {
            return Err(FsError::FileTooBig);
        }
        debug_assert!(size <= FILE_BYTES_MAX, "a file is no longer");
        self.contents.atomic_writes.change(ino, 0, |write| {
            write.overlay.resize(size);
            write.clear_setid = clear_setid.with(write.clear_setid);
        })
    }

    /// Writes to the atomic write of an inode that is locked, within the largest size.
    pub(super) fn write_staged(
        &self,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        clear_setid: ClearSetId,
    ) -> FsResult<Attr> {
        let ino = inode.head.ino;
        let end = offset + data.len() as u64;
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        let Some(write) = self.contents.atomic_writes.get(ino) else {
            // It has ended: the page is about to be dropped.
            return Ok(Attr::of(&inode.head));
        };
        let (extents, bytes) = write.overlay.usage();
        drop(write);
        // What fits a batch, less the row and the contents that leave it.
        let bytes_max = self.batch_bytes_max() / 8 * 7;
        let is_outside = self
            .contents
            .plain_files
            .externals
            .wants(inode.head.size, end);
        if is_outside || batch_bytes(extents + 1, bytes + data.len() as u64) > bytes_max {
            return Err(FsError::FileTooBig);
        }
        self.contents
            .atomic_writes
            .change(ino, data.len() as u64, |write| {
                write.overlay.write(offset, data);
                debug_assert!(
                    write.overlay.size() >= end,
                    "the size has all that was written"
                );
                write.clear_setid = clear_setid.with(write.clear_setid);
            })?;
        let mut attr = Attr::of(&inode.head);
        debug_assert_eq!(attr.ino, ino, "the file that is written");
        attr.size = self.contents.atomic_writes.size(ino).unwrap_or(attr.size);
        debug_assert!(attr.size >= end, "the size has all that was written");
        Ok(attr)
    }

    /// Commits an atomic write as one batch. The inode is locked.
    fn put_atomic_write(&self, inode: Inode, write: &AtomicWrite) -> FsResult<()> {
        check_may_write(&inode, inode.head.size.wrapping_add(1))?;
        debug_assert_eq!(
            inode.head.kind,
            FileKind::Regular,
            "files alone have contents"
        );
        debug_assert!(
            Contents::of(&inode.head) != Contents::External,
            "a file with an atomic write stays in the store"
        );
        debug_assert!(
            write.overlay.kept() <= inode.head.size,
            "no other writer has cut the file"
        );
        let mut change = self.changes.begin();
        let mut staged = self.stage(inode)?;
        self.stage_modified(&mut change, &mut staged, write.clear_setid);
        self.stage_overlay(&mut change, &mut staged, write)?;
        staged.finish(&mut change)?;
        debug_assert_eq!(staged.head.size, write.overlay.size(), "all is staged");
        if change.batch.len_bytes() as u64 > self.batch_bytes_max() {
            return Err(FsError::FileTooBig);
        }
        if staged.head.has(row_flag::HOLES)
            && !staged.head.has(row_flag::ALLOCATED)
            && let Some((at, bytes)) = write.overlay.extents().last()
        {
            let last = chunk_count(at + bytes.len() as u64) - 1;
            debug_assert!(last < chunk_count(staged.head.size), "it is below the size");
            change
                .events
                .push(Event::ChunkCounted(staged.head.ino, last));
        }
        change.commit()
    }

    fn stage_overlay<'a>(
        &self,
        change: &mut Change<'a>,
        staged: &mut Staged,
        write: &'a AtomicWrite,
    ) -> FsResult<()> {
        let overlay = &write.overlay;
        let cut = (overlay.kept() < staged.head.size).then_some(overlay.kept());
        match cut {
            Some(kept) if kept > 0 && staged.head.has(row_flag::ALLOCATED) => {
                // Its extents follow below, with those that are written.
                self.inodes().note_counted(staged.head.ino, None);
                cut_chunks(change, staged.number(), (staged.head.size, kept));
                staged.head.size = kept;
            }
            Some(kept) => self.stage_cut(change, staged, kept)?,
            None => {}
        }
        if staged.head.size == 0 {
            // The row may have other contents behind it.
            staged.tail = Some(Vec::new());
        }
        let fits_row = overlay.size() <= INLINE_BYTES_MAX;
        debug_assert!(
            staged.head.size <= overlay.size(),
            "what was cut is cut by now"
        );
        if Contents::of(&staged.head) == Contents::Inline && fits_row {
            return self.stage_inline_overlay(staged, write);
        }
        staged.leave_row(self.contents.store, change, false)?;
        let has_extents = staged.head.has(row_flag::ALLOCATED);
        for (at, bytes) in overlay.extents() {
            stage_chunks(change, staged, at, bytes);
            if !has_extents {
                self.count_chunks(staged, at, at + bytes.len() as u64);
            }
        }
        if overlay.size() > staged.head.size {
            self.stage_growth(change, staged, overlay.size())?;
        }
        if has_extents {
            let written = overlay
                .extents()
                .map(|(at, bytes)| at / CHUNK_BYTES..chunk_count(at + bytes.len() as u64));
            self.stage_rewritten(change, staged, cut.map(chunk_count), &joined(written))?;
        }
        debug_assert_eq!(staged.head.size, overlay.size(), "all is staged");
        Ok(())
    }

    /// Stages contents that fit the row.
    fn stage_inline_overlay(&self, staged: &mut Staged, write: &AtomicWrite) -> FsResult<()> {
        debug_assert_eq!(
            Contents::of(&staged.head),
            Contents::Inline,
            "contents are in the row"
        );
        let overlay = &write.overlay;
        debug_assert!(overlay.size() <= INLINE_BYTES_MAX, "contents fit the row");
        let mut tail = match staged.tail.take() {
            Some(tail) => tail,
            None => Vec::from(self.contents.store.tail(&staged.inode)?),
        };
        let size = usize::try_from(overlay.size()).expect("within a row");
        tail.resize(size, 0);
        overlay.patch(0, &mut tail);
        staged.head.size = overlay.size();
        staged.set_tail(tail);
        Ok(())
    }
}

/// Reports whether a file can have an atomic write, where the file system can be changed.
pub(super) fn takes_atomic_writes(head: &InodeHead) -> bool {
    matches!(
        Contents::of_inode(head),
        Some(Contents::Inline | Contents::Chunked)
    )
}

/// Joins ranges that come in order and may overlap.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        debug_assert!(range.start < range.end, "a range that is not empty");
        debug_assert!(
            joined.last().is_none_or(|last| last.start <= range.start),
            "in order"
        );
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    debug_assert!(
        joined.windows(2).all(|pair| pair[0].end < pair[1].start),
        "ranges do not touch"
    );
    joined
}

/// Returns the bytes of a batch with these extents, at most, where they lie within the file.
const fn batch_bytes(extents: u64, bytes: u64) -> u64 {
    // An extent begins and ends within chunks.
    let messages = bytes / CHUNK_BYTES + 2 * extents;
    bytes + messages * MESSAGE_BYTES
}
