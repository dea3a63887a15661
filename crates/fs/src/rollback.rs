//! Rollback of a directory to a snapshot of it.
//!
//! 1. *Walk* the directory in the snapshot, then, with all locks held, as it is.
//! 2. *Decide* the row of each inode of the snapshot ([`plan`]): its number stays, also that of a
//!    deleted file.
//! 3. *Restore* ([`restore`]): contents and attributes, then names, then what is to go.
//!
//! ```text
//!   snapshot   a=16 b=17 d/=18 d/c=19         16 changed, 17 deleted, 19 moved, 20 and 21 new
//!   present    a=16 d/=18 e/=20 e/c=19 n=21
//!   restore    contents of 16 and 17; names b, d/c; delete e/c; detach e; drop n
//! ```
//!
//! | inode | becomes |
//! |---|---|
//! | in both | as in the snapshot; names outside the directory stay, and lead to the same inode |
//! | in the snapshot, and without a name now | as in the snapshot, under its number |
//! | in the snapshot, and moved out of the directory | stays there; the directory gets a copy |
//! | not in the snapshot | loses its names in the directory |
//!
//! A clone in the directory is what its graft is: it stays, as it is, where the snapshot has it,
//! and is destroyed where not, if the caller allows it ([`LaterClones`]): this is decided with the
//! locks held with which it is destroyed. One of the snapshot whose graft does not lie in the
//! directory is made again of what the snapshot shows ([`RestoredClones`]).
//!
//! All that fits one batch is committed as one. Otherwise the first batch puts a row that names the
//! rollback, and a feature into the header; the last one deletes both. The next open finishes what
//! was interrupted: each step puts what the snapshot says, whatever the present says. No operation
//! and no snapshot sees a part of it.
//!
//! Differs: room that was allocated and not written (`fallocate`) is not allocated again. A file
//! goes on to share what it shares, as far as the snapshot has the same chunks ([`shares`]).
//!
//! Each file system has its own row and feature. For a directory in a clone they are in the trees
//! of the clone, and a second feature in the header of mainline has the next open finish the
//! rollback ([`in_clone`]).
//!
//! | part | has |
//! |---|---|
//! | [`Rollback`] | begins, runs and finishes rollbacks of one file system |
//! | [`Present`] | what a rollback uses of the file system that it changes |
//! | [`tree::DirTree`], [`plan`], [`restore`] | the walk, the decision, the rows |
//! | [`RollbackRights`] | what the caller allows it to change |
//! | [`shares::ShareFinder`] | which chunks of a file are shared afterwards |
//! | [`CloneRollbacks`] | the feature of mainline for rollbacks in clones |
//! | [`RollbacksUnderWay`] | those of all file systems of a store that have not ended |
//! | `operations.rs` | what [`FileSystem`] offers of them |
//!
//! Locks: one rollback of a file system at a time; the records of snapshots, then all of the file
//! system's.

mod dirs;
mod in_clone;
mod operations;
mod plan;
mod present;
mod restore;
mod rights;
mod shares;
mod sides;
mod tree;
mod under_way;

use crate::atomic::AtomicWrites;
use crate::back::BackRowPass;
use crate::detach::DetachedTrees;
use crate::fixed::FixedFiles;
use crate::pins::Pins;
use crate::recent::{RecentSince, WrittenBetween};
use crate::room::Room;
use crate::schema::Store;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::views::{RestoredClones, ViewLimits};
use crate::{FsError, FsResult, Notices};
use dirs::DirFinder;
use plan::RollbackPlan;
use present::Present;
use restore::Restore;
use sides::RollbackSides;
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_sys::{FsHeader, RollbackRow};
use tree::DirTree;

pub(crate) use in_clone::CloneRollbacks;
pub use rights::{KeptClones, LaterClones, RollbackRights};
pub(crate) use under_way::RollbacksUnderWay;

/// How often a rollback is begun again because a removed tree was not empty.
const TRIES: usize = 16;
/// Entries of removed trees that are removed in one go.
const SLICE: u64 = 1024;
const _: () = assert!(SLICE > 0, "removed trees become empty");

/// Whether anything may refuse a rollback.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Nothing changes but what these rights allow.
    Begin(RollbackRights),
    /// A part is done: the rest must be.
    Finish,
}

/// The rollback under way, in memory.
#[derive(Debug, Default)]
pub(crate) struct RollbackState {
    /// There was one since the file system was opened.
    any: AtomicBool,
    /// Inodes that it restores: none of them is reclaimed.
    restored: Mutex<BTreeSet<Ino>>,
    /// Held for a rollback of this file system.
    running: Mutex<()>,
    /// Of mainline: held while a directory in a clone is rolled back.
    in_clone: Mutex<()>,
}

