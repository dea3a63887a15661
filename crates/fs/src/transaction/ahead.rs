//! What a commit reads of its transaction, read before the transaction is frozen.
//!
//! A mount has the kernel write back mapped pages first, which takes as long as the rest of a
//! commit of many files. Both can be done at once: nearly always nothing is written back.
//!
//! ```text
//! moment      read ahead                         freeze   commit
//! |-----------------------------------------------|---------------->
//! a write of the transaction after the moment:    read anew
//! no write:                                       what was read ahead is what it has written
//! ```
//!
//! Invariant: what was read ahead is used for the transaction that it was read of, and only if
//! nothing was written in that since the moment.

use super::own::{BranchTrees, Own};
use super::{TransactionView, Transactions};
use crate::{FsResult, Notices};
use stitch_base::Ino;
use stitch_kv::Snapshot;

/// What a transaction had written by a moment: see [`Transactions::read_ahead`].
#[derive(Debug)]
pub struct CommitAhead {
    number: Ino,
    /// Taken before anything was read.
    moment: Snapshot,
    own: Own,
}

impl CommitAhead {
    /// Returns what a transaction has written, if nothing was written in it since this was read.
    /// The transaction is frozen.
    pub(super) fn if_current(self, number: Ino, trees: &BranchTrees) -> FsResult<Option<Own>> {
        if self.number != number || trees.are_written_since(&self.moment)? {
            return Ok(None);
        }
        Ok(Some(self.own))
    }
}

impl Transactions<'_> {
    /// Reads what a transaction has written, and has the engine prepare its absorb, while
    /// operations in it go on. Its commit uses that, if nothing is written in it until then:
    /// [`Self::commit_ahead`].
    ///
    /// # Errors
    /// As [`Self::commit`], but for conflicts. Nothing depends on it: the commit fails likewise.
    ///
    /// # Cost
    /// The part of [`Self::commit`] that grows with the transaction: most of its memory, too.
    pub fn read_ahead(&self, view: &TransactionView) -> FsResult<CommitAhead> {
        self.check_may_change()?;
        let trees = BranchTrees::of(&view.fs)?;
        self.catalog.engine.prepare_absorb(&trees.ids())?;
        let moment = self.catalog.engine.snapshot();
        let own = Own::read(&trees)?;
        debug_assert!(view.number.0 > 0, "0 is no number");
        Ok(CommitAhead {
            number: view.number,
            moment,
            own,
        })
    }

    /// Commits a transaction as [`Self::commit`] does, with what was read of it before.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_ahead(&self, view: &TransactionView, ahead: CommitAhead) -> FsResult<Notices> {
        self.commit_read(view, Some(ahead))
    }
}
