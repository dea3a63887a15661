//! Records in conflict, the side that wins in each, and what becomes of them in a rebase.
//!
//! A record may be several rows. It is listed and resolved by the key that its owner shows
//! ([`RecordRules::shown`]). Rows that follow from others are listed only when nothing else is open
//! any more.

use super::{
    BranchRecord, BranchRecords, RecordKey, RecordPlan, RecordRules, RecordSides, tree_in,
};
use crate::transaction::conflict::Conflict;
use crate::{FsError, FsResult};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_db::{BranchMerge, MergedTrees};
use stitch_format::fs_resolution::{Resolution, ResolvedAt, SeenHash, Side};
use stitch_kv::{Direction, KeyRange, TreeInfo};

/// A record that both sides have written, and the side that wins, if that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transaction) struct JudgedRecord {
    /// As its owner shows it.
    pub(in crate::transaction) shown: RecordKey,
    pub(in crate::transaction) side: Option<Side>,
    /// Hash of what mainline has of it.
    pub(in crate::transaction) seen: [u8; 16],
    /// The tree that it is in was removed by mainline.
    pub(in crate::transaction) is_lost: bool,
    /// It follows from others.
    is_hidden: bool,
    /// Its rows in conflict, in one tree.
    rows: Vec<RecordKey>,
}

/// Returns the conflicts about records that are open.
pub(in crate::transaction) fn open_records(judged: &[JudgedRecord]) -> Vec<Conflict> {
    let open = |is_hidden: bool| -> Vec<Conflict> {
        let open = judged.iter().filter(|record| record.side.is_none());
        let open = open.filter(|record| record.is_hidden == is_hidden);
        open.map(|record| Conflict::of_record(record.shown.clone()))
            .collect()
    };
    match open(false) {
        open_ones if !open_ones.is_empty() => open_ones,
        _ => open(true),
    }
}

impl JudgedRecord {
    /// Returns the conflict to be listed with its side; `None` for one that follows from others.
    pub(in crate::transaction) fn listed(&self) -> Option<(Conflict, Option<Side>)> {
        debug_assert!(!self.rows.is_empty(), "a record has a row in conflict");
        let conflict = || (Conflict::of_record(self.shown.clone()), self.side);
        (!self.is_hidden).then(conflict)
    }
}

impl BranchRecord {
    /// Returns a row of mainline, now or where the branch begins that this one is compared with.
    fn theirs(&self, records: &BranchRecords, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(
            self.onto.is_none() || self.is_parent_alive,
            "a tree that goes on is there"
        );
        if !self.is_parent_alive {
            return Ok(None);
        }
        let at = self.onto.as_ref().map(|(_, moment)| moment);
        Ok(records.engine.get(self.parent, key, at)?)
    }
}

impl BranchRecords {
    /// Compares with the branches of another transaction from now on, which began later and has
    /// written nothing. A tree that has no such branch was removed.
    ///
    /// # Errors
    /// Those of the engine.
    pub(in crate::transaction) fn compare_with(&mut self, number: Ino) -> FsResult<()> {
        debug_assert!(number.0 > 0, "0 is no number");
        let infos = self.engine.trees();
        for tree in self.trees.iter_mut().filter(|tree| tree.is_parent_alive) {
            let is_it = |info: &&TreeInfo| tree_in(number, info) == Some(tree.tree);
            let target = infos.iter().find(is_it);
            let Some(target) = target.map(|info| info.id) else {
                tree.is_parent_alive = false;
                continue;
            };
            debug_assert_ne!(target, tree.own, "another branch");
            tree.onto = Some((target, self.engine.branch_moment(target)?));
        }
        debug_assert!(
            self.trees
                .iter()
                .all(|tree| tree.onto.is_some() == tree.is_parent_alive),
            "each tree that is there has a later branch"
        );
        Ok(())
    }

    /// Returns the conflicts with what mainline has now; see [`Self::judge`].
    pub(in crate::transaction) fn judge_now(
        &self,
        rules: &dyn RecordRules,
        resolutions: &[Resolution],
    ) -> FsResult<Vec<JudgedRecord>> {
        let plan = self.plan(&self.changed(None)?, rules)?;
        self.judge(&plan, rules, resolutions)
    }

    /// Returns the records in conflict, in the order of trees and keys. A resolution counts if
    /// mainline has still what it had when that was made.
    fn judge(
        &self,
        plan: &RecordPlan,
        rules: &dyn RecordRules,
        resolutions: &[Resolution],
    ) -> FsResult<Vec<JudgedRecord>> {
        let mut rows_of: BTreeMap<(bool, RecordKey), Vec<RecordKey>> = BTreeMap::new();
        for row in &plan.conflicts {
            let shown = rules.shown(&row.tree, &row.key);
            let at = match shown {
                Some((tree, key)) => (false, RecordKey { tree, key }),
                None => (true, row.clone()),
            };
            rows_of.entry(at).or_default().push(row.clone());
        }
        // What the owner of the records puts together needs no decision of its own.
        let is_any_shown = rows_of.keys().any(|(is_hidden, _)| !is_hidden);
        rows_of.retain(|(is_hidden, row), _| {
            !is_hidden || !is_any_shown || !rules.is_merged(&row.tree)
        });
        let mut judged = Vec::new();
        for ((is_hidden, shown), rows) in rows_of {
            debug_assert!(
                rows.iter().all(|row| row.tree == rows[0].tree),
                "a record is in one tree"
            );
            let tree = self.tree_of(&rows[0])?;
            let seen = self.seen(tree, &rows, rules)?;
            debug_assert_eq!(tree.name, rows[0].tree, "the tree of its rows");
            let side = side_of(resolutions, &shown, seen);
            judged.push(JudgedRecord {
                side,
                seen,
                is_lost: !tree.is_parent_alive,
                shown,
                is_hidden,
                rows,
            });
        }
        debug_assert!(
            judged.iter().all(|record| !record.rows.is_empty()),
            "a record has a row in conflict"
        );
        Ok(judged)
    }

