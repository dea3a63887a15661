//! Savepoints and nested transactions: parts of a transaction that can be taken back alone.

use super::Transaction;
use crate::DbError;
use std::ops::{Deref, DerefMut};
use stitch_base::sync::Arc;

/// A place in a transaction to which its writes can be taken back. Another transaction refuses it.
#[derive(Debug)]
pub struct Savepoint {
    number: u64,
    owner: Mark,
}

/// Tells a transaction from all others. Made for its first savepoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark(Arc<()>);

impl Transaction {
    /// Marks a place to which later writes can be taken back.
    ///
    /// # Cost
    /// Memory for the log of changes after it, while it is open. If writes after it
    /// are moved out of memory, what was in memory at that time, at most twice
    /// [`TransactionOptions::spill_bytes`](super::TransactionOptions::spill_bytes), and a level of
    /// branch trees. On an engine without branch trees all of it fits a batch, or writes are
    /// refused.
    pub fn savepoint(&mut self) -> Savepoint {
        let number = self.writes.save();
        let owner = self.mark.get_or_insert_default().clone();
        Savepoint { number, owner }
    }

    /// Returns the number of a savepoint of this transaction.
    fn own(&self, savepoint: &Savepoint) -> Result<u64, DbError> {
        let mark = self.mark.as_ref();
        let is_own = mark.is_some_and(|mark| Arc::ptr_eq(&mark.0, &savepoint.owner.0));
        is_own
            .then_some(savepoint.number)
            .ok_or(DbError::NoSavepoint)
    }

    /// Takes back what was written after a savepoint. It can be used again; later ones are gone.
    /// Locks are kept, and what was read stays read.
    ///
    /// # Errors
    /// [`DbError::NoSavepoint`] if it was released, is gone with an earlier one, or is another
    /// transaction's.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), DbError> {
        let number = self.own(savepoint)?;
        self.take_back(number)
    }

    /// Gives up a savepoint and later ones, and keeps what was written.
    ///
    /// # Errors
    /// [`DbError::NoSavepoint`] if it is gone, or another transaction's.
    #[expect(clippy::needless_pass_by_value, reason = "it is of no use afterwards")]
    pub fn release(&mut self, savepoint: Savepoint) -> Result<(), DbError> {
        let number = self.own(&savepoint)?;
        self.keep(number)
    }

    /// Begins a transaction inside of this one. It reads and writes as this one does; dropping it
    /// takes back what was written in it. They can be nested.
    pub fn nest(&mut self) -> Nested<'_> {
        let number = self.writes.save();
        Nested {
            transaction: self,
            number: Some(number),
        }
    }
}

/// A transaction inside of another. Dropping it aborts it.
#[derive(Debug)]
pub struct Nested<'t> {
    transaction: &'t mut Transaction,
    /// Its savepoint, until it is committed.
    number: Option<u64>,
}

impl Nested<'_> {
    /// Makes its writes those of the transaction around it. They are durable with that one.
    pub fn commit(mut self) {
        if let Some(number) = self.number.take() {
            let kept = self.transaction.keep(number);
            debug_assert!(kept.is_ok(), "it is open until its end");
        }
    }

    /// Takes its writes back. So does dropping it.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            let outer = &mut *self.transaction;
            let taken = outer.take_back(number).and_then(|()| outer.keep(number));
            debug_assert!(taken.is_ok(), "it is open until its end");
        }
    }
}

impl Deref for Nested<'_> {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        self.transaction
    }
}

impl DerefMut for Nested<'_> {
    fn deref_mut(&mut self) -> &mut Transaction {
        self.transaction
    }
}
