//! Operations and latencies over time.
//!
//! Time is cut into buckets of equal width, each with its number of operations and a small
//! histogram of their latencies; when there are too many buckets, neighbours are joined, so that a
//! phase of any length leaves a series of bounded length.
//!
//! A histogram has eight steps for each power of two: what it answers is at most an eighth too
//! high.

use crate::report::Point;
use std::time::Duration;

/// Most points of a series; beyond, neighbours are joined.
const POINTS_MAX: usize = 128;
/// Width of the first buckets.
const BUCKET: Duration = Duration::from_millis(20);
/// Bits of a latency that steps of a histogram tell apart, below its highest one.
const STEP_BITS: u32 = 3;

/// What happened when.
#[derive(Clone, Debug)]
pub(super) struct Series {
    width: Duration,
    buckets: Vec<Bucket>,
}

/// What happened within one bucket of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bucket {
    ops: u64,
    nanos: u64,
    nanos_max: u64,
    /// Timed operations by [`step_of`] their latency, as far as there are any.
    steps: Vec<u32>,
}

impl Bucket {
    fn add(&mut self, ops: u64, nanos: Option<u64>) {
        self.ops += ops;
        let Some(nanos) = nanos else {
            return;
        };
        self.nanos += nanos;
        self.nanos_max = self.nanos_max.max(nanos);
        let step = step_of(nanos);
        if step >= self.steps.len() {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
    }

    fn join(&mut self, other: &Self) {
        self.ops += other.ops;
        self.nanos += other.nanos;
        self.nanos_max = self.nanos_max.max(other.nanos_max);
        if other.steps.len() > self.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        for (own, theirs) in self.steps.iter_mut().zip(&other.steps) {
            *own += theirs;
        }
    }

    /// Operations that were timed.
    fn timed(&self) -> u64 {
        self.steps.iter().map(|count| u64::from(*count)).sum()
    }

    /// What 999 in 1,000 took at most; 0 of nothing.
    fn nanos_p999(&self) -> u64 {
        let timed = self.timed();
        let wanted = timed - timed / 1000;
        let mut seen = 0;
        for (step, count) in self.steps.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return highest(step).min(self.nanos_max);
            }
        }
        assert_eq!(timed, 0, "some step has the last of them");
        0
    }
}

/// The step of a histogram that a latency is in.
fn step_of(nanos: u64) -> usize {
    let low = 1 << STEP_BITS;
    if nanos < low {
        return usize::try_from(nanos).expect("small");
    }
    let power = nanos.ilog2() - STEP_BITS;
    let within = (nanos >> power) - low;
    let step = (u64::from(power) + 1) * low + within;
    usize::try_from(step).expect("some hundreds")
}

/// The longest latency of a step.
fn highest(step: usize) -> u64 {
    let (step, low) = (step as u64, 1 << STEP_BITS);
    if step < low {
        return step;
    }
    let power = step / low - 1;
    let end = u128::from(step % low + low + 1) << power;
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width: BUCKET,
            buckets: Vec::new(),
        }
    }
}

impl Series {
    /// Takes in operations that ended then, and how long it took if they were timed.
    pub(super) fn add(&mut self, at: Duration, ops: u64, nanos: Option<u64>) {
        while self.index(at) >= POINTS_MAX {
            self.widen();
        }
        let index = self.index(at);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        self.buckets[index].add(ops, nanos);
    }

    fn index(&self, at: Duration) -> usize {
        usize::try_from(at.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX)
    }

    fn widen(&mut self) {
        self.width *= 2;
        let pairs = self.buckets.chunks(2).map(|pair| {
            let mut joined = pair[0].clone();
            pair[1..].iter().for_each(|other| joined.join(other));
            joined
        });
        self.buckets = pairs.collect();
    }

    /// Takes in another one that began at the same time.
    pub(super) fn absorb(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.width < other.width {
            self.widen();
        }
        while other.width < self.width {
            other.widen();
        }
        let len = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(len, Bucket::default());
        for (own, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            own.join(theirs);
        }
    }

    /// As reports have it.
    #[expect(clippy::cast_precision_loss, reason = "figures for a plot")]
    pub(super) fn points(&self) -> Vec<Point> {
        let width_s = self.width.as_secs_f64();
        let point = |(index, bucket): (usize, &Bucket)| Point {
            at_s: (index as f64 + 0.5) * width_s,
            ops_per_s: bucket.ops as f64 / width_s,
            mean_us: bucket.nanos as f64 / 1e3 / (bucket.timed().max(1) as f64),
            p999_us: bucket.nanos_p999() as f64 / 1e3,
            max_us: bucket.nanos_max as f64 / 1e3,
        };
        self.buckets.iter().enumerate().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_stays_bounded_and_loses_nothing() {
        let mut series = Series::default();
        for second in 0..3600 {
            series.add(Duration::from_secs(second), 2, Some(second));
        }
        assert!(series.buckets.len() <= POINTS_MAX);
        assert_eq!(series.buckets.iter().map(|b| b.ops).sum::<u64>(), 7200);
        assert_eq!(series.buckets.iter().map(Bucket::timed).sum::<u64>(), 3600);
        assert_eq!(series.buckets.iter().map(|b| b.nanos_max).max(), Some(3599));
    }

    #[test]
    fn parts_of_different_width_are_joined() {
        let (mut short, mut long) = (Series::default(), Series::default());
        short.add(Duration::from_millis(1), 1, None);
        long.add(Duration::from_secs(100), 1, Some(7));
        short.absorb(&long);
        assert_eq!(short.width, long.width);
        assert_eq!(short.buckets.iter().map(|b| b.ops).sum::<u64>(), 2);
        assert_eq!(short.buckets.iter().map(Bucket::timed).sum::<u64>(), 1);
    }

    #[test]
    fn steps_follow_each_other_without_gaps() {
        for nanos in [0, 1, 7, 8, 9, 15, 16, 1_000, 1 << 40, u64::MAX - 1] {
            let step = step_of(nanos);
            assert!(highest(step) >= nanos, "{nanos}");
            assert!(highest(step) <= nanos.saturating_add(nanos / 8), "{nanos}");
            let next = highest(step).saturating_add(1);
            assert!(next == u64::MAX || step_of(next) == step + 1, "{nanos}");
        }
    }

    #[test]
    fn the_slowest_in_a_thousand_is_no_p999_and_two_are() {
        let mut series = Series::default();
        let p999 = |series: &Series| series.points()[0].p999_us;
        for _ in 0..999 {
            series.add(Duration::ZERO, 1, Some(10_000));
        }
        assert!((10.0..=11.25).contains(&p999(&series)));
        series.add(Duration::ZERO, 1, Some(50_000_000));
        assert!((10.0..=11.25).contains(&p999(&series)));
        series.add(Duration::ZERO, 1, Some(40_000_000));
        assert!((40e3..=45e3).contains(&p999(&series)));
        assert!((series.points()[0].max_us - 50e3).abs() < 1e-9);
    }

    #[test]
    fn of_few_operations_the_slowest_counts() {
        let mut series = Series::default();
        series.add(Duration::ZERO, 1, Some(1_000));
        series.add(Duration::ZERO, 1, Some(90_000));
        assert!((series.points()[0].p999_us - 90.0).abs() < 1e-9);
        series.add(Duration::from_millis(100), 1, None);
        assert!(series.points()[5].p999_us.abs() < 1e-9);
    }
}
