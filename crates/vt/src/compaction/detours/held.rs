//! Where unreadable tables stand in the way: what they hold above them, and what plans go around.

use super::Detours;
use crate::compaction::picker::{bounds, end_of};
use crate::version::{LEVELS, TableHandle, TreeVersion};
use std::ops::Range;
use std::sync::Arc;
use stitch_format::vt_manifest::TableMeta;

/// Tables of level 0 that follow each other, none of them unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compaction) struct Segment {
    /// Where they are in level 0.
    pub(in crate::compaction) tables: Range<usize>,
    /// The oldest one of which something can go down, counted from the first.
    pub(in crate::compaction) oldest_due: usize,
}

impl Detours {
    /// Reports whether nothing of a table can go a level down: it lies in the range of an
    /// unreadable table that is older. One that may hide the unreadable table is not held, until it
    /// was tried.
    pub(crate) fn is_held(&self, tree: &TreeVersion, level: usize, table: &TableHandle) -> bool {
        debug_assert_eq!(table.meta().tree, tree.info.id, "a table of the tree");
        if self.unreadable.is_empty() {
            return false;
        }
        let holder = self
            .holders(tree, level, table)
            .find(|h| is_within(table, h));
        holder.is_some_and(|holder| {
            let is_as_wide = is_within(holder, table);
            let may_hide = is_as_wide && table.meta().range_delete_count > 0;
            !may_hide || self.tried.contains(&table.meta().id)
        })
    }

    /// Reports whether a table cannot go down: it is unreadable, or held by one that is.
    pub(in crate::compaction) fn is_stuck(
        &self,
        tree: &TreeVersion,
        level: usize,
        table: &TableHandle,
    ) -> bool {
        self.is_unreadable(table) || self.is_held(tree, level, table)
    }

    /// Unreadable tables that are older than a table of a level, which it cannot go past: those of
    /// the next level, and of level 0 those after it.
    fn holders<'a>(
        &'a self,
        tree: &'a TreeVersion,
        level: usize,
        table: &TableHandle,
    ) -> impl Iterator<Item = &'a TableHandle> {
        let id = table.meta().id;
        let beside = match level {
            0 => &tree.levels[0].tables[..],
            _ => &[],
        };
        let after = beside.iter().skip_while(move |t| t.meta().id != id).skip(1);
        let next = tree.levels.get(level + 1);
        let end = end_of(table.meta());
        debug_assert!(level < LEVELS, "a level of the tree");
        let below = next.map_or(&[][..], |next| {
            &next.tables[next.overlapping(&table.meta().smallest, Some(&end))]
        });
        let all = after.chain(below).map(|t| &**t);
        all.filter(|t| self.is_unreadable(t))
    }

    /// Returns the oldest tables of level 0 of which something can go down.
    ///
    /// Unreadable tables divide level 0 into segments. What is newer than one goes around it; where
    /// nothing of the oldest segment can go down any more, the next one is due. A level 0 that can
    /// be read is one segment.
    pub(in crate::compaction) fn level0_segment(&self, tree: &TreeVersion) -> Option<Segment> {
        let level0 = &tree.levels[0].tables;
        let mut end = level0.len();
        loop {
            let before = level0[..end].iter().rposition(|t| self.is_unreadable(t));
            let start = before.map_or(0, |at| at + 1);
            let is_due = |t: &Arc<TableHandle>| !self.is_held(tree, 0, t);
            if let Some(oldest_due) = level0[start..end].iter().rposition(is_due) {
                let tables = start..end;
                debug_assert!(
                    level0[start..end].iter().all(|t| !self.is_unreadable(t)),
                    "unreadable tables are between segments"
                );
                debug_assert!(oldest_due < tables.len(), "it is counted in the segment");
                return Some(Segment { tables, oldest_due });
            }
            end = before?;
        }
    }

    /// Returns the unreadable tables that a plan from a level to the next goes around: those of
    /// `lower`, which are taken out of it, and those of level 0 that are older than `upper` and
    /// overlap it.
    pub(in crate::compaction) fn take_around(
        &self,
        tree: &TreeVersion,
        level: usize,
        upper: &[Arc<TableHandle>],
        lower: &mut Vec<Arc<TableHandle>>,
    ) -> Vec<Arc<TableHandle>> {
        if self.unreadable.is_empty() {
            return Vec::new();
        }
        let mut around = match level {
            0 => self.older_beside(&tree.levels[0].tables, upper),
            _ => Vec::new(),
        };
        around.extend(lower.extract_if(.., |t| self.is_unreadable(t)));
        debug_assert!(level + 1 < LEVELS, "there is a level below");
        debug_assert!(
            lower.iter().all(|table| !self.is_unreadable(table)),
            "unreadable tables are not read"
        );
        around
    }

    /// Unreadable tables of level 0 that are older than `upper` and overlap it.
    fn older_beside(
        &self,
        level0: &[Arc<TableHandle>],
        upper: &[Arc<TableHandle>],
    ) -> Vec<Arc<TableHandle>> {
        let last = upper.last();
        debug_assert!(last.is_some(), "a plan takes something down");
        let at = last.and_then(|last| level0.iter().position(|t| Arc::ptr_eq(t, last)));
        let (Some(at), Some((start, end))) = (at, bounds(upper)) else {
            return Vec::new();
        };
        let older = level0[at + 1..].iter();
        debug_assert!(start < end, "tables have keys");
        let is_around =
            |t: &&Arc<TableHandle>| self.is_unreadable(t) && t.meta().overlaps(&start, Some(&end));
        older.filter(is_around).cloned().collect()
    }
}

/// Reports whether the range of one table lies in that of another.
fn is_within(inner: &TableHandle, outer: &TableHandle) -> bool {
    let (inner, outer): (&TableMeta, &TableMeta) = (inner.meta(), outer.meta());
    debug_assert_eq!(inner.tree, outer.tree, "keys of one tree");
    outer.smallest <= inner.smallest && end_of(inner) <= end_of(outer)
}
