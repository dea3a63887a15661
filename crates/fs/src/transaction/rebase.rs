//! Rebase: a transaction goes on from a later moment of mainline.
//!
//! ```text
//! 1  new branches of mainline's trees, under a new number         trees without a record
//! 2  the plan of a commit, against them: conflicts end it
//! 3  what a commit would put is put into them
//! 4  one batch: the record moves from the old number to the new   the transaction is rebased
//! 5  the old branches are dropped                                 trees without a record
//! ```
//!
//! A crash leaves trees without a record, which the next open drops. Mainline goes on meanwhile: it
//! is read as of step 1. The old file system has ended after step 4: inodes that are open in it are
//! not known in the new one.
//!
//! Conflicts that were resolved are no obstacle: each inode in one is taken from one side
//! ([`winners`]), links and counters follow from the rows ([`merged`]). Each record in one is taken
//! from one side ([`BranchMerge`](stitch_db::BranchMerge)).
//!
//! A serializable transaction is rebased if all that it has read is at step 1 as it was when it
//! began: then it is as if it had run there. What it has read stays read. Its read set is closed
//! between steps 2 and 3, so a read is checked in step 2, or waits and fails after step 4.

mod merged;

mod rings;
mod shared;
mod winners;

use super::life::schema_name;
use super::nested::life_within;
use super::own::{BranchTrees, Own};
use super::reads::{ClosedReads, Validation};
use super::records::{BranchRecords, open_records};
use super::resolution::{Judge, JudgedRow, open_rows};
use super::resolve::Plan;
use super::{BranchRules, Conflict, ReadSet, TransactionView};
use crate::locator::{Locator, RowRange, SysRow, Tree};
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult, RenameMode};
use merged::MergedRows;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_format::fs_resolution::{Resolution, Side};
use stitch_format::fs_transaction::{TransactionLife, TransactionRecord};
use winners::{RebaseSides, Winners};

/// How often moves are given up because directories would be in each other.
const RINGS_MAX: usize = 64;

/// New branches, and what a transaction would put into them.
pub(super) struct Trial<'a> {
    pub(super) mainline: &'a FileSystem,
    pub(super) view: &'a TransactionView,
    fs: &'a FileSystem,
    /// The new branches.
    number: Ino,
    store: Store,
    pub(super) record: &'a TransactionRecord,
    trees: &'a BranchTrees,
    own: &'a Own,
    plan: Plan<'a>,
}

impl FileSystem {
    /// Brings a transaction to the present state of mainline: it is as if it had begun now, and
    /// its changes had been made then. Returns the transaction, which has a new number. The view
    /// that was given has ended.
    ///
    /// Conflicts that were resolved ([`Self::resolve_transaction`], [`Self::resolve_record`]) are
    /// settled by it. Of one that began in another transaction, that one is meant instead of
    /// mainline. A serializable one is rebased if mainline has changed nothing that it has read;
    /// what it has read is checked at its commit as before.
    ///
    /// # Errors
    /// [`FsError::Conflict`] with the conflicts that are open and what was read and is changed,
    /// [`FsError::Unresolvable`]: the
    /// transaction is as it was. [`FsError::Invalid`] for a run; [`FsError::HasInner`] if a
    /// transaction in it is open; [`FsError::Ended`],
    /// [`FsError::NoSpace`], [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns. A crash leaves the transaction as it was, or rebased.
    ///
    /// # Cost
    /// Copies what the transaction has written. One scan of all names, if conflicts were resolved
    /// or directories moved. Mainline does not wait.
    pub fn rebase_transaction(&self, view: &TransactionView) -> FsResult<Arc<TransactionView>> {
        self.check_writable()?;
        self.check_mainline()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let record = self.open_record(view.number)?;
        self.rebase_open(view, &record)
    }

