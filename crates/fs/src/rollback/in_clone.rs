//! Rollback of directories in clones.
//!
//! Clones are opened when they are needed, so an open of the store would not see that one of them
//! is half rolled back. The header of mainline has a feature for as long as one may be:
//!
//! ```text
//! mainline  feature: a rollback in a clone  ----------------------------------  none
//! clone          feature and row of a rollback, first batch ... last batch, none
//! open           with mainline's feature: opens the clones that have theirs, which finishes them
//! ```

use super::{RollbackState, RollbacksUnderWay};
use crate::change::Changes;
use crate::room::unless_full;
use crate::schema::{Store, view_schema};
use crate::system::FileSystem;
use crate::{FsError, FsResult, Notices};
use stitch_base::sync::Mutex;
use stitch_format::fs_sys::FsHeader;

/// Rollbacks in the clones of a store, as the header of mainline has them.
#[derive(Clone, Copy)]
pub(crate) struct CloneRollbacks<'fs> {
    state: &'fs RollbackState,
    under_way: &'fs RollbacksUnderWay,
    /// Of mainline, as it is stored.
    header: &'fs Mutex<FsHeader>,
    changes: Changes<'fs>,
    /// What [`super::Rollback`] refuses as a whole, for all clones.
    is_read_only: bool,
    is_clone: bool,
}

impl<'fs> CloneRollbacks<'fs> {
    pub(crate) fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            state: &mainline.rollbacks,
            under_way: &mainline.standing.views.under_way,
            header: &mainline.header,
            changes: Changes::of(mainline),
            is_read_only: mainline.is_read_only(),
            is_clone: mainline.view_number() != 0,
        }
    }

    /// Runs a rollback in a clone while the header of mainline says that one may be under way.
    pub(super) fn run_marked(
        &self,
        roll_back: impl FnOnce() -> FsResult<Notices>,
    ) -> FsResult<Notices> {
        if self.is_read_only {
            return Err(FsError::ReadOnly);
        }
        if self.is_clone {
            return Err(FsError::Unsupported);
        }
        let _one_at_a_time = self.state.in_clone.lock();
        self.changes
            .mark_header(|header| header.rolls_back_clone = true)?;
        debug_assert!(
            self.header.lock().rolls_back_clone,
            "the next open looks at clones"
        );
        let done = roll_back();
        if !self.under_way.has_any_in_clones() {
            self.unmark()?;
        }
        done
    }

    fn unmark(&self) -> FsResult<()> {
        debug_assert!(
            !self.under_way.has_any_in_clones(),
            "the next open looks at no clone"
        );
        // If there is no room, the next open looks at all clones once more.
        unless_full(
            self.changes
                .mark_header(|header| header.rolls_back_clone = false),
        )
    }

    /// Finishes what was interrupted in clones, by an open of each of these. One that cannot be
    /// finished cannot be opened, and the others can.
    pub(crate) fn finish(&self, mainline: &FileSystem) -> FsResult<()> {
        debug_assert!(!self.is_clone, "the header of mainline has the feature");
        if !self.header.lock().rolls_back_clone || self.is_read_only {
            return Ok(());
        }
        let mut is_left = false;
        for info in mainline.clones() {
            let number = info.number;
            debug_assert!(number > 0, "0 is mainline");
            let has_begun = Store::open(mainline.engine(), &view_schema(number))
                .map(|store| store.header.rolls_back)
                .unwrap_or(false);
            if !has_begun {
                continue;
            }
            if let Err(error) = mainline.open_clone(number) {
                tracing::warn!(number, %error, "a rollback in a clone is not finished");
                is_left = true;
            }
        }
        match is_left {
            true => Ok(()),
            false => self.unmark(),
        }
    }
}
