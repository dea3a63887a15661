//! Space that runs out: a workload is run again and again. Each time another one of its allocations
//! and reservations is refused, alone or with many that follow. Then it crashes.
//!
//! Rules, besides those of [`crate::crash`]:
//! - an operation that finds no space says so, and has changed nothing;
//! - nothing else fails: the store accepts the next operation, opens, closes and becomes idle;
//! - no byte and no reservation is lost: the sums match those of the owners.

mod walk;

pub use walk::{WalkStats, each};

use crate::crash::{self, CrashStats, Effort};
use crate::{Ack, System, SystemError};
use std::ops::Range;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{Device, MemDevice};
use stitch_volume::Refusals;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSpaceStats {
    /// Allocations of the workload without refusals.
    pub asked: u64,
    /// Workloads run with refusals.
    pub runs: u64,
    /// Refusals that the store met.
    pub refused: u64,
    /// Operations that were told of it.
    pub told: u64,
    /// What the crashes did.
    pub crashes: CrashStats,
}

/// How many allocations in a row are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// One.
    One,
    /// One and all that follow.
    Rest,
}

impl Refused {
    /// The numbers of those that are refused, of which this is the first.
    pub(crate) const fn from(self, first: u64) -> Range<u64> {
        match self {
            Self::One => first..first + 1,
            Self::Rest => first..u64::MAX,
        }
    }
}

/// A system whose volume refuses space by a plan, from each open on.
pub struct Short<S> {
    inner: S,
    refusals: Arc<Refusals>,
    plan: Mutex<Range<u64>>,
    asked_first: AtomicU64,
    refused: AtomicU64,
    told: AtomicU64,
}

impl<S> std::fmt::Debug for Short<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Short").finish_non_exhaustive()
    }
}

/// Refuses, one after the other, what the workload of a seed asks for: `runs` of these at most.
///
/// # Errors
/// What went wrong, and with which refusal.
pub fn explore<S: System>(
    make: impl Fn(Arc<Refusals>) -> S,
    seed: u64,
    effort: Effort,
    runs: u64,
) -> Result<NoSpaceStats, String> {
    let short = Short::new(make);
    let dry = Effort {
        points: 0,
        ..effort
    };
    crash::explore(&short, seed, dry).map_err(|e| format!("without refusals: {e}"))?;
    let mut stats = NoSpaceStats {
        asked: short.asked_first.load(Ordering::SeqCst),
        ..NoSpaceStats::default()
    };
    let mut rng = Rng::new(!seed);
    for plan in plans(stats.asked, runs, &mut rng) {
        *short.plan.lock() = plan.clone();
        let spares = rng.one_in(2);
        short.refusals.spare_promises(spares);
        let crashed = crash::explore(&short, seed, effort).map_err(|e| {
            format!(
                "refused {plan:?} of {}, promises spared: {spares}: {e}",
                stats.asked
            )
        })?;
        stats.crashes.add(crashed);
        stats.runs += 1;
    }
    stats.refused = short.refused.load(Ordering::SeqCst);
    stats.told = short.told.load(Ordering::SeqCst);
    Ok(stats)
}

/// What to refuse: each number once if they are few, else as many by chance; half of them alone,
/// others with some or with all that follow.
fn plans(asked: u64, runs: u64, rng: &mut Rng) -> Vec<Range<u64>> {
    let count = asked.min(runs);
    let mut plans = Vec::new();
    for number in 0..count {
        let first = match asked <= runs {
            true => number,
            false => rng.below(asked),
        };
        let len = match rng.below(8) {
            0..=3 => 1,
            4 => 2,
            5 => 2 + rng.below(8),
            6 => 2 + rng.below(100),
            _ => u64::MAX / 2,
        };
        plans.push(first..first + len);
    }
    plans
}

