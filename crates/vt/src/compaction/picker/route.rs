//! From which level to which one: makes the plan for tables that go there, with what they overlap.

use super::{Plan, PlanKind, bounds, end_of, is_large, with_small_neighbours};
use crate::compaction::exclusions::Exclusions;
use crate::options::PickOptions;
use crate::version::{TableHandle, TreeVersion};
use std::sync::Arc;

/// Where a plan leads, and why.
pub(super) struct Route<'a> {
    pub(super) tree: &'a TreeVersion,
    pub(super) reason: &'static str,
    pub(super) from_level: usize,
    pub(super) to_level: usize,
    pub(super) exclusions: &'a Exclusions,
}

impl<'a> Route<'a> {
    /// From a level to the next.
    pub(super) const fn below(
        tree: &'a TreeVersion,
        level: usize,
        reason: &'static str,
        exclusions: &'a Exclusions,
    ) -> Self {
        Self {
            tree,
            reason,
            from_level: level,
            to_level: level + 1,
            exclusions,
        }
    }

    /// From a level to the same.
    pub(super) const fn within(
        tree: &'a TreeVersion,
        level: usize,
        reason: &'static str,
        exclusions: &'a Exclusions,
    ) -> Self {
        Self {
            to_level: level,
            ..Self::below(tree, level, reason, exclusions)
        }
    }

    /// A plan that writes one table anew in its level.
    pub(super) fn in_place(
        tree: &'a TreeVersion,
        (level, table): (usize, &Arc<TableHandle>),
        (kind, reason): (PlanKind, &'static str),
        exclusions: &'a Exclusions,
    ) -> Plan {
        let route = Self::within(tree, level, reason, exclusions);
        route.plan(kind, vec![Arc::clone(table)], Vec::new())
    }

    /// A plan that takes one table down, or a slice of it.
    pub(super) fn down(&self, table: &Arc<TableHandle>, options: &PickOptions) -> Plan {
        let upper = vec![Arc::clone(table)];
        let below = &self.tree.levels[self.to_level];
        let end = end_of(table.meta());
        let touched = below.overlapping(&table.meta().smallest, Some(&end));
        if let Some(slice) = self.slice(table, &below.tables[touched.clone()], options) {
            return slice;
        }
        let is_free = touched.is_empty();
        let joined = if is_large(table, options) {
            touched
        } else {
            with_small_neighbours(below, touched, options)
        };
        let kind = if is_free && joined.is_empty() {
            PlanKind::Move
        } else {
            PlanKind::Compact
        };
        self.plan(kind, upper, below.tables[joined].to_vec())
    }

    /// A plan for the first of the tables that one touches, if all are too many.
    fn slice(
        &self,
        table: &Arc<TableHandle>,
        touched: &[Arc<TableHandle>],
        options: &PickOptions,
    ) -> Option<Plan> {
        // Unreadable ones are not read, and cost nothing.
        let is_read = |t: &Arc<TableHandle>| !self.exclusions.is_unreadable(t);
        let mut bytes = table.weight();
        let mut has_any = false;
        let is_too_much = |lower: &Arc<TableHandle>| {
            if !is_read(lower) {
                return false;
            }
            bytes += lower.weight();
            std::mem::replace(&mut has_any, true) && bytes > options.input_bytes_max
        };
        let count = touched.iter().position(is_too_much)?;
        let next = &touched[count];
        let lower = touched[..count].to_vec();
        let mut plan = self.plan(PlanKind::Compact, vec![Arc::clone(table)], lower);
        debug_assert!(
            table.meta().smallest < next.meta().smallest,
            "something goes down"
        );
        plan.until = Some(next.meta().smallest.clone());
        Some(plan)
    }

    /// A plan, around the unreadable tables of `lower` and of level 0.
    pub(super) fn plan(
        &self,
        kind: PlanKind,
        upper: Vec<Arc<TableHandle>>,
        mut lower: Vec<Arc<TableHandle>>,
    ) -> Plan {
        debug_assert!(!upper.is_empty(), "a plan takes something down");
        let mut around = Vec::new();
        if !self.exclusions.unreadable.is_empty() && self.from_level != self.to_level {
            around = self.older_beside(&upper);
            around.extend(lower.extract_if(.., |t| self.exclusions.is_unreadable(t)));
        }
        let kind = match kind {
            PlanKind::Move if !around.is_empty() => PlanKind::Compact,
            kind => kind,
        };
        Plan {
            tree: self.tree.info.id,
            kind,
            reason: self.reason,
            from_level: self.from_level,
            to_level: self.to_level,
            upper,
            lower,
            around,
            until: None,
            evacuate: Arc::default(),
            merged_blocks: Arc::default(),
        }
    }

    /// Of level 0: unreadable tables that are older than `upper` and overlap it.
    fn older_beside(&self, upper: &[Arc<TableHandle>]) -> Vec<Arc<TableHandle>> {
        let level0 = &self.tree.levels[0].tables;
        let last = upper.last().filter(|_| self.from_level == 0);
        let at = last.and_then(|last| level0.iter().position(|t| Arc::ptr_eq(t, last)));
        let (Some(at), Some((start, end))) = (at, bounds(upper)) else {
            return Vec::new();
        };
        let older = level0[at + 1..].iter();
        let is_around = |t: &&Arc<TableHandle>| {
            self.exclusions.is_unreadable(t) && t.meta().overlaps(&start, Some(&end))
        };
        older.filter(is_around).cloned().collect()
    }
}
