//! Runs a test under many thread interleavings.

use crate::thread::{JoinHandle, spawn};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Runs `body` under `rounds` schedules. Half are random; the other half have few context switches,
/// at unlucky points. A failure prints its schedule, which `shuttle::replay` runs again.
///
/// The environment variable `INTERLEAVINGS=N` multiplies the number of schedules by N.
/// `INTERLEAVINGS_SEED=S` changes the seed, which is fixed by default.
pub fn explore(rounds: usize, body: impl Fn() + Send + Sync + Clone + 'static) {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let times = number("INTERLEAVINGS").unwrap_or(1);
    let seed = number("INTERLEAVINGS_SEED").unwrap_or(1);
    let rounds = rounds * usize::try_from(times).expect("a small number");
    let half = rounds.div_ceil(2);
    run(RandomScheduler::new_from_seed(seed, half), body.clone());
    run(PctScheduler::new_from_seed(seed, 3, half), body);
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 4 << 20;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    Runner::new(scheduler, config).run(body);
}

/// Starts a thread inside [`explore`].
///
/// # Panics
/// Never: the checker has threads.
pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    spawn(name, body).expect("the checker has threads")
}

/// Joins threads.
///
/// # Panics
/// If one of the threads panicked; this fails the run.
pub fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread that panics ends the run");
    }
}
