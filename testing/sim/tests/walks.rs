//! Each allocation and promise of a workload is refused once, from the first to the last, with a
//! power cut and a kill right after it.

use stitch_base::sync::Arc;
use stitch_sim::nospace::{self, Refused, WalkStats};
use stitch_sim::{System, systems};
use stitch_volume::Refusals;

/// Walks with one refusal a run, and with all that follow the first.
fn walk<S: System>(make: impl Fn(Arc<Refusals>) -> S, seed: u64, ops: u64) -> WalkStats {
    let one = nospace::each(&make, seed, ops, Refused::One).expect("each run passes");
    assert_eq!(one.refused, one.runs, "{one:?}");
    assert!(one.runs >= 25, "{} {:?}", one.runs, one.met);
    assert!(one.told > 0, "{one:?}");
    // Killed and without power, when it was told and at the end, at the least.
    assert!(one.images >= 4 * one.runs, "{one:?}");
    let rest = nospace::each(&make, seed, ops, Refused::Rest).expect("each run passes");
    assert_eq!(rest.met, one.met, "each run begins as the others do");
    assert!(rest.refused > rest.runs, "{rest:?}");
    one
}

fn met(stats: &WalkStats, what: &str) -> usize {
    stats.met.iter().filter(|op| op.starts_with(what)).count()
}

#[test]
fn each_allocation_of_a_store_that_is_evacuated_may_be_refused() {
    let stats = walk(systems::space, 1, 150);
    assert!(met(&stats, "Commit") > 0, "{:?}", stats.met);
    assert!(met(&stats, "Chore(Defrag") > 0, "{:?}", stats.met);
}

#[test]
fn each_allocation_of_streams_may_be_refused() {
    let stats = walk(systems::streams, 1, 60);
    assert!(met(&stats, "Commit") > 0, "{:?}", stats.met);
}

#[test]
fn each_allocation_of_a_store_that_gets_another_length_may_be_refused() {
    let stats = walk(systems::resized, 1, 150);
    assert!(met(&stats, "Chore(Shrink") > 0, "{:?}", stats.met);
}

#[test]
fn each_allocation_of_files_may_be_refused() {
    let stats = walk(systems::dense_files, 1, 50);
    assert!(
        stats.met.iter().any(|op| op.contains("Write")),
        "{:?}",
        stats.met
    );
}
