//! The file system that a transaction is committed to: mainline, or that of its outer transaction.
//!
//! 1. What the target has written up to now is read, and conflicts end the commit.
//! 2. The engine prepares to absorb. The target goes on meanwhile.
//! 3. Clones that were read are frozen, then the target. What they have written since 1 is read and
//!    checked. Trees that the target has removed are empty by then.
//! 4. One commit of the engine: the trees are absorbed, with the joined rows and the outcome.
//! 5. The target's memory learns what changed ([`Lesson`]).
//!
//! A change of the target that needs no lock may come between 3 and 4: then both are repeated.
//!
//! Invariant: rows and memory of the target change in steps 4 and 5 alone, with all of its locks
//! held; if 4 fails, neither has changed.

use super::RecordRules;
use super::frozen::FrozenView;
use super::memory::Lesson;
use super::records::{ChangedRecords, RecordPlan};
use super::resolve::{Changed, Plan};
use crate::atomic::AtomicWrites;
use crate::back::BackRows;
use crate::change::Changes;
use crate::detach::DetachedTrees;
use crate::locator::Tree;
use crate::lock::Alone;
use crate::residents::Residents;
use crate::room::Room;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::Standing;
use crate::{FsError, FsResult, Notices};
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_sys::FsHeader;
use stitch_format::fs_transaction::{TransactionRecord, TransactionState};
use stitch_kv::{Batch, CommitOptions, Engine, KvError, Snapshot, SpaceClass};

/// How often a commit is tried again because of changes that need no lock, such as those of files
/// without names.
const TRIES: usize = 16;

/// What mainline had written by a moment, looked at while it goes on.
struct ChangedBefore<'t> {
    moment: Snapshot,
    files: Changed<'t>,
    /// By what `files` says, until it is used.
    plan: Option<Plan<'t>>,
    records: ChangedRecords,
}

impl<'t> ChangedBefore<'t> {
    /// Returns what a commit does, if mainline has written these keys since the moment.
    fn plan(&mut self, frozen: &FrozenView<'t>, mut since: Changed<'t>) -> FsResult<Plan<'t>> {
        if let Some(plan) = self.plan.take_if(|_| since.is_empty()) {
            return Ok(plan);
        }
        since.add(&self.files);
        Plan::new(frozen.trees, frozen.own, &since)
    }
}

/// What a commit reads and changes of the file system that it is committed to.
#[derive(Clone, Copy)]
pub(super) struct CommitTarget<'fs> {
    pub(super) engine: &'fs Arc<dyn Engine>,
    pub(super) store: &'fs Store,
    pub(super) residents: &'fs Residents,
    pub(super) header: &'fs Mutex<FsHeader>,
    pub(super) standing: &'fs Standing,
    pub(super) rules: &'fs dyn RecordRules,
    /// A commit to it is made durable.
    pub(super) syncs: bool,
    room: &'fs Room,
    back_rows: &'fs BackRows,
    atomic_writes: &'fs AtomicWrites,
    changes: Changes<'fs>,
    /// Trees that were removed and are not empty. What is in them has its rows as if it was still
    /// there, so a commit empties them first: then a removal is a change of each row.
    pub(super) removed: DetachedTrees<'fs>,
}

impl<'fs> CommitTarget<'fs> {
    pub(super) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            engine: fs.engine(),
            store: &fs.store,
            residents: &fs.residents,
            header: &fs.header,
            standing: &fs.standing,
            rules: &*fs.options.records,
            syncs: fs.syncs(),
            room: &fs.room,
            back_rows: &fs.back_rows,
            atomic_writes: &fs.atomic_writes,
            changes: Changes::of(fs),
            removed: DetachedTrees::of(fs),
        }
    }
}

