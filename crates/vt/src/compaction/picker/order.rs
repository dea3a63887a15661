//! Plans that bring values into key order (ADR 0143).
//!
//! 1. Values of one key range that lie in several levels are merged down, until they are in one.
//!    Their blocks are carried, so that it costs the other blocks and the indexes.
//! 2. Then the table with the most scattered bytes is written anew in its level. The blocks of its
//!    scattered windows are copied in key order, all others are stitched.

use super::level0::plan_level0;
use super::tables::{are_disjoint, end_of, has_below};
use super::{PickInput, PickRules, Plan, PlanKind};
use crate::compaction::exclusions::Exclusions;
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_format::vt_manifest::Run;

/// Values that go down pay for half as many bytes of other blocks and indexes.
const WRITTEN_PART: u64 = 2;

/// Picks values above others of the same keys, where merging them writes little.
pub(super) fn pick_overlapping_values(input: &PickInput<'_>) -> Option<Plan> {
    let rules = input.rules;
    input.trees().find_map(|tree| {
        overlapping_level0(tree, rules).or_else(|| {
            (1..LEVELS - 1).find_map(|n| {
                let may_go = |t: &TableHandle| has_below(tree, n, t.meta()) && pays(tree, n, t);
                rules.route(tree, n, "order").cheapest(may_go)
            })
        })
    })
}

/// Picks tables of level 0 that hold values and overlap anything.
fn overlapping_level0(tree: &TreeVersion, rules: PickRules<'_>) -> Option<Plan> {
    let level0 = &tree.levels[0].tables;
    let has_values = level0.iter().any(|t| t.meta().value_bytes > 0);
    let overlaps = || level0.iter().any(|t| has_below(tree, 0, t.meta())) || !are_disjoint(level0);
    if !has_values || !overlaps() {
        return None;
    }
    let plan = plan_level0(tree, "order", rules)?;
    debug_assert!(plan.from_level < plan.to_level, "values go down");
    is_paid(OwnedBytes::of(&plan.upper), OwnedBytes::of(&plan.lower)).then_some(plan)
}

/// Reports whether a table's values pay for merging it with what it overlaps in the next level.
fn pays(tree: &TreeVersion, level: usize, table: &TableHandle) -> bool {
    debug_assert!(level + 1 < LEVELS, "there is a level below");
    debug_assert_eq!(table.meta().tree, tree.info.id, "a table of the tree");
    let (start, end) = (&table.meta().smallest, end_of(table.meta()));
    let below = &tree.levels[level + 1];
    let lower = OwnedBytes::of(&below.tables[below.overlapping(start, Some(&end))]);
    is_paid(OwnedBytes::default().plus(table), lower)
}

/// What tables own.
#[derive(Clone, Copy, Default)]
struct OwnedBytes {
    /// Bytes of value blocks.
    values: u64,
    /// Bytes of all else: other data blocks, indexes.
    others: u64,
}

impl OwnedBytes {
    fn of(tables: &[Arc<TableHandle>]) -> Self {
        tables.iter().fold(Self::default(), |sums, t| sums.plus(t))
    }

    fn plus(self, table: &TableHandle) -> Self {
        let values = table.meta().value_bytes;
        debug_assert!(
            values <= table.owned_bytes(),
            "a table owns its value blocks"
        );
        Self {
            values: self.values + values,
            others: self.others + table.owned_bytes().saturating_sub(values),
        }
    }
}

/// Reports whether the values of the upper tables pay for what merging them with the lower writes.
const fn is_paid(upper: OwnedBytes, lower: OwnedBytes) -> bool {
    let written = upper.others + lower.others;
    upper.values > 0 && written.saturating_mul(WRITTEN_PART) <= upper.values
}

/// Returns the table with the most scattered bytes of those that are worth it, and its level.
pub(crate) fn pick_scattered(
    version: &Version,
    scattered: &BTreeMap<TableId, u64>,
    is_worth: &dyn Fn(&TableHandle, u64) -> bool,
    exclusions: &Exclusions,
) -> Option<(usize, Arc<TableHandle>)> {
    let bytes = |t: &TableHandle| scattered.get(&t.meta().id).copied().unwrap_or(0);
    let tables = version.tables();
    let worth = tables.filter(|(_, t)| bytes(t) > 0 && is_worth(t, bytes(t)));
    let (level, table) = worth
        .filter(|(_, t)| !exclusions.detours.has_unreadable(t) && !exclusions.stops(t))
        .max_by_key(|(_, t)| (bytes(t), t.meta().id))?;
    debug_assert!(level < LEVELS, "a level of the tree");
    debug_assert!(bytes(table) > 0, "the table has scattered values");
    Some((level, Arc::clone(table)))
}

/// Returns the plan that moves what a table has in `extents`, sorted and apart.
pub(crate) fn order_plan(
    version: &Version,
    (level, table): (usize, &Arc<TableHandle>),
    extents: Vec<Run>,
) -> Option<Plan> {
    debug_assert!(!extents.is_empty(), "something is moved");
    debug_assert!(
        extents.is_sorted_by(|extent, next| extent.end() <= next.addr),
        "extents are in order and apart"
    );
    let tree = version.trees.get(&table.meta().tree)?;
    let what = (PlanKind::Order, "scattered");
    let mut plan = Plan::within(tree, level, what, vec![Arc::clone(table)]);
    plan.evacuate = extents.into();
    debug_assert!(plan.is_of(tree), "a table of the version");
    Some(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::text_version;

    const VERSION: &str = "tree 1\nL1 1 a..f 100\nL1 2 g..k 100\nL2 3 a..z 100";

    fn picked(scattered: &[(u64, u64)], exclusions: &Exclusions) -> Option<(usize, u64)> {
        let version = text_version(VERSION);
        let scattered = scattered.iter().map(|&(id, bytes)| (TableId(id), bytes));
        let is_worth = |_: &TableHandle, bytes: u64| bytes >= 10;
        let found = pick_scattered(&version, &scattered.collect(), &is_worth, exclusions);
        found.map(|(level, table)| (level, table.meta().id.0))
    }

    #[test]
    fn the_table_with_the_most_scattered_bytes_is_picked() {
        let mut exclusions = Exclusions::default();
        let scattered = [(1, 20), (2, 10), (3, 30)];
        assert_eq!(picked(&scattered, &exclusions), Some((2, 3)));
        exclusions.avoided.insert(TableId(3));
        assert_eq!(picked(&scattered, &exclusions), Some((1, 1)));
        exclusions.detours.part_later(TableId(1));
        assert_eq!(picked(&scattered, &exclusions), Some((1, 2)));
        assert_eq!(picked(&[(2, 9), (7, 50)], &exclusions), None);
    }

    #[test]
    fn a_plan_takes_the_table_out_of_its_extents_and_stays_in_its_level() {
        let version = text_version(VERSION);
        let table = Arc::clone(&version.trees[&stitch_base::TreeId(1)].levels[2].tables[0]);
        let extents = vec![Run {
            addr: 3_000_010,
            len_bytes: 20,
        }];
        let plan = order_plan(&version, (2, &table), extents).unwrap();
        assert!(plan.is_in_evacuated(table.meta()));
        let shown = "order tree 1 L2 3 -> L2 1 extents (scattered)";
        assert_eq!(plan.to_string(), shown);
    }
}
