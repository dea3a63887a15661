//! A moment of a store, held open.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use stitch_base::Seqno;

/// A consistent view of the whole store as of one sequence number. While it (or a clone) lives, the
/// engine keeps every version that it can see; dropping the last clone releases them.
#[derive(Clone)]
pub struct Snapshot {
    seqno: Seqno,
    hold: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// For engines: a snapshot at `seqno`; `hold` is dropped with the last clone.
    #[must_use]
    pub fn new(seqno: Seqno, hold: Arc<dyn Any + Send + Sync>) -> Self {
        Self { seqno, hold }
    }

    /// The last write that the snapshot sees.
    #[must_use]
    pub const fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// For engines: what they put in.
    #[must_use]
    pub fn hold(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.hold
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("seqno", &self.seqno)
            .finish_non_exhaustive()
    }
}
