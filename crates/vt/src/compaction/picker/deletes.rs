//! Plans that let deletes and old versions vanish.

use super::level0::plan_level0;
use super::tables::has_below;
use super::{PickInput, Plan, PlanKind, Pressure};
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::cmp::Reverse;
use std::sync::Arc;
use stitch_format::vt_manifest::TableMeta;

/// One of this many entries makes a table worth a compaction while space is not short.
const RICH_PART: u64 = 8;

/// Reports whether `count` of a table's entries make it worth a compaction.
const fn are_many(count: u64, meta: &TableMeta, pressure: Pressure) -> bool {
    const { assert!(RICH_PART > 1, "a table need not be all deletes") };
    let is_asked_for = matches!(pressure, Pressure::Space | Pressure::Room);
    count > 0 && (is_asked_for || count.saturating_mul(RICH_PART) >= meta.entry_count)
}

/// Picks a table whose deletes can vanish, or go down a level.
pub(super) fn pick_deletes(input: &PickInput<'_>) -> Option<Plan> {
    let is_rich = |meta: &TableMeta| {
        are_many(meta.delete_count, meta, input.pressure) || meta.range_delete_count > 0
    };
    input.trees().find_map(|tree| {
        let is_rich_level0 = tree.levels[0].tables.iter().any(|t| is_rich(t.meta()));
        let level0 = is_rich_level0
            .then(|| plan_level0(tree, "deletes", input.rules))
            .flatten();
        // Moved tables keep their deletes.
        let level0 = level0.map(|plan| Plan {
            kind: PlanKind::Compact,
            ..plan
        });
        let deeper = |n| pick_deletes_of(input, tree, n, &is_rich);
        level0.or_else(|| (1..LEVELS).find_map(deeper))
    })
}

/// Picks a table of a level below 0. Without anything below it, it is written anew where it is.
fn pick_deletes_of(
    input: &PickInput<'_>,
    tree: &TreeVersion,
    level: usize,
    is_rich: &dyn Fn(&TableMeta) -> bool,
) -> Option<Plan> {
    debug_assert!(level > 0, "level 0 has plans of its own");
    let is_seen = |meta: &TableMeta| {
        debug_assert!(
            meta.min_seqno <= meta.max_seqno,
            "numbers of a table are in order"
        );
        let keys = (meta.smallest.as_slice(), meta.largest.as_slice());
        let oldest = input.moments.held.oldest_of(tree.info.id, keys);
        oldest.is_some_and(|oldest| oldest < meta.max_seqno)
    };
    let may_go = |t: &TableHandle| {
        // Below a branch is its parent: deletes stay in its deepest level.
        let may_vanish = || !tree.is_branch() && !is_seen(t.meta());
        is_rich(t.meta()) && (has_below(tree, level, t.meta()) || may_vanish())
    };
    let route = input.rules.route(tree, level, "deletes");
    route.cheapest_by(may_go, |table| {
        if has_below(tree, level, table.meta()) {
            return route.down(table);
        }
        let what = (PlanKind::Compact, "deletes");
        Plan::within(tree, level, what, vec![Arc::clone(table)])
    })
}

/// Picks the table with the most versions that only dropped snapshots saw. It is written anew where
/// it is, and holds none afterwards.
pub(super) fn pick_superseded(input: &PickInput<'_>) -> Option<Plan> {
    let released = input.moments.released;
    if released.is_empty() {
        return None;
    }
    debug_assert!(
        released.values().all(|count| *count > 0),
        "a table is listed for what it can give up"
    );
    let exclusions = input.rules.exclusions;
    let candidates = input.version.tables().filter_map(|(level, table)| {
        let meta = table.meta();
        let count = released.get(&meta.id).copied().unwrap_or(0);
        let is_worth = are_many(count, meta, input.pressure) && !exclusions.stops(table);
        is_worth.then_some((Reverse((count, meta.id)), (level, table)))
    });
    exclusions.claims.first_free(candidates, |(level, table)| {
        let tree = input.version.trees.get(&table.meta().tree)?;
        let what = (PlanKind::Compact, "superseded");
        Some(Plan::within(tree, level, what, vec![Arc::clone(table)]))
    })
}
