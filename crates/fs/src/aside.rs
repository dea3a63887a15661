//! Room for chunks that are allocated and not written.
//!
//! The engine keeps it from all commits but those that write allocated chunks. How many chunks
//! there are is stored with the rows of extents, in the same batches; what is set aside is in
//! memory, and set again at open.
//!
//! The file systems of an engine (mainline and its writable views) share one sum: the engine knows
//! one number. A view takes part while it is open.
//!
//! A transaction sets nothing aside: its commit does, in mainline.
//!
//! Order, so that the room is never promised twice:
//! 1. an allocation sets room aside, then commits its rows;
//! 2. a write commits chunks and rows, then releases the room.

use crate::schema::Store;
use crate::{FsError, FsResult};
use stitch_base::ErrorKind;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_kv::Engine;

/// Room for a chunk: its bytes, and an eighth for what an engine keeps of it beside them.
const ROOM_BYTES: u64 = CHUNK_BYTES + CHUNK_BYTES / 8;
const _: () = assert!(ROOM_BYTES > CHUNK_BYTES, "a chunk and its rows");

/// Number of chunks that room is set aside for.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// Those of all file systems of the engine.
    all_chunks: Arc<Mutex<u64>>,
    /// Those of this one. Changed while the sum is locked.
    own_chunks: AtomicU64,
}

impl Aside {
    /// Takes part in the sum of another file system of the engine; with no chunks yet.
    pub(crate) fn beside(other: &Self) -> Self {
        Self {
            all_chunks: Arc::clone(&other.all_chunks),
            own_chunks: AtomicU64::new(0),
        }
    }

    /// Gives the sum when this file system has a number of chunks instead of those that it has.
    fn sum_with(&self, all: u64, own: u64) -> Option<u64> {
        let others = all.checked_sub(self.own_chunks.load(Ordering::Relaxed));
        debug_assert!(others.is_some(), "its own are part of the sum");
        others.unwrap_or(0).checked_add(own)
    }

    /// Checks that its own chunks are a part of the sum, which is locked.
    fn check(&self, all: u64) {
        let own = self.own_chunks.load(Ordering::Relaxed);
        debug_assert!(own <= all, "its own are part of the sum");
    }

    /// Sets aside what the stored number of chunks asks for, as far as it is free.
    pub(crate) fn set_at_open(&self, engine: &dyn Engine, store: &Store) -> FsResult<()> {
        let stored = store.number(&store.keys.unwritten())?;
        debug_assert_eq!(
            self.own_chunks.load(Ordering::Relaxed),
            0,
            "nothing is set aside before the open"
        );
        let mut all = self.all_chunks.lock();
        if stored == 0 && *all > 0 {
            return Ok(());
        }
        *all = self.sum_with(*all, stored).ok_or(FsError::NoSpace)?;
        self.own_chunks.store(stored, Ordering::Relaxed);
        self.check(*all);
        match engine.set_aside(room(*all)) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let free_bytes = engine.space().free_bytes;
                tracing::warn!(
                    allocated_bytes = room(stored),
                    free_bytes,
                    "less space is free than files have allocated: writes to it may fail"
                );
                // What others take meanwhile is taken. What other file systems were promised stays.
                if *all == stored {
                    drop(engine.set_aside(free_bytes));
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Sets room aside for more chunks.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: nothing is changed.
    pub(crate) fn set_more(&self, engine: &dyn Engine, added: u64) -> FsResult<()> {
        let mut all = self.all_chunks.lock();
        let more = all.checked_add(added).ok_or(FsError::NoSpace)?;
        engine.set_aside(room(more))?;
        *all = more;
        debug_assert!(*all >= added, "what is set aside is part of the sum");
        self.own_chunks.fetch_add(added, Ordering::Relaxed);
        self.check(*all);
        Ok(())
    }

    /// Releases the room of chunks.
    pub(crate) fn set_less(&self, engine: &dyn Engine, removed: u64) {
        let mut all = self.all_chunks.lock();
        let own = self.own_chunks.load(Ordering::Relaxed);
        let left = own.saturating_sub(removed);
        debug_assert!(left <= own, "room is released");
        *all = self.sum_with(*all, left).unwrap_or(left);
        self.own_chunks.store(left, Ordering::Relaxed);
        self.check(*all);
        // Refused only where less is set aside already.
        drop(engine.set_aside(room(*all)));
    }

    /// Releases the room of all chunks: the file system is closed, others of the engine go on.
    pub(crate) fn release(&self, engine: &dyn Engine) {
        let own = self.own_chunks.load(Ordering::Relaxed);
        if own > 0 {
            self.set_less(engine, own);
            let left = self.own_chunks.load(Ordering::Relaxed);
            debug_assert_eq!(left, 0, "a closed file system has set nothing aside");
        }
    }
}

const fn room(chunks: u64) -> u64 {
    chunks.saturating_mul(ROOM_BYTES)
}
