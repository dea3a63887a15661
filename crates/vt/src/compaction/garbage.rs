//! Compactions that bring back what dropped moments have left ([`crate::garbage`]).

use super::Compactor;
use super::picker::{PickRules, Plan, PlanKind, Pressure, garbage_in_place, garbage_plan_below};
use crate::VtError;
use std::collections::BTreeSet;
use stitch_base::{TableId, TreeId};

/// A compaction of a table is worth it if it brings back one part in so many of what goes in.
const MIN_HOLE_PART: u64 = 16;

impl Compactor {
    /// Rewrites a table in its level: these blocks are merged, all others stitched where they can
    /// be. Returns false if that cannot be done now.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(crate) fn rewrite_garbage(
        &self,
        (tree, table): (TreeId, TableId),
        blocks: BTreeSet<u64>,
    ) -> Result<bool, VtError> {
        debug_assert!(!blocks.is_empty(), "garbage is in blocks");
        self.compact_alone(|version| {
            let exclusions = &self.scheduler.lock().exclusions;
            let tree = version.trees.get(&tree);
            Ok(tree.and_then(|tree| garbage_in_place(tree, table, blocks, exclusions)))
        })
    }

    /// Reports whether a table is left out of compactions: one of them has failed, or changed
    /// nothing.
    pub(crate) fn leaves_out(&self, (tree, table): (TreeId, TableId)) -> bool {
        let version = self.views.version();
        let scheduler = self.scheduler.lock();
        let tree = version.trees.get(&tree);
        let mut tables = tree.into_iter().flat_map(|tree| tree.tables());
        tables.any(|(_, of)| of.meta().id == table && scheduler.exclusions.stops(of))
    }

    /// Takes a table a level down, since it replaces so many bytes below it. Returns false if that
    /// cannot be done now, or is not worth it.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(crate) fn sink_over_garbage(
        &self,
        (tree, table): (TreeId, TableId),
        bytes: u64,
    ) -> Result<bool, VtError> {
        self.compact_alone(|version| {
            let exclusions = &self.scheduler.lock().exclusions;
            let free_bytes = self.unclaimed_bytes(exclusions.claims.weight());
            let options = self.pick_options(version, Pressure::Idle, free_bytes);
            let tree = version.trees.get(&tree);
            let rules = PickRules::new(&options, exclusions);
            let plan = tree.and_then(|tree| garbage_plan_below(tree, table, rules));
            debug_assert!(
                plan.as_ref()
                    .is_none_or(|plan| plan.from_level < plan.to_level),
                "the table goes down"
            );
            let is_worth = |plan: &Plan| {
                let is_move = plan.kind == PlanKind::Move;
                is_move || bytes.saturating_mul(MIN_HOLE_PART) >= plan.input_weight()
            };
            Ok(plan.filter(is_worth))
        })
    }
}
