//! Zones in which nothing may be allocated, so that they do not fill again while they are emptied.
//!
//! - *Closed* zones are being evacuated. Their holes still count as usable: an allocation that
//!   finds space nowhere else opens them again ([`MapState::reopen`]), which ends the evacuation
//!   early.
//! - Zones behind the *fence* are to be cut off. Their holes are not usable, since reservations
//!   must fit into the other zones. Here, too, an allocation that finds space nowhere else wins.
//! - A *held* zone is free, at least in part, and is being discarded. That always ends soon, so an
//!   allocation waits for it.

use super::{Candidate, Extent, MapState, Zones, narrow};
use crate::VolumeError;
use std::collections::BTreeSet;
use stitch_base::ZoneId;
use stitch_base::sync::atomic::Ordering;

impl MapState {
    /// Opens closed and fenced zones. Returns false if there are none.
    pub(super) fn reopen(&mut self) -> bool {
        let is_any = self.fence.is_some() || !self.closed.is_empty();
        self.set_fence(None);
        self.set_closed(BTreeSet::new());
        debug_assert!(
            self.fence.is_none() && self.closed.is_empty(),
            "all are open"
        );
        is_any
    }

    fn set_fence(&mut self, fence: Option<u32>) {
        let count = narrow(self.zones.len() as u64);
        let first = self.fence.unwrap_or(count).min(fence.unwrap_or(count));
        debug_assert!(first <= count, "a fence stands in the volume");
        let zones: Vec<u32> = (first..count).collect();
        self.relist(&zones, |state| state.fence = fence);
    }

    fn set_closed(&mut self, closed: BTreeSet<u32>) {
        let zones: Vec<u32> = self.closed.union(&closed).copied().collect();
        self.relist(&zones, |state| state.closed = closed);
    }

    /// Changes whether these zones are listed.
    fn relist(&mut self, zones: &[u32], change: impl FnOnce(&mut Self)) {
        let before = self.free_bytes;
        zones.iter().for_each(|&zone| self.unlist(zone));
        change(self);
        zones.iter().for_each(|&zone| self.list(zone));
        let mut open = std::mem::take(&mut self.open);
        open.retain(|_, zone| self.is_listed(*zone));
        self.open = open;
        debug_assert_eq!(self.free_bytes, before, "what is set aside is still free");
    }
}

