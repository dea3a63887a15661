//! Memory that is handed out in pieces and given back all at once.
#![expect(unsafe_code, reason = "pieces are handed out as pointers")]

use super::chunks::{ALIGN, Chunk, Chunks};
use std::sync::Arc;

/// Pieces longer than a chunk divided by this get a chunk of their own.
const LARGE_PART: usize = 4;

/// An arena. Its pieces live until it is dropped, wherever it is moved.
#[derive(Debug)]
pub(super) struct Arena {
    source: Arc<Chunks>,
    chunks: Vec<Chunk>,
    /// The rest of the chunk in use.
    free: *mut u8,
    free_bytes: usize,
    bytes: usize,
}

// SAFETY: the arena owns its chunks; what is in them is the business of who was given the pieces.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn new(source: Arc<Chunks>) -> Self {
        Self {
            source,
            chunks: Vec::new(),
            free: std::ptr::null_mut(),
            free_bytes: 0,
            bytes: size_of::<Self>(),
        }
    }

    /// Bytes of memory.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A piece of at least `len` bytes, of any content.
    pub(super) fn allocate(&mut self, len: usize) -> *mut u8 {
        let len = len.max(1).next_multiple_of(ALIGN);
        if len > self.free_bytes {
            let chunk_bytes = self.source.chunk_bytes();
            if len > chunk_bytes / LARGE_PART {
                return self.new_chunk(len);
            }
            self.free = self.new_chunk(chunk_bytes);
            self.free_bytes = chunk_bytes;
        }
        let piece = self.free;
        debug_assert!(len <= self.free_bytes, "the chunk has the piece");
        debug_assert!(piece.cast::<u64>().is_aligned(), "pieces are aligned");
        // SAFETY: `free` points at `free_bytes` bytes of a chunk, and `len` is not above that.
        self.free = unsafe { self.free.add(len) };
        self.free_bytes -= len;
        piece
    }

    fn new_chunk(&mut self, len: usize) -> *mut u8 {
        debug_assert!(len >= ALIGN, "a chunk has room for a word");
        let chunk = self.source.take(len);
        assert_eq!(chunk.len(), len, "as was asked for");
        let start = chunk.as_ptr();
        debug_assert!(start.cast::<u64>().is_aligned(), "chunks are aligned");
        self.chunks.push(chunk);
        self.bytes += len + size_of::<Chunk>();
        start
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.source.leave(std::mem::take(&mut self.chunks));
    }
}
