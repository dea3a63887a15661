//! The range deletes of a compaction, cut into disjoint fragments.
//!
//! Snapshots divide sequence numbers into stripes, and no reader tells apart two states within one.
//! So of all range deletes of a stripe over a key only the newest matters. A sweep over the keys
//! keeps it:
//!
//! ```text
//! seqno 9         [=======)
//! seqno 7     [=======)
//! seqno 5  [==================)          hidden whole by a newer one: seqno 4
//! seqno 4       [====)
//!          ---------------------> keys
//! kept     [5 [7  [9      [5  )
//! ```
//!
//! Invariants:
//! - the fragments of a stripe are in key order and share no key;
//! - n range deletes make at most 2n - 1 fragments, in O(n log n) steps, however they overlap;
//! - a pass over disjoint blocks visits each fragment O(1) times beside O(log n) for each block.
//!
//! Differs: LSM-trees of today keep every sequence number of every fragment, which is quadratic for
//! nested ranges.

use super::stitch::holds_any;
use crate::entry::RangeDelete;
use crate::range_delete::note_steps;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use stitch_base::Seqno;

/// Which of some entries range deletes hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    Nothing,
    /// All of them, from the readers of this stripe on.
    All(usize),
    /// Some may be, or all from different stripes on.
    Some,
}

/// The fragments of each stripe.
pub(crate) struct Fragments<'a> {
    /// Moments held open, in ascending order.
    snapshots: &'a [Seqno],
    /// One stripe for each snapshot and one for what is newer than all of them.
    stripes: Vec<Vec<RangeDelete>>,
    /// Numbers of the stripes that have any, in order: few, however many snapshots there are.
    filled: Vec<usize>,
}

impl<'a> Fragments<'a> {
    /// Cuts range deletes for readers of these snapshots and of later states.
    pub(crate) fn new<'d>(
        deletes: impl IntoIterator<Item = &'d RangeDelete>,
        snapshots: &'a [Seqno],
    ) -> Self {
        let mut whole: Vec<Vec<&RangeDelete>> = vec![Vec::new(); snapshots.len() + 1];
        for delete in deletes {
            whole[stripe_of(snapshots, delete.seqno)].push(delete);
        }
        let stripes: Vec<_> = whole.into_iter().map(newest_of_each_key).collect();
        let has_any = |stripe: &usize| !stripes[*stripe].is_empty();
        Self {
            snapshots,
            filled: (0..stripes.len()).filter(has_any).collect(),
            stripes,
        }
    }

    /// Reports whether there is no range delete at all.
    pub(crate) const fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// Returns the first stripe with range deletes that is not before `stripe`.
    pub(super) fn next_filled(&self, stripe: usize) -> Option<usize> {
        let at = self.filled.partition_point(|filled| *filled < stripe);
        self.filled.get(at).copied()
    }

    /// Returns the stripes with range deletes that are not before `stripe`, in order.
    pub(crate) fn filled_from(&self, stripe: usize) -> impl Iterator<Item = usize> {
        let at = self.filled.partition_point(|filled| *filled < stripe);
        self.filled[at..].iter().copied()
    }

    /// Returns all fragments, by start, then newest first.
    pub(crate) fn sorted(&self) -> Vec<RangeDelete> {
        let mut all: Vec<RangeDelete> = self.stripes.iter().flatten().cloned().collect();
        sort(&mut all);
        all
    }

    /// Returns the newest range delete of a stripe over a key.
    pub(crate) fn newest(&self, key: &[u8], stripe: usize) -> Option<Seqno> {
        let fragments = &self.stripes[stripe];
        let at = fragments.partition_point(|f| f.end.as_slice() <= key);
        let found = fragments.get(at)?;
        (found.start.as_slice() <= key).then_some(found.seqno)
    }

    /// Reports whether the range deletes hide all entries with keys and sequence numbers in these
    /// ranges, ends included, from every reader that could see any of them.
    ///
    /// The oldest of these readers sees no range delete of a later stripe. What hides the entries
    /// from it hides them from all others too, so one stripe decides.
    pub(crate) fn hide_all(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        let stripe = stripe_of(self.snapshots, max_seqno);
        if self.is_empty() || stripe != stripe_of(self.snapshots, min_seqno) {
            return false;
        }
        self.cover(stripe, (first, last), max_seqno)
    }

    /// Reports whether range deletes of a stripe that are newer than `seqno` cover all these keys.
    fn cover(&self, stripe: usize, (first, last): (&[u8], &[u8]), seqno: Seqno) -> bool {
        let mut at = first;
        for fragment in self.touching(stripe, first, last) {
            if fragment.start.as_slice() > at || fragment.seqno <= seqno {
                return false;
            }
            at = &fragment.end;
        }
        at > last
    }

    /// Returns which of the entries with keys and sequence numbers in these ranges, ends included,
    /// are hidden from some readers.
    pub(crate) fn hidden(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> Hidden {
        debug_assert!(min_seqno <= max_seqno, "a range of numbers is in order");
        for stripe in self.filled_from(stripe_of(self.snapshots, min_seqno)) {
            let mut touching = self.touching(stripe, first, last);
            if touching.any(|fragment| fragment.seqno > min_seqno) {
                return match self.cover(stripe, (first, last), max_seqno) {
                    true => Hidden::All(stripe),
                    false => Hidden::Some,
                };
            }
        }
        Hidden::Nothing
    }

    /// Reports whether a range delete may hide an entry with a key and a sequence number in these
    /// ranges from all readers of a stripe.
    pub(crate) fn hide_any(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> bool {
        let stripe = |seqno: Seqno| stripe_of(self.snapshots, seqno);
        let (oldest, newest) = (stripe(min_seqno), stripe(max_seqno));
        let begin = self.filled.partition_point(|filled| *filled < oldest);
        let filled = self.filled[begin..].iter().copied();
        filled.take_while(|stripe| *stripe <= newest).any(|stripe| {
            let before = stripe.checked_sub(1).map(|at| self.snapshots[at].next());
            // The oldest entry there that is of the stripe.
            let oldest = min_seqno.max(before.unwrap_or_default());
            let mut touching = self.touching(stripe, first, last);
            touching.any(|fragment| fragment.seqno > oldest)
        })
    }

    /// The fragments of a stripe that hold any key from `first` to `last`, both included.
    fn touching<'b>(
        &'b self,
        stripe: usize,
        first: &'b [u8],
        last: &'b [u8],
    ) -> impl Iterator<Item = &'b RangeDelete> {
        let fragments = &self.stripes[stripe];
        let begin = fragments.partition_point(|f| f.end.as_slice() <= first);
        fragments[begin..]
            .iter()
            .take_while(move |f| f.start.as_slice() <= last)
            .inspect(|_| note_steps(1))
    }
}

