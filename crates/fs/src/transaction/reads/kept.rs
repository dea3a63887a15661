//! Read sets over the life of a file system, and of the next ones.
//!
//! ```text
//! begin    an empty set, in memory; the record says that no rows have it
//! close    rows with all of the set, then the record says so
//! open     the set is read from the rows; the record says that no rows have it, on the medium
//! crash    the record says that no rows have it: everything counts as read
//! ```
//!
//! So no read is served while rows are good that do not have it. Which records were read is not
//! in rows: after a close all of them count as read. So does all of each clone that was read.

use super::ReadSet;
use super::coarse::Reads;
use crate::locator::{Locator, SysRow};
use crate::rows::RowBatch;
use crate::schema::Store;
use crate::transaction::TransactionView;
use crate::transaction::catalog::{Catalog, is_open, schema_name};
use crate::views::{CloneInfo, ViewSet};
use crate::{FsError, FsResult};
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_db::SpaceClass;
use stitch_format::fs_reads::{self, ENTRIES_PER_ROW};
use stitch_format::fs_transaction::{TransactionIsolation, TransactionLife, TransactionRecord};

/// Rows of one batch.
const ROWS_PER_BATCH: usize = 32;

/// The read sets of transactions that were begun or opened in this life of the file system.
#[derive(Debug, Default)]
pub(in crate::transaction) struct KeptReads {
    sets: Mutex<HashMap<Ino, Arc<ReadSet>>>,
}

impl KeptReads {
    /// Keeps the set of a transaction.
    pub(in crate::transaction) fn keep(&self, number: Ino, reads: ReadSet) -> Arc<ReadSet> {
        debug_assert_eq!(reads.clone, 0, "it is the set of a transaction");
        let reads = Arc::new(reads);
        let before = self.sets.lock().insert(number, Arc::clone(&reads));
        debug_assert!(before.is_none(), "a transaction has one set");
        reads
    }

    /// Returns the set of a transaction that was begun or opened in this life.
    pub(in crate::transaction) fn find(&self, number: Ino) -> Option<Arc<ReadSet>> {
        self.sets.lock().get(&number).map(Arc::clone)
    }

    /// Returns the read set of an open transaction, if it is serializable. One transaction is
    /// changed at a time.
    pub(in crate::transaction) fn open(
        &self,
        catalog: &Catalog<'_>,
        (number, record): (Ino, &TransactionRecord),
        outer: Option<&TransactionView>,
    ) -> FsResult<Option<Arc<ReadSet>>> {
        debug_assert!(is_open(record), "one that was committed reads nothing");
        debug_assert_eq!(
            record.outer.is_some(),
            outer.is_some(),
            "the one that it began in"
        );
        if record.isolation != TransactionIsolation::Serializable {
            return Ok(None);
        }
        if let Some(reads) = self.find(number) {
            return Ok(Some(reads));
        }
        let reads = match record.has_reads {
            true => {
                let reads = ReadSet::of(record.first_ino, catalog.read_rows(number)?);
                reads.without_records()
            }
            false => {
                let name = &record.name;
                tracing::warn!(
                    name,
                    "what this transaction had read before a crash is not known"
                );
                ReadSet::unknown(record.first_ino)
            }
        };
        catalog.take_reads_from_rows(number, record)?;
        let reads = match outer {
            // The outermost one reads the clones.
            None => reads.with_entered(&catalog.clones_in(number)?),
            Some(_) => reads.within(outer),
        };
        Ok(Some(self.keep(number, reads)))
    }

