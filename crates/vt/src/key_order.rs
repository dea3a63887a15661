//! Brings values back into key order (ADR 0143).
//!
//! Compactions carry value blocks where they are. So a large file that is overwritten at random
//! stays scattered: a read in order is a read of one page for each page. An *order step* mends
//! that for the table with the most scattered bytes:
//!
//! 1. *Measure*: the index of each new table is read once, and its scattered windows are counted
//!    ([`windows`]).
//! 2. *Plan*: the table is written anew in its level, and the extents of its first scattered
//!    windows are evacuated. So their values are written in key order, and all other blocks are
//!    stitched.
//! 3. *Measure again*: a step that gained less than half of what it moved found no long free
//!    extents. Its outputs are given up until something else writes them anew. So each table is
//!    ordered at most a few times, and the work ends.
//!
//! What several levels hold of one key range is merged first (`Pressure::Order`): a window of one
//! table is complete only if no other table has newer values of it.
//!
//! No step takes what others need: one is done only while more zones are free than value blocks
//! keep ([`KeyOrder::room_bytes`]).
//!
//! A step is planned while no other compaction runs. Another may run beside it then, on other keys.
//!
//! When: while the store is idle ([`crate::idle_order`]), and in [`crate::VtEngine::defrag`].

mod windows;

pub(crate) use windows::WINDOW_BYTES;

use crate::VtError;
use crate::compaction::{Compactor, Plan, order_plan, pick_scattered};
use crate::table::FREE_ZONES_PART;
use crate::version::{LEVELS, TableHandle, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{TableId, TreeId};
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::SpaceClass;
use windows::{Scattered, Windows};

/// Free zones beyond those that value blocks keep: streams open some meanwhile.
const SPARE_ZONES: u64 = 2;

/// How scattered the values of each table are, and how they are brought into order.
///
/// Invariant: a table that is in no version is not counted after the next measurement.
pub(crate) struct KeyOrder {
    compactor: Arc<Compactor>,
    /// Bytes of scattered windows, of every table that was measured; 0 of those that were given up.
    scattered: Mutex<BTreeMap<TableId, u64>>,
}

/// What one step may do.
#[derive(Clone, Copy)]
pub(crate) struct StepRules<'a> {
    /// Most bytes of scattered windows that it moves.
    pub(crate) bytes_max: u64,
    /// Reports whether a table with this many scattered bytes is worth a step.
    pub(crate) is_worth: &'a dyn Fn(&TableHandle, u64) -> bool,
}

/// An order step, before and after it was run.
struct OrderStep {
    tree: TreeId,
    level: usize,
    /// The table that is written anew, with its smallest and its largest key.
    input: TableId,
    keys: [Vec<u8>; 2],
    /// All tables of the level, before.
    before: BTreeSet<TableId>,
    /// Bytes of scattered windows in the table.
    scattered_bytes: u64,
    /// Bytes of those that are moved.
    moved_bytes: u64,
}

impl OrderStep {
    /// Reports whether a table of its level has keys of the table that it has written anew. Another
    /// compaction may have put tables beside it meanwhile.
    fn covers(&self, table: &TableMeta) -> bool {
        let [smallest, largest] = &self.keys;
        debug_assert!(smallest <= largest, "a table has keys in order");
        table.smallest <= *largest && *smallest <= table.largest
    }
}

impl KeyOrder {
    /// Returns that of a store in which nothing was measured yet.
    pub(crate) fn new(compactor: &Arc<Compactor>) -> Self {
        Self {
            compactor: Arc::clone(compactor),
            scattered: Mutex::default(),
        }
    }

    /// Returns the bytes of scattered windows in all tables that were measured.
    pub(crate) fn scattered_bytes(&self) -> u64 {
        self.scattered.lock().values().sum()
    }

    /// Does one order step. Returns the bytes of values that were to be moved: 0 if none are worth
    /// it, or there is no room.
    pub(crate) fn order_one(&self, rules: StepRules<'_>) -> Result<u64, VtError> {
        // A step writes the windows, and the index and what it merges beside them.
        let bytes_max = rules.bytes_max.min(self.room_bytes() / 2);
        if self.scattered_bytes() == 0 || bytes_max == 0 {
            return Ok(0);
        }
        let mut step = None;
        self.compactor.compact_sharing(|version| {
            let (made, plan) = self.plan_order(version, bytes_max, rules.is_worth)?.unzip();
            step = made;
            Ok(plan)
        })?;
        let Some(step) = step else { return Ok(0) };
        debug_assert!(
            step.moved_bytes <= bytes_max,
            "a step moves no more than it may"
        );
        self.note_ordered(&step);
        Ok(step.moved_bytes)
    }

