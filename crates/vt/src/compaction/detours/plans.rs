//! Plans about what cannot be read.
//!
//! | candidates | best first | plan |
//! |---|---|---|
//! | tables with unreadable blocks among others | level, key | the table is parted |
//! | unreadable tables | the deepest, the newest | it moves down, or what is in its way does |
//! | held tables of level 0 that overlap | tree, the newest | they are compacted in level 0 |

use crate::compaction::exclusions::Exclusions;
use crate::compaction::picker::{
    PickInput, PickRules, Plan, PlanKind, are_disjoint, end_of, plan_level0,
};
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::cmp::Reverse;
use std::sync::Arc;

/// Picks what is due about unreadable data.
pub(in crate::compaction) fn pick_detour(input: &PickInput<'_>) -> Option<Plan> {
    let exclusions = input.rules.exclusions;
    if exclusions.detours.is_empty() {
        return None;
    }
    pick_part(input.version, exclusions)
        .or_else(|| pick_sinking(input))
        .or_else(|| pick_held(input))
}

/// Picks a table with unreadable blocks among others.
fn pick_part(version: &Version, exclusions: &Exclusions) -> Option<Plan> {
    let to_part = &exclusions.detours.to_part;
    let mut tables = version.tables();
    tables.find_map(|(level, table)| {
        let is_due = to_part.contains(&table.meta().id) && !exclusions.stops(table);
        let tree = version.trees.get(&table.meta().tree).filter(|_| is_due)?;
        debug_assert!(level < LEVELS, "a level of the tree");
        let what = (PlanKind::Part, "unreadable");
        let plan = Plan::within(tree, level, what, vec![Arc::clone(table)]);
        exclusions.allowed(plan)
    })
}

/// Picks an unreadable table that can go a level down, or what is in its way there.
fn pick_sinking(input: &PickInput<'_>) -> Option<Plan> {
    let exclusions = input.rules.exclusions;
    let candidates = input.version.tables().filter_map(|(level, table)| {
        let id = table.meta().id;
        debug_assert!(level < LEVELS, "a level of the tree");
        let is_due = exclusions.detours.is_unreadable(table) && !exclusions.avoided.contains(&id);
        is_due.then_some((Reverse((level, id)), (level, table)))
    });
    exclusions.claims.first_free(candidates, |(level, table)| {
        let tree = input.version.trees.get(&table.meta().tree)?;
        sink(tree, level, table, input.rules)
    })
}

/// Makes a plan for one step that takes an unreadable table a level down, if there can be one.
fn sink(
    tree: &TreeVersion,
    level: usize,
    table: &Arc<TableHandle>,
    rules: PickRules<'_>,
) -> Option<Plan> {
    debug_assert_eq!(table.meta().tree, tree.info.id, "a table of the tree");
    debug_assert!(
        rules.exclusions.detours.is_unreadable(table),
        "what sinks is unreadable"
    );
    let below = tree.levels.get(level + 1)?;
    let end = end_of(table.meta());
    if level == 0 && overlaps_older(tree, table) {
        return sink_level0(tree, table, rules);
    }
    let in_way = &below.tables[below.overlapping(&table.meta().smallest, Some(&end))];
    if in_way.is_empty() {
        let route = rules.route(tree, level, "sink");
        return Some(route.plan(PlanKind::Move, vec![Arc::clone(table)], Vec::new()));
    }
    let exclusions = rules.exclusions;
    let goes = |t: &Arc<TableHandle>| exclusions.lets_down(tree, level + 1, t);
    if level + 2 >= LEVELS || !in_way.iter().all(goes) {
        return None;
    }
    exclusions.allowed(rules.route(tree, level + 1, "sink").down(&in_way[0]))
}

/// The tables of level 0 that are older than one of them.
fn older<'a>(tree: &'a TreeVersion, table: &Arc<TableHandle>) -> &'a [Arc<TableHandle>] {
    let level0 = &tree.levels[0].tables;
    let at = level0.iter().position(|t| Arc::ptr_eq(t, table));
    debug_assert!(at.is_some(), "a table of level 0");
    at.map_or(&[], |at| &level0[at + 1..])
}

/// Reports whether a table of level 0 overlaps an older one there.
fn overlaps_older(tree: &TreeVersion, table: &Arc<TableHandle>) -> bool {
    let end = end_of(table.meta());
    let overlaps = |t: &Arc<TableHandle>| t.meta().overlaps(&table.meta().smallest, Some(&end));
    older(tree, table).iter().any(overlaps)
}

/// Makes a plan for tables of level 0 that are older than an unreadable one. The oldest unreadable
/// table goes first.
fn sink_level0(tree: &TreeVersion, table: &Arc<TableHandle>, rules: PickRules<'_>) -> Option<Plan> {
    let older = older(tree, table);
    let is_older = |t: &Arc<TableHandle>| older.iter().any(|other| Arc::ptr_eq(other, t));
    let detours = &rules.exclusions.detours;
    let is_oldest = older.iter().all(|t| !detours.is_unreadable(t));
    let plan = plan_level0(tree, "sink", rules)?;
    debug_assert_eq!(plan.from_level, 0, "tables of level 0 go down");
    (is_oldest && plan.upper.iter().all(is_older)).then_some(plan)
}

/// Picks held tables of level 0 that overlap, if there are too many: they are compacted where they
/// are. Only where every level below has an unreadable table of the same range.
fn pick_held(input: &PickInput<'_>) -> Option<Plan> {
    let PickRules {
        options,
        exclusions,
    } = input.rules;
    input.trees().find_map(|tree| {
        let level0 = &tree.levels[0].tables;
        let is_held =
            |t: &Arc<TableHandle>| !exclusions.stops(t) && exclusions.detours.is_held(tree, 0, t);
        // Only neighbours may be joined: what is between two tables is between them in age.
        let mut rows = level0.chunk_by(|a, b| is_held(a) && is_held(b));
        let row = rows.find(|row| row.len() >= options.level0_tables && !are_disjoint(row))?;
        debug_assert!(row.len() > 1, "one table overlaps no other");
        let plan = Plan::within(tree, 0, (PlanKind::Compact, "held"), row.to_vec());
        exclusions.allowed(plan)
    })
}
