//! Begin, open, list, abort; and what is done with transactions when a file system is opened.

use super::nested::{isolation_within, life_within};
use super::records::record_trees;
use super::{
    BeginOptions, Branch, BranchRules, ReadSet, TransactionInfo, TransactionIsolation,
    TransactionRecords, TransactionView,
};
use crate::aside::Aside;
use crate::locator::{Locator, SysRow, Tree};
use crate::room::unless_full;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::{Standing, ViewSet};
use crate::{AtimePolicy, FsError, FsOptions, FsResult};
use std::collections::BTreeSet;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{Ino, TreeId};
use stitch_db::SpaceClass;
use stitch_format::fs_transaction::{
    SCHEMA_PREFIX, TRANSACTION_NAME_BYTES_MAX, TransactionLife, TransactionRecord,
    TransactionState, TransactionTree, records_tree_name, transaction_tree,
};
use stitch_kv::NewBranch;

/// Committed transactions that are remembered, the last ones.
const OUTCOMES_MAX: usize = 256;

pub(super) fn schema_name(number: Ino) -> String {
    format!("{SCHEMA_PREFIX}{}", number.0)
}

fn check_name(name: &str) -> FsResult<()> {
    if name.len() > TRANSACTION_NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(FsError::Invalid("no name of a transaction"));
    }
    Ok(())
}

impl FileSystem {
    /// Reports whether transactions can begin here.
    #[must_use]
    pub fn takes_transactions(&self) -> bool {
        self.check_takes_transactions().is_ok()
    }

    fn check_takes_transactions(&self) -> FsResult<()> {
        self.check_mainline()?;
        let can = self.engine().capabilities();
        // External files are written in place: mainline would see that at once.
        if !can.branches || !can.absorb || !can.guards || self.header.lock().has_external {
            return Err(FsError::Unsupported);
        }
        self.check_numbers_leave_room()
    }