    /// Writes the read sets of named transactions into rows. Nothing is read in them any more.
    ///
    /// # Errors
    /// Those of the engine. Where there is no room, all counts as read afterwards.
    pub(in crate::transaction) fn write(&self, catalog: &Catalog<'_>) -> FsResult<()> {
        for (number, record) in catalog.records()? {
            let reads = self.find(number);
            let reads = reads.filter(|reads| !reads.is_unknown && is_open(&record));
            let Some(reads) = reads.filter(|_| record.life == TransactionLife::Named) else {
                continue;
            };
            debug_assert!(
                record.isolation == TransactionIsolation::Serializable,
                "others have no set"
            );
            match catalog.write_rows(number, &record, &reads) {
                Err(FsError::NoSpace) => tracing::warn!(
                    name = record.name,
                    "there is no room for what this transaction has read: all counts as read"
                ),
                written => written?,
            }
        }
        Ok(())
    }

    /// Forgets the set of a transaction that has ended.
    pub(in crate::transaction) fn forget(&self, number: Ino) {
        self.sets.lock().remove(&number);
    }
}

impl Catalog<'_> {
    /// Returns the clones that there were when a transaction began, in the order of their numbers.
    fn clones_in(&self, number: Ino) -> FsResult<Vec<CloneInfo>> {
        let clones = ViewSet::read_live(&Store::open(self.engine, &schema_name(number))?)?;
        debug_assert!(clones.is_sorted_by_key(|info| info.number), "by number");
        Ok(clones)
    }

    fn read_rows(&self, number: Ino) -> FsResult<Reads> {
        let mut entries = Vec::new();
        let mut scan = self.store.scan(&self.store.keys.reads_of(number))?;
        while let Some((_, row)) = scan.next()? {
            entries.extend(fs_reads::decode(row)?);
        }
        let reads = Reads::of(&entries);
        debug_assert!(reads.count() <= entries.len(), "entries are joined");
        Ok(reads)
    }

    /// Deletes the rows of a read set, with which the record must not say any more that they have
    /// it.
    pub(in crate::transaction) fn delete_reads(
        &self,
        number: Ino,
        batch: &mut RowBatch<'_>,
    ) -> FsResult<()> {
        let keys = self.store.keys;
        let mut scan = self.store.scan(&keys.reads_of(number))?;
        while let Some((key, _)) = scan.next()? {
            if let Some(SysRow::Reads(of, part)) = Locator::sys_row(key) {
                debug_assert_eq!(of, number, "the range is of one transaction");
                batch.delete(&keys.reads(of, part));
            }
        }
        Ok(())
    }

    /// From now on the set is in memory. On the medium when this returns.
    fn take_reads_from_rows(&self, number: Ino, record: &TransactionRecord) -> FsResult<()> {
        let mut batch = self.store.batch();
        self.delete_reads(number, &mut batch)?;
        if !record.has_reads && batch.is_empty() {
            return Ok(());
        }
        let record = TransactionRecord {
            has_reads: false,
            ..record.clone()
        };
        debug_assert!(is_open(&record), "one that was committed reads nothing");
        batch.put(&self.store.keys.transaction(number), &record.encode());
        self.store.commit(&batch, SpaceClass::Reserve)?;
        Ok(self.engine.sync()?)
    }

    fn write_rows(&self, number: Ino, record: &TransactionRecord, reads: &ReadSet) -> FsResult<()> {
        debug_assert!(is_open(record), "one that was committed reads nothing");
        debug_assert!(!reads.is_unknown, "rows would tell of a part");
        let (entries, keys) = (reads.entries(), self.store.keys);
        let rows: Vec<Vec<u8>> = entries
            .chunks(ENTRIES_PER_ROW)
            .map(fs_reads::encode)
            .collect();
        let mut part = 0;
        for rows in rows.chunks(ROWS_PER_BATCH) {
            let mut batch = self.store.batch();
            for row in rows {
                batch.put(&keys.reads(number, part), row);
                part += 1;
            }
            self.store.commit(&batch, SpaceClass::Normal)?;
        }
        debug_assert_eq!(part, rows.len() as u64, "each row is put");
        let record = TransactionRecord {
            has_reads: true,
            ..record.clone()
        };
        let mut batch = self.store.batch();
        batch.put(&keys.transaction(number), &record.encode());
        self.store.commit(&batch, SpaceClass::Normal)
    }
}
