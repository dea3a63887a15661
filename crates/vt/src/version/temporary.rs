//! Temporary trees: trees of this opening of the store that the medium does not list.
//!
//! ```text
//! version in memory       trees 1, 2 and 7, a temporary branch of 2
//! version on the medium   trees 1, 2; the next tree is 8
//! ```
//!
//! - An edit is applied whole in memory, and logged without what it says of temporary trees: what
//!   is left may be nothing. So their tables cost no append and no sync. Their numbers count on the
//!   medium: records of them in the backup log are skipped by a replay.
//! - A crash leaves the blocks of their tables in no version: that is free space.
//! - A parent that is dropped and read by temporary branches alone becomes temporary itself: the
//!   medium drops it at once.
//! - A table that enters another tree by an absorb is logged as one that is added there.
//!
//! Invariants:
//! - a branch of a temporary tree is temporary;
//! - once temporary, a tree stays so until it is dropped;
//! - `Version::last_seqno` says nothing of tables of temporary trees.

use super::builder::sorted;
use super::{LEVELS, TableHandle, TreeVersion, Version};
use crate::VtError;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::{PinId, TableId, TreeId};
use stitch_format::vt_manifest::{PinChanges, TableMeta, VersionEdit};

impl Version {
    /// Reports whether a tree is one that the medium does not list.
    pub(crate) fn is_temporary(&self, tree: TreeId) -> bool {
        self.temporary.contains(&tree)
    }

    /// Returns the trees that the medium lists.
    pub(super) fn stored_trees(&self) -> impl Iterator<Item = &Arc<TreeVersion>> {
        let trees = self.trees.iter();
        let stored = trees.filter(|(id, _)| !self.temporary.contains(id));
        stored.map(|(_, tree)| tree)
    }

    /// Returns the edit from the empty version to this one, temporary trees included.
    pub(crate) fn whole_edit(&self) -> VersionEdit {
        let edit = self.edit_of(&|_| true);
        debug_assert_eq!(
            edit.new_trees.len(),
            self.trees.len(),
            "each tree is listed"
        );
        edit
    }

    /// Returns this version after an edit that does no more than add tables to temporary trees;
    /// `None` for any other edit. The other trees are shared, and their tables are not walked.
    ///
    /// # Errors
    /// [`VtError::Version`] if tables of a level overlap.
    pub(crate) fn with_temporary_tables(
        &self,
        edit: &VersionEdit,
    ) -> Result<Option<Self>, VtError> {
        let is_temporary = |(_, meta): &(u8, Arc<TableMeta>)| self.is_temporary(meta.tree);
        if edit.added.is_empty() || !edit.added.iter().all(is_temporary) {
            return Ok(None);
        }
        let rest = VersionEdit {
            added: Vec::new(),
            ..edit.clone()
        };
        if !rest.keeps_trees() {
            return Ok(None);
        }
        let mut after = self.counted(&rest);
        for (level, meta) in &edit.added {
            let tree = after.trees.get_mut(&meta.tree).expect("it is there");
            let tree = Arc::make_mut(tree);
            debug_assert!(meta.id < edit.next_table, "its number was given out");
            debug_assert!(usize::from(*level) < LEVELS, "a level of the tree");
            let levels = tree.levels.drain(..).map(|level| level.tables);
            let mut levels: Vec<_> = levels.collect();
            let table = TableHandle::new(Arc::clone(meta), &self.lists);
            levels[usize::from(*level)].push(Arc::new(table));
            tree.levels = sorted(levels)?;
        }
        debug_assert_eq!(after.trees.len(), self.trees.len(), "only tables are added");
        debug_assert!(after.holds(), "numbers of trees were given out");
        let count = |version: &Self| {
            let levels = version.trees.values().flat_map(|tree| &tree.levels);
            levels.map(|level| level.tables.len()).sum::<usize>()
        };
        debug_assert_eq!(
            count(&after),
            count(self) + edit.added.len(),
            "each table is in its tree"
        );
        Ok(Some(after))
    }

    /// Returns the hidden trees that temporary branches alone read after an edit that made this
    /// version: the medium drops them. `is_seen` tells whether a pin sees a tree that was dropped
    /// before a pin was made.
    pub(crate) fn read_by_temporary(
        &self,
        edit: &VersionEdit,
        is_seen: &dyn Fn(TreeId, PinId) -> bool,
    ) -> Vec<TreeId> {
        let may_be_any = !edit.pins.hidden.is_empty()
            || !edit.pins.dropped.is_empty()
            || !edit.dropped_trees.is_empty();
        if self.temporary.is_empty() || !may_be_any {
            return Vec::new();
        }
        let (mut found, mut parents) = (Vec::new(), BTreeSet::new());
        // A branch is newer than its parent, so what reads a tree is known when the tree is met.
        for (id, tree) in self.trees.iter().rev() {
            let is_stored = !self.temporary.contains(id);
            let is_read = |unseen_by| parents.contains(id) || is_seen(*id, unseen_by);
            if is_stored && tree.hidden.is_none_or(is_read) {
                parents.extend(tree.info.branch.map(|branch| branch.parent));
            } else if is_stored {
                found.push(*id);
            }
        }
        debug_assert!(
            found.iter().all(|tree| !self.is_living(*tree)),
            "the medium drops no living tree"
        );
        found
    }

