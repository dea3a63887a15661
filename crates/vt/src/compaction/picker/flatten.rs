//! Plans that take the upper levels of one tree down, until it has few runs.

use super::level0::plan_level0;
use super::route::Route;
use super::{Plan, without};
use crate::compaction::exclusions::Exclusions;
use crate::options::PickOptions;
use crate::version::{LEVELS, TreeVersion};

/// A plan for the uppermost level that has tables, if another one below has.
pub(crate) fn flatten_plan(
    tree: &TreeVersion,
    options: &PickOptions,
    exclusions: &Exclusions,
) -> Option<Plan> {
    let level = (0..LEVELS).find(|n| !tree.levels[*n].tables.is_empty())?;
    if level == 0 {
        return plan_level0(tree, options, "flatten", exclusions);
    }
    let is_deepest = tree.levels[level + 1..].iter().all(|l| l.tables.is_empty());
    if is_deepest {
        return None;
    }
    let mut tables = tree.levels[level].tables.iter();
    let table = tables.find(|table| !exclusions.stops(table))?;
    let route = Route::below(tree, level, "flatten", exclusions);
    without(exclusions, route.down(table, options))
}
