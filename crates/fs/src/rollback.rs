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
//! All that fits one batch is committed as one. Otherwise the first batch puts a row that names the
//! rollback, and a feature into the header; the last one deletes both. The next open finishes what
//! was interrupted: each step puts what the snapshot says, whatever the present says. No operation
//! and no snapshot sees a part of it.
//!
//! Differs: room that was allocated and not written (`fallocate`) is not allocated again. A file
//! that shared contents, or shares them now, gets chunks of its own.
//!
//! Locks: the records of snapshots, then all of the file system's.

mod plan;
mod restore;
mod tree;

use crate::locator::Locator;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::{FsError, FsResult, Notices};
use plan::RollbackPlan;
use restore::Restore;
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_sys::RollbackRow;
use tree::DirTree;

/// How often a rollback is begun again because a removed tree was not empty.
const TRIES: usize = 16;
/// Entries of removed trees that are removed in one go.
const SLICE: u64 = 1024;

/// The rollback under way.
#[derive(Debug, Default)]
pub(crate) struct Rollbacks {
    /// There was one since the file system was opened.
    any: AtomicBool,
    /// Inodes that it restores: none of them is reclaimed.
    restored: Mutex<BTreeSet<Ino>>,
}

impl FileSystem {
    /// Makes a directory, and all below it, what a snapshot of it shows. `owner`: every inode that
    /// changes must belong to this user.
    ///
    /// No other operation runs meanwhile. Known inodes without names that the snapshot has get
    /// their names back. Those that it has not keep their contents until they are forgotten.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot; [`FsError::Invalid`] if it is of another
    /// directory; [`FsError::Perm`] where an immutable or append-only file is, or a file of another
    /// owner would change; [`FsError::Unsupported`] in a store with large files beside it, and
    /// where a clone lies below the directory;
    /// [`FsError::NoSpace`]; [`FsError::ReadOnly`]. An error of the engine after the first of
    /// several batches leaves a part restored: the next rollback, or open, finishes it.
    ///
    /// Returns what caches above the file system have to drop.
    ///
    /// # Durability
    /// On the medium when this returns.
    ///
    /// # Cost
    /// A walk through the directory on both sides, and the contents of files that are different.
    pub fn roll_back(&self, name: &str, dir: Ino, owner: Option<u32>) -> FsResult<Notices> {
        self.roll_back_with(dir, owner, || self.open_snapshot(name))
    }

    /// Makes a directory that is known what a view of its past shows.
    pub(crate) fn roll_back_with(
        &self,
        dir: Ino,
        owner: Option<u32>,
        open: impl FnOnce() -> FsResult<SnapshotView>,
    ) -> FsResult<Notices> {
        self.check_writable()?;
        if self.header.lock().has_external {
            return Err(FsError::Unsupported);
        }
        self.residents.inodes.get_dir(dir)?;
        let view = open()?;
        if (view.info().view, view.info().root) != (self.view_number(), dir) {
            return Err(FsError::Invalid("the snapshot is of another directory"));
        }
        let done = self.roll_back_to(&view, owner);
        self.rollbacks.restored.lock().clear();
        let done = done?;
        self.engine().sync()?;
        Ok(done)
    }

    fn roll_back_to(&self, view: &SnapshotView, owner: Option<u32>) -> FsResult<Notices> {
        let (pin, dir) = (view.info().id, view.info().root);
        let past = &view.fs().store;
        let was = DirTree::read(past, view.fs().residents.inodes.head(dir)?)?;
        // Its contents are in trees of their own, which may be gone.
        if was.numbers().any(|ino| view.fs().clone_at(ino).is_some()) {
            return Err(FsError::Unsupported);
        }
        for _ in 0..TRIES {
            self.prepare(&was)?;
            let _changing = self.snapshot_change.lock();
            let alone = self.residents.locks.all_write();
            // A tree that is being removed has files that the walk does not find.
            if self.detached_dirs() > 0 {
                continue;
            }
            self.check_tree(dir)?;
            let now = DirTree::read(&self.store, self.residents.inodes.get_dir(dir)?.head)?;
            // Its record says where it lies.
            if now.numbers().any(|ino| self.clone_at(ino).is_some()) {
                return Err(FsError::Unsupported);
            }
            let Some(plan) = RollbackPlan::new(self, &was, &now)? else {
                drop(alone);
                self.complete_back_rows()?;
                continue;
            };
            plan.check_owner(&was, &now, owner)?;
            // What they would write belongs to what was.
            self.atomic_writes.end_all();
            let row = RollbackRow {
                snapshot: pin,
                dir,
                path: self.path_of(dir)?,
            };
            return Restore::new(self, past, (&was, &now), &plan, &row).run();
        }
        Err(FsError::Stale(dir))
    }

