//! Counters: what an engine has done, by name. Every claim about cost is checked on these. What
//! only one engine counts is named there.

/// Named counters at one moment, in no particular order. They only grow while a store is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    entries: Vec<(&'static str, u64)>,
}

/// Messages committed, of any kind.
pub const PUT_MESSAGES: &str = "kv.put_messages";
/// Bytes of keys and values (or deltas) committed.
pub const PUT_BYTES: &str = "kv.put_bytes";
/// Batches committed.
pub const COMMITS: &str = "kv.commits";
/// Point reads.
pub const GETS: &str = "kv.gets";
/// Scans begun.
pub const SCANS: &str = "kv.scans";
/// Syncs of the model engine that made commits durable: a sync with nothing pending is not counted.
pub const SYNCS: &str = "model.syncs";
/// Bytes appended to the backup log.
pub const LOG_BYTES: &str = "kv.log_bytes";
/// Filter probes of point reads.
pub const FILTER_PROBES: &str = "filter.probe";
/// Filter probes that said yes where the block had no such key.
pub const FILTER_FALSE_POSITIVES: &str = "filter.false_positive";
/// Blocks found in the cache.
pub const CACHE_HITS: &str = "cache.hit";
/// Blocks not found in the cache.
pub const CACHE_MISSES: &str = "cache.miss";

impl Counters {
    /// Adds an entry.
    pub fn push(&mut self, name: &'static str, value: u64) {
        self.entries.push((name, value));
    }

    /// The value of a counter; 0 if the engine has no such counter.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.entries
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(0, |(_, value)| *value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.entries.iter().copied()
    }
}
