//! From one version to another, by edits.

use super::chain::BranchChains;
use super::{LEVELS, Level, TableHandle, TreeVersion, Version, tree_info};
use crate::VtError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use stitch_base::{PinId, TableId, TreeId};
use stitch_format::vt_manifest::{TableMeta, TreeRecord, VersionEdit};
use stitch_kv::TreeInfo;

/// Collects edits, and makes a version of them. Trees that no edit touches are shared.
pub(crate) struct VersionBuilder {
    base: Version,
    infos: BTreeMap<TreeId, TreeInfo>,
    hidden: BTreeMap<TreeId, PinId>,
    tables: HashMap<TableId, (usize, Arc<TableHandle>)>,
    touched: BTreeSet<TreeId>,
}

/// Returns the error of a stored version that contradicts itself.
pub(crate) const fn wrong(what: String) -> VtError {
    VtError::Version { what }
}

impl VersionBuilder {
    /// Starts from `base`.
    pub(crate) fn new(base: Version) -> Self {
        debug_assert!(
            base.trees.iter().all(|(id, tree)| *id == tree.info.id),
            "a tree is found by its number"
        );
        let infos = base.trees.iter().map(|(id, t)| (*id, t.info.clone()));
        let tables = base
            .tables()
            .map(|(level, t)| (t.meta().id, (level, Arc::clone(t))));
        Self {
            infos: infos.collect(),
            hidden: base.hidden().collect(),
            tables: tables.collect(),
            touched: BTreeSet::new(),
            base,
        }
    }

    /// Applies an edit. Edits come from the medium: nothing in them is trusted.
    ///
    /// # Errors
    /// [`VtError::Version`] for an edit that does not belong to this version.
    pub(crate) fn apply(&mut self, edit: &VersionEdit) -> Result<(), VtError> {
        let counters_rise = edit.last_seqno >= self.base.last_seqno
            && edit.next_table >= self.base.next_table
            && edit.next_tree >= self.base.next_tree
            && edit.pins.last >= self.base.last_pin;
        if !counters_rise {
            return Err(wrong("an edit's counters go back".to_owned()));
        }
        self.base.last_seqno = edit.last_seqno;
        self.base.next_table = edit.next_table;
        self.base.next_tree = edit.next_tree;
        self.base.last_pin = edit.pins.last;
        for tree in &edit.dropped_trees {
            self.drop_tree(*tree)?;
        }
        for record in &edit.new_trees {
            let taken = self.infos.insert(record.id, tree_info(record));
            if taken.is_some() || record.id >= edit.next_tree {
                return Err(wrong(format!("tree {} is made twice", record.id)));
            }
            let parent = record.branch.map(|branch| branch.parent);
            if let Some(parent) = parent.filter(|parent| !self.infos.contains_key(parent)) {
                let what = format!(
                    "tree {} is a branch of {parent}, which is not there",
                    record.id
                );
                return Err(wrong(what));
            }
            self.touched.insert(record.id);
        }
        for record in &edit.altered_trees {
            self.alter(record)?;
        }
        for (tree, unseen_by) in &edit.pins.hidden {
            self.hide(*tree, *unseen_by)?;
        }
        for id in &edit.removed {
            let (_, table) = self.take(*id)?;
            self.touched.insert(table.meta().tree);
        }
        for (id, level) in &edit.moved {
            let (_, table) = self.take(*id)?;
            self.touched.insert(table.meta().tree);
            self.tables.insert(*id, (usize::from(*level), table));
        }
        for (level, meta) in &edit.added {
            self.add(usize::from(*level), Arc::clone(meta))?;
        }
        Ok(())
    }

