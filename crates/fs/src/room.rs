//! Room that is on its way: what was removed gives its space back a little later. So before an
//! operation is refused for want of space, what waits is done, and the operation is tried again.
//!
//! | waits | is done by | with locks of inodes held |
//! |---|---|---|
//! | forgotten files | [`FileSystem::reclaim`] | yes: a commit does it, and goes on |
//! | plain files whose rows are gone | [`RoomMaker`] | yes: a write does it, and goes on |
//! | moments of the history | [`FileSystem::make_room`], the older half first | no, as below |
//! | entries of removed trees | [`FileSystem::empty_detached`] | no: `make_room` does |
//! | files without names that the kernel is about to forget | waiting | no, as above |
//!
//! Several threads may give space back at the same time. So an operation takes a mark before it
//! begins, and is tried again if anything was given back since the mark, by any thread.
//!
//! Mainline, clones and transactions take their space from one store. So they share the count of
//! what was given back ([`SharedRoom`]), and `make_room` of mainline works in open clones as well.

use crate::detach::DetachedTrees;
use crate::external::ExternalContents;
use crate::reclaim::Reclaimer;
use crate::rows::RowBatch;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::{LiveView, Standing};
use crate::{FsError, FsResult};
use std::time::Duration;
use stitch_base::clock::Clock;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_db::SpaceClass;

/// Entries of removed trees that are removed before the operation is tried again, about.
const SLICE: u64 = 1024;
/// How often a commit is tried again.
const COMMIT_TRIES: usize = 4;
/// How often the work of other threads, or of the kernel, is waited for.
const WAITS: usize = 20;
const WAIT: Duration = Duration::from_millis(5);
const _: () = assert!(
    WAIT.as_millis() * WAITS as u128 <= 100,
    "a tenth of a second at most"
);

/// What was given back, and what may be soon, in all open file systems of a store.
#[derive(Debug, Default)]
pub(crate) struct SharedRoom {
    /// Forgotten files, entries of removed trees, plain files and moments that were removed since
    /// the store was opened.
    given_back: AtomicU64,
    /// A file lost its last name while it was known. It is forgotten soon, unless it is open.
    is_awaited: AtomicBool,
}

/// The part of it that one file system has.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// One thread reclaims at a time: others wait for what it gives back.
    pub(crate) reclaiming: Mutex<()>,
    shared: Arc<SharedRoom>,
}

impl Room {
    pub(crate) fn of(shared: &Arc<SharedRoom>) -> Self {
        Self {
            reclaiming: Mutex::default(),
            shared: Arc::clone(shared),
        }
    }

    /// Returns what was given back so far.
    fn mark(&self) -> u64 {
        self.shared.given_back.load(Ordering::Acquire)
    }

    pub(crate) fn note_given_back(&self, count: usize) {
        self.shared
            .given_back
            .fetch_add(count as u64, Ordering::Release);
    }

