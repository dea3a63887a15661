//! What a change reads of its file system, and how its rows are committed.

use crate::aside::Aside;
use crate::back::BackRows;
use crate::events::{Event, EventSink};
use crate::residents::Residents;
use crate::room::{CommitRetry, unless_full};
use crate::rows::RowBatch;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::{BranchRules, OpenTransactions};
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_db::SpaceClass;
use stitch_kv::Engine;

/// Unlinked small files that may be in memory alone, each at most 4 KiB.
const MEMORY_ORPHANS_MAX: usize = 2048;
/// Known inodes for each of them: so they take half as much memory as those, at most.
const KNOWN_PER_ORPHAN: usize = 32;

/// What a [`super::Change`] uses of its file system.
///
/// Invariants:
/// - rows change by a commit of [`Self::commits`], and memory by [`Self::memory`] around it;
/// - room of allocated chunks is set aside before the rows that promise it are committed, and
///   released after the rows that use it.
#[derive(Clone, Copy)]
pub(super) struct ChangeScope<'fs> {
    pub(super) store: &'fs Store,
    pub(super) engine: &'fs dyn Engine,
    /// What learns of the change.
    pub(super) memory: EventSink<'fs>,
    pub(super) back_rows: &'fs BackRows,
    /// Their commits compare what was written.
    transactions: &'fs OpenTransactions,
    /// Rules of a transaction's file system.
    branch: Option<BranchRules>,
    /// Room for chunks that are allocated and not written.
    aside: &'fs Aside,
    commits: CommitRetry<'fs>,
    /// Inodes that may be known before some are forgotten.
    inodes_max: usize,
}

impl<'fs> ChangeScope<'fs> {
    pub(super) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            engine: fs.engine().as_ref(),
            memory: EventSink::of(fs),
            back_rows: &fs.back_rows,
            transactions: &fs.transactions,
            branch: fs.branch,
            aside: &fs.aside,
            commits: CommitRetry::of(fs),
            inodes_max: fs.options.inodes_max,
        }
    }

    pub(super) const fn residents(&self) -> &'fs Residents {
        self.memory.residents
    }

    /// Reports whether the file system is that of a transaction.
    pub(super) const fn is_transaction(&self) -> bool {
        self.branch.is_some()
    }

    /// Reports whether the commit of a transaction may look at what is written.
    pub(super) fn may_be_compared(&self) -> bool {
        self.is_transaction() || self.transactions.may_be_open()
    }

    /// Reports whether an inode may be purged here: no other file system has it.
    pub(super) fn owns(&self, ino: Ino) -> bool {
        self.branch.is_none_or(|rules| rules.owns(ino))
    }

    /// Reports whether one more unlinked file may be kept in memory alone.
    pub(super) fn may_keep_in_memory(&self) -> bool {
        let count_max = MEMORY_ORPHANS_MAX.min(self.inodes_max / KNOWN_PER_ORPHAN);
        self.residents().inodes.count_in_memory() < count_max
    }

    /// Commits rows, with memory prepared for their events.
    pub(super) fn commit(
        &self,
        batch: &RowBatch<'_>,
        events: &[Event<'_>],
        space: SpaceClass,
    ) -> FsResult<()> {
        debug_assert!(!batch.is_empty(), "an empty commit is none");
        debug_assert!(
            self.branch.is_none() || space != SpaceClass::Allocated,
            "what mainline has set aside stays mainline's"
        );
        self.memory.announce(events);
        self.commits.commit(batch, space)
    }

    /// Sets room aside for chunks that are allocated. Of those in a transaction its commit does.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: nothing is changed.
    pub(super) fn set_more_aside(&self, chunks: u64) -> FsResult<()> {
        match self.is_transaction() || chunks == 0 {
            true => Ok(()),
            false => self.aside.set_more(self.engine, chunks),
        }
    }

    /// The same; once more, if forgotten files could be removed.
    pub(super) fn make_and_set_aside(&self, chunks: u64) -> FsResult<()> {
        debug_assert!(chunks > 0, "room for chunks");
        match self.set_more_aside(chunks) {
            // Their removal takes the lock of what is set aside.
            Err(FsError::NoSpace) => {
                unless_full(self.commits.reclaim())?;
                self.set_more_aside(chunks)
            }
            done => done,
        }
    }

    /// Releases the room of chunks that were allocated.
    pub(super) fn set_less_aside(&self, chunks: u64) {
        if !self.is_transaction() && chunks > 0 {
            self.aside.set_less(self.engine, chunks);
        }
    }
}
