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
        let scope = self.scope();
        let chunks = unwritten_added.unsigned_abs();
        let is_added = unwritten_added > 0;
        if is_added {
            scope.set_more_aside(chunks)?;
        }
        scope.memory.announce(events);
        let committed = commit()?;
        if committed.is_err() {
            scope.memory.retract(events);
        }
        if is_added == committed.is_err() {
            scope.set_less_aside(chunks);
        }
        committed
    }

    /// Applies the events of a change that was absorbed. All that it is about is locked. Returns
    /// what the kernel has to drop.
    ///
    /// # Errors
    /// Those of [`EventSink::apply`](crate::events::EventSink::apply).
    pub(crate) fn apply_absorbed(self, events: Vec<Event<'_>>) -> FsResult<Notices> {
        self.scope().memory.apply_unasked(events)
    }
}
