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
use crate::key_moments::KeyMoments;
use crate::range_delete::note_steps;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use stitch_base::Seqno;
use stitch_kv::KeyRange;

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
///
/// Stripes here are those between the moments of any key. Keys of a tree may have fewer moments
/// ([`crate::key_moments`]): then a stripe of such a key is one or several of these.
pub(crate) struct Fragments {
    /// Moments held open.
    moments: KeyMoments,
    /// One stripe for each moment of any key and one for what is newer than all of them.
    stripes: Vec<Vec<RangeDelete>>,
    /// Numbers of the stripes that have any, in order: few, however many moments there are.
    filled: Vec<usize>,
}

impl Fragments {
    /// Cuts range deletes for readers of these moments and of later states.
    pub(crate) fn new<'d>(
        deletes: impl IntoIterator<Item = &'d RangeDelete>,
        moments: &KeyMoments,
    ) -> Self {
        debug_assert!(moments.all().is_sorted(), "moments are in order");
        let mut whole: Vec<Vec<&RangeDelete>> = vec![Vec::new(); moments.all().len() + 1];
        for delete in deletes {
            whole[stripe_of(moments.all(), delete.seqno)].push(delete);
        }
        let stripes: Vec<_> = whole.into_iter().map(newest_of_each_key).collect();
        let are_apart = |all: &[RangeDelete]| all.windows(2).all(|two| two[0].end <= two[1].start);
        debug_assert!(
            stripes.iter().all(|all| are_apart(all)),
            "fragments are apart"
        );
        let is_in = |n: usize, f: &RangeDelete| stripe_of(moments.all(), f.seqno) == n;
        debug_assert!(
            stripes
                .iter()
                .enumerate()
                .all(|(n, all)| all.iter().all(|f| is_in(n, f))),
            "a fragment is in the stripe of its number"
        );
        let has_any = |stripe: &usize| !stripes[*stripe].is_empty();
        Self {
            moments: moments.clone(),
            filled: (0..stripes.len()).filter(has_any).collect(),
            stripes,
        }
    }

    /// Reports whether there is no range delete at all.
    pub(crate) const fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// Returns the moments that they were cut for.
    pub(crate) const fn moments(&self) -> &KeyMoments {
        &self.moments
    }

    /// Returns the stripes that make up stripe number `stripe` of a key with the moments `own`.
    fn stripes_within(&self, own: &[Seqno], stripe: usize) -> Range<usize> {
        if self.moments.is_even() {
            return stripe..stripe + 1;
        }
        let (all, count) = (self.moments.all(), self.stripes.len());
        let before = stripe.checked_sub(1).map(|before| own.get(before));
        let start = before.map_or(0, |before| {
            before.map_or(count, |before| stripe_of(all, before.next()))
        });
        let last = own.get(stripe);
        let end = last.map_or(count, |last| stripe_of(all, *last) + 1);
        debug_assert!(start <= end, "a stripe ends after it begins");
        debug_assert!(end <= count, "a stripe of these");
        debug_assert!(
            start == end || self.stripe_around(own, start) == stripe,
            "a stripe is around those within it"
        );
        start..end
    }

    /// Returns the number of the stripe of a key with the moments `own` that one of these is in.
    fn stripe_around(&self, own: &[Seqno], stripe: usize) -> usize {
        debug_assert!(stripe < self.stripes.len(), "a stripe of these");
        let last = self.moments.all().get(stripe);
        last.map_or(own.len(), |last| stripe_of(own, *last))
    }

    /// Returns those of some stripes that have range deletes.
    fn filled_in(&self, stripes: Range<usize>) -> &[usize] {
        debug_assert!(stripes.start <= stripes.end, "stripes are in order");
        let place = |stripe: usize| self.filled.partition_point(|filled| *filled < stripe);
        &self.filled[place(stripes.start)..place(stripes.end)]
    }

    /// Returns the first stripe with range deletes that is not before `stripe`, for a key with the
    /// moments `own`.
    pub(super) fn next_filled(&self, own: &[Seqno], stripe: usize) -> Option<usize> {
        self.filled_from(own, stripe).next()
    }

    /// Returns the stripes with range deletes that are not before `stripe`, in order, for a key
    /// with the moments `own`. One may come several times.
    pub(crate) fn filled_from(&self, own: &[Seqno], stripe: usize) -> impl Iterator<Item = usize> {
        let start = self.stripes_within(own, stripe).start;
        let filled = self.filled_in(start..usize::MAX);
        filled
            .iter()
            .map(move |filled| self.stripe_around(own, *filled))
    }

    /// Returns all fragments, by start, then newest first.
    pub(crate) fn sorted(&self) -> Vec<RangeDelete> {
        let mut all: Vec<RangeDelete> = self.stripes.iter().flatten().cloned().collect();
        sort(&mut all);
        all
    }

    /// Returns the newest range delete of a stripe over a key with the moments `own`.
    pub(crate) fn newest(&self, own: &[Seqno], key: &[u8], stripe: usize) -> Option<Seqno> {
        debug_assert!(stripe <= own.len(), "a stripe of the key");
        let filled = self.filled_in(self.stripes_within(own, stripe));
        let mut newest_first = filled.iter().rev();
        newest_first.find_map(|stripe| self.newest_in(key, *stripe))
    }

    fn newest_in(&self, key: &[u8], stripe: usize) -> Option<Seqno> {
        let fragments = &self.stripes[stripe];
        let at = fragments.partition_point(|f| f.end.as_slice() <= key);
        let found = fragments.get(at)?;
        debug_assert!(found.start < found.end, "a fragment has keys");
        debug_assert!(key < found.end.as_slice(), "fragments are in key order");
        (found.start.as_slice() <= key).then_some(found.seqno)
    }

    /// Reports whether the range deletes hide all entries with keys and sequence numbers in these
    /// ranges, ends included, from every reader that could see any of them. Where keys have
    /// different moments, it may report false although they do.
    ///
    /// The oldest of these readers sees no range delete of a later stripe. What hides the entries
    /// from it hides them from all others too, so one stripe decides.
    pub(crate) fn hide_all(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> bool {
        debug_assert!(min_seqno <= max_seqno, "a range of numbers is in order");
        debug_assert!(first <= last, "a range of keys is in order");
        if self.is_empty() {
            return false;
        }
        let own = self.moments.of_keys(first, last);
        let stripe = stripe_of(&own, max_seqno);
        if stripe != stripe_of(&own, min_seqno) {
            return false;
        }
        let mut filled = self.filled_in(self.stripes_within(&own, stripe)).iter();
        filled.any(|stripe| self.cover(*stripe, (first, last), max_seqno))
    }

    /// Reports whether range deletes of a stripe that are newer than `seqno` cover all these keys.
    fn cover(&self, stripe: usize, (first, last): (&[u8], &[u8]), seqno: Seqno) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        let mut at = first;
        for fragment in self.touching(stripe, first, last) {
            debug_assert!(
                fragment.end.as_slice() > at,
                "fragments are in key order and apart"
            );
            if fragment.start.as_slice() > at || fragment.seqno <= seqno {
                return false;
            }
            at = &fragment.end;
        }
        at > last
    }

    /// Returns which of the entries with keys and sequence numbers in these ranges, ends included,
    /// are hidden from some readers. A stripe that it names is one of a key with the moments of any
    /// of these keys.
    pub(crate) fn hidden(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> Hidden {
        debug_assert!(min_seqno <= max_seqno, "a range of numbers is in order");
        debug_assert!(first <= last, "a range of keys is in order");
        let from = stripe_of(self.moments.all(), min_seqno);
        for stripe in self.filled_in(from..usize::MAX) {
            let mut touching = self.touching(*stripe, first, last);
            if touching.any(|fragment| fragment.seqno > min_seqno) {
                let own = self.moments.of_keys(first, last);
                return match self.cover(*stripe, (first, last), max_seqno) {
                    true => Hidden::All(self.stripe_around(&own, *stripe)),
                    false => Hidden::Some,
                };
            }
        }
        Hidden::Nothing
    }

    /// Reports whether a range delete may hide an entry with a key and a sequence number in these
    /// ranges from all readers of a stripe. Where it reports false, none does: a compaction that
    /// leaves such an entry as it is may leave out the range delete.
    pub(crate) fn hide_any(
        &self,
        (first, last): (&[u8], &[u8]),
        (min_seqno, max_seqno): (Seqno, Seqno),
    ) -> bool {
        debug_assert!(min_seqno <= max_seqno, "a range of numbers is in order");
        debug_assert!(first <= last, "a range of keys is in order");
        if self.is_empty() {
            return false;
        }
        if self.moments.differ(first, last) {
            // Its stripes are those of no one key: any newer range delete counts.
            let from = stripe_of(self.moments.all(), min_seqno);
            let mut filled = self.filled_in(from..usize::MAX).iter();
            let is_newer = |fragment: &RangeDelete| fragment.seqno > min_seqno;
            return filled.any(|stripe| self.touching(*stripe, first, last).any(is_newer));
        }
        let own = self.moments.of_keys(first, last);
        let within = |seqno: Seqno| self.stripes_within(&own, stripe_of(&own, seqno));
        let stripes = within(min_seqno).start..within(max_seqno).end;
        self.filled_in(stripes).iter().any(|stripe| {
            let around = self.stripe_around(&own, *stripe);
            let before = around.checked_sub(1).map(|at| own[at].next());
            // The oldest entry there that is of the stripe.
            let oldest = min_seqno.max(before.unwrap_or_default());
            let mut touching = self.touching(*stripe, first, last);
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
        debug_assert!(stripe < self.stripes.len(), "a stripe of these");
        debug_assert!(first <= last, "a range of keys is in order");
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
    let most = (2 * deletes.len()).saturating_sub(1);
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
            debug_assert!(coming.peek().is_none(), "each has begun");
            debug_assert!(out.len() <= most, "fragments are few");
            return out;
        };
        if end <= at {
            begun.pop();
            continue;
        }
        let until = coming.peek().map_or(end, |next| end.min(&next.start));
        debug_assert!(at < until, "a fragment has keys");
        push(&mut out, at, until, seqno);
        at = until;
    }
}

/// Adds a fragment, or lengthens the last one where it goes on.
fn push(out: &mut Vec<RangeDelete>, start: &[u8], end: &[u8], seqno: Seqno) {
    debug_assert!(start < end, "a fragment has keys");
    debug_assert!(
        out.last().is_none_or(|last| last.end.as_slice() <= start),
        "fragments come in key order"
    );
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
/// Where nothing is below and no moment of its keys is older, a range delete has hidden all that it
/// ever will, and goes.
pub(super) fn surviving(
    mut fragments: Vec<RangeDelete>,
    moments: &KeyMoments,
    is_bottom: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Vec<RangeDelete> {
    debug_assert!(
        fragments.is_sorted_by(|f, next| f.start <= next.start),
        "fragments come by start"
    );
    fragments.retain(|f| {
        let own = moments.of_range(KeyRange::new(&f.start, &f.end));
        holds_any(&own, Seqno(0), f.seqno) || !is_bottom(&f.start, &f.end)
    });
    fragments
}

#[cfg(test)]
mod tests;
