//! Begins compactions: picks what is due, of what may run now.

use super::Compactor;
use super::exclusions::Exclusions;
use super::picker::{Moments, PickInput, PickRules, Plan, Pressure, pick, pick_evacuation};
use super::scheduler::SchedulerState;
use crate::VtError;
use crate::held::HeldSeqnos;
use crate::key_moments::KeyMoments;
use crate::signals::Worker;
use crate::version::Version;
use crate::victims::{MIN_HOLE_PART_IDLE, MIN_HOLE_PART_ROOM, is_victim, run_of, weight};
use std::sync::Arc;
use stitch_format::vt_manifest::Run;
use stitch_volume::Candidate;

/// Free zones below which evacuation could only move holes about.
const EVACUATION_ZONES_MIN: u64 = 2;

/// A plan, and what it was made for.
pub(super) struct Picked {
    pub(super) version: Arc<Version>,
    /// Moments of its tree that were held when it was picked.
    pub(super) moments: KeyMoments,
    pub(super) plan: Plan,
}

impl Picked {
    fn new(version: Arc<Version>, held: &HeldSeqnos, plan: Plan) -> Self {
        debug_assert!(
            version.trees.contains_key(&plan.tree),
            "a plan is of its version"
        );
        debug_assert!(
            version
                .trees
                .get(&plan.tree)
                .is_some_and(|tree| plan.is_of(tree)),
            "the inputs are tables of the version"
        );
        Self {
            moments: held.of(plan.tree),
            version,
            plan,
        }
    }
}

impl Compactor {
    /// Does the compaction that is most due, or waits for one that is under way to end. Answers
    /// false if none is due, and none is under way.
    ///
    /// # Errors
    /// [`VtError`]; then the store takes no more writes, unless it was only for want of space.
    pub(crate) fn compact_one(&self, pressure: Pressure) -> Result<bool, VtError> {
        self.compact(pressure, true)
    }

