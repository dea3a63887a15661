//! The holes of one zone, as a map from start to length. Offsets are in bytes from the zone's
//! start.

use super::lengths::HoleLengths;
use super::{GRANULE_BYTES, PAGE_BYTES, Piece};
use std::collections::BTreeMap;

const PAGE: u32 = PAGE_BYTES as u32;

/// The holes of one zone. A wholly free zone keeps no map, so that an empty volume costs little.
#[derive(Debug)]
pub(super) struct Zone {
    len: u32,
    free_bytes: u32,
    /// Free bytes in whole pages.
    usable_bytes: u32,
    /// Longest range of whole free pages.
    largest_usable: u32,
    /// Start to length; empty if the zone is wholly free or wholly live.
    holes: BTreeMap<u32, u32>,
    /// Numbers of holes by length in whole pages.
    lengths: HoleLengths,
    /// True if bytes were freed since the last discard.
    is_dirty: bool,
}

/// Returns the whole pages of a hole: start and length, which may be 0.
fn pages(start: u32, len: u32) -> (u32, u32) {
    let first = start.next_multiple_of(PAGE);
    let end = (start + len) / PAGE * PAGE;
    debug_assert!(
        first >= start && end <= start + len,
        "pages lie in the hole"
    );
    (first, end.saturating_sub(first))
}

