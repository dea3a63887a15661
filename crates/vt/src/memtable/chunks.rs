//! The memory that memtables of a store take one after the other, in chunks.
//!
//! What a memtable gives back when it is dropped is kept for the next one: to the operating system
//! and back again, every page of it would be cleared and mapped anew. As much is kept as keeps all
//! chunks, those in use among them, within what the store's memory has for memtables.
#![expect(unsafe_code, reason = "chunks are memory of any content")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use stitch_base::sync::Mutex;

/// Chunks start at multiples of this, in bytes.
pub(super) const ALIGN: usize = 8;

/// A piece of memory of any content.
#[derive(Debug)]
pub(super) struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a chunk owns its memory; what is in it is the business of who uses it.
unsafe impl Send for Chunk {}

impl Chunk {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len, ALIGN).expect("a chunk fits in memory");
        assert!(layout.size() > 0, "a chunk is not empty");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Self { start, layout }
    }

    pub(super) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) const fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Where arenas take chunks from, and leave them.
pub(super) struct Chunks {
    chunk_bytes: usize,
    budget_bytes: usize,
    state: Mutex<ChunksState>,
}

#[derive(Default)]
struct ChunksState {
    kept: Vec<Chunk>,
    /// Bytes of all chunks that arenas have.
    used_bytes: usize,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chunks, of which {} bytes are kept", self.kept_bytes())
    }
}

impl Chunks {
    /// Chunks of `chunk_bytes` are kept as long as all there are take no more than `budget_bytes`.
    pub(super) fn new(chunk_bytes: usize, budget_bytes: usize) -> Self {
        assert!(chunk_bytes >= ALIGN, "a chunk has room");
        Self {
            chunk_bytes,
            budget_bytes,
            state: Mutex::new(ChunksState::default()),
        }
    }

    /// Length of the chunks that are kept.
    pub(super) const fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// A chunk of `len` bytes.
    pub(super) fn take(&self, len: usize) -> Chunk {
        let mut state = self.state.lock();
        debug_assert!(len > 0, "a chunk is not empty");
        state.used_bytes += len;
        debug_assert!(
            state
                .kept
                .last()
                .is_none_or(|chunk| chunk.len() == self.chunk_bytes),
            "chunks of one length are kept"
        );
        let kept = (len == self.chunk_bytes).then(|| state.kept.pop());
        drop(state);
        let chunk = kept.flatten().unwrap_or_else(|| Chunk::new(len));
        assert_eq!(chunk.len(), len, "a chunk of the length asked for");
        chunk
    }

    /// Takes chunks back.
    pub(super) fn leave(&self, chunks: Vec<Chunk>) {
        let mut state = self.state.lock();
        let bytes: usize = chunks.iter().map(Chunk::len).sum();
        debug_assert!(bytes > 0 || chunks.is_empty(), "a chunk is not empty");
        assert!(bytes <= state.used_bytes, "they came from here");
        state.used_bytes -= bytes;
        let room = self.budget_bytes.saturating_sub(state.used_bytes);
        let most = room / self.chunk_bytes;
        let (same, mut others): (Vec<_>, Vec<_>) = chunks
            .into_iter()
            .partition(|chunk| chunk.len() == self.chunk_bytes);
        state.kept.extend(same);
        let most = most.min(state.kept.len());
        others.extend(state.kept.drain(most..));
        debug_assert!(
            state
                .kept
                .iter()
                .all(|chunk| chunk.len() == self.chunk_bytes),
            "chunks of one length are kept"
        );
        debug_assert!(
            state.kept.len() * self.chunk_bytes <= room,
            "kept blocks are within the budget"
        );
        drop(state);
        drop(others);
    }

    /// Gives what is kept back to the operating system.
    pub(super) fn give_back(&self) {
        let kept = std::mem::take(&mut self.state.lock().kept);
        drop(kept);
    }

    /// Bytes that no arena has.
    pub(super) fn kept_bytes(&self) -> usize {
        let state = self.state.lock();
        let bytes = state.kept.iter().map(Chunk::len).sum();
        debug_assert_eq!(
            bytes,
            state.kept.len() * self.chunk_bytes,
            "chunks of one length are kept"
        );
        bytes
    }
}
