//! Decides what to compact next. A pure function of a version: it reads nothing and changes
//! nothing, and its plan can be printed.
//!
//! In order:
//! 1. What cannot be read: tables are parted at unreadable blocks, and unreadable tables sink
//!    ([`super::exclusions`]).
//! 2. *Shape*: the level that is most over its target, of any tree. Level 0 counts tables, deeper
//!    levels count bytes, each level having `fanout` times the target of the one above.
//! 3. When the store is idle: tables rich in deletes, then those rich in versions that only dropped
//!    snapshots saw, then tables of value blocks, so that what they hide gives its space back.
//! 4. When space is low: what 3 takes first, then what overlaps the least below it for what it is,
//!    if that is worth it: the less space is left, the more it may cost. Where nobody writes, or a
//!    commit waits: any table with deletes or such versions, then anything that overlaps what is
//!    below it.
//! 5. At last, while no commit waits: tables beside each other that are too many for what they
//!    weigh ([`join`]).
//!
//! All sizes are weights: value blocks, which are carried over and not copied, count for a quarter.
//!
//! One plan takes one table and what it overlaps (of level 0: the oldest few). Where that is more
//! than `input_bytes_max`, it takes a slice: the lower tables up to some key, and of the upper
//! table what is before that key. So the time and the space that a compaction needs are bounded,
//! however wide the range deletes are. Tables that overlap nothing below are moved, not copied;
//! small ones are joined with a small neighbour first, so that few are left for joins.

mod flatten;
mod garbage;
mod join;
mod level0;
mod order;
mod route;
mod sink;

use super::exclusions::Exclusions;
use crate::held::HeldSeqnos;
use crate::options::PickOptions;
use crate::runs::meets_any;
use crate::shape::target;
use crate::version::{LEVELS, Level, TableHandle, TreeVersion, Version};
pub(crate) use flatten::flatten_plan;
pub(crate) use garbage::{garbage_in_place, garbage_plan_below};
use join::pick_join;
use level0::{pick_held, plan_level0};
use order::pick_overlapping_values;
pub(crate) use order::{order_plan, pick_scattered};
use route::Route;
use sink::{pick_part, pick_sinking};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_format::vt_manifest::{Run, TableMeta};

/// What may be rewritten below a table of value blocks, in multiples of its weight, to give back
/// what it hides there when the store is idle.
const VALUES_COST_MAX: u64 = 4;

/// How hard to look for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Only what keeps the shape.
    Shape,
    /// Also what gives space back, since nobody waits.
    Idle,
    /// The same, and values of several levels are merged, before they are brought into key order.
    Order,
    /// Space is low: also what gives back enough for what it costs, the more the less is left.
    Low,
    /// Space is low, and nobody writes: anything that may give space back.
    Space,
    /// The same, and a commit waits for it.
    Room,
}

