//! Rows of the contents of files: chunks, allocated extents, plain files.

use super::Change;
use crate::FsResult;
use crate::data::FILE_BYTES_MAX;
use crate::events::Event;
use stitch_base::Ino;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_sys::{AllocatedRow, ExternalRow, UPSERT_CHUNK};
use stitch_kv::StreamName;

/// Chunks up to which contents are deleted one by one: cheaper to read after than a range.
const POINT_DELETES_MAX: u64 = 16;

/// Checks a chunk before it is written, as a check of the file system does after it is read.
fn check_chunk(number: u64, bytes: &[u8]) {
    debug_assert!(
        number <= FILE_BYTES_MAX / CHUNK_BYTES,
        "a file has a largest size"
    );
    debug_assert!(!bytes.is_empty(), "an empty chunk is absent");
    debug_assert!(bytes.len() as u64 <= CHUNK_BYTES, "a chunk has a bound");
}

/// Returns the write stream of the chunks of an inode. Views have trees of their own, so the inode
/// number is enough.
const fn stream_of(ino: Ino) -> StreamName {
    debug_assert!(ino.0 > 0, "0 is no number");
    StreamName(ino.0)
}

impl<'fs> Change<'fs> {
    /// Puts the row that names the plain file with the contents of an inode.
    pub(crate) fn put_external(&mut self, ino: Ino, row: &ExternalRow) {
        debug_assert!(
            row.number > 0,
            "a reader takes no plain file without number"
        );
        debug_assert!(
            row.settled <= FILE_BYTES_MAX,
            "a plain file is no longer than a file"
        );
        let key = self.keys().external(ino);
        self.batch.put(&key, &row.encode());
    }

    /// Deletes the row that names the plain file of an inode. The plain file is removed some time
    /// after the commit.
    pub(crate) fn delete_external(&mut self, ino: Ino) -> FsResult<()> {
        let leaving = self.scope.memory.plain_files.leaving(ino)?;
        self.events.extend(leaving.map(Event::RemovedBeside));
        let key = self.keys().external(ino);
        self.batch.delete(&key);
        Ok(())
    }

    /// Puts the row of an allocated extent.
    pub(crate) fn put_extent(&mut self, ino: Ino, end: u64, row: &AllocatedRow) {
        debug_assert!(
            end <= FILE_BYTES_MAX.div_ceil(CHUNK_BYTES),
            "an extent is within a file"
        );
        debug_assert!(
            row.start < end,
            "an extent is not empty: its reader refuses one"
        );
        let key = self.keys().extent(ino, end);
        self.batch.put(&key, &row.encode());
    }

    /// Deletes the row of an allocated extent.
    pub(crate) fn delete_extent(&mut self, ino: Ino, end: u64) {
        debug_assert!(end > 0, "an extent is not empty");
        let key = self.keys().extent(ino, end);
        self.batch.delete(&key);
    }

    /// Deletes the chunks `[start, end)` of an inode.
    pub(crate) fn delete_chunks(&mut self, ino: Ino, start: u64, end: u64) {
        let keys = self.keys();
        if end.saturating_sub(start) <= POINT_DELETES_MAX {
            for number in start..end {
                self.batch.delete(&keys.chunk(ino, number));
            }
        } else {
            self.batch.delete_range(&keys.chunks(ino, &(start..end)));
        }
    }

    /// Changes a part of one chunk.
    pub(crate) fn chunk(&mut self, ino: Ino, number: u64, delta: ChunkDelta<'_>) {
        debug_assert!(
            number <= FILE_BYTES_MAX / CHUNK_BYTES,
            "a file has a largest size"
        );
        self.scratch.clear();
        delta.encode(&mut self.scratch);
        let key = self.keys().chunk(ino, number);
        debug_assert!(!self.scratch.is_empty(), "a message says what it is");
        self.batch.upsert(&key, UPSERT_CHUNK, &self.scratch);
    }

    /// Puts one chunk.
    pub(crate) fn put_chunk(&mut self, ino: Ino, number: u64, bytes: &[u8]) {
        check_chunk(number, bytes);
        let key = self.keys().chunk(ino, number);
        self.batch.put(&key, bytes);
        self.batch.name_stream(stream_of(ino));
    }

    /// Puts a partial chunk, which is about to be put again.
    pub(crate) fn put_partial_chunk(&mut self, ino: Ino, number: u64, bytes: &[u8]) {
        check_chunk(number, bytes);
        let key = self.keys().chunk(ino, number);
        self.batch.put_partial(&key, bytes);
        self.batch.name_stream(stream_of(ino));
    }

    /// Puts one chunk without copying it.
    pub(crate) fn put_borrowed_chunk(&mut self, ino: Ino, number: u64, bytes: &'fs [u8]) {
        check_chunk(number, bytes);
        let key = self.keys().chunk(ino, number);
        self.batch.put_borrowed(&key, bytes);
        self.batch.name_stream(stream_of(ino));
    }
}
