//! Back rows of all views of a store, as comparisons and clones need them.
//!
//! Clones of directories with clones in them need those of each file system in which such clones
//! lie. They are put in the background:
//!
//! ```text
//!   first clone over clones     scans the names below its source, and asks for back rows
//!   background                  puts them, some at a time
//!   later ones                  a few point reads for each clone in the source
//! ```
//!
//! What was asked for is known in memory alone: after a crash the next such clone asks again, and
//! the pass goes on where it was.

use super::BackRowPass;
use crate::system::FileSystem;
use crate::views::ViewOpener;
use crate::{FsError, FsResult, LiveView};
use stitch_base::sync::Arc;

/// Puts the back rows of mainline, or of a clone.
///
/// Invariant: a clone is open while its back rows are put, and no longer for their sake.
#[derive(Clone, Copy)]
pub(crate) struct ViewBackRows<'fs> {
    /// Of mainline.
    pass: BackRowPass<'fs>,
    opener: ViewOpener<'fs>,
}

impl<'fs> ViewBackRows<'fs> {
    pub(crate) const fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            pass: BackRowPass::of(mainline),
            opener: ViewOpener::of(mainline),
        }
    }

    /// Returns a clone, opened; `None` for one that was removed a moment ago.
    fn clone_of(&self, view: u64) -> FsResult<Option<Arc<LiveView>>> {
        debug_assert!(view > 0, "0 is mainline");
        match self.opener.open(view) {
            Ok(clone) => {
                debug_assert_eq!(clone.info().number, view, "the clone that was asked for");
                Ok(Some(clone))
            }
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts the back rows that are missing in a view, by a pass over all names in it.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for a clone that was removed; [`FsError::ReadOnly`];
    /// [`FsError::NoSpace`].
    pub(crate) fn complete(&self, view: u64) -> FsResult<()> {
        if self.pass.is_read_only {
            return Err(FsError::ReadOnly);
        }
        if view == 0 {
            return self.pass.complete();
        }
        debug_assert!(!self.pass.is_read_only, "back rows are about to be put");
        match self.clone_of(view)? {
            Some(clone) => BackRowPass::of(clone.fs()).complete(),
            None => Err(FsError::Unsupported),
        }
    }

    /// Puts some of the back rows that are missing in a view. Returns whether there are more; none
    /// in a clone that was removed.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] and those of the engine.
    fn put_some(&self, view: u64) -> FsResult<bool> {
        let commands = &self.opener.standing().views.commands;
        if view == 0 {
            return self.pass.put_some(commands);
        }
        match self.clone_of(view)? {
            Some(clone) => BackRowPass::of(clone.fs()).put_some(commands),
            None => Ok(false),
        }
    }

    /// See [`FileSystem::put_back_rows_ahead`].
    pub(crate) fn put_asked(&self) -> FsResult<bool> {
        let views = &self.opener.standing().views;
        let Some(view) = views.wanted_back_rows() else {
            return Ok(false);
        };
        let put = self.put_some(view);
        if !matches!(put, Ok(true)) {
            views.have_back_rows(view);
        }
        put.map(|_| views.wanted_back_rows().is_some())
    }
}