/// What was seen when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments<'a> {
    /// Held open.
    pub(crate) held: &'a HeldSeqnos,
    /// How many versions tables hold that only dropped snapshots saw, where they hold any.
    pub(crate) released: &'a BTreeMap<TableId, u64>,
}

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
    /// All tables that go in.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<TableHandle>> {
        self.upper.iter().chain(&self.lower)
    }

    /// True if a table owns anything where the plan is to leave nothing.
    pub(crate) fn is_in_evacuated(&self, table: &TableMeta) -> bool {
        is_in(table, &self.evacuate)
    }

    /// What they weigh.
    pub(super) fn input_weight(&self) -> u64 {
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

/// Picks what to do next.
pub(crate) fn pick(
    version: &Version,
    options: &PickOptions,
    moments: &Moments<'_>,
    pressure: Pressure,
    exclusions: &Exclusions,
) -> Option<Plan> {
    #[cfg(test)]
    crate::testing::note_walk();
    let plan = pick_part(version, exclusions)
        .or_else(|| pick_sinking(version, options, exclusions))
        .or_else(|| pick_held(version, options, exclusions))
        .or_else(|| pick_shape(version, options, exclusions));
    let plan = plan.or_else(|| match pressure {
        Pressure::Shape => None,
        Pressure::Idle | Pressure::Order => {
            pick_deletes(version, options, moments, Pressure::Idle, exclusions)
                .or_else(|| pick_superseded(version, moments, Pressure::Idle, exclusions))
                .or_else(|| pick_values(version, options, exclusions))
                .or_else(|| match pressure {
                    Pressure::Order => pick_overlapping_values(version, options, exclusions),
                    _ => None,
                })
        }
        Pressure::Low | Pressure::Space | Pressure::Room => {
            pick_deletes(version, options, moments, pressure, exclusions)
                .or_else(|| pick_superseded(version, moments, pressure, exclusions))
                .or_else(|| pick_overlap(version, options, exclusions))
        }
    });
    let plan = plan.or_else(|| match pressure {
        Pressure::Room => None,
        _ => pick_join(version, options, exclusions),
    });
    debug_assert!(
        plan.as_ref()
            .is_none_or(|p| p.kind == PlanKind::Move || p.inputs().all(|t| !exclusions.stops(t))),
        "a plan avoids what it was told to"
    );
    // Most were not thought of if they met others; the rest waits.
    plan.filter(|plan| !exclusions.claims.meet(plan))
}

/// Picks a table to be taken out of zones, so that their holes become free zones. The zones' other
/// tables follow, one by one. A zone that an unreadable table is in would never be free.
///
/// Paper: VT-trees, FAST 2013, section 3.1 (defragmentation). Differs: only the blocks in the zones
/// are copied, the table's others are stitched.
pub(crate) fn pick_evacuation(
    version: &Version,
    zones: &[Run],
    exclusions: &Exclusions,
) -> Option<Plan> {
    let stays = |zone: &Run| {
        let mut tables = version.tables();
        let zone = std::slice::from_ref(zone);
        tables.any(|(_, t)| exclusions.is_unreadable(t) && is_in(t.meta(), zone))
    };
    let is_any_unreadable = !exclusions.unreadable.is_empty();
    let zones = zones
        .iter()
        .filter(|zone| !is_any_unreadable || !stays(zone));
    let mut zones: Vec<Run> = zones.copied().collect();
    zones.sort_unstable();
    let mut tables = version.tables();
    let (level, table) = tables.find(|(_, t)| !exclusions.stops(t) && is_in(t.meta(), &zones))?;
    let tree = version.trees.get(&table.meta().tree)?;
    let what = (PlanKind::Compact, "evacuate");
    let mut plan = Route::in_place(tree, (level, table), what, exclusions);
    plan.evacuate = zones.into();
    Some(plan)
}

/// Reports whether a table owns anything in one of these extents, which are sorted and apart.
pub(crate) fn is_in(table: &TableMeta, zones: &[Run]) -> bool {
    !zones.is_empty() && table.runs.iter().any(|run| meets_any(zones, run))
}

/// The level that is most over its target.
fn pick_shape(version: &Version, options: &PickOptions, exclusions: &Exclusions) -> Option<Plan> {
    let mut due: Vec<(u64, &TreeVersion, usize)> = Vec::new();
    for tree in version.trees.values() {
        for n in 0..LEVELS {
            let (tables, bytes) = due_of(tree, n, exclusions);
            // In thousandths of the target, so that levels compare without floating point.
            let score = if n == 0 {
                let trigger = u64::try_from(options.level0_tables.max(1)).unwrap_or(u64::MAX);
                tables * 1000 / trigger
            } else {
                let whole = u128::from(bytes) * 1000 / u128::from(target(options, n).max(1));
                u64::try_from(whole).unwrap_or(u64::MAX)
            };
            let is_due = score > 1000 || (n == 0 && score == 1000);
            if is_due && n + 1 < LEVELS {
                due.push((score, tree, n));
            }
        }
    }
    due.sort_by_key(|(score, tree, n)| (std::cmp::Reverse(*score), tree.info.id, *n));
    // Trees whose level 0 waits for others to end: nothing else begins that it would have to wait
    // for.
    let mut waiting = Vec::new();
    due.into_iter().find_map(|(_, tree, n)| {
        if n == 0 {
            let plan = plan_level0(tree, options, "shape", exclusions);
            if plan.is_none() && !exclusions.claims.is_empty() {
                waiting.push(tree.info.id);
            }
            plan
        } else if n == 1 && waiting.contains(&tree.info.id) {
            None
        } else {
            if let Some(plan) = move_down(tree, n, options, exclusions) {
                return Some(plan);
            }
            let table = cheapest(tree, n, exclusions, |_| true)?;
            Some(Route::below(tree, n, "shape", exclusions).down(table, options))
        }
    })
}

/// Tables of a level that could go down and do not yet, and their bytes.
fn due_of(tree: &TreeVersion, level: usize, exclusions: &Exclusions) -> (u64, u64) {
    let all = &tree.levels[level];
    let (mut tables, mut bytes) = (all.tables.len() as u64, all.weight);
    let claims = &exclusions.claims;
    if exclusions.unreadable.is_empty() && claims.is_empty() {
        return (tables, bytes);
    }
    for table in &all.tables {
        let is_stuck = exclusions.is_unreadable(table) || exclusions.is_held(tree, level, table);
        if is_stuck || claims.takes_down(tree.info.id, level, table) {
            tables -= 1;
            bytes -= table.weight();
        }
    }
    (tables, bytes)
}

/// Of a level over its target: the tables that overlap nothing in the next, as many as are too
/// many.
fn move_down(
    tree: &TreeVersion,
    level: usize,
    options: &PickOptions,
    exclusions: &Exclusions,
) -> Option<Plan> {
    let (_, bytes) = due_of(tree, level, exclusions);
    let mut excess = bytes.saturating_sub(target(options, level));
    let below = &tree.levels[level + 1];
    let mut upper = Vec::new();
    for table in &tree.levels[level].tables {
        let end = end_of(table.meta());
        let is_free = below
            .overlapping(&table.meta().smallest, Some(&end))
            .is_empty();
        let may_go = !exclusions.stops(table) && !exclusions.claims.hinder(tree, level, table);
        if is_free && is_large(table, options) && may_go {
            upper.push(Arc::clone(table));
            excess = excess.saturating_sub(table.weight());
        }
        if excess == 0 {
            break;
        }
    }
    let route = Route::below(tree, level, "shape", exclusions);
    (!upper.is_empty()).then(|| route.plan(PlanKind::Move, upper, Vec::new()))
}

/// True if so many of a table's entries make it worth a compaction.
const fn are_many(count: u64, meta: &TableMeta, pressure: Pressure) -> bool {
    let is_asked_for = matches!(pressure, Pressure::Space | Pressure::Room);
    count > 0 && (is_asked_for || count.saturating_mul(8) >= meta.entry_count)
}

/// The table with the most versions that only dropped snapshots saw. It is written anew where it
/// is, and holds none afterwards.
fn pick_superseded(
    version: &Version,
    moments: &Moments<'_>,
    pressure: Pressure,
    exclusions: &Exclusions,
) -> Option<Plan> {
    if moments.released.is_empty() {
        return None;
    }
    let count = |t: &TableHandle| moments.released.get(&t.meta().id).copied().unwrap_or(0);
    let (level, table) = version
        .tables()
        .filter(|(_, t)| are_many(count(t), t.meta(), pressure) && !exclusions.stops(t))
        .filter(|(level, t)| {
            let tree = version.trees.get(&t.meta().tree);
            tree.is_none_or(|tree| !exclusions.claims.hinder(tree, *level, t))
        })
        .max_by_key(|(_, t)| (count(t), t.meta().id))?;
    let tree = version.trees.get(&table.meta().tree)?;
    let what = (PlanKind::Compact, "superseded");
    Some(Route::in_place(tree, (level, table), what, exclusions))
}

/// A table whose deletes can vanish or go one level down.
fn pick_deletes(
    version: &Version,
    options: &PickOptions,
    moments: &Moments<'_>,
    pressure: Pressure,
    exclusions: &Exclusions,
) -> Option<Plan> {
    let is_rich = |meta: &TableMeta| {
        are_many(meta.delete_count, meta, pressure) || meta.range_delete_count > 0
    };
    for tree in version.trees.values() {
        let is_seen = |meta: &TableMeta| {
            let keys = (meta.smallest.as_slice(), meta.largest.as_slice());
            let oldest = moments.held.oldest_of(tree.info.id, keys);
            oldest.is_some_and(|oldest| oldest < meta.max_seqno)
        };
        let in_level0 = tree.levels[0].tables.iter().any(|t| is_rich(t.meta()));
        if in_level0 && let Some(plan) = plan_level0(tree, options, "deletes", exclusions) {
            return Some(as_copy(plan));
        }
        for n in 1..LEVELS {
            let may_go = |t: &TableHandle| {
                // Below a branch is its parent: deletes stay in its deepest level.
                let may_vanish = || !tree.is_branch() && !is_seen(t.meta());
                is_rich(t.meta()) && (has_below(tree, n, t.meta()) || may_vanish())
            };
            let Some(table) = cheapest(tree, n, exclusions, may_go) else {
                continue;
            };
            if !has_below(tree, n, table.meta()) {
                let what = (PlanKind::Compact, "deletes");
                return Some(Route::in_place(tree, (n, table), what, exclusions));
            }
            return Some(Route::below(tree, n, "deletes", exclusions).down(table, options));
        }
    }
    None
}

/// Moved tables keep their deletes, so that a plan which is about deletes copies.
fn as_copy(plan: Plan) -> Plan {
    Plan {
        kind: PlanKind::Compact,
        ..plan
    }
}

/// A table of value blocks that overlaps not too much of what is below: what it hides there gives
/// its space back, for the price of index entries.
fn pick_values(version: &Version, options: &PickOptions, exclusions: &Exclusions) -> Option<Plan> {
    let is_cheap =
        |plan: &Plan| weight(&plan.lower) <= weight(&plan.upper).saturating_mul(VALUES_COST_MAX);
    let has_values = |t: &TableHandle| t.meta().value_bytes >= t.owned_bytes() / 2;
    for tree in version.trees.values() {
        if tree.levels[0].tables.iter().any(|t| has_values(t))
            && let Some(plan) = plan_level0(tree, options, "values", exclusions)
            && is_cheap(&plan)
        {
            return Some(plan);
        }
        for n in 1..LEVELS - 1 {
            let may_go = |t: &TableHandle| has_values(t) && has_below(tree, n, t.meta());
            let plan = cheapest(tree, n, exclusions, may_go)
                .map(|table| Route::below(tree, n, "values", exclusions).down(table, options));
            if let Some(plan) = plan.filter(is_cheap) {
                return Some(plan);
            }
        }
    }
    None
}

/// What overlaps the least below it for what it is: what it hides there gives its space back.
fn pick_overlap(version: &Version, options: &PickOptions, exclusions: &Exclusions) -> Option<Plan> {
    let plans = version.trees.values().flat_map(|tree| {
        let level0 = match tree.levels[0].tables.is_empty() {
            true => None,
            false => plan_level0(tree, options, "space", exclusions),
        };
        let deeper = (1..LEVELS - 1).filter_map(move |n| {
            let overlaps = |t: &TableHandle| has_below(tree, n, t.meta());
            let table = cheapest(tree, n, exclusions, overlaps)?;
            Some(Route::below(tree, n, "space", exclusions).down(table, options))
        });
        let plans = level0.into_iter().chain(deeper);
        plans.map(|plan| (cost(tree, &plan.upper, plan.to_level), plan))
    });
    let (cost, plan) = plans.min_by_key(|(cost, _)| *cost)?;
    (cost / 1000 <= u128::from(options.cost_max)).then_some(plan)
}

/// What tables weigh together.
fn weight(tables: &[Arc<TableHandle>]) -> u64 {
    tables.iter().map(|t| t.weight()).sum()
}

/// What is to be rewritten in a level, at once or by and by, for tables that come down to it; in
/// thousandths of what these weigh.
fn cost(tree: &TreeVersion, upper: &[Arc<TableHandle>], level: usize) -> u128 {
    let below = tree.levels.get(level);
    let lower = below.zip(bounds(upper)).map_or(0, |(below, (start, end))| {
        weight(&below.tables[below.overlapping(&start, Some(&end))])
    });
    u128::from(lower) * 1000 / u128::from(weight(upper).max(1))
}

/// True if any deeper level has something in the table's range.
fn has_below(tree: &TreeVersion, level: usize, meta: &TableMeta) -> bool {
    let end = end_of(meta);
    tree.levels[level + 1..]
        .iter()
        .any(|deeper| !deeper.overlapping(&meta.smallest, Some(&end)).is_empty())
}

/// Of the tables that may go: the one with the least to rewrite below for what it carries.
fn cheapest<'a>(
    tree: &'a TreeVersion,
    level: usize,
    exclusions: &Exclusions,
    may_go: impl Fn(&TableHandle) -> bool,
) -> Option<&'a Arc<TableHandle>> {
    let below = tree.levels.get(level + 1);
    let cost = |t: &TableHandle| {
        let end = end_of(t.meta());
        let touched = below.map_or(0..0, |b| b.overlapping(&t.meta().smallest, Some(&end)));
        let tables = below.map_or(&[][..], |b| &b.tables[touched]);
        let bytes = weight(tables);
        let is_avoided = tables
            .iter()
            .any(|t| exclusions.avoided.contains(&t.meta().id));
        let ratio = u128::from(bytes) * 1000 / u128::from(t.weight().max(1));
        (is_avoided, ratio)
    };
    tree.levels[level]
        .tables
        .iter()
        .filter(|t| !exclusions.stops(t) && may_go(t) && !exclusions.is_held(tree, level, t))
        .filter(|t| !exclusions.claims.hinder(tree, level, t))
        .map(|t| (cost(t), t))
        .filter(|((is_avoided, _), _)| !is_avoided)
        .min_by_key(|((_, ratio), t)| (*ratio, t.meta().id))
        .map(|(_, t)| t)
}

