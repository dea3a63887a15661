//! Validation of a read set: what others have changed of it since the transaction began, in
//! mainline ([`super::ranges`]) and in clones ([`CloneChecks`]).

use super::super::own::BranchTrees;
use super::super::path::NameSource;
use super::super::records::{BranchRecords, RecordRules};
use super::ranges::{ReadRanges, ReadTrees, paths_of};
use super::{CloneChecks, ReadSet, RecordReads};
use crate::FsResult;
use crate::transaction::conflict::{Conflict, ConflictKind};
use std::collections::BTreeSet;
use stitch_kv::Snapshot;

/// The read set of a transaction that is about to be committed.
pub(in crate::transaction) struct Validation<'t> {
    trees: ReadTrees,
    files: ReadRanges,
    pub(in crate::transaction) clones: CloneChecks<'t>,
    pub(in crate::transaction) records: RecordReads,
}

impl<'t> Validation<'t> {
    pub(in crate::transaction) fn new(
        reads: &ReadSet,
        trees: &BranchTrees,
        clones: CloneChecks<'t>,
    ) -> Self {
        Self {
            trees: trees.read(),
            files: ReadRanges::new(&reads.entries(), reads.is_unknown),
            clones,
            records: reads.record_reads(),
        }
    }

    /// Adds what was read of files and of records and is changed since a moment, or since the
    /// transaction began, to conflicts that are known. A path or a record is told of once.
    pub(in crate::transaction) fn add_all_conflicts(
        &self,
        (names, records): (NameSource<'_>, &BranchRecords),
        since: Option<&Snapshot>,
        rules: &dyn RecordRules,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        self.add_conflicts(names, since, conflicts)?;
        self.clones.add_conflicts(names, since, conflicts)?;
        let mut changed = records.changed_reads(&self.records, since, rules)?;
        changed.retain(|read| !conflicts.iter().any(|known| known.record == read.record));
        debug_assert!(
            changed.iter().all(|read| read.record.is_some()),
            "reads of files are added before"
        );
        conflicts.extend(changed);
        Ok(())
    }

    /// Adds what was read of files and is changed. A path is told of once.
    fn add_conflicts(
        &self,
        names: NameSource<'_>,
        since: Option<&Snapshot>,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        let changed = self.files.changed(&self.trees, since)?;
        if changed.is_empty() {
            return Ok(());
        }
        let paths = paths_of(names, &changed)?;
        let known = conflicts.iter().filter(|known| known.record.is_none());
        let known: BTreeSet<Vec<u8>> = known.map(|known| known.path.clone()).collect();
        let mut added = BTreeSet::new();
        for read in changed {
            let path = read.path(&paths)?;
            if !known.contains(&path) {
                debug_assert!(
                    matches!(read.kind, ConflictKind::Read(_)),
                    "something that was read"
                );
                let (kind, ino) = (read.kind, read.ino);
                added.insert(Conflict {
                    path,
                    kind,
                    ino,
                    record: None,
                });
            }
        }
        debug_assert!(
            !conflicts.is_empty() || !added.is_empty(),
            "something is changed"
        );
        conflicts.extend(added);
        conflicts.sort_unstable();
        Ok(())
    }
}
