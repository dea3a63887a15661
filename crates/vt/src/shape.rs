//! The shape that compactions keep: a target size for each level of a tree.

use crate::options::PickOptions;
use crate::version::{LEVELS, Version};

/// How far the tree is over its shape, as work still to do in bytes.
pub(crate) fn debt(version: &Version, options: &PickOptions) -> u64 {
    let mut debt = 0;
    for tree in version.trees.values() {
        debug_assert_eq!(tree.levels.len(), LEVELS, "a tree has all levels");
        let level0 = &tree.levels[0];
        if level0.tables.len() >= options.level0_tables {
            debt += level0.weight;
        }
        for (n, level) in tree.levels.iter().enumerate().skip(1) {
            debt += level.weight.saturating_sub(target(options, n));
        }
    }
    debt
}

/// Target size of a level below 0. The deepest has none.
pub(crate) fn target(options: &PickOptions, level: usize) -> u64 {
    debug_assert!(level > 0, "level 0 counts tables");
    if level + 1 >= LEVELS {
        return u64::MAX;
    }
    let times = u32::try_from(level - 1).expect("there are 8 levels");
    let factor = options.fanout.saturating_pow(times);
    debug_assert!(factor > 0, "deeper levels are larger");
    options.level1_bytes.saturating_mul(factor)
}
