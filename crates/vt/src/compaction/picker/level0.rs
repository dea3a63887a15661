//! Plans for level 0, whose tables may overlap: only the oldest can go down.
//!
//! Unreadable tables of level 0 divide it into segments. What is newer than one goes around it;
//! where nothing of the oldest segment can go down any more, the next one is due.

use super::route::Route;
use super::{Plan, PlanKind, are_disjoint, bounds, is_large, with_small_neighbours, without};
use crate::compaction::exclusions::Exclusions;
use crate::options::PickOptions;
use crate::version::{TableHandle, TreeVersion, Version};
use std::sync::Arc;

/// A plan for the oldest tables of level 0: as many as one compaction should take.
pub(super) fn plan_level0(
    tree: &TreeVersion,
    options: &PickOptions,
    reason: &'static str,
    exclusions: &Exclusions,
) -> Option<Plan> {
    let segment = level0_segment(tree, exclusions)?;
    let level0 = &tree.levels[0].tables[segment.start..segment.end];
    let below = &tree.levels[1];
    let least = level0.len() - segment.oldest_due;
    let most = options.level0_batch.max(1);
    let mut count = level0.len().min(most.max(least));
    let route = Route {
        tree,
        reason,
        from_level: 0,
        to_level: 1,
        exclusions,
    };
    loop {
        let upper = level0[level0.len() - count..].to_vec();
        let (start, end) = bounds(&upper)?;
        let touched = below.overlapping(&start, Some(&end));
        let all_large = upper.iter().all(|t| is_large(t, options));
        let plan = if touched.is_empty() && all_large && are_disjoint(&upper) {
            route.plan(PlanKind::Move, upper, Vec::new())
        } else {
            let lower = below.tables[with_small_neighbours(below, touched, options)].to_vec();
            route.plan(PlanKind::Compact, upper, lower)
        };
        if plan.kind == PlanKind::Move || plan.input_weight() <= options.input_bytes_max {
            return without(exclusions, plan);
        }
        if count == 1 {
            return without(exclusions, route.down(&level0[level0.len() - 1], options));
        }
        if count == least {
            return without(exclusions, plan);
        }
        count = count.div_ceil(2).max(least);
    }
}

/// Tables of level 0 that follow each other, none of them unreadable.
struct Segment {
    start: usize,
    end: usize,
    /// The oldest one of which something can go down; counted from `start`.
    oldest_due: usize,
}

/// The oldest tables of level 0 of which something can go down.
fn level0_segment(tree: &TreeVersion, exclusions: &Exclusions) -> Option<Segment> {
    let level0 = &tree.levels[0].tables;
    let mut end = level0.len();
    loop {
        let before = level0[..end]
            .iter()
            .rposition(|t| exclusions.is_unreadable(t));
        let start = before.map_or(0, |at| at + 1);
        let is_due = |t: &Arc<TableHandle>| !exclusions.is_held(tree, 0, t);
        if let Some(oldest_due) = level0[start..end].iter().rposition(is_due) {
            return Some(Segment {
                start,
                end,
                oldest_due,
            });
        }
        end = before?;
    }
}

/// Held tables of level 0 that overlap, if there are too many: they are compacted where they are.
/// Only where every level below has an unreadable table of the same range.
pub(super) fn pick_held(
    version: &Version,
    options: &PickOptions,
    exclusions: &Exclusions,
) -> Option<Plan> {
    if exclusions.unreadable.is_empty() {
        return None;
    }
    version.trees.values().find_map(|tree| {
        let level0 = &tree.levels[0].tables;
        let is_held = |t: &Arc<TableHandle>| !exclusions.stops(t) && exclusions.is_held(tree, 0, t);
        // Only neighbours may be joined: what is between two tables is between them in age.
        let mut rows = level0.chunk_by(|a, b| is_held(a) && is_held(b));
        let row = rows.find(|row| row.len() >= options.level0_tables && !are_disjoint(row))?;
        let route = Route::within(tree, 0, "held", exclusions);
        Some(route.plan(PlanKind::Compact, row.to_vec(), Vec::new()))
    })
}
