//! Clones that the snapshot shows, and that do not lie in the directory any more.

use super::Restore;
use crate::DirName;
use stitch_base::Ino;

impl Restore<'_> {
    /// Puts the records of the clone that lay at `was` in the snapshot, if one is made again there,
    /// in the batch that has the name of its directory.
    pub(super) fn put_clone(&mut self, was: Ino, (graft, at): (Ino, DirName<'_>)) {
        debug_assert!(self.was.has(was), "an inode of the snapshot");
        let Some(clones) = &mut self.clones else {
            return;
        };
        let way = self.fs.residents.way_up(graft, at);
        debug_assert!(!way.is_empty(), "a graft has a name");
        clones.stage(&mut self.change.batch, was, (graft, way));
    }

    /// Drops the trees of clones that were not made.
    pub(super) fn end_clones(&mut self, is_done: bool) {
        let Some(clones) = self.clones.take() else {
            return;
        };
        if is_done {
            debug_assert!(clones.are_made(), "each has its name");
            return;
        }
        if let Err(error) = clones.give_up() {
            tracing::warn!(%error, "trees of clones that were not made are left");
        }
    }
}
