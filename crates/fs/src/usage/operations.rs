//! What a file system offers of the use of space. What is asked is found by [`SpaceUse`].

use super::{SpaceUse, Usage};
#[cfg(doc)]
use crate::FsError;
use crate::system::FileSystem;
use crate::{CloneInfo, FsResult};
use stitch_base::Ino;
use stitch_kv::SpaceShare;

impl FileSystem {
    /// Reports whether the engine tells who needs its space.
    #[must_use]
    pub fn tells_usage(&self) -> bool {
        SpaceUse::of(self).is_told()
    }

    /// Returns what each snapshot, clone and open transaction alone needs, and the history. `watch`
    /// is called with done and total bytes; `None` if it returned false.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] of an engine that does not tell; [`FsError::Storage`].
    ///
    /// # Cost
    /// One walk by the indexes of what was changed beside snapshots and clones. Long contents are
    /// not read.
    pub fn usage(&self, watch: &mut dyn FnMut(u64, u64) -> bool) -> FsResult<Option<Usage>> {
        SpaceUse::of(self).usage(watch)
    }

    /// Returns the path of the directory at which a clone lies, from the root, if the directory and
    /// those above it are known and not in another clone.
    #[must_use]
    pub fn clone_path(&self, info: &CloneInfo) -> Option<Vec<u8>> {
        let is_here = info.home == self.view_number();
        is_here.then(|| self.residents.path_of(info.graft).ok())?
    }

    /// Returns what a directory and all below it take. Exclusive is what no snapshot and no clone
    /// needs: deleting the directory gives it back. Clones that lie in it are not counted. `watch`
    /// is called with the number of inodes so far and of all; `None` if it returned false.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for a directory that was removed; [`FsError::NotDir`];
    /// [`FsError::Unsupported`] of an engine that does not tell; [`FsError::Storage`].
    ///
    /// # Cost
    /// That of `find` below it, and a walk by the indexes of its rows. Contents are not read.
    pub fn directory_space(
        &self,
        dir: Ino,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> FsResult<Option<SpaceShare>> {
        SpaceUse::of(self).directory_space(dir, watch)
    }

    /// Returns what a snapshot's directory took at its moment, as [`Self::directory_space`].
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot; as [`Self::directory_space`].
    ///
    /// # Cost
    /// That of [`Self::directory_space`], the first time it is asked for.
    pub fn snapshot_size(
        &self,
        name: &str,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> FsResult<Option<u64>> {
        SpaceUse::of(self).snapshot_size(name, watch)
    }
}
