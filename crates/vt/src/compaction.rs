//! Compaction: tables of one level become tables of the next.
//!
//! Plan, run, install: `pick` decides what to do from a version alone; running reads the inputs'
//! indexes, plans the steps ([`stitch`]), and writes new tables to free space; one edit installs
//! them. Writers and readers go on meanwhile.
//!
//! Paper: Shetty et al., VT-trees, FAST 2013, sections 2.2 and 3.1. Differs: levels of disjoint
//! tables in place of whole-level tables, so that one compaction is bounded; filters belong to
//! blocks (ADR 0003) and are stitched along.

mod begin;
mod claims;
mod distill;
mod fragments;
mod holds;
mod inputs;
mod lazy;
mod obstacles;
mod part;
mod picker;
mod probe;
mod run;
mod sinks;
mod stitch;
mod turns;

pub(crate) use distill::{DistillRules, Kept, distill};
pub(crate) use fragments::Fragments;
pub(crate) use lazy::Level0Debt;
pub(crate) use picker::{
    PickOptions, Plan, Pressure, debt, end_of, is_in, order_plan, pick_scattered,
};
pub(crate) use stitch::{BlockInfo, Piece, Step, StitchRules, plan_steps};
pub(crate) use turns::{TURNS_MAX, Turns};
