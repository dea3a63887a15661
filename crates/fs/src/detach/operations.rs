//! What a file system offers of the removal of whole trees. They are emptied by [`DetachedTrees`].

use super::DetachedTrees;
use crate::change::Change;
use crate::fixed::FixedFiles;
use crate::inode::Inode;
use crate::namespace::NameChanges;
use crate::system::FileSystem;
use crate::transaction::EntryRemoval;
use crate::views::CloneRemoval;
use crate::{Caller, DirName, FsError, FsResult};
use stitch_base::Ino;
use stitch_base::sync::atomic::Ordering;

impl FileSystem {
    /// Removes a directory and all that is in it. If `expected` is given and the name stands for
    /// another inode, nothing is done.
    ///
    /// Only the rights on the parent directory are checked: a caller that may remove the name
    /// removes all below it, also what belongs to others. A tree with an immutable or append-only
    /// inode in it stays.
    ///
    /// # Errors
    /// [`FsError::NotFound`], also where another inode was expected; [`FsError::NotDir`],
    /// [`FsError::Invalid`] for `.` and `..`, [`FsError::Perm`], [`FsError::ReadOnly`],
    /// and in a transaction those of a read.
    ///
    /// # Cost
    /// As one [`Self::remove_dir`], whatever the size; in a store that ever had an immutable file,
    /// a walk through the tree before. The space comes back with [`Self::empty_detached`]. In a
    /// transaction the entries are removed one by one, and an error leaves a part of them.
    ///
    /// # Durability
    /// The removal as a whole is as durable as any operation: after a crash the tree is there, or
    /// it is gone and the next life goes on with giving back its space.
    pub fn remove_tree(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        self.check_writable()?;
        // A commit compares each entry that is gone with mainline's.
        if self.branch.is_some() {
            return EntryRemoval::of(self).remove(caller, at, expected);
        }
        self.residents.inodes.get_dir(at.parent)?;
        let removal = CloneRemoval::of(self);
        if let Some(view) = removal.find(at)? {
            debug_assert_eq!(view.info().home, self.view_number(), "it lies in this view");
            let is_it = expected.is_none_or(|expected| expected == view.info().graft);
            FixedFiles::of(view.fs()).check_tree(view.info().root)?;
            return match is_it {
                true => removal.remove(caller, at, &view, false),
                false => Err(FsError::NotFound),
            };
        }
        let top = self.stat(at)?.ino;
        FixedFiles::of(self).check_tree(top)?;
        let detach = |change: &mut Change<'_>, inode: &Inode, now: i64| {
            change.detach(inode, now);
            Ok(())
        };
        // A walk up through it finds it with its parent, or without.
        let tree = self.residents.locks.tree();
        NameChanges::of(self).take_dir(caller, at, expected, detach)?;
        drop(tree);
        Ok(())
    }

    /// Directories of removed trees that are still to be emptied, as far as they are known yet; 0
    /// if all space of removed trees was given back.
    #[must_use]
    pub fn detached_dirs(&self) -> usize {
        self.detached.count()
    }

    /// How many entries of removed trees are gone since the file system was opened.
    #[must_use]
    pub fn detached_removed(&self) -> u64 {
        self.detached.removed.load(Ordering::Relaxed)
    }

    /// Removes up to about `count_max` entries below removed directories. To be called by a thread
    /// of its own while [`Self::detached_dirs`] is not 0. Returns the number of entries removed.
    ///
    /// # Errors
    /// [`FsError::Storage`], [`FsError::NoSpace`], [`FsError::Corrupt`]: what is not done is still
    /// queued, the next call goes on with it.
    pub fn empty_detached(&self, count_max: u64) -> FsResult<u64> {
        DetachedTrees::of(self).empty(count_max)
    }
}
