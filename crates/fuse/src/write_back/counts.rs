//! Counts the WRITEs that come from the kernel's cache.

use std::sync::OnceLock;

use stitch_base::sync::atomic::{AtomicU64, Ordering};

use super::Look;
use super::unanswered::UnansweredCount;

/// The WRITEs from the kernel's cache that a session has served and serves. Two atomic additions
/// for each, nothing for other requests.
///
/// Invariant: no more have ended than have begun.
#[derive(Debug, Default)]
pub struct WriteBackCounts {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The kernel's count of requests without a reply.
    waiting: OnceLock<UnansweredCount>,
}

/// A WRITE that is being served. Dropped when it was.
#[derive(Debug)]
pub(crate) struct Busy<'a>(&'a WriteBackCounts);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

impl WriteBackCounts {
    /// Notes the mount's device number, by which the kernel names the connection.
    pub(crate) fn connect(&self, device: Option<(u32, u32)>) {
        if let Some((_, minor)) = device {
            let first = self.waiting.set(UnansweredCount::of(minor)).is_ok();
            debug_assert!(first, "a session has one mount");
        }
    }

    /// Counts a WRITE from the cache until the guard is dropped.
    pub(crate) fn begin(&self) -> Busy<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Returns the counts. `own` is the number of requests of the kernel that the caller serves.
    pub(crate) fn look(&self, own: u64) -> Look {
        let waiting = self.waiting.get().and_then(UnansweredCount::read);
        // In this order a WRITE that ends meanwhile counts as busy.
        let ended = self.ended.load(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Relaxed);
        assert!(ended <= begun, "no more have ended than have begun");
        Look {
            begun,
            busy: begun - ended,
            others: waiting.map(|waiting| waiting.saturating_sub(own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(begun: u64, busy: u64, others: Option<u64>) -> Look {
        Look {
            begun,
            busy,
            others,
        }
    }

    #[test]
    fn a_write_is_busy_until_its_guard_goes_also_by_a_panic() {
        let counts = WriteBackCounts::default();
        assert_eq!(counts.look(1), look(0, 0, None));
        let first = counts.begin();
        let second = counts.begin();
        assert_eq!(counts.look(1), look(2, 2, None));
        drop(first);
        assert_eq!(counts.look(1), look(2, 1, None));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _busy = second;
            panic!("a handler");
        }));
        assert!(panicked.is_err());
        assert_eq!(counts.look(1), look(2, 0, None));
    }
}
