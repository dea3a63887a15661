//! Schedules compactions: up to two at once, if their plans do not overlap (ADR 0094).
//!
//! 1. *Pick*, under a lock: a plan for the present version that meets no claim ([`super::claims`]).
//! 2. *Run*, without it.
//! 3. *Install*, under the installer's lock, as every edit.
//! 4. The claim ends after that, so that the next pick sees what was installed.
//!
//! Some compactions run *alone*: while space is low or was, since the reserve is for one; around
//! blocks that cannot be read; out of zones. One that waits to run alone goes first: meanwhile no
//! other begins. An order step is planned alone, and lets another run beside it then: a commit of a
//! transaction that flattens its branch does not wait for a pass that nothing needs.

use super::exclusions::Exclusions;
use super::picker::Plan;
use crate::options::COMPACTIONS_MAX;
use stitch_base::sync::{Condvar, Mutex, MutexGuard};

/// Decides when a compaction of a store may begin.
///
/// - A slot is taken for as long as a compaction runs, and its claims with it.
/// - One that runs alone has no other beside it.
pub(crate) struct Scheduler {
    /// Most at once.
    most: usize,
    state: Mutex<SchedulerState>,
    /// A slot became free.
    over: Condvar,
}

/// The compactions that run now, and what the next ones must leave out.
pub(crate) struct SchedulerState {
    pub(crate) exclusions: Exclusions,
    running: [Option<Running>; COMPACTIONS_MAX],
    /// How many wait to be alone.
    waiting: usize,
    /// One of two at once found no space: it may for one.
    pub(super) is_short: bool,
}

#[derive(Clone, Copy)]
struct Running {
    is_alone: bool,
    /// Another ran at some time since this one began.
    had_company: bool,
}

/// The right to run a compaction; ends when this is dropped.
pub(crate) struct Slot<'a> {
    scheduler: &'a Scheduler,
    number: usize,
}

impl SchedulerState {
    /// How many run now.
    pub(super) fn count(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// Reports whether what is due must be done alone, whatever it is.
    pub(super) fn wants_one(&self) -> bool {
        !self.exclusions.detours.is_empty() || self.is_short
    }
}

impl Scheduler {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.clamp(1, COMPACTIONS_MAX),
            state: Mutex::new(SchedulerState {
                exclusions: Exclusions::default(),
                running: [None; COMPACTIONS_MAX],
                waiting: 0,
                is_short: false,
            }),
            over: Condvar::new(),
        }
    }

    /// Locks the state. Not to be held for long.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    /// True if any compaction runs.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().count() > 0
    }

    /// True if another may begin now.
    pub(super) fn may_begin(&self, state: &SchedulerState, is_alone: bool) -> bool {
        debug_assert!(
            (1..=COMPACTIONS_MAX).contains(&self.most),
            "one at least may run"
        );
        let count = state.count();
        let is_anyone_alone = state.running.iter().flatten().any(|r| r.is_alone);
        debug_assert!(!is_anyone_alone || count == 1, "it runs alone");
        match is_alone {
            true => count == 0,
            false => count < self.most && state.waiting == 0 && !is_anyone_alone,
        }
    }

    /// Waits until a slot becomes free.
    pub(super) fn wait(&self, state: &mut MutexGuard<'_, SchedulerState>, is_alone: bool) {
        debug_assert!(
            state.count() > 0 || state.waiting > 0,
            "a compaction is waited for"
        );
        state.waiting += usize::from(is_alone);
        self.over.wait(state);
        debug_assert!(
            state.waiting >= usize::from(is_alone),
            "who waits is counted"
        );
        state.waiting -= usize::from(is_alone);
        if is_alone && state.waiting == 0 {
            // Those that waited for this one to go first.
            self.over.notify_all();
        }
    }

    /// Takes a slot. Without a plan, its owner runs alone.
    pub(super) fn begin(
        &self,
        state: &mut SchedulerState,
        plan: Option<&Plan>,
        is_alone: bool,
    ) -> Slot<'_> {
        let is_alone = is_alone || plan.is_none();
        debug_assert!(
            is_alone || state.waiting == 0,
            "a compaction that waits to be alone goes first"
        );
        assert!(
            !is_alone || state.count() == 0,
            "no other compaction runs beside one that runs alone"
        );
        let had_company = state.count() > 0;
        for other in state.running.iter_mut().flatten() {
            assert!(
                !other.is_alone,
                "no compaction begins beside one that runs alone"
            );
            other.had_company = true;
        }
        let number = state.running.iter().position(Option::is_none);
        let number = number.expect("few run at once");
        debug_assert!(number < self.most, "the lowest free slot is taken");
        if let Some(plan) = plan {
            state.exclusions.claims.add(number, plan);
        }
        state.running[number] = Some(Running {
            is_alone,
            had_company,
        });
        debug_assert!(state.count() <= self.most, "few run at once");
        Slot {
            scheduler: self,
            number,
        }
    }

    /// Takes a slot for work during which no compaction may run.
    pub(crate) fn alone(&self) -> Slot<'_> {
        let mut state = self.lock();
        while !self.may_begin(&state, true) {
            self.wait(&mut state, true);
        }
        let slot = self.begin(&mut state, None, true);
        debug_assert_eq!(state.count(), 1, "no other runs beside it");
        slot
    }
}

impl Slot<'_> {
    /// The slot's number, from 0.
    pub(super) const fn number(&self) -> usize {
        debug_assert!(self.number < COMPACTIONS_MAX, "a slot of the scheduler");
        self.number
    }

    /// Lets another compaction run beside this one, which has run alone up to now. What the plan
    /// takes is claimed, if nothing of it is.
    pub(super) fn share(&self, plan: &Plan) {
        let mut state = self.scheduler.lock();
        debug_assert_eq!(state.count(), 1, "it ran alone");
        if state.exclusions.claims.meet(plan) {
            return;
        }
        state.exclusions.claims.add(self.number, plan);
        let running = state.running[self.number].as_mut();
        let running = running.expect("it runs as long as it has its slot");
        debug_assert!(running.is_alone, "it has run alone up to now");
        running.is_alone = false;
        drop(state);
        self.scheduler.over.notify_all();
    }

    /// True if another compaction ran at some time since it began.
    pub(super) fn had_company(&self, state: &SchedulerState) -> bool {
        let running = state.running[self.number];
        debug_assert!(
            running.is_some(),
            "a compaction runs as long as it has its slot"
        );
        running.is_some_and(|running| running.had_company)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut state = self.scheduler.lock();
        let before = state.running[self.number].take();
        debug_assert!(before.is_some(), "a slot is given back once");
        state.exclusions.claims.remove(self.number);
        debug_assert!(
            state.count() > 0 || state.exclusions.claims.weight() == 0,
            "inputs are weighed while their compaction runs"
        );
        drop(state);
        self.scheduler.over.notify_all();
    }
}

#[cfg(test)]
mod tests;