impl Zone {
    pub(super) fn new(len: u32) -> Self {
        assert!(len.is_multiple_of(PAGE), "zones are whole pages");
        Self {
            len,
            free_bytes: len,
            usable_bytes: len,
            largest_usable: len,
            holes: BTreeMap::new(),
            lengths: HoleLengths::default(),
            is_dirty: false,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) const fn free_bytes(&self) -> u32 {
        self.free_bytes
    }

    pub(super) const fn usable_bytes(&self) -> u32 {
        self.usable_bytes
    }

    pub(super) const fn largest_usable(&self) -> u32 {
        self.largest_usable
    }

    /// The lengths of the holes. A wholly free zone counts none.
    pub(super) const fn lengths(&self) -> &HoleLengths {
        &self.lengths
    }

    /// The hole at or before `offset`.
    fn hole_before(&self, offset: u32) -> Option<(u32, u32)> {
        if self.holes.is_empty() && self.free_bytes == self.len {
            return Some((0, self.len));
        }
        debug_assert!(offset < self.len, "the offset lies in the zone");
        let mut before = self.holes.range(..=offset);
        before.next_back().map(|(&start, &len)| (start, len))
    }

    /// Reports whether every byte of a range is allocated.
    pub(super) fn is_live(&self, start: u32, len: u32) -> bool {
        debug_assert!(
            len > 0 && start + len <= self.len,
            "the range lies in the zone"
        );
        self.hole_before(start + len - 1)
            .is_none_or(|(hole, hole_len)| hole + hole_len <= start)
    }

    /// Allocates a range; call [`Self::refresh`] after the last change. Returns false, and changes
    /// nothing, if the range is not wholly free.
    pub(super) fn take(&mut self, start: u32, len: u32) -> bool {
        debug_assert!(len > 0, "a run is not empty");
        let Some((hole, hole_len)) = self.hole_before(start) else {
            return false;
        };
        let (end, hole_end) = (start + len, hole + hole_len);
        if end > hole_end {
            return false;
        }
        self.open_map();
        debug_assert!(
            hole <= start && start < hole_end,
            "the range begins in the hole"
        );
        self.remove_hole(hole, hole_len);
        if hole < start {
            self.insert_hole(hole, start - hole);
        }
        if end < hole_end {
            self.insert_hole(end, hole_end - end);
        }
        true
    }

    /// Allocates ranges in order of their starts, as [`Self::take`] does each. Stops at the first
    /// that is not wholly free, and returns it. For a wholly free zone the map of holes is built at
    /// once.
    pub(super) fn take_all<'a>(&mut self, pieces: &'a [Piece]) -> Option<&'a Piece> {
        let is_whole = self.free_bytes == self.len && self.holes.is_empty();
        if !is_whole {
            return pieces.iter().find(|p| !self.take(p.start, p.len));
        }
        let mut holes = Vec::with_capacity(pieces.len() + 1);
        let mut end = 0;
        for piece in pieces {
            if piece.start < end || piece.start + piece.len > self.len {
                return Some(piece);
            }
            if piece.start > end {
                holes.push((end, piece.start - end));
            }
            end = piece.start + piece.len;
        }
        if end < self.len {
            holes.push((end, self.len - end));
        }
        self.free_bytes = holes.iter().map(|&(_, len)| len).sum();
        debug_assert!(self.free_bytes <= self.len, "holes lie in the zone");
        let usable = || holes.iter().map(|&(start, len)| pages(start, len).1);
        self.usable_bytes = usable().sum();
        usable().for_each(|len| self.lengths.add(len / PAGE));
        self.holes = holes.into_iter().collect();
        None
    }

    /// Frees a range; call [`Self::refresh`] after the last change.
    pub(super) fn give(&mut self, start: u32, len: u32) {
        assert!(len > 0, "a run is not empty");
        assert!(start + len <= self.len, "a run lies in its zone");
        assert!(self.is_live(start, len), "freed twice");
        self.is_dirty = true;
        let (mut first, mut end) = (start, start + len);
        if let Some((hole, hole_len)) = self.hole_before(start)
            && hole + hole_len == start
        {
            first = hole;
            self.remove_hole(hole, hole_len);
        }
        if let Some(&hole_len) = self.holes.get(&end) {
            self.remove_hole(end, hole_len);
            end += hole_len;
        }
        debug_assert!(
            first <= start && start + len <= end,
            "the new hole holds the range"
        );
        self.insert_hole(first, end - first);
    }

    /// Adds the one hole of a wholly free zone to the map, before the zone changes.
    fn open_map(&mut self) {
        if self.holes.is_empty() && self.free_bytes == self.len {
            self.holes.insert(0, self.len);
            self.lengths.add(self.len / PAGE);
        }
    }

    fn remove_hole(&mut self, start: u32, len: u32) {
        let removed = self.holes.remove(&start);
        debug_assert_eq!(removed, Some(len), "the hole is there, with this length");
        debug_assert!(self.free_bytes >= len, "sums hold each hole");
        self.free_bytes -= len;
        self.usable_bytes -= pages(start, len).1;
        self.lengths.remove(pages(start, len).1 / PAGE);
    }

    fn insert_hole(&mut self, start: u32, len: u32) {
        debug_assert!(
            len > 0 && start + len <= self.len,
            "a hole lies in its zone"
        );
        let before = self.holes.insert(start, len);
        debug_assert_eq!(before, None, "no two holes begin at one offset");
        self.free_bytes += len;
        debug_assert!(self.free_bytes <= self.len, "no more is free than there is");
        self.usable_bytes += pages(start, len).1;
        self.lengths.add(pages(start, len).1 / PAGE);
    }

    /// Updates the longest range after changes.
    pub(super) fn refresh(&mut self) {
        if self.free_bytes == self.len {
            self.holes.clear();
            self.lengths = HoleLengths::default();
            self.largest_usable = self.len;
            return;
        }
        debug_assert!(self.free_bytes < self.len, "it is not wholly free");
        let runs = self.holes.iter().map(|(&start, &len)| pages(start, len).1);
        self.largest_usable = runs.max().unwrap_or(0);
    }

    /// Reports whether bytes were freed since the last discard.
    pub(super) const fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Records that all free space was discarded.
    pub(super) const fn clean(&mut self) {
        self.is_dirty = false;
    }

    /// Extends the zone; the added bytes are free.
    pub(super) fn lengthen(&mut self, len: u32) {
        assert!(len.is_multiple_of(PAGE), "zones are whole pages");
        assert!(len >= self.len, "a zone gets longer");
        let (before, was_free) = (self.len, self.free_bytes == self.len);
        self.len = len;
        if was_free {
            (self.free_bytes, self.usable_bytes) = (len, len);
        } else if len > before {
            let was_dirty = self.is_dirty;
            self.give(before, len - before);
            self.is_dirty = was_dirty;
        }
        self.refresh();
    }

    /// Shortens the zone. Returns false, and changes nothing, if bytes after its new end are live.
    pub(super) fn shorten(&mut self, len: u32) -> bool {
        assert!(len.is_multiple_of(PAGE), "zones are whole pages");
        assert!(len > 0 && len <= self.len, "a zone gets shorter");
        if len < self.len && !self.take(len, self.len - len) {
            return false;
        }
        self.len = len;
        self.refresh();
        debug_assert!(self.free_bytes <= self.len, "what was cut off was free");
        true
    }

    /// Returns the ranges of whole free pages, as start and length.
    pub(super) fn free_runs(&self) -> Vec<(u32, u32)> {
        if self.free_bytes == self.len {
            return vec![(0, self.len)];
        }
        let runs = self.holes.iter().map(|(&start, &len)| pages(start, len));
        runs.filter(|&(_, len)| len > 0).collect()
    }

    /// Returns the number of contiguous live ranges.
    pub(super) fn span_count(&self) -> u32 {
        if self.free_bytes == self.len {
            return 0;
        }
        let at_start = self.holes.contains_key(&0);
        let last = self.holes.last_key_value();
        let at_end = last.is_some_and(|(start, len)| start + len == self.len);
        let holes = u32::try_from(self.holes.len()).expect("fewer holes than bytes");
        debug_assert!(
            holes + 1 > u32::from(at_start) + u32::from(at_end),
            "something is live"
        );
        holes + 1 - u32::from(at_start) - u32::from(at_end)
    }

    /// Returns the whole free pages at the zone's end: start and length.
    pub(super) fn tail(&self) -> Option<(u32, u32)> {
        let (start, len) = self.hole_before(self.len - 1)?;
        debug_assert!(start + len <= self.len, "holes lie in the zone");
        (start + len == self.len).then(|| pages(start, len))
    }

    /// Returns the whole pages of the shortest hole that has `want` bytes, else of the longest.
    pub(super) fn best_hole(&self, want: u32) -> (u32, u32) {
        if self.free_bytes == self.len {
            return (0, self.len);
        }
        let runs = || self.holes.iter().map(|(&start, &len)| pages(start, len));
        runs()
            .filter(|&(_, len)| len >= want)
            .min_by_key(|&(start, len)| (len, start))
            .or_else(|| runs().max_by_key(|&(_, len)| len))
            .unwrap_or((0, 0))
    }

    /// Checks the holes against the sums.
    pub(super) fn check(&self) {
        if self.free_bytes == self.len {
            assert!(self.holes.is_empty(), "a free zone keeps no map");
            assert_eq!(self.lengths, HoleLengths::default(), "nor lengths");
            return;
        }
        let mut end_before = None;
        let (mut free, mut usable, mut largest) = (0, 0, 0);
        let mut lengths = HoleLengths::default();
        for (&start, &len) in &self.holes {
            assert!(len > 0, "holes are not empty");
            assert!(
                u64::from(start).is_multiple_of(GRANULE_BYTES),
                "holes are of granules"
            );
            assert!(
                end_before.is_none_or(|end| end < start),
                "holes do not touch"
            );
            assert!(start + len <= self.len, "holes lie in the zone");
            end_before = Some(start + len);
            free += len;
            usable += pages(start, len).1;
            largest = largest.max(pages(start, len).1);
            lengths.add(pages(start, len).1 / PAGE);
        }
        assert_eq!(self.lengths, lengths, "holes by length");
        assert_eq!(self.free_bytes, free, "free bytes");
        assert_eq!(self.usable_bytes, usable, "usable bytes");
        assert_eq!(self.largest_usable, largest, "longest usable run");
    }
}
