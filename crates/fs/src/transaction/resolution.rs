//! Resolutions of conflicts: which side wins at a path and below it.
//!
//! Of a record beside the file system it is one for its key.
//!
//! They are in the record of the transaction. The next commit or rebase takes them. A resolution is
//! for what mainline had in the conflicts when it was made: it holds the hash of that. If mainline
//! changes any of it afterwards, all conflicts there are open again.
//!
//! A serializable transaction of which mainline has changed what it read has no resolutions: it
//! decided by values that are not true any more, whichever side wins elsewhere.

use super::catalog::is_open;
use super::conflict::Conflict;
use super::own::{BranchTrees, Own};
use super::path::NameSource;
use super::places::{Places, about, carried};
use super::reads::CloneSide;
use super::rebase::Trial;
use super::records::{BranchRecords, RecordKey};
use super::resolve::{ConflictingRow, Plan};
use super::{TransactionView, Transactions};
use crate::locator::{Locator, Tree};
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_resolution::{RESOLUTIONS_BYTES_MAX, Resolution, ResolvedAt, SeenHash, Side};
use stitch_format::fs_transaction::TransactionRecord;

/// Directories below each other that the hash goes through.
const DEPTH_MAX: usize = 4096;

/// A row in conflict, and the side that wins, if that was said.
pub(super) struct JudgedRow<'o> {
    pub(super) row: ConflictingRow<'o>,
    pub(super) side: Option<Side>,
}

/// All rows in conflict, and what mainline has in them.
pub(super) struct Judge<'a, 'o> {
    trees: &'a BranchTrees,
    keys: Locator,
    places: Places<'a>,
    rows: Vec<ConflictingRow<'o>>,
}

