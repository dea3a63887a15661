//! Commit of a transaction: it is frozen, what it has written is read, and its target takes that.

use super::ahead::CommitAhead;
use super::catalog::is_open;
use super::frozen::FrozenView;
use super::own::{BranchTrees, Own};
use super::path::NameSource;
use super::reads::{CloneChecks, CloneSide, Validation};
use super::records::BranchRecords;
use super::{ReadSet, TransactionView, Transactions};
#[cfg(doc)]
use crate::FsError;
use crate::{FsResult, Notices};
use stitch_base::sync::Arc;
use stitch_format::fs_transaction::TransactionRecord;

impl Transactions<'_> {
    /// Commits a transaction: mainline has all of its changes at once, those of records included.
    /// What mainline has changed since the transaction began stays.
    ///
    /// Directories join: different names that were made in one directory are no conflict. A name
    /// or an inode that both sides changed is one. So is a directory that one side removed or moved
    /// while the other changed names in it, and a directory that was moved below one that mainline
    /// has moved. A record that both sides wrote is one, too, and so is one that mainline wrote in
    /// a range that the transaction has deleted. Of a serializable transaction, so is what it has
    /// read and others have changed, in mainline or in a clone: then its commit is as if all of it
    /// had run at once.
    ///
    /// A transaction that began in another one is committed to that one, by the same rules: what
    /// is said of mainline here is true of its outer transaction. The path locks that it has are
    /// the outer one's afterwards.
    ///
    /// Returns what caches above mainline have to drop.
    ///
    /// # Errors
    /// [`FsError::Conflict`] with all conflicts: the transaction stays open and whole, mainline is
    /// as it was. [`FsError::HasInner`] if a transaction in it is open. [`FsError::Ended`] if it
    /// was committed or aborted before; [`FsError::NoSpace`], [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns, unless it is in a run. A crash leaves all of it or nothing.
    ///
    /// # Cost
    /// Reads the changed rows of names and inodes: about 500 bytes of memory for each. If mainline
    /// has written contents of the same inodes, reads the keys of the contents, too: 7 MB for a
    /// gigabyte. Looks for changes of each range of keys that a serializable transaction has read.
    /// Mainline waits for the check of what it wrote since this call began, and for the engine's
    /// absorb, of which most was done before. So do clones that a serializable transaction has
    /// read. Trees that mainline has removed are emptied before.
    pub fn commit(&self, view: &TransactionView) -> FsResult<Notices> {
        self.commit_read(view, None)
    }

    /// Commits a transaction, of which something may have been read ahead.
    pub(super) fn commit_read(
        &self,
        view: &TransactionView,
        ahead: Option<CommitAhead>,
    ) -> FsResult<Notices> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let record = self.catalog.open_record(view.number)?;
        self.catalog.check_no_inner(view.number)?;
        if !record.resolutions.is_empty() {
            let rebased = self.rebase_open(view, &record)?;
            debug_assert!(view.number < rebased.number, "a later number");
            let record = self.catalog.open_record(rebased.number)?;
            return self.commit_open(&rebased, record, None);
        }
        self.commit_open(view, record, ahead)
    }

    fn commit_open(
        &self,
        view: &TransactionView,
        record: TransactionRecord,
        ahead: Option<CommitAhead>,
    ) -> FsResult<Notices> {
        let (number, engine) = (view.number, self.catalog.engine);
        debug_assert!(is_open(&record), "an outcome is final");
        debug_assert_eq!(
            record.outer,
            view.outer.as_ref().map(|outer| outer.number.0),
            "the one that it began in"
        );
        let target = self.target_of(view);
        target.removed.empty_all()?;
        let _frozen = view.fs.residents.locks.all_write();
        let trees = BranchTrees::of(&view.fs)?;
        let ahead = ahead.map(|ahead| ahead.if_current(number, &trees));
        let own = match ahead.transpose()?.flatten() {
            Some(own) => own,
            None => Own::read(&trees)?,
        };
        let mut records_end = view.records.gate.close();
        debug_assert!(!*records_end, "a transaction ends once");
        let records = BranchRecords::read(engine, number, &view.records)?;
        // Without writes it is as if it had run at its beginning.
        let is_checked = !own.is_empty() || !records.names().is_empty();
        let reads = view.fs.reads.as_ref().filter(|_| is_checked);
        let validation = |reads: &Arc<ReadSet>| {
            let within = (number, &view.fs.store);
            let clones = CloneChecks::new(self.clone_pins, within, reads, CloneSide::Now)?;
            FsResult::Ok(Validation::new(reads, &trees, clones))
        };
        let frozen = FrozenView {
            reads: reads.map(validation).transpose()?,
            number,
            record,
            within: self.catalog.numbers_within(number)?,
            catalog: self.catalog,
            names: NameSource::of(&view.fs),
            back_rows: &view.fs.back_rows,
            rules: self.target.rules,
            trees: &trees,
            own: &own,
            records: &records,
        };
        let committed = target.commit(&frozen)?;
        *records_end = true;
        if let Some(outer) = &view.outer {
            let locks = &self.table.locks;
            locks.pass_on(number, outer.number, &outer.full_name());
        }
        self.table.forget(number);
        if target.syncs {
            engine.sync()?;
        }
        self.clone_pins.drop_pin(number);
        if let Err(error) = engine.drop_trees(&records.dropped()) {
            tracing::warn!(%error, "a tree of a committed transaction is dropped at the next open");
        }
        Ok(committed)
    }
}
