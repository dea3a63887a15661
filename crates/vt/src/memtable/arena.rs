//! Memory that is handed out in pieces and given back all at once.
#![expect(unsafe_code, reason = "pieces are handed out as pointers")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Pieces start at multiples of this, in bytes.
const ALIGN: usize = 8;
/// Pieces longer than a chunk divided by this get a chunk of their own.
const LARGE_PART: usize = 4;

/// An arena. Its pieces live until it is dropped, wherever it is moved.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<(NonNull<u8>, Layout)>,
    chunk_bytes: usize,
    /// The rest of the chunk in use.
    free: *mut u8,
    free_bytes: usize,
    bytes: usize,
}

// SAFETY: the arena owns its chunks; what is in them is the business of who was given the pieces.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn new(chunk_bytes: usize) -> Self {
        assert!(chunk_bytes >= ALIGN, "a chunk has room");
        Self {
            chunks: Vec::new(),
            chunk_bytes,
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
            if len > self.chunk_bytes / LARGE_PART {
                return self.new_chunk(len);
            }
            self.free = self.new_chunk(self.chunk_bytes);
            self.free_bytes = self.chunk_bytes;
        }
        let piece = self.free;
        // SAFETY: `free` points at `free_bytes` bytes of a chunk, and `len` is not above that.
        self.free = unsafe { self.free.add(len) };
        self.free_bytes -= len;
        piece
    }

    fn new_chunk(&mut self, len: usize) -> *mut u8 {
        let layout = Layout::from_size_align(len, ALIGN).expect("a chunk fits in memory");
        assert!(layout.size() > 0, "a chunk is not empty");
        // SAFETY: the layout is not empty.
        let chunk = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(chunk) else {
            handle_alloc_error(layout)
        };
        self.chunks.push((start, layout));
        self.bytes += len + size_of::<(NonNull<u8>, Layout)>();
        chunk
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (start, layout) in self.chunks.drain(..) {
            // SAFETY: allocated above with this layout, and given back once.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let mut arena = Arena::new(256);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for len in [1, 8, 9, 60, 64, 65, 1000, 3, 255] {
            let at = arena.allocate(len).addr();
            assert!(at.is_multiple_of(ALIGN));
            assert!(
                taken
                    .iter()
                    .all(|&(start, end)| at + len <= start || end <= at)
            );
            taken.push((at, at + len));
        }
    }

    #[test]
    fn memory_is_counted() {
        let mut arena = Arena::new(4096);
        let empty = arena.bytes();
        arena.allocate(100);
        let one_chunk = arena.bytes();
        assert!(one_chunk >= empty + 4096);
        arena.allocate(100);
        assert_eq!(arena.bytes(), one_chunk);
        arena.allocate(1 << 20);
        assert!(arena.bytes() >= one_chunk + (1 << 20));
    }
}
