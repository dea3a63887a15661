//! Allocations and promises that are refused on purpose, so that a simulation can show what a store does
//! when space runs out at any one of them. Without a plan they cost a look at a word that never changes.

use std::ops::Range;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts what is asked of the zones, and refuses some of it.
#[derive(Debug, Default)]
pub struct Refusals {
    plan: Mutex<Range<u64>>,
    spares_promises: AtomicBool,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Refusals {
    /// Begins to count at 0, and refuses what has these numbers from then on.
    pub fn begin(&self, plan: Range<u64>) {
        let mut now = self.plan.lock();
        *now = plan;
        self.asked.store(0, Ordering::SeqCst);
        self.refused.store(0, Ordering::SeqCst);
    }

    /// From now on promises are neither counted nor refused, or they are again. What was promised and is
    /// not there is what no user should ever meet.
    pub fn spare_promises(&self, spares: bool) {
        self.spares_promises.store(spares, Ordering::SeqCst);
    }

    /// Refuses nothing any more.
    pub fn end(&self) {
        *self.plan.lock() = 0..0;
    }

    /// How often space was asked for since it began to count.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// How much of this was refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// A promise is asked for: whether it is refused.
    pub(crate) fn refuse_promise(&self) -> bool {
        !self.spares_promises.load(Ordering::SeqCst) && self.refuse()
    }

    /// Space is asked for: whether it is refused.
    pub(crate) fn refuse(&self) -> bool {
        let plan = self.plan.lock();
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let is_refused = plan.contains(&number);
        if is_refused {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        is_refused
    }
}
