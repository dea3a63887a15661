//! Commit of a transaction.

use super::life::is_open;
use super::memory::Lesson;
use super::own::{BranchTrees, Own};
use super::reads::Validation;
use super::records::{BranchRecords, ChangedRecords, RecordPlan};
use super::resolve::{Changed, Plan};
use super::{RecordRules, TransactionView};
use crate::locator::Tree;
use crate::system::FileSystem;
use crate::{FsError, FsResult, Notices};
use stitch_base::{Ino, TreeId};
use stitch_format::fs_transaction::{TransactionRecord, TransactionState};
use stitch_kv::{Batch, CommitOptions, Guards, KeyRange, KvError, Snapshot, SpaceClass};

/// How often a commit is tried again because of changes that need no lock, such as those of files
/// without names.
const TRIES: usize = 16;
/// Most guards on keys of one tree.
const GUARDS_MAX: usize = 8192;

/// A transaction that is frozen, and what it has written.
struct FrozenView<'t> {
    number: Ino,
    record: TransactionRecord,
    fs: &'t FileSystem,
    /// What the record is in.
    mainline: &'t FileSystem,
    /// Those that were committed to it.
    within: Vec<Ino>,
    trees: &'t BranchTrees,
    own: &'t Own,
    records: &'t BranchRecords,
    /// What it has read, if that is checked.
    reads: Option<Validation<'t>>,
}

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

impl FileSystem {
    /// Commits a transaction: mainline has all of its changes at once, those of records included.
    /// What mainline has changed since the transaction began stays.
    ///
    /// Directories join: different names that were made in one directory are no conflict. A name
    /// or an inode that both sides changed is one. So is a directory that one side removed or moved
    /// while the other changed names in it, and a directory that was moved below one that mainline
    /// has moved. A record that both sides wrote is one, too, and so is one that mainline wrote in
    /// a range that the transaction has deleted. Of a serializable transaction, so is what it has
    /// read and mainline has changed: then its commit is as if all of it had run at once.
    ///
    /// A transaction that began in another one is committed to that one, by the same rules: what
    /// is said of mainline here is true of its outer transaction. The path locks that it has are
    /// the outer one's afterwards.
    ///
    /// Returns what caches above mainline have to drop.
    ///
    /// # Errors
    /// [`FsError::Conflict`] with all conflicts: the transaction stays open and whole, mainline is
    /// as it was. [`FsError::HasInner`] if a transaction in it is open. [`FsError::Ended`] if it
    /// was committed or aborted before; [`FsError::NoSpace`], [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns, unless it is in a run. A crash leaves all of it or nothing.
    ///
    /// # Cost
    /// Reads the changed rows of names and inodes: about 500 bytes of memory for each. If mainline
    /// has written contents of the same inodes, reads the keys of the contents, too: 7 MB for a
    /// gigabyte. Looks for changes of each range of keys that a serializable transaction has read.
    /// Mainline waits for the check of what it wrote since this call began, and for the engine's
    /// absorb, of which most was done before.
    pub fn commit_transaction(&self, view: &TransactionView) -> FsResult<Notices> {
        self.check_writable()?;
        self.check_mainline()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let record = self.open_record(view.number)?;
        self.check_no_inner(view.number)?;
        if !record.resolutions.is_empty() {
            let rebased = self.rebase_open(view, &record)?;
            let record = self.open_record(rebased.number)?;
            return self.commit_open(&rebased, record);
        }
        self.commit_open(view, record)
    }

    fn commit_open(&self, view: &TransactionView, record: TransactionRecord) -> FsResult<Notices> {
        let (number, target) = (view.number, self.target_of(view));
        let _frozen = view.fs.residents.locks.all_write();
        let trees = BranchTrees::of(&view.fs)?;
        let own = Own::read(&trees)?;
        let mut records_end = view.records.gate().close();
        let records = BranchRecords::read(self.engine(), number, &view.records)?;
        // Without writes it is as if it had run at its beginning.
        let is_checked = !own.is_empty() || !records.names().is_empty();
        let reads = view.fs.reads.as_ref().filter(|_| is_checked);
        let frozen = FrozenView {
            reads: reads.map(|reads| Validation::new(reads, &trees)),
            number,
            record,
            fs: &view.fs,
            mainline: self,
            within: self.numbers_within(number)?,
            trees: &trees,
            own: &own,
            records: &records,
        };
        let committed = target.commit_frozen(&frozen)?;
        *records_end = true;
        if let Some(outer) = &view.outer {
            self.path_locks()
                .pass_on(number, outer.number, &outer.full_name());
        }
        self.transactions.forget(number);
        if target.syncs() {
            self.engine().sync()?;
        }
        if let Err(error) = self.engine().drop_trees(&records.dropped()) {
            tracing::warn!(%error, "a tree of a committed transaction is dropped at the next open");
        }
        Ok(committed)
    }

