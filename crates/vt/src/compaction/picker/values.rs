//! Plans for tables of value blocks: what they hide below gives its space back, for the price of
//! index entries.

use super::level0::plan_level0;
use super::tables::{has_below, weight};
use super::{PickInput, Plan};
use crate::version::{LEVELS, TableHandle};

/// Most that is rewritten below a table of value blocks, in multiples of its weight.
const COST_MAX: u64 = 4;

/// Picks a table of value blocks that overlaps little of what is below.
pub(super) fn pick_values(input: &PickInput<'_>) -> Option<Plan> {
    let is_cheap =
        |plan: &Plan| weight(&plan.lower) <= weight(&plan.upper).saturating_mul(COST_MAX);
    let has_values = |t: &TableHandle| t.meta().value_bytes >= t.owned_bytes() / 2;
    input.trees().find_map(|tree| {
        let is_in_level0 = tree.levels[0].tables.iter().any(|t| has_values(t));
        let level0 = is_in_level0
            .then(|| plan_level0(tree, "values", input.rules))
            .flatten();
        let deeper = |level| {
            let route = input.rules.route(tree, level, "values");
            debug_assert!(level + 1 < LEVELS, "there is a level below");
            let may_go = |t: &TableHandle| has_values(t) && has_below(tree, level, t.meta());
            route.cheapest(may_go).filter(is_cheap)
        };
        level0
            .filter(is_cheap)
            .or_else(|| (1..LEVELS - 1).find_map(deeper))
    })
}
