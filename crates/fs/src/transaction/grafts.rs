//! The directories of a transaction at which clones lie.
//!
//! A transaction has branches of mainline's trees alone. Of a clone these hold the *graft*, an
//! empty directory. Shown as one, it would lose data: `cp -r`, `tar` and `rsync --delete` would
//! take the clone for empty, and a commit would make that durable. So a graft refuses what depends
//! on its contents:
//!
//! | at a graft | result |
//! |---|---|
//! | `stat` of it, its name in its parent | as of any directory |
//! | a rename of it | it moves, and the clone with it at the commit |
//! | `lookup` or `readdir` in it, a new name in it | [`FsError::Unsupported`] |
//! | its removal, a rename over it | [`FsError::Unsupported`] |
//! | a change of its mode, owner, times, flags or extended attributes | [`FsError::Unsupported`] |
//!
//! Attributes are of the clone's own directory, which the graft only stands for: a change of the
//! graft would show nowhere.
//!
//! The records of clones are in mainline's `sys` tree, which is branched with the others. So the
//! grafts are those of the moment at which the transaction, or the outermost one around it, began.

use crate::schema::Store;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::Ino;

/// The grafts of a transaction's file system; none in any other.
#[derive(Debug, Default)]
pub(crate) struct Grafts(BTreeSet<Ino>);

impl Grafts {
    /// Reads them from the branch trees of a transaction.
    pub(super) fn read(store: &Store) -> FsResult<Self> {
        let grafts = ViewSet::read_grafts(store)?;
        debug_assert!(!grafts.contains(&Ino::ROOT), "a clone has a name");
        Ok(Self(grafts))
    }

    /// Reports whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a graft.
    ///
    /// # Errors
    /// [`FsError::Unsupported`].
    pub(crate) fn refuse(&self, ino: Ino) -> FsResult<()> {
        match self.0.contains(&ino) {
            true => Err(FsError::Unsupported),
            false => Ok(()),
        }
    }
}
