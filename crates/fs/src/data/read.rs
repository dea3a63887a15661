//! Reading.

use super::{FILE_BYTES_MAX, FileContents, chunk_count, extend_padded, within};
use crate::contents::Contents;
use crate::inode::Inode;
use crate::locator::Locator;
use crate::{FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_key::CHUNK_BYTES;

impl FileContents<'_> {
    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file.
    /// Returns their number.
    pub(super) fn read(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let _inode = self.residents.locks.inode_read(ino);
        let inode = self.residents.inodes.get(ino)?;
        check_regular(&inode)?;
        match self.atomic_writes.get(ino) {
            Some(write) => self.read_staged(&inode, &write, (offset, len), out),
            None => self.read_locked(&inode, offset, len, out),
        }
    }

    /// Notes that contents are read, in a serializable transaction.
    pub(super) fn note_read(&self, ino: Ino) -> FsResult<()> {
        match self.reads {
            Some(reads) => reads.note_contents(ino),
            None => Ok(()),
        }
    }

    /// Reads from an inode that is locked.
    pub(super) fn read_locked(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let head = &inode.head;
        self.note_read(head.ino)?;
        let left = head.size.saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        debug_assert!(offset < FILE_BYTES_MAX, "below the size");
        debug_assert!(offset + len as u64 <= head.size, "within the size");
        out.reserve(len);
        let base = out.len();
        match Contents::of(head) {
            Contents::Inline => {
                let tail = self.store.tail(inode)?;
                let offset = usize::try_from(offset).expect("within a row");
                extend_padded(out, &tail, offset, len);
            }
            Contents::Chunked | Contents::Shared => self.read_chunked(inode, offset, len, out)?,
            Contents::External => self.read_external(inode, offset, len, out)?,
        }
        debug_assert_eq!(out.len() - base, len, "holes are zeros");
        Ok(len)
    }

    /// Reads from chunks, and prefetches what is likely to be read next. Chunks of a file that
    /// shares contents are under several numbers: it prefetches under that of the last.
    fn read_chunked(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> FsResult<()> {
        let end = offset + len as u64;
        debug_assert!(end <= inode.head.size, "the caller has checked the end");
        let chunks = offset / CHUNK_BYTES..chunk_count(end);
        debug_assert!(chunks.start < chunks.end, "some bytes are read");
        let pieces = self.store.pieces_of(&inode.head, &chunks)?;
        if let Some((number, _)) = pieces.last().filter(|_| chunks.end - chunks.start > 1) {
            self.prefetcher
                .file_read(inode, *number, offset, len as u64);
        }
        for (number, piece) in pieces {
            let start = offset.max(piece.start * CHUNK_BYTES);
            let stop = end.min(piece.end * CHUNK_BYTES);
            debug_assert!(start < stop, "a piece of the range");
            let len = usize::try_from(stop - start).expect("within the read");
            match piece.end - piece.start {
                1 => self.read_chunk(number, start, len, out)?,
                _ => self.read_chunks(number, start, len, out)?,
            }
        }
        Ok(())
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self, ino: Ino) -> FsResult<Bytes> {
        let _inode = self.residents.locks.inode_read(ino);
        let inode = self.residents.inodes.get(ino)?;
        if inode.head.kind != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        self.note_read(ino)?;
        self.store.tail(&inode)
    }

    fn read_chunk(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> FsResult<()> {
        debug_assert!(len > 0, "some bytes are read");
        debug_assert!(
            u64::from(within(offset)) + len as u64 <= CHUNK_BYTES,
            "bytes of one chunk"
        );
        let key = self.store.keys.chunk(ino, offset / CHUNK_BYTES);
        let chunk = self.store.get(&key)?.unwrap_or_default();
        extend_padded(out, &chunk, usize::from(within(offset)), len);
        Ok(())
    }

    fn read_chunks(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> FsResult<()> {
        let base = out.len();
        let end = offset + len as u64;
        let numbers = offset / CHUNK_BYTES..chunk_count(end);
        debug_assert!(numbers.end - numbers.start > 1, "one chunk is a point read");
        debug_assert!(len > 0, "some bytes are read");
        let range = self.store.keys.chunks(ino, &numbers);
        let mut scan = self.store.scan_whole(&range)?;
        while let Some((key, bytes)) = scan.next()? {
            let number = Locator::chunk_of(key).ok_or_else(|| {
                FsError::Corrupt(format!("inode {ino} has a chunk without number"))
            })?;
            let chunk_start = number * CHUNK_BYTES;
            debug_assert!(numbers.contains(&number), "a scan keeps to its range");
            let skip = usize::try_from(offset.saturating_sub(chunk_start)).expect("in a chunk");
            let to = chunk_start.max(offset) - offset;
            let to = usize::try_from(to).expect("within the read");
            debug_assert!(to < len, "the chunk has a part of the range");
            let room = len - to;
            let piece = bytes.get(skip..).unwrap_or_default();
            let piece = &piece[..piece.len().min(room)];
            out.resize(base + to, 0);
            out.extend_from_slice(piece);
        }
        out.resize(base + len, 0);
        Ok(())
    }
}

/// Refuses what has no contents.
pub(super) const fn check_regular(inode: &Inode) -> FsResult<()> {
    match inode.head.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FsError::IsDir),
        _ => Err(FsError::Invalid("not a regular file")),
    }
}