    /// Returns what the medium gets of an edit of this version: all but what it says of temporary
    /// trees, those of `new` included. `None` if that is nothing.
    pub(crate) fn stored_edit<'e>(
        &self,
        edit: &'e VersionEdit,
        new: &[TreeId],
    ) -> Option<Cow<'e, VersionEdit>> {
        if self.temporary.is_empty() && new.is_empty() {
            return Some(Cow::Borrowed(edit));
        }
        let is_new = |tree: &TreeId| new.contains(tree);
        debug_assert!(
            new.iter().all(|tree| {
                self.trees.contains_key(tree) || edit.new_trees.iter().any(|new| new.id == *tree)
            }),
            "a tree that becomes temporary is there, or made by the edit"
        );
        let is_stored = |tree: &TreeId| !self.temporary.contains(tree) && !is_new(tree);
        let temporary = self
            .temporary
            .iter()
            .filter_map(|tree| self.trees.get(tree));
        let tables = temporary.flat_map(|tree| tree.tables());
        let tables: BTreeSet<TableId> = tables.map(|(_, table)| table.meta().id).collect();
        let mut stored = edit.clone();
        stored.dropped_trees.retain(is_stored);
        // Trees of this version that become temporary are dropped there.
        let leaving = new.iter().filter(|tree| self.trees.contains_key(tree));
        stored.dropped_trees.extend(leaving);
        stored.new_trees.retain(|tree| is_stored(&tree.id));
        stored.altered_trees.retain(|tree| is_stored(&tree.id));
        stored.pins.hidden.retain(|(tree, _)| is_stored(tree));
        stored.removed.retain(|table| !tables.contains(table));
        stored.moved.retain(|(table, _)| !tables.contains(table));
        stored.added.retain(|(_, table)| is_stored(&table.tree));
        let has_more = stored.next_tree > self.next_tree || has_changes(&stored.pins);
        debug_assert_eq!(
            stored.next_tree, edit.next_tree,
            "numbers of temporary trees count on the medium"
        );
        let is_whole = stored.keeps_trees() == edit.keeps_trees();
        (is_whole || has_more || !stored.keeps_trees()).then_some(Cow::Owned(stored))
    }
}

/// Reports whether pins change.
fn has_changes(pins: &PinChanges) -> bool {
    let unchanged = PinChanges {
        last: pins.last,
        ..PinChanges::default()
    };
    *pins != unchanged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, text_version};

    const ONE: TreeId = TreeId(1);
    const TWO: TreeId = TreeId(2);

    /// Two trees, of which the second is temporary.
    fn version() -> Version {
        let mut version = text_version("tree 1\nL1 1 a..c 100\ntree 2\nL0 2 a..c 100");
        version.temporary.insert(TWO);
        version
    }

    #[test]
    fn a_base_lists_no_temporary_tree() {
        let version = version();
        let listed = |edit: &VersionEdit| edit.new_trees.iter().map(|t| t.id).collect::<Vec<_>>();
        assert_eq!(listed(&version.base()), [ONE]);
        assert_eq!(listed(&version.whole_edit()), [ONE, TWO]);
        let bytes = version.base().encode().len() as u64;
        assert!(bytes <= version.base_bytes(false));
    }

    #[test]
    fn the_medium_gets_what_an_edit_says_of_other_trees() {
        let version = version();
        let mut edit = version.edit();
        edit.removed = vec![TableId(2)];
        edit.added = vec![(1, Arc::new(meta(TWO, 7, "a", "c")))];
        assert!(version.stored_edit(&edit, &[]).is_none(), "nothing is left");
        edit.removed.push(TableId(1));
        edit.added.push((1, Arc::new(meta(ONE, 8, "a", "c"))));
        let stored = version.stored_edit(&edit, &[]).expect("something is left");
        assert_eq!(stored.removed, [TableId(1)]);
        assert_eq!(stored.added.len(), 1);
        assert_eq!(stored.added[0].1.tree, ONE);
        let counters = version.edit();
        assert!(
            version.stored_edit(&counters, &[]).is_some(),
            "only counters"
        );
    }

    #[test]
    fn a_tree_that_becomes_temporary_is_dropped_on_the_medium() {
        let mut version = version();
        version.temporary.clear();
        let mut edit = version.edit();
        edit.pins.hidden = vec![(ONE, edit.pins.last.next())];
        let stored = version.stored_edit(&edit, &[ONE]).expect("a drop");
        assert_eq!(stored.dropped_trees, [ONE]);
        assert!(stored.pins.hidden.is_empty());
    }

    #[test]
    fn tables_are_added_to_temporary_trees_without_a_walk() {
        let version = version();
        let mut edit = version.edit();
        edit.next_table = TableId(2000);
        edit.added = vec![
            (0, Arc::new(meta(TWO, 8, "a", "c"))),
            (1, Arc::new(meta(TWO, 9, "d", "f"))),
        ];
        let after = version.with_temporary_tables(&edit);
        let after = after.expect("in order").expect("of a temporary tree");
        let ids = |tree: TreeId| after.trees[&tree].tables().map(|(n, t)| (n, t.meta().id.0));
        assert_eq!(ids(TWO).collect::<Vec<_>>(), [(0, 8), (0, 2), (1, 9)]);
        assert!(Arc::ptr_eq(&after.trees[&ONE], &version.trees[&ONE]));
        assert_eq!(after.next_table, TableId(2000));
        edit.added.push((1, Arc::new(meta(ONE, 10, "x", "z"))));
        assert!(version.with_temporary_tables(&edit).expect("no").is_none());
    }
}
