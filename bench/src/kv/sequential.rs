//! SEQUENTIAL: keys in their order.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, section 4.3, figure 7.

use super::Workload;
use super::tuples::{Pattern, Tuples};
use stitch_base::random::Rng;

pub(super) fn workloads() -> [Workload; 2] {
    [
        Workload::new(
            "sequential-4k",
            "4 KiB tuples in key order",
            |context, _| Tuples::LARGE.run(context, &mut Sequential { count: 0 }),
        ),
        Workload::new("sequential-64", "64 B tuples in key order", |context, _| {
            Tuples::SMALL.run(context, &mut Sequential { count: 0 })
        }),
    ]
}

struct Sequential {
    count: u64,
}

impl Pattern for Sequential {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count - 1
    }

    fn known(&self, rng: &mut Rng) -> u64 {
        rng.below(self.count)
    }
}
