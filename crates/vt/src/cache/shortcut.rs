//! Ways to cached blocks that every point read needs, past the cache's map and its locks.
//!
//! Who leads to such a block remembers it weakly. So the cache alone decides what stays, and its
//! bound holds: a block that it lets go is gone once nobody reads in it, and is looked for in the
//! cache again. The block counts how often it was found this way, and the cache's clock asks for
//! that.
//!
//! A reader never waits: while another one puts a block in, the way leads nowhere, and the reader
//! asks the cache.

use super::ROUNDS_MAX;
use std::sync::{Arc, Weak};
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicU8, Ordering};

/// How often a block was found past the cache since the cache asked last, as far as that matters to
/// it.
#[derive(Debug, Default)]
pub(crate) struct Finds(AtomicU8);

impl Finds {
    fn note(&self) {
        let count = self.0.load(Ordering::Relaxed);
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

/// A block that can be found past the cache.
pub(crate) trait Findable {
    /// What it counts.
    fn finds(&self) -> &Finds;
}

/// A way to one block; leads nowhere at first, and when the cache has let the block go.
#[derive(Debug)]
pub(crate) struct Shortcut<T>(RwLock<Weak<T>>);

impl<T> Default for Shortcut<T> {
    fn default() -> Self {
        Self(RwLock::new(Weak::new()))
    }
}

impl<T: Findable> Shortcut<T> {
    /// Bytes of memory that it takes, and what is left of a block that it led to.
    pub(crate) const BYTES: usize = size_of::<Self>() + size_of::<T>() + 2 * size_of::<usize>();

    /// The block, if it is known. Does not wait.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let block = self.0.try_read()?.upgrade()?;
        block.finds().note();
        Some(block)
    }

    /// Leads to this block from now on, unless others use it right now. Does not wait.
    pub(crate) fn set(&self, block: &Arc<T>) {
        if let Some(mut way) = self.0.try_write() {
            *way = Arc::downgrade(block);
        }
    }
}