fn is_large(table: &TableHandle, options: &PickOptions) -> bool {
    table.weight() >= options.table_bytes / 2
}

/// Adds the tables beside a range of them that are small, for joining.
fn with_small_neighbours(
    level: &Level,
    mut range: std::ops::Range<usize>,
    options: &PickOptions,
) -> std::ops::Range<usize> {
    if range.start > 0 && !is_large(&level.tables[range.start - 1], options) {
        range.start -= 1;
    }
    if range.end < level.tables.len() && !is_large(&level.tables[range.end], options) {
        range.end += 1;
    }
    range
}

/// First key of the tables, and a key after their last.
fn bounds(tables: &[Arc<TableHandle>]) -> Option<(Vec<u8>, Vec<u8>)> {
    let smallest = tables.iter().map(|t| &t.meta().smallest).min()?;
    let end = tables.iter().map(|t| end_of(t.meta())).max()?;
    Some((smallest.clone(), end))
}

/// The first key after a table's range.
pub(crate) fn end_of(meta: &TableMeta) -> Vec<u8> {
    let mut end = meta.largest.clone();
    if !meta.largest_excluded {
        end.push(0);
    }
    end
}

fn are_disjoint(tables: &[Arc<TableHandle>]) -> bool {
    let mut by_key: Vec<&TableMeta> = tables.iter().map(|t| &**t.meta()).collect();
    by_key.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    by_key.windows(2).all(|pair| pair[0].is_before(pair[1]))
}

fn without(exclusions: &Exclusions, plan: Plan) -> Option<Plan> {
    let is_clean = plan.inputs().all(|t| !exclusions.stops(t));
    (is_clean && !exclusions.claims.meet(&plan)).then_some(plan)
}

#[cfg(test)]
mod tests;
