//! What a file system offers of comparisons. The sides are read by [`Comparer`].

use super::{Asked, Comparer, DirAt, TouchedPaths, TwinView};
#[cfg(doc)]
use crate::FsError;
use crate::FsResult;
use crate::back::ViewBackRows;
use crate::pins::Pins;
use crate::system::FileSystem;
use crate::transaction::PathChange;

impl FileSystem {
    /// Comparisons of what is below a directory, in the store of this file system.
    pub(crate) const fn comparer(&self) -> Comparer<'_> {
        Comparer {
            pins: Pins::of(self),
            back_rows: ViewBackRows::of(self),
            is_mainline: self.is_mainline(),
        }
    }

    /// Returns what is different below a directory on the second of two sides, in the order of
    /// paths, which begin at the directory. The sides are one directory at two moments, or in two
    /// views of which one is a clone of the other, or of a clone of it and so on, or that are
    /// clones of one source. The differences of clones that lie below the directory are among
    /// those returned, if both moments have the clone, or both views have it or a clone of it.
    /// Other clones are names and nothing else. This file system is mainline. With `owner`, all
    /// directories that hold what is different must belong to this user, who may list them.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] where a walk through both sides does it better or alone: for a
    /// directory with few names, more changes than are held in memory, two views that have no
    /// source in common, and of an engine that does not list changed keys. [`FsError::NotFound`]
    /// if a pin or a clone is not there; [`FsError::Invalid`] if the second moment is before the
    /// first, or the directories are not the same one; [`FsError::Stale`] for a directory that was
    /// not there; [`FsError::Perm`]; those of a read.
    ///
    /// # Cost
    /// That of reading what was written in the views between the moments, or since the clone was
    /// made, and the directories above it. A few point reads for each clone of the views. A scan of
    /// all names below directories that were moved in or out, and of all names below the directory
    /// if a changed file has several names. The first call in the life of a store runs a pass over
    /// all names, as the first file handle does.
    pub fn differences(
        &self,
        (old, new): (DirAt, DirAt),
        owner: Option<u32>,
    ) -> FsResult<Vec<PathChange>> {
        self.comparer().differences(&Asked::new(old, new, owner))
    }

    /// Returns the clones in two views that [`Self::differences`] compares with each other, by
    /// their numbers in the first view and in the second one, and those in such clones. They are
    /// found wherever they lie in the views. A walk needs the pairs to know which directories of
    /// both sides are the same one. This file system is mainline.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for two views that have no source in common; those of
    /// [`Self::differences`].
    ///
    /// # Cost
    /// That of reading all records of clones at both moments, and a few point reads for each pair.
    pub fn clone_pairs(&self, sides: (DirAt, DirAt)) -> FsResult<Vec<(u64, u64)>> {
        self.comparer().clone_pairs(sides)
    }

    /// Returns the views that two sides have in common: those of the sides, then pairs of clones as
    /// [`Self::clone_pairs`] returns them.
    ///
    /// # Errors
    /// Those of [`Self::clone_pairs`].
    ///
    /// # Cost
    /// That of [`Self::clone_pairs`].
    pub fn twin_views(&self, sides: (DirAt, DirAt)) -> FsResult<Vec<TwinView>> {
        self.comparer().twin_views(sides)
    }

    /// Returns the paths below a directory that lead to something else on the second of two sides,
    /// and the directories above them. All names of an inode that is another one are listed. Of a
    /// clone that lies below the directory on one side alone, all paths are. Which inodes two views
    /// have in common [`Self::twin_views`] tells. The sides, `owner`, errors and costs are those of
    /// [`Self::differences`].
    ///
    /// # Errors
    /// Those of [`Self::differences`].
    ///
    /// # Cost
    /// That of [`Self::differences`], and one read for each directory above a change.
    pub fn touched_paths(
        &self,
        (old, new): (DirAt, DirAt),
        owner: Option<u32>,
    ) -> FsResult<TouchedPaths> {
        let mut asked = Asked::new(old, new, owner);
        if old.view != new.view {
            // A walk of two views compares the contents of all files.
            asked.names_min = 0;
        }
        self.comparer().touched_paths(&asked)
    }
}
