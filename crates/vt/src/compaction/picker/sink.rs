//! Plans about what cannot be read: tables are parted at unreadable blocks, and unreadable tables
//! sink. See [`crate::compaction::exclusions`].

use super::level0::plan_level0;
use super::route::Route;
use super::{Plan, PlanKind, end_of, without};
use crate::compaction::exclusions::Exclusions;
use crate::options::PickOptions;
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::sync::Arc;

/// A table with unreadable blocks among others.
pub(super) fn pick_part(version: &Version, exclusions: &Exclusions) -> Option<Plan> {
    if exclusions.to_part.is_empty() {
        return None;
    }
    let is_due =
        |t: &TableHandle| exclusions.to_part.contains(&t.meta().id) && !exclusions.stops(t);
    let (level, table) = version.tables().find(|(_, t)| is_due(t))?;
    let tree = version.trees.get(&table.meta().tree)?;
    let what = (PlanKind::Part, "unreadable");
    Some(Route::in_place(tree, (level, table), what, exclusions))
}

/// Takes an unreadable table a level down, or what is in its way there.
pub(super) fn pick_sinking(
    version: &Version,
    options: &PickOptions,
    exclusions: &Exclusions,
) -> Option<Plan> {
    if exclusions.unreadable.is_empty() {
        return None;
    }
    let mut all: Vec<(usize, &Arc<TableHandle>)> = version.tables().collect();
    all.retain(|(_, t)| exclusions.is_unreadable(t) && !exclusions.avoided.contains(&t.meta().id));
    all.sort_by_key(|(level, t)| std::cmp::Reverse((*level, t.meta().id)));
    all.into_iter().find_map(|(level, table)| {
        let tree = version.trees.get(&table.meta().tree)?;
        sink(tree, level, table, options, exclusions)
    })
}

/// One step to take an unreadable table a level down, if there can be one.
fn sink(
    tree: &TreeVersion,
    level: usize,
    table: &Arc<TableHandle>,
    options: &PickOptions,
    exclusions: &Exclusions,
) -> Option<Plan> {
    let below = tree.levels.get(level + 1)?;
    let end = end_of(table.meta());
    if level == 0 {
        let level0 = &tree.levels[0].tables;
        let at = level0.iter().position(|t| Arc::ptr_eq(t, table))?;
        let is_in_way =
            |t: &Arc<TableHandle>| t.meta().overlaps(&table.meta().smallest, Some(&end));
        if level0[at + 1..].iter().any(is_in_way) {
            let is_first = level0[at + 1..]
                .iter()
                .all(|t| !exclusions.is_unreadable(t));
            let plan = plan_level0(tree, options, "sink", exclusions)?;
            return (is_first && plan.upper.iter().all(|t| !newer(level0, at, t))).then_some(plan);
        }
    }
    let in_way = &below.tables[below.overlapping(&table.meta().smallest, Some(&end))];
    if in_way.is_empty() {
        let route = Route::below(tree, level, "sink", exclusions);
        return Some(route.plan(PlanKind::Move, vec![Arc::clone(table)], Vec::new()));
    }
    let goes =
        |t: &Arc<TableHandle>| !exclusions.stops(t) && !exclusions.is_held(tree, level + 1, t);
    if level + 2 >= LEVELS || !in_way.iter().all(goes) {
        return None;
    }
    let route = Route::below(tree, level + 1, "sink", exclusions);
    without(exclusions, route.down(&in_way[0], options))
}

/// True if a table of level 0 comes before the one at `at`.
fn newer(level0: &[Arc<TableHandle>], at: usize, table: &Arc<TableHandle>) -> bool {
    level0[..at].iter().any(|t| Arc::ptr_eq(t, table))
}
