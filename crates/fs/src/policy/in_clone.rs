//! Policies of directories in clones.
//!
//! The row is in mainline: what a clone has under its keys, it has from its source. It is deleted
//! in one batch with the record of the clone.

use super::{Policies, PolicyRule};
#[cfg(doc)]
use crate::FsError;
use crate::views::ViewLimits;
use crate::{FsResult, LiveView};
use stitch_base::Ino;

impl Policies<'_> {
    /// Sets the policy of a directory in a clone, as [`Self::set`] does of one in this file
    /// system, which is mainline. The directory is known in the clone. The policy goes with the
    /// clone.
    ///
    /// # Errors
    /// As [`Self::set`]; [`FsError::NotFound`] for a clone that was removed.
    ///
    /// # Durability
    /// As [`Self::set`].
    pub fn set_in(&self, clone: &LiveView, dir: Ino, rule: &PolicyRule) -> FsResult<()> {
        self.pins.check_no_clone()?;
        debug_assert!(clone.info().number > 0, "0 is mainline");
        ViewLimits::of(clone.fs()).check_numbers()?;
        let owner = clone.fs().residents.inodes.get_dir(dir)?.head.uid;
        let path = self.dirs.path_through(clone, dir)?;
        self.put_new((clone.info().number, dir), rule, owner, path)
    }

    /// Deletes the policy of a directory in the clone of a number. Its snapshots stay.
    ///
    /// # Errors
    /// As [`Self::delete`].
    ///
    /// # Durability
    /// As [`Self::delete`].
    pub fn delete_in(&self, clone: u64, dir: Ino) -> FsResult<()> {
        self.check_writable()?;
        self.pins.check_no_clone()?;
        let _running = self.state.running.lock();
        self.drop_of((clone, dir))
    }
}
