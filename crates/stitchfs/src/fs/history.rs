//! The history of a file system.

use super::{Dir, Files};
use crate::StoreError;
use stitch_fs::{HistoryRound, MomentInfo};

impl Files {
    /// Returns the moments of the history, in the order of their creation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn moments(&self) -> Result<Vec<MomentInfo>, StoreError> {
        Ok(self.open.fs.moments()?)
    }

    /// Creates a moment of the history if one is due and anything was written since the last one,
    /// and drops those that are too old: one round of what a mount does by itself. None is created
    /// unless [`StoreOptions::history`](crate::StoreOptions::history) is set.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace); [`Unsupported`](crate::ErrorKind::Unsupported) for a
    /// store that takes no snapshots.
    ///
    /// # Cost
    /// None if nothing is to be done; otherwise a sync of the log and a record for a new moment,
    /// and a record for each that is dropped.
    pub fn run_history(&self) -> Result<HistoryRound, StoreError> {
        Ok(self.open.fs.run_history()?)
    }

    /// Opens the root directory as it was at a moment. It can be read only, and stays readable when
    /// the moment is dropped.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if it was dropped.
    pub fn open_moment(&self, moment: &MomentInfo) -> Result<Dir, StoreError> {
        let view = self.open.fs.open_moment(moment.id)?;
        self.dir_of(view)
    }
}

impl Dir {
    /// Reports whether this directory, or anything below it, is different at two moments; the
    /// second is the present for `None`.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if a moment was dropped.
    ///
    /// # Cost
    /// A scan of all names below the directory at both, up to the first difference.
    pub fn has_changed(
        &self,
        from: &MomentInfo,
        to: Option<&MomentInfo>,
    ) -> Result<bool, StoreError> {
        let fs = &self.hold.open().fs;
        Ok(fs.has_changed(self.hold.ino(), from.id, to.map(|to| to.id))?)
    }

    /// Makes this directory, and all below it, what it was at a moment. Inode numbers stay.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if the moment was dropped, or the directory had
    /// another path then.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn roll_back_to(&self, moment: &MomentInfo) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        fs.roll_back_to_moment(moment.id, self.hold.ino(), None)?;
        Ok(())
    }
}
