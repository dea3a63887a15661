//! Defragmentation: zones with holes are evacuated, so that the holes become free zones.
//!
//! 1. What was deleted is given back first: it need not be moved.
//! 2. Zones with holes are weighed: by unused space, in sixteenths of a zone, and then by the
//!    number of live spans, since short ones find a place more easily.
//! 3. The best few are closed, so that nothing new goes into them, and taken apart table by table:
//!    their blocks are copied, all others stitched. A copy goes to a free zone, or to the holes of
//!    zones that stay.
//! 4. Before and after, values are brought into key order ([`crate::key_order`]): that empties
//!    zones, and needs free ones.
//! 5. Each zone is tried once, and nothing is moved that could not free a zone, so that it ends.
//!
//! In the background, one zone at a time while the store is idle, and only while much is in holes;
//! the device rests in between, so that it is busy with this for a quarter of the time at most.
//!
//! Paper: VT-trees, FAST 2013, section 3.1 (defragmentation). Differs: online.

use crate::VtError;
use crate::compaction::Pressure;
use crate::key_order::StepRules;
use crate::member::Member;
use crate::victims::{
    MIN_HOLE_PART, MIN_HOLE_PART_IDLE, MIN_HOLE_PART_ROOM, batch, can_free_any, candidates,
    hole_bytes, run_of,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Candidate, Extent, Zones};

/// Most times that a defragmentation orders values and evacuates zones in turn.
const ROUNDS_MAX: usize = 4;
/// In the background: while more than one part in this many of the volume is in holes.
const HOLES_PART: u64 = 8;
/// In the background: rest for this many times as long as a step took.
const REST_TIMES: u32 = 3;

/// Most bytes that one step of a `defrag` moves. As a rule, a table has no more.
const ORDER_STEP_BYTES: u64 = 64 << 20;

/// Called with bytes done and bytes to do; false ends the work early.
pub type Watch<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// What a defragmentation has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragged {
    /// Bytes that were copied.
    pub moved_bytes: u64,
    /// Of these, bytes written to bring values into key order.
    pub ordered_bytes: u64,
    /// Bytes of zones that are free now and were not.
    pub freed_bytes: u64,
    /// Bytes in holes of zones in use, before.
    pub holes_before_bytes: u64,
    /// The same, after.
    pub holes_after_bytes: u64,
    /// True if it was ended early.
    pub is_stopped: bool,
}

/// Returns the sum of a counter over some members.
fn sum_of(members: &[Arc<Member>], of: impl Fn(&Member) -> u64) -> u64 {
    members.iter().map(|member| of(member)).sum()
}

/// Closed zones, which are opened again when this is dropped.
struct Closed<'a>(&'a Zones);

impl<'a> Closed<'a> {
    fn new(zones: &'a Zones, which: &[Extent]) -> Self {
        debug_assert!(!which.is_empty(), "zones are closed to empty them");
        zones.close(which);
        Self(zones)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.close(&[]);
    }
}

impl Member {
    pub(crate) fn defrag(&self, watch: &mut Watch<'_>) -> Result<Defragged, VtError> {
        let _one_at_a_time = self.pool.evacuation.lock();
        self.gate.check_writable()?;
        // Those of now, to the end: one that is removed meanwhile has still moved what it has.
        let members = self.pool.all();
        let evacuated = || sum_of(&members, |member| member.counters.evacuated_bytes.get());
        let ordered = || sum_of(&members, |member| member.counters.ordered_bytes.get());
        let (evacuated_before, ordered_before) = (evacuated(), ordered());
        let mut out = Defragged {
            holes_before_bytes: hole_bytes(self.volume.zones()),
            ..Defragged::default()
        };
        let free_before = self.volume.zones().usage().zones_free_bytes;
        out.is_stopped = !self.give_back(watch)? || !self.tidy_up(watch)?;
        out.ordered_bytes = ordered() - ordered_before;
        out.moved_bytes = evacuated() - evacuated_before + out.ordered_bytes;
        out.freed_bytes = self.volume.zones().usage().zones_free_bytes;
        out.freed_bytes = out.freed_bytes.saturating_sub(free_before);
        out.holes_after_bytes = hole_bytes(self.volume.zones());
        Ok(out)
    }

