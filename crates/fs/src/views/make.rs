//! Making clones.

use super::branch::{branch_views, trees_of};
use super::inner::{GraftFinder, INNER_CLONES_MAX, InnerClone, in_view};
use super::set::drop_trees;
use super::{CloneInfo, ViewLimits, ViewOpener, ViewSet};
use crate::change::Changes;
use crate::inode::Holds;
use crate::locator::Tree;
use crate::namespace::{NameChanges, check_name};
use crate::residents::Residents;
use crate::snapshot::{pin_name, walk_path};
use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult, NewNode};
use std::collections::BTreeSet;
use std::ops::Range;
use stitch_base::clock::Clock;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_view::{VIEW_PATH_BYTES_MAX, ViewRecord, ViewState};
use stitch_kv::{Engine, KvError, Snapshot};

/// How often a clone is begun again because its source, or a directory above it, was renamed.
const TRIES: usize = 16;

/// What a clone is made of.
#[derive(Clone, Copy, Debug)]
pub struct CloneSource<'a> {
    /// The file system that has the directory. Of a snapshot, that of its moment.
    pub fs: &'a FileSystem,
    /// The directory, which is known.
    pub dir: Ino,
    /// The name of the snapshot, if it is one.
    pub snapshot: Option<&'a str>,
}

/// Makes clones under names of one file system, their home.
///
/// 1. *Branch* the trees of the source, and of the clones in it, in one step: no operation waits.
/// 2. *Verify* in the new trees, which nothing changes, that the path still leads to the source.
/// 3. *Record* the views in one batch with the directory that the clone lies at.
///
/// Invariant: trees without a record are dropped before others get their numbers.
#[derive(Clone, Copy)]
pub(super) struct CloneMaker<'fs> {
    engine: &'fs Arc<dyn Engine>,
    limits: ViewLimits<'fs>,
    opener: ViewOpener<'fs>,
    /// Makes the directory that the clone lies at.
    names: NameChanges<'fs>,
    residents: &'fs Residents,
    holds: Holds<'fs>,
    changes: Changes<'fs>,
    clock: &'fs dyn Clock,
}

impl<'fs> CloneMaker<'fs> {
    pub(super) fn of(home: &'fs FileSystem) -> Self {
        Self {
            engine: home.engine(),
            limits: ViewLimits::of(home),
            opener: ViewOpener::of(home),
            names: NameChanges::of(home),
            residents: &home.residents,
            holds: Holds::of(home),
            changes: Changes::of(home),
            clock: &*home.options.clock,
        }
    }

