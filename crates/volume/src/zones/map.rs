//! The state of the online-map: the zones, and indexes of them by what can be allocated there.
//!
//! Invariant: sums and indexes agree with the zones. So a zone is taken out of them before it
//! changes, and put back after it ([`MapState::update`]).

use super::hole::Zone;
use super::lengths::Sums;
use super::{Stream, narrow};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct MapState {
    pub(super) zones: Vec<Zone>,
    /// Zones without a live byte.
    pub(super) free_zones: BTreeSet<u32>,
    /// Other zones by their longest usable hole, if any.
    pub(super) by_hole: BTreeSet<(u32, u32)>,
    /// How long the holes of these zones are.
    pub(super) lengths: Sums,
    /// Zone to which a stream appends.
    pub(super) open: BTreeMap<Stream, u32>,
    /// Zone at which the search for a free zone continues.
    pub(super) next_zone: u32,
    /// Free bytes of all zones.
    pub(super) free_bytes: u64,
    /// Free bytes in whole pages, of zones before the fence.
    pub(super) usable_bytes: u64,
    /// First of the zones that are to be cut off.
    pub(super) fence: Option<u32>,
    /// Zones that are being evacuated.
    pub(super) closed: BTreeSet<u32>,
    /// The zone that is being discarded.
    pub(super) held: Option<u32>,
    /// Free zones with bytes freed since their last discard.
    pub(super) dirty: BTreeSet<u32>,
}

