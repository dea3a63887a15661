//! Snapshots of directories.

use super::hold::Hold;
use super::{Dir, Files, Open};
use crate::StoreError;
use stitch_base::sync::Arc;
use stitch_fs::{DirName, SnapshotInfo, SnapshotView};

impl Dir {
    /// Creates a read-only snapshot of this directory and of all below it, at a cost that does not
    /// depend on how much that is.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists) if a snapshot of the store has the name;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store with large files beside it, which
    /// are written in place; [`Invalid`](crate::ErrorKind::Invalid) for what is no name: at most
    /// 250 bytes without a slash; [`NotFound`](crate::ErrorKind::NotFound) for a directory that was
    /// removed.
    ///
    /// # Durability
    /// The snapshot, and all that it shows, are on the medium when this returns.
    ///
    /// # Cost
    /// One sync of the log.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo, StoreError> {
        Ok(self
            .hold
            .open()
            .fs
            .snapshots()
            .create(self.hold.ino(), name)?)
    }
}

impl Files {
    /// Returns the snapshots of all directories, in the order of their creation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>, StoreError> {
        Ok(self.open.fs.snapshots().list()?)
    }

    /// Opens the directory of a snapshot as it was then. It can be read only, and stays readable
    /// when the snapshot is deleted; its space comes back once it is dropped.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    ///
    /// # Cost
    /// A few point reads, and one for each name of the directory's path.
    pub fn open_snapshot(&self, name: &str) -> Result<Dir, StoreError> {
        let view = self.open.fs.snapshots().open(name)?;
        self.dir_of(view)
    }

    /// Returns the directory of a view of the past.
    pub(super) fn dir_of(&self, view: SnapshotView) -> Result<Dir, StoreError> {
        let root = view.info().root;
        let open = Arc::new(Open {
            fs: Arc::clone(view.fs()),
            life: Arc::clone(&self.open.life),
        });
        open.fs.lookup(DirName::new(root, b"."))?;
        Ok(Dir::new(Hold::taken(&open, root)))
    }

    /// Holds a snapshot under a tag: until it is released, it cannot be deleted.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound); [`Exists`](crate::ErrorKind::Exists) if it is held
    /// under this tag already; [`Invalid`](crate::ErrorKind::Invalid) for what is no tag: 1 to 64
    /// bytes without control characters.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> Result<(), StoreError> {
        Ok(self.open.fs.snapshots().hold(name, tag)?)
    }

    /// Releases a snapshot that is held under a tag.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such snapshot, or no such tag.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> Result<(), StoreError> {
        Ok(self.open.fs.snapshots().release(name, tag)?)
    }

    /// Deletes a snapshot. The space that only it needed comes back in the background.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound); [`Busy`](crate::ErrorKind::Busy) if it is held.
    ///
    /// # Durability
    /// It is gone for good when this returns.
    pub fn delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        Ok(self.open.fs.snapshots().delete(name)?)
    }
}
