//! Allocated extents of a file, and how they change. Pure.
//!
//! ```text
//! old       |--W--|          |--U--|            W: written, U: unwritten, with room set aside
//! range         |===============|
//! Allocate  |--W--|----------U-----|            gaps become unwritten, the rest stays
//! Write     |----------W--------|U-|            all of the range is written
//! Unwrite   |-W-|-------U----------|            all of the range is unwritten
//! ```
//!
//! Invariant: extents are sorted, not empty, do not overlap, and of two that touch the states
//! differ.

use std::ops::Range;
use stitch_format::fs_sys::{AllocatedRow, ExtentState};

/// Chunks `[start, end)` of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) state: ExtentState,
}

impl Extent {
    pub(super) const fn chunks(&self) -> u64 {
        debug_assert!(
            self.start <= self.end,
            "an extent does not end before it starts"
        );
        self.end - self.start
    }

    pub(super) const fn row(&self) -> AllocatedRow {
        debug_assert!(
            self.start < self.end,
            "the next read of the row refuses others"
        );
        AllocatedRow {
            start: self.start,
            state: self.state,
        }
    }

    pub(super) const fn unwritten(&self) -> u64 {
        match self.state {
            ExtentState::Unwritten => self.chunks(),
            ExtentState::Written => 0,
        }
    }
}

/// What happens to the chunks of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    Allocate,
    Write,
    Unwrite,
}

impl Edit {
    /// State afterwards of chunks with this state before; `None` for chunks that had no block.
    const fn apply(self, before: Option<ExtentState>) -> ExtentState {
        match (self, before) {
            (Self::Allocate, Some(state)) => state,
            (Self::Allocate, None) | (Self::Unwrite, _) => ExtentState::Unwritten,
            (Self::Write, _) => ExtentState::Written,
        }
    }
}

/// Returns the extents after an edit of `range`. `old` has all extents that overlap or touch it.
pub(super) fn edited(old: &[Extent], range: &Range<u64>, edit: Edit) -> Vec<Extent> {
    debug_assert!(range.start <= range.end, "a range of chunks");
    debug_assert!(are_apart(old), "extents are in order and not empty");
    let mut new = Vec::with_capacity(old.len() + 2);
    if range.is_empty() {
        new.extend_from_slice(old);
        return new;
    }
    for extent in old {
        push(
            &mut new,
            extent.start,
            extent.end.min(range.start),
            extent.state,
        );
    }
    let mut at = range.start;
    for extent in old {
        let (start, end) = (extent.start.max(at), extent.end.min(range.end));
        if start < end {
            push(&mut new, at, start, edit.apply(None));
            push(&mut new, start, end, edit.apply(Some(extent.state)));
            at = end;
        }
    }
    push(&mut new, at, range.end, edit.apply(None));
    for extent in old {
        push(
            &mut new,
            extent.start.max(range.end),
            extent.end,
            extent.state,
        );
    }
    debug_assert!(are_apart(&new), "an edit keeps extents in order");
    debug_assert!(cover(&new, range), "every chunk of the range has a block");
    debug_assert!(totals(&new).0 >= totals(old).0, "no chunk loses its block");
    new
}

/// Appends chunks `[start, end)`, if there are any, and joins them to the last extent where they
/// can be.
pub(super) fn push(extents: &mut Vec<Extent>, start: u64, end: u64, state: ExtentState) {
    if start >= end {
        return;
    }
    debug_assert!(
        extents.last().is_none_or(|last| last.end <= start),
        "extents come in order"
    );
    match extents.last_mut() {
        Some(last) if last.end == start && last.state == state => last.end = end,
        _ => extents.push(Extent { start, end, state }),
    }
}

/// Reports whether extents are as the invariant says, but for the states of those that touch.
pub(super) fn are_apart(extents: &[Extent]) -> bool {
    let is_in_order = |two: &[Extent]| two[0].end <= two[1].start;
    extents.iter().all(|extent| extent.chunks() > 0) && extents.windows(2).all(is_in_order)
}

/// Returns the number of chunks in extents, and of those in unwritten ones.
pub(super) fn totals(extents: &[Extent]) -> (u64, u64) {
    debug_assert!(are_apart(extents), "no chunk is counted twice");
    let sum = |of: fn(&Extent) -> u64| extents.iter().map(of).sum();
    let (chunks, unwritten) = (sum(Extent::chunks), sum(Extent::unwritten));
    debug_assert!(unwritten <= chunks, "unwritten chunks are some of all");
    (chunks, unwritten)
}

