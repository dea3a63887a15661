//! Versions: which tables a store is made of at a moment. Immutable; readers hold an `Arc` of one.
//!
//! A change is a [`VersionEdit`]: written to the version log first, then applied here. A base in
//! the version log is the edit from the empty version.
//!
//! Invariants, checked whenever a version is built:
//! - level 0 is ordered newest first; its tables may overlap;
//! - tables of a deeper level are ordered by key and do not overlap;
//! - what a level says about a key is newer than what any deeper level says about it.

mod builder;
mod chain;
mod gauge;
mod handle;
mod temporary;

pub(crate) use builder::{VersionBuilder, wrong};
pub(crate) use chain::BranchChain;
use chain::BranchChains;
pub(crate) use gauge::Gauge;
#[cfg(test)]
pub(crate) use gauge::table_bytes;
pub(crate) use handle::{LeftBehind, TableHandle, extents};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::{PinId, Seqno, TableId, TreeId};
use stitch_format::vt_manifest::{
    BaseBytes, BranchRecord, HIDDEN_TREE_BYTES_MAX, LEVEL_COUNT, PinChanges, TableMeta, TreeRecord,
    VersionEdit,
};
use stitch_kv::{BranchPoint, Compression, KeyRanges, TreeInfo, TreeOptions};

/// What a base stores of a piece of the device that a table owns, at most in nearly all cases.
const RUN_BYTES: u64 = 8;
/// Number of levels, level 0 included.
pub(crate) const LEVELS: usize = LEVEL_COUNT as usize;

/// The tables of one level of one tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    /// Level 0: newest first. Deeper: by key.
    pub(crate) tables: Vec<Arc<TableHandle>>,
    /// What they weigh in a compaction, together.
    pub(crate) weight: u64,
    /// Bytes of the device that they own.
    pub(crate) owned_bytes: u64,
    /// Of these, bytes of value blocks.
    pub(crate) value_bytes: u64,
    /// What a base takes to list what they own.
    pub(crate) list_bytes: u64,
    /// What a base takes to list them.
    pub(crate) base_bytes: BaseBytes,
    /// True if any of them has range deletes.
    pub(crate) has_range_deletes: bool,
    /// Number of them that have a shift.
    pub(crate) shifted_count: u64,
}

impl Level {
    fn new(tables: Vec<Arc<TableHandle>>) -> Self {
        // Runs that the medium claims may overlap: that is found when the zones adopt them.
        let sum = |of: &dyn Fn(&TableHandle) -> u64| {
            let each = tables.iter().map(|table| of(table));
            each.fold(0, u64::saturating_add)
        };
        debug_assert!(
            tables
                .iter()
                .all(|table| table.meta().tree == tables[0].meta().tree),
            "a level is of one tree"
        );
        let weight = sum(&TableHandle::weight);
        let owned_bytes = sum(&TableHandle::owned_bytes);
        let value_bytes = sum(&|table| table.meta().value_bytes);
        debug_assert!(value_bytes <= owned_bytes, "tables own their value blocks");
        let list_bytes = sum(&TableHandle::list_bytes);
        let base_bytes = tables.iter().map(|table| table.base_bytes()).sum();
        let has_range_deletes = tables.iter().any(|t| t.meta().range_delete_count > 0);
        let shifted_count = tables.iter().filter(|t| t.meta().shift > 0).count() as u64;
        Self {
            tables,
            weight,
            owned_bytes,
            value_bytes,
            list_bytes,
            base_bytes,
            has_range_deletes,
            shifted_count,
        }
    }

    /// Of a level below 0: the tables that overlap `[start, end)`, as indices.
    pub(crate) fn overlapping(&self, start: &[u8], end: Option<&[u8]>) -> std::ops::Range<usize> {
        let first = self.tables.partition_point(|t| !t.meta().reaches(start));
        let last = end.map_or(self.tables.len(), |end| {
            self.tables
                .partition_point(|t| t.meta().smallest.as_slice() < end)
        });
        let last = last.max(first);
        let touched = &self.tables[first..last];
        debug_assert!(
            touched
                .first()
                .is_none_or(|t| t.meta().overlaps(start, end)),
            "tables of a level below 0 are in key order"
        );
        debug_assert!(
            touched.last().is_none_or(|t| t.meta().overlaps(start, end)),
            "tables of a level below 0 are in key order"
        );
        first..last
    }

