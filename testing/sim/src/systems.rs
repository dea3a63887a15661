//! The systems that the simulator knows.

use crate::cases::{Case, Size, of_system};
use crate::toy::{Toy, ToyBug};

/// Every case of every system.
#[must_use]
pub fn cases() -> Vec<Case> {
    let size = Size {
        ops_max: 60,
        points: 6,
        faults: 20,
        damages: 20,
    };
    let toy = of_system(Toy { bug: ToyBug::None }, size);
    // The toy has no defence against errors and damage: only its crashes are of use.
    toy.into_iter()
        .filter(|case| case.name == "toy/crash" || case.is_canary)
        .collect()
}