/// Reports whether every chunk of `range` is in an extent.
pub(super) fn cover(extents: &[Extent], range: &Range<u64>) -> bool {
    debug_assert!(range.start <= range.end, "a range of chunks");
    let within = |extent: &Extent| {
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        end.saturating_sub(start)
    };
    extents.iter().map(within).sum::<u64>() == range.end - range.start
}

/// Returns all extents, with `new` instead of `old`, which is a part of them.
pub(super) fn replaced(all: &[Extent], old: &[Extent], new: &[Extent]) -> Vec<Extent> {
    debug_assert!(are_apart(all), "extents are in order and not empty");
    debug_assert!(are_apart(new), "extents are in order and not empty");
    let at = match (old.first(), new.first()) {
        (Some(first), _) | (None, Some(first)) => {
            all.partition_point(|extent| extent.start < first.start)
        }
        (None, None) => 0,
    };
    debug_assert_eq!(
        &all[at..at + old.len()],
        old,
        "the old ones are a part of all"
    );
    let all = [&all[..at], new, &all[at + old.len()..]].concat();
    debug_assert!(are_apart(&all), "the new ones lie where the old ones were");
    all
}

/// Returns the extents without `range`; `None` if none is left.
pub(super) fn cleared_of(all: &[Extent], range: &Range<u64>) -> Option<Vec<Extent>> {
    debug_assert!(range.start <= range.end, "a range of chunks");
    let mut left = Vec::with_capacity(all.len() + 1);
    for extent in all {
        let (start, end) = (extent.start, extent.end);
        push(&mut left, start, end.min(range.start), extent.state);
        push(&mut left, start.max(range.end), end, extent.state);
    }
    debug_assert!(are_apart(&left), "what is left is in order");
    debug_assert!(
        totals(&left).0 <= totals(all).0,
        "chunks are taken away alone"
    );
    (!left.is_empty()).then_some(left)
}

/// Returns a number of chunks as a difference.
pub(super) fn signed(chunks: u64) -> i64 {
    i64::try_from(chunks).expect("fewer than 2^51 chunks in a file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExtentState::{Unwritten, Written};
    use proptest::prelude::*;

    const CHUNKS: usize = 24;
    type States = Vec<Option<ExtentState>>;

    fn extents_of(states: &[Option<ExtentState>]) -> Vec<Extent> {
        let mut out = Vec::new();
        for (at, state) in (0..).zip(states) {
            if let Some(state) = *state {
                push(&mut out, at, at + 1, state);
            }
        }
        out
    }

    fn touching(extents: &[Extent], range: &Range<u64>) -> Vec<Extent> {
        let touches = |e: &&Extent| e.end >= range.start && e.start <= range.end;
        extents.iter().filter(touches).copied().collect()
    }

    fn states() -> impl Strategy<Value = States> {
        let state = prop_oneof![Just(None), Just(Some(Unwritten)), Just(Some(Written))];
        proptest::collection::vec(state, CHUNKS)
    }

    proptest! {
        #[test]
        fn edits_change_the_range_alone(states in states(), a in 0..CHUNKS, b in 0..CHUNKS) {
            let range = a.min(b)..a.max(b);
            let chunks = range.start as u64..range.end as u64;
            for edit in [Edit::Allocate, Edit::Write, Edit::Unwrite] {
                let mut expected = states.clone();
                for state in &mut expected[range.clone()] {
                    *state = Some(match (edit, *state) {
                        (Edit::Allocate, Some(state)) => state,
                        (Edit::Allocate | Edit::Unwrite, _) => Unwritten,
                        (Edit::Write, _) => Written,
                    });
                }
                let all = extents_of(&states);
                let near = touching(&all, &chunks);
                let is_far = |e: &&Extent| !near.contains(e);
                let mut new: Vec<Extent> = all.iter().filter(is_far).copied().collect();
                new.extend(edited(&near, &chunks, edit));
                new.sort_unstable_by_key(|extent| extent.start);
                prop_assert_eq!(new, extents_of(&expected));
                let is_covered = states[range.clone()].iter().all(Option::is_some);
                prop_assert_eq!(cover(&near, &chunks), is_covered);
            }
        }
    }

    #[test]
    fn totals_count_chunks_and_those_unwritten() {
        let extents = extents_of(&[Some(Written), Some(Unwritten), None, Some(Unwritten)]);
        assert_eq!(totals(&extents), (3, 2));
    }
}
