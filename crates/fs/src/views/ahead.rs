//! Back rows that are put in the background, for clones of directories with clones in them.
//!
//! ```text
//!   first clone over clones     scans the names below its source, and asks for back rows
//!   background                  puts them, some at a time
//!   later ones                  a few point reads for each clone in the source
//! ```
//!
//! What was asked for is known in memory alone: after a crash the next such clone asks again, and
//! the pass goes on where it was ([`crate::back`]).

use crate::FsResult;
use crate::back::{BackRowPass, ViewBackRows};
use crate::system::FileSystem;

impl FileSystem {
    /// Asks for the back rows of this file system, unless they are there or cannot be put.
    pub(super) fn want_back_rows(&self) {
        if !self.is_read_only() && !BackRowPass::of(self).is_complete() {
            self.standing.views.want_back_rows(self.view_number());
        }
    }

    /// Puts some of the back rows that were asked for: those of a file system in which clones lie,
    /// and of which a directory was cloned. Returns whether there are more. This file system is
    /// mainline. To be called in the background.
    ///
    /// # Errors
    /// [`crate::FsError::NoSpace`] and those of the engine: what failed is not asked for any more.
    ///
    /// # Cost
    /// A scan of some thousand names and a batch of as many rows.
    pub fn put_back_rows_ahead(&self) -> FsResult<bool> {
        let views = &self.standing.views;
        let Some(view) = views.wanted_back_rows() else {
            return Ok(false);
        };
        let put = ViewBackRows::of(self).put_some(view);
        if !matches!(put, Ok(true)) {
            views.have_back_rows(view);
        }
        put.map(|_| views.wanted_back_rows().is_some())
    }
}
