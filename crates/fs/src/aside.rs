//! Room for chunks that are allocated and not written.
//!
//! The engine keeps it from all commits but those that write allocated chunks. How many chunks
//! there are is stored with the rows of extents, in the same batches; what is set aside is in
//! memory, and set again at open.
//!
//! Order, so that the room is never promised twice:
//! 1. an allocation sets room aside, then commits its rows;
//! 2. a write commits chunks and rows, then releases the room.

use crate::room::unless_full;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::ErrorKind;
use stitch_base::sync::Mutex;
use stitch_format::fs_key::CHUNK_BYTES;

/// Room for a chunk: its bytes, and an eighth for what an engine keeps of it beside them.
const ROOM_BYTES: u64 = CHUNK_BYTES + CHUNK_BYTES / 8;

/// Number of chunks that room is set aside for.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    chunks: Mutex<u64>,
}

impl FileSystem {
    /// Sets aside what the stored number of chunks asks for, as far as it is free.
    pub(crate) fn set_aside_at_open(&self) -> FsResult<()> {
        let stored = self.store.number(&self.store.keys.unwritten())?;
        let mut chunks = self.aside.chunks.lock();
        *chunks = stored;
        match self.engine().set_aside(room(stored)) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let free_bytes = self.engine().space().free_bytes;
                tracing::warn!(
                    allocated_bytes = room(stored),
                    free_bytes,
                    "less space is free than files have allocated: writes to it may fail"
                );
                // What others take meanwhile is taken; there is no promise to break.
                drop(self.engine().set_aside(free_bytes));
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Sets room aside for more chunks.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: nothing is changed.
    pub(crate) fn set_more_aside(&self, added: u64) -> FsResult<()> {
        match self.try_more_aside(added) {
            // Forgotten files may give back as much. Their removal takes the lock of what is set
            // aside.
            Err(FsError::NoSpace) => {
                unless_full(self.reclaim())?;
                self.try_more_aside(added)
            }
            done => done,
        }
    }

    fn try_more_aside(&self, added: u64) -> FsResult<()> {
        let mut chunks = self.aside.chunks.lock();
        let more = chunks.checked_add(added).ok_or(FsError::NoSpace)?;
        self.engine().set_aside(room(more))?;
        *chunks = more;
        Ok(())
    }

    /// Releases the room of chunks.
    pub(crate) fn set_less_aside(&self, removed: u64) {
        let mut chunks = self.aside.chunks.lock();
        *chunks = chunks.saturating_sub(removed);
        // Refused only where less is set aside already.
        drop(self.engine().set_aside(room(*chunks)));
    }
}

const fn room(chunks: u64) -> u64 {
    chunks.saturating_mul(ROOM_BYTES)
}
