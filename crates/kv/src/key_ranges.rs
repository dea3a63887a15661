//! Ranges of the keys of one tree, as a pin holds them.

use crate::{Guarded, KeyRange};
use std::sync::Arc;

/// A range of keys that owns them: its first key, and the first key after it; `None` for no end.
pub type OwnedKeyRange = (Vec<u8>, Option<Vec<u8>>);

/// Ranges of keys, in order. None is empty, and no two overlap or touch. A clone is O(1).
///
/// ```text
/// ranges         [b, e)     [h, k)   [p, no end)
/// has            b, d       h        p, z
/// next change    e of b,    h of e,  none of p
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges(Arc<[OwnedKeyRange]>);

impl KeyRanges {
    /// Joins ranges that overlap or touch, and puts them in order. Empty ones are left out.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = OwnedKeyRange>) -> Self {
        let is_some = |(start, end): &OwnedKeyRange| end.as_ref().is_none_or(|end| start < end);
        let mut ranges: Vec<OwnedKeyRange> = ranges.into_iter().filter(is_some).collect();
        ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut joined: Vec<OwnedKeyRange> = Vec::new();
        for (start, end) in ranges {
            match joined.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| start <= *last) => {
                    *last = last.take().zip(end).map(|(last, end)| last.max(end));
                }
                _ => joined.push((start, end)),
            }
        }
        debug_assert!(joined.is_sorted_by(|a, b| a.0 < b.0), "ranges are in order");
        Self(joined.into())
    }

    /// Returns the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = KeyRange<'_>> {
        let ranges = self.0.iter();
        ranges.map(|(start, end)| KeyRange {
            start,
            end: end.as_deref(),
        })
    }

    /// Returns the ranges as they are stored, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[OwnedKeyRange] {
        &self.0
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the first range with a key at or after `key`.
    fn first_after(&self, key: &[u8]) -> Option<&OwnedKeyRange> {
        let ends_before = |end: &Option<Vec<u8>>| end.as_deref().is_some_and(|end| end <= key);
        let at = self.0.partition_point(|(_, end)| ends_before(end));
        self.0.get(at)
    }

    /// Reports whether a key is in a range.
    #[must_use]
    pub fn has(&self, key: &[u8]) -> bool {
        self.first_after(key)
            .is_some_and(|(start, _)| start.as_slice() <= key)
    }

    /// Reports whether every key of a range is in one of these. An empty range has no key.
    #[must_use]
    pub fn contains(&self, range: KeyRange<'_>) -> bool {
        if range.end.is_some_and(|end| end <= range.start) {
            return true;
        }
        let found = self.first_after(range.start);
        found.is_some_and(|(start, end)| {
            let is_to_end = |end: &Vec<u8>| range.end.is_some_and(|last| last <= end.as_slice());
            start.as_slice() <= range.start && end.as_ref().is_none_or(is_to_end)
        })
    }

    /// Reports whether each key that a guard is on is in a range. Keys of a branch tree are not
    /// known here: an engine that finds one of them changed looks whether it is.
    #[must_use]
    pub fn covers(&self, on: Guarded<'_>) -> bool {
        match on {
            Guarded::Key(key) => self.has(key),
            Guarded::Range(range) => self.contains(range),
            Guarded::Written(_) => true,
        }
    }

    /// Reports whether any key from `start` on and before `end` is in a range.
    #[must_use]
    pub fn meets(&self, range: KeyRange<'_>) -> bool {
        let is_empty = range.end.is_some_and(|end| end <= range.start);
        let begins = |start: &[u8]| range.end.is_none_or(|end| start < end);
        !is_empty
            && self
                .first_after(range.start)
                .is_some_and(|(start, _)| begins(start))
    }

    /// Reports whether any key from `first` to `last`, both included, is in a range.
    #[must_use]
    pub fn meets_keys(&self, first: &[u8], last: &[u8]) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        let found = self.first_after(first);
        found.is_some_and(|(start, _)| start.as_slice() <= last)
    }

    /// Returns the first key after `key` from which keys are in a range and those before are not,
    /// or the other way round; `None` if there is no such key.
    #[must_use]
    pub fn next_change(&self, key: &[u8]) -> Option<&[u8]> {
        let (start, end) = self.first_after(key)?;
        match start.as_slice() <= key {
            true => end.as_deref(),
            false => Some(start),
        }
    }

    /// Returns the end of the last range that ends at or before `key`; `None` without any.
    #[must_use]
    pub fn end_before(&self, key: &[u8]) -> Option<&[u8]> {
        let ends_before = |end: &Option<Vec<u8>>| end.as_deref().is_some_and(|end| end <= key);
        let at = self.0.partition_point(|(_, end)| ends_before(end));
        self.0[..at].last().and_then(|(_, end)| end.as_deref())
    }

    /// Returns the keys that are in none of these ranges.
    #[must_use]
    pub fn beside(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut from = Some(Vec::new());
        for (start, end) in self.0.iter() {
            let gap_start = from.take().expect("a range without an end is the last one");
            gaps.push((gap_start, Some(start.clone())));
            from.clone_from(end);
        }
        gaps.extend(from.map(|from| (from, None)));
        debug_assert!(gaps.is_sorted(), "gaps come in the order of the ranges");
        let beside = Self::new(gaps);
        debug_assert!(
            beside.count() <= self.count() + 1,
            "gaps lie between ranges"
        );
        beside
    }

    /// Returns the keys that are in these ranges and in `other`.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let both = self.0.iter().flat_map(|(start, end)| {
            let met = other.0.iter().filter(move |(first, last)| {
                let is_before = |a: &[u8], b: &Option<Vec<u8>>| b.as_deref().is_none_or(|b| a < b);
                is_before(first, end) && is_before(start, last)
            });
            met.map(move |(first, last)| {
                let ends = [end.as_ref(), last.as_ref()].into_iter().flatten();
                (start.max(first).clone(), ends.min().cloned())
            })
        });
        Self::new(both)
    }

    /// Reports whether every key of these ranges is in a range of `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.iter().all(|range| other.contains(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    fn ranges(of: &[(&str, &str)]) -> KeyRanges {
        let range = |(start, end): &(&str, &str)| {
            let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
            (start.as_bytes().to_vec(), end)
        };
        KeyRanges::new(of.iter().map(range))
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        let joined = ranges(&[("h", "k"), ("b", "c"), ("c", "e"), ("i", "j"), ("x", "x")]);
        assert_eq!(joined, ranges(&[("b", "e"), ("h", "k")]));
        assert_eq!(ranges(&[("b", ""), ("c", "d"), ("e", "")]).count(), 1);
        assert_eq!(ranges(&[("b", "c"), ("a", "")]), ranges(&[("a", "")]));
        assert_eq!(ranges(&[]), KeyRanges::default());
    }

    #[test]
    fn what_is_beside_ranges_lies_before_between_and_after_them() {
        let all = ranges(&[("", "")]);
        assert_eq!(ranges(&[]).beside(), all);
        assert_eq!(all.beside(), ranges(&[]));
        assert_eq!(ranges(&[("", "b")]).beside(), ranges(&[("b", "")]));
        assert_eq!(
            ranges(&[("b", "c"), ("e", "f")]).beside(),
            ranges(&[("", "b"), ("c", "e"), ("f", "")])
        );
        let open = ranges(&[("b", "c"), ("e", "")]);
        assert_eq!(open.beside(), ranges(&[("", "b"), ("c", "e")]));
        assert_eq!(open.beside().beside(), open);
    }

    #[test]
    fn an_empty_range_is_in_any_ranges_and_meets_none() {
        let all = ranges(&[("b", "e")]);
        let empty = KeyRange::new(b"x", b"x");
        assert!(all.contains(empty) && !all.meets(empty));
        assert!(KeyRanges::default().contains(empty));
        assert!(!KeyRanges::default().contains(KeyRange::all()));
        assert!(ranges(&[("", "")]).contains(KeyRange::all()));
        assert!(!all.contains(KeyRange::from(b"b")) && all.meets(KeyRange::from(b"d")));
    }

    #[test]
    fn narrower_ranges_are_within_wider_ones() {
        let all = ranges(&[("b", "e"), ("h", "")]);
        assert!(ranges(&[("b", "c"), ("i", "z")]).is_within(&all));
        assert!(KeyRanges::default().is_within(&all) && all.is_within(&all));
        assert!(!ranges(&[("d", "i")]).is_within(&all));
        assert!(!ranges(&[("a", "c")]).is_within(&all));
    }

    #[test]
    fn answers_are_those_of_each_key() {
        let mut rng = Rng::new(26);
        let mut byte = |bound: u64| u8::try_from(rng.below(bound)).expect("small");
        for _ in 0..2000 {
            let mut list: Vec<(u8, Option<u8>)> = Vec::new();
            for _ in 0..byte(6) {
                list.push((byte(20), Some(byte(20)).filter(|end| end % 10 > 0)));
            }
            let owned = list.iter();
            let owned = owned.map(|(start, end)| (vec![*start], end.map(|end| vec![end])));
            let ranges = KeyRanges::new(owned);
            let has = |key: u8| {
                let mut all = list.iter();
                all.any(|(start, end)| *start <= key && end.is_none_or(|end| key < end))
            };
            let (first, len) = (byte(20), byte(6));
            let (key, end) = ([first], [first + len]);
            assert_eq!(ranges.has(&key), has(first), "{list:?}");
            let range = KeyRange::new(&key, &end);
            assert_eq!(ranges.contains(range), (first..end[0]).all(has), "{list:?}");
            assert_eq!(ranges.meets(range), (first..end[0]).any(has), "{list:?}");
            let keys = ranges.meets_keys(&key, &end);
            assert_eq!(keys, (first..=end[0]).any(has), "{list:?}");
            let other = KeyRanges::new([(key.to_vec(), Some(end.to_vec()))]);
            let both = ranges.common(&other);
            for at in 0..30 {
                let is_in = (first..end[0]).contains(&at) && has(at);
                assert_eq!(both.has(&[at]), is_in, "{list:?}");
            }
            let last = (1..=first).rev().find(|key| has(*key - 1) && !has(*key));
            let last = last.map(|key| vec![key]);
            assert_eq!(ranges.end_before(&key), last.as_deref(), "{list:?}");
            let change = (first + 1..=20).find(|key| has(*key) != has(first));
            let change = change.map(|key| vec![key]);
            assert_eq!(ranges.next_change(&key), change.as_deref(), "{list:?}");
        }
    }
}