    /// Begins a transaction. It starts with what mainline and the trees of records beside it hold
    /// now, or what the transaction holds that it begins in; nothing is copied.
    ///
    /// # Errors
    /// [`FsError::Exists`] if an open transaction has the name; [`FsError::NameTooLong`],
    /// [`FsError::Invalid`] for what is no name, or path locks that are not held;
    /// [`FsError::Ended`] if the outer transaction is not open; [`FsError::NestedTooDeep`];
    /// [`FsError::Unsupported`] of an engine without branch trees, or of a store
    /// with large files beside it; [`FsError::NumbersTooLarge`]; [`FsError::ReadOnly`],
    /// [`FsError::NoSpace`].
    ///
    /// # Durability
    /// On the medium when this returns, unless it is a run. What is written in it is as durable as
    /// in mainline; a run is gone when the store is opened again.
    ///
    /// # Cost
    /// One record in the engine's list of trees, whose length is by the number of trees of records,
    /// with the two syncs of that; one sync of the log more if it is no run.
    pub fn begin_transaction(
        &self,
        name: &str,
        options: &BeginOptions,
    ) -> FsResult<Arc<TransactionView>> {
        self.check_writable()?;
        check_name(name)?;
        self.check_takes_transactions()?;
        let locks = self.path_locks();
        if options.lock.is_some_and(|ticket| !locks.is_ready(ticket)) {
            return Err(FsError::Invalid(
                "path locks that are not held, or another's",
            ));
        }
        let _one_at_a_time = self.transactions.changing.lock();
        let outer = options.outer.map(|number| self.outer_view(Ino(number)));
        let outer = outer.transpose()?;
        match self.find_open(options.outer, name) {
            Ok(_) => return Err(FsError::Exists),
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let records = self.transaction_records()?;
        self.mark_header(|header| header.has_transactions = true)?;
        let number = self.new_ino()?;
        self.transactions.may_be_open.store(true, Ordering::Release);
        // Operations that did not see that have ended.
        drop(self.residents.locks.all_read());
        self.make_branches(number, outer.as_deref())?;
        let record = TransactionRecord {
            state: TransactionState::Open,
            life: options.life,
            isolation: isolation_within(options.isolation, outer.as_deref()),
            has_reads: false,
            owner: options.owner,
            created_ns: self.now(),
            expires_ns: options.expires.map_or(i64::MAX, |at| at.0),
            // What the branches hold has smaller numbers.
            first_ino: self.next_number(),
            outer: options.outer,
            name: name.to_owned(),
            resolutions: Vec::new(),
        };
        let begun = self.put_record(number, &record, &records);
        if begun.is_err() {
            drop(self.drop_branches(&[number]));
        }
        begun?;
        if record.life == TransactionLife::Named {
            // Of a run a crash leaves trees without a record, which the next open drops as well.
            self.engine().sync()?;
        }
        if record.isolation == TransactionIsolation::Serializable {
            let reads = ReadSet::new(record.first_ino).within(outer.as_deref());
            self.transactions.reads.keep(number, reads);
        }
        let view = self.open_view(number, &record)?;
        if let Some(ticket) = options.lock {
            locks.give(ticket, number);
        }
        Ok(view)
    }

    /// Makes the branches of a transaction: of mainline's trees, or of those of another one.
    pub(super) fn make_branches(
        &self,
        number: Ino,
        outer: Option<&TransactionView>,
    ) -> FsResult<()> {
        let schema = schema_name(number);
        let parent = outer.map_or(self, |outer| &outer.fs);
        let files = Tree::ALL.map(|tree| (parent.store.tree(tree), tree.name_in(&schema)));
        let records: Vec<(TreeId, TreeId)> = match outer {
            Some(outer) => outer.records.branches().collect(),
            None => record_trees(&self.engine().trees())
                .map(|tree| (tree.id, tree.id))
                .collect(),
        };
        let records = records.into_iter();
        let records = records.map(|(tree, parent)| (parent, records_tree_name(number.0, tree)));
        let named: Vec<(TreeId, String)> = files.into_iter().chain(records).collect();
        let branches = named.iter();
        let branches: Vec<NewBranch<'_>> = branches
            .map(|(parent, name)| NewBranch::new(*parent, name))
            .collect();
        let made = self.engine().branch_trees(&branches, None)?;
        debug_assert_eq!(made.len(), named.len(), "each has a number");
        Ok(())
    }

    /// Puts the record of a new transaction, and deletes those of the oldest outcomes.
    fn put_record(
        &self,
        number: Ino,
        record: &TransactionRecord,
        others: &[(Ino, TransactionRecord)],
    ) -> FsResult<()> {
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        batch.put(&keys.transaction(number), &record.encode());
        let ended = others.iter().filter(|(_, record)| !is_open(record));
        let count = ended.clone().count();
        for (number, _) in ended.take(count.saturating_sub(OUTCOMES_MAX)) {
            batch.delete(&keys.transaction(*number));
        }
        self.commit_where_room(&batch, SpaceClass::Normal)
    }

    /// The records of transactions, by number.
    pub(super) fn transaction_records(&self) -> FsResult<Vec<(Ino, TransactionRecord)>> {
        let mut scan = self.store.scan(&self.store.keys.transactions())?;
        let mut records = Vec::new();
        while let Some((key, row)) = scan.next()? {
            if let Some(SysRow::Transaction(number)) = Locator::sys_row(key) {
                records.push((number, TransactionRecord::decode(row)?));
            }
        }
        Ok(records)
    }

    /// The record of the open transaction of a number.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted.
    pub(super) fn open_record(&self, number: Ino) -> FsResult<TransactionRecord> {
        let row = self.store.get(&self.store.keys.transaction(number))?;
        let record = row.map(|row| TransactionRecord::decode(&row)).transpose()?;
        record.filter(is_open).ok_or(FsError::Ended)
    }

    /// The records of transactions, but for those that were aborted in a full store, and those that
    /// were committed to one of these: they are removed at the next open.
    pub(super) fn live_records(&self) -> FsResult<Vec<(Ino, TransactionRecord)>> {
        let mut records = self.transaction_records()?;
        let branches = self.branches();
        let mut live = BTreeSet::new();
        records.retain(|(number, record)| {
            let has_trees = || branches.iter().any(|(of, ..)| of == number);
            // An outer one comes first.
            let is_in_live = record.outer.is_none_or(|outer| live.contains(&Ino(outer)));
            is_in_live && (!is_open(record) || has_trees()) && live.insert(*number)
        });
        Ok(records)
    }

    /// The open transaction of a name, among those that began in the same one.
    fn find_open(&self, outer: Option<u64>, name: &str) -> FsResult<(Ino, TransactionRecord)> {
        self.check_mainline()?;
        let mut records = self.live_records()?.into_iter();
        let has_name = |record: &TransactionRecord| record.outer == outer && record.name == name;
        let found = records.find(|(_, record)| is_open(record) && has_name(record));
        found.ok_or(FsError::NotFound)
    }

    /// Returns the transactions that are open, and those that were committed last, by number.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] in a transaction; [`FsError::Format`].
    pub fn transactions(&self) -> FsResult<Vec<TransactionInfo>> {
        self.check_mainline()?;
        let records = self.live_records()?;
        let infos = records.iter();
        Ok(infos
            .map(|(number, record)| TransactionInfo::of(*number, record))
            .collect())
    }

    /// Opens the file system of a transaction that began in mainline. All callers share one, as
    /// long as one of them keeps it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if no open transaction has the name.
    pub fn open_transaction(&self, name: &str) -> FsResult<Arc<TransactionView>> {
        self.check_writable()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let (number, _) = self.find_open(None, name)?;
        self.view_of(number)
    }

    /// Opens the file system of the open transaction of a number, as [`Self::open_transaction`]
    /// does.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted before.
    pub fn open_transaction_by_number(&self, number: u64) -> FsResult<Arc<TransactionView>> {
        self.check_writable()?;
        self.check_mainline()?;
        let _one_at_a_time = self.transactions.changing.lock();
        self.view_of(Ino(number))
    }

    /// The open transaction of a number. One transaction is changed at a time.
    pub(super) fn view_of(&self, number: Ino) -> FsResult<Arc<TransactionView>> {
        match self.transactions.find(number) {
            Some(view) => Ok(view),
            None => self.open_view(number, &self.open_record(number)?),
        }
    }

    pub(super) fn open_view(
        &self,
        number: Ino,
        record: &TransactionRecord,
    ) -> FsResult<Arc<TransactionView>> {
        debug_assert!(is_open(record), "its trees are there");
        let outer = record.outer.map(|outer| self.view_of(Ino(outer)));
        let outer = outer.transpose()?;
        let reads = self.reads_of(number, record, outer.as_deref())?;
        let life = life_within(record, outer.as_deref());
        let records = TransactionRecords::open(self.engine(), number, life, reads.clone())?;
        let rules = BranchRules {
            first_ino: record.first_ino,
            life,
        };
        let view = Arc::new(TransactionView {
            records: Arc::new(records),
            fs: Arc::new(self.open_branches(number, rules, reads)?),
            number,
            info: TransactionInfo::of(number, record),
            outer,
        });
        self.transactions.enter(&view);
        Ok(view)
    }

    /// Opens the file system over the branches of a number.
    pub(super) fn open_branches(
        &self,
        number: Ino,
        rules: BranchRules,
        reads: Option<Arc<ReadSet>>,
    ) -> FsResult<Self> {
        let options = FsOptions {
            // A read must not be a change that a commit has to look at.
            atime: AtimePolicy::Noatime,
            ledger: None,
            external: None,
            ..self.options.clone()
        };
        let branch = Branch {
            reads,
            numbers: Arc::clone(&self.numbers),
            rules,
        };
        let store = Store::open(self.engine(), &schema_name(number))?;
        // Directories that are clones are empty here.
        let standing = Standing {
            number: 0,
            views: Arc::new(ViewSet::none()),
            room: Arc::clone(&self.standing.room),
        };
        let engine = Arc::clone(self.engine());
        let view = Self::of_store(
            engine,
            options,
            store,
            standing,
            Aside::default(),
            Some(branch),
        )?;
        Ok(view.with_writes_beside(self))
    }

    /// Changes when an open transaction may be aborted unasked; `None` for never.
    ///
    /// # Errors
    /// [`FsError::Ended`] if no open transaction has the number; [`FsError::NoSpace`],
    /// [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn expire_transaction(&self, number: u64, expires: Option<Timestamp>) -> FsResult<()> {
        self.check_writable()?;
        self.check_mainline()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let mut record = self.open_record(Ino(number))?;
        record.expires_ns = expires.map_or(i64::MAX, |at| at.0);
        let mut batch = self.store.batch();
        let key = self.store.keys.transaction(Ino(number));
        batch.put(&key, &record.encode());
        self.commit_where_room(&batch, SpaceClass::Normal)?;
        self.engine().sync()?;
        Ok(())
    }

