//! Refuses chosen allocations and reservations, so that a simulation can test a store that runs out
//! of space at each of them. Without a plan this costs a read of one unchanging word.

use std::ops::Range;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts allocations and reservations, and refuses some of them.
#[derive(Debug, Default)]
pub struct Refusals {
    plan: Mutex<Range<u64>>,
    spares_promises: AtomicBool,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Refusals {
    /// Restarts counting at 0, and refuses the requests with these numbers.
    pub fn begin(&self, plan: Range<u64>) {
        debug_assert!(plan.start <= plan.end, "numbers of requests go up");
        let mut now = self.plan.lock();
        *now = plan;
        self.asked.store(0, Ordering::SeqCst);
        self.refused.store(0, Ordering::SeqCst);
    }

    /// Sets whether reservations are exempt: neither counted nor refused. A reservation that is
    /// granted and then not honoured must never be visible to a user.
    pub fn spare_promises(&self, spares: bool) {
        self.spares_promises.store(spares, Ordering::SeqCst);
    }

    /// Stops refusing.
    pub fn end(&self) {
        *self.plan.lock() = 0..0;
    }

    /// The number of requests since counting began.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// The number of refused requests.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Counts a reservation, and returns whether it must be refused.
    pub(crate) fn refuse_promise(&self) -> bool {
        !self.spares_promises.load(Ordering::SeqCst) && self.refuse()
    }

    /// Counts an allocation, and returns whether it must be refused.
    pub(crate) fn refuse(&self) -> bool {
        let plan = self.plan.lock();
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let is_refused = plan.contains(&number);
        if is_refused {
            let refused = self.refused.fetch_add(1, Ordering::SeqCst);
            assert!(refused <= number, "a request is refused once");
        }
        is_refused
    }
}
