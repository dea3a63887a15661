//! Begin, open, list, abort; and what is done with transactions when a file system is opened.

use super::branch::BranchRules;
use super::catalog::is_open;
use super::nested::{isolation_within, life_within};
use super::{
    BeginOptions, ReadSet, TransactionInfo, TransactionIsolation, TransactionRecords,
    TransactionView, Transactions,
};
use crate::locator::Tree;
use crate::room::unless_full;
use crate::{FsError, FsResult};
use std::collections::{BTreeSet, HashMap};
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_transaction::{
    TRANSACTION_NAME_BYTES_MAX, TransactionLife, TransactionRecord, TransactionState,
    TransactionTree,
};

fn check_name(name: &str) -> FsResult<()> {
    if name.len() > TRANSACTION_NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(FsError::Invalid("no name of a transaction"));
    }
    Ok(())
}

impl Transactions<'_> {
    /// Reports whether transactions can begin here.
    #[must_use]
    pub fn can_begin(&self) -> bool {
        self.check_can_begin().is_ok()
    }

    fn check_can_begin(&self) -> FsResult<()> {
        self.check_mainline()?;
        let can = self.catalog.engine.capabilities();
        // External files are written in place: mainline would see that at once.
        if !can.branches || !can.absorb || !can.guards || self.target.header.lock().has_external {
            return Err(FsError::Unsupported);
        }
        self.catalog.changes.check_numbers_leave_room()
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
    /// with the two syncs of that; one sync of the log more if it is no run. In a store with clones
    /// one more record, with the syncs of that.
    pub fn begin(&self, name: &str, options: &BeginOptions) -> FsResult<Arc<TransactionView>> {
        self.check_writable()?;
        check_name(name)?;
        self.check_can_begin()?;
        self.table.check_lock(options.lock)?;
        let _one_at_a_time = self.table.change();
        let outer = options.outer.map(|number| self.outer_view(Ino(number)));
        let outer = outer.transpose()?;
        match self.catalog.find_open(options.outer, name) {
            Ok(_) => return Err(FsError::Exists),
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let records = self.catalog.records()?;
        self.catalog
            .changes
            .mark_header(|header| header.has_transactions = true)?;
        let number = self.catalog.changes.new_ino()?;
        debug_assert!(
            outer.as_ref().is_none_or(|outer| outer.number < number),
            "an outer one began before"
        );
        self.table.expect_open();
        // Operations that did not see that have ended.
        drop(self.target.residents.locks.all_read());
        self.make_branches(number, outer.as_deref())?;
        let record = self.new_record(name, options, outer.as_deref());
        debug_assert!(
            number.0 < record.first_ino,
            "the number is none of an inode in it"
        );
        let begun = self.catalog.add(number, &record, &records);
        if begun.is_err() {
            drop(self.catalog.drop_branches(&[number]));
            self.clone_pins.drop_pin(number);
        }
        begun?;
        if record.life == TransactionLife::Named {
            // Of a run a crash leaves trees without a record, which the next open drops as well.
            self.catalog.engine.sync()?;
        }
        if record.isolation == TransactionIsolation::Serializable {
            let reads = ReadSet::new(record.first_ino).within(outer.as_deref());
            self.table.reads.keep(number, reads);
        }
        let view = self.open_view(number, &record)?;
        debug_assert_eq!(view.number, number, "the transaction that has begun");
        debug_assert!(view.info.is_open(), "it is not committed yet");
        debug_assert_eq!(view.info.outer, options.outer, "the one that it began in");
        debug_assert_eq!(view.info.name, name);
        debug_assert_eq!(view.info.owner, options.owner);
        if let Some(ticket) = options.lock {
            self.table.locks.give(ticket, number);
        }
        Ok(view)
    }

    /// Makes the branches of a transaction, and before them the pin of the clones that it shows.
    pub(super) fn make_branches(
        &self,
        number: Ino,
        outer: Option<&TransactionView>,
    ) -> FsResult<()> {
        let moment = match outer {
            None => self.clone_pins.create(number)?,
            Some(_) => None,
        };
        let made = self.catalog.make_branches(number, outer, moment.as_ref());
        if made.is_err() && moment.is_some() {
            self.clone_pins.drop_pin(number);
        }
        made
    }

    /// The record of a transaction whose branches were made.
    fn new_record(
        &self,
        name: &str,
        options: &BeginOptions,
        outer: Option<&TransactionView>,
    ) -> TransactionRecord {
        debug_assert!(!name.is_empty(), "a name was checked");
        debug_assert_eq!(
            options.outer,
            outer.map(|outer| outer.number.0),
            "the one that it begins in"
        );
        TransactionRecord {
            state: TransactionState::Open,
            life: options.life,
            isolation: isolation_within(options.isolation, outer),
            has_reads: false,
            owner: options.owner,
            created_ns: self.catalog.changes.now(),
            expires_ns: options.expires.map_or(i64::MAX, |at| at.0),
            // What the branches hold has smaller numbers.
            first_ino: self.opener.next_number(),
            outer: options.outer,
            name: name.to_owned(),
            resolutions: Vec::new(),
        }
    }

    /// Returns the transactions that are open, and those that were committed last, by number.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] in a transaction; [`FsError::Format`].
    pub fn list(&self) -> FsResult<Vec<TransactionInfo>> {
        self.check_mainline()?;
        let records = self.catalog.live_records()?;
        let infos = records.iter();
        Ok(infos
            .map(|(number, record)| TransactionInfo::of(*number, record))
            .collect())
    }

    /// Returns the open transactions that began in mainline, each with its trees and those of the
    /// transactions in it: what an abort drops. None in a transaction or a clone.
    pub(crate) fn with_trees(&self) -> FsResult<Vec<(TransactionInfo, Vec<TreeId>)>> {
        if !self.is_mainline {
            return Ok(Vec::new());
        }
        let branches = self.catalog.branches();
        let mut found: Vec<(TransactionInfo, Vec<TreeId>)> = Vec::new();
        // Where those are found that are in one.
        let mut places: HashMap<u64, usize> = HashMap::new();
        for (number, record) in self.catalog.live_records()? {
            if !is_open(&record) {
                continue;
            }
            // An outer one comes first.
            let outer = record.outer.map(|outer| places.get(&outer).copied());
            let place = match outer {
                None => {
                    found.push((TransactionInfo::of(number, &record), Vec::new()));
                    found.len() - 1
                }
                Some(Some(place)) => place,
                Some(None) => continue,
            };
            places.insert(number.0, place);
            let own = branches.iter().filter(|(of, ..)| *of == number);
            found[place].1.extend(own.map(|(_, tree, _)| *tree));
        }
        debug_assert!(
            found.iter().all(|(info, _)| info.outer.is_none()),
            "they began in mainline"
        );
        debug_assert!(found.is_sorted_by_key(|(info, _)| info.number), "by number");
        Ok(found)
    }

    /// Opens the file system of a transaction that began in mainline. All callers share one, as
    /// long as one of them keeps it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if no open transaction has the name.
    pub fn open(&self, name: &str) -> FsResult<Arc<TransactionView>> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let (number, _) = self.catalog.find_open(None, name)?;
        let view = self.view_of(number)?;
        debug_assert_eq!(view.info.name, name, "the transaction of the name");
        debug_assert!(view.outer.is_none(), "it began in mainline");
        Ok(view)
    }

    /// Opens the file system of the open transaction of a number, as [`Self::open`]
    /// does.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted before.
    pub fn open_number(&self, number: u64) -> FsResult<Arc<TransactionView>> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let view = self.view_of(Ino(number))?;
        debug_assert_eq!(view.info.number, number, "the transaction of the number");
        Ok(view)
    }

    /// The open transaction of a number. One transaction is changed at a time.
    pub(super) fn view_of(&self, number: Ino) -> FsResult<Arc<TransactionView>> {
        match self.table.find(number) {
            Some(view) => {
                debug_assert_eq!(view.number, number, "the transaction of the number");
                Ok(view)
            }
            None => self.open_view(number, &self.catalog.open_record(number)?),
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
        debug_assert!(
            outer.as_ref().is_none_or(|outer| outer.number < number),
            "an outer one began before"
        );
        let kept = &self.table.reads;
        let reads = kept.open(&self.catalog, (number, record), outer.as_deref())?;
        debug_assert_eq!(
            reads.is_some(),
            record.isolation == TransactionIsolation::Serializable,
            "reads of a serializable one are noted"
        );
        let life = life_within(record, outer.as_deref());
        let records = TransactionRecords::open(self.catalog.engine, number, life, reads.clone())?;
        let rules = BranchRules {
            first_ino: record.first_ino,
            life,
        };
        // It shows clones as the outermost one does.
        let shown = outer.as_deref().map_or(number, TransactionView::outermost);
        debug_assert!(shown <= number, "an outer one began before");
        let clones_at = self.clone_pins.find(shown)?;
        let fs = self.opener.open(number, rules, (reads, clones_at))?;
        let view = Arc::new(TransactionView {
            records: Arc::new(records),
            fs: Arc::new(fs),
            number,
            info: TransactionInfo::of(number, record),
            outer,
        });
        debug_assert!(view.fs.branch.is_some(), "a file system over branches");
        debug_assert_eq!(view.info.number, view.number.0, "what is told of it");
        self.table.enter(&view);
        Ok(view)
    }

    /// Changes when an open transaction may be aborted unasked; `None` for never.
    ///
    /// # Errors
    /// [`FsError::Ended`] if no open transaction has the number; [`FsError::NoSpace`],
    /// [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn expire(&self, number: u64, expires: Option<Timestamp>) -> FsResult<()> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let mut record = self.catalog.open_record(Ino(number))?;
        record.expires_ns = expires.map_or(i64::MAX, |at| at.0);
        debug_assert!(is_open(&record), "it goes on");
        self.catalog.put(Ino(number), &record)
    }

    /// Aborts a transaction that began in mainline: nothing of it is left, nor of those in it.
    /// Works in a full store, and while the transaction is in use.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if no open transaction has the name.
    ///
    /// # Durability
    /// On the medium when this returns, but for its record, which the next open removes.
    pub fn abort(&self, name: &str) -> FsResult<()> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let (number, _) = self.catalog.find_open(None, name)?;
        self.end(number)
    }

    /// Aborts the open transaction of a number, as [`Self::abort`] does.
    ///
    /// # Errors
    /// [`FsError::Ended`] if it was committed or aborted before.
    pub fn abort_number(&self, number: u64) -> FsResult<()> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let number = Ino(number);
        self.catalog.open_record(number)?;
        self.end(number)
    }

    /// Drops the trees of a transaction and of all in it, then the records.
    fn end(&self, number: Ino) -> FsResult<()> {
        let mut ended = self.catalog.numbers_within(number)?;
        debug_assert!(!ended.contains(&number), "it is in no other one that ends");
        ended.push(number);
        for number in &ended {
            if let Some(view) = self.table.find(*number) {
                *view.records.gate.close() = true;
            }
            self.table.forget(*number);
        }
        self.catalog.drop_branches(&ended)?;
        // Without trees it is no transaction any more, whether its record is there or not.
        let deleted = unless_full(self.catalog.delete(&ended));
        ended
            .iter()
            .for_each(|number| self.clone_pins.drop_pin(*number));
        deleted
    }

    /// Ends the transactions that live no longer: runs, those that have expired, all in these, and
    /// what a crash has left of others.
    pub(crate) fn end_at_open(&self) -> FsResult<()> {
        if self.is_read_only || !self.target.header.lock().has_transactions {
            return Ok(());
        }
        let _one_at_a_time = self.table.change();
        self.table.expect_open();
        let (branches, now) = (self.catalog.branches(), self.catalog.changes.now());
        let mut open = Vec::new();
        for (number, record) in self.catalog.records()? {
            debug_assert!(
                open.last().is_none_or(|last| *last < number),
                "in the order of numbers"
            );
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
            unless_full(self.end(number))?;
        }
        let loose = branches.iter().filter(|(of, ..)| !open.contains(of));
        let loose: BTreeSet<Ino> = loose.map(|(number, ..)| *number).collect();
        for number in loose {
            unless_full(self.catalog.drop_branches(&[number]))?;
        }
        self.clone_pins.drop_all_but(&open)
    }

    /// Writes what serializable transactions have read into rows, before mainline is closed.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn write_reads(&self) -> FsResult<()> {
        if !self.table.may_be_open() {
            return Ok(());
        }
        let _one_at_a_time = self.table.change();
        self.table.reads.write(&self.catalog)
    }
}