    fn tree_of(&self, row: &RecordKey) -> FsResult<&BranchRecord> {
        let mut trees = self.trees.iter();
        let found = trees.find(|tree| tree.name == row.tree);
        found.ok_or(FsError::Ended)
    }

    /// Returns the hash of what mainline has in rows of a tree, and in those that belong to them.
    fn seen(
        &self,
        tree: &BranchRecord,
        rows: &[RecordKey],
        rules: &dyn RecordRules,
    ) -> FsResult<[u8; 16]> {
        debug_assert!(!rows.is_empty(), "a record has a row in conflict");
        let mut hash = SeenHash::default();
        let at = tree.onto.as_ref().map(|(_, moment)| moment);
        for RecordKey { key, .. } in rows {
            let theirs = tree.theirs(self, key)?;
            hash.add(key, theirs.as_deref());
            let further = theirs.map(|row| rules.further_rows(&tree.name, key, &row));
            if let Some((start, end)) = further.transpose()?.flatten() {
                let range = KeyRange::new(&start, &end);
                let scan = self.engine.scan(tree.parent, range, Direction::Forward, at);
                let mut scan = scan?;
                while let Some((key, value)) = scan.next()? {
                    hash.add(key, Some(value));
                }
            }
        }
        Ok(hash.finish())
    }

    /// Puts what was written into the branches that it is compared with
    /// ([`Self::compare_with`]). No conflict is open.
    pub(in crate::transaction) fn merge(
        &self,
        judged: &[JudgedRecord],
        rules: &dyn RecordRules,
    ) -> FsResult<()> {
        debug_assert!(open_records(judged).is_empty(), "all were resolved");
        for (_, tree) in self.written() {
            let Some((target, moment)) = &tree.onto else {
                // Mainline has removed it.
                continue;
            };
            let of_tree = |record: &&JudgedRecord| record.rows[0].tree == tree.name;
            let resolved: Vec<&JudgedRecord> = judged.iter().filter(of_tree).collect();
            let by_owner = !resolved.is_empty() && rules.is_merged(&tree.name);
            let is_theirs = |record: &&&JudgedRecord| record.side == Some(Side::Theirs);
            let theirs = resolved.iter().filter(is_theirs);
            let theirs: BTreeSet<Vec<u8>> = match by_owner {
                true => theirs.map(|record| record.shown.key.clone()).collect(),
                false => theirs
                    .flat_map(|record| record.rows.iter().map(|row| row.key.clone()))
                    .collect(),
            };
            debug_assert_ne!(*target, tree.own, "another branch");
            let trees = MergedTrees {
                own: tree.own,
                parent: tree.parent,
                target: *target,
                moment,
            };
            let written = (&*tree.keys, &*tree.ranges);
            let mut merge = BranchMerge::new(&*self.engine, trees, written, theirs);
            match by_owner {
                true => rules.merge(&tree.name, &mut merge)?,
                false => self.put_rows(tree, &mut merge, rules)?,
            }
            merge.finish()?;
        }
        Ok(())
    }

    /// Puts each row of a tree by itself, but for those that are left.
    fn put_rows(
        &self,
        tree: &BranchRecord,
        merge: &mut BranchMerge<'_>,
        rules: &dyn RecordRules,
    ) -> FsResult<()> {
        debug_assert!(tree.keys.is_sorted(), "they are in order");
        debug_assert!(tree.onto.is_some(), "a later branch takes them");
        let left = merge.left().clone();
        merge.delete_ranges_without(&tree.ranges, &left)?;
        debug_assert!(
            left.iter().all(|key| !key.is_empty()),
            "no row has an empty key"
        );
        for key in tree.keys.iter().filter(|key| !left.contains(*key)) {
            let ours = merge.ours(key)?;
            let value = match rules.is_joined(&tree.name, key) {
                true => {
                    let base = self.engine.get(tree.parent, key, Some(&tree.moment))?;
                    let theirs = merge.theirs(key)?;
                    let sides = RecordSides { base, ours, theirs };
                    rules.join(&tree.name, key, &sides)?
                }
                false => ours,
            };
            match value {
                Some(value) => merge.put(key, &value)?,
                None => merge.delete(key)?,
            }
        }
        Ok(())
    }
}

/// Returns the side that was said to win, if what was seen then is there still.
fn side_of(resolutions: &[Resolution], shown: &RecordKey, seen: [u8; 16]) -> Option<Side> {
    let is_it = |resolution: &&Resolution| match &resolution.at {
        ResolvedAt::Record { tree, key } => *tree == shown.tree && *key == shown.key,
        ResolvedAt::Path(_) => false,
    };
    let mut resolutions = resolutions.iter();
    let found = resolutions.find(|resolution| is_it(resolution) && resolution.seen == seen);
    found.map(|resolution| resolution.side)
}
