//! Who compacts: up to two at once, where their plans do not overlap (ADR 0094).
//!
//! 1. *Pick*, under a lock: a plan for the present version that meets no claim ([`super::claims`]).
//! 2. *Run*, without it.
//! 3. *Install*, under the installer's lock, as every edit.
//! 4. The claim is given up after that, so that whoever picks next sees what was installed.
//!
//! Some work is done *alone*: while space is low or was, since what is there was reckoned for one;
//! around what cannot be read; out of zones. Whoever waits to be alone goes first: nobody else
//! begins meanwhile.

use super::obstacles::Obstacles;
use super::picker::Plan;
use crate::options::TURNS_MAX;
use stitch_base::sync::{Condvar, Mutex, MutexGuard};

/// The compactions of a store.
pub(crate) struct Turns {
    /// Most at once.
    most: usize,
    state: Mutex<Underway>,
    /// A turn is over.
    over: Condvar,
}

/// What compactions go around, and those that run now.
pub(crate) struct Underway {
    pub(crate) obstacles: Obstacles,
    running: [Option<Running>; TURNS_MAX],
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

/// Somebody's turn to compact; over when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: usize,
}

impl Underway {
    /// How many run now.
    pub(super) fn count(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// True if what is due must be done alone, whatever it is.
    pub(super) fn wants_one(&self) -> bool {
        let obstacles = &self.obstacles;
        let has_bad = !obstacles.unreadable.is_empty() || !obstacles.to_part.is_empty();
        has_bad || self.is_short
    }
}

impl Turns {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.clamp(1, TURNS_MAX),
            state: Mutex::new(Underway {
                obstacles: Obstacles::new(),
                running: [None; TURNS_MAX],
                waiting: 0,
                is_short: false,
            }),
            over: Condvar::new(),
        }
    }

    /// What is under way. Not to be held for long.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Underway> {
        self.state.lock()
    }

    /// True if any compaction runs.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().count() > 0
    }

    /// True if another may begin now.
    pub(super) fn may_begin(&self, state: &Underway, is_alone: bool) -> bool {
        let count = state.count();
        let is_anyone_alone = state.running.iter().flatten().any(|r| r.is_alone);
        match is_alone {
            true => count == 0,
            false => count < self.most && state.waiting == 0 && !is_anyone_alone,
        }
    }

    /// Waits until a turn is over.
    pub(super) fn wait(&self, state: &mut MutexGuard<'_, Underway>, is_alone: bool) {
        debug_assert!(
            state.count() > 0 || state.waiting > 0,
            "somebody is waited for"
        );
        state.waiting += usize::from(is_alone);
        self.over.wait(state);
        state.waiting -= usize::from(is_alone);
        if is_alone && state.waiting == 0 {
            // Who waited for this one to go first.
            self.over.notify_all();
        }
    }

    /// A turn begins. Without a plan, it is alone.
    pub(super) fn begin(
        &self,
        state: &mut Underway,
        plan: Option<&Plan>,
        is_alone: bool,
    ) -> Turn<'_> {
        let is_alone = is_alone || plan.is_none();
        assert!(
            !is_alone || state.count() == 0,
            "nobody else compacts beside one who is alone"
        );
        let had_company = state.count() > 0;
        for other in state.running.iter_mut().flatten() {
            assert!(!other.is_alone, "nobody begins beside one who is alone");
            other.had_company = true;
        }
        let number = state.running.iter().position(Option::is_none);
        let number = number.expect("few run at once");
        if let Some(plan) = plan {
            state.obstacles.claims.add(number, plan);
        }
        state.running[number] = Some(Running {
            is_alone,
            had_company,
        });
        Turn {
            turns: self,
            number,
        }
    }

    /// A turn alone, for one who wants no compaction to run.
    pub(crate) fn alone(&self) -> Turn<'_> {
        let mut state = self.lock();
        while !self.may_begin(&state, true) {
            self.wait(&mut state, true);
        }
        self.begin(&mut state, None, true)
    }
}

impl Turn<'_> {
    /// Tells turns at once apart; the first is 0.
    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// True if another compaction ran at some time since it began.
    pub(super) fn had_company(&self, state: &Underway) -> bool {
        state.running[self.number].is_some_and(|running| running.had_company)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        let before = state.running[self.number].take();
        debug_assert!(before.is_some(), "a turn is over once");
        state.obstacles.claims.remove(self.number);
        drop(state);
        self.turns.over.notify_all();
    }
}

#[cfg(test)]
mod tests;
