//! Back rows of all views of a store, as comparisons need them.

use super::BackRowPass;
use crate::system::FileSystem;
use crate::{FsError, FsResult};

/// Puts the back rows of mainline, or of a clone. The file system behind it cannot be reached.
#[derive(Clone, Copy)]
pub(crate) struct ViewBackRows<'fs> {
    mainline: &'fs FileSystem,
}

impl<'fs> ViewBackRows<'fs> {
    pub(crate) const fn of(mainline: &'fs FileSystem) -> Self {
        Self { mainline }
    }

    /// Puts the back rows that are missing in a view, by a pass over all names in it.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for a clone that was removed; [`FsError::ReadOnly`];
    /// [`FsError::NoSpace`].
    pub(crate) fn complete(self, view: u64) -> FsResult<()> {
        self.mainline.check_writable()?;
        if view == 0 {
            return BackRowPass::of(self.mainline).complete();
        }
        match self.mainline.open_clone(view) {
            Ok(clone) => BackRowPass::of(clone.fs()).complete(),
            // It was removed a moment ago.
            Err(FsError::NotFound) => Err(FsError::Unsupported),
            Err(error) => Err(error),
        }
    }

    /// Puts some of the back rows that are missing in a view. Returns whether there are more; none
    /// in a clone that was removed.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] and those of the engine.
    pub(crate) fn put_some(self, view: u64) -> FsResult<bool> {
        if view == 0 {
            return BackRowPass::of(self.mainline).put_some();
        }
        match self.mainline.open_clone(view) {
            Ok(clone) => BackRowPass::of(clone.fs()).put_some(),
            // It was removed meanwhile.
            Err(FsError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