    pub(crate) fn await_forget(&self) {
        self.shared.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Reports whether a file may be forgotten soon, once.
    fn take_awaited(&self) -> bool {
        self.shared.is_awaited.swap(false, Ordering::Relaxed)
    }
}

/// Passes over a lack of space, which is no failure here.
pub(crate) fn unless_full<T>(done: FsResult<T>) -> FsResult<()> {
    match done {
        Ok(_) | Err(FsError::NoSpace) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives back what waits in clones. What cannot be given back now comes later.
fn give_back_in(clones: &[Arc<LiveView>]) {
    for view in clones {
        if let Err(error) = RoomMaker::of(view.fs()).give_back() {
            tracing::debug!(%error, "a clone gives its space back later");
        }
    }
}

/// Does what gives space back, before an operation is refused for want of it.
///
/// Invariant: what is forgotten and what is removed goes, and nothing that a program can reach but
/// moments of the history.
#[derive(Clone, Copy)]
pub(crate) struct RoomMaker<'fs> {
    room: &'fs Room,
    store: &'fs Store,
    reclaimer: Reclaimer<'fs>,
    detached: DetachedTrees<'fs>,
    /// Plain files that were retired.
    beside: ExternalContents<'fs>,
    standing: &'fs Standing,
    /// The file system is a view that was removed.
    is_removed: &'fs AtomicBool,
}

impl<'fs> RoomMaker<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            room: &fs.room,
            store: &fs.store,
            reclaimer: Reclaimer::of(fs),
            detached: DetachedTrees::of(fs),
            beside: ExternalContents::of(fs),
            standing: &fs.standing,
            is_removed: &fs.is_removed,
        }
    }

    fn has_detached(&self, clones: &[Arc<LiveView>]) -> bool {
        let in_clone = |view: &Arc<LiveView>| view.fs().detached.count() > 0;
        self.detached.count() > 0 || clones.iter().any(in_clone)
    }

    /// See [`FileSystem::make_room`]. `give_history` drops moments of the history.
    fn make(
        &self,
        mark: u64,
        clock: &dyn Clock,
        give_history: impl FnOnce() -> FsResult<bool>,
    ) -> FsResult<bool> {
        const { assert!(WAITS > 0, "it is waited") };
        debug_assert!(mark <= self.room.mark(), "it was taken before");
        let clones = self.open_clones();
        let mut is_awaited = self.room.take_awaited();
        for _ in 0..WAITS {
            self.give_back()?;
            unless_full(self.make_beside())?;
            give_back_in(&clones);
            if self.room.mark() != mark {
                // The next operation may have to wait for it as well.
                if is_awaited {
                    self.room.await_forget();
                }
                return Ok(true);
            }
            if !is_awaited && !self.has_detached(&clones) {
                // The history is there for want of better use.
                return give_history();
            }
            clock.sleep(WAIT);
            is_awaited |= self.room.take_awaited();
        }
        Ok(false)
    }

    /// Removes plain files of forgotten files at once, since the host is full. Reports whether
    /// there were any. The caller may have an inode locked.
    pub(crate) fn make_beside(&self) -> FsResult<bool> {
        let mark = self.room.mark();
        // The store may be full itself, and other plain files be retired already.
        unless_full(self.reclaimer.reclaim())?;
        // Another thread may have removed some meanwhile.
        let removed = self.beside.remove_retired()?;
        debug_assert!(self.room.mark() >= mark, "it only grows");
        Ok(removed > 0 || self.room.mark() != mark)
    }

    /// Removes forgotten files, and a slice of the removed trees.
    fn give_back(&self) -> FsResult<()> {
        const { assert!(SLICE > 0, "a slice has entries") };
        unless_full(self.reclaimer.reclaim_all())?;
        if self.is_removed.load(Ordering::Acquire) {
            return Ok(());
        }
        unless_full(self.detached.empty(SLICE))
    }

    /// Returns the clones that are open, but for this one.
    fn open_clones(&self) -> Vec<Arc<LiveView>> {
        let mut clones = self.standing.views.opened();
        clones.retain(|view| view.info().number != self.standing.number);
        debug_assert!(
            clones.iter().all(|view| view.info().number > 0),
            "mainline is no clone"
        );
        debug_assert!(
            clones
                .iter()
                .all(|view| Arc::ptr_eq(&view.fs().room.shared, &self.room.shared)),
            "all take their space from one store"
        );
        clones
    }

    /// Commits once more what found no space, while forgotten files give some back. `mark` was
    /// taken before. The caller may have inodes locked.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if nothing was given back, or not enough.
    fn commit_again(&self, batch: &RowBatch<'_>, mut mark: u64) -> FsResult<()> {
        debug_assert!(!batch.is_empty(), "an empty commit is none");
        const { assert!(COMMIT_TRIES > 0, "it is tried") };
        let mut committed = Err(FsError::NoSpace);
        for _ in 0..COMMIT_TRIES {
            if !matches!(committed, Err(FsError::NoSpace)) {
                break;
            }
            unless_full(self.reclaimer.reclaim())?;
            let given_back = self.room.mark();
            debug_assert!(given_back >= mark, "it only grows");
            if std::mem::replace(&mut mark, given_back) == given_back {
                break;
            }
            committed = self.store.commit(batch, SpaceClass::Normal);
        }
        committed
    }
}

impl FileSystem {
    /// Returns a mark for [`Self::make_room`], to be taken before an operation begins.
    #[must_use]
    pub fn room_mark(&self) -> u64 {
        self.room.mark()
    }

    /// Gives back space that is on its way, after an operation was refused with
    /// [`FsError::NoSpace`]. Returns true if any was given back since `mark`: the operation may
    /// succeed if it is tried again. That of mainline works in open clones as well. To be
    /// called without any lock.
    ///
    /// # Errors
    /// [`FsError::Storage`], [`FsError::Corrupt`].
    ///
    /// # Cost
    /// A few reads of memory if nothing was removed. Removes some files at most. Waits for a tenth
    /// of a second at most, once after a file in use was removed, or while another thread removes a
    /// tree.
    pub fn make_room(&self, mark: u64) -> FsResult<bool> {
        let give_history = || self.history().yield_older();
        RoomMaker::of(self).make(mark, &*self.options.clock, give_history)
    }
}

/// Commits rows of a file system, which cannot be reached behind it. What needs space is tried
/// again while forgotten files give some back. The caller may have inodes locked.
#[derive(Clone, Copy)]
pub(crate) struct CommitRetry<'fs> {
    fs: &'fs FileSystem,
}

impl<'fs> CommitRetry<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self { fs }
    }

    /// Commits a batch.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if nothing was given back, or not enough.
    pub(crate) fn commit(self, batch: &RowBatch<'_>, space: SpaceClass) -> FsResult<()> {
        let mark = self.fs.room.mark();
        debug_assert!(!self.fs.is_read_only(), "nothing is changed");
        debug_assert!(!batch.is_empty(), "an empty commit is none");
        debug_assert!(
            self.fs.branch.is_none() || space != SpaceClass::Allocated,
            "what mainline has set aside stays mainline's"
        );
        match self.fs.store.commit(batch, space) {
            Err(FsError::NoSpace) if space == SpaceClass::Normal => {
                RoomMaker::of(self.fs).commit_again(batch, mark)
            }
            done => done,
        }
    }

    /// Gives back the space of forgotten files.
    pub(crate) fn reclaim(self) -> FsResult<usize> {
        Reclaimer::of(self.fs).reclaim()
    }

    /// Removes plain files of forgotten files at once, since the host is full. Reports whether
    /// there were any.
    pub(crate) fn make_room_beside(self) -> FsResult<bool> {
        RoomMaker::of(self.fs).make_beside()
    }
}
