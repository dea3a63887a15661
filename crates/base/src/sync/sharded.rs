//! Per-thread copies of a value, so that readers do not write to a shared cache line.
//!
//! A processor that writes to a cache line takes it away from all others. If every reader counts or
//! locks something, all readers wait for one line. A [`Sharded`] value exists [`SHARDS`] times,
//! each copy in cache lines of its own, and a thread always uses the same copy.

use crate::thread;
use std::ops::Deref;

/// Number of copies of a [`Sharded`] value. With more threads, some share a copy, which is slower
/// but still correct. There are two copies under the model checker, which covers both cases in few
/// steps.
pub const SHARDS: usize = if cfg!(feature = "shuttle") { 2 } else { 32 };

/// A value in a pair of cache lines of its own: processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// [`SHARDS`] values, of which each thread uses one.
#[derive(Debug)]
pub struct Sharded<T>(Box<[Apart<T>; SHARDS]>);

impl<T> Sharded<T> {
    /// Fills each copy with a value that `make` returns.
    pub fn new(mut make: impl FnMut() -> T) -> Self {
        Self(Box::new(std::array::from_fn(|_| Apart(make()))))
    }

    /// Returns the copy of the calling thread. No other thread uses it, unless more than [`SHARDS`]
    /// threads were ever started.
    #[must_use]
    pub fn own(&self) -> &T {
        &self.0[thread::number() % SHARDS]
    }

    /// Iterates over all copies, always in the same order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|apart| &apart.0)
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    /// Returns the sum of each copy after `threads` concurrent threads have added to their own
    /// copy.
    fn added(threads: u64) -> Vec<u64> {
        let counts = Sharded::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for number in 0..threads {
                let counts = &counts;
                scope.spawn(move || {
                    for _ in 0..100 {
                        counts.own().fetch_add(1 + number, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = counts.iter().map(|count| count.load(Ordering::Relaxed));
        all.filter(|count| *count > 0).collect()
    }

    #[test]
    fn a_thread_keeps_to_one_and_nothing_is_lost() {
        assert_eq!(added(1), [100]);
        let many = added(100);
        assert!(many.len() <= SHARDS);
        assert_eq!(many.iter().sum::<u64>(), 100 * (1..=100).sum::<u64>());
    }

    #[test]
    fn values_share_no_lines() {
        let values = Sharded::<u8>::default();
        let places: Vec<usize> = values
            .iter()
            .map(|v| std::ptr::from_ref(v).addr())
            .collect();
        assert_eq!(places.len(), SHARDS);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == 128));
        assert_eq!(places[0] % 128, 0);
    }

    #[test]
    fn threads_that_follow_each_other_have_different_ones() {
        let values = Sharded::<u8>::default();
        let mut places: Vec<usize> = std::thread::scope(|scope| {
            let place = || std::ptr::from_ref(values.own()).addr();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(place)).collect();
            let places = threads.into_iter().map(|thread| thread.join());
            places.map(|place| place.expect("no panic")).collect()
        });
        places.sort_unstable();
        places.dedup();
        // Other tests start threads at the same time: two of these may be SHARDS apart.
        assert!(places.len() > 1, "{places:?}");
    }
}
