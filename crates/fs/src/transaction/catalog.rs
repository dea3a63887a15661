//! The catalog of transactions: their records, which are rows of mainline's `sys` tree, and their
//! trees, which the engine lists by name.
//!
//! | record | trees | the transaction |
//! |---|---|---|
//! | open | all | is open |
//! | open | none | was aborted in a full store; the next open deletes the record |
//! | committed | none | has ended: an outcome, of which the last ones are kept |
//! | none | some | was begun, aborted or rebased when a crash came; the next open drops them |
//!
//! A pin of a transaction ([`super::clone_pins`]) without an open record is dropped then, too.

use super::TransactionView;
use super::nested::records_within;
use super::records::record_trees;
use crate::change::Changes;
use crate::locator::{Locator, SysRow, Tree};
use crate::rows::RowBatch;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_db::SpaceClass;
use stitch_format::fs_transaction::{
    SCHEMA_PREFIX, TransactionRecord, TransactionState, TransactionTree, records_tree_name,
    transaction_tree,
};
use stitch_kv::{Engine, NewBranch, Snapshot, TreeInfo};

/// Committed transactions that are remembered, the last ones.
const OUTCOMES_MAX: usize = 256;

/// Records, in the order of their numbers.
pub(super) type RecordsByNumber = Vec<(Ino, TransactionRecord)>;

pub(super) fn schema_name(number: Ino) -> String {
    debug_assert!(number.0 > 0, "0 is no number");
    let schema = format!("{SCHEMA_PREFIX}{}", number.0);
    debug_assert_eq!(
        transaction_tree(&Tree::Meta.name_in(&schema)),
        Some((number.0, TransactionTree::Files)),
        "the next open finds its trees"
    );
    schema
}

pub(super) const fn is_open(record: &TransactionRecord) -> bool {
    matches!(record.state, TransactionState::Open)
}

/// Records and trees of the transactions of a store.
///
/// Invariant: it reads and writes no other rows of mainline than those of transactions.
#[derive(Clone, Copy)]
pub(super) struct Catalog<'fs> {
    pub(super) store: &'fs Store,
    pub(super) engine: &'fs Arc<dyn Engine>,
    pub(super) changes: Changes<'fs>,
}

