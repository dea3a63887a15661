//! The simulation finds the mistakes of a small store, and finds none where there are none.

use stitch_base::sync::Arc;
use stitch_device::Device;
use stitch_sim::crash::{self, CrashStats, Effort};
use stitch_sim::liar::{Liar, Lie};
use stitch_sim::toy::{Toy, ToyBug};
use stitch_sim::{damage, fault};

/// The first seed that fails, with what it says.
fn first_failure(bug: ToyBug, effort: Effort, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        crash::explore(&Toy { bug }, seed, effort)
            .err()
            .map(|reason| (seed, reason))
    })
}

#[test]
fn a_right_store_passes() {
    let mut stats = CrashStats::default();
    for seed in 0..400 {
        match crash::explore(&Toy { bug: ToyBug::None }, seed, Effort::default()) {
            Ok(one) => stats.add(one),
            Err(reason) => panic!("seed {seed}: {reason}"),
        }
    }
    assert!(stats.images > 4_000, "{stats:?}");
    assert!(stats.lives > 1_000, "{stats:?}");
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let run = || {
        crash::explore(
            &Toy {
                bug: ToyBug::SkipsHoles,
            },
            3,
            Effort::default(),
        )
        .err()
    };
    let ran = || {
        crash::explore(&Toy { bug: ToyBug::None }, 3, Effort::default())
            .unwrap()
            .images
    };
    assert_eq!(run(), run());
    assert_eq!(ran(), ran());
}

#[test]
fn mistakes_are_found() {
    let bugs = [
        ToyBug::NoChecksum,
        ToyBug::SkipsHoles,
        ToyBug::RecoveryLosesTail,
        ToyBug::CountsUnsynced,
    ];
    for bug in bugs {
        let found = first_failure(bug, Effort::default(), 200);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn devices_that_lie_are_found() {
    let ignores: Effort = Effort {
        wrap: |device: Arc<dyn Device>| Liar::wrap(device, Lie::IgnoresSyncs),
        ..Effort::default()
    };
    let loses = Effort {
        wrap: |device: Arc<dyn Device>| Liar::wrap(device, Lie::LosesWrites),
        ..Effort::default()
    };
    let (_, reason) = first_failure(ToyBug::None, ignores, 50).expect("found");
    assert!(reason.contains("lost"), "{reason}");
    first_failure(ToyBug::None, loses, 50).expect("found");
}

#[test]
fn device_errors_leave_the_toy_whole_but_it_wrongly_goes_on() {
    // The toy takes writes after a failed sync: the simulation must say so.
    let found =
        (0..50).find_map(|seed| fault::explore(&Toy { bug: ToyBug::None }, seed, 40, 20).err());
    let reason = found.expect("a store that goes on after a failed sync is found");
    assert!(reason.contains("was accepted"), "{reason}");
}

#[test]
fn damage_to_the_toy_is_found() {
    // The toy takes any bad record for the end of its log: the simulation must see the loss.
    let found =
        (0..20).find_map(|seed| damage::explore(&Toy { bug: ToyBug::None }, seed, 40, 20).err());
    let reason = found.expect("a store that loses data silently is found");
    assert!(
        reason.contains("lost") || reason.contains("opened"),
        "{reason}"
    );
}
