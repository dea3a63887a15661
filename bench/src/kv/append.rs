//! RANDOM-APPEND: a range is chosen at random, and the next key of it inserted, as a mail spool
//! grows.
//!
//! Two forms: 2,040 ranges (section 4.1), and as many ranges as make a full memtable hold 512 KiB
//! of each (section 4.3).
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013.

use super::Workload;
use super::tuples::{Pattern, Tuples};
use crate::context::Context;
use anyhow::Result;
use stitch_base::random::Rng;

/// Ranges of the form of section 4.1.
const RANGES: u64 = 2040;
/// Of each range in a full memtable, in the form of section 4.3.
const PIECE_BYTES: u64 = 512 << 10;

pub(super) fn workloads() -> [Workload; 4] {
    [
        Workload::new(
            "append-4k",
            "4 KiB tuples, appended to 2,040 ranges",
            |c, _| run(c, Tuples::LARGE, RANGES),
        ),
        Workload::new(
            "append-64",
            "64 B tuples, appended to 2,040 ranges",
            |c, _| run(c, Tuples::SMALL, RANGES),
        ),
        Workload::new(
            "append512k-4k",
            "4 KiB tuples, appended to ranges that get 512 KiB per memtable",
            |c, _| run(c, Tuples::LARGE, piece_ranges(c)),
        ),
        Workload::new(
            "append512k-64",
            "64 B tuples, appended to ranges that get 512 KiB per memtable",
            |c, _| run(c, Tuples::SMALL, piece_ranges(c)),
        ),
    ]
}

fn piece_ranges(context: &Context<'_>) -> u64 {
    (context.scale().write_buffer_bytes() / PIECE_BYTES).max(2)
}

fn run(context: &mut Context<'_>, tuples: Tuples, ranges: u64) -> Result<()> {
    let mut pattern = Append::new(ranges, context.seed());
    tuples.run(context, &mut pattern)
}

/// The pattern, also for the sweep over thresholds.
pub(super) struct Append {
    rng: Rng,
    counts: Vec<u64>,
    /// Ranges that hold something.
    used: Vec<u64>,
}

impl Append {
    pub(super) fn paper(seed: u64) -> Self {
        Self::new(RANGES, seed)
    }

    fn new(ranges: u64, seed: u64) -> Self {
        assert!(ranges > 1, "one range is the sequential workload");
        Self {
            rng: Rng::new(seed),
            counts: vec![0; usize::try_from(ranges).expect("few ranges")],
            used: Vec::new(),
        }
    }

    /// Ranges lie evenly over the key space.
    fn key(&self, range: u64, number: u64) -> u64 {
        u64::MAX / self.counts.len() as u64 * range + number
    }
}

impl Pattern for Append {
    fn next(&mut self) -> u64 {
        let range = self.rng.below(self.counts.len() as u64);
        let count = &mut self.counts[usize::try_from(range).expect("few ranges")];
        *count += 1;
        let number = *count - 1;
        if number == 0 {
            self.used.push(range);
        }
        self.key(range, number)
    }

    fn known(&self, rng: &mut Rng) -> u64 {
        let used = rng.below(self.used.len() as u64);
        let range = self.used[usize::try_from(used).expect("few ranges")];
        let count = self.counts[usize::try_from(range).expect("few ranges")];
        self.key(range, rng.below(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_come_once_and_are_known_afterwards() {
        let mut append = Append::new(3, 1);
        let keys: BTreeSet<u64> = (0..100).map(|_| append.next()).collect();
        assert_eq!(keys.len(), 100);
        let mut rng = Rng::new(2);
        assert!((0..100).all(|_| keys.contains(&append.known(&mut rng))));
    }
}