/// Reports whether a path is `top`, or lies below it.
fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    match path.strip_prefix(top) {
        Some(rest) => top.is_empty() || rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

impl<'a, 'o> Judge<'a, 'o> {
    pub(super) fn new(
        trees: &'a BranchTrees,
        keys: Locator,
        (plan, own): (&Plan<'o>, &Own),
        names: NameSource<'_>,
    ) -> FsResult<Self> {
        let mut rows = match plan.has_conflicts() {
            true => plan.conflicting_rows(names, own)?,
            false => Vec::new(),
        };
        rows.sort_by(|a, b| (a.tree.name(), a.key).cmp(&(b.tree.name(), b.key)));
        debug_assert_eq!(
            rows.is_empty(),
            !plan.has_conflicts(),
            "a conflict has a row"
        );
        debug_assert!(
            rows.iter().all(|row| !row.key.is_empty()),
            "no row has an empty key"
        );
        let places = Places::new(trees, trees.theirs_tree(Tree::Meta), keys);
        Ok(Self {
            trees,
            keys,
            places,
            rows,
        })
    }

    /// The rows that are listed: those of the `sys` tree follow from others, unless there are none.
    fn listed(&self) -> impl Iterator<Item = &ConflictingRow<'o>> {
        let only_sys = self.rows.iter().all(ConflictingRow::is_sys);
        self.rows
            .iter()
            .filter(move |row| only_sys || !row.is_sys())
    }

    /// Returns the number of conflicts at a path and below it, and the hash of what mainline has in
    /// them.
    pub(super) fn seen(&self, path: &[u8]) -> FsResult<(usize, [u8; 16])> {
        let (mut hash, mut count) = (SeenHash::default(), 0);
        for row in self.listed() {
            if is_at_or_below(&row.conflict.path, path) {
                self.add_row(&mut hash, row)?;
                count += 1;
            }
        }
        debug_assert!(count <= self.rows.len(), "conflicts of these rows");
        Ok((count, hash.finish()))
    }

    fn add_row(&self, hash: &mut SeenHash, row: &ConflictingRow<'_>) -> FsResult<()> {
        let theirs = self.trees.theirs(row.tree, row.key)?;
        hash.add(row.key, theirs.as_deref());
        if row.tree != Tree::Meta {
            return Ok(());
        }
        let ino = row.conflict.ino;
        if about(theirs.as_deref())? != Some(ino)
            && let Some(place) = self.places.find(ino)?
        {
            hash.add(&place.key, Some(&place.head.encode()));
        }
        match carried(theirs.as_deref())? {
            Some(head) if head.kind == FileKind::Directory => self.add_below(hash, head.ino),
            _ => Ok(()),
        }
    }

    /// Adds all names below a directory of mainline.
    fn add_below(&self, hash: &mut SeenHash, dir: Ino) -> FsResult<()> {
        let tree = self.trees.theirs_tree(Tree::Meta);
        let mut waiting = vec![(dir, 0)];
        while let Some((dir, depth)) = waiting.pop() {
            if depth > DEPTH_MAX {
                return Err(FsError::Corrupt(format!("directory {dir} is too deep")));
            }
            let range = self.keys.dentries(dir);
            self.trees.scan(tree, range.keys(), |key, row| {
                hash.add(key, Some(row));
                let head = carried(Some(row))?;
                let below = head.filter(|head| head.kind == FileKind::Directory);
                waiting.extend(below.map(|head| (head.ino, depth + 1)));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Decides for each row which side wins.
    pub(super) fn judge(self, resolutions: &[Resolution]) -> FsResult<Vec<JudgedRow<'o>>> {
        let mut valid = Vec::new();
        for resolution in resolutions {
            if let Some(top) = resolution.path()
                && self.seen(top)?.1 == resolution.seen
            {
                valid.push((top, resolution.side));
            }
        }
        let side_at = |path: &[u8]| {
            let covering = valid.iter().filter(|(top, _)| is_at_or_below(path, top));
            covering.max_by_key(|(top, _)| top.len()).map(|it| it.1)
        };
        let mut judged: Vec<JudgedRow<'o>> = Vec::new();
        for row in self.rows {
            let side = side_at(&row.conflict.path);
            judged.push(JudgedRow { row, side });
        }
        let sides: Vec<(Ino, Side)> = judged
            .iter()
            .filter(|judged| !judged.row.is_sys())
            .filter_map(|judged| Some((judged.row.conflict.ino, judged.side?)))
            .collect();
        for judged in judged.iter_mut().filter(|judged| judged.row.is_sys()) {
            let ino = judged.row.conflict.ino;
            let other = sides.iter().find(|(of, _)| *of == ino);
            judged.side = other.map(|(_, side)| *side).or(judged.side);
        }
        debug_assert!(
            !valid.is_empty() || judged.iter().all(|judged| judged.side.is_none()),
            "no side wins unasked"
        );
        Ok(judged)
    }
}

/// The conflicts of rows, in the order of paths.
pub(super) fn listed(rows: &[JudgedRow<'_>]) -> Vec<(Conflict, Option<Side>)> {
    let only_sys = rows.iter().all(|judged| judged.row.is_sys());
    let shown = rows
        .iter()
        .filter(|judged| only_sys || !judged.row.is_sys());
    let listed = shown.map(|judged| (judged.row.conflict.clone(), judged.side));
    let listed: std::collections::BTreeMap<_, _> = listed.collect();
    debug_assert_eq!(listed.is_empty(), rows.is_empty(), "a conflict is listed");
    listed.into_iter().collect()
}

/// Returns the conflicts of rows that are open.
pub(super) fn open_rows(rows: &[JudgedRow<'_>]) -> Vec<Conflict> {
    if rows.iter().all(|judged| judged.side.is_some()) {
        return Vec::new();
    }
    let open = listed(rows).into_iter();
    let open = open.filter(|(_, side)| side.is_none());
    let open: BTreeSet<Conflict> = open.map(|(conflict, _)| conflict).collect();
    debug_assert!(!rows.is_empty(), "a row is open");
    match open.is_empty() {
        // Rows that follow from others, which were resolved.
        true => rows
            .iter()
            .map(|judged| judged.row.conflict.clone())
            .collect(),
        false => open.into_iter().collect(),
    }
}

const READ_HAS_CHANGED: FsError = FsError::Unresolvable(
    "others have changed what this serializable transaction has read (`stitchfs txn conflicts` \
     lists it), so no side makes it right: copy from it what you need, abort it and begin it again",
);
const TREE_IS_GONE: FsError =
    FsError::Unresolvable("others have removed the tree that it is in; take --theirs");

impl Trial<'_> {
    /// Returns the records that the transaction has written. Writers wait.
    fn records(&self) -> FsResult<BranchRecords> {
        let _still = self.view.records.gate.close();
        BranchRecords::read(self.engine, self.view.number, &self.view.records)
    }

    /// Refuses to resolve anything of a transaction whose reads do not hold.
    fn check_reads(&self, records: &BranchRecords) -> FsResult<()> {
        let mut changed = Vec::new();
        self.add_changed_reads(records, CloneSide::Now, &mut changed)?;
        debug_assert!(
            self.has_reads() || changed.is_empty(),
            "reads of others are not noted"
        );
        match changed.is_empty() {
            true => Ok(()),
            false => Err(READ_HAS_CHANGED),
        }
    }

    /// Returns all conflicts, those that were resolved as well.
    fn all_conflicts(&self) -> FsResult<Vec<(Conflict, Option<Side>)>> {
        let resolutions = &self.record.resolutions;
        let mut all = listed(&self.judge()?.judge(resolutions)?);
        let records = self.records()?;
        let judged = records.judge_now(self.rules, resolutions)?;
        all.extend(judged.iter().filter_map(|record| record.listed()));
        let mut changed = Vec::new();
        self.add_changed_reads(&records, CloneSide::Now, &mut changed)?;
        debug_assert!(
            self.has_reads() || changed.is_empty(),
            "reads of others are not noted"
        );
        all.extend(changed.into_iter().map(|read| (read, None)));
        Ok(all)
    }

    /// Returns what a resolution of a record is for, and the hash of what mainline has of it.
    fn see_record(&self, at: &RecordKey, side: Side) -> FsResult<[u8; 16]> {
        let records = self.records()?;
        self.check_reads(&records)?;
        let judged = records.judge_now(self.rules, &[])?;
        debug_assert!(
            judged.iter().all(|record| record.side.is_none()),
            "no side wins unasked"
        );
        let found = judged.iter().find(|record| record.shown == *at);
        let found = found.ok_or(FsError::NotFound)?;
        match found.is_lost && side == Side::Ours {
            true => Err(TREE_IS_GONE),
            false => Ok(found.seen),
        }
    }
}

impl Transactions<'_> {
    /// Returns the conflicts of a transaction with mainline as it is now: those of files in the
    /// order of paths, those of records in the order of trees and keys, each with the side that
    /// wins if that was said by [`Self::resolve`] or [`Self::resolve_record`]; then
    /// what a serializable transaction has read and mainline has changed.
    ///
    /// # Errors
    /// [`FsError::Ended`]; those of [`Self::rebase`].
    ///
    /// # Cost
    /// As of a rebase that finds conflicts.
    pub fn conflicts(&self, view: &TransactionView) -> FsResult<Vec<(Conflict, Option<Side>)>> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let record = self.catalog.open_record(view.number)?;
        self.with_trial(view, &record, |trial| trial.all_conflicts())
    }

    /// Stores which side wins in the conflicts of a transaction at a path and below it. The next
    /// commit or rebase takes it, if mainline has there still what it has now. Returns the number
    /// of conflicts.
    ///
    /// A side is taken for whole inodes: names, attributes, contents and extended attributes. Of a
    /// directory that one side removed, that is all below it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no conflict; [`FsError::Unresolvable`], also of a
    /// serializable transaction whose reads do not hold; [`FsError::TooBig`] if there are too many
    /// resolutions; [`FsError::Ended`]; those of [`Self::rebase`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn resolve(&self, view: &TransactionView, path: &[u8], side: Side) -> FsResult<usize> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let mut record = self.catalog.open_record(view.number)?;
        let at = ResolvedAt::Path(path.to_vec());
        if !at.fits() {
            return Err(FsError::NameTooLong);
        }
        let count = self.with_trial(view, &record.clone(), |trial| {
            if trial.has_reads() {
                trial.check_reads(&trial.records()?)?;
            }
            let (count, seen) = trial.judge()?.seen(path)?;
            if count == 0 {
                return Err(FsError::NotFound);
            }
            // One of a directory is for all below it.
            let is_below = |other: &Resolution| {
                let other = other.path();
                other.is_some_and(|other| is_at_or_below(other, path))
            };
            let resolutions = &mut record.resolutions;
            resolutions.retain(|other| !is_below(other));
            resolutions.push(Resolution { side, seen, at });
            trial.check(resolutions)?;
            Ok(count)
        })?;
        debug_assert!(count > 0, "there is a conflict");
        self.store_resolutions(view.number, &record)?;
        Ok(count)
    }

    /// Stores which side wins for a record in conflict, as [`Self::resolve`] does for
    /// files. `at` is as the conflict names it. The record is what that side has of it, with all
    /// that belongs to it: of a hash all fields.
    ///
    /// # Errors
    /// As of [`Self::resolve`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn resolve_record(
        &self,
        view: &TransactionView,
        at: &RecordKey,
        side: Side,
    ) -> FsResult<()> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let mut record = self.catalog.open_record(view.number)?;
        let resolved = ResolvedAt::Record {
            tree: at.tree.clone(),
            key: at.key.clone(),
        };
        if !resolved.fits() {
            return Err(FsError::NameTooLong);
        }
        let seen = self.with_trial(view, &record, |trial| trial.see_record(at, side))?;
        let resolutions = &mut record.resolutions;
        resolutions.retain(|other| other.at != resolved);
        resolutions.push(Resolution {
            side,
            seen,
            at: resolved,
        });
        self.store_resolutions(view.number, &record)
    }

    fn store_resolutions(&self, number: Ino, record: &TransactionRecord) -> FsResult<()> {
        debug_assert!(is_open(record), "it goes on");
        debug_assert!(!record.resolutions.is_empty(), "one was made");
        debug_assert!(
            record.resolutions.iter().all(|one| one.at.fits()),
            "a reader takes each"
        );
        let len: usize = record.resolutions.iter().map(Resolution::len_bytes).sum();
        if len > RESOLUTIONS_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        self.catalog.put(number, record)
    }
}
