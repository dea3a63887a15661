//! Rebase: a transaction goes on from a later moment of mainline.
//!
//! ```text
//! 1  new branches of mainline's trees, under a new number         trees without a record, a pin
//! 2  the plan of a commit, against them: conflicts end it
//! 3  what a commit would put is put into them
//! 4  one batch: the record moves from the old number to the new   the transaction is rebased
//! 5  the old branches are dropped, and the old pin                trees without a record, a pin
//! ```
//!
//! A crash leaves trees without a record, which the next open drops. Mainline goes on meanwhile: it
//! is read as of step 1. The old file system has ended after step 4: inodes that are open in it are
//! not known in the new one.
//!
//! Conflicts that were resolved are no obstacle: each inode in one is taken from one side
//! ([`winners`]), links and counters follow from the rows ([`merged`]). Each record in one is taken
//! from one side ([`BranchMerge`](stitch_db::BranchMerge)).
//!
//! A serializable transaction is rebased if all that it has read, in clones too, is at step 1 as it
//! was when it began: then it is as if it had run there. What it has read stays read. Its read set
//! is closed between steps 2 and 3, so a read is checked in step 2, or waits and fails after step
//! 4.

mod merged;
mod rings;
mod shared;
mod trial;
mod winners;

use super::catalog::{is_open, schema_name};
use super::own::{BranchTrees, Own};
use super::path::NameSource;
use super::reads::ClosedReads;
use super::records::BranchRecords;
use super::resolve::Plan;
use super::{TransactionView, Transactions};
use crate::locator::Tree;
use crate::schema::Store;
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_transaction::{TransactionLife, TransactionRecord};

pub(super) use trial::Trial;

impl Transactions<'_> {
    /// Brings a transaction to the present state of mainline: it is as if it had begun now, and
    /// its changes had been made then. Returns the transaction, which has a new number. The view
    /// that was given has ended.
    ///
    /// Conflicts that were resolved ([`Self::resolve`], [`Self::resolve_record`]) are
    /// settled by it. Of one that began in another transaction, that one is meant instead of
    /// mainline. A serializable one is rebased if mainline has changed nothing that it has read;
    /// what it has read is checked at its commit as before.
    ///
    /// # Errors
    /// [`FsError::Conflict`] with the conflicts that are open and what was read and is changed,
    /// [`FsError::Unresolvable`]: the
    /// transaction is as it was. [`FsError::Invalid`] for a run; [`FsError::HasInner`] if a
    /// transaction in it is open; [`FsError::Ended`],
    /// [`FsError::NoSpace`], [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns. A crash leaves the transaction as it was, or rebased.
    ///
    /// # Cost
    /// Copies what the transaction has written. One scan of all names, if conflicts were resolved
    /// or directories moved. Mainline does not wait.
    pub fn rebase(&self, view: &TransactionView) -> FsResult<Arc<TransactionView>> {
        self.check_may_change()?;
        let _one_at_a_time = self.table.change();
        let record = self.catalog.open_record(view.number)?;
        self.rebase_open(view, &record)
    }

    pub(super) fn rebase_open(
        &self,
        view: &TransactionView,
        record: &TransactionRecord,
    ) -> FsResult<Arc<TransactionView>> {
        if record.life != TransactionLife::Named {
            return Err(FsError::Invalid("a run is not rebased: run it again"));
        }
        self.catalog.check_no_inner(view.number)?;
        self.target_of(view).removed.empty_all()?;
        let _frozen = view.fs.residents.locks.all_write();
        let mut records_end = view.records.gate.close();
        let mut records = BranchRecords::read(self.catalog.engine, view.number, &view.records)?;
        debug_assert!(is_open(record), "it goes on");
        debug_assert!(
            record.outer == view.outer.as_ref().map(|outer| outer.number.0),
            "the one that it began in"
        );
        let number = self.catalog.changes.new_ino()?;
        debug_assert!(view.number < number, "a later number");
        self.make_branches(number, view.outer.as_deref())?;
        let rebased = TransactionRecord {
            // What the branches hold has smaller numbers.
            first_ino: self.opener.next_number(),
            resolutions: Vec::new(),
            ..record.clone()
        };
        debug_assert!(
            number.0 < rebased.first_ino,
            "the number is none of an inode in it"
        );
        let reads = view.fs.reads.as_deref();
        let merge = |trial: &Trial<'_>| trial.merge(&mut records, reads);
        let merged = self.on_branches(view, number, record, merge);
        if let Ok(Some(reads)) = &merged {
            // Before the record: from then on they are asked for.
            let reads = reads.rebased(rebased.first_ino);
            let reads = reads.within(view.outer.as_deref());
            self.table.reads.keep(number, reads);
        }
        debug_assert!(rebased.first_ino >= record.first_ino, "a later moment");
        let moved = merged.and_then(|reads| {
            self.catalog.renumber(view.number, number, &rebased)?;
            Ok(reads)
        });
        match moved {
            Ok(reads) => reads.into_iter().for_each(ClosedReads::end),
            Err(error) => {
                self.table.reads.forget(number);
                self.clone_pins.drop_pin(number);
                self.catalog.drop_branches(&[number])?;
                return Err(error);
            }
        }
        debug_assert!(!*records_end, "a transaction ends once");
        *records_end = true;
        let locks = &self.table.locks;
        locks.pass_on(view.number, number, &view.full_name());
        self.table.forget(view.number);
        if let Err(error) = self.catalog.drop_branches(&[view.number]) {
            tracing::warn!(%error, "trees of a rebased transaction are dropped at the next open");
        }
        self.clone_pins.drop_pin(view.number);
        self.open_view(number, &rebased)
    }

    /// Runs something on new branches, and drops them.
    pub(super) fn with_trial<T>(
        &self,
        view: &TransactionView,
        record: &TransactionRecord,
        run: impl FnOnce(&Trial<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.target_of(view).removed.empty_all()?;
        let _frozen = view.fs.residents.locks.all_write();
        let number = self.catalog.changes.new_ino()?;
        debug_assert!(view.number < number, "a later number");
        self.catalog
            .make_branches(number, view.outer.as_deref(), None)?;
        let done = self.on_branches(view, number, record, run);
        self.catalog.drop_branches(&[number])?;
        done
    }

    fn on_branches<T>(
        &self,
        view: &TransactionView,
        number: Ino,
        record: &TransactionRecord,
        run: impl FnOnce(&Trial<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        debug_assert_ne!(number, view.number, "the branches are others");
        let store = Store::open(self.catalog.engine, &schema_name(number))?;
        let trees = BranchTrees::of(&view.fs)?.onto(&Tree::ALL.map(|tree| store.tree(tree)));
        let own = Own::read(&trees)?;
        let changed = own.changed(&trees, None)?;
        debug_assert!(
            changed.meta.len() <= own.meta.len(),
            "keys that it has written"
        );
        debug_assert!(
            changed.sys.len() <= own.sys.len(),
            "keys that it has written"
        );
        let mut plan = Plan::new(&trees, &own, &changed)?;
        plan.check_clones(self.target.standing)?;
        run(&Trial {
            engine: self.catalog.engine,
            rules: self.target.rules,
            opener: self.opener,
            clone_pins: self.clone_pins,
            view,
            names: NameSource::of(&view.fs),
            number,
            store,
            record,
            trees: &trees,
            own: &own,
            plan,
        })
    }
}
