//! The way around what cannot be read. The picker and the compactor know unreadable data only by
//! [`Detours`].
//!
//! A data block that cannot be read keeps its place between what is newer and what is older:
//!
//! 1. The table that it is in is *parted*: the block gets a table of its own, by reference, and
//!    what is before and after it other tables.
//! 2. The block's table is an *unreadable table*: never merged, only moved. Compactions go around
//!    it. What is newer and lies in its range is *held* in the level above, in tables of its own;
//!    all else goes down.
//! 3. Unreadable tables *sink* as deep as they can, what is older going down before them. So what
//!    is held lies deep too, and the levels above keep their shape.
//! 4. One that a newer range delete hides whole is dropped unread.
//!
//! A table whose root, index or range deletes cannot be read is an unreadable table as it is.
//!
//! ```text
//! L1            [a........k]                    [a..c)   [f..k]      go down to L2
//! L2   [a..b]  [U: c..e]  [g......m]    ->   L1   [c..e] held; U stays; L2 is merged beside U
//! ```
//!
//! Nothing of this is stored: a store that is opened again finds it out again. So a read error that
//! passes costs nothing for good (ADR 0211).

mod held;
mod part;
mod plans;
mod probe;

use super::fragments::Fragments;
use super::picker::{Plan, PlanKind, is_in};
use crate::version::{TableHandle, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::{Run, TableMeta};

pub(super) use plans::pick_detour;

/// The unreadable data that was met.
///
/// - Tables that are gone stay until [`Detours::forget`]. Their numbers are not given again.
#[derive(Debug, Default)]
pub(crate) struct Detours {
    /// Tables that can only be moved.
    unreadable: BTreeSet<TableId>,
    /// Tables that have unreadable blocks among others.
    to_part: BTreeSet<TableId>,
    /// Unreadable data blocks: the table that each was written for, and its address.
    blocks: BTreeSet<(TableId, u64)>,
    /// Held tables that were found not to hide what they are held by.
    tried: BTreeSet<TableId>,
}

impl Detours {
    /// Reports whether no table is known to have anything unreadable.
    pub(super) fn is_empty(&self) -> bool {
        self.unreadable.is_empty() && self.to_part.is_empty()
    }

    /// Lets what failed be tried again, and forgets tables that are gone.
    pub(super) fn forget(&mut self, version: &Version) {
        self.tried.clear();
        if self.is_empty() {
            return;
        }
        let living: BTreeSet<TableId> = version.tables().map(|(_, t)| t.meta().id).collect();
        self.unreadable.retain(|id| living.contains(id));
        self.to_part.retain(|id| living.contains(id));
    }

    /// Notes a table of which nothing can be read. Returns false if it was known.
    pub(super) fn add_table(&mut self, table: TableId) -> bool {
        self.unreadable.insert(table)
    }

    /// Notes a table that has unreadable blocks among others. Returns false if it was known.
    pub(super) fn part_later(&mut self, table: TableId) -> bool {
        debug_assert!(
            !self.unreadable.contains(&table),
            "an unreadable table is not parted"
        );
        self.to_part.insert(table)
    }

    /// Notes a data block that cannot be read. Returns false if it was known.
    fn add_block(&mut self, block: &IndexEntry) -> bool {
        debug_assert!(
            block.first <= block.last,
            "the keys of a block are in order"
        );
        self.blocks.insert((block.origin, block.block.addr))
    }

    /// Reports whether a data block is known to be unreadable.
    fn has_block(&self, block: &IndexEntry) -> bool {
        debug_assert!(
            block.first <= block.last,
            "the keys of a block are in order"
        );
        self.blocks.contains(&(block.origin, block.block.addr))
    }

    /// Notes that nothing of a plan's tables could go down.
    pub(super) fn note_futile(&mut self, plan: &Plan) {
        debug_assert!(
            !plan.around.is_empty(),
            "tables are held by unreadable ones"
        );
        debug_assert!(
            plan.upper.iter().all(|table| !self.is_unreadable(table)),
            "an unreadable table is only moved"
        );
        let upper = plan.upper.iter().map(|table| table.meta().id);
        self.tried.extend(upper);
    }

    /// Notes that a plan is installed, and which of its tables nothing can be read of.
    pub(super) fn note_installed(&mut self, plan: &Plan, unreadable: Vec<TableId>) {
        debug_assert!(
            unreadable.is_empty() || plan.kind == PlanKind::Part,
            "only parts are never read"
        );
        debug_assert!(
            unreadable
                .iter()
                .all(|table| !self.unreadable.contains(table)),
            "numbers of tables are not given again"
        );
        self.unreadable.extend(unreadable);
        if plan.kind == PlanKind::Part {
            for table in &plan.upper {
                self.to_part.remove(&table.meta().id);
            }
        }
    }

    /// Reports whether a table can only be moved.
    pub(crate) fn is_unreadable(&self, table: &TableHandle) -> bool {
        !self.unreadable.is_empty() && self.unreadable.contains(&table.meta().id)
    }

    /// Reports whether anything of a table is known to be unreadable.
    pub(super) fn has_unreadable(&self, table: &TableHandle) -> bool {
        self.is_unreadable(table) || self.to_part.contains(&table.meta().id)
    }

    /// Reports whether a table that has anything unreadable owns something in a part of the device.
    pub(super) fn are_in(&self, version: &Version, part: Run) -> bool {
        debug_assert!(part.len_bytes > 0, "a part of the volume is not empty");
        let mut tables = version.tables();
        !self.is_empty() && tables.any(|(_, t)| self.has_unreadable(t) && is_in(t.meta(), &[part]))
    }

    /// Reports whether a table that cannot be rewritten owns something in a zone.
    pub(super) fn stay_in(&self, version: &Version, zone: Run) -> bool {
        debug_assert!(zone.len_bytes > 0, "a zone is not empty");
        let mut tables = version.tables();
        !self.unreadable.is_empty()
            && tables.any(|(_, t)| self.is_unreadable(t) && is_in(t.meta(), &[zone]))
    }
}

/// Splits the unreadable tables that a plan goes around: those that newer range deletes hide from
/// all readers, and the others.
pub(super) fn split_hidden(
    around: &[Arc<TableHandle>],
    range_deletes: &Fragments,
) -> (Vec<TableId>, Vec<Arc<TableHandle>>) {
    debug_assert!(
        around
            .iter()
            .all(|table| table.meta().smallest <= table.meta().largest),
        "a table has keys"
    );
    let is_hidden = |t: &Arc<TableHandle>| is_hidden(t.meta(), range_deletes);
    let (hidden, others): (Vec<_>, Vec<_>) = around.iter().cloned().partition(is_hidden);
    (hidden.iter().map(|t| t.meta().id).collect(), others)
}

/// Reports whether newer range deletes hide an unreadable table from all readers. They hide what is
/// below it too, so its own range deletes are not missed.
fn is_hidden(meta: &TableMeta, range_deletes: &Fragments) -> bool {
    debug_assert!(meta.smallest <= meta.largest, "a table has keys");
    debug_assert!(meta.min_seqno <= meta.max_seqno, "its numbers are in order");
    // The last key of a range that ends before the first key after it.
    let last = match meta.largest.split_last() {
        Some((0, last)) if meta.largest_excluded => last,
        _ => &meta.largest,
    };
    let keys = (meta.smallest.as_slice(), last.max(&meta.smallest));
    let seqnos = (meta.min_seqno, meta.max_seqno);
    range_deletes.hide_all(keys, seqnos)
}
