//! Plans for level 0, whose tables may overlap: only the oldest can go down.

use super::tables::{are_disjoint, bounds, is_large, with_small_neighbours};
use super::{PickRules, Plan, PlanKind};
use crate::version::TreeVersion;

/// Makes a plan for the oldest tables of level 0: as many as one compaction should take. Returns
/// `None` if it meets a claim, or takes a table that is to be avoided.
pub(in crate::compaction) fn plan_level0(
    tree: &TreeVersion,
    reason: &'static str,
    rules: PickRules<'_>,
) -> Option<Plan> {
    let PickRules {
        options,
        exclusions,
    } = rules;
    let segment = exclusions.detours.level0_segment(tree)?;
    let level0 = &tree.levels[0].tables[segment.tables];
    let below = &tree.levels[1];
    let least = level0.len() - segment.oldest_due;
    debug_assert!(least > 0, "something of the segment is due");
    let most = options.level0_batch.max(1);
    let mut count = level0.len().min(most.max(least));
    let route = rules.route(tree, 0, reason);
    loop {
        let upper = level0[level0.len() - count..].to_vec();
        let (start, end) = bounds(&upper)?;
        debug_assert!(count >= least, "what is due goes in");
        let touched = below.overlapping(&start, Some(&end));
        let all_large = upper.iter().all(|t| is_large(t, options));
        let plan = if touched.is_empty() && all_large && are_disjoint(&upper) {
            route.plan(PlanKind::Move, upper, Vec::new())
        } else {
            let lower = below.tables[with_small_neighbours(below, touched, rules)].to_vec();
            route.plan(PlanKind::Compact, upper, lower)
        };
        if plan.kind == PlanKind::Move || plan.input_weight() <= options.input_bytes_max {
            return exclusions.allowed(plan);
        }
        if count == 1 {
            return exclusions.allowed(route.down(&level0[level0.len() - 1]));
        }
        if count == least {
            return exclusions.allowed(plan);
        }
        count = count.div_ceil(2).max(least);
    }
}