    /// Plans a step that moves at most `bytes_max`.
    fn plan_order(
        &self,
        version: &Version,
        bytes_max: u64,
        is_worth: &dyn Fn(&TableHandle, u64) -> bool,
    ) -> Result<Option<(OrderStep, Plan)>, VtError> {
        debug_assert!(bytes_max > 0, "a step moves something");
        let (level, table, found) = loop {
            let scattered = self.scattered.lock().clone();
            let state = self.compactor.scheduler.lock();
            let picked = pick_scattered(version, &scattered, is_worth, &state.exclusions);
            drop(state);
            let Some((level, table)) = picked else {
                return Ok(None);
            };
            match self.windows_of(&table, bytes_max) {
                Ok(found) => break (level, table, found),
                Err(VtError::Closed) => return Err(VtError::Closed),
                // Reads and compactions report it.
                Err(_) => self.note_scattered(table.meta().id, 0),
            }
        };
        if found.extents.is_empty() {
            return Ok(None);
        }
        debug_assert!(
            found.kept_bytes <= found.bytes,
            "moved bytes are scattered ones"
        );
        debug_assert!(
            found.kept_bytes <= bytes_max,
            "a step moves no more than it may"
        );
        let step = OrderStep {
            tree: table.meta().tree,
            level,
            input: table.meta().id,
            keys: [table.meta().smallest.clone(), table.meta().largest.clone()],
            before: level_ids(version, table.meta().tree, level),
            scattered_bytes: found.bytes,
            moved_bytes: found.kept_bytes,
        };
        debug_assert!(
            step.before.contains(&step.input),
            "the table is one of its level"
        );
        let plan = order_plan(version, (level, &table), found.extents);
        Ok(plan.map(|plan| (step, plan)))
    }

    /// Measures what a step has made. Where it gained too little, the tables are given up.
    fn note_ordered(&self, step: &OrderStep) {
        debug_assert!(
            step.moved_bytes <= step.scattered_bytes,
            "moved bytes are scattered ones"
        );
        let version = self.compactor.views.version();
        let after = level_ids(&version, step.tree, step.level);
        let is_made = |t: &TableHandle| {
            let id = t.meta().id;
            after.contains(&id) && !step.before.contains(&id) && step.covers(t.meta())
        };
        let made = version.tables().filter(|(_, t)| is_made(t));
        let measured = made.map(|(_, t)| (t.meta().id, self.scattered_bytes_of(t)));
        let mut measured: BTreeMap<TableId, u64> = measured.collect();
        if after.contains(&step.input) {
            // The step was put off.
            measured.insert(step.input, step.scattered_bytes);
        }
        let left: u64 = measured.values().sum();
        if left > step.scattered_bytes.saturating_sub(step.moved_bytes / 2) {
            measured.values_mut().for_each(|bytes| *bytes = 0);
        }
        self.scattered.lock().extend(measured);
    }

    /// Returns the bytes in free zones that steps may use. Value blocks fill holes, in any order,
    /// once fewer zones are free than one in [`FREE_ZONES_PART`].
    fn room_bytes(&self) -> u64 {
        let zones = self.compactor.volume.zones();
        if zones.fenced().is_some() {
            return 0;
        }
        let usage = zones.usage();
        let kept = usage.zones / FREE_ZONES_PART + SPARE_ZONES;
        let free = usage.zones_free.saturating_sub(kept) * zones.zone_bytes();
        let free = free.saturating_sub(self.compactor.volume.space().promised_bytes());
        debug_assert!(usage.zones_free <= usage.zones, "free zones are zones");
        free.min(self.compactor.space.free_bytes(SpaceClass::Normal))
    }

    /// Measures at most `most` tables that were not measured yet. Returns how many it measured.
    pub(crate) fn measure(&self, most: usize) -> usize {
        let version = self.compactor.views.version();
        let new: Vec<Arc<TableHandle>> = {
            let mut scattered = self.scattered.lock();
            let living: BTreeSet<TableId> = version.tables().map(|(_, t)| t.meta().id).collect();
            scattered.retain(|id, _| living.contains(id));
            let tables = version.tables().map(|(_, t)| t);
            let is_new = |t: &&Arc<TableHandle>| !scattered.contains_key(&t.meta().id);
            tables.filter(is_new).take(most).cloned().collect()
        };
        let mut count = 0;
        for table in new {
            if self.compactor.signals.is_stopped() {
                break;
            }
            self.note_scattered(table.meta().id, self.scattered_bytes_of(&table));
            count += 1;
        }
        debug_assert!(
            count <= version.tables().count(),
            "each table is measured once"
        );
        debug_assert!(count <= most, "no more than asked for");
        count
    }

    fn note_scattered(&self, table: TableId, bytes: u64) {
        self.scattered.lock().insert(table, bytes);
    }

    /// Finds a table's scattered windows, with the extents of the first of them.
    fn windows_of(&self, table: &TableHandle, kept_bytes_max: u64) -> Result<Scattered, VtError> {
        let index = self.compactor.tables.reader(table).index_cursor()?;
        let found = Windows::keeping(kept_bytes_max).of_index(index)?;
        debug_assert!(
            found.kept_bytes <= kept_bytes_max,
            "extents are kept up to a limit"
        );
        Ok(found)
    }

    /// Returns the bytes of a table's scattered windows; 0 if its index cannot be read.
    fn scattered_bytes_of(&self, table: &TableHandle) -> u64 {
        if table.meta().value_bytes == 0 {
            return 0;
        }
        match self.windows_of(table, 0) {
            Ok(found) => {
                debug_assert!(found.extents.is_empty(), "windows are only counted");
                found.bytes
            }
            Err(error) => {
                // Reads and compactions report it.
                tracing::debug!(%error, "the order of a table cannot be measured");
                0
            }
        }
    }
}

/// Returns the numbers of a level's tables.
fn level_ids(version: &Version, tree: TreeId, level: usize) -> BTreeSet<TableId> {
    let tree = version.trees.get(&tree);
    debug_assert!(level < LEVELS, "a level of the tree");
    let tables = tree.map_or(&[][..], |tree| &tree.levels[level].tables);
    tables.iter().map(|t| t.meta().id).collect()
}

#[cfg(test)]
mod tests;
