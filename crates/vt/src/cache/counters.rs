//! What reads have done. Each thread counts in memory of its own, so that readers write to none
//! together.

use std::array;
use stitch_base::sync::Sharded;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadCount {
    /// Point reads.
    Gets,
    /// Scans begun.
    Scans,
    /// Keys that scans stepped over because they were deleted.
    PassedKeys,
    /// Times that a scan went over a range that is known to be empty in one step.
    GapsJumped,
    /// Blocks found in the cache.
    Hits,
    /// Blocks not found in the cache.
    Misses,
    /// Data blocks read from the device.
    DataBlocksRead,
    /// Filter probes.
    FilterProbes,
    /// Filter probes that said yes where the block had no such key.
    FilterFalsePositives,
    /// Tables that the filter of a whole table spared a point read.
    TablesDenied,
    /// Memtables that the filter of their keys spared a point read.
    MemtablesDenied,
    /// Tables in which a point read had to wait for an index block.
    IndexWaits,
    /// Requests that read the missing blocks of a batch of keys side by side.
    ReadRounds,
}

const COUNTS: usize = ReadCount::ReadRounds as usize + 1;

/// Counters of all who read. They only grow.
#[derive(Debug)]
pub(crate) struct ReadCounters(Sharded<[AtomicU64; COUNTS]>);

impl Default for ReadCounters {
    fn default() -> Self {
        Self(Sharded::new(|| array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl ReadCounters {
    /// Counts.
    pub(crate) fn add(&self, count: ReadCount, by: u64) {
        self.add_all([(count, by)]);
    }

    /// Counts several things; those of which there was nothing cost nothing.
    pub(crate) fn add_all(&self, counts: impl IntoIterator<Item = (ReadCount, u64)>) {
        let own = self.0.own();
        for (count, by) in counts {
            if by > 0 {
                let before = own[count as usize].fetch_add(by, Ordering::Relaxed);
                debug_assert!(before.checked_add(by).is_some(), "counters only grow");
            }
        }
    }

    /// The sum of all threads. What is being counted right now may be missing.
    pub(crate) fn get(&self, count: ReadCount) -> u64 {
        let shards = self.0.iter();
        let counts = shards.map(|shard| shard[count as usize].load(Ordering::Relaxed));
        counts.sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stitch_base::thread;

    #[test]
    fn threads_count_apart_and_are_summed() {
        let counters = Arc::new(ReadCounters::default());
        let threads = [(); 8].map(|()| {
            let counters = Arc::clone(&counters);
            let count = move || {
                counters.add(ReadCount::Gets, 1);
                counters.add_all([(ReadCount::Hits, 2), (ReadCount::Misses, 0)]);
            };
            thread::spawn("reader", count).expect("there are threads")
        });
        for thread in threads {
            thread.join().expect("it only counts");
        }
        let got = [ReadCount::Gets, ReadCount::Hits, ReadCount::Misses].map(|c| counters.get(c));
        assert_eq!(got, [8, 16, 0]);
        let used = counters
            .0
            .iter()
            .filter(|s| s[0].load(Ordering::Relaxed) > 0);
        assert!(used.count() > 1, "all in one place");
    }
}