    /// Aborts a transaction that began in mainline: nothing of it is left, nor of those in it.
    /// Works in a full store, and while the transaction is in use.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if no open transaction has the name.
    ///
    /// # Durability
    /// On the medium when this returns, but for its record, which the next open removes.
    pub fn abort_transaction(&self, name: &str) -> FsResult<()> {
        self.check_writable()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let (number, _) = self.find_open(None, name)?;
        self.end_transaction(number)
    }

    /// Aborts the open transaction of a number, as [`Self::abort_transaction`] does.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted before.
    pub fn abort_transaction_by_number(&self, number: u64) -> FsResult<()> {
        self.check_writable()?;
        self.check_mainline()?;
        let _one_at_a_time = self.transactions.changing.lock();
        let number = Ino(number);
        self.open_record(number)?;
        self.end_transaction(number)
    }

    /// Drops the trees of a transaction and of all in it, then the records.
    fn end_transaction(&self, number: Ino) -> FsResult<()> {
        let mut ended = self.numbers_within(number)?;
        ended.push(number);
        for number in &ended {
            if let Some(view) = self.transactions.find(*number) {
                *view.records.gate().close() = true;
            }
            self.transactions.forget(*number);
        }
        self.drop_branches(&ended)?;
        let mut batch = self.store.batch();
        for number in &ended {
            batch.delete(&self.store.keys.transaction(*number));
            self.delete_reads(*number, &mut batch)?;
        }
        // Without trees it is no transaction any more, whether its record is there or not.
        unless_full(self.store.commit(&batch, SpaceClass::Reserve))
    }

