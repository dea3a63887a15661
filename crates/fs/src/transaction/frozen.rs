//! A transaction that a commit has frozen: what it has written and read, what of that conflicts,
//! and what must not change until the commit.
//!
//! Invariant: nothing is written in the transaction as long as this is there. Its files are locked,
//! and the gate of its records is closed.

use super::RecordRules;
use super::catalog::Catalog;
use super::own::{BranchTrees, Own};
use super::path::NameSource;
use super::reads::Validation;
use super::records::{BranchRecords, RecordPlan};
use super::resolve::Plan;
use crate::back::BackRows;
use crate::locator::Tree;
use crate::views::LiveView;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_transaction::TransactionRecord;
use stitch_kv::{Guards, KeyRange, Snapshot};

/// Most guards on keys of one tree.
const GUARDS_MAX: usize = 8192;
const _: () = assert!(GUARDS_MAX > 0, "keys are divided among guards");

/// A transaction that is frozen, and what it has written.
pub(super) struct FrozenView<'t> {
    pub(super) number: Ino,
    pub(super) record: TransactionRecord,
    /// Those that were committed to it.
    pub(super) within: Vec<Ino>,
    /// What the record is in.
    pub(super) catalog: Catalog<'t>,
    pub(super) names: NameSource<'t>,
    pub(super) back_rows: &'t BackRows,
    pub(super) rules: &'t dyn RecordRules,
    pub(super) trees: &'t BranchTrees,
    pub(super) own: &'t Own,
    pub(super) records: &'t BranchRecords,
    /// What it has read, if that is checked.
    pub(super) reads: Option<Validation<'t>>,
}

impl<'t> FrozenView<'t> {
    /// The branch trees that the commit absorbs.
    pub(super) fn absorbed(&self) -> Vec<TreeId> {
        let mut trees = self.trees.ids();
        trees.extend(self.records.absorbed());
        debug_assert!(trees.len() >= Tree::ALL.len(), "all trees of files");
        debug_assert_eq!(
            trees.iter().collect::<BTreeSet<_>>().len(),
            trees.len(),
            "each is absorbed once"
        );
        trees
    }

    /// Returns the clones that it has read and that are open, in the order of locks.
    pub(super) fn clones_to_lock(&self) -> Vec<Arc<LiveView>> {
        let reads = self.reads.as_ref();
        let clones = reads.map_or_else(Vec::new, |reads| reads.clones.opened());
        debug_assert!(
            clones.is_sorted_by(|one, next| one.info().number > next.info().number),
            "one that lies in another comes first"
        );
        clones
    }

    /// Refuses what conflicts: rows, records, and what was read and is changed since a moment, or
    /// since the transaction began.
    pub(super) fn check(
        &self,
        plan: &Plan<'_>,
        records: &RecordPlan,
        since: Option<&Snapshot>,
    ) -> FsResult<()> {
        let mut conflicts = match plan.has_conflicts() {
            true => plan.conflicts(self.names, self.own)?,
            false => Vec::new(),
        };
        conflicts.extend(records.conflicts(self.rules));
        if let Some(reads) = &self.reads {
            let read_from = (self.names, self.records);
            reads.add_all_conflicts(read_from, since, self.rules, &mut conflicts)?;
        }
        debug_assert!(
            conflicts
                .iter()
                .all(|one| one.record.is_none() || one.path.is_empty()),
            "a record has no path"
        );
        debug_assert!(
            conflicts
                .iter()
                .all(|one| one.record.is_none() || one.ino.0 == 0),
            "a record is no inode"
        );
        debug_assert!(
            !plan.has_conflicts() || !conflicts.is_empty(),
            "each conflict is told of"
        );
        match conflicts.is_empty() {
            true => Ok(()),
            false => Err(FsError::Conflict(conflicts.into())),
        }
    }

    /// Nothing that the plan was made from changes until the commit: mainline is frozen, but for
    /// changes that need no lock.
    pub(super) fn guards(&self, now: &Snapshot) -> Guards {
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
            self.records.guard_reads(&reads.records, &mut guards);
            reads.clones.guard(&mut guards);
        }
        debug_assert!(
            guards.count() >= Tree::ALL.len() - 1,
            "all trees but one are guarded whole"
        );
        guards
    }
}

/// Guards keys, which are in order. Of very many of them, what lies between is guarded too: a
/// change there is no conflict, the commit is tried again.
fn guard_all(guards: &mut Guards, parent: TreeId, keys: &[&[u8]]) {
    debug_assert!(keys.is_sorted(), "ranges are of neighbouring keys");
    let each = keys.len().div_ceil(GUARDS_MAX).max(1);
    debug_assert!(
        keys.len().div_ceil(each) <= GUARDS_MAX,
        "guards have a bound"
    );
    for part in keys.chunks(each) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            continue;
        };
        debug_assert!(first <= last, "ranges are of neighbouring keys");
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