fn stripe_of(snapshots: &[Seqno], seqno: Seqno) -> usize {
    snapshots.partition_point(|s| *s < seqno)
}

/// Puts fragments of several stripes in the order in which tables hold them.
pub(super) fn sort(fragments: &mut [RangeDelete]) {
    fragments.sort_by(|a, b| (&a.start, Reverse(a.seqno)).cmp(&(&b.start, Reverse(b.seqno))));
}

/// Returns disjoint range deletes, in key order, that cover each key as the newest of these do.
fn newest_of_each_key(mut deletes: Vec<&RangeDelete>) -> Vec<RangeDelete> {
    deletes.sort_by(|a, b| a.start.cmp(&b.start));
    let mut coming = deletes.into_iter().peekable();
    // Those that have begun, newest first. Those that have ended go when they come to the top.
    let mut begun: BinaryHeap<(Seqno, &[u8])> = BinaryHeap::new();
    let mut out: Vec<RangeDelete> = Vec::new();
    let mut at: &[u8] = &[];
    loop {
        note_steps(1);
        if let Some(delete) = coming.next_if(|d| begun.is_empty() || d.start.as_slice() <= at) {
            at = at.max(delete.start.as_slice());
            begun.push((delete.seqno, &delete.end));
            continue;
        }
        let Some(&(seqno, end)) = begun.peek() else {
            return out;
        };
        if end <= at {
            begun.pop();
            continue;
        }
        let until = coming.peek().map_or(end, |next| end.min(&next.start));
        push(&mut out, at, until, seqno);
        at = until;
    }
}

/// Adds a fragment, or lengthens the last one where it goes on.
fn push(out: &mut Vec<RangeDelete>, start: &[u8], end: &[u8], seqno: Seqno) {
    match out.last_mut() {
        Some(last) if last.seqno == seqno && last.end == start => end.clone_into(&mut last.end),
        _ => out.push(RangeDelete {
            start: start.to_vec(),
            end: end.to_vec(),
            seqno,
        }),
    }
}

/// Returns the fragments that still matter.
///
/// Where nothing is below and no snapshot is older, a range delete has hidden all that it ever
/// will, and goes.
pub(super) fn surviving(
    mut fragments: Vec<RangeDelete>,
    snapshots: &[Seqno],
    is_bottom: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Vec<RangeDelete> {
    fragments.retain(|f| holds_any(snapshots, Seqno(0), f.seqno) || !is_bottom(&f.start, &f.end));
    fragments
}

#[cfg(test)]
mod tests;
