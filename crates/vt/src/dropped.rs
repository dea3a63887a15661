//! The moments that nothing holds any more, of which tables may still have versions.
//!
//! A moment counts only if a write-out or a compaction kept versions for it: most snapshots are
//! dropped before any of them looks.

use stitch_base::Seqno;

/// From the oldest to the newest dropped moment, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedMoments {
    oldest: Seqno,
    newest: Seqno,
}

impl DroppedMoments {
    /// One moment.
    pub(crate) const fn one(seqno: Seqno) -> Self {
        Self {
            oldest: seqno,
            newest: seqno,
        }
    }

    /// Any up to this one: of a store that was opened now.
    pub(crate) const fn up_to(newest: Seqno) -> Self {
        let oldest = Seqno(0);
        Self { oldest, newest }
    }

    /// Returns the least that has both.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            oldest: self.oldest.min(other.oldest),
            newest: self.newest.max(other.newest),
        }
    }

    /// Reports whether any of these moments may have seen a write from `min_seqno` on.
    pub(crate) fn may_see(self, min_seqno: Seqno) -> bool {
        min_seqno <= self.newest
    }

    /// Reports whether any of these moments may not have seen a write up to `max_seqno`.
    pub(crate) fn may_miss(self, max_seqno: Seqno) -> bool {
        self.oldest < max_seqno
    }
}

/// Notes which moments were held while something was written, and which of these were dropped.
///
/// - Moments are held in ascending order. So one that is not newer than any of those that something
///   was written for was held then too.
#[derive(Debug, Default)]
pub(crate) struct KeptMoments {
    /// The newest that was held when a write-out or a compaction began.
    newest: Seqno,
    dropped: Option<DroppedMoments>,
}

impl KeptMoments {
    /// Versions are kept for these moments. `is_held` tells whether one is held still: a moment
    /// that was dropped before this call counts too.
    pub(crate) fn keep(&mut self, seqnos: &[Seqno], is_held: impl Fn(Seqno) -> bool) {
        debug_assert!(seqnos.is_sorted(), "moments are in order");
        let before = self.newest;
        let Some(newest) = seqnos.last().filter(|newest| **newest > before) else {
            return;
        };
        self.newest = *newest;
        let new = seqnos.iter().rev().take_while(|seqno| **seqno > before);
        for gone in new.filter(|seqno| !is_held(**seqno)) {
            self.end(*gone);
        }
    }

    /// Nothing holds a moment any more.
    pub(crate) fn end(&mut self, seqno: Seqno) {
        if seqno <= self.newest {
            self.add(DroppedMoments::one(seqno));
        }
    }

    /// Adds moments that were dropped.
    pub(crate) fn add(&mut self, dropped: DroppedMoments) {
        self.dropped = Some(self.dropped.map_or(dropped, |all| all.join(dropped)));
    }

    /// Takes out the dropped moments.
    pub(crate) const fn take_dropped(&mut self) -> Option<DroppedMoments> {
        self.dropped.take()
    }

    /// Reports whether there are dropped moments.
    pub(crate) const fn has_dropped(&self) -> bool {
        self.dropped.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_moments_that_something_was_kept_for_count() {
        let mut moments = KeptMoments::default();
        let held = [5, 7, 9].map(Seqno);
        moments.keep(&held, |seqno| seqno != Seqno(5));
        moments.end(Seqno(11));
        moments.end(Seqno(9));
        let dropped = moments.take_dropped().expect("two were dropped");
        assert!(dropped.may_see(Seqno(9)) && !dropped.may_see(Seqno(10)));
        assert!(dropped.may_miss(Seqno(6)) && !dropped.may_miss(Seqno(5)));
        assert_eq!(moments.take_dropped(), None);
    }
}
