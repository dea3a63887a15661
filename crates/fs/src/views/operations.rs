//! What a file system offers of clones. They are made by [`CloneMaker`], opened by [`ViewOpener`]
//! and removed by their names ([`FileSystem::remove_dir`], [`FileSystem::remove_tree`]).

use super::make::CloneMaker;
use super::{CloneInfo, CloneSource, LiveView, ViewLimits, ViewOpener};
use crate::back::ViewBackRows;
use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult};
use stitch_base::Ino;
use stitch_base::sync::Arc;

impl FileSystem {
    /// Returns the number of the view that this file system is, 0 for mainline; of a snapshot, that
    /// of the view whose past it is.
    #[must_use]
    pub const fn view_number(&self) -> u64 {
        self.standing.number
    }

    /// Returns the clones of the store in the order of their creation. Reads nothing from the
    /// medium.
    #[must_use]
    pub fn clones(&self) -> Vec<CloneInfo> {
        let clones = self.standing.views.live();
        debug_assert!(
            clones.is_sorted_by(|one, next| one.number < next.number),
            "in the order of their creation"
        );
        clones
    }

    /// Returns the clone of a number.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none, or it was removed.
    pub fn clone_of(&self, number: u64) -> FsResult<CloneInfo> {
        let found = self.standing.views.clone_of(number);
        found.ok_or(FsError::NotFound)
    }

    /// Returns the clone that lies at a directory of this file system.
    #[must_use]
    pub fn clone_at(&self, graft: Ino) -> Option<CloneInfo> {
        self.standing.clone_at(graft)
    }

    /// Opens the file system of a clone. If it is open already, that one is returned.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none, or it was removed.
    ///
    /// # Cost
    /// A few point reads, and one for each name of the path that its directory had.
    pub fn open_clone(&self, number: u64) -> FsResult<Arc<LiveView>> {
        ViewOpener::of(self).open(number)
    }

    /// Reports whether the engine can hold clones, and inode numbers leave room to name their
    /// inodes.
    #[must_use]
    pub fn takes_clones(&self) -> bool {
        ViewLimits::of(self).check_takes_clones().is_ok()
    }

    /// Makes a clone of a directory under a name in this file system: a directory with the same
    /// contents, which changes apart from its source. Nothing is copied. The clone shows what was
    /// acknowledged before the call, and nothing of what is written after it returns. Clones that
    /// lie in the source, and those in them, are clones in it, of the same moment. A snapshot gives
    /// what it shows, also of clones that were removed since.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken; [`FsError::NotDir`]; [`FsError::NotFound`] for a
    /// source that was removed; [`FsError::NameTooLong`] also for a path of the source over 4000
    /// bytes; [`FsError::Unsupported`] of an engine without branch trees, or a store with large
    /// files beside it, which are written in place; [`FsError::NumbersTooLarge`];
    /// [`FsError::TooDeep`] for a clone of a clone of ... 32 times, or one in the source;
    /// [`FsError::TooManyClones`]; [`FsError::NoSpace`], [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// The clone, and all that it shows, are on the medium when this returns.
    ///
    /// # Cost
    /// Two syncs of the log, a record for each clone, and a point read for each name of the path.
    /// If clones lie in the file system of the source: two reads for each directory above each of
    /// them. If a part of the way up from one is not known, such as after a mount, two scans of the
    /// names below the directory, unless all back rows are there
    /// ([`FileSystem::put_back_rows_ahead`]). Reads of a clone look at its own tables, then at
    /// those of its source.
    pub fn make_clone(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        self.check_writable()?;
        CloneMaker::of(self).make(caller, source, at)
    }

    /// Puts some of the back rows that were asked for: those of a file system in which clones lie,
    /// and of which a directory was cloned. Returns whether there are more. This file system is
    /// mainline. To be called in the background.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] and those of the engine: what failed is not asked for any more.
    ///
    /// # Cost
    /// A scan of some thousand names and a batch of as many rows.
    pub fn put_back_rows_ahead(&self) -> FsResult<bool> {
        ViewBackRows::of(self).put_asked()
    }
}