    pub(super) fn rebase_open(
        &self,
        view: &TransactionView,
        record: &TransactionRecord,
    ) -> FsResult<Arc<TransactionView>> {
        if record.life != TransactionLife::Named {
            return Err(FsError::Invalid("a run is not rebased: run it again"));
        }
        self.check_no_inner(view.number)?;
        let _frozen = view.fs.residents.locks.all_write();
        let mut records_end = view.records.gate().close();
        let mut records = BranchRecords::read(self.engine(), view.number, &view.records)?;
        let number = self.new_ino()?;
        self.make_branches(number, view.outer.as_deref())?;
        let rebased = TransactionRecord {
            // What the branches hold has smaller numbers.
            first_ino: self.next_number(),
            resolutions: Vec::new(),
            ..record.clone()
        };
        let reads = view.fs.reads.as_deref();
        let merge = |trial: &Trial<'_>| trial.merge(&mut records, reads);
        let merged = self.on_branches(view, number, record, merge);
        if let Ok(Some(reads)) = &merged {
            // Before the record: from then on they are asked for.
            let reads = reads.rebased(rebased.first_ino);
            let reads = reads.within(view.outer.as_deref());
            self.transactions.reads.keep(number, reads);
        }
        let moved = merged.and_then(|reads| {
            self.move_record(view.number, number, &rebased)?;
            Ok(reads)
        });
        match moved {
            Ok(reads) => reads.into_iter().for_each(ClosedReads::end),
            Err(error) => {
                self.transactions.reads.forget(number);
                self.drop_branches(&[number])?;
                return Err(error);
            }
        }
        *records_end = true;
        self.path_locks()
            .pass_on(view.number, number, &view.full_name());
        self.transactions.forget(view.number);
        if let Err(error) = self.drop_branches(&[view.number]) {
            tracing::warn!(%error, "trees of a rebased transaction are dropped at the next open");
        }
        self.open_view(number, &rebased)
    }

    fn move_record(&self, from: Ino, to: Ino, record: &TransactionRecord) -> FsResult<()> {
        debug_assert!(from < to, "a later number");
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        for number in self.numbers_within(from)? {
            // It was committed to this one.
            batch.delete(&keys.transaction(number));
        }
        batch.delete(&keys.transaction(from));
        batch.put(&keys.transaction(to), &record.encode());
        // What was copied is durable before the record.
        self.engine().sync()?;
        self.commit_where_room(&batch, SpaceClass::Normal)?;
        self.engine().sync()?;
        Ok(())
    }

    /// Runs something on new branches, and drops them.
    pub(super) fn with_trial<T>(
        &self,
        view: &TransactionView,
        record: &TransactionRecord,
        run: impl FnOnce(&Trial<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.check_writable()?;
        self.check_mainline()?;
        let _frozen = view.fs.residents.locks.all_write();
        let number = self.new_ino()?;
        self.make_branches(number, view.outer.as_deref())?;
        let done = self.on_branches(view, number, record, run);
        self.drop_branches(&[number])?;
        done
    }

    fn on_branches<T>(
        &self,
        view: &TransactionView,
        number: Ino,
        record: &TransactionRecord,
        run: impl FnOnce(&Trial<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let store = Store::open(self.engine(), &schema_name(number))?;
        let trees = BranchTrees::of(&view.fs)?.onto(&Tree::ALL.map(|tree| store.tree(tree)));
        let own = Own::read(&trees)?;
        let changed = own.changed(&trees, None)?;
        let mut plan = Plan::new(&trees, &own, &changed)?;
        plan.check_clones(self)?;
        run(&Trial {
            mainline: self,
            view,
            fs: &view.fs,
            number,
            store,
            record,
            trees: &trees,
            own: &own,
            plan,
        })
    }
}

impl<'a> Trial<'a> {
    /// Returns the conflicts, for resolutions of them.
    pub(super) fn judge(&self) -> FsResult<Judge<'_, 'a>> {
        let keys = self.store.keys;
        Judge::new(self.trees, keys, (&self.plan, self.own), self.fs)
    }

    /// Puts what the transaction has written into the new branches, if no conflict is open and all
    /// that it has read holds. Returns what it has read, closed before that is written.
    fn merge<'r>(
        &self,
        records: &mut BranchRecords,
        reads: Option<&'r ReadSet>,
    ) -> FsResult<Option<ClosedReads<'r>>> {
        let resolutions = &self.record.resolutions;
        let rows = self.judge()?.judge(resolutions)?;
        let rules = &*self.mainline.options.records;
        records.compare_with(self.number)?;
        let judged = records.judge_now(rules, resolutions)?;
        let mut open = open_rows(&rows);
        open.extend(open_records(&judged));
        let closed = loop {
            let added = reads.map(ReadSet::added);
            self.add_changed_reads(records, &mut open)?;
            if !open.is_empty() {
                return Err(FsError::Conflict(open.into()));
            }
            // Reads that need no lock come meanwhile: these are checked, too.
            match reads.zip(added) {
                None => break None,
                Some((reads, added)) => {
                    if let Some(closed) = reads.close(added) {
                        break Some(closed);
                    }
                }
            }
        };
        self.merged(&rows, |rows| rows.write())?;
        records.merge(&judged, rules)?;
        Ok(closed)
    }

