//! The lock of commits, and the state that they change one at a time.
//!
//! Invariant: sequence numbers are given out in rising order, and a write is published only when
//! all before it are.

use crate::direct::WriteStreams;
use crate::gaps::DeleteRuns;
use crate::unsynced::Unsynced;
use crate::version::Version;
use std::collections::BTreeSet;
use stitch_base::sync::{Apart, Mutex};
use stitch_base::{Seqno, TreeId};

/// The lock of commits. It changes with each of them: reads should not wait for that.
pub(crate) type CommitLock = Apart<Mutex<CommitState>>;

/// What commits change.
pub(crate) struct CommitState {
    /// The last sequence number given out.
    pub(crate) last_seqno: Seqno,
    /// Trees that take writes.
    pub(crate) trees: BTreeSet<TreeId>,
    /// Tables are moved into trees: nothing is committed until that is done.
    pub(crate) is_paused: bool,
    /// Rows of deletes.
    pub(crate) deletes: DeleteRuns,
    /// Write streams of puts.
    pub(crate) streams: WriteStreams,
    /// Bytes since somebody asked for a sync.
    pub(crate) unsynced: Unsynced,
}

impl CommitState {
    /// Returns that of a store in which nothing was committed since this version.
    pub(crate) fn new(version: &Version) -> Self {
        Self {
            last_seqno: version.last_seqno,
            trees: version.living().map(|tree| tree.info.id).collect(),
            is_paused: false,
            deletes: DeleteRuns::default(),
            streams: WriteStreams::default(),
            unsynced: Unsynced::default(),
        }
    }
}
