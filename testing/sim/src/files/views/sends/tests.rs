//! Transfers through crashes, and receivers that are killed at each of their calls.

use super::*;
use crate::systems;
use crate::vt::VtHost;

const EFFORT: Effort = Effort {
    ops_max: 16,
    points: 3,
    depth_max: 2,
    wrap: |device| device,
};

#[test]
fn crashes_leave_parts_of_streams_that_are_resumed() {
    let system = systems::views_for_tests();
    let mut sum = SendStats::default();
    for seed in 0..6 {
        let stats = explore(&system, seed, EFFORT).unwrap();
        sum.parts += stats.parts;
        sum.cuts += stats.cuts;
        sum.received += stats.received;
        sum.images += stats.images;
    }
    assert!(sum.parts > 5 && sum.cuts > 4, "{sum:?}");
    assert!(sum.received >= 12 && sum.images > 15, "{sum:?}");
}

/// Receives the first of two snapshots, or both, by a receiver that is killed after so many calls,
/// and then by others. Returns whether the first one was killed.
fn receive_with(
    explorer: &mut SendExplorer<'_, VtHost>,
    image: &MemDevice,
    (index, calls): (usize, u64),
) -> Result<bool, String> {
    let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
    let work = explorer.open(device)?;
    for before in 0..index {
        explorer.receive(&work, before, (None, ReceiverEnd::Whole))?;
    }
    let ended = explorer.receive(&work, index, (None, ReceiverEnd::Killed(calls)))?;
    let found = work.held(&explorer.pasts)?;
    explorer.expect_held(&work, &found, index)?;
    explorer.receive_both(&work, &AtomicUsize::new(0))?;
    Ok(ended == ReceiverOutcome::Early)
}

#[test]
fn a_receiver_can_be_killed_at_each_of_its_calls() {
    let system = systems::views_for_tests();
    let mut explorer = SendExplorer {
        system: &system,
        rng: Rng::new(3),
        effort: EFFORT,
        stats: SendStats::default(),
        pasts: Vec::new(),
        at: 0,
    };
    let image = explorer.prepare().unwrap();
    for index in [0, 1] {
        let mut calls = 0;
        while receive_with(&mut explorer, &image, (index, calls))
            .unwrap_or_else(|e| panic!("snapshot {index}, {calls} calls: {e}"))
        {
            calls += 1;
        }
        assert!(calls > 30, "a stream of {calls} calls");
    }
}