    /// Of a level below 0: the table whose range holds `key`.
    pub(crate) fn holding(&self, key: &[u8]) -> Option<&Arc<TableHandle>> {
        let first = self.tables.partition_point(|t| !t.meta().reaches(key));
        let table = self.tables.get(first)?;
        debug_assert!(
            table.meta().reaches(key),
            "tables of a level below 0 are in key order"
        );
        (table.meta().smallest.as_slice() <= key).then_some(table)
    }
}

/// One tree's tables.
#[derive(Clone, Debug)]
pub(crate) struct TreeVersion {
    /// Name and options.
    pub(crate) info: TreeInfo,
    /// Its levels; always [`LEVELS`] of them.
    pub(crate) levels: Vec<Level>,
    /// Of a tree that was dropped while a pin saw it or a branch read it: the first pin that does
    /// not see it.
    pub(crate) hidden: Option<PinId>,
}

impl TreeVersion {
    /// Every table, newest data first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<TableHandle>)> {
        debug_assert_eq!(self.levels.len(), LEVELS, "a tree has all levels");
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(n, level)| level.tables.iter().map(move |t| (n, t)))
    }

    /// The most that compactions of all its tables would write anew: all but what they carry over.
    pub(crate) fn rewritten_bytes(&self) -> u64 {
        debug_assert_eq!(self.levels.len(), LEVELS, "a tree has all levels");
        let is_copied = self.info.options.stitch_bytes == u64::MAX;
        let carried = |level: &Level| if is_copied { 0 } else { level.value_bytes };
        let levels = self.levels.iter();
        levels.map(|l| l.owned_bytes - carried(l)).sum()
    }
}

/// Every tree's tables, and the store's counters.
///
/// Invariant: the numbers of its trees were given out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    /// Living trees, and hidden ones.
    pub(crate) trees: BTreeMap<TreeId, Arc<TreeVersion>>,
    /// Of these, the trees that the medium does not list.
    pub(crate) temporary: BTreeSet<TreeId>,
    /// Every write up to this one is in the tables.
    pub(crate) last_seqno: Seqno,
    /// Number that the next table gets.
    pub(crate) next_table: TableId,
    /// Number that the next tree gets.
    pub(crate) next_tree: TreeId,
    /// The last number that a pin got; 0 before the first.
    pub(crate) last_pin: PinId,
    /// What the lists of all tables take, of this version and of those that readers still hold.
    pub(crate) lists: Arc<Gauge>,
    /// The levels that reads of branches search.
    pub(crate) chains: BranchChains,
}

impl Version {
    /// The version of a new store, without trees.
    pub(crate) fn empty() -> Self {
        Self {
            trees: BTreeMap::new(),
            temporary: BTreeSet::new(),
            last_seqno: Seqno(0),
            next_table: TableId(1),
            next_tree: TreeId(1),
            last_pin: PinId(0),
            lists: Arc::default(),
            chains: BranchChains::default(),
        }
    }

    /// An edit that changes nothing yet, with this version's counters.
    pub(crate) fn edit(&self) -> VersionEdit {
        debug_assert!(self.holds(), "numbers of trees were given out");
        VersionEdit {
            last_seqno: self.last_seqno,
            next_table: self.next_table,
            next_tree: self.next_tree,
            pins: PinChanges {
                last: self.last_pin,
                ..PinChanges::default()
            },
            ..VersionEdit::default()
        }
    }

    /// Returns this version with the counters of an edit that changes neither trees nor tables.
    pub(crate) fn counted(&self, edit: &VersionEdit) -> Self {
        debug_assert!(edit.keeps_trees(), "only counters change");
        debug_assert!(edit.last_seqno >= self.last_seqno, "sequence numbers rise");
        debug_assert!(edit.next_table >= self.next_table, "numbers of tables rise");
        debug_assert!(edit.next_tree >= self.next_tree, "numbers of trees rise");
        debug_assert!(edit.pins.last >= self.last_pin, "numbers of pins rise");
        debug_assert!(self.holds(), "numbers of trees were given out");
        Self {
            last_seqno: edit.last_seqno,
            next_table: edit.next_table,
            next_tree: edit.next_tree,
            last_pin: edit.pins.last,
            ..self.clone()
        }
    }

