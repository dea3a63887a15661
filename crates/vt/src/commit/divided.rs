//! What of a batch goes through the log, and what to its zone at once.

use crate::direct::Part;
use std::ops::Deref;
use std::slice;
use stitch_format::logged_commit::HEAD_BYTES;
use stitch_kv::{Batch, Position};

/// The parts of a batch.
pub(super) enum Parts {
    /// One that goes through the log, as nearly always.
    Whole(Part),
    Some(Vec<Part>),
}

impl Deref for Parts {
    type Target = [Part];

    fn deref(&self) -> &[Part] {
        match self {
            Self::Whole(part) => slice::from_ref(part),
            Self::Some(parts) => parts,
        }
    }
}

/// A batch in the form in which it is applied.
pub(super) struct Divided {
    pub(super) parts: Parts,
    /// Bytes of the messages that go into the log and the memtable.
    pub(super) logged_bytes: u64,
    /// How many these are.
    pub(super) logged_count: u64,
    /// Bytes of the others.
    pub(super) direct_bytes: u64,
    /// Of these, bytes that continue no write stream.
    pub(super) run_bytes: u64,
}

impl Divided {
    /// Everything goes through the log.
    pub(super) fn whole(batch: &Batch) -> Self {
        let part = Part {
            place: Position::default()..batch.end(),
            count: batch.count() as u64,
            direct: None,
        };
        Self::of(batch, Parts::Whole(part))
    }

    pub(super) fn of(batch: &Batch, parts: Parts) -> Self {
        let logged = || parts.iter().filter(|part| part.direct.is_none());
        let logged_bytes = logged().map(Part::len_bytes).sum();
        let is_run = |part: &&Part| part.direct.is_some_and(|direct| direct.stream.is_none());
        let runs = parts.iter().filter(is_run);
        Self {
            run_bytes: runs.map(Part::len_bytes).sum(),
            logged_bytes,
            logged_count: logged().map(|part| part.count).sum(),
            direct_bytes: batch.len_bytes() as u64 - logged_bytes,
            parts,
        }
    }

    /// Most that the log record takes: index entries are short beside the values.
    pub(super) fn record_bytes_max(&self) -> u64 {
        HEAD_BYTES as u64 + self.logged_bytes + self.index_bytes_max()
    }

    pub(super) fn index_bytes_max(&self) -> u64 {
        self.direct_bytes / 2
    }
}