    /// Reports whether what the transaction has read counts.
    pub(super) const fn has_reads(&self) -> bool {
        self.fs.reads.is_some()
    }

    /// Adds what a serializable transaction has read and mainline has changed since, to conflicts
    /// that are known.
    pub(super) fn add_changed_reads(
        &self,
        records: &BranchRecords,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        let Some(reads) = &self.fs.reads else {
            return Ok(());
        };
        let reads = Validation::new(reads, self.trees);
        let rules = &*self.mainline.options.records;
        reads.add_all_conflicts((self.fs, records), None, rules, conflicts)
    }

    /// Refuses resolutions that cannot be taken. Conflicts that are open do not matter.
    pub(super) fn check(&self, resolutions: &[Resolution]) -> FsResult<()> {
        let rows = self.judge()?.judge(resolutions)?;
        self.merged(&rows, |_| Ok(()))
    }

    fn merged(
        &self,
        rows: &[JudgedRow<'_>],
        take: impl FnOnce(&MergedRows<'_>) -> FsResult<()>,
    ) -> FsResult<()> {
        let sides = RebaseSides::new(self.trees, self.own, self.store.keys)?;
        let mut winners = Winners::default();
        for JudgedRow { row, side } in rows {
            let Some(side) = side else {
                continue;
            };
            if row.is_in_clone && *side == Side::Ours {
                return Err(FsError::Unresolvable(
                    "it is in a clone, which a transaction does not change; take --theirs",
                ));
            }
            winners.choose(&sides, row, *side)?;
        }
        winners.complete(&sides)?;
        if !rows.is_empty() {
            self.plan
                .check_contents(self.trees, self.store.keys, &winners.theirs)?;
        }
        self.clear(&sides, &winners)?;
        // Mainline's side has changed.
        let sides = RebaseSides::new(self.trees, self.own, self.store.keys)?;
        winners.complete(&sides)?;
        let made = sides.made();
        for _ in 0..RINGS_MAX {
            let mut merged = self.rows_of(&sides, &winners, &made)?;
            let in_rings = rings::moved_into_rings(&sides, &merged, &winners)?;
            if in_rings.is_empty() {
                rings::touch_above(&sides, &mut merged, &winners)?;
                merged.settle(&sides.theirs, self.store.header.has_back_rows)?;
                return take(&merged);
            }
            winners.theirs.extend(in_rings);
            winners.complete(&sides)?;
        }
        Err(rings::IN_EACH_OTHER)
    }

    /// Removes, in the new branches, what makes room for the transaction's side.
    fn clear(&self, sides: &RebaseSides<'_>, winners: &Winners) -> FsResult<()> {
        let mut removed: BTreeMap<Vec<u8>, Ino> = winners.cleared.clone();
        for ino in &winners.gone {
            if let Some(place) = sides.theirs.find(*ino)? {
                removed.insert(place.key.clone(), *ino);
            }
        }
        if removed.is_empty() {
            return Ok(());
        }
        let rules = BranchRules {
            first_ino: self.mainline.next_number(),
            life: life_within(self.record, self.view.outer.as_deref()),
        };
        let fs = self.mainline.open_branches(self.number, rules, None)?;
        let tops = removed.values().copied().collect();
        for ino in winners.ours.difference(&winners.gone) {
            if sides.theirs.is_below(*ino, &tops)? {
                move_out(&fs, sides, *ino)?;
            }
        }
        for (key, ino) in removed {
            remove(&fs, sides, &key, ino).map_err(|error| match error {
                FsError::Perm => FsError::Unresolvable(
                    "an immutable or append-only file is in the way; take --theirs",
                ),
                FsError::Unsupported => FsError::Unresolvable("a clone is in the way"),
                error => error,
            })?;
        }
        Ok(())
    }

    fn rows_of<'s>(
        &'s self,
        sides: &RebaseSides<'_>,
        winners: &Winners,
        made: &'s BTreeSet<Ino>,
    ) -> FsResult<MergedRows<'s>> {
        let mut rows = MergedRows::new(self.trees, self.store.keys, made);
        let is_left = |ino: Ino| !winners.theirs.contains(&ino) && !winners.gone.contains(&ino);
        debug_assert_eq!(self.plan.meta.len(), sides.names.len(), "in one order");
        for (settled, name) in self.plan.meta.iter().zip(&sides.names) {
            let is_theirs = name.inos().any(|ino| winners.theirs.contains(&ino));
            let is_name = Locator::name_of(name.key).is_some();
            if !is_theirs && (is_name || name.inos().all(is_left)) {
                rows.meta.insert(name.key.to_vec(), settled.last.clone());
            }
        }
        for settled in &self.plan.sys {
            let is_taken = match Locator::sys_row(&settled.row.key) {
                Some(SysRow::Header | SysRow::Fixed) => true,
                Some(SysRow::Orphan(ino) | SysRow::External(ino) | SysRow::Back(ino)) => {
                    is_left(ino)
                }
                Some(SysRow::Extent(ino, _)) => is_left(ino),
                Some(SysRow::Shared(ino) | SysRow::ContentsUser(_, ino)) => is_left(ino),
                // None of them is in a conflict, which was checked.
                Some(SysRow::Contents(_)) => true,
                // Counters follow; the others are mainline's.
                _ => false,
            };
            if is_taken {
                rows.sys
                    .insert(settled.row.key.clone(), settled.last.clone());
            }
        }
        let left = |key: &&[u8]| Locator::ino_of(key).is_some_and(is_left);
        let chunks_of = self.plan.inodes_of_chunks();
        let of_chunk = |key: &&[u8]| Locator::ino_of(key).map(|number| chunks_of.find(number));
        let is_left_chunk = |key: &&[u8]| of_chunk(key).is_some_and(is_left);
        let (data, xattr) = (self.own.data(self.trees)?.iter(), self.own.xattr.iter());
        rows.data
            .extend(data.filter(is_left_chunk).map(<[u8]>::to_vec));
        rows.xattr.extend(xattr.filter(left).map(<[u8]>::to_vec));
        for ino in winners.ours.difference(&winners.gone) {
            self.take_ours(sides, *ino, &mut rows)?;
        }
        Ok(rows)
    }

