//! Ranges of keys that a transaction has cleared.
//!
//! Invariant: ranges are not empty, and neither overlap nor touch each other.

use std::collections::BTreeMap;
use std::ops::Bound;
use stitch_kv::KeyRange;

/// Ranges `[start, end)` of one tree, by their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cleared {
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
    key_bytes: usize,
}

/// A range of keys with owned ends.
pub(super) type Segment = (Vec<u8>, Option<Vec<u8>>);

impl Cleared {
    /// True without ranges.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ranges = self.ranges.iter();
        ranges.map(|(start, end)| (start.as_slice(), end.as_slice()))
    }

    /// What they take, with `overhead` for each.
    pub(super) fn len_bytes(&self, overhead: usize) -> usize {
        self.key_bytes + self.ranges.len() * overhead
    }

    /// The range that begins last of those that begin at `key` or before it.
    fn last_from(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let before = (Bound::Unbounded, Bound::Included(key));
        let last = self.ranges.range::<[u8], _>(before).next_back();
        last.map(|(start, end)| (start.as_slice(), end.as_slice()))
    }

    /// Reports whether a key lies in one of them.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.last_from(key).is_some_and(|(_, end)| key < end)
    }

    /// Adds a range, and joins it to those that it overlaps or touches.
    pub(super) fn add(&mut self, start: &[u8], end: &[u8]) {
        debug_assert!(start < end, "the range is not empty");
        let before = self.last_from(start).filter(|(_, last)| *last >= start);
        let start = before.map_or(start, |(first, _)| first).to_vec();
        let mut end = end.to_vec();
        let touched = (
            Bound::Included(start.as_slice()),
            Bound::Included(end.as_slice()),
        );
        let touched: Vec<Vec<u8>> = self
            .ranges
            .range::<[u8], _>(touched)
            .map(|(start, _)| start.clone())
            .collect();
        for old in touched {
            let old_end = self.ranges.remove(&old).expect("it was found");
            self.key_bytes -= old.len() + old_end.len();
            end = end.max(old_end);
        }
        self.key_bytes += start.len() + end.len();
        let joined = self.ranges.insert(start, end);
        debug_assert_eq!(joined, None, "a range with this start was joined");
    }

    /// The parts of a range that are not cleared, in order.
    pub(super) fn rest_of(&self, range: KeyRange<'_>) -> Vec<Segment> {
        let mut rest = Vec::new();
        let mut from = range.start;
        let first = self
            .last_from(range.start)
            .map_or(range.start, |(start, _)| start);
        let cleared = self
            .ranges
            .range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        for (start, end) in cleared {
            if range.end.is_some_and(|last| start.as_slice() >= last) {
                break;
            }
            if from < start.as_slice() {
                rest.push((from.to_vec(), Some(start.clone())));
            }
            from = from.max(end);
        }
        if range.end.is_none_or(|end| from < end) {
            rest.push((from.to_vec(), range.end.map(<[u8]>::to_vec)));
        }
        let is_apart = |two: &[Segment]| two[0].1.as_ref().is_some_and(|end| *end < two[1].0);
        debug_assert!(rest.windows(2).all(is_apart), "a range lies between two");
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stitch_base::random::Rng;

    #[test]
    fn ranges_cover_what_was_added_and_the_rest_is_the_rest() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let mut cleared = Cleared::default();
            let mut model: BTreeSet<u8> = BTreeSet::new();
            for _ in 0..rng.below(8) {
                let start = u8::try_from(rng.below(40)).unwrap();
                let end = start + 1 + u8::try_from(rng.below(8)).unwrap();
                cleared.add(&[start], &[end]);
                model.extend(start..end);
                let ranges: Vec<_> = cleared.iter().collect();
                assert!(ranges.iter().all(|(start, end)| start < end));
                assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
                assert_eq!(cleared.len_bytes(0), ranges.len() * 2);
            }
            for key in 0..60 {
                assert_eq!(cleared.covers(&[key]), model.contains(&key), "key {key}");
            }
            let (start, end) = (10, 10 + u8::try_from(rng.below(30)).unwrap());
            let rest = cleared.rest_of(KeyRange::new(&[start], &[end]));
            let holds = |key: u8| {
                let in_part = |(start, end): &Segment| {
                    start.as_slice() <= &[key][..]
                        && end.as_ref().is_none_or(|end| &[key][..] < end.as_slice())
                };
                rest.iter().filter(|part| in_part(part)).count()
            };
            for key in 0..60 {
                let is_rest = (start..end).contains(&key) && !model.contains(&key);
                assert_eq!(holds(key), usize::from(is_rest), "key {key} of {rest:?}");
            }
        }
    }
}
