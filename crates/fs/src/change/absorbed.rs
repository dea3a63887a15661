//! Changes whose rows the engine absorbs from branch trees: the commit of a transaction.
//!
//! Memory learns of them as of any other change: events are announced before the commit and applied
//! after it, or retracted. The room of allocated extents is set aside before, or released after.

use super::Changes;
use crate::events::{Event, Notices};
use crate::{FsError, FsResult};

impl Changes<'_> {
    /// Runs a commit with memory prepared for its events, and with room for the chunks that
    /// unwritten extents have more afterwards. `commit` returns the outcome, or an error if the
    /// outcome is not known: then what was announced stays so.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if there is no room to set aside; those of `commit`.
    pub(crate) fn absorb(
        self,
        events: &[Event<'_>],
        unwritten_added: i64,
        commit: impl FnOnce() -> FsResult<Result<(), FsError>>,
    ) -> FsResult<()> {
        self.set_aside(unwritten_added.max(0))?;
        self.fs.announce(events);
        match commit()? {
            Ok(()) => self.set_aside(unwritten_added.min(0)),
            Err(error) => {
                self.fs.retract(events);
                self.set_aside(-unwritten_added.max(0))?;
                Err(error)
            }
        }
    }

    /// Applies the events of a change that was absorbed. All that it is about is locked. Returns
    /// what the kernel has to drop.
    ///
    /// # Errors
    /// Those of [`crate::FileSystem::apply`].
    pub(crate) fn apply_absorbed(self, events: Vec<Event<'_>>) -> FsResult<Notices> {
        self.fs.apply_unasked(events)
    }

    /// Sets room aside for more chunks, or for less. Of those in a transaction its commit does.
    fn set_aside(self, chunks: i64) -> FsResult<()> {
        if self.fs.branch.is_some() {
            return Ok(());
        }
        let engine = self.fs.engine().as_ref();
        match chunks {
            0 => Ok(()),
            1.. => self.fs.aside.set_more(engine, chunks.unsigned_abs()),
            _ => {
                self.fs.aside.set_less(engine, chunks.unsigned_abs());
                Ok(())
            }
        }
    }
}