    /// Applies an edit like [`Self::apply`], and consumes it.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn take_over(&mut self, mut edit: VersionEdit) -> Result<(), VtError> {
        let added = std::mem::take(&mut edit.added);
        self.apply(&edit)?;
        self.tables.reserve(added.len());
        for (level, meta) in added {
            self.add(usize::from(level), meta)?;
        }
        Ok(())
    }

    fn drop_tree(&mut self, tree: TreeId) -> Result<(), VtError> {
        if self.infos.remove(&tree).is_none() {
            return Err(wrong(format!("tree {tree} is dropped but not there")));
        }
        self.tables
            .retain(|_, (_, table)| table.meta().tree != tree);
        self.hidden.remove(&tree);
        debug_assert!(!self.infos.contains_key(&tree), "it is gone");
        self.touched.insert(tree);
        Ok(())
    }

    fn hide(&mut self, tree: TreeId, unseen_by: PinId) -> Result<(), VtError> {
        let is_there = self.infos.contains_key(&tree) && unseen_by <= self.base.last_pin.next();
        if !is_there || self.hidden.insert(tree, unseen_by).is_some() {
            return Err(wrong(format!("tree {tree} is hidden but not there")));
        }
        self.touched.insert(tree);
        Ok(())
    }

    fn alter(&mut self, record: &TreeRecord) -> Result<(), VtError> {
        let id = record.id;
        let altered = tree_info(record);
        let is_same = |i: &&mut TreeInfo| {
            let is_of_parent =
                i.branch == altered.branch && i.branch_ranges == altered.branch_ranges;
            i.name == altered.name && is_of_parent
        };
        let info = self.infos.get_mut(&id).filter(is_same);
        let info = info.ok_or_else(|| wrong(format!("tree {id} is altered but not there")))?;
        debug_assert_eq!(info.id, id, "a tree is found by its number");
        *info = altered;
        self.touched.insert(id);
        Ok(())
    }

    fn take(&mut self, id: TableId) -> Result<(usize, Arc<TableHandle>), VtError> {
        let found = self
            .tables
            .remove(&id)
            .ok_or_else(|| wrong(format!("table {id} is removed but not there")))?;
        debug_assert_eq!(found.1.meta().id, id, "a table is found by its number");
        Ok(found)
    }

    fn add(&mut self, level: usize, meta: Arc<TableMeta>) -> Result<(), VtError> {
        let (id, tree) = (meta.id, meta.tree);
        if !self.infos.contains_key(&tree) {
            return Err(wrong(format!("table {id} is of no tree")));
        }
        if id >= self.base.next_table {
            return Err(wrong(format!("table {id} has a number not given out yet")));
        }
        let table = Arc::new(TableHandle::new(meta, &self.base.lists));
        if self.tables.insert(id, (level, table)).is_some() {
            return Err(wrong(format!("table {id} is added twice")));
        }
        self.touched.insert(tree);
        Ok(())
    }

    /// A parent is there as long as a branch is.
    fn check_parents(&self) -> Result<(), VtError> {
        for (id, info) in &self.infos {
            let parent = info.branch.map(|branch| branch.parent);
            if let Some(parent) = parent.filter(|parent| !self.infos.contains_key(parent)) {
                return Err(wrong(format!(
                    "tree {parent} is dropped but tree {id} reads it"
                )));
            }
        }
        Ok(())
    }

    /// The version.
    ///
    /// # Errors
    /// [`VtError::Version`] if tables of a level overlap, or a branch has no parent.
    pub(crate) fn finish(self) -> Result<Version, VtError> {
        self.check_parents()?;
        let mut version = self.base;
        version.chains = BranchChains::default();
        let mut levels: BTreeMap<TreeId, Vec<Vec<Arc<TableHandle>>>> = BTreeMap::new();
        let table_count = self.tables.len();
        for (level, table) in self.tables.into_values() {
            let tree = table.meta().tree;
            if self.touched.contains(&tree) {
                levels
                    .entry(tree)
                    .or_insert_with(|| vec![Vec::new(); LEVELS])[level]
                    .push(table);
            }
        }
        version.trees.retain(|id, _| self.infos.contains_key(id));
        version.temporary.retain(|id| self.infos.contains_key(id));
        debug_assert!(
            self.hidden.keys().all(|id| self.infos.contains_key(id)),
            "a hidden tree is there"
        );
        for tree in self.touched {
            let Some(info) = self.infos.get(&tree) else {
                continue;
            };
            let tables = levels
                .remove(&tree)
                .unwrap_or_else(|| vec![Vec::new(); LEVELS]);
            let tree_version = TreeVersion {
                info: info.clone(),
                levels: sorted(tables)?,
                hidden: self.hidden.get(&tree).copied(),
            };
            version.trees.insert(tree, Arc::new(tree_version));
        }
        debug_assert!(levels.is_empty(), "each table is in a tree");
        debug_assert_eq!(version.trees.len(), self.infos.len(), "each tree is there");
        debug_assert!(
            version
                .temporary
                .iter()
                .all(|id| version.trees.contains_key(id)),
            "a temporary tree is a tree"
        );
        debug_assert!(version.holds(), "numbers of trees were given out");
        let levels = version.trees.values().flat_map(|tree| &tree.levels);
        debug_assert_eq!(
            levels.map(|level| level.tables.len()).sum::<usize>(),
            table_count,
            "each table is in its tree"
        );
        Ok(version)
    }
}

/// Puts the tables of each level in order.
///
/// # Errors
/// [`VtError::Version`] if tables of a level below level 0 overlap.
pub(super) fn sorted(mut levels: Vec<Vec<Arc<TableHandle>>>) -> Result<Vec<Level>, VtError> {
    debug_assert_eq!(levels.len(), LEVELS, "a tree has all levels");
    for (n, tables) in levels.iter_mut().enumerate() {
        if n == 0 {
            tables.sort_by_key(|t| std::cmp::Reverse((t.meta().max_seqno, t.meta().id)));
            continue;
        }
        tables.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        for pair in tables.windows(2) {
            if !pair[0].meta().is_before(pair[1].meta()) {
                return Err(wrong(format!(
                    "tables {} and {} of level {n} overlap",
                    pair[0].meta().id,
                    pair[1].meta().id
                )));
            }
        }
    }
    Ok(levels.into_iter().map(Level::new).collect())
}