    /// Keeps the shape beside another compaction. Returns false if there is nothing to be done now.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(crate) fn help_compact(&self) -> Result<bool, VtError> {
        match self.pressure(false) {
            Pressure::Shape => self.compact(Pressure::Shape, false),
            _ => Ok(false),
        }
    }

    /// As [`Self::compact_one`]; who does not wait leaves what others hinder.
    pub(crate) fn compact(&self, pressure: Pressure, waits: bool) -> Result<bool, VtError> {
        let mut state = self.scheduler.lock();
        self.gate.check_writable()?;
        let is_alone = pressure >= Pressure::Low || state.wants_one();
        let may_begin = self.scheduler.may_begin(&state, is_alone);
        if may_begin && let Some(picked) = self.pick_now(pressure, &mut state) {
            let slot = self
                .scheduler
                .begin(&mut state, Some(&picked.plan), is_alone);
            debug_assert!(state.count() > 0, "the compaction runs");
            if state.count() > 1 {
                self.counters.compactions_beside.add(1);
            }
            drop(state);
            let done = self.carry_out(&picked, &slot);
            // In this order: who sees that nothing runs may count on the space that came back.
            drop(picked);
            drop(slot);
            self.note_left();
            if self.pace.is_behind() {
                self.signals.wake(Worker::Help);
            }
            return done.map(|()| true);
        }
        // What is under way may be all that was due, or leave something.
        if state.count() == 0 && may_begin {
            drop(state);
            return Ok(pressure >= Pressure::Space && self.find_superseded());
        }
        if waits {
            // What ends may be just what the caller was after.
            self.scheduler.wait(&mut state, is_alone && !may_begin);
        }
        Ok(waits)
    }

    /// The plan that is most due, of those that may run beside what does.
    fn pick_now(&self, pressure: Pressure, state: &mut SchedulerState) -> Option<Picked> {
        let is_beside = state.count() > 0;
        let exclusions = &mut state.exclusions;
        // In this order: a snapshot that is taken after the list sees all that is in the version.
        let version = self.views.version();
        let held = self.snapshots.held();
        let free_bytes = self.unclaimed_bytes(exclusions.claims.weight());
        let options = self.pick_options(&version, pressure, free_bytes);
        exclusions.evacuated.renew(self.counters.write_outs.get());
        let moments = Moments {
            held: &held,
            released: &self.tables.superseded.released(&held),
        };
        let input = PickInput {
            version: &version,
            moments,
            pressure,
            rules: PickRules::new(&options, exclusions),
        };
        let plan = pick(&input).or_else(|| self.pick_evacuation(&version, pressure, exclusions))?;
        if is_beside && plan.input_weight() > free_bytes - free_bytes / 8 {
            return None;
        }
        debug_assert!(
            !is_beside || plan.evacuate.is_empty(),
            "what is evacuated is not claimed by others"
        );
        self.snapshots.keep_versions(&held, [plan.tree]);
        exclusions.evacuated.note(&plan.evacuate);
        if plan.from_level == 0 {
            self.level0.pay();
        }
        Some(Picked::new(version, &held, plan))
    }

    /// Takes one table out of parts of the device. Returns false if none is left there that can be.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(crate) fn evacuate_one(&self, zones: &[Run]) -> Result<bool, VtError> {
        debug_assert!(!zones.is_empty(), "something is evacuated");
        debug_assert!(
            zones.iter().all(|zone| zone.len_bytes > 0),
            "a zone is not empty"
        );
        self.compact_alone(|version| {
            let exclusions = &self.scheduler.lock().exclusions;
            Ok(pick_evacuation(version, zones, exclusions))
        })
    }

    /// Runs a plan of the caller's while no other compaction runs. Returns false if there is none.
    ///
    /// # Errors
    /// As [`Self::compact_one`], and those of the caller.
    pub(crate) fn compact_alone(
        &self,
        make_plan: impl FnOnce(&Version) -> Result<Option<Plan>, VtError>,
    ) -> Result<bool, VtError> {
        self.compact_as_asked(false, make_plan)
    }

    /// Makes a plan of the caller's while no other compaction runs, and runs it. Another one may
    /// run beside it, unless space is low. Returns false if there is no plan.
    ///
    /// # Errors
    /// As [`Self::compact_alone`].
    pub(crate) fn compact_sharing(
        &self,
        make_plan: impl FnOnce(&Version) -> Result<Option<Plan>, VtError>,
    ) -> Result<bool, VtError> {
        self.compact_as_asked(true, make_plan)
    }

    fn compact_as_asked(
        &self,
        shares: bool,
        make_plan: impl FnOnce(&Version) -> Result<Option<Plan>, VtError>,
    ) -> Result<bool, VtError> {
        let slot = self.scheduler.alone();
        self.gate.check_writable()?;
        // In this order, as above.
        let version = self.views.version();
        let held = self.snapshots.held();
        let Some(plan) = make_plan(&version)? else {
            return Ok(false);
        };
        self.snapshots.keep_versions(&held, [plan.tree]);
        let picked = Picked::new(version, &held, plan);
        if shares && self.pressure(false) < Pressure::Low {
            slot.share(&picked.plan);
        }
        self.carry_out(&picked, &slot)?;
        Ok(true)
    }

    /// Runs a plan of the caller's beside another compaction, if one runs that leaves room for it.
    /// Returns false if it cannot now, and has done nothing.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(super) fn compact_beside(
        &self,
        make_plan: impl FnOnce(&Version, &Exclusions) -> Option<Plan>,
    ) -> Result<bool, VtError> {
        let mut state = self.scheduler.lock();
        self.gate.check_writable()?;
        let is_alone = state.wants_one() || self.pressure(false) >= Pressure::Low;
        if is_alone || state.count() == 0 || !self.scheduler.may_begin(&state, false) {
            return Ok(false);
        }
        // In this order, as above.
        let version = self.views.version();
        let held = self.snapshots.held();
        let free_bytes = self.unclaimed_bytes(state.exclusions.claims.weight());
        let plan = make_plan(&version, &state.exclusions);
        let fits = |plan: &Plan| plan.input_weight() <= free_bytes - free_bytes / 8;
        let Some(plan) = plan.filter(fits) else {
            return Ok(false);
        };
        debug_assert!(
            !state.exclusions.claims.meet(&plan),
            "what others have is left"
        );
        self.snapshots.keep_versions(&held, [plan.tree]);
        let picked = Picked::new(version, &held, plan);
        let slot = self.scheduler.begin(&mut state, Some(&picked.plan), false);
        debug_assert!(state.count() > 1, "another one runs");
        self.counters.compactions_beside.add(1);
        drop(state);
        let done = self.carry_out(&picked, &slot);
        // In this order, as above.
        drop(picked);
        drop(slot);
        done.map(|()| true)
    }

    /// When space is low: what to take out of the zone with the most in holes.
    fn pick_evacuation(
        &self,
        version: &Version,
        pressure: Pressure,
        exclusions: &Exclusions,
    ) -> Option<Plan> {
        let zones = self.volume.zones();
        let is_possible = zones.usage().zones_free >= EVACUATION_ZONES_MIN;
        if pressure < Pressure::Low || !is_possible {
            return None;
        }
        // What is moved for a page: up to four pages unasked, more where a commit waits for it.
        let part = match pressure {
            Pressure::Room => MIN_HOLE_PART_ROOM,
            _ => MIN_HOLE_PART_IDLE,
        };
        let mut victims = zones.scattered(self.space.room_run_bytes());
        let may_go = |c: &Candidate| exclusions.evacuated.allows(c.zone.addr);
        victims.retain(|candidate| is_victim(candidate, part) && may_go(candidate));
        victims.sort_by_key(weight);
        debug_assert!(
            victims.iter().all(|candidate| candidate.zone.len > 0),
            "a zone is not empty"
        );
        let mut victims = victims.iter().map(|candidate| run_of(candidate.zone));
        victims.find_map(|zone| pick_evacuation(version, &[zone], exclusions))
    }

    /// True if a table that cannot be read owns anything in a part of the device.
    pub(crate) fn has_unreadable_in(&self, part: Run) -> bool {
        debug_assert!(part.len_bytes > 0, "a part of the device is not empty");
        let exclusions = &self.scheduler.lock().exclusions;
        exclusions.detours.are_in(&self.views.version(), part)
    }

    /// Lets compactions that found no space be tried again.
    pub(crate) fn forget_avoided(&self) {
        self.scheduler
            .lock()
            .exclusions
            .forget(&self.views.version());
    }
}