    /// Reports whether the numbers of its trees were given out.
    fn holds(&self) -> bool {
        let newest = self.trees.last_key_value();
        newest.is_none_or(|(newest, _)| *newest < self.next_tree)
    }

    /// Trees that are not hidden.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Arc<TreeVersion>> {
        self.trees.values().filter(|tree| tree.hidden.is_none())
    }

    /// Hidden trees, each with the first pin that does not see it.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = (TreeId, PinId)> {
        let trees = self.trees.iter();
        trees.filter_map(|(id, tree)| Some((*id, tree.hidden?)))
    }

    /// Reports whether a tree is there and not hidden.
    pub(crate) fn is_living(&self, tree: TreeId) -> bool {
        let found = self.trees.get(&tree);
        debug_assert!(
            found.is_none_or(|found| found.info.id == tree),
            "trees are found by their numbers"
        );
        found.is_some_and(|tree| tree.hidden.is_none())
    }

    /// Returns the level of a table; `None` if it is gone.
    pub(crate) fn level_of(&self, (tree, table): (TreeId, TableId)) -> Option<usize> {
        let mut tables = self.trees.get(&tree)?.tables();
        let found = tables.find(|(_, of)| of.meta().id == table)?;
        debug_assert_eq!(found.1.meta().tree, tree, "a table is in its tree");
        Some(found.0)
    }

    /// The edit from the empty version to this one: what a base holds, but for the pins.
    pub(crate) fn base(&self) -> VersionEdit {
        let edit = self.edit_of(&|tree| !self.is_temporary(tree));
        debug_assert!(edit.pins.new.is_empty(), "pins are added later");
        debug_assert_eq!(
            edit.new_trees.len(),
            self.stored_trees().count(),
            "each stored tree is listed"
        );
        edit
    }

    /// The edit that makes this version, with the trees that are to be `listed`.
    fn edit_of(&self, listed: &dyn Fn(TreeId) -> bool) -> VersionEdit {
        let mut edit = self.edit();
        let hidden = self.hidden().filter(|(tree, _)| listed(*tree));
        edit.pins.hidden.extend(hidden);
        debug_assert!(
            edit.pins.hidden.is_sorted_by(|tree, next| tree.0 < next.0),
            "each tree is listed once"
        );
        for tree in self.trees.values().filter(|tree| listed(tree.info.id)) {
            edit.new_trees.push(tree_record(&tree.info));
            for (level, table) in tree.tables() {
                let level = u8::try_from(level).expect("there are 8 levels");
                edit.added.push((level, Arc::clone(table.meta())));
            }
        }
        debug_assert!(
            edit.added.iter().all(|(_, table)| listed(table.tree)),
            "tables are listed with their trees"
        );
        edit
    }

    /// Returns the length of [`Self::base`] as bytes, without the pins, or a little more.
    /// `has_scopes`: some pin is one of some trees, whose layout has room for shifts and parents.
    pub(crate) fn base_bytes(&self, has_scopes: bool) -> u64 {
        let mut is_plain = true;
        let mut bytes = BaseBytes::default();
        for tree in self.stored_trees() {
            let record = record_of_all_keys(&tree.info);
            is_plain &= record.is_plain() && tree.levels.iter().all(|l| l.value_bytes == 0);
            bytes = bytes + record.base_bytes() + tree.levels.iter().map(|l| l.base_bytes).sum();
        }
        let range_bytes = self.branch_range_bytes();
        let is_listed = has_scopes || range_bytes > 0;
        let shift_bytes = self.shift_bytes(is_listed);
        let branch_bytes = self.branch_bytes(shift_bytes > 0 || is_listed);
        if self.last_pin == PinId(0) && branch_bytes == 0 && shift_bytes == 0 {
            return bytes.of_base(is_plain);
        }
        // Each as if it were hidden: dropping a tree must not make the version longer.
        let hidden_bytes = HIDDEN_TREE_BYTES_MAX * self.stored_trees().count() as u64;
        let known_bytes = bytes.of_base(false) + PinChanges::HEAD_BYTES_MAX + hidden_bytes;
        known_bytes + branch_bytes + shift_bytes + range_bytes
    }

    /// Returns what a base takes for the ranges of branch trees; 0 where none has any.
    fn branch_range_bytes(&self) -> u64 {
        let branches = || self.stored_trees().filter(|tree| tree.is_branch());
        let ranges = branches().filter_map(|tree| tree.info.branch_ranges.as_ref());
        let (mut count, mut bytes) = (0, 0);
        for ranges in ranges {
            count += 1;
            bytes += BranchRecord::ranges_bytes(ranges.as_slice());
        }
        if count == 0 {
            return 0;
        }
        let all = branches().count() as u64;
        debug_assert!(count <= all, "a branch with ranges is a branch");
        bytes + (all - count) * BranchRecord::ALL_KEYS_BYTES
    }

    /// Returns the most that a base takes for the parents of trees; 0 where none has one, unless
    /// the layout lists them.
    fn branch_bytes(&self, are_listed: bool) -> u64 {
        let branches = self.stored_trees().filter(|tree| tree.is_branch());
        let branches = branches.count() as u64;
        if branches == 0 && !are_listed {
            return 0;
        }
        let all = self.stored_trees().count() as u64;
        debug_assert!(branches <= all, "a branch is a tree");
        branches * BranchRecord::BYTES_MAX + (all - branches) * BranchRecord::NONE_BYTES
    }

    /// Returns the most that a base takes for the shifts of tables; 0 where none has one, unless
    /// the layout lists them.
    fn shift_bytes(&self, are_listed: bool) -> u64 {
        let levels = || self.stored_trees().flat_map(|tree| &tree.levels);
        let shifted: u64 = levels().map(|level| level.shifted_count).sum();
        if shifted == 0 && !are_listed {
            return 0;
        }
        let all: u64 = levels().map(|level| level.tables.len() as u64).sum();
        debug_assert!(shifted <= all, "a table with a shift is a table");
        shifted * TableMeta::SHIFT_BYTES_MAX + (all - shifted) * TableMeta::NO_SHIFT_BYTES
    }

    /// What a base takes to list the pieces of the device that tables own, in bytes.
    pub(crate) fn list_bytes(&self) -> u64 {
        let levels = self.trees.values().flat_map(|tree| &tree.levels);
        levels.map(|level| level.list_bytes).sum()
    }

    /// Every table of every tree.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<TableHandle>)> {
        #[cfg(test)]
        crate::testing::note_walk();
        self.trees.values().flat_map(|tree| tree.tables())
    }
}

