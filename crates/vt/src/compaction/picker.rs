//! Decides what to compact next. A pure function of a version: it reads nothing and changes
//! nothing, and its plan can be printed.
//!
//! The picker asks *sources* in this order, those that are due at the given pressure. Each has
//! candidates with a score. The plan of its best candidate that meets no claim
//! ([`super::claims`]) is taken.
//!
//! ```text
//! source            due               candidates                        best first
//! detours           always            see `super::detours`
//! temporary         always            temporary trees with a full       tree
//!                                     level 0
//! shape             always            levels over their target;         the most over;
//!                                     in a level its tables             the least to rewrite
//! deletes           not Shape         tables rich in deletes, or        tree, level,
//!                                     with range deletes                the least to rewrite
//! superseded        not Shape         tables rich in versions that      the most such versions
//!                                     only dropped snapshots saw
//! values            Idle, Order       tables of value blocks, above     tree, level,
//!                                     others, that cost little          the least to rewrite
//! order             Order             values above others, if they      tree, level,
//!                                     pay for being merged              the least to rewrite
//! space             Low, Space, Room  tables above others, if they      the least to rewrite,
//!                                     are worth their cost              of all levels
//! join              not Room          levels with too many tables       tree, level,
//!                                     for their weight                  the most tables
//! ```
//!
//! - Level 0 counts tables, deeper levels weigh them. Each has `fanout` times the target of the
//!   level above. Value blocks, which are carried over and not copied, weigh a quarter.
//! - A *rich* table has one such entry in eight; at `Space` and `Room`, any.
//! - At `Low`, the less space is left, the more a plan for space may cost:
//!   `PickOptions::cost_max`.
//!
//! One plan takes one table and what it overlaps (of level 0: the oldest few). Where that is more
//! than `input_bytes_max`, it takes a slice: the lower tables up to some key, and of the upper
//! table what is before that key. So the time and the space that a compaction needs are bounded,
//! however wide the range deletes are. Tables that overlap nothing below are moved, not copied;
//! small ones are joined with a small neighbour first, so that few are left for joins.

mod deletes;
mod evacuation;
mod flatten;
mod garbage;
mod join;
mod level0;
mod order;
mod plan;
mod route;
mod shape;
mod space;
mod tables;
mod temporary;
mod values;

use super::detours::pick_detour;
use super::exclusions::Exclusions;
use crate::held::HeldSeqnos;
use crate::options::PickOptions;
use crate::version::{LEVELS, TreeVersion, Version};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use stitch_base::TableId;

pub(crate) use evacuation::pick_evacuation;
pub(crate) use flatten::flatten_plan;
pub(crate) use garbage::{garbage_in_place, garbage_plan_below};
pub(super) use level0::plan_level0;
pub(crate) use order::{order_plan, pick_scattered};
pub(crate) use plan::{Plan, PlanKind, is_in};
pub(super) use route::Route;
pub(crate) use tables::end_of;
pub(super) use tables::{are_disjoint, bounds};
pub(crate) use temporary::run_plan;

/// How hard to look for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Only what keeps the shape.
    Shape,
    /// Also what gives space back, since the store is idle.
    Idle,
    /// The same, and values of several levels are merged, before they are brought into key order.
    Order,
    /// Space is low: also what gives back enough for what it costs, the more the less is left.
    Low,
    /// Space is low, and writes have paused: anything that may give space back.
    Space,
    /// The same, and a commit waits for it.
    Room,
}

/// The versions that snapshots see, or saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments<'a> {
    /// Held open.
    pub(crate) held: &'a HeldSeqnos,
    /// How many versions tables hold that only dropped snapshots saw, where they hold any.
    pub(crate) released: &'a BTreeMap<TableId, u64>,
}

/// The rules for every plan.
#[derive(Clone, Copy)]
pub(crate) struct PickRules<'a> {
    pub(crate) options: &'a PickOptions,
    pub(crate) exclusions: &'a Exclusions,
}

impl<'a> PickRules<'a> {
    pub(crate) const fn new(options: &'a PickOptions, exclusions: &'a Exclusions) -> Self {
        Self {
            options,
            exclusions,
        }
    }

    /// The way from a level of a tree to the next.
    pub(super) const fn route(
        self,
        tree: &'a TreeVersion,
        level: usize,
        reason: &'static str,
    ) -> Route<'a> {
        debug_assert!(level < LEVELS, "a level of the tree");
        Route {
            tree,
            level,
            reason,
            rules: self,
        }
    }
}

/// The state of a store that the picker decides from.
#[derive(Clone, Copy)]
pub(crate) struct PickInput<'a> {
    pub(crate) version: &'a Version,
    pub(crate) moments: Moments<'a>,
    pub(crate) pressure: Pressure,
    pub(crate) rules: PickRules<'a>,
}

impl<'a> PickInput<'a> {
    /// The trees, by id.
    pub(super) fn trees(&self) -> impl Iterator<Item = &'a TreeVersion> + use<'a> {
        self.version.trees.values().map(|tree| &**tree)
    }

    /// The levels of each tree, from level 0.
    pub(super) fn levels(&self) -> impl Iterator<Item = (&'a TreeVersion, usize)> + use<'a> {
        self.trees()
            .flat_map(|tree| (0..LEVELS).map(move |n| (tree, n)))
    }
}

/// The pressures at which a source is due, and the source.
type PlanSource = (RangeInclusive<Pressure>, fn(&PickInput<'_>) -> Option<Plan>);

/// All sources, the most urgent first.
const SOURCES: [PlanSource; 9] = [
    (Pressure::Shape..=Pressure::Room, pick_detour),
    (Pressure::Shape..=Pressure::Room, temporary::pick_temporary),
    (Pressure::Shape..=Pressure::Room, shape::pick_shape),
    (Pressure::Idle..=Pressure::Room, deletes::pick_deletes),
    (Pressure::Idle..=Pressure::Room, deletes::pick_superseded),
    (Pressure::Idle..=Pressure::Order, values::pick_values),
    (
        Pressure::Order..=Pressure::Order,
        order::pick_overlapping_values,
    ),
    (Pressure::Low..=Pressure::Room, space::pick_overlap),
    (Pressure::Shape..=Pressure::Space, join::pick_join),
];

/// Picks what to do next.
pub(crate) fn pick(input: &PickInput<'_>) -> Option<Plan> {
    #[cfg(test)]
    crate::testing::note_walk();
    let due = SOURCES
        .iter()
        .filter(|(pressures, _)| pressures.contains(&input.pressure));
    let plan = due.filter_map(|(_, pick)| pick(input)).next()?;
    let exclusions = input.rules.exclusions;
    debug_assert!(
        input
            .version
            .trees
            .get(&plan.tree)
            .is_some_and(|tree| plan.is_of(tree)),
        "the inputs are tables of the version"
    );
    debug_assert!(
        plan.kind == PlanKind::Move || plan.inputs().all(|t| !exclusions.stops(t)),
        "a plan takes no table that is to be avoided"
    );
    debug_assert!(!exclusions.claims.meet(&plan), "a plan meets no claim");
    Some(plan)
}

#[cfg(test)]
mod tests;
