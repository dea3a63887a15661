//! The table of open transactions: what is in memory of them, shared by all callers.

use super::path_locks::PathLocks;
use super::reads::KeptReads;
use super::{LockTicket, TransactionView};
use crate::{FsError, FsResult};
use std::collections::HashMap;
use std::sync::Weak;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex, MutexGuard};

/// The transactions of mainline that are in use.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    /// One caller begins, commits or aborts at a time.
    changing: Mutex<()>,
    /// One was begun, or was there when the file system was opened.
    may_be_open: AtomicBool,
    views: Mutex<HashMap<Ino, Weak<TransactionView>>>,
    /// What serializable transactions have read since the file system was opened.
    pub(super) reads: KeptReads,
    pub(super) locks: PathLocks,
}

impl OpenTransactions {
    /// Reports whether a transaction may be open.
    pub(crate) fn may_be_open(&self) -> bool {
        self.may_be_open.load(Ordering::Acquire)
    }

    /// From now on, operations that change rows expect open transactions.
    pub(super) fn expect_open(&self) {
        self.may_be_open.store(true, Ordering::Release);
    }

    /// Waits until no other caller begins, changes or ends a transaction. None does until the guard
    /// is dropped.
    pub(super) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Refuses path locks that are not held, or those of another transaction.
    pub(super) fn check_lock(&self, ticket: Option<LockTicket>) -> FsResult<()> {
        match ticket.is_none_or(|ticket| self.locks.is_ready(ticket)) {
            true => Ok(()),
            false => Err(FsError::Invalid(
                "path locks that are not held, or another's",
            )),
        }
    }

    pub(super) fn find(&self, number: Ino) -> Option<Arc<TransactionView>> {
        let view = self.views.lock().get(&number).and_then(Weak::upgrade);
        debug_assert!(
            view.is_none() || self.may_be_open(),
            "operations expect one"
        );
        debug_assert!(
            view.as_ref().is_none_or(|view| view.number == number),
            "the transaction of the number"
        );
        view
    }

    pub(super) fn enter(&self, view: &Arc<TransactionView>) {
        debug_assert!(self.may_be_open(), "operations expect one");
        let mut views = self.views.lock();
        views.retain(|_, view| view.strong_count() > 0);
        let before = views.insert(view.number, Arc::downgrade(view));
        debug_assert!(before.is_none(), "a transaction is opened once");
    }

    /// Forgets all of a transaction that has ended; its path locks are free.
    pub(super) fn forget(&self, number: Ino) {
        self.views.lock().remove(&number);
        self.reads.forget(number);
        self.locks.release(number);
    }
}