impl Zones {
    /// Returns the zones that are partly live and partly free, and not open for a stream, in order.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let state = self.state.lock();
        let is_open = |zone: u32| state.open.values().any(|&open| open == zone);
        let partly = (0u32..).zip(&state.zones).filter(|&(index, zone)| {
            let free = zone.free_bytes();
            free > 0 && free < zone.len() && state.is_listed(index) && !is_open(index)
        });
        partly
            .map(|(index, zone)| Candidate {
                zone: self.extent_of(ZoneId(index)),
                live: u64::from(zone.len() - zone.free_bytes()),
                spans: zone.span_count(),
            })
            .collect()
    }

    /// Returns those of [`Self::candidates`] that have no free extent of `run_bytes`.
    #[must_use]
    pub fn scattered(&self, run_bytes: u64) -> Vec<Candidate> {
        let all = self.candidates();
        let state = self.state.lock();
        let is_roomy = |candidate: &Candidate| {
            let zone = (candidate.zone.addr - self.zones_at) / self.zone_bytes;
            let zone = state.zones.get(narrow(zone) as usize);
            zone.is_some_and(|zone| u64::from(zone.largest_usable()) >= run_bytes)
        };
        all.into_iter().filter(|c| !is_roomy(c)).collect()
    }

    /// Closes the zones of these extents, and no others: nothing is allocated in them until they
    /// are opened, or no other space is left.
    pub fn close(&self, zones: &[Extent]) {
        let ids = zones.iter().filter_map(|extent| self.zone_of(extent.addr));
        let ids = ids.map(|zone| zone.0).collect();
        let mut state = self.state.lock();
        state.set_closed(ids);
    }

    /// Reports whether all zones of the last [`Self::close`] are still closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.state.lock().closed.is_empty()
    }

    /// Fences the zones that do not lie wholly in the first `zones_bytes`, if the live bytes,
    /// `promised` and `kept` fit into the others.
    pub(crate) fn fence(
        &self,
        zones_bytes: u64,
        promised: u64,
        kept: u64,
    ) -> Result<(), VolumeError> {
        let mut state = self.state.lock();
        let total = self.total_bytes();
        assert!(zones_bytes < total, "zones are cut off");
        assert!(state.fence.is_none(), "one at a time");
        let first = narrow(zones_bytes / self.zone_bytes);
        debug_assert!(
            (first as usize) < state.zones.len(),
            "a zone is behind the fence"
        );
        let live = total - state.free_bytes;
        let needed = live + promised + kept;
        debug_assert!(needed >= live, "sums of bytes fit 64 bits");
        if needed > u64::from(first) * self.zone_bytes {
            let zones = needed.div_ceil(self.zone_bytes);
            return Err(VolumeError::TooSmall {
                wanted_bytes: self.zones_at + zones_bytes,
                least_bytes: self.zones_at + zones * self.zone_bytes,
            });
        }
        state.set_fence(Some(first));
        Ok(())
    }

    /// Returns the number of allocated bytes behind the fence; `None` if it was lifted.
    pub(crate) fn fenced_live_bytes(&self) -> Option<u64> {
        let state = self.state.lock();
        let first = state.fence? as usize;
        let live = |zone: &super::Zone| u64::from(zone.len() - zone.free_bytes());
        Some(state.zones[first..].iter().map(live).sum())
    }

    /// Returns the extent behind the fence.
    #[must_use]
    pub fn fenced(&self) -> Option<Extent> {
        let first = self.state.lock().fence?;
        let offset = u64::from(first) * self.zone_bytes;
        debug_assert!(offset < self.total_bytes(), "a zone is behind the fence");
        Some(Extent {
            addr: self.zones_at + offset,
            len: self.total_bytes() - offset,
        })
    }

    /// Removes the fence.
    pub(crate) fn lift_fence(&self) {
        let mut state = self.state.lock();
        state.set_fence(None);
    }

    /// Cuts off everything after `zones_bytes`, which is free, and removes the fence.
    pub(crate) fn cut(&self, zones_bytes: u64) {
        let mut state = self.state.lock();
        assert!(state.fence.is_some(), "what is cut off was set aside");
        let count = narrow(zones_bytes.div_ceil(self.zone_bytes));
        while state.zones.len() > count as usize {
            let last = narrow(state.zones.len() as u64 - 1);
            state.unlist(last);
            let zone = state.zones.pop().expect("it was counted");
            assert_eq!(zone.free_bytes(), zone.len(), "what is cut off is free");
        }
        let last = u64::from(count - 1);
        debug_assert_eq!(state.zones.len(), count as usize, "all others were removed");
        let len = narrow(zones_bytes - last * self.zone_bytes);
        let is_cut = state.update(count - 1, |zone| zone.shorten(len));
        assert!(is_cut, "what is cut off is free");
        self.zones_bytes.store(zones_bytes, Ordering::Release);
        state.set_fence(None);
        state.next_zone = 0;
    }

    /// Adds space up to `zones_bytes`.
    pub(crate) fn grow(&self, zones_bytes: u64) {
        let mut state = self.state.lock();
        let before = self.total_bytes();
        assert!(zones_bytes >= before, "zones are added");
        let count = zones_bytes.div_ceil(self.zone_bytes);
        let len = |zone: u64| narrow(self.zone_bytes.min(zones_bytes - zone * self.zone_bytes));
        let last = state.zones.len() as u64 - 1;
        state.update(narrow(last), |zone| zone.lengthen(len(last)));
        for zone in last + 1..count {
            state.zones.push(super::Zone::new(len(zone)));
            state.list(narrow(zone));
        }
        debug_assert_eq!(state.zones.len() as u64, count, "all zones are there");
        self.zones_bytes.store(zones_bytes, Ordering::Release);
    }

    /// Holds the next free zone with undiscarded bytes, and returns its free extents.
    pub(crate) fn hold_dirty(&self) -> Option<Held<'_>> {
        let mut state = self.state.lock();
        let zone = *state.dirty.first()?;
        (state.held.is_none()).then(|| self.hold(&mut state, zone))
    }

    /// Holds a zone, if it exists and no zone is held.
    pub(crate) fn hold_zone(&self, zone: u32) -> Option<Held<'_>> {
        let mut state = self.state.lock();
        while state.held.is_some() {
            self.released.wait(&mut state);
        }
        let is_there = (zone as usize) < state.zones.len() && state.is_listed(zone);
        is_there.then(|| self.hold(&mut state, zone))
    }

    fn hold(&self, state: &mut MapState, zone: u32) -> Held<'_> {
        debug_assert!(state.held.is_none(), "one zone is held at a time");
        state.relist(&[zone], |state| state.held = Some(zone));
        debug_assert!(
            !state.is_listed(zone),
            "nothing is allocated in a held zone"
        );
        let at = self.zones_at + u64::from(zone) * self.zone_bytes;
        let runs = state.zones[zone as usize].free_runs().into_iter();
        let extent = |(start, len)| Extent {
            addr: at + u64::from(start),
            len: u64::from(len),
        };
        Held {
            zones: self,
            zone,
            free: runs.map(extent).collect(),
            is_told: false,
        }
    }
}

/// A held zone: nothing is allocated in it until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    zones: &'a Zones,
    zone: u32,
    /// Whole free pages.
    pub(crate) free: Vec<Extent>,
    /// True if all of its free space was discarded.
    pub(crate) is_told: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.zones.state.lock();
        assert_eq!(
            state.held,
            Some(self.zone),
            "what is held is let go of once"
        );
        state.unlist(self.zone);
        state.held = None;
        // Bytes freed meanwhile are discarded next time.
        let zone = &mut state.zones[self.zone as usize];
        let told: u64 = self.free.iter().map(|run| run.len).sum();
        debug_assert!(
            told <= u64::from(zone.usable_bytes()),
            "nothing was allocated meanwhile"
        );
        if self.is_told && told == u64::from(zone.usable_bytes()) {
            zone.clean();
        }
        state.list(self.zone);
        self.zones.released.notify_all();
    }
}
