//! What a file system offers of rollbacks. They are run by [`Rollback`]; those in clones by that of
//! the clone, as [`CloneRollbacks`] notes in mainline.

use super::{CloneRollbacks, Rollback, RollbackRights};
#[cfg(doc)]
use crate::FsError;
use crate::pins::Pins;
use crate::system::FileSystem;
use crate::{FsResult, LiveView, Notices};
use stitch_base::{Ino, PinId};

impl FileSystem {
    /// Makes a directory, and all below it, what a snapshot of it shows, if `rights` allow all of
    /// it. A directory in a clone: [`Self::roll_back_in`].
    ///
    /// No other operation runs meanwhile. Known inodes without names that the snapshot has get
    /// their names back. Those that it has not keep their contents until they are forgotten. Clones
    /// that it shows, and that do not lie in the directory any more, are made again with what it
    /// shows in them; they have other numbers.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot; [`FsError::Invalid`] if it is of another
    /// directory; [`FsError::Perm`] where an immutable or append-only file is, or a file of another
    /// owner would change; [`FsError::LaterClones`] with the clones that it would destroy, where
    /// `rights` keep them; [`FsError::Unsupported`] in a store with large files beside it;
    /// [`FsError::TooDeep`], [`FsError::TooManyClones`] and [`FsError::NumbersTooLarge`] where
    /// clones cannot be made again; [`FsError::NoSpace`]; [`FsError::ReadOnly`]. What is refused
    /// changes nothing. An error of the engine after the first of several batches leaves a part
    /// restored: the next rollback, or open, finishes it, with the rights that it began with.
    ///
    /// Returns what caches above the file system have to drop.
    ///
    /// # Durability
    /// On the medium when this returns.
    ///
    /// # Cost
    /// A walk through the directory on both sides, and the contents of files that are different.
    /// For clones that are made again one sync of the log more; nothing in them is copied.
    pub fn roll_back(&self, name: &str, dir: Ino, rights: RollbackRights) -> FsResult<Notices> {
        // The header of mainline would not say that a clone is rolled back.
        Pins::of(self).check_no_clone()?;
        Rollback::of(self).run(dir, rights, || Pins::of(self).open_snapshot(name))
    }

    /// Makes a directory what it was at a moment, as [`Self::roll_back`] does with a snapshot.
    ///
    /// # Errors
    /// As [`Self::roll_back`]; [`FsError::Stale`] for a directory that had another path then.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn roll_back_to_moment(
        &self,
        id: PinId,
        dir: Ino,
        rights: RollbackRights,
    ) -> FsResult<Notices> {
        Pins::of(self).check_no_clone()?;
        let path = self.residents.path_of(dir)?;
        Rollback::of(self).run(dir, rights, || {
            Pins::of(self).open_moment_of_view(id, dir, path)
        })
    }

    /// Makes a directory in a clone what a snapshot of it shows, as [`Self::roll_back`] does of one
    /// in this file system, which is mainline. The directory is known in the clone.
    ///
    /// # Errors
    /// As [`Self::roll_back`].
    ///
    /// # Durability
    /// As [`Self::roll_back`]. An open of the store finishes what was interrupted.
    ///
    /// # Cost
    /// As [`Self::roll_back`], and two batches of one row.
    pub fn roll_back_in(
        &self,
        clone: &LiveView,
        name: &str,
        dir: Ino,
        rights: RollbackRights,
    ) -> FsResult<Notices> {
        debug_assert!(clone.info().number > 0, "0 is mainline");
        let fs = clone.fs();
        CloneRollbacks::of(self)
            .run_marked(|| Rollback::of(fs).run(dir, rights, || Pins::of(fs).open_snapshot(name)))
    }

    /// Makes a directory in a clone what it was at a moment of the history, as
    /// [`Self::roll_back_in`] does with a snapshot.
    ///
    /// # Errors
    /// As [`Self::roll_back_to_moment`]; [`crate::FsError::NotFound`] also if the clone was made
    /// later.
    ///
    /// # Durability
    /// As [`Self::roll_back_in`].
    pub fn roll_back_in_to_moment(
        &self,
        clone: &LiveView,
        id: PinId,
        dir: Ino,
        rights: RollbackRights,
    ) -> FsResult<Notices> {
        debug_assert!(clone.info().number > 0, "0 is mainline");
        let fs = clone.fs();
        CloneRollbacks::of(self).run_marked(|| {
            let path = fs.residents.path_of(dir)?;
            Rollback::of(fs).run(dir, rights, || {
                Pins::of(fs).open_moment_of_view(id, dir, path)
            })
        })
    }
}
