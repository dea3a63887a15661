//! What compactions leave out: tables for which there was no space, unreadable data
//! ([`super::detours`]), zones that were evacuated, and what other compactions have claimed
//! ([`super::claims`]).

use super::claims::Claims;
use super::detours::Detours;
use super::picker::Plan;
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::collections::BTreeSet;
use stitch_base::TableId;
use stitch_format::vt_manifest::Run;

/// The tables and zones that the next compactions must leave out, or treat in a special way.
#[derive(Debug, Default)]
pub(crate) struct Exclusions {
    /// Tables that a compaction has found no space for, or did nothing about.
    pub(crate) avoided: BTreeSet<TableId>,
    /// What cannot be read, and the way around it.
    pub(crate) detours: Detours,
    /// Zones that were evacuated for space.
    pub(crate) evacuated: Evacuated,
    /// What compactions that run now have to themselves.
    pub(super) claims: Claims,
}

/// Zones that were chosen since the last write-out: what goes out of one makes holes in another, so
/// that choosing them again could go on for ever, and gain nothing.
#[derive(Debug, Default)]
pub(crate) struct Evacuated {
    zones: BTreeSet<u64>,
    /// Where it is under way.
    current: Option<u64>,
    /// Write-outs when the first was chosen.
    write_outs: u64,
}

impl Evacuated {
    /// Lets all be chosen again, if something was written out since.
    pub(crate) fn renew(&mut self, write_outs: u64) {
        debug_assert!(self.write_outs <= write_outs, "counters rise");
        if self.write_outs != write_outs {
            self.write_outs = write_outs;
            self.clear();
        }
    }

    /// True if a zone may be chosen.
    pub(crate) fn allows(&self, addr: u64) -> bool {
        debug_assert!(
            self.current.is_none_or(|zone| self.zones.contains(&zone)),
            "the current zone was chosen"
        );
        self.current == Some(addr) || !self.zones.contains(&addr)
    }

    /// A zone is chosen, if any.
    pub(crate) fn note(&mut self, zones: &[Run]) {
        for zone in zones {
            debug_assert!(zone.len_bytes > 0, "a zone is not empty");
            debug_assert!(self.allows(zone.addr), "a zone is chosen once");
            self.current = Some(zone.addr);
            self.zones.insert(zone.addr);
        }
        debug_assert!(
            self.current.is_none_or(|zone| self.zones.contains(&zone)),
            "the current zone was chosen"
        );
    }

    fn clear(&mut self) {
        self.zones.clear();
        self.current = None;
    }
}

impl Exclusions {
    /// Lets what failed be tried again, and forgets tables that are gone.
    pub(crate) fn forget(&mut self, version: &Version) {
        self.avoided.clear();
        self.evacuated.clear();
        self.detours.forget(version);
    }

    /// Reports whether a table must not go into a compaction that reads it.
    pub(crate) fn stops(&self, table: &TableHandle) -> bool {
        self.avoided.contains(&table.meta().id) || self.detours.is_unreadable(table)
    }

    /// Reports whether anything of a table may go down, as part of a compaction that reads it.
    pub(super) fn lets_down(&self, tree: &TreeVersion, level: usize, table: &TableHandle) -> bool {
        debug_assert_eq!(table.meta().tree, tree.info.id, "a table of the tree");
        debug_assert!(level < LEVELS, "a level of the tree");
        !self.stops(table) && !self.detours.is_held(tree, level, table)
    }

    /// Returns a plan, unless it reads a table that it must not, or meets a claim.
    pub(super) fn allowed(&self, plan: Plan) -> Option<Plan> {
        debug_assert!(plan.inputs().next().is_some(), "a plan has inputs");
        let is_clean = plan.inputs().all(|t| !self.stops(t));
        (is_clean && !self.claims.meet(&plan)).then_some(plan)
    }
}
