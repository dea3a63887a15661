//! The moments that are held of a tree, by key: readers, branches and most pins hold their moment
//! of every key, a narrowed pin of ranges alone.
//!
//! ```text
//! keys            a        f        k        p
//! held whole      4 ................................
//! pin at 7                 [7.......)        [7.....
//! moments         4        4 7      4        4 7
//! ```
//!
//! What a compaction keeps of a key goes by the moments of that key. What it decides of a block or
//! a range delete goes by the moments of any of its keys. Where these differ, the block is read.

use std::borrow::Cow;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_kv::{KeyRange, KeyRanges};

/// The moments that are held of a tree. Invariant: those of every key, and those of ranges, are
/// moments of any key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyMoments {
    /// Of any key, in ascending order.
    all: Arc<[Seqno]>,
    /// Of every key, in ascending order.
    whole: Arc<[Seqno]>,
    /// Of the keys in ranges alone, in ascending order; none of them is held whole.
    ranged: Arc<[(Seqno, KeyRanges)]>,
}

impl KeyMoments {
    /// Moments of every key, and moments of ranges, each in any order.
    pub(crate) fn new(whole: Vec<Seqno>, mut ranged: Vec<(Seqno, KeyRanges)>) -> Self {
        let whole = in_order(whole);
        ranged.retain(|(seqno, _)| whole.binary_search(seqno).is_err());
        ranged.sort_by_key(|(seqno, _)| *seqno);
        let mut all = whole.clone();
        all.extend(ranged.iter().map(|(seqno, _)| *seqno));
        let all = in_order(all);
        let moments = Self {
            all: all.into(),
            whole: whole.into(),
            ranged: ranged.into(),
        };
        debug_assert!(moments.holds());
        moments
    }

    fn holds(&self) -> bool {
        let most = self.whole.len() + self.ranged.len();
        self.whole.len() <= self.all.len() && self.all.len() <= most
    }

    /// Moments of every key, in any order.
    pub(crate) fn of_every_key(seqnos: &[Seqno]) -> Self {
        let moments = Self::new(seqnos.to_vec(), Vec::new());
        debug_assert!(moments.is_even(), "all keys have the same");
        moments
    }

    /// Returns the moments of any key, in ascending order.
    pub(crate) fn all(&self) -> &[Seqno] {
        &self.all
    }

    /// Returns the keys that have any moment; `None` if every key has one.
    pub(crate) fn keys(&self) -> Option<KeyRanges> {
        if !self.whole.is_empty() {
            return None;
        }
        let ranges = self.ranged.iter().flat_map(|(_, ranges)| ranges.as_slice());
        let keys = KeyRanges::new(ranges.cloned());
        debug_assert!(keys.count() == 0 || !self.all.is_empty(), "of some moment");
        Some(keys)
    }

    /// Reports whether every key has the same moments.
    pub(crate) fn is_even(&self) -> bool {
        debug_assert!(
            !self.ranged.is_empty() || self.all.len() == self.whole.len(),
            "without ranges, each moment is one of every key"
        );
        self.ranged.is_empty()
    }

    fn among(&self, is_held: impl Fn(&KeyRanges) -> bool) -> Cow<'_, [Seqno]> {
        debug_assert!(self.holds());
        if self.ranged.is_empty() {
            return Cow::Borrowed(&self.whole);
        }
        let ranged = self.ranged.iter().filter(|(_, ranges)| is_held(ranges));
        let mut seqnos = self.whole.to_vec();
        seqnos.extend(ranged.map(|(seqno, _)| *seqno));
        let seqnos = in_order(seqnos);
        debug_assert!(
            seqnos.len() <= self.all.len(),
            "they are moments of some key"
        );
        Cow::Owned(seqnos)
    }

    /// Returns the moments of a key, in ascending order.
    pub(crate) fn of(&self, key: &[u8]) -> Cow<'_, [Seqno]> {
        self.among(|ranges| ranges.has(key))
    }

    /// Returns the moments of any key from `first` to `last`, both included, in ascending order.
    pub(crate) fn of_keys(&self, first: &[u8], last: &[u8]) -> Cow<'_, [Seqno]> {
        debug_assert!(first <= last, "a range of keys is in order");
        self.among(|ranges| ranges.meets_keys(first, last))
    }

    /// Returns the moments of any key of a range, in ascending order.
    pub(crate) fn of_range(&self, range: KeyRange<'_>) -> Cow<'_, [Seqno]> {
        self.among(|ranges| ranges.meets(range))
    }

    /// Reports whether keys from `first` to `last`, both included, may have different moments.
    pub(crate) fn differ(&self, first: &[u8], last: &[u8]) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        let mut changes = self.ranged.iter().filter_map(|(_, r)| r.next_change(first));
        changes.any(|change| change <= last)
    }

    /// Returns the first key after `key` that may have other moments; `None` if no key has.
    fn next_change(&self, key: &[u8]) -> Option<&[u8]> {
        let changes = self.ranged.iter().filter_map(|(_, r)| r.next_change(key));
        let next = changes.min();
        debug_assert!(
            next.is_none_or(|next| next > key),
            "a change comes after the key"
        );
        next
    }

    /// Returns the moments as a table with a shift stores them.
    pub(crate) fn stored(&self, shift: u64) -> Self {
        let stored = |seqno: &Seqno| Seqno(seqno.0.saturating_sub(shift));
        let ranged = self.ranged.iter();
        let moments = Self::new(
            self.whole.iter().map(stored).collect(),
            ranged
                .map(|(s, ranges)| (stored(s), ranges.clone()))
                .collect(),
        );
        debug_assert!(
            moments.all.len() <= self.all.len(),
            "a shift adds no moment"
        );
        moments
    }
}

