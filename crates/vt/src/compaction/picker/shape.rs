//! Plans that keep the shape: each level within its target.

use super::level0::plan_level0;
use super::route::Route;
use super::tables::{end_of, is_large};
use super::temporary::stacks_runs;
use super::{PickInput, Plan, PlanKind};
use crate::compaction::exclusions::Exclusions;
use crate::shape::target;
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The target of a level, in the unit of scores: levels compare without floating point.
const WHOLE: u64 = 1000;

/// Picks from the levels that are over their targets, the one that is most over first.
pub(super) fn pick_shape(input: &PickInput<'_>) -> Option<Plan> {
    let levels = input.levels().filter(|(_, n)| n + 1 < LEVELS);
    let levels = levels.filter(|(tree, _)| !stacks_runs(input.version, tree));
    let due = levels.filter_map(|(tree, n)| {
        let score = score(input, tree, n);
        let is_due = score > WHOLE || (n == 0 && score == WHOLE);
        is_due.then_some(((Reverse(score), tree.info.id, n), (tree, n)))
    });
    let claims = &input.rules.exclusions.claims;
    // Trees whose level 0 waits for a compaction to end: no other begins that it would have to
    // wait for.
    let mut waiting = BTreeSet::new();
    claims.first_free(due, |(tree, n)| {
        let route = input.rules.route(tree, n, "shape");
        match n {
            0 => {
                let plan = plan_level0(tree, "shape", input.rules);
                if plan.is_none() && !claims.is_empty() {
                    waiting.insert(tree.info.id);
                }
                plan
            }
            1 if waiting.contains(&tree.info.id) => None,
            _ => move_down(&route).or_else(|| route.cheapest(|_| true)),
        }
    })
}

/// Returns how much of its target a level has, in thousandths. Level 0 counts tables, the others
/// weigh them.
fn score(input: &PickInput<'_>, tree: &TreeVersion, level: usize) -> u64 {
    debug_assert!(level + 1 < LEVELS, "the last level has no target");
    let options = input.rules.options;
    let (tables, weight) = due_of(tree, level, input.rules.exclusions);
    if level == 0 {
        let trigger = u64::try_from(options.level0_tables.max(1)).unwrap_or(u64::MAX);
        return tables * WHOLE / trigger;
    }
    let target = target(options, level).max(1);
    let score = u128::from(weight) * u128::from(WHOLE) / u128::from(target);
    u64::try_from(score).unwrap_or(u64::MAX)
}

/// Returns the number and the weight of a level's tables that can go down and do not yet.
fn due_of(tree: &TreeVersion, level: usize, exclusions: &Exclusions) -> (u64, u64) {
    let all = &tree.levels[level];
    debug_assert!(
        !all.tables.is_empty() || all.weight == 0,
        "what has no tables weighs nothing"
    );
    let (mut tables, mut weight) = (all.tables.len() as u64, all.weight);
    if exclusions.detours.is_empty() && exclusions.claims.is_empty() {
        return (tables, weight);
    }
    for table in &all.tables {
        let is_stuck = exclusions.detours.is_stuck(tree, level, table);
        if is_stuck || exclusions.claims.takes_down(tree.info.id, level, table) {
            tables -= 1;
            weight -= table.weight();
        }
    }
    (tables, weight)
}

/// Makes a plan for the tables that overlap nothing in the next level, as many as are too many.
fn move_down(route: &Route<'_>) -> Option<Plan> {
    let Route { tree, level, .. } = *route;
    debug_assert!(level > 0, "tables of level 0 go down in their order");
    debug_assert!(level + 1 < LEVELS, "there is a level below");
    let (options, exclusions) = (route.rules.options, route.rules.exclusions);
    let below = &tree.levels[level + 1];
    let is_free = |t: &TableHandle| {
        let (start, end) = (&t.meta().smallest, end_of(t.meta()));
        below.overlapping(start, Some(&end)).is_empty()
    };
    let moves = |upper| route.plan(PlanKind::Move, upper, Vec::new());
    let (_, weight) = due_of(tree, level, exclusions);
    let mut excess = weight.saturating_sub(target(options, level));
    let mut upper = Vec::new();
    for table in &tree.levels[level].tables {
        let may_go = !exclusions.stops(table) && is_large(table, options) && is_free(table);
        if may_go && !exclusions.claims.meet(&moves(vec![Arc::clone(table)])) {
            upper.push(Arc::clone(table));
            excess = excess.saturating_sub(table.weight());
        }
        if excess == 0 {
            break;
        }
    }
    (!upper.is_empty()).then(|| moves(upper))
}
