//! Policies of directories in clones.
//!
//! The row is in mainline: what a clone has under its keys, it has from its source. It is deleted
//! in one batch with the record of the clone.

use super::{PolicyInfo, PolicyRule};
use crate::snapshot::{SnapshotInfo, follow_path};
use crate::system::FileSystem;
use crate::{FsError, FsResult, LiveView};
use std::cell::RefCell;
use stitch_base::Ino;
use stitch_base::sync::Arc;

/// Mainline, or a clone that is open.
#[derive(Clone, Debug)]
enum OpenView<'a> {
    Main(&'a FileSystem),
    Clone(Arc<LiveView>),
}

impl std::ops::Deref for OpenView<'_> {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        match self {
            Self::Main(fs) => fs,
            Self::Clone(view) => view.fs(),
        }
    }
}

/// The directory of a policy. It is known as long as this lives, and so are the directories that
/// the clones on its path lie at: a snapshot finds its path without back rows.
#[derive(Debug)]
pub(super) struct HeldDir<'a> {
    /// All that handles hold; the directory is the last.
    held: Vec<(OpenView<'a>, Ino)>,
}

impl<'a> HeldDir<'a> {
    fn last(&self) -> &(OpenView<'a>, Ino) {
        self.held.last().expect("the directory is held")
    }

    /// Returns the file system that has the directory.
    pub(super) fn fs(&self) -> &FileSystem {
        &self.last().0
    }
}

impl Drop for HeldDir<'_> {
    fn drop(&mut self) {
        self.held.iter().for_each(|(fs, ino)| fs.close_handle(*ino));
    }
}

impl FileSystem {
    /// Sets the policy of a directory in a clone, as [`Self::set_policy`] does of one in this file
    /// system, which is mainline. The directory is known in the clone. The policy goes with the
    /// clone.
    ///
    /// # Errors
    /// As [`Self::set_policy`]; [`FsError::NotFound`] for a clone that was removed.
    ///
    /// # Durability
    /// As [`Self::set_policy`].
    pub fn set_policy_in(&self, clone: &LiveView, dir: Ino, rule: &PolicyRule) -> FsResult<()> {
        self.check_no_clone()?;
        clone.fs().check_numbers_leave_room()?;
        let owner = clone.fs().residents.inodes.get_dir(dir)?.head.uid;
        let path = self.path_through(clone, dir)?;
        self.put_new_policy((clone.info().number, dir), rule, owner, path)
    }

    /// Deletes the policy of a directory in the clone of a number. Its snapshots stay.
    ///
    /// # Errors
    /// As [`Self::delete_policy`].
    ///
    /// # Durability
    /// As [`Self::delete_policy`].
    pub fn delete_policy_in(&self, clone: u64, dir: Ino) -> FsResult<()> {
        self.check_writable()?;
        self.check_no_clone()?;
        let _running = self.policies.running.lock();
        self.drop_policy((clone, dir))
    }

    /// Makes the directory of a policy known.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it was removed, or its clone was.
    pub(super) fn known_dir(&self, policy: &PolicyInfo) -> FsResult<HeldDir<'_>> {
        let dir = policy.dir;
        if policy.view == 0 {
            self.know_dir(dir, &policy.path)?;
            let held = vec![(OpenView::Main(self), dir)];
            return Ok(HeldDir { held });
        }
        match self.follow_into_clone(policy) {
            Err(FsError::Stale(_)) => {}
            known => return known,
        }
        // It, or something above it, was renamed.
        let clone = self.open_clone(policy.view).map_err(|error| match error {
            FsError::NotFound => FsError::Stale(dir),
            other => other,
        })?;
        clone.fs().know_dir_by_number(dir)?;
        let held = vec![(OpenView::Clone(clone), dir)];
        Ok(HeldDir { held })
    }

    /// Follows the path of a policy through clones.
    fn follow_into_clone(&self, policy: &PolicyInfo) -> FsResult<HeldDir<'_>> {
        let mut known = HeldDir { held: Vec::new() };
        let grafts = RefCell::new(&mut known.held);
        let (view, _) = follow_path(
            OpenView::Main(self),
            &policy.path,
            policy.key(),
            |fs, at| {
                let Some(info) = fs.clone_at(at) else {
                    return Ok(None);
                };
                let clone = fs.open_clone(info.number)?;
                fs.open_handle(at)?;
                grafts.borrow_mut().push((fs.clone(), at));
                Ok(Some((OpenView::Clone(clone), info.root)))
            },
        )?;
        known.held.push((view, policy.dir));
        Ok(known)
    }

    /// Creates a snapshot of a policy.
    pub(super) fn create_of_policy(
        &self,
        known: &HeldDir<'_>,
        name: &str,
    ) -> FsResult<SnapshotInfo> {
        match known.last() {
            (OpenView::Main(fs), dir) => fs.create_marked(*dir, name, true),
            (OpenView::Clone(clone), dir) => self.create_marked_in(clone, *dir, name, true),
        }
    }
}
