//! Plans for tables that hold what dropped moments have left, or that replace it.

use super::level0::plan_level0;
use super::{PickRules, Plan, PlanKind};
use crate::compaction::exclusions::Exclusions;
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::TableId;

/// Plans to write a table anew in its level, with these of its blocks merged.
pub(crate) fn garbage_in_place(
    tree: &TreeVersion,
    table: TableId,
    blocks: BTreeSet<u64>,
    exclusions: &Exclusions,
) -> Option<Plan> {
    debug_assert!(!blocks.is_empty(), "garbage is in blocks");
    let (level, table) = find(tree, table)?;
    let what = (PlanKind::Compact, "garbage");
    let mut plan = Plan::within(tree, level, what, vec![Arc::clone(table)]);
    plan.merged_blocks = Arc::new(blocks);
    exclusions.allowed(plan)
}

/// Plans to take a table to the next level; of level 0, those that have to go before it.
pub(crate) fn garbage_plan_below(
    tree: &TreeVersion,
    table: TableId,
    rules: PickRules<'_>,
) -> Option<Plan> {
    let (level, table) = find(tree, table)?;
    if level == 0 {
        return plan_level0(tree, "garbage", rules);
    }
    if level + 1 == LEVELS || !rules.exclusions.lets_down(tree, level, table) {
        return None;
    }
    let plan = rules.route(tree, level, "garbage").down(table);
    debug_assert_eq!(plan.from_level, level, "the table goes down");
    rules.exclusions.allowed(plan)
}

fn find(tree: &TreeVersion, id: TableId) -> Option<(usize, &Arc<TableHandle>)> {
    let found = tree.tables().find(|(_, table)| table.meta().id == id);
    debug_assert!(
        found.is_none_or(|(_, table)| table.meta().tree == tree.info.id),
        "a table is in its tree"
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::PickOptions;
    use crate::testing::text_version;
    use stitch_base::TreeId;

    #[test]
    fn a_table_is_rewritten_in_its_level_or_goes_down() {
        let version = text_version("tree 1\nL1 1 a..f 100\nL2 2 a..c 100\nL2 3 d..z 100");
        let (tree, none) = (&version.trees[&TreeId(1)], Exclusions::default());
        let blocks = BTreeSet::from([4096]);
        let plan = garbage_in_place(tree, TableId(2), blocks.clone(), &none);
        let plan = plan.expect("it is there");
        assert_eq!(plan.to_string(), "compact tree 1 L2 2 -> L2 (garbage)");
        assert_eq!(*plan.merged_blocks, blocks);
        let options = PickOptions {
            level0_tables: 4,
            level0_batch: 8,
            cost_max: u64::MAX,
            level1_bytes: 1000,
            fanout: 8,
            table_bytes: 100,
            input_bytes_max: 1000,
        };
        let plan = garbage_plan_below(tree, TableId(1), PickRules::new(&options, &none));
        let shown = plan.expect("it is above others").to_string();
        assert_eq!(shown, "compact tree 1 L1 1 + L2 2 3 -> L2 (garbage)");
        assert!(garbage_in_place(tree, TableId(9), blocks, &none).is_none());
        let mut exclusions = Exclusions::default();
        exclusions.avoided.insert(TableId(3));
        let rules = PickRules::new(&options, &exclusions);
        assert!(garbage_plan_below(tree, TableId(1), rules).is_none());
    }
}