fn in_order(mut seqnos: Vec<Seqno>) -> Vec<Seqno> {
    seqnos.sort_unstable();
    seqnos.dedup();
    debug_assert!(
        seqnos.is_sorted_by(|seqno, next| seqno < next),
        "each moment is there once"
    );
    seqnos
}

/// The moments of one key after the other. Invariant: some key has the moments of the current one.
#[derive(Debug)]
pub(crate) struct MomentCursor<'a> {
    moments: &'a KeyMoments,
    /// The keys that have the moments of the current one: from `start` on, before `until`.
    start: Vec<u8>,
    until: Option<Vec<u8>>,
    seqnos: Cow<'a, [Seqno]>,
}

impl<'a> MomentCursor<'a> {
    /// Stands on the first key of all.
    pub(crate) fn new(moments: &'a KeyMoments) -> Self {
        let cursor = Self {
            moments,
            start: Vec::new(),
            until: moments.next_change(&[]).map(<[u8]>::to_vec),
            seqnos: moments.of(&[]),
        };
        debug_assert!(cursor.holds());
        cursor
    }

    fn holds(&self) -> bool {
        let start = &self.start;
        self.until.as_ref().is_none_or(|until| start < until)
    }

    /// Moves to a key. Reports whether the moments may be others than before.
    pub(crate) fn seek(&mut self, key: &[u8]) -> bool {
        debug_assert!(self.holds());
        let is_before_end = self.until.as_deref().is_none_or(|until| key < until);
        if is_before_end && self.start.as_slice() <= key {
            debug_assert_eq!(
                self.seqnos,
                self.moments.of(key),
                "keys before the next change have the same moments"
            );
            return false;
        }
        self.start = key.to_vec();
        self.until = self.moments.next_change(key).map(<[u8]>::to_vec);
        self.seqnos = self.moments.of(key);
        debug_assert!(self.holds());
        true
    }

    /// Returns the moments of the current key, in ascending order.
    pub(crate) fn seqnos(&self) -> &[Seqno] {
        debug_assert!(self.seqnos.is_sorted(), "moments are in ascending order");
        &self.seqnos
    }

    /// Returns the moments of all keys.
    pub(crate) const fn moments(&self) -> &'a KeyMoments {
        self.moments
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Moments of every key, and one of each of these ranges of single bytes.
    pub(crate) fn moments(whole: &[u64], ranged: &[(u64, u8, u8)]) -> KeyMoments {
        let whole = whole.iter().map(|seqno| Seqno(*seqno)).collect();
        let ranges = |start: u8, end: u8| KeyRanges::new([(vec![start], Some(vec![end]))]);
        let ranged = ranged
            .iter()
            .map(|&(seqno, start, end)| (Seqno(seqno), ranges(start, end)));
        KeyMoments::new(whole, ranged.collect())
    }

    /// A moment of one range, as scripts name it.
    pub(crate) fn of_range(at: &str, (start, end): (&str, &str)) -> (Seqno, KeyRanges) {
        let range = (start.as_bytes().to_vec(), Some(end.as_bytes().to_vec()));
        (
            Seqno(at.parse().expect("a number")),
            KeyRanges::new([range]),
        )
    }

    #[test]
    fn a_moment_that_is_held_whole_is_held_of_each_key() {
        let both = moments(&[4, 7], &[(7, 3, 5), (9, 3, 5)]);
        assert_eq!(both.all(), [4, 7, 9].map(Seqno));
        assert_eq!(*both.of(&[8]), [4, 7].map(Seqno));
        assert_eq!(*both.of(&[3]), [4, 7, 9].map(Seqno));
        assert!(!both.is_even() && KeyMoments::of_every_key(&[Seqno(4)]).is_even());
        let stored = both.stored(5);
        assert_eq!(stored.all(), [0, 2, 4].map(Seqno));
        assert_eq!(*stored.of(&[8]), [0, 2].map(Seqno));
        let few = KeyMoments::of_every_key(&[3, 5, 8].map(Seqno));
        assert_eq!(few.stored(0).all(), [3, 5, 8].map(Seqno));
        assert_eq!(
            few.stored(5).all(),
            [0, 3].map(Seqno),
            "two have one number"
        );
    }

    proptest! {
        #[test]
        fn answers_are_those_of_each_key(
            whole in proptest::collection::vec(1u64..9, 0..3),
            ranged in proptest::collection::vec((1u64..9, 0u8..20, 0u8..20), 0..5),
            (first, len) in (0u8..20, 0u8..6),
            keys in proptest::collection::vec(0u8..22, 0..20),
        ) {
            let all = moments(&whole, &ranged);
            let of = |key: u8| {
                let ranged = ranged.iter().filter(|(_, start, end)| (*start..*end).contains(&key));
                let seqnos = whole.iter().copied().chain(ranged.map(|(seqno, _, _)| *seqno));
                in_order(seqnos.map(Seqno).collect())
            };
            let any = |keys: std::ops::Range<u8>| in_order(keys.flat_map(of).collect());
            let last = first + len;
            prop_assert_eq!(all.of_keys(&[first], &[last]).to_vec(), any(first..last + 1));
            if len > 0 {
                let (start, end) = ([first], [last]);
                let range = KeyRange::new(&start, &end);
                let found = all.of_range(range).to_vec();
                prop_assert_eq!(found, any(first..last));
            }
            let differ = (first..=last).any(|key| of(key) != of(first));
            prop_assert!(all.differ(&[first], &[last]) || !differ);
            let mut cursor = MomentCursor::new(&all);
            for key in keys {
                cursor.seek(&[key]);
                prop_assert_eq!(cursor.seqnos().to_vec(), of(key));
            }
        }
    }
}
