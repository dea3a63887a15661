//! Back rows of all views of a store, as comparisons need them.

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
            return self.mainline.complete_back_rows();
        }
        match self.mainline.open_clone(view) {
            Ok(clone) => clone.fs().complete_back_rows(),
            // It was removed a moment ago.
            Err(FsError::NotFound) => Err(FsError::Unsupported),
            Err(error) => Err(error),
        }
    }
}
