//! Several instances on one volume: each call of the device fails once, and each allocation is
//! refused once, one after the other, from the first to the last that a workload makes.

use stitch_device::FaultOp;
use stitch_sim::beside::nospace::{self, RefusalNumbers};
use stitch_sim::nospace::Refused;
use stitch_sim::{beside::fault, systems};

/// Each allocation and promise.
const ALL: RefusalNumbers = RefusalNumbers { first: 0, step: 1 };

#[test]
fn each_call_of_the_device_may_fail() {
    let beside = systems::several_instances();
    for (op, least) in [
        (FaultOp::Read, 10),
        (FaultOp::Write, 50),
        (FaultOp::Sync, 10),
    ] {
        let stats = fault::each(&beside, 7, 30, op).unwrap();
        assert!(stats.runs >= least, "{op:?}: {stats:?}");
        assert_eq!(stats.hits, stats.runs, "the last run is not counted");
        assert!(stats.errors > 0, "{op:?}: {stats:?}");
    }
}

#[test]
fn each_allocation_may_be_refused() {
    let beside = systems::several_instances();
    for (refused, seed) in [(Refused::One, 1), (Refused::One, 2), (Refused::Rest, 3)] {
        let stats = nospace::each(&beside, seed, 150, ALL, refused).unwrap();
        assert!(stats.runs >= 20, "{refused:?}: {stats:?}");
        assert!(stats.refused >= stats.runs, "{refused:?}: {stats:?}");
        assert!(stats.told > 0, "{refused:?}: {stats:?}");
    }
}
