//! Begins reads: finds the view that has a tree at a moment, and refuses keys that a pin does not
//! hold.

use super::VtEngine;
use crate::cache::ReadCount;
use crate::read::VtScan;
use crate::view::View;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Direction, Guarded, KeyRange, KvError, Scan, Snapshot};

impl VtEngine {
    /// The view to read in, and the newest write to see. The view is taken first: what it holds is
    /// then at least as old as the number, never newer than a compaction would keep for it.
    pub(super) fn reading(
        &self,
        (tree, on): (TreeId, Guarded<'_>),
        at: Option<&Snapshot>,
    ) -> Result<(Arc<View>, Seqno), KvError> {
        let view = self.views.get();
        let Some(snapshot) = at else {
            let seqno = Seqno(self.visible.load(Ordering::Acquire));
            let is_living = view.version.is_living(tree);
            return is_living
                .then_some((view, seqno))
                .ok_or(KvError::NoTree(tree));
        };
        let hold = self.store.snapshots.own(snapshot);
        let hold =
            hold.ok_or_else(|| KvError::Invalid("a snapshot of another store".to_owned()))?;
        hold.check_held(&view.version, (tree, on))?;
        let view = hold.view_of(view, tree).ok_or(KvError::NoTree(tree))?;
        debug_assert!(
            view.version.trees.contains_key(&tree),
            "the view has the tree"
        );
        debug_assert!(
            snapshot.seqno().0 <= self.visible.load(Ordering::Acquire),
            "a snapshot is of the past"
        );
        Ok((view, snapshot.seqno()))
    }

    /// As [`Self::reading`], of several keys or ranges.
    pub(super) fn reading_all<'a>(
        &self,
        tree: TreeId,
        on: impl Iterator<Item = Guarded<'a>>,
        at: Option<&Snapshot>,
    ) -> Result<(Arc<View>, Seqno), KvError> {
        let none = Guarded::Range(KeyRange::new(&[], &[]));
        let (view, seqno) = self.reading((tree, none), at)?;
        if let Some(hold) = at.and_then(|at| self.store.snapshots.own(at)) {
            for on in on {
                hold.check_held(&view.version, (tree, on))?;
            }
        }
        debug_assert!(
            at.is_none_or(|at| at.seqno() == seqno),
            "a snapshot is read at its moment"
        );
        Ok((view, seqno))
    }

    /// Begins a scan in a direction; `true` beside it if all of the range will be read.
    pub(super) fn begin_scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        way: (Direction, bool),
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let complete = Seqno(self.visible.load(Ordering::Acquire));
        let (view, seqno) = self.reading((tree, Guarded::Range(range)), at)?;
        debug_assert!(
            at.is_some() || complete <= seqno,
            "visible commits stay visible"
        );
        self.store.cache.counters().add(ReadCount::Scans, 1);
        let seqnos = (seqno, complete);
        let scan = VtScan::new(&self.reads, view, tree, range, way, seqnos)?;
        Ok(Box::new(scan))
    }
}
