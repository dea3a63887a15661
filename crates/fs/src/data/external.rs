//! Contents that are a plain file beside the store; see `external`.

use super::allocate::zeroed;
use super::read::check_regular;
use super::{ContentChanges, FILE_BYTES_MAX, FileContents, Staged, chunk_count, chunks_from};
use crate::change::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::external::{ExternalName, Plain};
use crate::inode::{Inode, Location};
use crate::{FsError, FsResult, SeekFor};
use std::ops::Range;
use stitch_base::ErrorKind;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_sys::ExternalRow;

/// Bytes that are copied at once when a file leaves the store.
const COPY_BYTES: u64 = 1 << 20;
const _: () = assert!(
    COPY_BYTES.is_multiple_of(CHUNK_BYTES),
    "pieces end where chunks end"
);

impl FileContents<'_> {
    /// Appends `len` bytes from `offset` on, which are within the size.
    pub(super) fn read_external(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> FsResult<()> {
        debug_assert!(len > 0, "some bytes are read");
        let base = out.len();
        debug_assert!(
            offset + len as u64 <= inode.head.size,
            "the range is within the size"
        );
        let plain = self.plain_files.open(inode.head.ino, inode.head.size)?;
        let have = usize::try_from(plain.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let have = have.min(len);
        if have > 0 {
            let files = self.plain_files.externals.files()?;
            let count = files.read_at(plain.name, offset, have, out)?;
            debug_assert!(count <= have, "no more than was asked for");
            if count < have && !plain.is_failed() {
                let found = files.len(plain.name)?;
                return Err(self.plain_files.too_short(plain.name, plain.len(), found));
            }
        }
        out.resize(base + len, 0);
        Ok(())
    }

    /// As `seek`, of an external file with holes; `offset` is below the size.
    pub(super) fn seek_external(&self, inode: &Inode, offset: u64, what: SeekFor) -> FsResult<u64> {
        let size = inode.head.size;
        debug_assert!(offset < size, "the caller has checked the offset");
        let plain = self.plain_files.open(inode.head.ino, size)?;
        let len = plain.len().min(size);
        if offset >= len {
            return match what {
                SeekFor::Data => Err(FsError::NoSeekTarget),
                SeekFor::Hole => Ok(offset),
            };
        }
        let found = self
            .plain_files
            .externals
            .files()?
            .seek(plain.name, offset, what)?;
        debug_assert!(
            found.is_none_or(|at| at >= offset),
            "nothing before the offset is found"
        );
        match what {
            SeekFor::Data => found.filter(|&at| at < len).ok_or(FsError::NoSeekTarget),
            SeekFor::Hole => Ok(found.unwrap_or(len).min(len)),
        }
    }
}

impl ContentChanges<'_> {
    /// The inode, whose contents have left the store if a size of `end` makes them. Those that are
    /// shared stay. The inode is locked.
    pub(crate) fn with_room_for(&self, inode: Inode, end: u64) -> FsResult<Inode> {
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        let stays = matches!(
            Contents::of_inode(&inode.head),
            Some(Contents::External | Contents::Shared)
        );
        if stays
            || !self
                .contents
                .plain_files
                .externals
                .wants(inode.head.size, end)
        {
            return Ok(inode);
        }
        check_regular(&inode)?;
        let mut left = self.move_out(&inode);
        if matches!(left, Err(FsError::NoSpace)) && self.changes.make_room_beside()? {
            left = self.move_out(&inode);
        }
        left?;
        let inode = self.inodes().get(inode.head.ino)?;
        debug_assert!(Contents::are_external(&inode.head), "it has left the store");
        Ok(inode)
    }

    /// Makes the contents a plain file. After an error they are where they were, and there is none.
    fn move_out(&self, inode: &Inode) -> FsResult<()> {
        debug_assert!(!Contents::are_external(&inode.head), "it is in the store");
        let name = self.new_plain(inode)?;
        let allocated = self.allocate_new(inode, name);
        let left = allocated.and_then(|()| self.fill_plain(inode, name));
        let left = left.and_then(|len| self.leave_store(inode, name, len));
        // What the engine did not refuse, and did not do, may be there when it is opened again.
        let is_open = matches!(&left, Err(FsError::Storage(_)));
        if left.is_err() && !is_open {
            // If it stays, the next open removes it.
            if let Err(error) = self.contents.plain_files.externals.files()?.remove(name) {
                tracing::warn!(%error, "a plain file that is not needed is left");
            }
        }
        left
    }

    fn new_plain(&self, inode: &Inode) -> FsResult<ExternalName> {
        let files = self.contents.plain_files.externals.files()?;
        loop {
            let name = ExternalName {
                ino: inode.head.ino,
                number: self.changes.new_ino()?.0,
            };
            debug_assert_ne!(name.number, name.ino.0, "a number of its own");
            match files.create(name) {
                Ok(()) => return Ok(name),
                // A power cut took the number back; the file is swept at the next open.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Copies the contents to a new plain file and makes it durable. Returns its length.
    fn fill_plain(&self, inode: &Inode, name: ExternalName) -> FsResult<u64> {
        let files = self.contents.plain_files.externals.files()?;
        let size = inode.head.size;
        let mut len = 0;
        let mut at = 0;
        let mut piece = Vec::new();
        while at < size {
            let count = COPY_BYTES.min(size - at);
            piece.clear();
            let count = usize::try_from(count).expect("a small piece");
            self.contents.read_locked(inode, at, count, &mut piece)?;
            debug_assert_eq!(piece.len(), count, "it is below the size");
            for (index, bytes) in piece
                .chunks(usize::try_from(CHUNK_BYTES).expect("4096"))
                .enumerate()
            {
                if bytes.iter().any(|&byte| byte != 0) {
                    let offset = at + index as u64 * CHUNK_BYTES;
                    debug_assert!(offset < size, "it is below the size");
                    files.write_at(name, offset, bytes)?;
                    len = offset + bytes.len() as u64;
                }
            }
            at += piece.len() as u64;
        }
        debug_assert_eq!(at, size, "all of the file was copied");
        debug_assert!(len <= size, "zeros at the end are a hole");
        files.publish(name)?;
        Ok(len)
    }

    /// The batch that says where the contents are from now on.
    fn leave_store(&self, inode: &Inode, name: ExternalName, len: u64) -> FsResult<()> {
        debug_assert!(!Contents::are_external(&inode.head), "it is in the store");
        self.changes
            .mark_header(|header| header.has_external = true)?;
        debug_assert!(
            len <= inode.head.size,
            "a plain file is no longer than its file"
        );
        let mut change = self.changes.begin();
        let mut inode = inode.clone();
        if matches!(inode.location, Location::Memory(_)) {
            inode = change.put_orphan(&inode, &[]);
        }
        let size = inode.head.size;
        let mut head = inode.head;
        if Contents::of(&head) == Contents::Chunked {
            change.delete_chunks(head.ino, 0, chunk_count(size));
        }
        head.flags = Contents::External.mark(head.flags);
        let row = ExternalRow {
            number: name.number,
            settled: len,
        };
        change.put_external(head.ino, &row);
        if head.has(row_flag::ALLOCATED) {
            self.extents
                .delete(&mut change, head.ino, &chunks_from(0))?;
            head.flags &= !row_flag::ALLOCATED;
            head.chunks = head.chunks.min(chunk_count(size));
        }
        debug_assert!(
            !head.has(row_flag::ALLOCATED),
            "the host allocates from now on"
        );
        debug_assert!(
            Contents::are_external(&head),
            "the row tells where they are"
        );
        change.row(&inode, &head, &[]);
        change.events.push(Event::StoredBeside { name, len, size });
        change.commit()
    }

    /// Returns the plain file of an external file that is changing.
    fn plain_of(&self, staged: &Staged) -> FsResult<Arc<Plain>> {
        debug_assert_eq!(Contents::of(&staged.head), Contents::External, "it has one");
        let plain = self
            .contents
            .plain_files
            .open(staged.head.ino, staged.head.size)?;
        debug_assert_eq!(
            plain.name.ino, staged.head.ino,
            "the plain file of the inode"
        );
        Ok(plain)
    }

    /// Puts bytes into the plain file and stages the new size.
    pub(super) fn stage_external_write(
        &self,
        staged: &mut Staged,
        at: u64,
        piece: &[u8],
    ) -> FsResult<()> {
        debug_assert!(!piece.is_empty(), "it writes something");
        let plain = self.plain_of(staged)?;
        let end = at + piece.len() as u64;
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        if end > staged.head.size {
            self.contents.plain_files.trim(&plain)?;
        }
        let make_room = || self.changes.make_room_beside();
        self.contents
            .plain_files
            .write(&plain, at, piece, &make_room)?;
        staged.grow(end, at);
        debug_assert!(staged.head.size >= end, "the size is staged");
        Ok(())
    }

    /// Before a file grows to `size` by a hole.
    pub(super) fn prepare_growth(&self, staged: &Staged, size: u64) -> FsResult<()> {
        debug_assert!(size >= staged.head.size, "it grows");
        if Contents::of(&staged.head) == Contents::External {
            let plain = self.plain_of(staged)?;
            self.contents.plain_files.trim(&plain)?;
            if plain.is_lent() {
                self.contents.plain_files.stretch(&plain, size)?;
            }
        }
        Ok(())
    }

    /// Stages a smaller size of an external file. With 0 it is external no more, unless it is lent.
    pub(super) fn stage_external_cut(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        size: u64,
    ) -> FsResult<()> {
        debug_assert_eq!(
            Contents::of(&staged.head),
            Contents::External,
            "it has a plain file"
        );
        let ino = staged.head.ino;
        debug_assert_eq!(staged.head.size, size, "the size is staged");
        if size == 0 && !self.contents.plain_files.is_lent(ino) {
            change.delete_external(ino)?;
            staged.head.flags = Contents::Inline.mark(staged.head.flags & !row_flag::HOLES);
            staged.head.chunks = 0;
            return Ok(());
        }
        if let Some((row, less)) = self.contents.plain_files.unsettled_row(ino, size)? {
            change.put_external(ino, &row);
            change.events.push(Event::CutBeside(less));
        }
        staged.head.chunks = staged.head.chunks.min(chunk_count(size));
        debug_assert!(
            staged.head.chunks <= chunk_count(size),
            "no chunk lies beyond the size"
        );
        Ok(())
    }

    /// Zeros a range of the plain file, which is below the size.
    pub(super) fn zero_external(&self, staged: &mut Staged, range: &Range<u64>) -> FsResult<()> {
        debug_assert!(range.start <= range.end, "a range of bytes");
        let plain = self.plain_of(staged)?;
        debug_assert!(range.end <= staged.head.size, "zeros lie within the size");
        self.contents
            .plain_files
            .punch(&plain, range.start, range.end)?;
        staged.note_absent(&zeroed(range, staged.head.size));
        Ok(())
    }

    /// Gives `[offset, end)` of the plain file the host's space.
    pub(super) fn allocate_external(&self, staged: &Staged, offset: u64, end: u64) -> FsResult<()> {
        let plain = self.plain_of(staged)?;
        let make_room = || self.changes.make_room_beside();
        debug_assert!(offset < end, "a range that is not empty");
        self.contents
            .plain_files
            .allocate(&plain, offset, end, &make_room)
    }

    /// Gives a new plain file the host's space for what the file has allocated and not written.
    fn allocate_new(&self, inode: &Inode, name: ExternalName) -> FsResult<()> {
        if !inode.head.has(row_flag::ALLOCATED) {
            return Ok(());
        }
        let files = self.contents.plain_files.externals.files()?;
        for extent in self.extents.at(inode.head.ino, &chunks_from(0))? {
            if extent.unwritten() > 0 {
                let bytes = extent.unwritten() * CHUNK_BYTES;
                debug_assert!(bytes > 0, "an extent is not empty");
                files.allocate(name, extent.start * CHUNK_BYTES, bytes)?;
            }
        }
        Ok(())
    }
}
