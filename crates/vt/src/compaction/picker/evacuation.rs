//! Plans that take tables out of zones, so that their holes become free zones.

use super::plan::{Plan, PlanKind, is_in};
use crate::compaction::exclusions::Exclusions;
use crate::version::Version;
use std::sync::Arc;
use stitch_format::vt_manifest::Run;

/// Picks a table to be taken out of zones. The zones' other tables follow, one by one. A zone that
/// an unreadable table is in would never be free.
///
/// Paper: VT-trees, FAST 2013, section 3.1 (defragmentation). Differs: only the blocks in the zones
/// are copied, the table's others are stitched.
pub(crate) fn pick_evacuation(
    version: &Version,
    zones: &[Run],
    exclusions: &Exclusions,
) -> Option<Plan> {
    let mut zones: Vec<Run> = zones.to_vec();
    zones.retain(|zone| !exclusions.detours.stay_in(version, *zone));
    zones.sort_unstable();
    debug_assert!(
        zones.is_sorted_by(|zone, next| zone.end() <= next.addr),
        "zones are apart"
    );
    let mut tables = version.tables();
    let (level, table) = tables.find(|(_, t)| !exclusions.stops(t) && is_in(t.meta(), &zones))?;
    let tree = version.trees.get(&table.meta().tree)?;
    let what = (PlanKind::Compact, "evacuate");
    let mut plan = Plan::within(tree, level, what, vec![Arc::clone(table)]);
    plan.evacuate = zones.into();
    Some(plan)
}