impl<S: System> Short<S> {
    /// One that refuses nothing yet.
    fn new(make: impl Fn(Arc<Refusals>) -> S) -> Self {
        let refusals = Arc::new(Refusals::default());
        Self {
            inner: make(Arc::clone(&refusals)),
            refusals,
            plan: Mutex::new(0..0),
            asked_first: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Checks that a refused operation has changed nothing.
    fn unchanged(&self, live: &S::Live, op: &S::Op, model: &S::Model) -> Result<(), SystemError> {
        let found = self.inner.state(live)?;
        let expected = self.inner.model_state(model);
        if found == expected {
            return Ok(());
        }
        let difference = self.inner.difference(&found, &expected);
        let message = format!("{op:?} was refused for want of space, and has changed {difference}");
        Err(SystemError::new(ErrorKind::Bug, message))
    }

    /// With space again, all work can be done, and the sums are right.
    fn goes_on(&self, live: &S::Live) -> Result<(), SystemError> {
        self.refusals.end();
        self.inner.quiesce(live)?;
        match self.inner.check(live)?.first() {
            None => Ok(()),
            Some(broken) => Err(SystemError::new(ErrorKind::Bug, broken)),
        }
    }
}

impl<S: System> System for Short<S> {
    type Op = S::Op;
    type State = S::State;
    type Model = S::Model;
    type Live = S::Live;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn image(&self) -> MemDevice {
        self.inner.image()
    }

    fn model(&self) -> S::Model {
        self.inner.model()
    }

    fn generate(&self, model: &S::Model, rng: &mut Rng) -> S::Op {
        self.inner.generate(model, rng)
    }

    fn apply(&self, model: &mut S::Model, op: &S::Op) {
        self.inner.apply(model, op);
    }

    fn model_state(&self, model: &S::Model) -> S::State {
        self.inner.model_state(model)
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<S::Live, SystemError> {
        self.refusals.begin(self.plan.lock().clone());
        self.inner.open(device)
    }

    fn run(&self, live: &mut S::Live, op: &S::Op, model: &S::Model) -> Result<Ack, SystemError> {
        let before = self.refusals.refused();
        let ran = self.inner.run(live, op, model);
        let asked = self.refusals.asked();
        self.asked_first.fetch_max(asked, Ordering::SeqCst);
        let refused = self.refusals.refused() - before;
        if refused == 0 {
            return ran;
        }
        self.refused.fetch_add(refused, Ordering::SeqCst);
        match ran {
            Err(error) if error.kind != ErrorKind::NoSpace => Err(error),
            Err(_) | Ok(Ack::Refused) => {
                self.told.fetch_add(1, Ordering::SeqCst);
                self.unchanged(live, op, model)?;
                Ok(Ack::Refused)
            }
            done => done,
        }
    }

    fn is_write(&self, op: &S::Op) -> bool {
        self.inner.is_write(op)
    }

    fn state(&self, live: &S::Live) -> Result<S::State, SystemError> {
        self.inner.state(live)
    }

    fn compare_readable(&self, live: &S::Live, expected: &S::State) -> Result<u64, String> {
        self.inner.compare_readable(live, expected)
    }

    fn check(&self, live: &S::Live) -> Result<Vec<String>, SystemError> {
        self.inner.check(live)
    }

    fn quiesce(&self, live: &S::Live) -> Result<(), SystemError> {
        self.inner.quiesce(live)
    }

    fn close(&self, live: S::Live) -> Result<(), SystemError> {
        // Half of the lives end while space is refused.
        if self.refusals.asked().is_multiple_of(2) {
            self.goes_on(&live)?;
        }
        self.inner.close(live)
    }

    fn difference(&self, found: &S::State, expected: &S::State) -> String {
        self.inner.difference(found, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allocation_is_refused_once_if_they_are_few() {
        let plans = plans(30, 40, &mut Rng::new(1));
        let firsts: Vec<u64> = plans.iter().map(|plan| plan.start).collect();
        assert_eq!(firsts, (0..30).collect::<Vec<_>>());
        assert!(plans.iter().any(|plan| plan.end - plan.start == 1));
        assert!(plans.iter().any(|plan| plan.end - plan.start > 1000));
    }
}
