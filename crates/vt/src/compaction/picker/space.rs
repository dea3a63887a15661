//! Plans for space: what overlaps the least below it for what it is. What it hides there gives its
//! space back.

use super::level0::plan_level0;
use super::tables::{cost, has_below};
use super::{PickInput, Plan};
use crate::version::{LEVELS, TableHandle, TreeVersion};

/// Picks the cheapest plan of all levels, if it is worth its cost.
pub(super) fn pick_overlap(input: &PickInput<'_>) -> Option<Plan> {
    let plans = input
        .trees()
        .flat_map(|tree| plans_of(input, tree).map(move |plan| (tree, plan)));
    let costs = plans.map(|(tree, plan)| (cost(tree, &plan.upper, plan.to_level), plan));
    let (cost, plan) = costs.min_by_key(|(cost, _)| *cost)?;
    debug_assert!(
        plan.from_level < plan.to_level,
        "it is merged with what is below"
    );
    let is_worth = cost / 1000 <= u128::from(input.rules.options.cost_max);
    is_worth.then_some(plan)
}

/// Returns the cheapest plan of each level that has tables.
fn plans_of<'a>(
    input: &'a PickInput<'_>,
    tree: &'a TreeVersion,
) -> impl Iterator<Item = Plan> + use<'a> {
    let rules = input.rules;
    let has_level0 = !tree.levels[0].tables.is_empty();
    debug_assert_eq!(tree.levels.len(), LEVELS, "a tree has all levels");
    let level0 = has_level0
        .then(|| plan_level0(tree, "space", rules))
        .flatten();
    let deeper = (1..LEVELS - 1).filter_map(move |level| {
        let route = rules.route(tree, level, "space");
        route.cheapest(|t: &TableHandle| has_below(tree, level, t.meta()))
    });
    level0.into_iter().chain(deeper)
}
