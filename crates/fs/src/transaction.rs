//! Transactions of files: work that mainline sees whole or not at all.
//!
//! A transaction is a file system over branches of mainline's trees ([`TransactionView`]). All
//! operations work in it. Mainline's rows stay as they are until the commit.
//!
//! ```text
//! begin:   in a store with clones, pin the moment --> pin "txn/N"
//!          branch meta, data, xattr, sys of mainline, and every tree of records
//!          --> trees "txn~N/...", record N in mainline
//! work:    FileSystem over these trees; inode numbers come from mainline's counter
//!          records by an engine with the branches of their trees (`records`)
//! commit:  freeze the transaction, freeze mainline
//!          own keys that changed in mainline too: join them, or refuse with a list of conflicts
//!          absorb the trees, the joined rows and the record's new state: one commit of the engine
//!          apply to mainline's memory what changed (`memory`)
//! abort:   drop the trees, delete the record
//! an end of either kind drops the pin
//! ```
//!
//! | part | has |
//! |---|---|
//! | [`Transactions`] | what callers ask for: begin, open, list, commit, rebase, resolve, abort |
//! | [`catalog::Catalog`] | records of transactions, and the names of their trees |
//! | [`table::OpenTransactions`] | what is in memory of those that are in use |
//! | [`branch::BranchOpener`] | opens a file system over branch trees |
//! | [`clone_pins::ClonePins`] | pins of what transactions show of clones |
//! | [`CommitAhead`] | what a transaction has written, read before its commit |
//! | [`frozen::FrozenView`] | the transaction in a commit: what it has written and read |
//! | [`target::CommitTarget`] | the file system that is committed to, and its memory |
//! | [`rebase`], [`resolution`] | a transaction goes on from a later moment; which side wins |
//! | [`reads`], [`path_locks`] | what a serializable transaction has read; what it has locked |
//! | [`rmtree::EntryRemoval`] | removal of a tree, entry by entry |
//!
//! Invariants:
//! - a transaction never purges an inode that mainline has: mainline may have it open. It puts the
//!   orphan's row, and mainline reclaims the inode after the commit, once it is forgotten;
//! - a conflict changes nothing, in mainline and in the transaction;
//! - one caller begins, changes or ends a transaction at a time ([`OpenTransactions::change`]);
//! - mainline waits for nothing but the last check and the absorbing of a commit.
//!
//! A transaction that begins in another one is committed to that one: see [`nested`].
//!
//! Locks: all of the transaction's, the gate of its records, what holds back mainline's writers of
//! records, then all of mainline's (see `lock`), then that of reclaiming.

mod ahead;
mod branch;
mod catalog;
mod clone_pins;
mod commit;
mod conflict;
mod diff;
mod frozen;
mod grafts;
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
mod table;
mod target;

pub use ahead::CommitAhead;
pub(crate) use branch::{Branch, BranchRules};
pub(crate) use clone_pins::PinReads;
pub use conflict::{Conflict, ConflictKind, ReadKind};
pub use diff::PathChange;
pub(crate) use diff::is_changed;
pub(crate) use grafts::Grafts;
pub use grafts::PinnedClone;
pub use nested::NESTED_DEPTH_MAX;
pub use path_locks::{LOCKED_PATHS_MAX, LockTicket, PathLock, PathLocks};
pub(crate) use reads::ReadSet;
pub(crate) use records::PlainRecords;
pub use records::{
    PausedRecords, RecordKey, RecordRules, RecordSides, TransactionRecords, is_file_system_tree,
};
pub(crate) use rmtree::EntryRemoval;
pub(crate) use table::OpenTransactions;

use self::branch::BranchOpener;
use self::catalog::Catalog;
use self::clone_pins::ClonePins;
use self::target::CommitTarget;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_format::fs_transaction::TransactionRecord;

pub use stitch_format::fs_resolution::Side;
pub use stitch_format::fs_transaction::{
    TRANSACTION_NAME_BYTES_MAX, TransactionIsolation, TransactionLife, TransactionState,
};

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
        debug_assert!(
            record.outer.is_none_or(|outer| outer < number.0),
            "an outer one began before"
        );
        debug_assert!(!record.name.is_empty(), "a transaction has a name");
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

/// The transactions of a file system, which must be mainline: see [`FileSystem::transactions`].
#[derive(Clone, Copy)]
pub struct Transactions<'fs> {
    catalog: Catalog<'fs>,
    table: &'fs OpenTransactions,
    opener: BranchOpener<'fs>,
    clone_pins: ClonePins<'fs>,
    /// What outermost transactions are committed to.
    target: CommitTarget<'fs>,
    is_mainline: bool,
    is_read_only: bool,
}

impl std::fmt::Debug for Transactions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactions")
            .field("table", self.table)
            .finish_non_exhaustive()
    }
}

impl<'fs> Transactions<'fs> {
    /// Returns the locks on paths that transactions of this file system take before they begin.
    /// They are kept in memory.
    #[must_use]
    pub const fn path_locks(&self) -> &'fs PathLocks {
        &self.table.locks
    }

    /// Opens mainline, or the transaction that one began in, as it was then, for reading: the base
    /// of a merge of contents.
    ///
    /// # Errors
    /// [`FsError::Ended`]; [`FsError::Storage`].
    pub fn open_base(&self, view: &TransactionView) -> FsResult<FileSystem> {
        self.check_mainline()?;
        self.opener.open_base(view)
    }

    /// Refuses what mainline alone can do.
    const fn check_mainline(&self) -> FsResult<()> {
        match self.is_mainline {
            true => Ok(()),
            false => Err(FsError::Unsupported),
        }
    }

    const fn check_writable(&self) -> FsResult<()> {
        match self.is_read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Refuses to change transactions here.
    fn check_may_change(&self) -> FsResult<()> {
        self.check_writable()?;
        self.check_mainline()
    }
}

impl FileSystem {
    /// Returns the handle of this file system's transactions. It borrows what it uses: to take it
    /// costs nothing.
    #[must_use]
    pub fn transactions(&self) -> Transactions<'_> {
        debug_assert!(
            self.is_mainline() || !self.transactions.may_be_open(),
            "mainline alone has transactions"
        );
        Transactions {
            catalog: Catalog::of(self),
            table: &self.transactions,
            opener: BranchOpener::of(self),
            clone_pins: ClonePins::of(self),
            target: CommitTarget::of(self),
            is_mainline: self.is_mainline(),
            is_read_only: self.is_read_only(),
        }
    }

    /// Reports whether a sync reaches the medium.
    pub(crate) fn syncs(&self) -> bool {
        self.branch.is_none_or(BranchRules::syncs)
    }
}