impl MapState {
    /// Changes one zone and updates the sums and indexes.
    pub(super) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        self.unlist(index);
        let zone = &mut self.zones[index as usize];
        let out = change(zone);
        zone.refresh();
        debug_assert!(
            zone.usable_bytes() <= zone.free_bytes(),
            "whole pages are a part"
        );
        debug_assert!(
            zone.largest_usable() <= zone.usable_bytes(),
            "the longest is one of them"
        );
        self.list(index);
        out
    }

    /// Reports whether the zone is to be cut off.
    pub(super) fn is_fenced(&self, index: u32) -> bool {
        self.fence.is_some_and(|fence| index >= fence)
    }

    /// Reports whether space may be allocated in the zone.
    pub(super) fn is_listed(&self, index: u32) -> bool {
        !self.is_fenced(index) && self.held != Some(index) && !self.closed.contains(&index)
    }

    /// Takes a zone out of the sums and indexes, before it changes.
    pub(super) fn unlist(&mut self, index: u32) {
        let is_listed = self.is_listed(index);
        let zone = &self.zones[index as usize];
        assert!(
            self.free_bytes >= u64::from(zone.free_bytes()),
            "sums hold each zone"
        );
        debug_assert!(
            is_listed || !self.free_zones.contains(&index),
            "a zone that is set aside is in no index"
        );
        if is_listed {
            self.lengths.take(zone.lengths());
        }
        self.free_bytes -= u64::from(zone.free_bytes());
        if !self.is_fenced(index) {
            self.usable_bytes -= u64::from(zone.usable_bytes());
        }
        self.free_zones.remove(&index);
        self.dirty.remove(&index);
        self.by_hole.remove(&(zone.largest_usable(), index));
    }

    /// Puts a zone into the sums and indexes, after it changed.
    pub(super) fn list(&mut self, index: u32) {
        let zone = &self.zones[index as usize];
        debug_assert!(!self.free_zones.contains(&index), "a zone is listed once");
        debug_assert!(!self.dirty.contains(&index), "a zone is listed once");
        self.free_bytes += u64::from(zone.free_bytes());
        if !self.is_fenced(index) {
            self.usable_bytes += u64::from(zone.usable_bytes());
        }
        if !self.is_listed(index) {
            return;
        }
        self.lengths.add(zone.lengths());
        if zone.free_bytes() == zone.len() {
            self.free_zones.insert(index);
            if zone.is_dirty() {
                self.dirty.insert(index);
            }
        } else if zone.largest_usable() > 0 {
            self.by_hole.insert((zone.largest_usable(), index));
        }
    }

    pub(super) fn free_zone_bytes(&self, zone_bytes: u64) -> u64 {
        let whole = self.free_zones.len() as u64 * zone_bytes;
        let last = self.zones.last().expect("a volume has zones");
        // The last zone may be short.
        let is_last_free = self
            .free_zones
            .contains(&narrow(self.zones.len() as u64 - 1));
        let short = zone_bytes - u64::from(last.len());
        debug_assert!(short < zone_bytes, "the last zone is not empty");
        debug_assert!(whole >= short || !is_last_free, "a free zone was counted");
        whole - if is_last_free { short } else { 0 }
    }

    pub(super) fn largest_free(&self) -> u64 {
        let whole = self
            .free_zones
            .first()
            .map(|&z| self.zones[z as usize].len());
        let hole = self.by_hole.last().map(|&(len, _)| len);
        let largest = u64::from(whole.max(hole).unwrap_or(0));
        debug_assert!(largest <= self.free_bytes, "it is a part of what is free");
        largest
    }

    /// Returns zone, start and length of the extent to allocate.
    pub(super) fn find(&mut self, want: u32, min: u32, stream: Stream) -> Option<(u32, u32, u32)> {
        debug_assert!(0 < min && min <= want, "an allocation is not empty");
        if let Some(&zone) = self.open.get(&stream)
            && let Some((start, len)) = self.zones[zone as usize].tail()
            && len >= min
        {
            return Some((zone, start, len.min(want)));
        }
        self.open.remove(&stream);
        if let Some(zone) = self.next_free_zone(min) {
            // Another stream may have opened the zone, and freed all that it wrote there.
            self.open.retain(|_, open| *open != zone);
            self.open.insert(stream, zone);
            self.next_zone = zone + 1;
            let len = self.zones[zone as usize].len();
            debug_assert_eq!(
                self.zones[zone as usize].free_bytes(),
                len,
                "the zone is free"
            );
            debug_assert!(len >= min, "it is long enough");
            return Some((zone, 0, len.min(want)));
        }
        let zone = self.zone_with_hole(want, min)?;
        debug_assert!(self.is_listed(zone), "space may be allocated there");
        let (start, len) = self.zones[zone as usize].best_hole(want);
        (len >= min).then(|| (zone, start, len.min(want)))
    }

    /// Returns the first of `count` adjacent free zones of full length.
    pub(super) fn free_row(&self, count: u64, zone_bytes: u32) -> Option<u32> {
        let is_whole = |zone: u32| self.zones[zone as usize].len() == zone_bytes;
        debug_assert!(count > 0, "a row is not empty");
        let mut row = 0;
        let mut next = 0;
        for &zone in self.free_zones.iter().filter(|&&zone| is_whole(zone)) {
            row = if zone == next && row > 0 { row + 1 } else { 1 };
            next = zone + 1;
            if row == count {
                return Some(next - narrow(count));
            }
        }
        None
    }

    pub(super) fn next_free_zone(&self, min: u32) -> Option<u32> {
        let later = self.free_zones.range(self.next_zone..);
        let earlier = self.free_zones.range(..self.next_zone);
        let is_long = |&zone: &u32| self.zones[zone as usize].len() >= min;
        let is_open = |zone: u32| self.open.values().any(|&open| open == zone);
        let mut all = later.chain(earlier).copied().filter(is_long);
        let any = all.clone().next();
        let found = all.find(|&zone| !is_open(zone)).or(any);
        debug_assert!(
            found.is_none_or(|zone| self.is_listed(zone)),
            "space may be allocated there"
        );
        found
    }

    /// Returns the zone whose longest hole is the shortest that suffices, else the one with the
    /// longest. Open zones of other streams come last.
    pub(super) fn zone_with_hole(&self, want: u32, min: u32) -> Option<u32> {
        let is_open = |zone: u32| self.open.values().any(|&open| open == zone);
        let enough = || self.by_hole.range((want, 0)..).map(|&(_, zone)| zone);
        let longest = || {
            let long = self.by_hole.range((min, 0)..).rev();
            long.map(|&(_, zone)| zone)
        };
        enough()
            .find(|&z| !is_open(z))
            .or_else(|| longest().find(|&z| !is_open(z)))
            .or_else(|| longest().next())
    }
}
