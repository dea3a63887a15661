//! Weak references to cached blocks that every point read needs: a lookup without the cache's map
//! and its locks.
//!
//! A table's handle holds such a reference to its root and index blocks. The cache alone decides
//! what stays in memory, so its bound holds: an evicted block is freed once no reader uses it, and
//! the next read asks the cache again. The block counts these hits, and the cache's clock adds them
//! to its own.
//!
//! A reader never waits: while another one sets the reference, it is empty, and the reader asks the
//! cache.

use super::ROUNDS_MAX;
use std::sync::{Arc, Weak};
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicU8, Ordering};

/// Hits of a block by reference since the cache asked last, up to [`ROUNDS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct HitCount(AtomicU8);

impl HitCount {
    fn note(&self) {
        let count = self.0.load(Ordering::Relaxed);
        debug_assert!(count <= ROUNDS_MAX, "more than it counts");
        // Mostly it is enough already, and readers write nothing. That one of two is lost does not
        // matter.
        if count < ROUNDS_MAX {
            self.0.store(count + 1, Ordering::Relaxed);
        }
    }

    /// How often since the last call, at most [`ROUNDS_MAX`].
    pub(super) fn take(&self) -> u8 {
        let count = match self.0.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.0.swap(0, Ordering::Relaxed),
        };
        debug_assert!(count <= ROUNDS_MAX, "more than it counts");
        count
    }
}

/// A block that counts its hits by reference.
pub(crate) trait CountsHits {
    /// Its counter.
    fn hits(&self) -> &HitCount;
}

/// A weak reference to one block. Empty at first, and after the cache has evicted the block.
#[derive(Debug)]
pub(crate) struct CachedRef<T>(RwLock<Weak<T>>);

impl<T> Default for CachedRef<T> {
    fn default() -> Self {
        Self(RwLock::new(Weak::new()))
    }
}

impl<T: CountsHits> CachedRef<T> {
    /// Bytes of memory of a reference and of the control block that it keeps.
    pub(crate) const BYTES: usize = size_of::<Self>() + size_of::<T>() + 2 * size_of::<usize>();

    /// The block, if it is cached. Does not wait.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let block = self.0.try_read()?.upgrade()?;
        block.hits().note();
        Some(block)
    }

    /// Refers to this block from now on, unless another thread uses the reference. Does not wait.
    pub(crate) fn set(&self, block: &Arc<T>) {
        if let Some(mut reference) = self.0.try_write() {
            *reference = Arc::downgrade(block);
            debug_assert!(reference.strong_count() > 0, "the caller has the block");
        }
    }
}
