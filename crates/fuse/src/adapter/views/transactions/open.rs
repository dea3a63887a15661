//! A transaction that is in use in a mount.
//!
//! | | its record | requests in it | its name |
//! |---|---|---|---|
//! | open | open | are served | leads to it |
//! | ending | open or not | are served, or refused by `fs` | leads where the record says |
//! | ended | none, or an outcome | `ESTALE` | leads to a later one, or nowhere |
//!
//! It is ending while a commit or a rebase of it runs.

use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{
    Conflict, FileSystem, FsResult, PathChange, RecordKey, Side, TransactionInfo, TransactionView,
};

use crate::adapter::Adapter;
use crate::adapter::views::served::ServedView;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::wire::reply::{Entry, Lookup};

/// A transaction that is open, or has ended and is not forgotten by the kernel.
#[derive(Debug)]
pub(in crate::adapter::views) struct OpenTransaction {
    view: Arc<TransactionView>,
    served: ServedView,
    has_ended: AtomicBool,
    /// A commit or rebase of it runs: whether it is open is read from its record.
    is_ending: AtomicBool,
    /// Its changes, while they are listed.
    changes: Mutex<Option<Arc<Vec<PathChange>>>>,
    /// Its conflicts, likewise.
    conflicts: Mutex<Option<Arc<Vec<JudgedConflict>>>>,
    /// What it began with, while a file of it is read.
    base: Mutex<Option<Arc<FileSystem>>>,
}

/// A conflict, and the side that wins if that was said.
type JudgedConflict = (Conflict, Option<Side>);

impl OpenTransaction {
    pub(super) fn new(view: Arc<TransactionView>, served: ServedView) -> Self {
        Self {
            view,
            served,
            has_ended: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            changes: Mutex::default(),
            conflicts: Mutex::default(),
            base: Mutex::default(),
        }
    }

    pub(super) const fn view(&self) -> &Arc<TransactionView> {
        &self.view
    }

    pub(in crate::adapter::views) const fn adapter(&self) -> &Adapter {
        self.served.adapter()
    }

    pub(super) fn info(&self) -> &TransactionInfo {
        self.view.info()
    }

    /// Looks up its root directory.
    pub(in crate::adapter::views) fn lookup_root(&self) -> Answer<Entry> {
        match self.adapter().find(Ino::ROOT, Ino::ROOT, b".")? {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Missing { .. } => Err(Errno::ESTALE),
        }
    }

    /// Looks up a name. What is above the root directory is not in it.
    pub(in crate::adapter::views) fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        self.served.lookup(Ino::ROOT, parent, name)
    }

    /// Returns the numbers of all its inodes that the kernel may know.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.served.numbers()
    }

    /// Returns what it has changed since it began. `anew` if a list begins.
    pub(super) fn changes(&self, anew: bool) -> FsResult<Arc<Vec<PathChange>>> {
        let mut kept = self.changes.lock();
        if let Some(changes) = kept.as_ref().filter(|_| !anew) {
            return Ok(Arc::clone(changes));
        }
        let changes = Arc::new(self.view.changes()?);
        *kept = Some(Arc::clone(&changes));
        Ok(changes)
    }

    pub(super) fn forget_changes(&self) {
        *self.changes.lock() = None;
    }

    /// Returns its conflicts. `anew` if a list begins.
    pub(super) fn conflicts(
        &self,
        mainline: &FileSystem,
        anew: bool,
    ) -> FsResult<Arc<Vec<JudgedConflict>>> {
        let mut kept = self.conflicts.lock();
        if let Some(conflicts) = kept.as_ref().filter(|_| !anew) {
            return Ok(Arc::clone(conflicts));
        }
        let conflicts = Arc::new(mainline.transactions().conflicts(&self.view)?);
        *kept = Some(Arc::clone(&conflicts));
        Ok(conflicts)
    }

    pub(super) fn forget_conflicts(&self) {
        *self.conflicts.lock() = None;
    }

    pub(super) fn resolve(
        &self,
        mainline: &FileSystem,
        path: &[u8],
        side: Side,
    ) -> FsResult<usize> {
        mainline.transactions().resolve(&self.view, path, side)
    }

    pub(super) fn resolve_record(
        &self,
        mainline: &FileSystem,
        record: &RecordKey,
        side: Side,
    ) -> FsResult<()> {
        mainline
            .transactions()
            .resolve_record(&self.view, record, side)
    }

    /// Returns the file system that it began with. `anew` if a file is read from its beginning.
    pub(super) fn base(&self, mainline: &FileSystem, anew: bool) -> FsResult<Arc<FileSystem>> {
        let mut kept = self.base.lock();
        if let Some(base) = kept.as_ref().filter(|_| !anew) {
            return Ok(Arc::clone(base));
        }
        let base = Arc::new(mainline.transactions().open_base(&self.view)?);
        *kept = Some(Arc::clone(&base));
        Ok(base)
    }

    pub(super) fn forget_base(&self) {
        *self.base.lock() = None;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// It has ended, or goes on after all.
    pub(super) fn set_ended(&self, has_ended: bool) {
        let before = self.has_ended.swap(has_ended, Ordering::AcqRel);
        debug_assert_ne!(
            before, has_ended,
            "it ends once, and goes on only if it has not ended"
        );
    }

    /// Runs what may end it. Its record says so before [`Self::set_ended`] is called.
    pub(super) fn ending<T>(&self, run: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        let is_ending = self.is_ending.swap(true, Ordering::AcqRel);
        debug_assert!(!is_ending, "one at a time ends it");
        let done = run();
        self.is_ending.store(false, Ordering::Release);
        done
    }

    /// Reports whether it has ended, or its record has to be asked.
    pub(super) fn may_have_ended(&self) -> bool {
        // In this order: it has ended before what ends it returns.
        self.is_ending.load(Ordering::Acquire) || self.has_ended()
    }

    /// Takes lookups back.
    pub(super) fn forget(&self, ino: Ino, count: u64) {
        self.served.forget(ino, count);
    }

    /// Reports whether it has ended and the kernel knows nothing of it.
    pub(super) fn is_gone(&self) -> bool {
        self.has_ended() && self.served.is_idle()
    }

    /// Ends its threads. Not from inside a request.
    pub(super) fn stop(&self) {
        self.served.stop();
    }
}
