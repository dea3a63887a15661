//! Transactions of files: work that mainline sees whole or not at all.
//!
//! A transaction is a file system over branches of mainline's trees ([`TransactionView`]). All
//! operations work in it. Mainline's rows stay as they are until the commit.
//!
//! ```text
//! begin:   branch meta, data, xattr, sys of mainline, and every tree of records
//!          --> trees "txn~N/...", record N in mainline
//! work:    FileSystem over these trees; inode numbers come from mainline's counter
//!          records by an engine with the branches of their trees (`records`)
//! commit:  freeze the transaction, freeze mainline
//!          own keys that changed in mainline too: join them, or refuse with a list of conflicts
//!          absorb the trees, the joined rows and the record's new state: one commit of the engine
//!          apply to mainline's memory what changed (`memory`)
//! abort:   drop the trees, delete the record
//! ```
//!
//! Invariants:
//! - a transaction never purges an inode that mainline has: mainline may have it open. It puts the
//!   orphan's row, and mainline reclaims the inode after the commit, once it is forgotten;
//! - a conflict changes nothing, in mainline and in the transaction;
//! - mainline waits for nothing but the last check and the absorbing of a commit.
//!
//! A transaction that begins in another one is committed to that one: see [`nested`].
//!
//! Locks: all of the transaction's, the gate of its records, what holds back mainline's writers of
//! records, then all of mainline's (see `lock`), then that of reclaiming.

mod base;
mod commit;
mod conflict;
mod diff;
mod life;
mod memory;
mod merge;
mod nested;
mod own;
mod path;
mod path_locks;
mod places;
mod reads;
mod rebase;
mod records;
mod resolution;
mod resolve;
mod rmtree;
mod shared;

pub use conflict::{Conflict, ConflictKind, ReadKind};
pub use diff::PathChange;
pub(crate) use diff::is_changed;
pub use nested::NESTED_DEPTH_MAX;
pub use path_locks::{LOCKED_PATHS_MAX, LockTicket, PathLock, PathLocks};
pub(crate) use reads::ReadSet;
pub(crate) use records::PlainRecords;
pub use records::{
    PausedRecords, RecordKey, RecordRules, RecordSides, TransactionRecords, is_file_system_tree,
};

use self::reads::KeptReads;
use crate::numbers::Numbers;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::collections::HashMap;
use std::sync::Weak;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_transaction::TransactionRecord;

pub use stitch_format::fs_resolution::Side;
pub use stitch_format::fs_transaction::{
    TRANSACTION_NAME_BYTES_MAX, TransactionIsolation, TransactionLife, TransactionState,
};

/// Rules of a transaction's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchRules {
    /// Inodes with smaller numbers are mainline's too.
    first_ino: u64,
    life: TransactionLife,
}

/// What a file system over branches of mainline's trees needs of mainline.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) rules: BranchRules,
    /// What a serializable transaction has read.
    pub(crate) reads: Option<Arc<ReadSet>>,
}

/// How a transaction begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeginOptions {
    /// How long it lives.
    pub life: TransactionLife,
    /// What its commit checks.
    pub isolation: TransactionIsolation,
    /// User that it belongs to.
    pub owner: u32,
    /// When it may be aborted unasked; `None` for never.
    pub expires: Option<Timestamp>,
    /// Path locks that are held, which it has until it ends.
    pub lock: Option<LockTicket>,
    /// Number of the open transaction that it begins in; `None` for mainline. In a serializable one
    /// it is serializable, too.
    pub outer: Option<u64>,
}

/// A transaction of files, open or committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Number, never used again in a file system; a later transaction has a larger one.
    pub number: u64,
    /// Number of the transaction that it began in; `None` for mainline. What was committed is in
    /// that one then.
    pub outer: Option<u64>,
    /// Name, unique among open transactions that began in the same one.
    pub name: String,
    /// How long it lives.
    pub life: TransactionLife,
    /// What its commit checks.
    pub isolation: TransactionIsolation,
    /// User that it belongs to.
    pub owner: u32,
    /// When it began.
    pub created: Timestamp,
    /// When it may be aborted unasked.
    pub expires: Option<Timestamp>,
    /// What became of it.
    pub state: TransactionState,
}

