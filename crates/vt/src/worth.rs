//! Which zones are worth to be evacuated, and in which order.

use std::cmp::Reverse;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Candidate, Extent};

/// A zone is worth moving if it is empty by one part in this many.
pub(crate) const WORTH_PART: u64 = 8;
/// The same, where nobody asked for it.
pub(crate) const WORTH_PART_IDLE: u64 = 4;
/// The same, where a commit waits for room.
pub(crate) const WORTH_PART_ROOM: u64 = 16;

/// Order of evacuation: the smallest first.
pub(crate) fn weight(candidate: &Candidate) -> (Reverse<u64>, u64, Extent) {
    let unused = candidate.zone.len - candidate.live;
    let span_bytes = candidate.live / u64::from(candidate.spans.max(1));
    (
        Reverse(unused * 16 / candidate.zone.len),
        span_bytes,
        candidate.zone,
    )
}

/// True if a zone is empty by one part in `part`.
pub(crate) fn is_worth(candidate: &Candidate, part: u64) -> bool {
    candidate.live <= candidate.zone.len - candidate.zone.len / part
}

pub(crate) fn run_of(extent: Extent) -> Run {
    Run {
        addr: extent.addr,
        len_bytes: extent.len,
    }
}