/// How a version stores a tree.
pub(crate) fn tree_record(info: &TreeInfo) -> TreeRecord {
    debug_assert!(
        info.branch.is_some() || info.branch_ranges.is_none(),
        "only a branch begins with ranges of keys"
    );
    TreeRecord {
        branch_ranges: info.branch_ranges.as_ref().map(|of| of.as_slice().to_vec()),
        ..record_of_all_keys(info)
    }
}

/// The same without the ranges of a branch tree, which are long.
fn record_of_all_keys(info: &TreeInfo) -> TreeRecord {
    let compression = info.options.compression.code();
    debug_assert_eq!(
        Compression::of_code(compression),
        Some(info.options.compression),
        "the code is read back as the same"
    );
    TreeRecord {
        id: info.id,
        name: info.name.clone(),
        block_bytes: info.options.block_bytes,
        stitch_bytes: info.options.stitch_bytes,
        compression,
        value_block_bytes: info.options.value_block_bytes,
        branch: info.branch.map(|point| BranchRecord {
            parent: point.parent,
            seqno: point.seqno,
        }),
        branch_ranges: None,
    }
}

/// A tree as a version stores it.
pub(crate) fn tree_info(record: &TreeRecord) -> TreeInfo {
    TreeInfo {
        id: record.id,
        name: record.name.clone(),
        options: TreeOptions {
            block_bytes: record.block_bytes,
            stitch_bytes: record.stitch_bytes,
            compression: Compression::of_code(record.compression).unwrap_or_default(),
            value_block_bytes: record.value_block_bytes,
        },
        branch: record.branch.map(|branch| BranchPoint {
            parent: branch.parent,
            seqno: branch.seqno,
        }),
        branch_ranges: record.branch_ranges.clone().map(KeyRanges::new),
    }
}

#[cfg(test)]
mod tests;