impl TransactionInfo {
    fn of(number: Ino, record: &TransactionRecord) -> Self {
        debug_assert!(number.0 > 0, "0 is no number");
        let expires = Some(Timestamp(record.expires_ns));
        Self {
            number: number.0,
            outer: record.outer,
            name: record.name.clone(),
            life: record.life,
            isolation: record.isolation,
            owner: record.owner,
            created: Timestamp(record.created_ns),
            expires: expires.filter(|at| at.0 != i64::MAX),
            state: record.state,
        }
    }

    /// Reports whether it was not committed yet.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, TransactionState::Open)
    }
}

/// The file system as an open transaction has it. Once the transaction is committed or aborted,
/// what is asked of it fails with [`FsError::Ended`].
#[derive(Debug)]
pub struct TransactionView {
    fs: Arc<FileSystem>,
    records: Arc<TransactionRecords>,
    number: Ino,
    info: TransactionInfo,
    /// The transaction that it began in, which stays open as long as this one is used.
    outer: Option<Arc<TransactionView>>,
}

impl TransactionView {
    /// Returns the file system of the transaction.
    #[must_use]
    pub const fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns the trees of records that the store had when the transaction began, as the
    /// transaction has them.
    #[must_use]
    pub const fn records(&self) -> &Arc<TransactionRecords> {
        &self.records
    }

    /// Returns what the transaction is.
    #[must_use]
    pub const fn info(&self) -> &TransactionInfo {
        &self.info
    }
}

/// The transactions of mainline that are in use.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    /// One caller begins, commits or aborts at a time.
    changing: Mutex<()>,
    /// One was begun, or was there when the file system was opened.
    may_be_open: AtomicBool,
    views: Mutex<HashMap<Ino, Weak<TransactionView>>>,
    /// What serializable transactions have read since the file system was opened.
    reads: KeptReads,
    locks: PathLocks,
}

impl OpenTransactions {
    /// Reports whether a transaction may be open.
    pub(crate) fn may_be_open(&self) -> bool {
        self.may_be_open.load(Ordering::Acquire)
    }

    fn find(&self, number: Ino) -> Option<Arc<TransactionView>> {
        self.views.lock().get(&number).and_then(Weak::upgrade)
    }

    fn enter(&self, view: &Arc<TransactionView>) {
        let mut views = self.views.lock();
        views.retain(|_, view| view.strong_count() > 0);
        let before = views.insert(view.number, Arc::downgrade(view));
        debug_assert!(before.is_none(), "a transaction is opened once");
    }

    fn forget(&self, number: Ino) {
        self.views.lock().remove(&number);
        self.reads.forget(number);
        self.locks.release(number);
    }
}

impl BranchRules {
    /// Reports whether an inode was made in the transaction.
    pub(crate) const fn owns(self, ino: Ino) -> bool {
        ino.0 >= self.first_ino
    }
}

impl FileSystem {
    /// Reports whether an inode may be purged here: no other file system has it.
    pub(crate) const fn owns(&self, ino: Ino) -> bool {
        match self.branch {
            Some(rules) => rules.owns(ino),
            None => true,
        }
    }

    /// Reports whether a sync reaches the medium. What a run has done is made durable by its
    /// commit.
    pub(crate) const fn syncs(&self) -> bool {
        match self.branch {
            Some(rules) => matches!(rules.life, TransactionLife::Named),
            None => true,
        }
    }

    /// Returns the locks on paths that transactions of this file system take before they begin.
    /// They are kept in memory.
    #[must_use]
    pub const fn path_locks(&self) -> &PathLocks {
        &self.transactions.locks
    }

    /// Refuses what mainline alone can do.
    const fn check_mainline(&self) -> FsResult<()> {
        match self.branch {
            None if self.standing.number == 0 => Ok(()),
            _ => Err(FsError::Unsupported),
        }
    }
}
