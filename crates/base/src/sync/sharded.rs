//! Memory that threads do not share: who only reads should not write to what all write to.
//!
//! A processor that writes takes the line of memory from all others. So where every reader counts or
//! locks something, many readers wait for one line, whatever is done with it. A [`Sharded`] value is
//! there some times, each in lines of its own, and a thread always uses the same one.

use crate::thread;
use std::ops::Deref;

/// How many there are of a [`Sharded`] value. With more threads some use the same one, which is slower and
/// no less right. Two under the model checker: all cases, and few steps.
pub const SHARDS: usize = if cfg!(feature = "shuttle") { 2 } else { 32 };

/// A value in lines of memory of its own: a pair of them, as processors fetch pairs.
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
    /// Values that `make` makes.
    pub fn new(mut make: impl FnMut() -> T) -> Self {
        Self(Box::new(std::array::from_fn(|_| Apart(make()))))
    }

    /// The one of the calling thread. No other thread has it, unless there are more than [`SHARDS`] or some
    /// have come and gone.
    #[must_use]
    pub fn own(&self) -> &T {
        &self.0[thread::number() % SHARDS]
    }

    /// All of them, always in the same order.
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

    /// Sums of what threads that run at the same time have added, with who used one alone.
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
