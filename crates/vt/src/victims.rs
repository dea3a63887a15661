//! Selects the zones to evacuate: those with the most space to gain.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Candidate, Extent, Volume, Zones};

/// Most zones that are evacuated together: a table that is in several is written once.
const BATCH_ZONES: usize = 16;
/// A zone is evacuated if it is empty by one part in this many.
pub(crate) const MIN_HOLE_PART: u64 = 8;
/// The same, where no caller asked for it.
pub(crate) const MIN_HOLE_PART_IDLE: u64 = 4;
/// The same, where a commit waits for room.
pub(crate) const MIN_HOLE_PART_ROOM: u64 = 16;

/// Order of evacuation: the smallest first.
pub(crate) fn weight(candidate: &Candidate) -> (Reverse<u64>, u64, Extent) {
    debug_assert!(
        candidate.live <= candidate.zone.len,
        "what is live fits the zone"
    );
    debug_assert!(candidate.zone.len > 0, "a zone has a length");
    let unused = candidate.zone.len - candidate.live;
    let span_bytes = candidate.live / u64::from(candidate.spans.max(1));
    (
        Reverse(unused * 16 / candidate.zone.len),
        span_bytes,
        candidate.zone,
    )
}

/// True if a zone is empty by one part in `part`.
pub(crate) fn is_victim(candidate: &Candidate, part: u64) -> bool {
    debug_assert!(part > 0, "a part of a zone");
    debug_assert!(
        candidate.live <= candidate.zone.len,
        "what is live fits the zone"
    );
    candidate.live <= candidate.zone.len - candidate.zone.len / part
}

pub(crate) fn run_of(extent: Extent) -> Run {
    Run {
        addr: extent.addr,
        len_bytes: extent.len,
    }
}

/// Returns the victims among the zones that were not tried, best first.
pub(crate) fn candidates(zones: &Zones, part: u64, tried: &BTreeSet<Extent>) -> Vec<Candidate> {
    debug_assert!(part > 0, "a part of a zone");
    let mut victims = zones.candidates();
    victims.retain(|candidate| is_victim(candidate, part) && !tried.contains(&candidate.zone));
    victims.sort_by_key(weight);
    victims
}

/// Reports whether what is unused in these zones makes up a zone.
pub(crate) fn can_free_any(zones: &Zones, victims: &[Candidate]) -> bool {
    debug_assert!(
        victims.iter().all(|victim| victim.live <= victim.zone.len),
        "what is live fits the zone"
    );
    let unused: u64 = victims.iter().map(|c| c.zone.len - c.live).sum();
    unused >= zones.zone_bytes()
}

/// Returns the best of these zones, as many as there is room for elsewhere.
pub(crate) fn batch(volume: &Volume, victims: &[Candidate]) -> Vec<Candidate> {
    let mut room = volume.zones().usage().usable / 2;
    room = room.saturating_sub(volume.space().promised_bytes());
    let most = room;
    let mut batch = Vec::new();
    for candidate in victims.iter().take(BATCH_ZONES) {
        // What is free in the zone itself is of no use.
        let needed = candidate.zone.len;
        if needed > room {
            break;
        }
        room -= needed;
        batch.push(*candidate);
    }
    debug_assert!(
        batch.len() <= BATCH_ZONES,
        "zones are evacuated a few at a time"
    );
    debug_assert!(
        batch.iter().map(|one| one.zone.len).sum::<u64>() <= most,
        "there is room elsewhere for all that is in them"
    );
    batch
}

/// Returns the free bytes in zones that are in use.
pub(crate) fn hole_bytes(zones: &Zones) -> u64 {
    let usage = zones.usage();
    debug_assert!(
        usage.zones_free_bytes <= usage.free,
        "free zones are a part of what is free"
    );
    usage.free - usage.zones_free_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_zone_goes_first_then_the_one_in_small_pieces() {
        let candidate = |number: u64, live, spans| Candidate {
            zone: Extent {
                addr: number * 1000,
                len: 1600,
            },
            live,
            spans,
        };
        let mut all = [
            candidate(1, 1550, 1),
            candidate(2, 800, 2),
            candidate(3, 100, 1),
            candidate(4, 810, 8),
        ];
        all.sort_by_key(weight);
        assert_eq!(all.map(|c| c.zone.addr / 1000), [3, 2, 4, 1]);
        assert!(is_victim(&all[2], 8) && !is_victim(&all[3], 8));
    }
}
