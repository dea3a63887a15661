//! Compaction: tables of one level become tables of the next.
//!
//! Plan, run, install: `pick` decides what to do from a version alone; running reads the inputs'
//! indexes, plans the steps ([`stitch`]), and writes new tables to free space; one edit installs
//! them. Writers and readers go on meanwhile.
//!
//! Paper: Shetty et al., VT-trees, FAST 2013, sections 2.2 and 3.1. Differs: levels of disjoint
//! tables instead of whole-level tables, so that one compaction is bounded; filters belong to
//! blocks (ADR 0003) and are stitched along.

mod begin;
mod claims;
mod detours;
mod distill;
mod exclusions;
mod fragments;
mod garbage;
mod held_keys;
mod inputs;
mod lazy;
mod level_outputs;
mod made;
mod moving;
mod picker;
mod run;
mod scheduler;
mod stitch;
mod superseded_scan;

pub(crate) use distill::{DistillRules, Distilled, distill};
pub(crate) use fragments::{Fragments, Hidden};
pub(crate) use lazy::Level0Debt;
pub(crate) use moving::{MovedTable, Placing};
pub(crate) use picker::{Plan, Pressure, end_of, is_in, order_plan, pick_scattered};
pub(crate) use run::is_damage;
pub(crate) use scheduler::Scheduler;
pub(crate) use stitch::{BlockInfo, Piece, Step, StitchRules, plan_steps};

use crate::counters::VtCounters;
use crate::gate::Gate;
use crate::install::VersionLog;
use crate::options::VtOptions;
use crate::pace::Pace;
use crate::signals::Signals;
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::space::SpaceLedger;
use crate::tables::Tables;
use crate::view::Views;
use std::sync::Arc;
use stitch_base::sync::Apart;
use stitch_volume::Volume;

/// Compacts the tables of a store.
///
/// Invariants:
/// - no two compactions at once have a table in common, or write keys that overlap in one level;
/// - what a compaction may write is kept for it in the ledger from its begin to its end;
/// - a failure that is not want of space, or damage that can be gone around, closes the gate.
pub(crate) struct Compactor {
    pub(crate) volume: Arc<Volume>,
    pub(crate) options: VtOptions,
    pub(crate) sizing: Arc<Sizing>,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    /// Moments whose versions stay.
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) views: Arc<Views>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) versions: Arc<VersionLog>,
    pub(crate) space: Arc<SpaceLedger>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pace: Arc<Pace>,
    /// What reads pay for level 0.
    pub(crate) level0: Arc<Level0Debt>,
    /// The compactions that run now, and what they go around.
    pub(crate) scheduler: Scheduler,
}
