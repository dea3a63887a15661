//! RANDOM: keys uniformly at random, none twice.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, section 4.3, figure 7.

use super::Workload;
use super::tuples::{Pattern, Tuples};
use crate::values::mix;
use stitch_base::random::Rng;

pub(super) fn workloads() -> [Workload; 2] {
    [
        Workload::new("random-4k", "4 KiB tuples, keys at random", |context, _| {
            let seed = context.seed();
            Tuples::LARGE.run(context, &mut Random::new(seed))
        }),
        Workload::new("random-64", "64 B tuples, keys at random", |context, _| {
            let seed = context.seed();
            Tuples::SMALL.run(context, &mut Random::new(seed))
        }),
    ]
}

/// Keys of a seed; the count is that of those which came.
pub(super) struct Random {
    seed: u64,
    count: u64,
}

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    const fn key(&self, number: u64) -> u64 {
        mix(number ^ self.seed)
    }
}

impl Pattern for Random {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.key(self.count - 1)
    }

    fn known(&self, rng: &mut Rng) -> u64 {
        self.key(rng.below(self.count))
    }
}
