//! The way of tables from a level to the next: makes the plan for tables that go down, with the
//! tables that they overlap there.

use super::tables::{cost, end_of, is_large, with_small_neighbours};
use super::{PickRules, Plan, PlanKind};
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::sync::Arc;

/// The way from `level` to the next, and the reason for it.
#[derive(Clone, Copy)]
pub(in crate::compaction) struct Route<'a> {
    pub(in crate::compaction) tree: &'a TreeVersion,
    pub(in crate::compaction) level: usize,
    pub(in crate::compaction) reason: &'static str,
    pub(in crate::compaction) rules: PickRules<'a>,
}

impl<'a> Route<'a> {
    /// Picks, of the tables that `may_go`, the one with the least to rewrite below for what it
    /// carries.
    pub(super) fn cheapest(&self, may_go: impl Fn(&TableHandle) -> bool) -> Option<Plan> {
        self.cheapest_by(may_go, |table| self.down(table))
    }

    /// Picks a table as [`Self::cheapest`] does, for a plan of the caller's.
    pub(super) fn cheapest_by(
        &self,
        may_go: impl Fn(&TableHandle) -> bool,
        plan: impl Fn(&Arc<TableHandle>) -> Plan,
    ) -> Option<Plan> {
        debug_assert!(self.level < LEVELS, "a level of the tree");
        let exclusions = self.rules.exclusions;
        let tables = self.tree.levels[self.level].tables.iter();
        let candidates = tables
            .filter(|t| may_go(t) && exclusions.lets_down(self.tree, self.level, t))
            .filter(|t| !self.meets_avoided(t))
            .map(|t| {
                let one = std::slice::from_ref(t);
                ((cost(self.tree, one, self.level + 1), t.meta().id), t)
            });
        exclusions
            .claims
            .first_free(candidates, |table| Some(plan(table)))
    }

    /// Reports whether a table overlaps one below that is to be avoided.
    fn meets_avoided(&self, table: &TableHandle) -> bool {
        let avoided = &self.rules.exclusions.avoided;
        !avoided.is_empty() && {
            let mut below = self.overlapped(table).iter();
            below.any(|t| avoided.contains(&t.meta().id))
        }
    }

    /// The tables of the next level that a table overlaps.
    fn overlapped(&self, table: &TableHandle) -> &'a [Arc<TableHandle>] {
        let end = end_of(table.meta());
        debug_assert!(table.meta().smallest < end, "a table has keys");
        let below = self.tree.levels.get(self.level + 1);
        below.map_or(&[], |below| {
            &below.tables[below.overlapping(&table.meta().smallest, Some(&end))]
        })
    }

    /// Makes a plan that takes one table down, or a slice of it.
    pub(in crate::compaction) fn down(&self, table: &Arc<TableHandle>) -> Plan {
        debug_assert!(self.level + 1 < LEVELS, "there is a level below");
        debug_assert_eq!(table.meta().tree, self.tree.info.id, "a table of the tree");
        let upper = vec![Arc::clone(table)];
        let below = &self.tree.levels[self.level + 1];
        let end = end_of(table.meta());
        let touched = below.overlapping(&table.meta().smallest, Some(&end));
        if let Some(slice) = self.slice(table, &below.tables[touched.clone()]) {
            return slice;
        }
        let is_free = touched.is_empty();
        let joined = if is_large(table, self.rules.options) {
            touched
        } else {
            with_small_neighbours(below, touched, self.rules)
        };
        let kind = if is_free && joined.is_empty() {
            PlanKind::Move
        } else {
            PlanKind::Compact
        };
        self.plan(kind, upper, below.tables[joined].to_vec())
    }

    /// Makes a plan for the first of the tables that one touches, if all are too many.
    fn slice(&self, table: &Arc<TableHandle>, touched: &[Arc<TableHandle>]) -> Option<Plan> {
        let detours = &self.rules.exclusions.detours;
        let mut bytes = table.weight();
        let mut has_any = false;
        let is_too_much = |lower: &Arc<TableHandle>| {
            // Unreadable tables are not read, and cost nothing.
            if detours.is_unreadable(lower) {
                return false;
            }
            bytes += lower.weight();
            std::mem::replace(&mut has_any, true) && bytes > self.rules.options.input_bytes_max
        };
        let count = touched.iter().position(is_too_much)?;
        let next = &touched[count];
        debug_assert!(count > 0, "a lower table goes in");
        let lower = touched[..count].to_vec();
        let mut plan = self.plan(PlanKind::Compact, vec![Arc::clone(table)], lower);
        debug_assert!(
            table.meta().smallest < next.meta().smallest,
            "something goes down"
        );
        plan.until = Some(next.meta().smallest.clone());
        Some(plan)
    }

    /// Makes a plan for these tables, which goes around the unreadable ones in their way.
    pub(in crate::compaction) fn plan(
        &self,
        kind: PlanKind,
        upper: Vec<Arc<TableHandle>>,
        mut lower: Vec<Arc<TableHandle>>,
    ) -> Plan {
        debug_assert!(self.level + 1 < LEVELS, "there is a level below");
        debug_assert!(!upper.is_empty(), "a plan takes something down");
        debug_assert!(
            kind != PlanKind::Move || lower.is_empty(),
            "a move reads nothing"
        );
        let detours = &self.rules.exclusions.detours;
        let around = detours.take_around(self.tree, self.level, &upper, &mut lower);
        debug_assert!(
            kind == PlanKind::Move || upper.iter().all(|table| !detours.is_unreadable(table)),
            "an unreadable table is only moved"
        );
        let kind = match kind {
            PlanKind::Move if !around.is_empty() => PlanKind::Compact,
            kind => kind,
        };
        Plan {
            to_level: self.level + 1,
            lower,
            around,
            ..Plan::within(self.tree, self.level, (kind, self.reason), upper)
        }
    }
}
