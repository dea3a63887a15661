//! What a plan has made, and what is noted of it.

use super::picker::{Plan, PlanKind};
use super::run::{level_number, upper_ids};
use super::scheduler::SchedulerState;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_format::vt_manifest::{TableMeta, VersionEdit};

/// What a plan has made, not installed yet.
#[derive(Default)]
pub(super) struct Made {
    /// New tables with their levels.
    pub(super) tables: Vec<(u8, TableMeta)>,
    /// Of these, those that hold nothing that can be read.
    pub(super) unreadable: Vec<TableId>,
    /// Unreadable tables that a range delete hides.
    pub(super) dropped: Vec<TableId>,
    /// There was nothing to be done.
    pub(super) is_futile: bool,
}

impl Made {
    /// Returns what is to be noted of the plan.
    pub(super) fn ran(&self, plan: &Plan) -> Ran {
        debug_assert!(
            self.unreadable
                .iter()
                .all(|id| self.tables.iter().any(|(_, table)| table.id == *id)),
            "unreadable parts are new tables"
        );
        debug_assert!(
            !self.is_futile || self.tables.is_empty(),
            "nothing was done"
        );
        let new = self.tables.iter().map(|(_, t)| t);
        let left_in_zone = new.filter(|t| plan.is_in_evacuated(t)).map(|t| t.id);
        Ran {
            is_futile: self.is_futile,
            left_in_zone: left_in_zone.collect(),
            unreadable: self.unreadable.clone(),
        }
    }

    /// Adds to an edit what the plan has made.
    pub(super) fn into_edit(self, mut edit: VersionEdit, plan: &Plan) -> VersionEdit {
        debug_assert!(edit.added.is_empty(), "an edit of one plan");
        debug_assert!(
            self.dropped
                .iter()
                .all(|id| plan.around.iter().any(|table| table.meta().id == *id)),
            "only tables that the plan goes around are dropped unread"
        );
        match plan.kind {
            PlanKind::Move => {
                debug_assert!(self.tables.is_empty(), "a move makes no tables");
                let level = level_number(plan.to_level);
                edit.moved = upper_ids(plan).map(|table| (table, level)).collect();
            }
            PlanKind::Compact | PlanKind::Part | PlanKind::Join | PlanKind::Order => {
                edit.removed = plan.inputs().map(|t| t.meta().id).collect();
                edit.removed.extend(self.dropped);
                debug_assert_eq!(
                    edit.removed.iter().collect::<BTreeSet<_>>().len(),
                    edit.removed.len(),
                    "a table goes once"
                );
                debug_assert!(
                    self.tables
                        .iter()
                        .all(|(_, table)| !edit.removed.contains(&table.id)),
                    "numbers of tables are not given again"
                );
                let shared = |(level, table)| (level, Arc::new(table));
                edit.added = self.tables.into_iter().map(shared).collect();
            }
        }
        edit
    }
}

/// What is to be noted of a plan that was run.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) is_futile: bool,
    /// Tables that are still where they should not be.
    left_in_zone: Vec<TableId>,
    unreadable: Vec<TableId>,
}

impl Ran {
    pub(super) fn note(self, plan: &Plan, state: &mut SchedulerState) {
        let exclusions = &mut state.exclusions;
        debug_assert!(
            self.left_in_zone.is_empty() || !plan.evacuate.is_empty(),
            "only a plan that evacuates can leave something"
        );
        if self.is_futile {
            exclusions.detours.note_futile(plan);
            return;
        }
        if self.left_in_zone.is_empty() {
            exclusions.avoided.clear();
        }
        state.is_short = false;
        // Two of them would take turns for ever if each let the other be tried again.
        exclusions.avoided.extend(self.left_in_zone);
        exclusions.detours.note_installed(plan, self.unreadable);
    }
}
