//! What one phase of a workload is measured with: latencies, and what happened when.
//!
//! Latencies go into a histogram per kind of operation, in nanoseconds with three digits. Beside
//! it, what happened when is kept as a [`series`].

mod series;

use crate::report::{Latency, Point};
use anyhow::{Error, Result};
use hdrhistogram::Histogram;
use series::Series;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

/// Digits that histograms keep.
const DIGITS: u8 = 3;
/// Operations between two looks at the clock where nothing is timed one by one.
pub(crate) const TALLY: u64 = 1024;

/// Kinds of operations whose latencies are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    /// A put, alone or in a batch.
    Put,
    /// A point read.
    Get,
    /// A delete or range delete.
    Delete,
    /// A scan of some rows, from the seek to the last row.
    Scan,
    /// A get and a put of what it gave.
    Rmw,
    /// Opening a store.
    Open,
    /// Making a file or directory.
    Make,
    /// Looking a name up, or its attributes.
    Stat,
    /// Changing attributes.
    SetAttr,
    /// Renaming.
    Rename,
    /// Removing a name.
    Remove,
    /// Listing a directory.
    List,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Writing to a file and syncing it.
    Sync,
    /// Running a command.
    Command,
}

impl Op {
    /// What reports call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Scan => "scan",
            Self::Rmw => "rmw",
            Self::Open => "open",
            Self::Make => "make",
            Self::Stat => "stat",
            Self::SetAttr => "set-attr",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::List => "list",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Command => "command",
        }
    }
}

/// How far a phase may go, and the receiver of its progress.
pub(crate) struct Limits<'a> {
    /// It is cut short after this.
    pub(crate) cap: Option<Duration>,
    /// Told operations done.
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
}

/// Records one phase, or one thread's part of it.
pub(crate) struct Recorder<'a> {
    clock: Arc<SystemClock>,
    start: Duration,
    limits: &'a Limits<'a>,
    latencies: BTreeMap<Op, Histogram<u64>>,
    series: Series,
    ops: u64,
    user_bytes: u64,
    now: Duration,
    told: Duration,
}

impl<'a> Recorder<'a> {
    /// Starts now.
    pub(crate) fn new(clock: &Arc<SystemClock>, limits: &'a Limits<'a>) -> Self {
        let start = clock.monotonic();
        Self {
            clock: Arc::clone(clock),
            start,
            limits,
            latencies: BTreeMap::new(),
            series: Series::default(),
            ops: 0,
            user_bytes: 0,
            now: Duration::ZERO,
            told: Duration::ZERO,
        }
    }

    /// A recorder for another thread, that starts when this one did.
    pub(crate) fn part(&self) -> Self {
        let mut part = Self::new(&self.clock, self.limits);
        part.start = self.start;
        part
    }

    /// Takes in what a part recorded.
    pub(crate) fn absorb(&mut self, part: &Self) {
        for (op, histogram) in &part.latencies {
            let own = self.latencies.entry(*op).or_insert_with(histogram_new);
            own.add(histogram)
                .expect("a histogram that grows takes all");
        }
        self.series.absorb(&part.series);
        self.ops += part.ops;
        self.user_bytes += part.user_bytes;
        self.now = self.now.max(part.now);
    }

    /// Does and times one operation that stands for `ops` operations on `bytes` bytes of user data.
    pub(crate) fn time<T>(
        &mut self,
        op: Op,
        (ops, bytes): (u64, u64),
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = self.clock.monotonic();
        let done = body()?;
        let after = self.clock.monotonic();
        self.now = after.saturating_sub(self.start);
        self.took(op, (ops, bytes), after.saturating_sub(before));
        Ok(done)
    }

    /// Takes in an operation that was timed elsewhere.
    pub(crate) fn took(&mut self, op: Op, (ops, bytes): (u64, u64), time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let histogram = self.latencies.entry(op).or_insert_with(histogram_new);
        histogram
            .record(nanos.max(1))
            .expect("a histogram that grows takes all");
        self.count(ops, bytes);
        self.series.add(self.now, ops, Some(nanos));
    }