impl RollbackState {
    /// Reports whether an inode that was without names when it was forgotten still is.
    pub(crate) fn may_purge(&self, store: &Store, head: &InodeHead) -> FsResult<bool> {
        debug_assert_eq!(head.nlink, 0, "what has a name is not purged");
        if !self.any.load(Ordering::SeqCst) {
            return Ok(true);
        }
        if self.restored.lock().contains(&head.ino) {
            return Ok(false);
        }
        let row = store.own_row(head.ino)?;
        Ok(row.is_some_and(|(own, _)| own.nlink == 0))
    }
}

/// Rolls directories of one file system back.
///
/// Invariant: no other operation of the file system, and no snapshot, sees a part of a rollback.
#[derive(Clone, Copy)]
pub(crate) struct Rollback<'fs> {
    state: &'fs RollbackState,
    /// The present state, which becomes that of the snapshot.
    present: Present<'fs>,
    pins: Pins<'fs>,
    /// Removed trees are emptied before: they have files that a walk does not find.
    detached: DetachedTrees<'fs>,
    back_rows: BackRowPass<'fs>,
    fixed: FixedFiles<'fs>,
    /// They end: what they would write belongs to what was.
    atomic_writes: &'fs AtomicWrites,
    room: &'fs Room,
    dirs: DirFinder<'fs>,
    limits: ViewLimits<'fs>,
    is_read_only: bool,
}

