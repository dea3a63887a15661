//! The locks on one tree: disjoint segments of keys in order, each with its holders.
//!
//! A lock is cut at the ends of those that it overlaps:
//!
//! ```text
//! 1 reads     |-----------------------|
//! 2 reads                |----------------------|
//! segments    |-- {1} ---|-- {1, 2} --|-- {2} --|
//! ```
//!
//! Invariants:
//! - segments are not empty, do not overlap, and each has at least one holder;
//! - a segment that is held for writing has exactly one.

use std::collections::BTreeMap;
use std::ops::Bound;
use stitch_kv::KeyRange;

/// What a lock allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read; others may read, too.
    Read,
    /// To read and to write, alone.
    Write,
}

/// A transaction, as holder of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(pub(super) u64);

#[derive(Clone, Debug)]
struct Segment {
    /// First key after it; `None` for no end.
    end: Option<Vec<u8>>,
    access: Access,
    holders: Vec<Owner>,
}

impl Segment {
    fn is_held(&self, owner: Owner, access: Access) -> bool {
        let is_enough = self.access == Access::Write || access == Access::Read;
        is_enough && self.holders.contains(&owner)
    }
}

/// The locks on one tree.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// By their first key.
    by_start: BTreeMap<Vec<u8>, Segment>,
}

fn is_before_end(key: &[u8], end: Option<&[u8]>) -> bool {
    end.is_none_or(|end| key < end)
}

impl Segments {
    /// True without locks.
    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// The segments that overlap a range, in order.
    fn overlapping<'a>(
        &'a self,
        range: KeyRange<'a>,
    ) -> impl Iterator<Item = (&'a [u8], &'a Segment)> {
        let before = (Bound::Unbounded, Bound::Excluded(range.start));
        let before = self.by_start.range::<[u8], _>(before).next_back();
        let reaches =
            |(_, segment): &(_, &Segment)| is_before_end(range.start, segment.end.as_deref());
        let from = (Bound::Included(range.start), Bound::Unbounded);
        let from = self.by_start.range::<[u8], _>(from);
        let from = from.take_while(move |(start, _)| is_before_end(start, range.end));
        let all = before.filter(reaches).into_iter().chain(from);
        all.map(|(start, segment)| (start.as_slice(), segment))
    }

    /// The holders that are in the way of a lock, each with the first key where it is.
    pub(super) fn others(
        &self,
        owner: Owner,
        range: KeyRange<'_>,
        access: Access,
    ) -> BTreeMap<Owner, Vec<u8>> {
        let mut others = BTreeMap::new();
        for (start, segment) in self.overlapping(range) {
            if access == Access::Read && segment.access == Access::Read {
                continue;
            }
            for holder in segment.holders.iter().filter(|holder| **holder != owner) {
                let key = || start.max(range.start).to_vec();
                others.entry(*holder).or_insert_with(key);
            }
        }
        others
    }

    /// Reports whether the owner holds all of a range, for this access at least.
    pub(super) fn is_held(&self, owner: Owner, range: KeyRange<'_>, access: Access) -> bool {
        // All keys before it are held.
        let mut reached = Some(range.start);
        for (start, segment) in self.overlapping(range) {
            let Some(key) = reached.filter(|key| is_before_end(key, range.end)) else {
                break;
            };
            if start > key || !segment.is_held(owner, access) {
                return false;
            }
            reached = segment.end.as_deref();
        }
        match (reached, range.end) {
            (None, _) => true,
            (Some(key), Some(end)) => key >= end,
            (Some(_), None) => false,
        }
    }

    /// Locks a range for an owner. No other owner has a conflicting lock on it.
    pub(super) fn take(&mut self, owner: Owner, range: KeyRange<'_>, access: Access) {
        debug_assert!(self.others(owner, range, access).is_empty(), "it is free");
        self.cut(range);
        let mut gaps = Vec::new();
        let mut reached = Some(range.start.to_vec());
        for (start, segment) in self.overlapping(range) {
            let key = reached.take().expect("a segment without end is the last");
            if key.as_slice() < start {
                gaps.push((key, Some(start.to_vec())));
            }
            reached.clone_from(&segment.end);
        }
        if let Some(key) = reached.filter(|key| is_before_end(key, range.end)) {
            gaps.push((key, range.end.map(<[u8]>::to_vec)));
        }
        self.change(range, |segment| {
            if !segment.holders.contains(&owner) {
                segment.holders.push(owner);
            }
            if access == Access::Write {
                segment.access = Access::Write;
            }
        });
        for (start, end) in gaps {
            let holders = vec![owner];
            let segment = Segment {
                end,
                access,
                holders,
            };
            self.by_start.insert(start, segment);
        }
        debug_assert!(self.is_held(owner, range, access), "it has been taken");
    }

    /// Gives back an owner's lock on a range.
    pub(super) fn release(&mut self, owner: Owner, range: KeyRange<'_>) {
        self.cut(range);
        self.change(range, |segment| segment.holders.retain(|h| *h != owner));
        let starts: Vec<Vec<u8>> = self
            .overlapping(range)
            .filter(|(_, segment)| segment.holders.is_empty())
            .map(|(start, _)| start.to_vec())
            .collect();
        for start in starts {
            self.by_start.remove(&start);
        }
    }

    /// Cuts segments at the ends of a range: afterwards each is inside of it or outside.
    fn cut(&mut self, range: KeyRange<'_>) {
        self.cut_at(range.start);
        if let Some(end) = range.end {
            self.cut_at(end);
        }
    }

    fn cut_at(&mut self, key: &[u8]) {
        let before = (Bound::Unbounded, Bound::Excluded(key));
        let Some((_, segment)) = self.by_start.range_mut::<[u8], _>(before).next_back() else {
            return;
        };
        if is_before_end(key, segment.end.as_deref()) {
            let rest = segment.clone();
            segment.end = Some(key.to_vec());
            self.by_start.insert(key.to_vec(), rest);
        }
    }

    /// Changes every segment inside a range at whose ends segments were cut.
    fn change(&mut self, range: KeyRange<'_>, mut change: impl FnMut(&mut Segment)) {
        let from = (Bound::Included(range.start), Bound::Unbounded);
        for (start, segment) in self.by_start.range_mut::<[u8], _>(from) {
            if !is_before_end(start, range.end) {
                break;
            }
            change(segment);
        }
    }

    /// Panics if an invariant is broken.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut reached: Option<&[u8]> = Some(&[]);
        for (start, segment) in &self.by_start {
            let before = reached.expect("a segment without end is the last");
            assert!(before <= start.as_slice(), "segments do not overlap");
            assert!(is_before_end(start, segment.end.as_deref()), "not empty");
            assert!(!segment.holders.is_empty(), "a segment has a holder");
            let is_alone = segment.holders.len() == 1;
            assert!(
                is_alone || segment.access == Access::Read,
                "writers are alone"
            );
            reached = segment.end.as_deref();
        }
    }
}
