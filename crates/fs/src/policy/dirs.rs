//! The directories of policies, in mainline and in clones.

use super::PolicyInfo;
use crate::snapshot::{SnapshotInfo, ViewPaths, follow_path, know_dir, know_dir_by_number};
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

/// Finds the directories of policies, and creates snapshots of them. The file system behind it
/// cannot be reached.
///
/// Invariant: a directory is found by its path where it can be, and no back rows are needed then.
#[derive(Clone, Copy)]
pub(super) struct PolicyDirs<'fs> {
    mainline: &'fs FileSystem,
}

impl<'fs> PolicyDirs<'fs> {
    pub(super) const fn of(mainline: &'fs FileSystem) -> Self {
        Self { mainline }
    }

    /// Returns the path of a directory in a clone, from the root of mainline.
    pub(super) fn path_through(&self, clone: &LiveView, dir: Ino) -> FsResult<Vec<u8>> {
        debug_assert!(clone.info().number > 0, "0 is mainline");
        ViewPaths::of(self.mainline).through(clone, dir)
    }

    /// Makes the directory of a policy known.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it was removed, or its clone was.
    pub(super) fn known(&self, policy: &PolicyInfo) -> FsResult<HeldDir<'fs>> {
        let dir = policy.dir;
        if policy.view == 0 {
            know_dir(self.mainline, dir, &policy.path)?;
            debug_assert_eq!(
                self.mainline.view_number(),
                0,
                "the directory is in mainline"
            );
            let held = vec![(OpenView::Main(self.mainline), dir)];
            return Ok(HeldDir { held });
        }
        match self.follow_into_clone(policy) {
            Err(FsError::Stale(_)) => {}
            known => return known,
        }
        // It, or something above it, was renamed.
        let clone = self
            .mainline
            .open_clone(policy.view)
            .map_err(|error| match error {
                FsError::NotFound => FsError::Stale(dir),
                other => other,
            })?;
        debug_assert_eq!(clone.info().number, policy.view, "the clone of the policy");
        know_dir_by_number(clone.fs(), dir)?;
        let held = vec![(OpenView::Clone(clone), dir)];
        Ok(HeldDir { held })
    }

    /// Follows the path of a policy through clones.
    fn follow_into_clone(&self, policy: &PolicyInfo) -> FsResult<HeldDir<'fs>> {
        debug_assert!(policy.view > 0, "0 is mainline");
        let mut known = HeldDir { held: Vec::new() };
        let grafts = RefCell::new(&mut known.held);
        let (view, _) = follow_path(
            OpenView::Main(self.mainline),
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
        debug_assert_eq!(
            known.fs().view_number(),
            policy.view,
            "the path leads into the clone"
        );
        Ok(known)
    }

    /// Creates a snapshot of a policy.
    pub(super) fn create(&self, known: &HeldDir<'_>, name: &str) -> FsResult<SnapshotInfo> {
        debug_assert!(!name.is_empty(), "a snapshot has a name");
        match known.last() {
            (OpenView::Main(fs), dir) => fs.snapshots().create_marked(*dir, name, true),
            (OpenView::Clone(clone), dir) => {
                let snapshots = self.mainline.snapshots();
                snapshots.create_marked_in(clone, *dir, name, true)
            }
        }
    }
}