impl<'fs> Catalog<'fs> {
    pub(super) const fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            store: &mainline.store,
            engine: mainline.engine(),
            changes: Changes::of(mainline),
        }
    }

    /// The records of transactions, by number.
    pub(super) fn records(&self) -> FsResult<RecordsByNumber> {
        let mut scan = self.store.scan(&self.store.keys.transactions())?;
        let mut records = Vec::new();
        while let Some((key, row)) = scan.next()? {
            if let Some(SysRow::Transaction(number)) = Locator::sys_row(key) {
                records.push((number, TransactionRecord::decode(row)?));
            }
        }
        debug_assert!(
            records.is_sorted_by_key(|(number, _)| *number),
            "in the order of their keys"
        );
        Ok(records)
    }

    fn record(&self, number: Ino) -> FsResult<Option<TransactionRecord>> {
        let row = self.store.get(&self.store.keys.transaction(number))?;
        Ok(row.map(|row| TransactionRecord::decode(&row)).transpose()?)
    }

    /// The record of the open transaction of a number.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted.
    pub(super) fn open_record(&self, number: Ino) -> FsResult<TransactionRecord> {
        self.record(number)?.filter(is_open).ok_or(FsError::Ended)
    }

    /// Reads the outcome of a transaction.
    pub(super) fn is_committed(&self, number: Ino) -> FsResult<bool> {
        let record = self.record(number)?;
        Ok(record.is_some_and(|record| !is_open(&record)))
    }

    /// The records of transactions, but for those that were aborted in a full store, and those that
    /// were committed to one of these: they are removed at the next open.
    pub(super) fn live_records(&self) -> FsResult<RecordsByNumber> {
        let mut records = self.records()?;
        let branches = self.branches();
        let mut live = BTreeSet::new();
        records.retain(|(number, record)| {
            let has_trees = || branches.iter().any(|(of, ..)| of == number);
            // An outer one comes first.
            let is_in_live = record.outer.is_none_or(|outer| live.contains(&Ino(outer)));
            is_in_live && (!is_open(record) || has_trees()) && live.insert(*number)
        });
        debug_assert!(
            records.is_sorted_by(|(one, _), (next, _)| one < next),
            "each once, in the order of numbers"
        );
        Ok(records)
    }

    /// The open transaction of a name, among those that began in the same one.
    pub(super) fn find_open(
        &self,
        outer: Option<u64>,
        name: &str,
    ) -> FsResult<(Ino, TransactionRecord)> {
        let mut records = self.live_records()?.into_iter();
        let has_name = |record: &TransactionRecord| record.outer == outer && record.name == name;
        let found = records.find(|(_, record)| is_open(record) && has_name(record));
        found.ok_or(FsError::NotFound)
    }

    /// Refuses to end a transaction as long as others in it are open.
    ///
    /// # Errors
    /// [`FsError::HasInner`] with their names.
    pub(super) fn check_no_inner(&self, number: Ino) -> FsResult<()> {
        let mut inner = records_within(self.live_records()?, number);
        inner.retain(|(_, record)| is_open(record));
        debug_assert!(
            inner.iter().all(|(other, _)| *other > number),
            "an inner one began later"
        );
        let names: Vec<String> = inner.into_iter().map(|(_, record)| record.name).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(FsError::HasInner(names.join(", "))),
        }
    }

    /// Returns the numbers of the transactions in one, at any depth: those that are open, and those
    /// that were committed to it.
    pub(super) fn numbers_within(&self, number: Ino) -> FsResult<Vec<Ino>> {
        let within = records_within(self.records()?, number);
        Ok(within.into_iter().map(|(number, _)| number).collect())
    }

    /// Puts the record of a new transaction, and deletes those of the oldest outcomes.
    pub(super) fn add(
        &self,
        number: Ino,
        record: &TransactionRecord,
        others: &RecordsByNumber,
    ) -> FsResult<()> {
        debug_assert!(is_open(record), "an outcome is put by the commit");
        debug_assert!(
            others.iter().all(|(other, _)| *other < number),
            "a later number"
        );
        debug_assert!(
            number.0 < record.first_ino,
            "the number is none of an inode in it"
        );
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        batch.put(&keys.transaction(number), &record.encode());
        let ended = others.iter().filter(|(_, record)| !is_open(record));
        let count = ended.clone().count();
        for (number, _) in ended.take(count.saturating_sub(OUTCOMES_MAX)) {
            batch.delete(&keys.transaction(*number));
        }
        self.changes.commit_rows(&batch, SpaceClass::Normal)
    }

    /// Puts a changed record. On the medium when this returns.
    pub(super) fn put(&self, number: Ino, record: &TransactionRecord) -> FsResult<()> {
        debug_assert!(number.0 > 0, "0 is no number");
        debug_assert!(is_open(record), "an outcome is put by the commit");
        let mut batch = self.store.batch();
        batch.put(&self.store.keys.transaction(number), &record.encode());
        self.changes.commit_rows(&batch, SpaceClass::Normal)?;
        Ok(self.engine.sync()?)
    }

    /// Moves the record of a transaction to a later number, and deletes those of the transactions
    /// that were committed to it. On the medium when this returns, with all that was written
    /// before.
    pub(super) fn renumber(&self, from: Ino, to: Ino, record: &TransactionRecord) -> FsResult<()> {
        debug_assert!(from < to, "a later number");
        debug_assert!(is_open(record), "it goes on");
        debug_assert!(
            to.0 < record.first_ino,
            "the number is none of an inode in it"
        );
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        for number in self.numbers_within(from)? {
            // It was committed to this one.
            batch.delete(&keys.transaction(number));
        }
        batch.delete(&keys.transaction(from));
        batch.put(&keys.transaction(to), &record.encode());
        // What was copied is durable before the record.
        self.engine.sync()?;
        self.changes.commit_rows(&batch, SpaceClass::Normal)?;
        Ok(self.engine.sync()?)
    }

    /// Deletes the records of transactions without trees, and what they have read.
    pub(super) fn delete(&self, numbers: &[Ino]) -> FsResult<()> {
        debug_assert!(!numbers.is_empty(), "a transaction has ended");
        let mut batch: RowBatch<'_> = self.store.batch();
        for number in numbers {
            batch.delete(&self.store.keys.transaction(*number));
            self.delete_reads(*number, &mut batch)?;
        }
        debug_assert!(!batch.is_empty(), "each has a row");
        self.store.commit(&batch, SpaceClass::Reserve)
    }

    /// Makes the branches of a transaction: of mainline's trees at a moment, or as they are; or of
    /// those of another one.
    pub(super) fn make_branches(
        &self,
        number: Ino,
        outer: Option<&TransactionView>,
        at: Option<&Snapshot>,
    ) -> FsResult<()> {
        let schema = schema_name(number);
        let parent = outer.map_or(self.store, |outer| &outer.fs.store);
        let files = Tree::ALL.map(|tree| (parent.tree(tree), tree.name_in(&schema)));
        let records: Vec<(TreeId, TreeId)> = match outer {
            Some(outer) => outer.records.branches().collect(),
            None => record_trees(&self.trees_at(at))
                .map(|tree| (tree.id, tree.id))
                .collect(),
        };
        let records = records.into_iter();
        let records = records.map(|(tree, parent)| (parent, records_tree_name(number.0, tree)));
        let named: Vec<(TreeId, String)> = files.into_iter().chain(records).collect();
        debug_assert!(named.len() >= Tree::ALL.len(), "all trees of files");
        debug_assert!(
            outer.is_none_or(|outer| outer.number < number),
            "an outer one began before"
        );
        debug_assert!(
            outer.is_none() || at.is_none(),
            "an outer one is branched as it is"
        );
        debug_assert!(
            named
                .iter()
                .all(|(_, name)| transaction_tree(name).is_some_and(|(of, _)| of == number.0)),
            "the next open finds them"
        );
        let branches = named.iter();
        let branches: Vec<NewBranch<'_>> = branches
            .map(|(parent, name)| NewBranch::new(*parent, name))
            .collect();
        let made = self.engine.branch_trees(&branches, at)?;
        debug_assert_eq!(made.len(), named.len(), "each has a number");
        Ok(())
    }

    /// The living trees, or those of them that were there at a moment.
    fn trees_at(&self, at: Option<&Snapshot>) -> Vec<TreeInfo> {
        let mut living = self.engine.trees();
        if let Some(at) = at {
            let then: BTreeSet<TreeId> = self.engine.trees_at(at).iter().map(|t| t.id).collect();
            living.retain(|tree| then.contains(&tree.id));
        }
        living
    }

    /// Numbers and trees of transactions, those with a record or without.
    pub(super) fn branches(&self) -> Vec<(Ino, TreeId, TransactionTree)> {
        let trees = self.engine.trees().into_iter();
        let branches = trees.filter_map(|tree| {
            let (number, part) = transaction_tree(&tree.name)?;
            Some((Ino(number), tree.id, part))
        });
        branches.collect()
    }

    /// Drops the trees of transactions, in one step.
    pub(super) fn drop_branches(&self, numbers: &[Ino]) -> FsResult<()> {
        debug_assert!(!numbers.is_empty(), "a transaction has ended");
        let all = self.branches();
        let trees: Vec<TreeId> = all
            .into_iter()
            .filter_map(|(of, tree, _)| numbers.contains(&of).then_some(tree))
            .collect();
        debug_assert!(
            Tree::ALL
                .iter()
                .all(|tree| !trees.contains(&self.store.tree(*tree))),
            "mainline keeps its trees"
        );
        Ok(self.engine.drop_trees(&trees)?)
    }
}