    /// Empties removed trees, and keeps what is to be restored from being reclaimed.
    fn prepare(&self, was: &DirTree) -> FsResult<()> {
        while self.detached_dirs() > 0 {
            self.empty_detached(SLICE)?;
        }
        self.rollbacks.any.store(true, Ordering::SeqCst);
        *self.rollbacks.restored.lock() = was.numbers().collect();
        // One that reclaims and did not see it yet comes to its end.
        drop(self.room.reclaiming.lock());
        self.residents.unqueue(|ino| was.has(ino));
        Ok(())
    }

    /// Reports whether an inode that was without names when it was forgotten still is.
    pub(crate) fn may_purge(&self, head: &InodeHead) -> FsResult<bool> {
        if !self.rollbacks.any.load(Ordering::SeqCst) {
            return Ok(true);
        }
        if self.rollbacks.restored.lock().contains(&head.ino) {
            return Ok(false);
        }
        let row = self.store.own_row(head.ino)?;
        Ok(row.is_some_and(|(own, _)| own.nlink == 0))
    }

    /// Finishes a rollback that was interrupted.
    pub(crate) fn finish_rollback(&self) -> FsResult<()> {
        if !self.header.lock().rolls_back {
            return Ok(());
        }
        let row = self.store.get(&self.store.keys.rollback())?;
        let row = row.ok_or_else(|| FsError::Corrupt("no row of the rollback".to_owned()))?;
        let row = RollbackRow::decode(&row)?;
        if self.options.read_only {
            return Err(FsError::Invalid(
                "a rollback was interrupted: open it for writing once to finish it",
            ));
        }
        let view = self.past_of(&row)?;
        self.walk_path(row.dir, &row.path)?;
        tracing::info!(name = view.info().name, "finishes an interrupted rollback");
        let done = self.roll_back_to(&view, None);
        self.rollbacks.restored.lock().clear();
        self.close_handle(row.dir);
        self.engine().sync()?;
        self.untold.keep(done?);
        Ok(())
    }

    /// Opens what a rollback goes back to: a snapshot, or a moment of the history.
    fn past_of(&self, row: &RollbackRow) -> FsResult<SnapshotView> {
        let pin = row.snapshot;
        if let Some(info) = self.snapshots()?.into_iter().find(|info| info.id == pin) {
            return SnapshotView::open(self.engine(), &self.options, info);
        }
        match self.moment(pin) {
            Ok(moment) => self.open_moment_at(&moment, row.dir, row.path.clone()),
            Err(FsError::NotFound) => Err(FsError::Corrupt(format!(
                "the snapshot of a rollback, pin {pin}"
            ))),
            Err(error) => Err(error),
        }
    }
}

/// The key of the same row of another inode.
fn moved_key(
    keys: Locator,
    key: &[u8],
    is_data: bool,
    ino: Ino,
) -> FsResult<crate::locator::RowKey> {
    let moved = if is_data {
        Locator::chunk_of(key).map(|number| keys.chunk(ino, number))
    } else {
        Locator::xattr_of(key).map(|name| keys.xattr(ino, name))
    };
    moved.ok_or_else(|| FsError::Corrupt(format!("a key {}", key.escape_ascii())))
}

#[cfg(test)]
mod tests;
