//! The file system as a whole: what it has, how it is opened ([`open`]) and closed ([`close`]).
//!
//! Invariant: an operation uses the fields that its context borrows ([`crate::data`],
//! [`crate::namespace`], ...), and changes others by a [`Change`](crate::change::Change) alone.

mod close;
mod open;

use crate::aside::Aside;
use crate::atomic::AtomicWrites;
use crate::back::BackRows;
use crate::data::ExtentMaps;
use crate::detach::Detached;
use crate::events::Untold;
use crate::external::Externals;
use crate::history::HistoryState;
use crate::numbers::Numbers;
use crate::policy::PolicyState;
use crate::prefetch::{Prefetch, Prefetcher};
use crate::residents::Residents;
use crate::rollback::RollbackState;
use crate::room::Room;
use crate::schema::Store;
use crate::shared::LeftContents;
use crate::transaction::{BranchRules, Grafts, OpenTransactions, ReadSet};
use crate::usage::SnapshotSizes;
use crate::views::Standing;
use crate::{FsError, FsOptions, FsResult};
use stitch_base::sync::atomic::AtomicBool;
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_sys::FsHeader;
use stitch_kv::Engine;

/// A file system on an engine. Shared by threads.
///
/// An inode number is good from the lookup (or creation) that gave it until as many lookups were
/// forgotten as were counted; anything else is [`FsError::Stale`]. The root is always good.
pub struct FileSystem {
    engine: Arc<dyn Engine>,
    pub(crate) options: FsOptions,
    pub(crate) store: Store,
    pub(crate) residents: Residents,
    pub(crate) prefetch: Prefetch,
    /// As it is stored.
    pub(crate) header: Mutex<FsHeader>,
    pub(crate) numbers: Arc<Numbers>,
    /// Rules of a transaction's file system; `None` in any other.
    pub(crate) branch: Option<BranchRules>,
    /// What a serializable transaction has read, here or in a clone that it shows; `None` in any
    /// other file system.
    pub(crate) reads: Option<Arc<ReadSet>>,
    /// Directories of a transaction at which clones lie; none in any other file system.
    pub(crate) grafts: Grafts,
    pub(crate) transactions: OpenTransactions,
    pub(crate) detached: Detached,
    pub(crate) untold: Untold,
    pub(crate) atomic_writes: AtomicWrites,
    pub(crate) externals: Externals,
    /// Some file was immutable or append-only.
    pub(crate) fixed: AtomicBool,
    pub(crate) room: Room,
    pub(crate) back_rows: BackRows,
    pub(crate) aside: Aside,
    pub(crate) extents: ExtentMaps,
    pub(crate) left_contents: LeftContents,
    pub(crate) snapshot_sizes: SnapshotSizes,
    pub(crate) rollbacks: RollbackState,
    pub(crate) policies: PolicyState,
    pub(crate) history: HistoryState,
    pub(crate) standing: Standing,
    /// It is a view that was removed.
    pub(crate) is_removed: AtomicBool,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem")
            .field("options", &self.options)
            .field("inodes", &self.residents.inodes.count())
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// The engine below.
    #[must_use]
    pub const fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Reports whether nothing can be changed.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Reports whether it is the file system that has the records of clones, policies and
    /// transactions: no clone and no transaction.
    pub(crate) const fn is_mainline(&self) -> bool {
        debug_assert!(
            self.branch.is_none() || self.standing.number == 0,
            "a transaction is one of mainline"
        );
        self.branch.is_none() && self.standing.number == 0
    }

    pub(crate) const fn prefetcher(&self) -> Prefetcher<'_> {
        Prefetcher::new(&self.prefetch, &self.store, &self.residents.inodes)
    }

    pub(crate) const fn check_writable(&self) -> FsResult<()> {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }
}
