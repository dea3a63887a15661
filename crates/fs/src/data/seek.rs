//! Finding data and holes.

use super::read::check_regular;
use super::{FileContents, chunk_count};
use crate::contents::Contents;
use crate::inode::Inode;
use crate::locator::Locator;
use crate::{FsError, FsResult, SeekFor};
use stitch_base::Ino;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_key::CHUNK_BYTES;

impl FileContents<'_> {
    /// The next data or hole at or after `offset`.
    pub(super) fn seek(&self, ino: Ino, offset: u64, what: SeekFor) -> FsResult<u64> {
        let _inode = self.residents.locks.inode_read(ino);
        let inode = self.residents.inodes.get(ino)?;
        check_regular(&inode)?;
        self.note_read(ino)?;
        let staged = self.atomic_writes.size(ino);
        let size = staged.unwrap_or(inode.head.size);
        if offset >= size {
            return Err(FsError::NoSeekTarget);
        }
        // With an atomic write all is reported as data.
        let has_holes = staged.is_none() && inode.head.has(row_flag::HOLES);
        let found = match (what, Contents::of(&inode.head)) {
            (SeekFor::Data, _) if !has_holes => offset,
            (SeekFor::Hole, _) if !has_holes => size,
            (what, Contents::External) => self.seek_external(&inode, offset, what)?,
            (SeekFor::Data, _) => self.seek_data(&inode, offset)?,
            (SeekFor::Hole, _) => self.seek_hole(&inode, offset)?,
        };
        debug_assert!((offset..=size).contains(&found), "it is within the file");
        Ok(found)
    }

    fn seek_data(&self, inode: &Inode, offset: u64) -> FsResult<u64> {
        let numbers = offset / CHUNK_BYTES..chunk_count(inode.head.size);
        debug_assert!(!numbers.is_empty(), "the offset is below the size");
        for (owner, piece) in self.store.pieces_of(&inode.head, &numbers)? {
            let mut scan = self.store.scan(&self.store.keys.chunks(owner, &piece))?;
            let found = scan.next()?.and_then(|(key, _)| Locator::chunk_of(key));
            if let Some(number) = found {
                debug_assert!(piece.contains(&number), "a scan keeps to its range");
                return Ok(offset.max(number * CHUNK_BYTES));
            }
        }
        Err(FsError::NoSeekTarget)
    }

    fn seek_hole(&self, inode: &Inode, offset: u64) -> FsResult<u64> {
        let first = offset / CHUNK_BYTES;
        let numbers = first..chunk_count(inode.head.size);
        debug_assert!(!numbers.is_empty(), "the offset is below the size");
        let mut expected = first;
        for (owner, piece) in self.store.pieces_of(&inode.head, &numbers)? {
            let mut scan = self.store.scan(&self.store.keys.chunks(owner, &piece))?;
            while let Some((key, _)) = scan.next()? {
                if Locator::chunk_of(key) != Some(expected) {
                    break;
                }
                expected += 1;
            }
            if expected < piece.end {
                break;
            }
        }
        debug_assert!(
            (first..=numbers.end).contains(&expected),
            "chunks of the file alone"
        );
        let hole = offset.max(expected.saturating_mul(CHUNK_BYTES));
        Ok(hole.min(inode.head.size))
    }
}
