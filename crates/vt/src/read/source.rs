//! What a scan merges: memtables, tables of level 0, and levels; each with its range deletes.

use super::concat::{Concat, ConcatParts};
use super::loading::Loading;
use super::path::ReadPath;
use super::ranged::RangedIter;
use crate::VtError;
use crate::compaction::end_of;
use crate::entry::BoxIter;
use crate::iter::MergeIter;
use crate::range_delete::RangeDeletes;
use crate::table::{Bounds, StreamGrowth, Table, TableIter};
use crate::version::{Level, TableHandle, TreeVersion};
use crate::view::View;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{KeyRanges, ReadHint};

/// One source of a scan. Sources are ordered from the newest data to the oldest: of any key, what
/// one says is newer than what the next says.
pub(crate) struct Source {
    pub(crate) entries: BoxIter,
    /// The newest write that the reader sees in it: of a parent, that at which its branch begins.
    pub(crate) seqno: Seqno,
    range_deletes: SourceDeletes,
    /// What the range deletes say around the key asked last.
    window: Option<DeleteWindow>,
}

enum SourceDeletes {
    None,
    All(Arc<RangeDeletes>),
    /// Of a level: tables by key.
    Level(Vec<(Arc<TableHandle>, Arc<RangeDeletes>)>),
}

/// Between `start` and `end` the newest visible range delete is the same.
#[derive(Clone, Debug)]
pub(crate) struct DeleteWindow {
    pub(crate) start: Vec<u8>,
    /// First key after it; `None` for no end.
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) hidden_by: Option<Seqno>,
}

impl DeleteWindow {
    fn holds(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_deref().is_none_or(|end| key < end)
    }
}

impl Source {
    fn new(entries: BoxIter, range_deletes: SourceDeletes, seqno: Seqno) -> Self {
        Self {
            entries,
            seqno,
            range_deletes,
            window: None,
        }
    }

    /// A source of these entries and range deletes.
    #[cfg(test)]
    pub(super) fn of(entries: BoxIter, range_deletes: RangeDeletes, seqno: Seqno) -> Self {
        let deletes = match range_deletes.is_empty() {
            true => SourceDeletes::None,
            false => SourceDeletes::All(Arc::new(range_deletes)),
        };
        Self::new(entries, deletes, seqno)
    }

    /// The same source with those keys alone that are in all of these ranges.
    fn within(mut self, ranges: &[KeyRanges]) -> Self {
        for ranges in ranges {
            debug_assert!(self.window.is_none(), "nothing was asked of the source yet");
            self.entries = Box::new(RangedIter::new(self.entries, ranges.clone()));
        }
        self
    }

    /// True if any of its keys may be under a range delete of its own, or hide older ones.
    pub(crate) const fn has_range_deletes(&self) -> bool {
        !matches!(self.range_deletes, SourceDeletes::None)
    }

    /// Where `key` lies among the range deletes that the reader sees. `None` if the source has none
    /// at all.
    pub(crate) fn window(&mut self, key: &[u8]) -> Option<&DeleteWindow> {
        if !self.has_range_deletes() {
            return None;
        }
        if !self.window.as_ref().is_some_and(|w| w.holds(key)) {
            self.window = Some(self.range_deletes.window(key, self.seqno));
        }
        debug_assert!(
            self.window.as_ref().is_some_and(|w| w.holds(key)),
            "around the key"
        );
        self.window.as_ref()
    }
}

impl SourceDeletes {
    fn window(&self, key: &[u8], seqno: Seqno) -> DeleteWindow {
        match self {
            Self::None => unreachable!("asked only where there are range deletes"),
            Self::All(all) => window_of(all, key, seqno),
            Self::Level(tables) => {
                debug_assert!(
                    !tables.is_empty(),
                    "a level has range deletes in some table"
                );
                let at = tables.partition_point(|(t, _)| !t.meta().reaches(key));
                let before = at.checked_sub(1).map(|at| &tables[at].0);
                let gap_start = before.map(|t| end_of(t.meta())).unwrap_or_default();
                let Some((table, all)) = tables.get(at) else {
                    return gap(gap_start, None);
                };
                if table.meta().smallest.as_slice() > key {
                    return gap(gap_start, Some(table.meta().smallest.clone()));
                }
                let mut window = window_of(all, key, seqno);
                window.start = window.start.max(table.meta().smallest.clone());
                let end = end_of(table.meta());
                window.end = Some(window.end.map_or(end.clone(), |w| w.min(end)));
                window
            }
        }
    }
}

