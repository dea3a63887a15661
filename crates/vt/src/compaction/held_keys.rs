//! The keys of a compaction that stay in their level: those beyond its slice, and those in the
//! ranges of unreadable tables.

use super::fragments::{self, Fragments};
use super::picker::{Plan, end_of};
use crate::entry::RangeDelete;
use crate::range_delete::note_steps;
use crate::version::TableHandle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys that stay in their level, as ranges between points.
///
/// - No output table has keys on both sides of a point: so the tables that go down lie beside the
///   unreadable ones, and each of those that stay lies within one.
#[derive(Debug, Default)]
pub(crate) struct HeldKeys {
    /// In order.
    points: Vec<Vec<u8>>,
    /// For each point, whether the keys from it up to the next one stay.
    is_held: Vec<bool>,
}

impl HeldKeys {
    /// What stays of a plan that goes around these tables.
    pub(crate) fn new(plan: &Plan, around: &[Arc<TableHandle>]) -> Self {
        let mut ranges: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for table in around {
            ranges.push((table.meta().smallest.clone(), Some(end_of(table.meta()))));
        }
        if let Some(until) = &plan.until {
            // What is beyond is one stretch.
            ranges.retain(|(start, _)| start < until);
            for (_, end) in &mut ranges {
                *end = end.take().filter(|end| end < until);
                end.get_or_insert_with(|| until.clone());
            }
            ranges.push((until.clone(), None));
        }
        debug_assert!(
            ranges
                .iter()
                .all(|(start, end)| end.as_ref().is_none_or(|end| start < end)),
            "a range has keys"
        );
        let held_keys = Self::of(&ranges);
        debug_assert!(
            plan.until.is_none() || held_keys.is_held.last() == Some(&true),
            "what is beyond a slice stays"
        );
        held_keys
    }

    /// Where one of these ranges is. One may have no end.
    fn of(ranges: &[(Vec<u8>, Option<Vec<u8>>)]) -> Self {
        let mut changes: BTreeMap<&[u8], i64> = BTreeMap::new();
        for (start, end) in ranges {
            *changes.entry(start).or_default() += 1;
            if let Some(end) = end {
                *changes.entry(end).or_default() -= 1;
            }
        }
        let mut depth = 0;
        let mut held_keys = Self::default();
        for (point, change) in changes {
            depth += change;
            debug_assert!(depth >= 0, "a range begins before it ends");
            held_keys.points.push(point.to_vec());
            held_keys.is_held.push(depth > 0);
        }
        debug_assert!(
            held_keys.points.is_sorted_by(|point, next| point < next),
            "points are in order"
        );
        debug_assert!(
            ranges.is_empty() == held_keys.points.is_empty(),
            "a range begins at a point"
        );
        let endless = ranges.iter().filter(|(_, end)| end.is_none());
        debug_assert_eq!(
            usize::try_from(depth),
            Ok(endless.count()),
            "other ranges end"
        );
        held_keys
    }

    /// Where output tables end.
    pub(crate) fn points(&self) -> &[Vec<u8>] {
        &self.points
    }

    /// Number of the points that are not after a key.
    fn place(&self, key: &[u8]) -> usize {
        self.points.partition_point(|p| p.as_slice() <= key)
    }

    fn is_held_at(&self, place: usize) -> bool {
        debug_assert!(place <= self.points.len(), "a place between points");
        debug_assert_eq!(
            self.is_held.len(),
            self.points.len(),
            "each point has its state"
        );
        place.checked_sub(1).is_some_and(|at| self.is_held[at])
    }

