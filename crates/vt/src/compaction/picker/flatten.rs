//! Plans that take the upper levels of one tree down, until it has few runs.

use super::level0::plan_level0;
use super::{PickRules, Plan};
use crate::version::{LEVELS, TreeVersion};

/// Makes a plan for the uppermost level that has tables, if another one below has.
pub(crate) fn flatten_plan(tree: &TreeVersion, rules: PickRules<'_>) -> Option<Plan> {
    let level = (0..LEVELS).find(|n| !tree.levels[*n].tables.is_empty())?;
    if level == 0 {
        return plan_level0(tree, "flatten", rules);
    }
    let is_deepest = tree.levels[level + 1..].iter().all(|l| l.tables.is_empty());
    if is_deepest {
        return None;
    }
    let mut tables = tree.levels[level].tables.iter();
    let table = tables.find(|table| !rules.exclusions.stops(table))?;
    let plan = rules.route(tree, level, "flatten").down(table);
    debug_assert!(
        plan.lower.len() <= tree.levels[level + 1].tables.len(),
        "tables of one level"
    );
    rules.exclusions.allowed(plan)
}
