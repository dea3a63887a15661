//! Clones that a rollback brings back: a snapshot shows them, and they were destroyed since, or
//! moved out of the directory.
//!
//! ```text
//! snapshot   dir/a: graft 20, clone 1      a/b: graft 31 in clone 1, clone 2
//! present    both were destroyed
//!
//! begin      no other view is made
//! branch     trees of 5 and 6, as branches of those of 1 and 2 at the moment of the snapshot
//! stage      the name dir/a, record 5 {home 0, graft 20}, record 6 {home 5, graft 31}
//! ```
//!
//! They are other views than before, with other numbers: the trees of the destroyed ones are those
//! of the snapshot. A record has the owner, the path and the time of creation that the snapshot
//! has.
//!
//! Invariants:
//! - a clone and those in it are recorded in the batch that puts the name of the outermost one;
//! - trees without a record are dropped: after a failure, or by the next open. A rollback that is
//!   finished later makes others for the names that it has still to put.

use super::branch::{branch_views, trees_of};
use super::inner::INNER_CLONES_MAX;
use super::set::drop_trees;
use super::{CloneInfo, Standing, ViewSet};
use crate::rows::RowBatch;
use crate::snapshot::SnapshotView;
use crate::{FsError, FsResult};
use std::collections::HashMap;
use std::ops::Range;
use stitch_base::Ino;
use stitch_base::sync::{Arc, MutexGuard};
use stitch_format::fs_back::Place;
use stitch_format::fs_view::ViewRecord;
use stitch_kv::{Engine, Snapshot};

/// A clone that is made again, and those in it.
#[derive(Debug)]
struct LostClone {
    /// Number of the outermost view. Those of the others follow.
    first: u64,
    /// The graft of the first is that of the snapshot until it is staged.
    records: Vec<ViewRecord>,
}

/// The clones that one rollback brings back.
pub(crate) struct RestoredClones<'fs> {
    engine: &'fs Arc<dyn Engine>,
    views: &'fs ViewSet,
    /// The file system that gets their names.
    home: u64,
    /// Numbers are given out one by one.
    _making: MutexGuard<'fs, ()>,
    /// Number of the first view that is made.
    first: u64,
    /// Those that are not staged yet, by their grafts in the snapshot.
    lost: HashMap<Ino, LostClone>,
    /// Views whose record is in the batch that is not committed yet.
    staged: Range<u64>,
}

impl<'fs> RestoredClones<'fs> {
    /// Keeps others from making views. To be called before the locks of the file system are taken.
    pub(crate) fn begin(standing: &'fs Standing, engine: &'fs Arc<dyn Engine>) -> FsResult<Self> {
        let views = &*standing.views;
        let (making, first) = views.begin_making(INNER_CLONES_MAX as u64)?;
        debug_assert!(first > 0, "0 is mainline");
        // Those of an attempt that ended badly.
        drop_trees(engine.as_ref(), |of| of >= first)?;
        Ok(Self {
            engine,
            views,
            home: standing.number,
            _making: making,
            first,
            lost: HashMap::new(),
            staged: first..first,
        })
    }

    /// Makes the trees of the clones that a snapshot shows at these directories, and of those in
    /// them, of its moment. They are staged in this order.
    ///
    /// # Errors
    /// [`FsError::TooManyClones`]; [`FsError::TooDeep`]; those of a read.
    pub(crate) fn branch(
        &mut self,
        past: &SnapshotView,
        grafts: &[Ino],
        at: &Snapshot,
    ) -> FsResult<()> {
        debug_assert!(self.lost.is_empty(), "they are made in one step");
        let mut sources: Vec<u64> = Vec::new();
        for graft in grafts {
            let clone = past.fs().clone_at(*graft);
            let clone = clone.ok_or(FsError::Corrupt(format!("no clone at inode {graft}")))?;
            let lost = self.plan(past, &clone, &mut sources)?;
            self.lost.insert(*graft, lost);
        }
        debug_assert_eq!(self.lost.len(), grafts.len(), "a directory has one name");
        if sources.is_empty() {
            return Ok(());
        }
        let listed = self.engine.trees_at(at);
        let parents = trees_of(&listed, sources.iter().copied());
        let gone = || FsError::Corrupt("a snapshot lacks trees of a clone".to_owned());
        let parents = parents.ok_or_else(gone)?;
        let made = branch_views(self.engine.as_ref(), &parents, self.first, Some(at))?;
        Ok(self.engine.release_replaced(&made)?)
    }

    /// Plans a clone of the snapshot. `sources` gets the views that the new ones are branches of.
    fn plan(
        &self,
        past: &SnapshotView,
        clone: &CloneInfo,
        sources: &mut Vec<u64>,
    ) -> FsResult<LostClone> {
        let first = self.first + sources.len() as u64;
        let inner = past.clones_in(clone)?;
        let mut views = vec![(self.home, clone.number)];
        let home_of = |above: usize| first + above as u64;
        views.extend(
            inner
                .iter()
                .map(|inner| (home_of(inner.above), inner.info.number)),
        );
        if sources.len() + views.len() > INNER_CLONES_MAX {
            return Err(FsError::TooManyClones(INNER_CLONES_MAX));
        }
        let mut records = Vec::with_capacity(views.len());
        for (home, number) in views {
            let record = past.fs().standing.views.record(number);
            let record = record.ok_or(FsError::NotFound)?;
            debug_assert!(home < first + records.len() as u64, "its home comes first");
            records.push(ViewRecord { home, ..record });
            sources.push(number);
        }
        debug_assert_eq!(
            records.first().map(|record| record.home),
            Some(self.home),
            "the outermost one is in this file system"
        );
        debug_assert!(
            records.iter().skip(1).all(|record| record.home >= first),
            "the others are in it"
        );
        Ok(LostClone { first, records })
    }

    /// Stages the records of the clone that the snapshot shows at `was`, and of those in it, in the
    /// batch that puts the name of `graft`, its directory from now on. Does nothing if no clone is
    /// to be made there.
    pub(crate) fn stage(
        &mut self,
        batch: &mut RowBatch<'_>,
        was: Ino,
        (graft, way): (Ino, Vec<(Ino, Place)>),
    ) {
        let Some(mut lost) = self.lost.remove(&was) else {
            return;
        };
        debug_assert_eq!(lost.records[0].graft, was, "the clone of the directory");
        lost.records[0].graft = graft;
        let end = lost.first + lost.records.len() as u64;
        if self.staged.is_empty() {
            self.staged.start = lost.first;
        }
        debug_assert!(self.staged.start <= lost.first, "in the order of branches");
        self.staged.end = end;
        self.views.stage_made(batch, lost.first, lost.records);
        self.views.ways.note(self.home, way);
    }

    /// Notes that the batch was committed.
    pub(crate) fn note_committed(&mut self) {
        debug_assert!(self.staged.start >= self.first, "views of this rollback");
        self.staged.start = self.staged.end;
    }

    /// Reports whether all of them are made.
    pub(crate) fn are_made(&self) -> bool {
        self.lost.is_empty() && self.staged.is_empty()
    }

    /// Drops the trees that have no record, after a rollback that failed.
    ///
    /// # Errors
    /// Those of a read or of the engine: then the next open drops them.
    pub(crate) fn give_up(self) -> FsResult<()> {
        if !self.staged.is_empty() {
            self.views.unmake_unless_stored(self.staged.clone())?;
        }
        let is_unrecorded = |of: u64| of >= self.first && self.views.record(of).is_none();
        drop_trees(self.engine.as_ref(), is_unrecorded)
    }
}