    /// Returns the views of the store.
    fn views(&self) -> &'fs ViewSet {
        &self.opener.standing().views
    }

    /// Returns the number of the home.
    const fn home(&self) -> u64 {
        self.opener.standing().number
    }

    /// See [`FileSystem::make_clone`].
    pub(super) fn make(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        check_name(at.name)?;
        self.limits.check_takes_clones()?;
        ViewLimits::of(source.fs).check_can_be_cloned()?;
        let _command = self.views().commands.begin(self.clock);
        if self.home() == 0 {
            self.changes.mark_header(|header| header.has_views = true)?;
        }
        const { assert!(TRIES > 0, "it is tried") };
        let mut tried = Err(FsError::NotFound);
        for _ in 0..TRIES {
            tried = self.try_clone(caller, source, at);
            // The path led elsewhere: it was changed after it was read.
            if !matches!(tried, Err(FsError::Stale(ino)) if ino == source.dir) {
                break;
            }
        }
        let info = tried?;
        debug_assert_eq!(info.home, self.home(), "it lies where it was made");
        self.engine.sync()?;
        Ok(info)
    }

    fn try_clone(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        let path = source.fs.residents.path_of(source.dir)?;
        if path.len() > VIEW_PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let (making, plan) = {
            // No clone is of half a rollback.
            let _whole = source.fs.standing.views.snapshot_change.lock();
            let clones = source.fs.clones();
            let inner = source.inner_clones(&clones, &self.views().ways)?;
            self.check_are_whole(source, &inner)?;
            // To find them opened clones, and an open may finish a rollback, which makes views.
            let (making, first) = self.views().begin_making(INNER_CLONES_MAX as u64)?;
            debug_assert!(first > 0, "0 is mainline");
            // Those of a try that ended badly.
            drop_trees(self.engine.as_ref(), |of| of >= first)?;
            let plan = ClonePlan {
                first,
                path,
                inner,
                clones,
            };
            self.branch_trees(source, &plan)?;
            (making, plan)
        };
        let made = self.put_views(caller, source, &plan, at);
        if made.is_err() {
            drop_trees(self.engine.as_ref(), |of| of >= plan.first)?;
        }
        drop(making);
        made
    }

    /// Refuses to clone what a rollback has left a part of in the present: the clone would keep it.
    fn check_are_whole(&self, source: &CloneSource<'_>, inner: &[InnerClone]) -> FsResult<()> {
        if source.snapshot.is_some() {
            return Ok(());
        }
        debug_assert!(
            inner.iter().all(|inner| inner.info.number > 0),
            "mainline lies in no clone"
        );
        let inner = inner.iter().map(|inner| inner.info.number);
        let mut all = std::iter::once(source.fs.view_number()).chain(inner);
        match all.any(|number| self.views().under_way.is_interrupted(number)) {
            true => Err(FsError::Invalid(
                "a rollback of it was interrupted: repeat it",
            )),
            false => Ok(()),
        }
    }

    /// Makes the trees of all views of a plan, of one moment.
    fn branch_trees(&self, source: &CloneSource<'_>, plan: &ClonePlan) -> FsResult<()> {
        let engine = self.engine;
        let moment = source.snapshot.map(|name| engine.open_pin(&pin_name(name)));
        let moment = moment.transpose()?;
        let parents = self.parents_of(source, plan, moment.as_ref())?;
        let made = branch_views(engine.as_ref(), &parents, plan.first, moment.as_ref());
        let made = made.map_err(|error| match error {
            // Of a snapshot that was deleted a moment ago.
            KvError::NoTree(_) if source.snapshot.is_some() => FsError::NotFound,
            // Of a clone in the source that was removed a moment ago.
            KvError::NoTree(tree) if !parents[..Tree::ALL.len()].contains(&tree) => {
                FsError::Stale(source.dir)
            }
            error => error.into(),
        })?;
        debug_assert_eq!(
            made.len() as u64,
            (plan.numbers().end - plan.first) * Tree::ALL.len() as u64,
            "all trees of each"
        );
        Ok(engine.release_replaced(&made)?)
    }

    /// The trees that those of the views of a plan are branches of. A snapshot may show clones that
    /// were removed since: it keeps their trees.
    fn parents_of(
        &self,
        source: &CloneSource<'_>,
        plan: &ClonePlan,
        moment: Option<&Snapshot>,
    ) -> FsResult<Vec<TreeId>> {
        let own = Tree::ALL.map(|tree| source.fs.store.dictionary(tree).tree());
        let mut parents = own.to_vec();
        if plan.inner.is_empty() {
            return Ok(parents);
        }
        let trees = match moment {
            Some(at) => self.engine.trees_at(at),
            None => self.engine.trees(),
        };
        let inner = plan.inner.iter().map(|inner| inner.info.number);
        // One was removed a moment ago.
        parents.extend(trees_of(&trees, inner).ok_or(FsError::Stale(source.dir))?);
        let views = 1 + plan.inner.len();
        debug_assert_eq!(parents.len(), Tree::ALL.len() * views, "all trees of each");
        Ok(parents)
    }

    /// Puts the directory and the records of views whose trees are made.
    fn put_views(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        plan: &ClonePlan,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        let perm = self.check_branches(source, plan)?;
        let mut records = plan.records(self.home(), self.changes.now(), (source, caller))?;
        debug_assert_eq!(records[0].home, self.home(), "the outermost one lies here");
        debug_assert_eq!(
            records.len() as u64,
            plan.numbers().end - plan.first,
            "one for each view"
        );
        let new = NewNode {
            perm: u32::from(perm),
            umask: 0,
        };
        let views = self.views();
        let mut is_staged = false;
        let made = self.names.make_dir_with(caller, at, &new, |change, graft| {
            records[0].graft = graft;
            views.stage_made(&mut change.batch, plan.first, records.clone());
            is_staged = true;
        });
        match made {
            Ok(graft) => {
                debug_assert!(is_staged, "the record is in the batch");
                debug_assert_eq!(records[0].graft, graft.ino, "it lies at the directory");
                // A front end gives out the inode of the view.
                self.holds.forget(graft.ino);
                let way = self.residents.way_up(graft.ino, at);
                views.ways.note(self.home(), way);
                Ok(CloneInfo::of(plan.first, &records[0]))
            }
            Err(error) => {
                if is_staged {
                    views.unmake(plan.numbers());
                }
                Err(error)
            }
        }
    }

    /// Checks that the new trees have the directory of the source at its path, and in it the clones
    /// that were chosen. Returns the permissions of the directory.
    ///
    /// # Errors
    /// [`FsError::Stale`] with the source's directory if something was moved meanwhile.
    fn check_branches(&self, source: &CloneSource<'_>, plan: &ClonePlan) -> FsResult<u16> {
        let perm = self.opener.with_unrecorded(plan.first, |view| {
            walk_path(view, source.dir, &plan.path)?;
            let attr = view.get_attr(source.dir)?;
            plan.check_grafts(view, (0, source.fs.view_number()), source)?;
            Ok(attr.perm)
        })?;
        for (index, number) in (1..).zip(plan.numbers().skip(1)) {
            debug_assert!(number > plan.first, "it lies in one that is made with it");
            let home = plan.inner[index - 1].info.number;
            if plan.clones.iter().any(|info| info.home == home) {
                self.opener.with_unrecorded(number, |view| {
                    plan.check_grafts(view, (index, home), source)
                })?;
            }
        }
        Ok(perm)
    }
}

