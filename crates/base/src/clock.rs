//! Clocks: the machine's, and one that a test moves by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970-01-01 UTC; negative before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From whole seconds and nanoseconds, as `struct timespec` has them. Clamped to what 64 bits
    /// of nanoseconds hold (the years 1678 to 2262).
    #[must_use]
    pub fn from_parts(seconds: i64, nanos: u32) -> Self {
        let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let clamped = total.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self(i64::try_from(clamped).expect("clamped to the range"))
    }

    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds after [`Self::seconds`].
    #[must_use]
    pub fn nanos(self) -> u32 {
        u32::try_from(self.0.rem_euclid(1_000_000_000)).expect("below a billion")
    }
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for what users see.
    fn now(&self) -> Timestamp;
    /// Monotonic time since an arbitrary moment, for intervals.
    fn monotonic(&self) -> Duration;
    /// Blocks the calling thread for `duration`.
    fn sleep(&self, duration: Duration);
}

/// The machine's clock.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the shim")]
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the shim")]
        let now = SystemTime::now();
        match now.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp::from_parts(
                i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                after.subsec_nanos(),
            ),
            Err(before) => {
                let nanos = i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX);
                Timestamp(-nanos)
            }
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        #[expect(clippy::disallowed_methods, reason = "this is the shim")]
        std::thread::sleep(duration);
    }
}

/// A clock that moves only when told, and by a sleep.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).expect("a test's time fits");
        self.nanos.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(i64::try_from(self.nanos.load(Ordering::SeqCst)).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_times_before_1970_are_rounded_down() {
        let time = Timestamp::from_parts(-2, 999_999_999);
        assert_eq!(time.0, -1_000_000_001);
        assert_eq!((time.seconds(), time.nanos()), (-2, 999_999_999));
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(Timestamp::from_parts(i64::MAX, 0).0, i64::MAX);
        assert_eq!(Timestamp::from_parts(i64::MIN, 0).0, i64::MIN);
    }

    #[test]
    fn a_manual_clock_moves_by_sleeps() {
        let clock = ManualClock::default();
        clock.sleep(Duration::from_secs(3));
        assert_eq!(clock.monotonic(), Duration::from_secs(3));
        assert_eq!(clock.now().seconds(), 3);
    }
}
