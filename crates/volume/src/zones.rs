//! Zones and the online-map, which knows the free bytes of the zones. It is in memory only, and is
//! rebuilt at every open from the extents of the version's tables.
//!
//! Space is accounted in granules of 512 bytes. Allocated extents start at multiples of 4 KiB and
//! lie in one zone. They never share a page with live data: the edges of a hole are rounded inward,
//! so bytes can be free and not usable until their neighbours are free too.
//!
//! An allocation comes from, in this order:
//! 1. the end of the stream's open zone;
//! 2. a wholly free zone, which becomes the stream's open zone; zones are taken in turn, and those
//!    that other streams have open come last;
//! 3. the zone whose longest hole is the shortest that suffices, or the longest hole of all: an
//!    allocation succeeds as long as there are holes.
//!
//! Nothing is allocated in zones that are to be emptied or discarded: the end of a shrinking
//! volume, zones being evacuated, a zone being discarded. See [`close`].
//!
//! Invariants:
//! - every byte is live or in exactly one hole, and no two holes touch;
//! - a byte is freed once: an assertion fails on a second free, or a free of bytes that were never
//!   allocated.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 3.2. Differs: extents of any length instead of slots of one length, since stitching leaves
//! holes.

mod close;
mod hole;
mod lengths;
mod map;
mod refusals;

use crate::VolumeError;
pub(crate) use crate::zones::close::Held;
use crate::zones::hole::Zone;
use crate::zones::lengths::Sums;
use crate::zones::map::MapState;
pub use crate::zones::refusals::Refusals;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use stitch_base::ZoneId;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_format::superblock::Areas;

/// Space is accounted in multiples of this, in bytes.
pub const GRANULE_BYTES: u64 = 512;
/// Allocations start at multiples of this, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// An extent: contiguous bytes on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset on the device, in bytes.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// Offset after the extent.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.addr.saturating_add(self.len)
    }
}

/// A write stream: its allocations lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u8);

/// A zone that is partly live, as a candidate for evacuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The extent of the zone.
    pub zone: Extent,
    /// Allocated bytes.
    pub live: u64,
    /// Number of contiguous live ranges.
    pub spans: u32,
}

/// How full the zones are, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of all zones.
    pub total: u64,
    /// Allocated bytes.
    pub live: u64,
    /// Bytes that are not allocated.
    pub free: u64,
    /// Free bytes in whole pages, which can be allocated.
    pub usable: u64,
    /// Longest extent that can be allocated.
    pub largest_free: u64,
    /// Zones without a live byte.
    pub zones_free: u64,
    /// Bytes of zones without a live byte.
    pub zones_free_bytes: u64,
    /// All zones.
    pub zones: u64,
}

/// The zones of a volume and the online-map.
#[derive(Debug)]
pub struct Zones {
    zones_at: u64,
    /// Changes with `state` held.
    zones_bytes: AtomicU64,
    zone_bytes: u64,
    state: Mutex<MapState>,
    /// Signals that a zone is no longer held.
    released: Condvar,
    /// The allocations that a simulation refuses.
    refusals: OnceLock<Arc<Refusals>>,
}

/// A part of an extent that lies in one zone, as offsets in it.
#[derive(Debug)]
struct Piece {
    zone: u32,
    start: u32,
    len: u32,
}

/// Groups pieces by zone, in order of zones and offsets.
fn by_zone(pieces: &mut [Piece]) -> impl Iterator<Item = (u32, &[Piece])> {
    pieces.sort_unstable_by_key(|piece| (piece.zone, piece.start));
    pieces
        .chunk_by(|a, b| a.zone == b.zone)
        .map(|chunk| (chunk[0].zone, chunk))
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("offsets in a zone fit 32 bits")
}

impl Zones {
    pub(crate) fn new(areas: &Areas) -> Self {
        assert!(
            areas.zone_bytes.is_multiple_of(PAGE_BYTES),
            "zones are whole pages"
        );
        assert!(areas.zones_bytes > 0, "a volume has zones");
        let count = areas.zones_bytes.div_ceil(areas.zone_bytes);
        let zones: Vec<Zone> = (0..count)
            .map(|zone| {
                let at = zone * areas.zone_bytes;
                Zone::new(narrow(areas.zone_bytes.min(areas.zones_bytes - at)))
            })
            .collect();
        let count = u32::try_from(count).expect("the areas bound the number of zones");
        let state = MapState {
            zones,
            free_zones: (0..count).collect(),
            by_hole: BTreeSet::new(),
            lengths: Sums::default(),
            open: BTreeMap::new(),
            next_zone: 0,
            free_bytes: areas.zones_bytes,
            usable_bytes: areas.zones_bytes,
            fence: None,
            closed: BTreeSet::new(),
            held: None,
            dirty: BTreeSet::new(),
        };
        Self {
            zones_at: areas.zones_at,
            zones_bytes: AtomicU64::new(areas.zones_bytes),
            zone_bytes: areas.zone_bytes,
            state: Mutex::new(state),
            released: Condvar::new(),
            refusals: OnceLock::new(),
        }
    }