    /// Makes an inode what it is in the transaction.
    fn take_ours(
        &self,
        sides: &RebaseSides<'_>,
        ino: Ino,
        rows: &mut MergedRows<'_>,
    ) -> FsResult<()> {
        let Some(place) = sides.place_in_ours(ino)? else {
            return Ok(());
        };
        if !rows.meta.contains_key(&place.key) {
            let row = self.trees.ours(Tree::Meta, &place.key)?;
            rows.meta.insert(place.key.clone(), row);
        }
        match sides.theirs.find(ino)? {
            Some(theirs) if theirs.key != place.key => {
                rows.meta.entry(theirs.key.clone()).or_insert(None);
            }
            Some(_) => {}
            None => {
                rows.delete_existing(Tree::Meta, &self.store.keys.own(ino))?;
                rows.delete_existing(Tree::Sys, &self.store.keys.orphan(ino))?;
            }
        }
        // Mainline may reclaim what has no name there.
        let is_lost = sides.theirs.find(ino)?.is_none();
        let keys = self.store.keys;
        let written = |range: &RowRange| self.written(range, is_lost);
        rows.xattr.extend(written(&keys.xattrs(ino))?);
        self.take_chunks(ino, is_lost, rows)?;
        for key in written(&keys.extents_from(ino, 0))? {
            let row = self.trees.ours(Tree::Sys, &key)?;
            rows.sys.insert(key, row);
        }
        Ok(())
    }

