//! The systems that the simulator knows.

use crate::cases::{Case, Size, of_system};
use crate::mini::Mini;
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
    let mut cases = of_system(Toy { bug: ToyBug::None }, size);
    // The toy has no defence against errors and damage: only its crashes are of use.
    cases.retain(|case| case.name == "toy/crash");
    cases.extend(of_system(Mini::default(), size));
    cases
}
