//! Ranges of inode numbers, bounded in count: neighbours are joined, those with the smallest gap
//! first.
//!
//! ```text
//! added     17 18 19    24 25         300           512 ..
//! ranges    [17 .. 20)  [24 .. 26)    [300 .. 301)  [512 ..
//! at most 3 [17           ..     26)  [300 .. 301)  [512 ..
//! ```

use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_kv::PIN_RANGES_MAX;

/// Ranges that are kept while numbers are added.
const KEPT_MAX: usize = 16 * PIN_RANGES_MAX;
const _: () = assert!(
    KEPT_MAX / 2 >= PIN_RANGES_MAX,
    "no more is joined than has to be"
);

/// Ranges of numbers: none empty, no two touch.
#[derive(Debug, Default)]
pub(super) struct NumberRanges {
    /// First numbers, each with the first one after it.
    ranges: BTreeMap<u64, u64>,
    /// All from this one on.
    tail: Option<u64>,
}

impl NumberRanges {
    /// Adds all numbers from one on.
    pub(super) fn add_from(&mut self, first: Ino) {
        debug_assert!(self.ranges.is_empty(), "no number above it was added");
        debug_assert!(self.tail.is_none(), "they are added once");
        self.tail = Some(first.0);
    }

    /// Adds a number.
    pub(super) fn add(&mut self, number: Ino) {
        let number = number.0;
        if self.tail.is_some_and(|tail| number >= tail) {
            return;
        }
        let (mut first, mut end) = (number, number + 1);
        if let Some((before, before_end)) = self.ranges.range(..=number).next_back() {
            if *before_end >= end {
                return;
            }
            if *before_end == number {
                first = *before;
            }
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            end = after_end;
        }
        self.ranges.insert(first, end);
        self.check_around(first, end);
        if self.ranges.len() > KEPT_MAX {
            self.join_to(KEPT_MAX / 2);
        }
    }

    /// Checks that a range does not touch its neighbours.
    fn check_around(&self, first: u64, end: u64) {
        debug_assert!(first < end, "a range is not empty");
        let before = self.ranges.range(..first).next_back();
        debug_assert!(
            before.is_none_or(|(_, before_end)| *before_end < first),
            "ranges are joined"
        );
        let after = self.ranges.range(first + 1..).next();
        debug_assert!(
            after.is_none_or(|(after, _)| end < *after),
            "ranges are joined"
        );
    }

    /// Joins ranges over the smallest gaps, until there are so many at most.
    fn join_to(&mut self, count_max: usize) {
        debug_assert!(count_max > 0, "numbers are in a range");
        let Some(more) = self.ranges.len().checked_sub(count_max) else {
            return;
        };
        let pairs = self.ranges.iter().zip(self.ranges.keys().skip(1));
        let mut gaps: Vec<(u64, u64)> = pairs.map(|((_, end), next)| (next - end, *next)).collect();
        gaps.sort_unstable();
        for (_, next) in gaps.into_iter().take(more) {
            let end = self.ranges.remove(&next).expect("each is joined once");
            let (_, before_end) = self
                .ranges
                .range_mut(..next)
                .next_back()
                .expect("one before");
            *before_end = end;
        }
        debug_assert!(self.ranges.len() <= count_max, "they are joined");
    }

    /// Returns the ranges, at most [`PIN_RANGES_MAX`] of them, each with the first number after it;
    /// `None` for no end.
    pub(super) fn joined(&self) -> Vec<(Ino, Option<Ino>)> {
        let mut all = Self {
            ranges: self.ranges.clone(),
            tail: None,
        };
        all.join_to(PIN_RANGES_MAX - 1);
        debug_assert!(
            all.ranges.len() < PIN_RANGES_MAX,
            "the tail is a range, too"
        );
        let ranges = all.ranges.iter();
        let ranges = ranges.map(|(first, end)| (Ino(*first), Some(Ino(*end))));
        ranges
            .chain(self.tail.map(|tail| (Ino(tail), None)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    #[test]
    fn neighbours_are_one_range() {
        let mut numbers = NumberRanges::default();
        numbers.add_from(Ino(90));
        for number in [7, 5, 6, 20, 6, 19, 200] {
            numbers.add(Ino(number));
        }
        let range = |first, end| (Ino(first), Some(Ino(end)));
        assert_eq!(
            numbers.joined(),
            [range(5, 8), range(19, 21), (Ino(90), None)]
        );
    }

    #[test]
    fn the_smallest_gaps_are_joined_and_no_number_is_lost() {
        let mut rng = Rng::new(27);
        let mut numbers = NumberRanges::default();
        let mut all = Vec::new();
        for _ in 0..3 * KEPT_MAX {
            let number = rng.below(1 << 40);
            all.push(number);
            numbers.add(Ino(number));
            assert!(numbers.ranges.len() <= KEPT_MAX);
        }
        let joined = numbers.joined();
        assert!(joined.len() < PIN_RANGES_MAX);
        let has = |number: u64| {
            let is_in = |(first, end): &(Ino, Option<Ino>)| {
                first.0 <= number && end.is_none_or(|end| number < end.0)
            };
            joined.iter().any(is_in)
        };
        assert!(all.into_iter().all(has));

        let mut numbers = NumberRanges::default();
        let count = PIN_RANGES_MAX as u64 + 9;
        // Ten of the gaps are short.
        for number in 0..count {
            let at = number * 100
                + if number < 20 && number % 2 == 1 {
                    0
                } else {
                    90
                };
            numbers.add(Ino(at));
        }
        let joined = numbers.joined();
        assert_eq!(joined.len(), PIN_RANGES_MAX - 1);
        assert_eq!(joined[0], (Ino(90), Some(Ino(101))));
    }
}