    fn commit_frozen(&self, frozen: &FrozenView<'_>) -> FsResult<Notices> {
        // What changed up to here is looked at while mainline goes on.
        let moment = self.engine().snapshot();
        let files = frozen.changed(None)?;
        let changed_records = frozen.records.changed(None)?;
        let plan = Plan::new(frozen.trees, frozen.own, &files)?;
        let records = frozen.records.plan(&changed_records, self.record_rules())?;
        frozen.check(&plan, &records, None)?;
        let before = ChangedBefore {
            moment,
            files,
            plan: Some(plan),
            records: changed_records,
        };
        self.engine().prepare_absorb(&frozen.absorbed())?;
        let written = frozen.records.names();
        let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
        let outer = frozen.record.outer;
        let mut paused = self.record_rules().pause(outer, &names);
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
        for _ in 0..TRIES {
            match self.try_commit(frozen, &mut before) {
                Err(FsError::Storage(KvError::Conflict { .. })) => {}
                done => return done,
            }
        }
        self.try_commit(frozen, &mut before)
    }

    fn record_rules(&self) -> &dyn RecordRules {
        &*self.options.records
    }

    fn try_commit<'t>(
        &self,
        frozen: &FrozenView<'t>,
        before: &mut ChangedBefore<'t>,
    ) -> FsResult<Notices> {
        let _still = self.residents.locks.all_write();
        let _reclaims = self.room.reclaiming.lock();
        let now = self.engine().snapshot();
        let changed = frozen.changed(Some(&before.moment))?;
        let mut records = frozen.records.changed(Some(&before.moment))?;
        records.extend(before.records.iter().cloned());
        let records = frozen.records.plan(&records, self.record_rules())?;
        let mut plan = before.plan(frozen, changed)?;
        plan.check_clones(self)?;
        frozen.check(&plan, &records, Some(&before.moment))?;
        debug_assert!(
            frozen.own.names_contents(frozen.trees)?,
            "a write of contents puts the row of the inode"
        );
        let mut lesson = Lesson::of(self, frozen.own, &plan)?;
        let prepared = lesson.prepare(self);
        let absorbed =
            prepared.and_then(|()| self.absorb(frozen, (&plan, &records), &lesson, &now));
        if let Err(error) = absorbed {
            lesson.release(self);
            return Err(error);
        }
        // Their files may be among those that the transaction has changed.
        self.atomic_writes.end_all();
        let applied = self.apply_unasked(std::mem::take(&mut lesson.events));
        lesson.apply_rest(self);
        lesson.release(self);
        applied
    }

    /// The one commit of the engine.
    fn absorb(
        &self,
        frozen: &FrozenView<'_>,
        (plan, records): (&Plan<'_>, &RecordPlan),
        lesson: &Lesson<'_>,
        now: &Snapshot,
    ) -> FsResult<()> {
        let mut batch = Batch::new();
        plan.put_joined(frozen.trees, &mut batch);
        records.put_joined(&mut batch);
        if self.back_rows.are_kept() && !frozen.fs.back_rows.are_kept() {
            lesson.put_back_rows(self, &mut batch);
        }
        let record = TransactionRecord {
            state: TransactionState::Committed(self.now()),
            resolutions: Vec::new(),
            ..frozen.record.clone()
        };
        let catalog = &frozen.mainline.store;
        let key = catalog.keys.transaction(frozen.number);
        batch.put(catalog.tree(key.tree()), &key, &record.encode());
        for number in &frozen.within {
            let key = catalog.keys.transaction(*number);
            batch.delete(catalog.tree(key.tree()), &key);
        }
        let unwritten = lesson.unwritten_added;
        self.aside_by(unwritten.max(0))?;
        self.announce(&lesson.events);
        let guards = frozen.guards(now);
        let options = CommitOptions {
            sync: false,
            space: SpaceClass::Normal,
        };
        let absorbed = self
            .engine()
            .absorb(&frozen.absorbed(), &batch, &guards, options);
        match absorbed {
            Ok(_) => self.aside_by(unwritten.min(0)),
            Err(KvError::Unknown) if frozen.mainline.is_committed(frozen.number)? => {
                self.aside_by(unwritten.min(0))
            }
            Err(error) => {
                self.retract(&lesson.events);
                self.aside_by(-unwritten.max(0))?;
                Err(error.into())
            }
        }
    }

    /// Reads the outcome of a transaction.
    fn is_committed(&self, number: Ino) -> FsResult<bool> {
        let row = self.store.get(&self.store.keys.transaction(number))?;
        let record = row.map(|row| TransactionRecord::decode(&row)).transpose()?;
        Ok(record.is_some_and(|record| !is_open(&record)))
    }

    /// Sets room aside for more chunks, or for less. Of those in a transaction its commit does.
    fn aside_by(&self, chunks: i64) -> FsResult<()> {
        if self.branch.is_some() {
            return Ok(());
        }
        match chunks {
            0 => Ok(()),
            1.. => self
                .aside
                .set_more(self.engine().as_ref(), chunks.unsigned_abs()),
            _ => {
                self.aside
                    .set_less(self.engine().as_ref(), chunks.unsigned_abs());
                Ok(())
            }
        }
    }
}