    /// Refuses some allocations and reservations from now on, for simulations. Call it once, before
    /// the first of them.
    ///
    /// # Panics
    /// If it is called again.
    pub fn refuse_by(&self, refusals: Arc<Refusals>) {
        assert!(self.refusals.set(refusals).is_ok(), "called once");
    }

    /// Reports whether the current allocation must be refused.
    fn is_refused(&self) -> bool {
        let refusals = self.refusals.get();
        refusals.is_some_and(|refusals| refusals.refuse())
    }

    /// Reports whether the current reservation must be refused.
    pub(crate) fn is_promise_refused(&self) -> bool {
        let refusals = self.refusals.get();
        refusals.is_some_and(|refusals| refusals.refuse_promise())
    }

    /// Returns the length of the longest extent that an allocation can return.
    #[must_use]
    pub const fn zone_bytes(&self) -> u64 {
        self.zone_bytes
    }

    /// Returns the zone of a byte of the device; `None` if it is in none.
    #[must_use]
    pub fn zone_of(&self, addr: u64) -> Option<ZoneId> {
        let offset = addr.checked_sub(self.zones_at)?;
        (offset < self.total_bytes()).then(|| ZoneId(narrow(offset / self.zone_bytes)))
    }

    /// Marks the extents of tables as live. Called at open, before any allocation.
    ///
    /// # Errors
    /// [`VolumeError::Corrupt`] if an extent lies outside the zones, is not aligned, or overlaps
    /// another: the version cannot be trusted.
    pub fn adopt(&self, extents: &[Extent]) -> Result<(), VolumeError> {
        let corrupt = |at, len, expected: &str| VolumeError::Corrupt {
            what: "version".to_owned(),
            at,
            expected: expected.to_owned(),
            found: format!("an extent of {len} bytes"),
        };
        let mut all = Vec::new();
        for &Extent { addr, len } in extents {
            let pieces = self
                .pieces(Extent { addr, len })
                .ok_or_else(|| corrupt(addr, len, "an extent of sectors within the zones"))?;
            all.extend(pieces);
        }
        let mut state = self.state.lock();
        for (zone, pieces) in by_zone(&mut all) {
            debug_assert!(
                state.is_listed(zone),
                "no zone is set aside before the first allocation"
            );
            let twice = state.update(zone, |zone| zone.take_all(pieces));
            if let Some(piece) = twice {
                let offset = u64::from(zone) * self.zone_bytes + u64::from(piece.start);
                let (addr, len) = (self.zones_at + offset, u64::from(piece.len));
                return Err(corrupt(addr, len, "extents that do not overlap"));
            }
        }
        Ok(())
    }

    /// Allocates an extent of at least `min_bytes` and at most `want_bytes`, both rounded up to 512
    /// bytes. It starts at a multiple of 4 KiB and lies in one zone.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if no hole is long enough.
    ///
    /// # Panics
    /// If `min_bytes` is 0 or more than `want_bytes`.
    pub fn allocate(
        &self,
        want_bytes: u64,
        min_bytes: u64,
        stream: Stream,
    ) -> Result<Extent, VolumeError> {
        assert!(min_bytes > 0, "an allocation is not empty");
        assert!(min_bytes <= want_bytes, "the least is not above the most");
        let min = min_bytes.next_multiple_of(GRANULE_BYTES);
        let want = want_bytes
            .next_multiple_of(GRANULE_BYTES)
            .min(self.zone_bytes);
        if self.is_refused() {
            return Err(VolumeError::NoSpace {
                wanted_bytes: min,
                free_bytes: 0,
            });
        }
        let mut state = self.state.lock();
        let found = loop {
            if min > self.zone_bytes {
                break None;
            }
            match state.find(narrow(want), narrow(min), stream) {
                // An evacuation can wait; a writer cannot.
                None if state.held.is_some() => self.released.wait(&mut state),
                None if state.reopen() => {}
                found => break found,
            }
        };
        let Some((zone, start, len)) = found else {
            return Err(VolumeError::NoSpace {
                wanted_bytes: min,
                free_bytes: state.largest_free(),
            });
        };
        assert!(
            u64::from(start).is_multiple_of(PAGE_BYTES),
            "pages are not shared"
        );
        let taken = state.update(zone, |z| z.take(start, len));
        assert!(taken, "what was found is free");
        let addr = self.zones_at + u64::from(zone) * self.zone_bytes + u64::from(start);
        let len = u64::from(len);
        debug_assert!(len >= min && len <= want.max(min), "between least and most");
        debug_assert!(
            len.is_multiple_of(GRANULE_BYTES),
            "space is counted in granules"
        );
        debug_assert!(
            u64::from(start) + len <= self.zone_bytes,
            "extents lie in one zone"
        );
        Ok(Extent { addr, len })
    }