fn gap(start: Vec<u8>, end: Option<Vec<u8>>) -> DeleteWindow {
    debug_assert!(
        end.as_ref().is_none_or(|end| start < *end),
        "tables of a level are in key order"
    );
    DeleteWindow {
        start,
        end,
        hidden_by: None,
    }
}

fn window_of(all: &RangeDeletes, key: &[u8], seqno: Seqno) -> DeleteWindow {
    let cover = all.cover(key, seqno);
    debug_assert!(
        cover.seqno.is_none_or(|delete| delete <= seqno),
        "newer range deletes hide nothing"
    );
    DeleteWindow {
        start: all.cover_start(key).to_vec(),
        end: cover.until.map(<[u8]>::to_vec),
        hidden_by: cover.seqno,
    }
}

impl ReadPath {
    /// Has what is in a range of keys read by the readers, as far as there is memory for it.
    /// Reports whether there is for all of it.
    pub(crate) fn read_ahead(&self, view: &View, tree: TreeId, hint: &ReadHint<'_>) -> bool {
        let mut is_all = true;
        let bounds = Arc::new(Bounds::of(hint.range, true));
        let lineage = view.version.lineage(tree);
        for tree in lineage {
            is_all &= self.read_ahead_in(view, tree, &bounds, hint);
        }
        is_all
    }

    /// As [`Self::read_ahead`], of what was written to a tree.
    fn read_ahead_in(
        &self,
        view: &View,
        tree: &TreeVersion,
        bounds: &Arc<Bounds>,
        hint: &ReadHint<'_>,
    ) -> bool {
        let mut is_all = true;
        let (start, end) = (bounds.start.as_slice(), bounds.end.as_deref());
        for buffer in &view.buffers {
            for run in buffer.direct.overlapping(tree.info.id, start, end) {
                is_all &= run.blocks.read_ahead(bounds, hint, Arc::clone(buffer) as _);
            }
        }
        let levels = &tree.levels;
        let level0 = levels[0].tables.iter();
        debug_assert!(
            view.version.trees.contains_key(&tree.info.id),
            "the tree is in the view"
        );
        let level0 = level0.filter(|handle| handle.meta().overlaps(start, end));
        let below = levels[1..].iter().flat_map(|level| {
            let touched = level.overlapping(start, end);
            &level.tables[touched]
        });
        for handle in level0.chain(below) {
            let table = self.table(handle);
            is_all &= table.read_ahead(bounds, hint, Arc::clone(handle) as _);
        }
        is_all
    }

    /// The sources of a tree of a view that may hold keys within bounds, for a reader of `seqno`:
    /// its own, then those of its parents.
    pub(crate) fn sources(
        &self,
        view: &View,
        tree: &Arc<TreeVersion>,
        bounds: Bounds,
        seqno: Seqno,
    ) -> Result<Vec<Source>, VtError> {
        let bounds = Arc::new(bounds);
        if !tree.is_branch() {
            return self.own_sources(view, tree, &bounds, seqno);
        }
        debug_assert!(
            view.version.trees.contains_key(&tree.info.id),
            "the tree is in the view"
        );
        let mut out = Vec::new();
        // What the branches so far begin with: a parent has nothing else for them.
        let mut ranges: Vec<KeyRanges> = Vec::new();
        for link in view.version.chain(tree).trees() {
            let own = self.own_sources(view, &link.tree, &bounds, seqno.min(link.seqno))?;
            out.extend(own.into_iter().map(|source| source.within(&ranges)));
            ranges.extend(link.tree.info.branch_ranges.clone());
        }
        debug_assert!(
            out.is_sorted_by(|newer, older| newer.seqno >= older.seqno),
            "of a parent no more is seen than of its branch"
        );
        Ok(out)
    }

