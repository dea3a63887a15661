//! A compaction to be run, and its text.

use super::tables::weight;
use crate::runs::meets_any;
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_format::vt_manifest::{Run, TableMeta};

/// What a compaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanKind {
    /// The tables change their level, and nothing is read or written.
    Move,
    /// The tables are merged and stitched into new ones.
    Compact,
    /// The table is parted at its unreadable blocks, and nothing of it is read.
    Part,
    /// The tables become one table of their level, stitched wherever they can be.
    Join,
    /// Scattered values of the table are written anew in key order, all else is stitched.
    Order,
}

/// A compaction to be run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) tree: TreeId,
    pub(crate) kind: PlanKind,
    /// Why, for people.
    pub(crate) reason: &'static str,
    pub(crate) from_level: usize,
    pub(crate) to_level: usize,
    /// Tables of `from_level`; of level 0, newest first.
    pub(crate) upper: Vec<Arc<TableHandle>>,
    /// Tables of `to_level`, by key; none if it is the same level.
    pub(crate) lower: Vec<Arc<TableHandle>>,
    /// Unreadable tables that are older than `upper`: what lies in their ranges stays above them.
    pub(crate) around: Vec<Arc<TableHandle>>,
    /// Of a slice: keys from this one on stay in `from_level`. Then there is one upper table.
    pub(crate) until: Option<Vec<u8>>,
    /// Of an evacuation or an order plan, by address: no block may stay in these extents of the
    /// device; all others are stitched.
    pub(crate) evacuate: Arc<[Run]>,
    /// Addresses of data blocks that are merged, though nothing in the index asks for it.
    pub(crate) merged_blocks: Arc<BTreeSet<u64>>,
}

impl Plan {
    /// A plan that writes tables of a level anew where they are.
    pub(in crate::compaction) fn within(
        tree: &TreeVersion,
        level: usize,
        (kind, reason): (PlanKind, &'static str),
        upper: Vec<Arc<TableHandle>>,
    ) -> Self {
        debug_assert!(!upper.is_empty(), "a plan has inputs");
        debug_assert!(
            upper.iter().all(|table| table.meta().tree == tree.info.id),
            "tables of the tree"
        );
        Self {
            tree: tree.info.id,
            kind,
            reason,
            from_level: level,
            to_level: level,
            upper,
            lower: Vec::new(),
            around: Vec::new(),
            until: None,
            evacuate: Arc::default(),
            merged_blocks: Arc::default(),
        }
    }

    /// Panics unless its parts fit each other.
    pub(in crate::compaction) fn assert_invariants(&self) {
        let goes_down = self.to_level > self.from_level;
        debug_assert!(!self.upper.is_empty(), "a plan has inputs");
        debug_assert!(self.to_level < LEVELS, "a level of the tree");
        debug_assert!(
            self.inputs()
                .chain(&self.around)
                .all(|table| table.meta().tree == self.tree),
            "a plan is of one tree"
        );
        debug_assert!(
            self.lower
                .is_sorted_by(|table, next| table.meta().is_before(next.meta())),
            "lower tables are in key order"
        );
        debug_assert!(
            self.until
                .as_ref()
                .is_none_or(|until| self.upper[0].meta().smallest < *until),
            "something of a slice goes down"
        );
        debug_assert!(
            self.until
                .as_ref()
                .is_none_or(|until| self.upper[0].meta().reaches(until)),
            "something of a slice stays"
        );
        debug_assert!(
            !goes_down || self.merged_blocks.is_empty(),
            "blocks with garbage are merged where they are"
        );
        debug_assert!(
            self.to_level <= self.from_level + 1,
            "tables go down one level at a time"
        );
        debug_assert!(
            goes_down || (self.to_level == self.from_level && self.lower.is_empty()),
            "a plan within a level has no lower tables"
        );
        debug_assert!(
            self.until.is_none() || self.upper.len() == 1,
            "a slice is of one table"
        );
        debug_assert!(
            self.kind != PlanKind::Move || (self.lower.is_empty() && self.around.is_empty()),
            "a move reads nothing"
        );
        debug_assert!(
            self.evacuate
                .is_sorted_by(|extent, next| extent.end() <= next.addr),
            "extents are in order and apart"
        );
    }

    /// Reports whether the inputs are tables of a tree, in the levels that the plan names.
    pub(in crate::compaction) fn is_of(&self, tree: &TreeVersion) -> bool {
        debug_assert_eq!(tree.info.id, self.tree, "a plan is of one tree");
        let has = |level: usize, table: &Arc<TableHandle>| match level {
            0 => tree.levels[0]
                .tables
                .iter()
                .any(|own| Arc::ptr_eq(own, table)),
            _ => {
                let own = tree.levels[level].holding(&table.meta().smallest);
                own.is_some_and(|own| Arc::ptr_eq(own, table))
            }
        };
        self.upper.iter().all(|table| has(self.from_level, table))
            && self.lower.iter().all(|table| has(self.to_level, table))
    }
    /// All tables that the plan removes.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<TableHandle>> {
        self.upper.iter().chain(&self.lower)
    }

    /// Reports whether a table owns anything where the plan must leave nothing.
    pub(crate) fn is_in_evacuated(&self, table: &TableMeta) -> bool {
        is_in(table, &self.evacuate)
    }

    /// The weight of all inputs.
    pub(in crate::compaction) fn input_weight(&self) -> u64 {
        weight(&self.upper) + weight(&self.lower)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PlanKind::Move => "move",
            PlanKind::Compact => "compact",
            PlanKind::Part => "part",
            PlanKind::Join => "join",
            PlanKind::Order => "order",
        };
        write!(f, "{kind} tree {} L{}", self.tree, self.from_level)?;
        for table in &self.upper {
            write!(f, " {}", table.meta().id)?;
        }
        if !self.lower.is_empty() {
            write!(f, " + L{}", self.to_level)?;
            for table in &self.lower {
                write!(f, " {}", table.meta().id)?;
            }
        }
        write!(f, " -> L{}", self.to_level)?;
        if !self.around.is_empty() {
            write!(f, " around")?;
            for table in &self.around {
                write!(f, " {}", table.meta().id)?;
            }
        }
        if let Some(until) = &self.until {
            write!(f, " until {}", until.escape_ascii())?;
        }
        if self.kind == PlanKind::Order {
            write!(f, " {} extents", self.evacuate.len())?;
        } else {
            for zone in self.evacuate.iter() {
                write!(f, " out of {}..{}", zone.addr, zone.end())?;
            }
        }
        write!(f, " ({})", self.reason)
    }
}

/// Reports whether a table owns anything in one of these extents, which are sorted and apart.
pub(crate) fn is_in(table: &TableMeta, zones: &[Run]) -> bool {
    !zones.is_empty() && table.runs.iter().any(|run| meets_any(zones, run))
}
