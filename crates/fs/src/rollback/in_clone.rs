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

use crate::room::unless_full;
use crate::schema::{Store, view_schema};
use crate::system::FileSystem;
use crate::{FsResult, LiveView, Notices};
use stitch_base::{Ino, PinId};

impl FileSystem {
    /// Makes a directory in a clone what a snapshot of it shows, as [`Self::roll_back`] does of one
    /// in this file system, which is mainline. The directory is known in the clone.
    ///
    /// # Errors
    /// As [`Self::roll_back`].
    ///
    /// # Durability
    /// As [`Self::roll_back`]. An open of the store finishes what was interrupted.
    ///
    /// # Cost
    /// As [`Self::roll_back`], and two batches of one row.
    pub fn roll_back_in(
        &self,
        clone: &LiveView,
        name: &str,
        dir: Ino,
        owner: Option<u32>,
    ) -> FsResult<Notices> {
        let fs = clone.fs();
        self.with_clone_marked(|| fs.roll_back_with(dir, owner, || fs.open_snapshot(name)))
    }

    /// Makes a directory in a clone what it was at a moment of the history, as
    /// [`Self::roll_back_in`] does with a snapshot.
    ///
    /// # Errors
    /// As [`Self::roll_back_to_moment`]; [`crate::FsError::NotFound`] also if the clone was made
    /// later.
    ///
    /// # Durability
    /// As [`Self::roll_back_in`].
    pub fn roll_back_in_to_moment(
        &self,
        clone: &LiveView,
        id: PinId,
        dir: Ino,
        owner: Option<u32>,
    ) -> FsResult<Notices> {
        let fs = clone.fs();
        self.with_clone_marked(|| {
            let path = fs.residents.path_of(dir)?;
            fs.roll_back_with(dir, owner, || fs.pins().open_moment_of_view(id, dir, path))
        })
    }

    /// Runs a rollback in a clone while the header of mainline says that one may be under way.
    fn with_clone_marked(
        &self,
        roll_back: impl FnOnce() -> FsResult<Notices>,
    ) -> FsResult<Notices> {
        self.check_writable()?;
        self.check_no_clone()?;
        let _one_at_a_time = self.rollbacks.in_clone.lock();
        self.mark_header(|header| header.rolls_back_clone = true)?;
        let done = roll_back();
        if !self.standing.views.under_way.has_any_in_clones() {
            self.unmark_clones()?;
        }
        done
    }

    /// Finishes what was interrupted in clones, by an open of each of these. One that cannot be
    /// finished cannot be opened, and the others can.
    pub(crate) fn finish_rollbacks_in_clones(&self) -> FsResult<()> {
        if !self.header.lock().rolls_back_clone || self.is_read_only() {
            return Ok(());
        }
        let mut is_left = false;
        for info in self.clones() {
            let number = info.number;
            let has_begun = Store::open(self.engine(), &view_schema(number))
                .map(|store| store.header.rolls_back)
                .unwrap_or(false);
            if !has_begun {
                continue;
            }
            if let Err(error) = self.open_clone(number) {
                tracing::warn!(number, %error, "a rollback in a clone is not finished");
                is_left = true;
            }
        }
        match is_left {
            true => Ok(()),
            false => self.unmark_clones(),
        }
    }

    fn unmark_clones(&self) -> FsResult<()> {
        // If there is no room, the next open looks at all clones once more.
        unless_full(self.mark_header(|header| header.rolls_back_clone = false))
    }
}
