//! Many seeds of many cases, on a few threads, within a time.

use crate::args::Args;
use crate::cases::{Case, Numbers};
use std::collections::BTreeMap;
use std::io;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};

/// Seeds in which a canary must be found.
const CANARY_SEEDS: u64 = 60;
/// Failures after which there is no point in going on.
const FAILURES_MAX: usize = 5;

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which case.
    pub case: String,
    /// Which seed.
    pub seed: u64,
    /// Why.
    pub reason: String,
}

/// What a campaign did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Seeds that passed, of all cases; canaries found count as one.
    pub passed: u64,
    /// Seeds that failed, in no particular order.
    pub failures: Vec<Failure>,
    /// Seeds and summed numbers of each case.
    pub totals: BTreeMap<String, (u64, BTreeMap<&'static str, u64>)>,
}

impl Outcome {
    fn add(&mut self, case: &Case, numbers: Numbers) {
        self.passed += 1;
        let (seeds, sums) = self.totals.entry(case.name.clone()).or_default();
        *seeds += 1;
        for (name, value) in numbers {
            *sums.entry(name).or_default() += value;
        }
    }

    fn fail(&mut self, case: &Case, seed: u64, reason: String) {
        self.failures.push(Failure {
            case: case.name.clone(),
            seed,
            reason,
        });
    }
}

/// Runs the cases that `args` selects. Calls `tell` with each failure.
///
/// # Errors
/// If no thread can be started.
pub fn run(
    cases: Vec<Case>,
    args: &Args,
    tell: impl Fn(&Failure) + Send + Sync + 'static,
) -> io::Result<Outcome> {
    let cases: Vec<Case> = cases
        .into_iter()
        .filter(|c| c.name.contains(&args.case))
        .collect();
    let shared = Arc::new(Shared {
        cases,
        args: args.clone(),
        next: AtomicU64::new(0),
        clock: SystemClock::default(),
        outcome: Mutex::default(),
        tell: Box::new(tell),
    });
    shared.canaries();
    let mut threads = Vec::new();
    for job in 0..args.jobs {
        let shared = Arc::clone(&shared);
        threads.push(stitch_base::thread::spawn(
            &format!("sim-{job}"),
            move || shared.work(),
        )?);
    }
    for thread in threads {
        thread.join().expect("a case's panics are caught");
    }
    let mut outcome = shared.outcome.lock();
    Ok(std::mem::take(&mut *outcome))
}

struct Shared {
    cases: Vec<Case>,
    args: Args,
    next: AtomicU64,
    clock: SystemClock,
    outcome: Mutex<Outcome>,
    tell: Box<dyn Fn(&Failure) + Send + Sync>,
}

impl Shared {
    /// Checks that each broken system is found. Replays of one seed skip them.
    fn canaries(&self) {
        if self.args.seeds == 1 {
            return;
        }
        for case in self.cases.iter().filter(|case| case.is_canary) {
            let first = self.args.seed;
            let is_found = (first..first + CANARY_SEEDS).any(|seed| case.run(seed).is_err());
            if is_found {
                self.outcome.lock().add(case, vec![("found", 1)]);
            } else {
                let reason = format!("none of {CANARY_SEEDS} seeds noticed what is broken");
                self.failed(case, first, reason);
            }
        }
    }

    fn work(&self) {
        let cases: Vec<&Case> = self.cases.iter().filter(|case| !case.is_canary).collect();
        let count = cases.len() as u64;
        while count > 0 && self.outcome.lock().failures.len() < FAILURES_MAX {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let is_late = self
                .args
                .limit
                .is_some_and(|limit| self.clock.monotonic() >= limit);
            if turn / count >= self.args.seeds || is_late {
                return;
            }
            let seed = self.args.seed + turn / count;
            let case = cases[usize::try_from(turn % count).expect("a few cases")];
            match case.run(seed) {
                Ok(numbers) => self.outcome.lock().add(case, numbers),
                Err(reason) => self.failed(case, seed, reason),
            }
        }
    }

    fn failed(&self, case: &Case, seed: u64, reason: String) {
        let mut outcome = self.outcome.lock();
        outcome.fail(case, seed, reason);
        (self.tell)(outcome.failures.last().expect("just added"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Size, of_system};
    use crate::toy::{Toy, ToyBug};

    fn toy_cases(bug: ToyBug) -> Vec<Case> {
        of_system(
            Toy { bug },
            Size {
                ops_max: 30,
                points: 6,
                faults: 5,
                damages: 5,
            },
        )
    }

    fn args(case: &str, seeds: u64) -> Args {
        Args {
            seed: 0,
            seeds,
            limit: None,
            case: case.to_owned(),
            jobs: 2,
        }
    }

    #[test]
    fn every_seed_of_every_case_is_run_once() {
        let outcome = run(toy_cases(ToyBug::None), &args("toy/crash", 50), |_| {}).unwrap();
        assert_eq!((outcome.passed, outcome.failures.len()), (50, 0));
        assert_eq!(outcome.totals["toy/crash"].0, 50);
        assert!(outcome.totals["toy/crash"].1["images"] > 300);
    }

    #[test]
    fn canaries_are_found() {
        let outcome = run(toy_cases(ToyBug::None), &args("canary", 2), |_| {}).unwrap();
        assert_eq!((outcome.passed, outcome.failures.len()), (2, 0));
    }

    #[test]
    fn failures_name_the_seed_and_end_the_campaign() {
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        let cases = toy_cases(ToyBug::RecoveryLosesTail);
        let outcome = run(cases, &args("toy/crash", 1000), move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert!((5..8).contains(&outcome.failures.len()));
        assert_eq!(told.load(Ordering::Relaxed), outcome.failures.len() as u64);
        assert!(
            outcome
                .failures
                .iter()
                .all(|f| f.case == "toy/crash" && !f.reason.is_empty())
        );
    }

    #[test]
    fn a_panic_is_a_failure_with_its_message() {
        let case = crate::cases::tests::panicking();
        let reason = case.run(1).unwrap_err();
        assert!(reason.contains("panicked: on purpose"), "{reason}");
    }
}
