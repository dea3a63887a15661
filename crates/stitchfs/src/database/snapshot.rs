//! A snapshot, as users have it.

use crate::engine::Instance;
use crate::owner::Owner;
use crate::{Seqno, StoreError};

/// A consistent view of all trees of one instance as of one sequence number. While it (or a clone)
/// lives, every version that it can see is kept; dropping the last clone releases them.
#[derive(Clone, Debug)]
pub struct Snapshot {
    moment: stitch_kv::Snapshot,
    owner: Owner,
}

impl Snapshot {
    pub(super) fn take(instance: &Instance) -> Self {
        Self::of(instance.engine.snapshot(), instance)
    }

    /// A moment of an instance.
    pub(super) fn of(moment: stitch_kv::Snapshot, instance: &Instance) -> Self {
        Self {
            moment,
            owner: Owner::new(instance),
        }
    }

    /// The last write that the snapshot sees.
    #[must_use]
    pub const fn seqno(&self) -> Seqno {
        self.moment.seqno()
    }

    /// The moment, for the engine that it was taken of.
    ///
    /// # Errors
    /// [`StoreError::Foreign`].
    pub(super) fn moment_for(&self, asked: &Instance) -> Result<&stitch_kv::Snapshot, StoreError> {
        self.owner.check(|| "a snapshot".to_owned(), asked)?;
        Ok(&self.moment)
    }
}
