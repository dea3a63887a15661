//! Policies of snapshots.

use super::{Dir, Files};
use crate::StoreError;
use stitch_fs::{PolicyInfo, PolicyRound, PolicyRule};

impl Dir {
    /// Sets the policy of this directory, instead of the one that it has: how often a snapshot of
    /// it is created, and which are kept. A mount keeps policies by itself; a program calls
    /// [`Files::run_policies`].
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an interval of 0 or more than ten years, and for
    /// a prefix that is empty, has a slash or more than 200 bytes; as [`Dir::create_snapshot`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn set_policy(&self, rule: &PolicyRule) -> Result<(), StoreError> {
        Ok(self.hold.open().fs.policies().set(self.hold.ino(), rule)?)
    }

    /// Deletes the policy of this directory. Its snapshots stay.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if it has none.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn delete_policy(&self) -> Result<(), StoreError> {
        Ok(self.hold.open().fs.policies().delete(self.hold.ino())?)
    }
}

impl Files {
    /// Returns the policies of all directories.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn policies(&self) -> Result<Vec<PolicyInfo>, StoreError> {
        Ok(self.open.fs.policies().list()?)
    }

    /// Creates the snapshots that are due by the policies, and deletes those that are not kept any
    /// more: one round of what a mount does by itself. What fails of one policy is told by
    /// [`PolicyInfo::last_error`].
    ///
    /// # Errors
    /// See [`StoreError`].
    ///
    /// # Cost
    /// For each policy that is due, a walk through its directory now and in its last snapshot, up
    /// to the first difference.
    pub fn run_policies(&self) -> Result<PolicyRound, StoreError> {
        Ok(self.open.fs.policies().run()?)
    }
}