    /// Numbers and trees of transactions, those with a record or without.
    fn branches(&self) -> Vec<(Ino, TreeId, TransactionTree)> {
        let trees = self.engine().trees().into_iter();
        let branches = trees.filter_map(|tree| {
            let (number, part) = transaction_tree(&tree.name)?;
            Some((Ino(number), tree.id, part))
        });
        branches.collect()
    }

    /// Drops the trees of transactions, in one step.
    pub(super) fn drop_branches(&self, numbers: &[Ino]) -> FsResult<()> {
        let all = self.branches();
        let trees: Vec<TreeId> = all
            .into_iter()
            .filter_map(|(of, tree, _)| numbers.contains(&of).then_some(tree))
            .collect();
        Ok(self.engine().drop_trees(&trees)?)
    }

    /// Ends the transactions that live no longer: runs, those that have expired, all in these, and
    /// what a crash has left of others.
    pub(crate) fn end_transactions_at_open(&self) -> FsResult<()> {
        if self.options.read_only || !self.header.lock().has_transactions {
            return Ok(());
        }
        let _one_at_a_time = self.transactions.changing.lock();
        self.transactions.may_be_open.store(true, Ordering::Release);
        let (branches, now) = (self.branches(), self.now());
        let mut open = Vec::new();
        for (number, record) in self.transaction_records()? {
            // An outer one comes first.
            let is_in_open = record.outer.is_none_or(|outer| open.contains(&Ino(outer)));
            if !is_open(&record) && is_in_open {
                continue;
            }
            let of_files = |(of, _, part): &&(Ino, TreeId, TransactionTree)| {
                *of == number && *part == TransactionTree::Files
            };
            let is_whole = branches.iter().filter(of_files).count() == Tree::ALL.len();
            let lives = record.life == TransactionLife::Named && record.expires_ns > now;
            if is_whole && lives && is_in_open {
                open.push(number);
                continue;
            }
            tracing::info!(
                name = record.name,
                "a transaction that was not committed has ended"
            );
            // In a full store it is ended at a later open; a full store opens.
            unless_full(self.end_transaction(number))?;
        }
        let loose = branches.iter().filter(|(of, ..)| !open.contains(of));
        let loose: BTreeSet<Ino> = loose.map(|(number, ..)| *number).collect();
        for number in loose {
            unless_full(self.drop_branches(&[number]))?;
        }
        Ok(())
    }
}

pub(super) const fn is_open(record: &TransactionRecord) -> bool {
    matches!(record.state, TransactionState::Open)
}
