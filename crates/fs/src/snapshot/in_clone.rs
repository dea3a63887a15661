//! Snapshots of directories in clones.

use super::SnapshotInfo;
use crate::system::FileSystem;
use crate::{CloneInfo, FsError, FsResult, LiveView};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_format::fs_snapshot::{SNAPSHOT_PATH_BYTES_MAX, SnapshotRecord};

impl FileSystem {
    /// Creates a snapshot of a directory in a clone, as [`Self::create_snapshot`] does of one in
    /// this file system, which is mainline. The directory is known in the clone. Its path leads
    /// through the directories at which the clone, and those that it lies in, are found.
    ///
    /// # Errors
    /// As [`Self::create_snapshot`]; [`FsError::NotFound`] for a clone that was removed;
    /// [`FsError::Stale`] for one that lies below the directory of another clone, which hides it.
    ///
    /// # Durability
    /// As [`Self::create_snapshot`].
    ///
    /// # Cost
    /// As [`Self::create_snapshot`]. Where the directory that a clone lies at is not known, it is
    /// found as by [`Self::look_up_number`].
    pub fn create_snapshot_in(
        &self,
        clone: &LiveView,
        dir: Ino,
        name: &str,
    ) -> FsResult<SnapshotInfo> {
        self.create_marked_in(clone, dir, name, false)
    }

    /// Creates a snapshot, which may be that of a policy.
    pub(crate) fn create_marked_in(
        &self,
        clone: &LiveView,
        dir: Ino,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        clone.fs().check_numbers_leave_room()?;
        self.create_with(name, || {
            self.try_snapshot_in(clone, dir, name, is_automatic)
        })
    }

    fn try_snapshot_in(
        &self,
        clone: &LiveView,
        dir: Ino,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        let inode = clone.fs().residents.inodes.get_dir(dir)?;
        let record = SnapshotRecord {
            root: dir,
            view: clone.info().number,
            created_ns: self.now(),
            owner: inode.head.uid,
            is_automatic,
            tags: BTreeSet::new(),
            path: self.path_through(clone, dir)?,
        };
        debug_assert!(record.view > 0, "a clone has a number");
        self.pin_directory(name, &record)
    }

    /// Returns the path of a directory in a clone, from the root of mainline.
    pub(crate) fn path_through(&self, clone: &LiveView, dir: Ino) -> FsResult<Vec<u8>> {
        debug_assert_eq!(self.view_number(), 0, "paths begin in mainline");
        let root = clone.info().root;
        let below = clone.fs().path_outside_clones(root, dir)?;
        let mut info = self.clone_of(clone.info().number)?;
        let mut parts = vec![below];
        loop {
            let home = info.home;
            if home == 0 {
                parts.push(self.path_of_graft(&info, Ino::ROOT)?);
                break;
            }
            let view = self.open_clone(home)?;
            parts.push(view.fs().path_of_graft(&info, view.info().root)?);
            info = view.info().clone();
        }
        parts.reverse();
        parts.retain(|part| !part.is_empty());
        let path = parts.join(&b'/');
        if path.len() > SNAPSHOT_PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(path)
    }

    /// Returns the path of the directory at which a clone lies, from `top`. This file system is its
    /// home.
    fn path_of_graft(&self, info: &CloneInfo, top: Ino) -> FsResult<Vec<u8>> {
        debug_assert_eq!(self.view_number(), info.home, "its home has the directory");
        self.look_up_number(info.graft)?;
        let path = self.path_of_clone(top, info.graft);
        self.forget(info.graft, 1);
        path
    }
}