    /// Allocates the first `count` adjacent free zones. Returns `None` if there are none.
    ///
    /// # Panics
    /// If `count` is 0.
    pub(crate) fn allocate_zones(&self, count: u64) -> Option<Extent> {
        assert!(count > 0, "an allocation is not empty");
        if self.is_refused() {
            return None;
        }
        let mut state = self.state.lock();
        while state.held.is_some() {
            self.released.wait(&mut state);
        }
        let first = state.free_row(count, narrow(self.zone_bytes))?;
        let end = first + narrow(count);
        assert!(
            end as usize <= state.zones.len(),
            "the row lies in the volume"
        );
        for zone in first..end {
            debug_assert!(state.is_listed(zone), "space may be allocated there");
            let taken = state.update(zone, |z| z.take(0, z.len()));
            assert!(taken, "what was found is free");
        }
        state.open.retain(|_, open| !(first..end).contains(open));
        Some(Extent {
            addr: self.zones_at + u64::from(first) * self.zone_bytes,
            len: count * self.zone_bytes,
        })
    }

    /// Allocates from holes only, from the shortest that suffices: for blocks that need not lie
    /// together, so that long extents are left to others. Returns `None` if no hole is long enough.
    ///
    /// # Panics
    /// As for [`Self::allocate`].
    pub fn allocate_hole(&self, want_bytes: u64, min_bytes: u64) -> Option<Extent> {
        assert!(min_bytes > 0, "an allocation is not empty");
        assert!(min_bytes <= want_bytes, "the least is not above the most");
        let min = min_bytes.next_multiple_of(GRANULE_BYTES);
        let want = want_bytes
            .next_multiple_of(GRANULE_BYTES)
            .min(self.zone_bytes);
        if self.is_refused() {
            return None;
        }
        let mut state = self.state.lock();
        let least = u32::try_from(min).ok()?;
        let is_open = |zone: u32| state.open.values().any(|&open| open == zone);
        let fits = state.by_hole.range((least, 0)..);
        let zone = fits.map(|&(_, zone)| zone).find(|&zone| !is_open(zone))?;
        let (start, len) = state.zones[zone as usize].best_hole(narrow(want));
        let len = len.min(narrow(want));
        assert!(u64::from(len) >= min, "the longest hole is long enough");
        debug_assert!(
            u64::from(start).is_multiple_of(PAGE_BYTES),
            "pages are not shared"
        );
        let taken = state.update(zone, |z| z.take(start, len));
        assert!(taken, "what was found is free");
        let addr = self.zones_at + u64::from(zone) * self.zone_bytes + u64::from(start);
        Some(Extent {
            addr,
            len: u64::from(len),
        })
    }

    /// Frees the unused tail of an allocation that nothing refers to yet.
    ///
    /// # Panics
    /// As [`Self::free`].
    pub fn give_back(&self, tail: Extent) {
        debug_assert!(
            tail.len.is_multiple_of(GRANULE_BYTES),
            "space is counted in granules"
        );
        if tail.len > 0 {
            self.free(&[tail]);
        }
    }

    /// Frees extents of a removed table. Call it only after the edit that removed it is durable and
    /// no reader holds the old version: freed bytes may be overwritten at once.
    ///
    /// # Panics
    /// If any byte of them is free already, or lies outside the zones.
    pub fn free(&self, extents: &[Extent]) {
        let mut all = Vec::new();
        for &extent in extents {
            all.extend(self.pieces(extent).expect("what is freed was handed out"));
        }
        let mut state = self.state.lock();
        let before = state.free_bytes;
        let given: u64 = all.iter().map(|piece| u64::from(piece.len)).sum();
        for (zone, pieces) in by_zone(&mut all) {
            state.update(zone, |zone| {
                for piece in pieces {
                    zone.give(piece.start, piece.len);
                }
            });
        }
        assert_eq!(state.free_bytes, before + given, "each byte is freed once");
    }