    /// The keys of a range whose rows are not the same on both sides, or all of them.
    fn written(&self, range: &RowRange, all: bool) -> FsResult<BTreeSet<Vec<u8>>> {
        let (tree, mut keys) = (range.tree(), BTreeSet::new());
        for side in [self.trees.own_tree(tree), self.trees.theirs_tree(tree)] {
            self.trees.scan(side, range.keys(), |key, _| {
                keys.insert(key.to_vec());
                Ok(())
            })?;
        }
        let mut different = BTreeSet::new();
        for key in keys {
            if all || self.trees.ours(tree, &key)? != self.trees.theirs(tree, &key)? {
                different.insert(key);
            }
        }
        Ok(different)
    }
}

/// Takes an inode out of a tree that is removed, for it to be placed later.
fn move_out(fs: &FileSystem, sides: &RebaseSides<'_>, ino: Ino) -> FsResult<()> {
    let Some(place) = sides.theirs.find(ino)? else {
        return Ok(());
    };
    let Some(source) = look_up(fs, sides, &place.key)? else {
        return Ok(());
    };
    let name = format!(".stitchfs-moved-{ino}");
    let target = DirName::new(Ino::ROOT, name.as_bytes());
    fs.lookup(source)?;
    fs.rename(&Caller::ROOT, source, target, RenameMode::NoReplace)
}

/// Returns a name by its key, in a directory that is known then; `None` if the directory is gone.
fn look_up<'k>(
    fs: &FileSystem,
    sides: &RebaseSides<'_>,
    key: &'k [u8],
) -> FsResult<Option<DirName<'k>>> {
    let (Some((_, name)), Some(parent)) = (Locator::name_of(key), Locator::ino_of(key)) else {
        return Err(FsError::Unresolvable("it has several names; take --theirs"));
    };
    let Some(names) = sides.theirs.names_to(parent)? else {
        return Err(FsError::Corrupt(format!("directory {parent} is nowhere")));
    };
    let mut dir = Ino::ROOT;
    for name in &names {
        dir = match fs.lookup(DirName::new(dir, name)) {
            Ok(attr) => attr.ino,
            // It went with another one.
            Err(FsError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    Ok(Some(DirName::new(dir, name)))
}

/// Removes what a key of a name leads to.
fn remove(fs: &FileSystem, sides: &RebaseSides<'_>, key: &[u8], ino: Ino) -> FsResult<()> {
    let Some(at) = look_up(fs, sides, key)? else {
        return Ok(());
    };
    let removed = match fs.unlink(&Caller::ROOT, at) {
        Err(FsError::IsDir) => fs.remove_tree(&Caller::ROOT, at, Some(ino)),
        removed => removed,
    };
    match removed {
        Err(FsError::NotFound) => Ok(()),
        removed => removed,
    }
}