    /// Does the compactions that give back what was deleted. Returns false if it was ended early.
    pub(crate) fn give_back(&self, watch: &mut Watch<'_>) -> Result<bool, VtError> {
        for store in self.with_others() {
            self.told(&store, store.write_all_out())?;
            store.compactor.forget_avoided();
            loop {
                if !watch(0, 1) {
                    return Ok(false);
                }
                if !self.told(&store, store.compactor.compact_one(Pressure::Idle))? {
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Brings values into key order and evacuates zones in turn, since each makes room for the
    /// other. Returns false if it was ended early.
    fn tidy_up(&self, watch: &mut Watch<'_>) -> Result<bool, VtError> {
        const {
            assert!(
                ROUNDS_MAX > 1,
                "values are ordered in the room that was made"
            )
        };
        let mut tried = BTreeSet::new();
        for round in 0..ROUNDS_MAX {
            let before = self.all_ordered_bytes();
            if !self.order_all(watch)? {
                return Ok(false);
            }
            if round > 0 && self.all_ordered_bytes() == before {
                break;
            }
            if !self.evacuate_untried(&mut tried, watch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Brings the values of all stores into key order, as far as there is room. Returns false if
    /// `watch` ended it.
    ///
    /// # Errors
    /// As [`Compactor::compact_one`](crate::compaction::Compactor::compact_one).
    fn order_all(&self, watch: &mut Watch<'_>) -> Result<bool, VtError> {
        let rules = StepRules {
            bytes_max: ORDER_STEP_BYTES,
            is_worth: &|_, _| true,
        };
        // Others may scatter as much meanwhile.
        let most = self.volume.zones().usage().live.saturating_mul(2);
        let mut done = 0;
        for store in self.with_others() {
            while done <= most {
                while self.told(&store, store.compactor.compact_one(Pressure::Order))? {
                    if !watch(done, done + 1) {
                        return Ok(false);
                    }
                }
                store.key_order.measure(usize::MAX);
                let left = store.key_order.scattered_bytes();
                if left > 0 && !watch(done, done + left) {
                    return Ok(false);
                }
                let moved = self.told(&store, store.key_order.order_one(rules))?;
                if moved == 0 {
                    break;
                }
                done += moved;
            }
        }
        Ok(true)
    }

    /// Bytes that all stores of the volume wrote to bring values into key order.
    fn all_ordered_bytes(&self) -> u64 {
        self.pool.sum_of(|store| store.counters.ordered_bytes.get())
    }

    /// Evacuates every zone that is worth it and was not tried yet. Returns false if it was ended
    /// early.
    pub(crate) fn evacuate_untried(
        &self,
        tried: &mut BTreeSet<Extent>,
        watch: &mut Watch<'_>,
    ) -> Result<bool, VtError> {
        let mut done = 0;
        loop {
            let victims = candidates(self.volume.zones(), MIN_HOLE_PART, tried);
            let left: u64 = victims.iter().map(|candidate| candidate.live).sum();
            let batch = batch(&self.volume, &victims);
            if batch.is_empty() || !can_free_any(self.volume.zones(), &victims) {
                return Ok(true);
            }
            debug_assert!(
                batch.iter().all(|victim| !tried.contains(&victim.zone)),
                "a zone is tried once"
            );
            tried.extend(batch.iter().map(|candidate| candidate.zone));
            let live: u64 = batch.iter().map(|candidate| candidate.live).sum();
            debug_assert!(batch.len() <= victims.len(), "a batch is of the victims");
            debug_assert!(live <= left, "a batch is a part of all victims");
            if !self.evacuate(&batch, true, &mut || watch(done, done + left))? {
                return Ok(false);
            }
            done += live;
        }
    }

    /// Evacuates the best zone that was not tried yet, for a commit that waits for room: also one
    /// of which little is unused. Returns false if there is none.
    pub(crate) fn evacuate_best(&self, tried: &mut BTreeSet<Extent>) -> Result<bool, VtError> {
        let _one_at_a_time = self.pool.evacuation.lock();
        let victims = candidates(self.volume.zones(), MIN_HOLE_PART_ROOM, tried);
        let usable = self.volume.zones().usage().usable;
        // What is free in the zone itself is of no use.
        let has_place = |c: &&Candidate| usable.saturating_sub(c.zone.len - c.live) >= c.live;
        let Some(best) = victims.iter().find(has_place) else {
            return Ok(false);
        };
        debug_assert!(!tried.contains(&best.zone), "a zone is tried once");
        debug_assert!(best.live <= best.zone.len, "what is live is in the zone");
        tried.insert(best.zone);
        self.evacuate(&[*best], true, &mut || true)
    }

    /// Takes all tables, of any store on the volume, out of these zones. Unless `waits`, those of
    /// other stores that compact now stay. Returns false if `goes_on` does.
    fn evacuate(
        &self,
        batch: &[Candidate],
        waits: bool,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, VtError> {
        debug_assert!(!batch.is_empty(), "something is evacuated");
        debug_assert!(
            batch.iter().all(|victim| victim.live <= victim.zone.len),
            "what is live is in the zone"
        );
        let zones = self.volume.zones();
        let extents: Vec<Extent> = batch.iter().map(|candidate| candidate.zone).collect();
        let runs: Vec<Run> = extents.iter().copied().map(run_of).collect();
        let _closed = Closed::new(zones, &extents);
        while goes_on() {
            // An allocation found space nowhere else and has opened the zones again.
            if !zones.is_closed() || !self.evacuate_any(&runs, waits)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Evacuation in the background.
#[derive(Debug, Default)]
pub(crate) struct IdleDefrag {
    rest_until: Duration,
    tried: BTreeSet<Extent>,
}

impl IdleDefrag {
    /// Lets zones be tried again.
    pub(crate) fn forget(&mut self) {
        self.tried.clear();
    }

    /// Evacuates one zone, if it is time to and one is worth it.
    pub(crate) fn look(&mut self, store: &Member) -> Result<(), VtError> {
        let clock = &*store.clock;
        let begin = clock.monotonic();
        if begin < self.rest_until {
            return Ok(());
        }
        let total = store.volume.zones().usage().total;
        if hole_bytes(store.volume.zones()) <= total / HOLES_PART {
            return Ok(());
        }
        let Some(_one_at_a_time) = store.pool.evacuation.try_lock() else {
            return Ok(());
        };
        let victims = candidates(store.volume.zones(), MIN_HOLE_PART_IDLE, &self.tried);
        let batch = batch(&store.volume, &victims[..victims.len().min(1)]);
        let Some(candidate) = batch
            .first()
            .filter(|_| can_free_any(store.volume.zones(), &victims))
        else {
            return Ok(());
        };
        debug_assert_eq!(batch.len(), 1, "one zone at a time");
        debug_assert!(
            !self.tried.contains(&candidate.zone),
            "a zone is tried once"
        );
        self.tried.insert(candidate.zone);
        let mut goes_on = || {
            // A table at a time, with a rest after each.
            !store.signals.is_stopped() && clock.monotonic() < begin + MOST_AT_ONCE
        };
        let is_whole = store.evacuate(&batch, false, &mut goes_on)?;
        if !is_whole {
            self.tried.remove(&candidate.zone);
        }
        let end = clock.monotonic();
        debug_assert!(end >= begin, "time goes on");
        self.rest_until = end + (end.saturating_sub(begin)) * REST_TIMES;
        Ok(())
    }
}

/// Longest that the background evacuates without a rest.
const MOST_AT_ONCE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
