//! A trial: new branches of mainline's trees, and what a transaction would put into them.

use super::merged::MergedRows;
use super::rings;
use super::winners::{RebaseSides, Winners};
use crate::locator::{Locator, RowRange, SysRow, Tree};
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::branch::{BranchOpener, BranchRules};
use crate::transaction::clone_pins::ClonePins;
use crate::transaction::nested::life_within;
use crate::transaction::own::{BranchTrees, Own};
use crate::transaction::path::NameSource;
use crate::transaction::reads::{CloneChecks, CloneSide, ClosedReads, Validation};
use crate::transaction::records::{BranchRecords, open_records};
use crate::transaction::resolution::{Judge, JudgedRow, open_rows};
use crate::transaction::resolve::Plan;
use crate::transaction::{Conflict, ReadSet, RecordRules, TransactionView};
use crate::{Caller, DirName, FsError, FsResult, RenameMode};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_resolution::{Resolution, Side};
use stitch_format::fs_transaction::TransactionRecord;
use stitch_kv::Engine;

/// How often moves are given up because directories would be in each other.
const RINGS_MAX: usize = 64;

/// New branches, and what a transaction would put into them.
pub(in crate::transaction) struct Trial<'a> {
    pub(in crate::transaction) engine: &'a Arc<dyn Engine>,
    pub(in crate::transaction) rules: &'a dyn RecordRules,
    pub(super) opener: BranchOpener<'a>,
    pub(super) clone_pins: ClonePins<'a>,
    pub(in crate::transaction) view: &'a TransactionView,
    pub(super) names: NameSource<'a>,
    /// The new branches.
    pub(super) number: Ino,
    pub(super) store: Store,
    pub(in crate::transaction) record: &'a TransactionRecord,
    pub(super) trees: &'a BranchTrees,
    pub(super) own: &'a Own,
    pub(super) plan: Plan<'a>,
}

impl<'a> Trial<'a> {
    /// Returns the conflicts, for resolutions of them.
    pub(in crate::transaction) fn judge(&self) -> FsResult<Judge<'_, 'a>> {
        let keys = self.store.keys;
        Judge::new(self.trees, keys, (&self.plan, self.own), self.names)
    }

    /// Puts what the transaction has written into the new branches, if no conflict is open and all
    /// that it has read holds. Returns what it has read, closed before that is written.
    pub(super) fn merge<'r>(
        &self,
        records: &mut BranchRecords,
        reads: Option<&'r ReadSet>,
    ) -> FsResult<Option<ClosedReads<'r>>> {
        debug_assert_ne!(self.number, self.view.number, "the branches are others");
        let resolutions = &self.record.resolutions;
        let rows = self.judge()?.judge(resolutions)?;
        let rules = self.rules;
        records.compare_with(self.number)?;
        let judged = records.judge_now(rules, resolutions)?;
        let mut open = open_rows(&rows);
        open.extend(open_records(&judged));
        let closed = loop {
            let added = reads.map(ReadSet::added);
            let side = CloneSide::Pin(self.number);
            self.add_changed_reads(records, side, &mut open)?;
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
        debug_assert!(open.is_empty(), "no conflict is open");
        debug_assert_eq!(closed.is_some(), reads.is_some(), "what was read is closed");
        self.merged(&rows, |rows| rows.write())?;
        records.merge(&judged, rules)?;
        Ok(closed)
    }

    /// Reports whether what the transaction has read counts.
    pub(in crate::transaction) fn has_reads(&self) -> bool {
        self.view.fs.reads.is_some()
    }

    /// Adds what a serializable transaction has read and mainline has changed since, to conflicts
    /// that are known. `clones` is the moment up to which changes in clones count.
    pub(in crate::transaction) fn add_changed_reads(
        &self,
        records: &BranchRecords,
        clones: CloneSide,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        let Some(reads) = &self.view.fs.reads else {
            return Ok(());
        };
        let fs = &self.view.fs;
        let within = (self.view.number, &fs.store);
        let clones = CloneChecks::new(self.clone_pins, within, reads, clones)?;
        let reads = Validation::new(reads, self.trees, clones);
        reads.add_all_conflicts((self.names, records), None, self.rules, conflicts)
    }

    /// Refuses resolutions that cannot be taken. Conflicts that are open do not matter.
    pub(in crate::transaction) fn check(&self, resolutions: &[Resolution]) -> FsResult<()> {
        debug_assert!(!resolutions.is_empty(), "one was made");
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
        debug_assert!(
            winners.ours.is_disjoint(&winners.theirs),
            "an inode is of one side"
        );
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
        debug_assert!(
            winners.gone.is_subset(&winners.ours),
            "what is gone is gone in the transaction"
        );
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
            first_ino: self.opener.next_number(),
            life: life_within(self.record, self.view.outer.as_deref()),
        };
        let fs = self.opener.open(self.number, rules, (None, None))?;
        let tops = removed.values().copied().collect();
        debug_assert!(
            removed.keys().all(|key| !key.is_empty()),
            "no row has an empty key"
        );
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
        debug_assert!(
            winners.gone.is_subset(&winners.ours),
            "what is gone is gone in the transaction"
        );
        debug_assert!(
            winners.ours.is_disjoint(&winners.theirs),
            "an inode is of one side"
        );
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
        debug_assert!(
            rows.meta.len() <= self.plan.meta.len(),
            "rows that it has written"
        );
        debug_assert!(
            rows.sys.len() <= self.plan.sys.len(),
            "rows that it has written"
        );
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
        debug_assert_eq!(place.head.ino, ino, "the row of the inode");
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
    pub(super) fn written(&self, range: &RowRange, all: bool) -> FsResult<BTreeSet<Vec<u8>>> {
        let (tree, mut keys) = (range.tree(), BTreeSet::new());
        for side in [self.trees.own_tree(tree), self.trees.theirs_tree(tree)] {
            self.trees.scan(side, range.keys(), |key, _| {
                keys.insert(key.to_vec());
                Ok(())
            })?;
        }
        let mut different = BTreeSet::new();
        debug_assert!(
            keys.iter().all(|key| range.start() <= &key[..]),
            "keys of the range"
        );
        debug_assert!(
            keys.iter().all(|key| &key[..] < range.end()),
            "keys of the range"
        );
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
    debug_assert_ne!(ino, Ino::ROOT, "the root stays where it is");
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
    debug_assert_ne!(ino, Ino::ROOT, "the root stays where it is");
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
