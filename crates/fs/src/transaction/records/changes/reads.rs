//! Records that a serializable transaction has read, and mainline has written.

use super::BranchRecords;
use crate::FsResult;
use crate::transaction::conflict::{Conflict, ConflictKind, ReadKind};
use crate::transaction::reads::RecordReads;
use crate::transaction::records::{RecordKey, RecordRules};
use std::collections::BTreeSet;
use stitch_kv::{Guards, Snapshot};

/// Most records that are reported of a tree.
const REPORTED_MAX: usize = 1024;

impl BranchRecords {
    /// Returns the conflicts about records that were read and that mainline has written since a
    /// moment, or since the transaction began. Records that are always joined are none.
    pub(in super::super::super) fn changed_reads(
        &self,
        reads: &RecordReads,
        since: Option<&Snapshot>,
        rules: &dyn RecordRules,
    ) -> FsResult<Vec<Conflict>> {
        let mut records = BTreeSet::new();
        for tree in self.trees.iter().filter(|tree| tree.is_parent_alive) {
            let Some(read) = reads.of_tree(tree.tree) else {
                continue;
            };
            let mut guards = Guards::since(since.unwrap_or(&tree.moment));
            read.guard(tree.parent, &mut guards);
            let changed = self.engine.changed_keys(&guards, REPORTED_MAX)?;
            debug_assert!(changed.len() <= REPORTED_MAX, "no more than was asked for");
            debug_assert!(
                changed.iter().all(|found| found.tree == tree.parent),
                "keys of the tree"
            );
            let keys = changed.into_iter().map(|changed| changed.key);
            let keys = keys.filter(|key| !rules.is_joined(&tree.name, key));
            let shown = keys.map(|key| match rules.shown(&tree.name, &key) {
                Some((tree, key)) => RecordKey { tree, key },
                None => tree.key(&key),
            });
            records.extend(shown);
        }
        let conflict = |record| Conflict {
            kind: ConflictKind::Read(ReadKind::Record),
            ..Conflict::of_record(record)
        };
        Ok(records.into_iter().map(conflict).collect())
    }

    /// Adds guards: nothing that was read changes until the commit.
    pub(in super::super::super) fn guard_reads(&self, reads: &RecordReads, guards: &mut Guards) {
        let alive = self.trees.iter().filter(|tree| tree.is_parent_alive);
        for tree in alive {
            if let Some(read) = reads.of_tree(tree.tree) {
                read.guard(tree.parent, guards);
            }
        }
    }
}