impl<'fs> Rollback<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            state: &fs.rollbacks,
            present: Present::of(fs),
            pins: Pins::of(fs),
            detached: DetachedTrees::of(fs),
            back_rows: BackRowPass::of(fs),
            fixed: FixedFiles::of(fs),
            atomic_writes: &fs.atomic_writes,
            room: &fs.room,
            dirs: DirFinder::of(fs),
            limits: ViewLimits::of(fs),
            is_read_only: fs.is_read_only(),
        }
    }

    fn under_way(&self) -> &'fs RollbacksUnderWay {
        &self.present.standing.views.under_way
    }

    /// Makes a directory that is known what a view of its past shows. A rollback that was
    /// interrupted is finished before.
    pub(super) fn run(
        &self,
        dir: Ino,
        rights: RollbackRights,
        open: impl FnOnce() -> FsResult<SnapshotView>,
    ) -> FsResult<Notices> {
        if self.is_read_only {
            return Err(FsError::ReadOnly);
        }
        if self.present.header.lock().has_external {
            return Err(FsError::Unsupported);
        }
        self.present.residents.inodes.get_dir(dir)?;
        let _running = self.state.running.lock();
        let mut done = self.finish()?;
        debug_assert!(
            !self.present.header.lock().rolls_back,
            "one is finished before the next begins"
        );
        match self.begin(dir, rights, open) {
            Ok(begun) => {
                done.extend(begun);
                Ok(done)
            }
            Err(error) => {
                self.present.untold.keep(done);
                Err(error)
            }
        }
    }

    fn begin(
        &self,
        dir: Ino,
        rights: RollbackRights,
        open: impl FnOnce() -> FsResult<SnapshotView>,
    ) -> FsResult<Notices> {
        let view = open()?;
        if (view.info().view, view.info().root) != (self.present.standing.number, dir) {
            return Err(FsError::Invalid("the snapshot is of another directory"));
        }
        self.run_to(&view, Mode::Begin(rights))
    }

    /// Rolls back, and keeps the pin for as long as a part may be done.
    fn run_to(&self, view: &SnapshotView, mode: Mode) -> FsResult<Notices> {
        let (pin, number) = (view.info().id, self.present.standing.number);
        let under_way = self.under_way();
        debug_assert_eq!(number, view.info().view, "the past of this file system");
        under_way.begin(number, pin);
        let kept = self.pins.pin(pin);
        let done = kept.and_then(|_| self.restore(view, mode));
        self.state.restored.lock().clear();
        match self.present.header.lock().rolls_back {
            true => under_way.interrupt(number),
            false => under_way.end(number),
        }
        let done = done?;
        debug_assert!(!self.present.header.lock().rolls_back, "all of it is done");
        self.pins.engine.sync()?;
        Ok(done)
    }

    /// Reads whether a part is done. A commit that failed may have been done.
    fn learn_outcome(&self) -> FsResult<()> {
        let mut header = self.present.header.lock();
        // Until it is read: a part may be done.
        header.rolls_back = true;
        let row = self.present.store.get(&self.present.store.keys.header())?;
        let row = row.ok_or_else(|| FsError::Corrupt("there is no header".to_owned()))?;
        header.rolls_back = FsHeader::decode(&row)?.rolls_back;
        Ok(())
    }

    fn restore(&self, view: &SnapshotView, mode: Mode) -> FsResult<Notices> {
        let (pin, dir) = (view.info().id, view.info().root);
        let past = &view.fs().store;
        let recent = RecentSince::of_moment(view.info().created);
        let written =
            WrittenBetween::new(&**self.pins.engine, self.pins.moment_at(Some(pin))?, None);
        let was = DirTree::read(past, view.fs().residents.inodes.head(dir)?, recent)?;
        debug_assert_eq!(was.top, dir, "the directory of the snapshot");
        for _ in 0..TRIES {
            self.prepare(&was)?;
            // The state of one that is finished is a part already, and the holder of the lock may
            // open a clone, which finishes it.
            let begins = matches!(mode, Mode::Begin(_));
            let changes = begins.then(|| self.present.standing.views.snapshot_change.lock());
            let clones = self.begin_clones((view.fs(), &was))?;
            let alone = self.present.residents.locks.all_write();
            // A tree that is being removed has files that the walk does not find.
            if self.detached.count() > 0 {
                continue;
            }
            let top = self.present.residents.inodes.get_dir(dir)?.head;
            let now = DirTree::read(self.present.store, top, recent)?;
            debug_assert_eq!(was.top, now.top, "one directory on both sides");
            let sides = RollbackSides {
                past: (past, &was),
                present: (self.present.store, &now),
                written: &written,
            };
            let Some(plan) = RollbackPlan::new(&self.present, sides)? else {
                drop((alone, clones, changes));
                self.back_rows.complete()?;
                continue;
            };
            if let Mode::Begin(rights) = mode {
                self.fixed.check_tree(dir)?;
                self.check_clones((view.fs(), &was), &now, rights)?;
                plan.check_owner(&was, &now, rights.owner)?;
            }
            let clones = self.branch_lost(clones, (view, &was), &now)?;
            // What they would write belongs to what was.
            self.atomic_writes.end_all();
            let row = RollbackRow {
                snapshot: pin,
                dir,
                path: self.present.residents.path_of(dir)?,
            };
            let done = Restore::new(self.present, sides, (&plan, clones), &row).run();
            if done.is_err() {
                self.note_part()?;
            }
            drop((alone, changes));
            return done;
        }
        Err(FsError::Stale(dir))
    }

    /// Keeps others from making clones, if the snapshot shows one that may have to be made again.
    fn begin_clones(
        &self,
        (past, was): (&FileSystem, &DirTree),
    ) -> FsResult<Option<RestoredClones<'fs>>> {
        let mut numbers = was.numbers();
        let has_clone = numbers.any(|ino| past.clone_at(ino).is_some());
        let begin = || RestoredClones::begin(self.present.standing, self.pins.engine);
        has_clone.then(begin).transpose()
    }

    /// Makes the trees of the clones of the snapshot that do not lie in the directory any more, in
    /// the order in which their names are put. Nothing shows them before.
    fn branch_lost(
        &self,
        clones: Option<RestoredClones<'fs>>,
        (view, was): (&SnapshotView, &DirTree),
        now: &DirTree,
    ) -> FsResult<Option<RestoredClones<'fs>>> {
        let Some(mut clones) = clones else {
            return Ok(None);
        };
        let children = was.dirs.iter().flat_map(|dir| was.names(*dir).values());
        let is_lost = |ino: &Ino| !now.has(*ino) && view.fs().clone_at(*ino).is_some();
        let lost: Vec<Ino> = children.copied().filter(is_lost).collect();
        debug_assert!(
            lost.iter().all(|ino| was.has(*ino)),
            "inodes of the snapshot"
        );
        let at = self.pins.moment_at(Some(view.info().id))?;
        clones.branch(view, &lost, &at)?;
        Ok(Some(clones))
    }

    /// Notes that a part may be done. The locks are held, so that no snapshot and no moment is
    /// created of it before this is known.
    fn note_part(&self) -> FsResult<()> {
        let learned = self.learn_outcome();
        debug_assert!(learned.is_ok() || self.present.header.lock().rolls_back);
        if self.present.header.lock().rolls_back {
            self.under_way().interrupt(self.present.standing.number);
        }
        learned
    }

    /// Refuses to make a clone of the snapshot again, and to destroy one that the snapshot has not,
    /// for another user than its owner. The latter are destroyed only where the rights allow that.
    fn check_clones(
        &self,
        (past, was): (&FileSystem, &DirTree),
        now: &DirTree,
        rights: RollbackRights,
    ) -> FsResult<()> {
        for ino in was.numbers() {
            let (then, is_there) = (past.clone_at(ino), now.has(ino));
            let has_clone = is_there && self.present.standing.clone_at(ino).is_some();
            if is_there && has_clone != then.is_some() {
                return Err(FsError::Unsupported);
            }
            if let Some(lost) = then.filter(|_| !is_there) {
                self.limits.check_takes_clones()?;
                if rights.excludes(lost.owner) {
                    return Err(FsError::Perm);
                }
            }
        }
        let later = now.numbers().filter(|ino| !was.has(*ino));
        let later = later.filter_map(|ino| self.present.standing.clone_at(ino));
        let mut grafts = BTreeSet::new();
        for clone in later {
            if rights.excludes(clone.owner) {
                return Err(FsError::Perm);
            }
            grafts.insert(clone.graft);
        }
        debug_assert!(
            grafts.iter().all(|graft| now.has(*graft)),
            "they lie in the directory"
        );
        debug_assert!(
            grafts.iter().all(|graft| !was.has(*graft)),
            "the snapshot has none of them"
        );
        match rights.later_clones {
            LaterClones::Keep if !grafts.is_empty() => {
                Err(FsError::LaterClones(KeptClones::new(now, &grafts)))
            }
            LaterClones::Keep | LaterClones::Destroy => Ok(()),
        }
    }

    /// Empties removed trees, and keeps what is to be restored from being reclaimed.
    fn prepare(&self, was: &DirTree) -> FsResult<()> {
        while self.detached.count() > 0 {
            self.detached.empty(SLICE)?;
        }
        self.state.any.store(true, Ordering::SeqCst);
        *self.state.restored.lock() = was.numbers().collect();
        debug_assert!(self.state.restored.lock().contains(&was.top));
        // One that reclaims and did not see it yet comes to its end.
        drop(self.room.reclaiming.lock());
        self.present.residents.unqueue(|ino| was.has(ino));
        Ok(())
    }

    /// Finishes a rollback that was interrupted.
    pub(crate) fn finish(&self) -> FsResult<Notices> {
        if !self.present.header.lock().rolls_back {
            return Ok(Notices::default());
        }
        let row = self
            .present
            .store
            .get(&self.present.store.keys.rollback())?;
        let row = row.ok_or_else(|| FsError::Corrupt("no row of the rollback".to_owned()))?;
        let row = RollbackRow::decode(&row)?;
        let (under_way, number) = (self.under_way(), self.present.standing.number);
        under_way.begin(number, row.snapshot);
        under_way.interrupt(number);
        if self.is_read_only {
            return Err(FsError::Invalid(
                "a rollback was interrupted: open it for writing once to finish it",
            ));
        }
        let view = self.past_of(&row)?;
        let _held = match self.dirs.hold(row.dir, &row.path) {
            Err(FsError::Stale(_)) => return self.forget().map(|()| Notices::default()),
            held => held?,
        };
        tracing::info!(name = view.info().name, "finishes an interrupted rollback");
        self.run_to(&view, Mode::Finish)
    }

    /// Deletes the row of a rollback whose directory was removed after the interruption.
    fn forget(&self) -> FsResult<()> {
        tracing::info!("the directory of an interrupted rollback was removed");
        let mut marked = self.present.header.lock();
        debug_assert!(marked.rolls_back, "a rollback was interrupted");
        let mut header = *marked;
        header.rolls_back = false;
        let (keys, mut change) = (
            self.present.store.keys,
            self.present.changes.begin_giving_back(),
        );
        change.batch.put(&keys.header(), &header.encode());
        change.batch.delete(&keys.rollback());
        change.commit()?;
        *marked = header;
        self.under_way().end(self.present.standing.number);
        Ok(())
    }

    /// Opens what a rollback goes back to: a snapshot, or a moment of the history.
    fn past_of(&self, row: &RollbackRow) -> FsResult<SnapshotView> {
        let pin = row.snapshot;
        if let Some(info) = self
            .pins
            .snapshots()?
            .into_iter()
            .find(|info| info.id == pin)
        {
            return SnapshotView::open(self.pins.engine, self.pins.options, info);
        }
        match self
            .pins
            .open_moment_of_view(pin, row.dir, row.path.clone())
        {
            Err(FsError::NotFound) => Err(FsError::Corrupt(format!(
                "the snapshot of a rollback, pin {pin}"
            ))),
            opened => opened,
        }
    }
}

#[cfg(test)]
mod tests;