    /// True if a key stays.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.is_held_at(self.place(key))
    }

    /// Reports whether all keys from `start` up to `end` stay, in one range.
    pub(crate) fn has_all(&self, start: &[u8], end: &[u8]) -> bool {
        debug_assert!(start < end, "a range has keys");
        self.has(start) && !self.cuts_before(start, end)
    }

    /// True if there is a point within these keys, both included: some are on either side of it.
    pub(crate) fn cuts(&self, first: &[u8], last: &[u8]) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        self.place(first) != self.place(last)
    }

    /// True if there is a point after `start` and before `end`.
    pub(crate) fn cuts_before(&self, start: &[u8], end: &[u8]) -> bool {
        debug_assert!(start < end, "a range has keys");
        let next = self.points.get(self.place(start));
        next.is_some_and(|point| point.as_slice() < end)
    }

    /// Returns the parts of fragments whose keys stay, or those whose keys do not, by start.
    pub(crate) fn parts(&self, fragments: &Fragments, staying: bool) -> Vec<RangeDelete> {
        let deletes = fragments.sorted();
        if self.points.is_empty() {
            return if staying { Vec::new() } else { deletes };
        }
        let mut out = Vec::new();
        for delete in &deletes {
            let mut start = delete.start.as_slice();
            loop {
                note_steps(1);
                let place = self.place(start);
                let next = self.points.get(place).map(Vec::as_slice);
                let end = next.map_or(&*delete.end, |next| next.min(&delete.end));
                debug_assert!(start < end, "a part has keys");
                if self.is_held_at(place) == staying {
                    out.push(RangeDelete {
                        start: start.to_vec(),
                        end: end.to_vec(),
                        seqno: delete.seqno,
                    });
                }
                if end >= delete.end.as_slice() {
                    break;
                }
                start = end;
            }
        }
        debug_assert!(
            out.iter().all(|part| self.has(&part.start) == staying),
            "a part is where its keys go"
        );
        debug_assert!(
            out.iter()
                .all(|part| !self.cuts_before(&part.start, &part.end)),
            "a part has no point within it"
        );
        fragments::sort(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_moments::KeyMoments;
    use stitch_base::Seqno;

    fn held_keys(ranges: &[(&str, &str)]) -> HeldKeys {
        let range = |&(start, end): &(&str, &str)| {
            let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
            (start.as_bytes().to_vec(), end)
        };
        HeldKeys::of(&ranges.iter().map(range).collect::<Vec<_>>())
    }

    #[test]
    fn keys_stay_in_any_of_the_ranges() {
        let held_keys = held_keys(&[("c", "f"), ("e", "h"), ("p", "")]);
        let staying = |key: &str| held_keys.has(key.as_bytes());
        assert!(["c", "d", "e", "f", "g", "p", "z"].into_iter().all(staying));
        assert!(!["a", "h", "o"].into_iter().any(staying));
        assert!(held_keys.cuts(b"b", b"c") && held_keys.cuts(b"d", b"e"));
        assert!(!held_keys.cuts(b"h", b"i") && !held_keys.cuts(b"c", b"d"));
        assert!(held_keys.cuts_before(b"b", b"d") && held_keys.cuts_before(b"c", b"f"));
        assert!(!held_keys.cuts_before(b"b", b"c") && !held_keys.cuts_before(b"c", b"e"));
    }

    #[test]
    fn range_deletes_are_parted_at_every_point() {
        let held_keys = held_keys(&[("c", "f"), ("f", "h")]);
        let all = [RangeDelete {
            start: b"a".to_vec(),
            end: b"k".to_vec(),
            seqno: Seqno(7),
        }];
        let all = Fragments::new(&all, &KeyMoments::default());
        let parts = |staying: bool| -> Vec<(Vec<u8>, Vec<u8>)> {
            let parts = held_keys.parts(&all, staying);
            parts.into_iter().map(|d| (d.start, d.end)).collect()
        };
        let text = |parts: &[(&str, &str)]| -> Vec<(Vec<u8>, Vec<u8>)> {
            let bytes = |&(start, end): &(&str, &str)| (start.into(), end.into());
            parts.iter().map(bytes).collect()
        };
        assert_eq!(parts(true), text(&[("c", "f"), ("f", "h")]));
        assert_eq!(parts(false), text(&[("a", "c"), ("h", "k")]));
    }
}