    /// Returns the number of allocated bytes of a zone.
    ///
    /// # Panics
    /// If there is no such zone.
    #[must_use]
    pub fn live_bytes(&self, zone: ZoneId) -> u64 {
        let state = self.state.lock();
        let zone = &state.zones[zone.0 as usize];
        debug_assert!(
            zone.free_bytes() <= zone.len(),
            "no more is free than there is"
        );
        u64::from(zone.len() - zone.free_bytes())
    }

    /// Returns the extent of a zone.
    ///
    /// # Panics
    /// If there is no such zone.
    #[must_use]
    pub fn extent_of(&self, zone: ZoneId) -> Extent {
        let offset = u64::from(zone.0) * self.zone_bytes;
        let zones_bytes = self.total_bytes();
        assert!(offset < zones_bytes, "no such zone");
        Extent {
            addr: self.zones_at + offset,
            len: self.zone_bytes.min(zones_bytes - offset),
        }
    }

    /// Number of zones.
    #[must_use]
    pub fn count(&self) -> u32 {
        narrow(self.total_bytes().div_ceil(self.zone_bytes))
    }

    /// Returns how full the zones are.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.state.lock();
        let total = self.total_bytes();
        debug_assert!(state.free_bytes <= total, "no more is free than there is");
        debug_assert!(
            state.usable_bytes <= state.free_bytes,
            "whole pages are a part of the free"
        );
        debug_assert!(
            state.free_zones.len() <= state.zones.len(),
            "free zones are zones"
        );
        Usage {
            total,
            live: total - state.free_bytes,
            free: state.free_bytes,
            usable: state.usable_bytes,
            largest_free: state.largest_free(),
            zones_free: state.free_zones.len() as u64,
            zones_free_bytes: state.free_zone_bytes(self.zone_bytes),
            zones: state.zones.len() as u64,
        }
    }

    /// Reports whether every byte of an extent is allocated.
    #[must_use]
    pub fn is_live(&self, extent: Extent) -> bool {
        let state = self.state.lock();
        self.pieces(extent).is_some_and(|mut pieces| {
            pieces.all(|p| state.zones[p.zone as usize].is_live(p.start, p.len))
        })
    }

    pub(crate) fn usable_bytes(&self) -> u64 {
        self.state.lock().usable_bytes
    }

    /// Length of all zones, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.zones_bytes.load(Ordering::Acquire)
    }

    /// Cuts an extent at zone borders; `None` if it is empty, not aligned or not in the zones.
    fn pieces(&self, extent: Extent) -> Option<impl Iterator<Item = Piece> + use<>> {
        let start = extent.addr.checked_sub(self.zones_at)?;
        let end = start.checked_add(extent.len)?;
        let is_aligned = start.is_multiple_of(GRANULE_BYTES) && end.is_multiple_of(GRANULE_BYTES);
        if extent.len == 0 || end > self.total_bytes() || !is_aligned {
            return None;
        }
        let zone_bytes = self.zone_bytes;
        let mut at = start;
        Some(std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let zone = at / zone_bytes;
            let stop = end.min((zone + 1) * zone_bytes);
            debug_assert!(at < stop && stop <= end, "each piece is a part of the rest");
            let piece = Piece {
                zone: narrow(zone),
                start: narrow(at % zone_bytes),
                len: narrow(stop - at),
            };
            at = stop;
            Some(piece)
        }))
    }

    /// Checks the whole map against its sums and indexes.
    ///
    /// # Panics
    /// If they differ.
    pub fn check(&self) {
        let state = self.state.lock();
        let mut free = 0;
        let mut usable = 0;
        let mut lengths = Sums::default();
        for (index, zone) in (0u32..).zip(&state.zones) {
            zone.check();
            free += u64::from(zone.free_bytes());
            if !state.is_fenced(index) {
                usable += u64::from(zone.usable_bytes());
            }
            let is_listed = state.is_listed(index);
            let is_free = zone.free_bytes() == zone.len();
            let is_found = state.free_zones.contains(&index);
            assert_eq!(is_found, is_free && is_listed, "free zones");
            let largest = zone.largest_usable();
            let is_indexed = state.by_hole.contains(&(largest, index));
            let has_hole = !is_free && largest > 0;
            assert_eq!(is_indexed, has_hole && is_listed, "zones by hole");
            if is_listed {
                lengths.add(zone.lengths());
            }
            let is_told = !state.dirty.contains(&index);
            assert_eq!(is_told, !(is_found && zone.is_dirty()), "dirty zones");
        }
        assert_eq!(state.free_bytes, free, "the sum of the free bytes");
        assert_eq!(state.usable_bytes, usable, "the sum of the usable bytes");
        assert_eq!(state.lengths, lengths, "holes by length");
    }
}

#[cfg(test)]
mod tests;