impl CommitTarget<'_> {
    /// Commits a transaction to it. Returns what caches above it have to drop.
    ///
    /// # Errors
    /// [`FsError::Conflict`] with all conflicts; [`FsError::NoSpace`]; those of the engine. Nothing
    /// is changed then.
    pub(super) fn commit(&self, frozen: &FrozenView<'_>) -> FsResult<Notices> {
        // What changed up to here is looked at while mainline goes on.
        let moment = self.engine.snapshot();
        debug_assert!(
            Tree::ALL
                .iter()
                .all(|tree| frozen.trees.parent(*tree) == self.store.tree(*tree)),
            "the branches are of the trees that absorb them"
        );
        let files = frozen.own.changed(frozen.trees, None)?;
        let changed_records = frozen.records.changed(None)?;
        let plan = Plan::new(frozen.trees, frozen.own, &files)?;
        let records = frozen.records.plan(&changed_records, self.rules)?;
        frozen.check(&plan, &records, None)?;
        debug_assert!(!plan.has_conflicts(), "they end the commit");
        let before = ChangedBefore {
            moment,
            files,
            plan: Some(plan),
            records: changed_records,
        };
        self.engine.prepare_absorb(&frozen.absorbed())?;
        let written = frozen.records.names();
        let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
        let outer = frozen.record.outer;
        let mut paused = self.rules.pause(outer, &names);
        let committed = self.commit_again(frozen, before);
        if committed.is_ok() {
            written
                .iter()
                .for_each(|(name, keys)| paused.changed(name, keys));
        }
        committed
    }

    /// Tries a commit until nothing that needs no lock comes between its check and itself.
    fn commit_again<'t>(
        &self,
        frozen: &FrozenView<'t>,
        mut before: ChangedBefore<'t>,
    ) -> FsResult<Notices> {
        let mut tries = 0;
        loop {
            debug_assert!(tries <= TRIES, "the last try ends it");
            match self.try_commit(frozen, &mut before) {
                Ok(Some(notices)) => return Ok(notices),
                Ok(None) => self.removed.empty_all()?,
                Err(FsError::Storage(KvError::Conflict { .. })) if tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Tries a commit. `None` if the target has trees that are to be emptied first.
    fn try_commit<'t>(
        &self,
        frozen: &FrozenView<'t>,
        before: &mut ChangedBefore<'t>,
    ) -> FsResult<Option<Notices>> {
        let clones = frozen.clones_to_lock();
        let clones_still = clones
            .iter()
            .map(|clone| clone.fs().residents.locks.all_write());
        let _clones_still: Vec<Alone<'_>> = clones_still.collect();
        let _still = self.residents.locks.all_write();
        let _reclaims = self.room.reclaiming.lock();
        if self.removed.count() > 0 {
            return Ok(None);
        }
        let now = self.engine.snapshot();
        let changed = frozen.own.changed(frozen.trees, Some(&before.moment))?;
        let mut records = frozen.records.changed(Some(&before.moment))?;
        records.extend(before.records.iter().cloned());
        let records = frozen.records.plan(&records, self.rules)?;
        let mut plan = before.plan(frozen, changed)?;
        plan.check_clones(self.standing)?;
        frozen.check(&plan, &records, Some(&before.moment))?;
        debug_assert!(!plan.has_conflicts(), "they end the commit");
        debug_assert!(before.moment.seqno() <= now.seqno(), "moments follow");
        debug_assert!(
            frozen.own.names_contents(frozen.trees)?,
            "a write of contents puts the row of the inode"
        );
        let mut lesson = Lesson::of(self, frozen.own, &plan)?;
        let prepared = lesson.prepare(self.residents);
        let absorbed =
            prepared.and_then(|()| self.absorb(frozen, (&plan, &records), &lesson, &now));
        if let Err(error) = absorbed {
            lesson.release(self.residents);
            return Err(error);
        }
        // Their files may be among those that the transaction has changed.
        self.atomic_writes.end_all();
        let applied = self
            .changes
            .apply_absorbed(std::mem::take(&mut lesson.events));
        lesson.apply_rest(self);
        lesson.release(self.residents);
        applied.map(Some)
    }

    /// The one commit of the engine.
    fn absorb(
        &self,
        frozen: &FrozenView<'_>,
        (plan, records): (&Plan<'_>, &RecordPlan),
        lesson: &Lesson<'_>,
        now: &Snapshot,
    ) -> FsResult<()> {
        debug_assert!(
            frozen.number.0 < frozen.record.first_ino,
            "the number is none of an inode in it"
        );
        debug_assert!(
            !frozen.within.contains(&frozen.number),
            "its own record is put"
        );
        let mut batch = Batch::new();
        plan.put_joined(frozen.trees, &mut batch);
        records.put_joined(&mut batch);
        if self.back_rows.are_kept() && !frozen.back_rows.are_kept() {
            lesson.put_back_rows(self.store, &mut batch);
        }
        let record = TransactionRecord {
            state: TransactionState::Committed(self.changes.now()),
            resolutions: Vec::new(),
            ..frozen.record.clone()
        };
        let catalog = frozen.catalog.store;
        let key = catalog.keys.transaction(frozen.number);
        batch.put(catalog.tree(key.tree()), &key, &record.encode());
        for number in &frozen.within {
            let key = catalog.keys.transaction(*number);
            batch.delete(catalog.tree(key.tree()), &key);
        }
        debug_assert!(
            batch.count() > frozen.within.len(),
            "its outcome comes along"
        );
        let guards = frozen.guards(now);
        debug_assert!(!guards.is_empty(), "names, at least, are guarded");
        let options = CommitOptions {
            sync: false,
            space: SpaceClass::Normal,
        };
        let absorb = || {
            let absorbed = self
                .engine
                .absorb(&frozen.absorbed(), &batch, &guards, options);
            Ok(match absorbed {
                Ok(_) => Ok(()),
                Err(KvError::Unknown) if frozen.catalog.is_committed(frozen.number)? => Ok(()),
                Err(error) => Err(error.into()),
            })
        };
        self.changes
            .absorb(&lesson.events, lesson.unwritten_added, absorb)
    }
}
