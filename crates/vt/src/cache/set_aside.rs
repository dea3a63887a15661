//! Memory of the cache's budget that is not in blocks: filters of whole tables have it.
//!
//! ```text
//! capacity    [ blocks ................................ | set aside ]
//!                                                         at most 1/16 when it is asked for
//! ```
//!
//! What is set aside comes off the capacity at once, and is given back when its owner is dropped.

use super::BlockCache;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;

/// The part of the capacity that may be set aside.
const PART: usize = 16;

/// What divides the memory of a cache. Changed with [`BlockCache::fit`] in the same lock.
#[derive(Debug)]
pub(super) struct Limits {
    /// Bytes for blocks and for what is set aside.
    pub(super) capacity: usize,
    /// Of these, bytes that are set aside.
    pub(super) aside: usize,
}

/// Bytes that are set aside until this is dropped.
#[derive(Debug)]
pub(crate) struct SetAside {
    cache: Arc<BlockCache>,
    bytes: usize,
}

impl BlockCache {
    /// Sets bytes aside; `None` if too much is set aside already.
    pub(crate) fn set_aside(self: &Arc<Self>, bytes: usize) -> Option<SetAside> {
        let mut limits = self.limits.lock();
        let aside = limits.aside + bytes;
        if aside > limits.capacity / PART {
            return None;
        }
        limits.aside = aside;
        self.fit(&limits);
        debug_assert!(
            self.capacity() + aside <= limits.capacity,
            "blocks leave room for what is set aside"
        );
        drop(limits);
        let cache = Arc::clone(self);
        Some(SetAside { cache, bytes })
    }

    /// Returns the bytes that are set aside.
    pub(crate) fn aside_bytes(&self) -> usize {
        self.limits.lock().aside
    }

    /// Holds no more blocks than these limits leave room for, as soon as this has returned.
    pub(super) fn fit(&self, limits: &Limits) {
        let capacity = limits.capacity.saturating_sub(limits.aside);
        let bytes_max = capacity / self.shards.len();
        let before = self.shard_bytes_max.swap(bytes_max, Ordering::Relaxed);
        if before <= bytes_max {
            return;
        }
        for shard in &self.shards {
            let mut out = Vec::new();
            self.change(&mut shard.write(), |shard| {
                shard.shrink(bytes_max, &mut out);
                debug_assert!(shard.bytes <= bytes_max, "a shard is bounded");
            });
            drop(out);
        }
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let mut limits = self.cache.limits.lock();
        debug_assert!(
            limits.aside >= self.bytes,
            "what is given back was set aside"
        );
        limits.aside -= self.bytes;
        self.cache.fit(&limits);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::cache::Expectation;
    use crate::cache::tests::{block, key};

    #[test]
    fn what_is_set_aside_comes_off_the_capacity_until_it_is_dropped() {
        let cache = Arc::new(BlockCache::new(32 << 20));
        for n in 0..4000 {
            cache.insert(key(n), block(16 << 10), Expectation::Normal);
        }
        let full = cache.bytes();
        let first = cache.set_aside(1 << 20).expect("there is room");
        assert_eq!(cache.aside_bytes(), 1 << 20);
        assert_eq!(cache.capacity(), 31 << 20);
        assert!(cache.bytes() <= 31 << 20 && cache.bytes() < full);
        let second = cache
            .set_aside(1 << 20)
            .expect("a sixteenth is two of them");
        assert!(cache.set_aside(1).is_none(), "no more than a sixteenth");
        drop(first);
        assert_eq!(cache.capacity(), 31 << 20);
        assert!(cache.set_aside(1 << 20).is_some(), "there is room again");
        drop(second);
        assert_eq!((cache.aside_bytes(), cache.capacity()), (0, 32 << 20));
        cache.assert_sound();
    }

    #[test]
    fn a_new_capacity_leaves_what_is_set_aside() {
        let cache = Arc::new(BlockCache::new(32 << 20));
        let aside = cache.set_aside(1 << 20).expect("there is room");
        cache.set_capacity(8 << 20);
        assert_eq!(cache.capacity(), 7 << 20);
        assert!(
            cache.set_aside(1).is_none(),
            "more is set aside than a sixteenth"
        );
        drop(aside);
        assert_eq!(cache.capacity(), 8 << 20);
    }
}