    /// The sources of what was written to a tree.
    pub(crate) fn own_sources(
        &self,
        view: &View,
        tree: &TreeVersion,
        bounds: &Arc<Bounds>,
        seqno: Seqno,
    ) -> Result<Vec<Source>, VtError> {
        let mut out = Vec::new();
        let id = tree.info.id;
        let (start, end) = (bounds.start.as_slice(), bounds.end.as_deref());
        for buffer in &view.buffers {
            let runs = buffer.direct.overlapping(id, start, end);
            if runs.is_empty() && !buffer.memtable.may_hold(id) {
                continue;
            }
            let range_deletes = buffer.memtable.range_deletes(id);
            let deletes = if range_deletes.is_empty() {
                SourceDeletes::None
            } else {
                SourceDeletes::All(range_deletes)
            };
            let entries = buffer.memtable.iter(id);
            let mut entries = match bounds.is_of_keys {
                true => entries,
                false => Box::new(Loading::new(entries, self.values(), Arc::clone(bounds))),
            };
            if !runs.is_empty() {
                let mut all = vec![entries];
                all.extend(runs.iter().map(|run| run.blocks.iter(Arc::clone(bounds))));
                entries = Box::new(MergeIter::new(all));
            }
            out.push(Source::new(entries, deletes, seqno));
        }
        let levels = &tree.levels;
        let before = out.len();
        for handle in &levels[0].tables {
            if handle.meta().overlaps(start, end) {
                let table = self.table(handle);
                let deletes = if handle.meta().range_delete_count > 0 {
                    SourceDeletes::All(table.range_deletes()?)
                } else {
                    SourceDeletes::None
                };
                out.push(Source::new(table.iter(Arc::clone(bounds)), deletes, seqno));
            }
        }
        self.parts.level0.note_scan(out.len() - before);
        for level in &levels[1..] {
            out.extend(self.level_source(level, bounds, seqno)?);
        }
        debug_assert!(
            out.len() < view.buffers.len() + levels[0].tables.len() + levels.len(),
            "one for each memtable, table of level 0, and level below"
        );
        Ok(out)
    }

    fn level_source(
        &self,
        level: &Level,
        bounds: &Arc<Bounds>,
        seqno: Seqno,
    ) -> Result<Option<Source>, VtError> {
        let touched = level.overlapping(&bounds.start, bounds.end.as_deref());
        if touched.is_empty() {
            return Ok(None);
        }
        let handles = level.tables[touched].to_vec();
        let mut deletes = Vec::new();
        if level.has_range_deletes {
            for handle in handles.iter().filter(|h| h.meta().range_delete_count > 0) {
                deletes.push((Arc::clone(handle), self.table(handle).range_deletes()?));
            }
        }
        debug_assert!(
            level.has_range_deletes || handles.iter().all(|h| h.meta().range_delete_count == 0),
            "a level knows of its tables' range deletes"
        );
        let deletes = if deletes.is_empty() {
            SourceDeletes::None
        } else {
            SourceDeletes::Level(deletes)
        };
        debug_assert!(
            handles
                .iter()
                .all(|h| h.meta().overlaps(&bounds.start, bounds.end.as_deref())),
            "only tables with keys within the bounds are read"
        );
        let tables = handles.iter().map(|h| Arc::clone(self.table(h))).collect();
        let bounds = Arc::clone(bounds);
        let parts = LevelTables {
            handles,
            tables,
            bounds,
            growth: Arc::default(),
        };
        debug_assert!(
            parts
                .handles
                .is_sorted_by(|a, b| a.meta().smallest <= b.meta().smallest),
            "tables of a level are in key order"
        );
        let entries = Box::new(Concat::new(parts));
        Ok(Some(Source::new(entries, deletes, seqno)))
    }
}

/// Tables of a level, as parts of a row of entries.
struct LevelTables {
    handles: Vec<Arc<TableHandle>>,
    tables: Vec<Arc<Table>>,
    bounds: Arc<Bounds>,
    growth: Arc<StreamGrowth>,
}

impl ConcatParts for LevelTables {
    type Cursor = TableIter;

    fn count(&self) -> usize {
        debug_assert_eq!(
            self.handles.len(),
            self.tables.len(),
            "each table has its reader"
        );
        self.handles.len()
    }

    fn is_before(&self, part: usize, key: &[u8]) -> bool {
        !self.handles[part].meta().reaches(key)
    }

    fn is_from(&self, part: usize, key: &[u8]) -> bool {
        self.handles[part].meta().smallest.as_slice() >= key
    }

    fn open(&self, part: usize) -> TableIter {
        self.tables[part].iter_at(Arc::clone(&self.bounds), Arc::clone(&self.growth))
    }
}
