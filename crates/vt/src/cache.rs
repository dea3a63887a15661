//! stub
use std::sync::atomic::AtomicU64;

/// What reads through the cache have done.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    /// Blocks found.
    pub(crate) hits: AtomicU64,
    /// Blocks not found.
    pub(crate) misses: AtomicU64,
    /// Data blocks read from the device.
    pub(crate) data_blocks_read: AtomicU64,
    /// Filter probes.
    pub(crate) filter_probes: AtomicU64,
    /// Filter probes that said yes where the block had no such key.
    pub(crate) filter_false_positives: AtomicU64,
}

/// A cache of checked blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockCache {
    counters: ReadCounters,
}

impl BlockCache {
    /// A cache of at most so many bytes.
    pub(crate) fn new(_capacity_bytes: usize) -> Self {
        Self::default()
    }
    /// Changes the bound.
    pub(crate) fn set_capacity(&self, _capacity_bytes: usize) {}
    /// Bytes held now.
    pub(crate) fn bytes(&self) -> usize {
        0
    }
    /// Counters of all readers.
    pub(crate) fn counters(&self) -> &ReadCounters {
        &self.counters
    }
}