/// The views of one clone: its own, and those of the clones in it. All are made in one step.
struct ClonePlan {
    /// Number of the outermost view. Those of the others follow.
    first: u64,
    /// Path of the source's directory in its file system.
    path: Vec<u8>,
    inner: Vec<InnerClone>,
    /// All clones of the source's moment.
    clones: Vec<CloneInfo>,
}

impl ClonePlan {
    fn numbers(&self) -> Range<u64> {
        debug_assert!(self.first > 0, "0 is mainline");
        self.first..self.first + 1 + self.inner.len() as u64
    }

    /// Checks that the clones that were chosen for a view lie below its directory, and no others.
    /// The view has this index among those that are made, and is a branch of `home`.
    fn check_grafts(
        &self,
        view: &FileSystem,
        (index, home): (usize, u64),
        source: &CloneSource<'_>,
    ) -> FsResult<()> {
        debug_assert!(
            index <= self.inner.len(),
            "it is one of those that are made"
        );
        let top = match index.checked_sub(1) {
            None => source.dir,
            Some(inner) => self.inner[inner].info.root,
        };
        let here = self.inner.iter().filter(|inner| inner.above == index);
        let chosen: BTreeSet<Ino> = here.map(|inner| inner.info.graft).collect();
        let finder = GraftFinder::of(view, &view.standing.views.ways, home);
        match finder.has_grafts(top, &in_view(&self.clones, home), &chosen)? {
            true => Ok(()),
            false => Err(FsError::Stale(source.dir)),
        }
    }

    /// The records of all views. The graft of the first is not known yet.
    fn records(
        &self,
        home: u64,
        created_ns: i64,
        (source, caller): (&CloneSource<'_>, &Caller<'_>),
    ) -> FsResult<Vec<ViewRecord>> {
        let record = |home, root, graft, path| ViewRecord {
            state: ViewState::Live,
            owner: caller.uid,
            root,
            home,
            graft,
            created_ns,
            path,
        };
        let root = source.dir;
        let mut records = vec![record(home, root, root, self.path.clone())];
        for inner in &self.inner {
            debug_assert!(
                inner.above < records.len(),
                "the one that it lies in comes first"
            );
            let info = &inner.info;
            let of = source.fs.standing.views.record(info.number);
            // It was removed a moment ago.
            let path = of.ok_or(FsError::Stale(root))?.path;
            let above = self.first + inner.above as u64;
            records.push(record(above, info.root, info.graft, path));
        }
        debug_assert_eq!(records.len() as u64, self.numbers().end - self.first);
        Ok(records)
    }
}

#[cfg(test)]
mod tests;