    /// Counts operations that are not timed one by one. To be called every [`TALLY`] of them.
    pub(crate) fn tally(&mut self, ops: u64, bytes: u64) {
        self.now = self.clock.monotonic().saturating_sub(self.start);
        self.count(ops, bytes);
        self.series.add(self.now, ops, None);
    }

    fn count(&mut self, ops: u64, bytes: u64) {
        self.ops += ops;
        self.user_bytes += bytes;
        if self.now.saturating_sub(self.told) > Duration::from_millis(200) {
            self.told = self.now;
            (self.limits.progress)(self.ops);
        }
    }

    /// Whether the phase has had its time.
    pub(crate) fn is_over(&self) -> bool {
        self.limits.cap.is_some_and(|cap| self.now >= cap)
    }

    /// Operations so far.
    pub(crate) const fn ops(&self) -> u64 {
        self.ops
    }

    /// Bytes of user data so far.
    pub(crate) const fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.start)
    }

    /// The latencies, by name.
    pub(crate) fn latencies(&self) -> BTreeMap<String, Latency> {
        let named = |(op, histogram): (&Op, &Histogram<u64>)| {
            (op.name().to_owned(), Latency::of(histogram))
        };
        self.latencies.iter().map(named).collect()
    }

    /// The series.
    pub(crate) fn series(&self) -> Vec<Point> {
        self.series.points()
    }
}

/// Does a phase's work by several threads; each is told its number.
pub(crate) fn by_threads(
    record: &mut Recorder<'_>,
    threads: u64,
    body: impl Fn(u64, &mut Recorder<'_>) -> Result<()> + Sync,
) -> Result<()> {
    if threads == 1 {
        return body(0, record);
    }
    let parts: Vec<Result<Recorder<'_>>> = std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            let (mut part, body) = (record.part(), &body);
            scope.spawn(move || {
                body(thread, &mut part)?;
                Ok::<_, Error>(part)
            })
        };
        let spawned: Vec<_> = (0..threads).map(spawn).collect();
        let joined = spawned.into_iter().map(|thread| thread.join());
        joined
            .map(|part| part.expect("a worker does not panic"))
            .collect()
    });
    for part in parts {
        record.absorb(&part?);
    }
    Ok(())
}

fn histogram_new() -> Histogram<u64> {
    let mut histogram = Histogram::new(DIGITS).expect("the number of digits is valid");
    histogram.auto(true);
    histogram
}

impl Latency {
    #[expect(
        clippy::cast_precision_loss,
        reason = "microseconds for people; the digits lost are below a nanosecond"
    )]
    fn of(histogram: &Histogram<u64>) -> Self {
        let us = |nanos: u64| nanos as f64 / 1e3;
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_any_length_are_kept() {
        let mut histogram = histogram_new();
        for nanos in [1, 1_000, 5_000_000, 90_000_000_000] {
            histogram.record(nanos).unwrap();
        }
        let latency = Latency::of(&histogram);
        assert_eq!(latency.count, 4);
        assert!((0.9..1.1).contains(&latency.p50_us), "{latency:?}");
        assert!((89e6..91e6).contains(&latency.max_us), "{latency:?}");
    }

    #[test]
    fn a_phase_is_over_after_its_time_and_not_before() {
        let clock = Arc::new(SystemClock::default());
        let limits = |cap| Limits {
            cap: Some(cap),
            progress: &|_| (),
        };
        let (long, none) = (limits(Duration::from_secs(3600)), limits(Duration::ZERO));
        let (mut slow, mut fast) = (Recorder::new(&clock, &long), Recorder::new(&clock, &none));
        slow.tally(1, 1);
        fast.tally(1, 1);
        assert!(!slow.is_over());
        assert!(fast.is_over());
    }
}