impl<'t> FrozenView<'t> {
    /// The branch trees that the commit absorbs.
    fn absorbed(&self) -> Vec<TreeId> {
        let mut trees = self.trees.ids();
        trees.extend(self.records.absorbed());
        trees
    }

    /// Keys that mainline has written since a moment, or since the transaction began.
    fn changed(&self, since: Option<&Snapshot>) -> FsResult<Changed<'t>> {
        self.own.changed(self.trees, since)
    }

    /// Refuses what conflicts: rows, records, and what was read and is changed since a moment, or
    /// since the transaction began.
    fn check(
        &self,
        plan: &Plan<'_>,
        records: &RecordPlan,
        since: Option<&Snapshot>,
    ) -> FsResult<()> {
        let mut conflicts = match plan.has_conflicts() {
            true => plan.conflicts(self.fs, self.own)?,
            false => Vec::new(),
        };
        let rules = &*self.fs.options.records;
        conflicts.extend(records.conflicts(rules));
        if let Some(reads) = &self.reads {
            let (files, records) = (self.fs, self.records);
            reads.add_all_conflicts((files, records), since, rules, &mut conflicts)?;
        }
        match conflicts.is_empty() {
            true => Ok(()),
            false => Err(FsError::Conflict(conflicts.into())),
        }
    }

    /// Nothing that the plan was made from changes until the commit: mainline is frozen, but for
    /// changes that need no lock.
    fn guards(&self, now: &Snapshot) -> Guards {
        let mut guards = Guards::since(now);
        for tree in Tree::ALL {
            let parent = self.trees.parent(tree);
            match tree {
                Tree::Sys => {
                    let keys: Vec<&[u8]> = self.own.sys_keys().collect();
                    guard_all(&mut guards, parent, &keys);
                }
                _ => guards.range(parent, KeyRange::all()),
            }
        }
        self.records.guard(&mut guards);
        if let Some(reads) = &self.reads {
            self.records.guard_reads(reads.records(), &mut guards);
        }
        guards
    }
}

/// Guards keys, which are in order. Of very many of them, what lies between is guarded too: a
/// change there is no conflict, the commit is tried again.
fn guard_all(guards: &mut Guards, parent: TreeId, keys: &[&[u8]]) {
    let each = keys.len().div_ceil(GUARDS_MAX).max(1);
    for part in keys.chunks(each) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            continue;
        };
        match part.len() {
            1 => guards.key(parent, first),
            _ => guards.range(parent, KeyRange::new(first, &[last, &[0][..]].concat())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::Seqno;
    use stitch_base::sync::Arc;
    use stitch_kv::Guarded;

    #[test]
    fn guards_of_many_keys_hold_each_and_keep_within_their_bound() {
        let at = Snapshot::new(Seqno(1), Arc::new(()));
        for count in [0, 1, GUARDS_MAX, GUARDS_MAX + 1, 7 * GUARDS_MAX + 3] {
            let keys: Vec<Vec<u8>> = (0..count).map(|n| (2 * n).to_be_bytes().to_vec()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut guards = Guards::since(&at);
            guard_all(&mut guards, TreeId(1), &keys);
            assert!(guards.count() <= GUARDS_MAX);
            let all: Vec<Guarded<'_>> = guards.iter().map(|guard| guard.on).collect();
            let guard_of = |n: usize| n / count.div_ceil(GUARDS_MAX).max(1);
            for (n, key) in keys.iter().enumerate().step_by(97) {
                assert!(all[guard_of(n)].holds(key), "{n} of {count}");
            }
            if let Some(last) = keys.last() {
                assert!(all.last().expect("there is one").holds(last));
            }
        }
    }
}
