//! Sweeps for garbage: when nothing holds a moment any more, the versions that were kept for it
//! alone are found and compacted away.
//!
//! 1. A hold goes: a pin or a branch tree is dropped, a branch absorbed, the last snapshot of a
//!    moment closed. If tables may have versions for it, its moment is noted ([`crate::dropped`]).
//! 2. When the store is idle, a sweep begins. It takes the moments noted so far, and walks tree by
//!    tree, slice by slice in key order. The slices go on where the last step ended.
//! 3. In each slice, a walk finds the garbage by the indexes, and reads blocks that share keys
//!    ([`crate::shares`]).
//! 4. Compactions bring it back ([`crate::compaction`]): tables go down onto what they replace, or
//!    are rewritten where they are. What went down may have to go on: the slice is walked again.
//!
//! ```text
//! drop -> moments noted -> sweep: tree 1 [a..f) [f..p) [p..] | tree 2 [a..] -> done
//! ```
//!
//! The moments are not stored. A store that ever had pins or branches is swept for all moments
//! after an open. It is not if the last life was closed in good order with nothing left to sweep
//! for, and left a mark in the log ([`stitch_format::logged_commit`]).

use crate::VtError;
use crate::compaction::is_damage;
use crate::dropped::DroppedByTree;
use crate::shares::{FoundGarbage, GarbageScope};
use crate::store::Store;
use crate::table::Bounds;
use crate::version::{TreeVersion, Version};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::TreeId;
use stitch_base::sync::Mutex;

/// A slice weighs as much as so many tables.
const SLICE_TABLES: u64 = 16;
/// Most times that one slice is walked: each time, something went a level down.
const ROUNDS_MAX: usize = 64;
/// In the background, rest this many times as long as a step took.
const REST_TIMES: u32 = 1;

/// The sweep of a store: one at a time.
#[derive(Debug, Default)]
pub(crate) struct GarbageSweep {
    state: Mutex<SweepState>,
}

#[derive(Debug, Default)]
struct SweepState {
    /// The sweep that runs, if one does.
    walk: Option<GarbageWalk>,
    /// Moments that left garbage below entries in memory, and the number of write-outs then.
    waiting: Option<(DroppedByTree, u64)>,
    /// Some garbage could not be brought back in this life, for damage or want of space.
    is_incomplete: bool,
}

/// Where a sweep is.
#[derive(Debug)]
struct GarbageWalk {
    dropped: DroppedByTree,
    /// The tree of the next slice, and its first key.
    tree: TreeId,
    start: Vec<u8>,
    /// How often this slice was walked.
    rounds: usize,
    /// Bytes found below entries in memory.
    below_memtables: u64,
    /// Something was passed over that could not be read or written.
    is_incomplete: bool,
}

impl GarbageWalk {
    const fn new(dropped: DroppedByTree) -> Self {
        Self {
            dropped,
            tree: TreeId(0),
            start: Vec::new(),
            rounds: 0,
            below_memtables: 0,
            is_incomplete: false,
        }
    }

    /// Returns the next tree with dropped moments, and a slice of it; `None` after the last.
    fn slice<'a>(
        &mut self,
        version: &'a Version,
        weight_max: u64,
    ) -> Option<(&'a TreeVersion, Bounds)> {
        let is_due = |(id, _): &(&TreeId, _)| self.dropped.of(**id).is_some();
        debug_assert!(self.rounds < ROUNDS_MAX, "a slice is walked a few times");
        let (id, tree) = version.trees.range(self.tree..).find(is_due)?;
        if *id != self.tree {
            self.tree = *id;
            self.start.clear();
            self.rounds = 0;
        }
        let bounds = Bounds {
            start: self.start.clone(),
            end: slice_end(tree, &self.start, weight_max),
            ..Bounds::default()
        };
        debug_assert!(
            bounds.end.as_ref().is_none_or(|end| bounds.start < *end),
            "a slice has keys"
        );
        Some((tree, bounds))
    }

    /// A slice was walked. It is walked again if something in it went down.
    fn advance(&mut self, slice: &Bounds, has_sunk: bool) {
        debug_assert!(slice.start == self.start, "it is the slice of now");
        debug_assert!(self.rounds < ROUNDS_MAX, "then the next one began");
        self.rounds += 1;
        if has_sunk && self.rounds < ROUNDS_MAX {
            return;
        }
        self.is_incomplete |= has_sunk;
        self.rounds = 0;
        match &slice.end {
            Some(end) => {
                debug_assert!(self.start < *end, "the next slice comes after it");
                self.start.clone_from(end);
            }
            None => {
                self.tree = self.tree.next();
                self.start.clear();
            }
        }
    }
}

/// Returns the first key behind a slice: where some table begins.
fn slice_end(tree: &TreeVersion, start: &[u8], weight_max: u64) -> Option<Vec<u8>> {
    debug_assert!(weight_max > 0, "a slice has a weight");
    let tables = tree.tables().map(|(_, table)| table);
    let mut within: Vec<_> = tables.filter(|t| t.meta().reaches(start)).collect();
    within.sort_unstable_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
    let mut weight = 0;
    let is_behind = |smallest: &[u8], weight: u64| weight > weight_max && smallest > start;
    let next = within.into_iter().find(|table| {
        let is_behind = is_behind(&table.meta().smallest, weight);
        weight += table.weight();
        is_behind
    })?;
    Some(next.meta().smallest.clone())
}

impl SweepState {
    /// Begins a sweep if none is under way and there is anything to sweep for: new dropped moments,
    /// or those that wait for a write-out. Reports whether one is under way.
    fn begin(&mut self, mut new: DroppedByTree, write_outs: u64) -> bool {
        debug_assert!(new.is_empty() || self.walk.is_none(), "one after the other");
        debug_assert!(
            self.waiting
                .as_ref()
                .is_none_or(|(_, at)| *at <= write_outs),
            "write-outs are counted up"
        );
        if self.walk.is_none() {
            let is_due = |at: u64| !new.is_empty() || at != write_outs;
            if let Some((dropped, _)) = self.waiting.take_if(|(_, at)| is_due(*at)) {
                new.add_all(dropped);
            }
            self.walk = (!new.is_empty()).then(|| GarbageWalk::new(new));
        }
        self.walk.is_some()
    }

    /// The sweep has come to its end.
    fn end(&mut self, write_outs: u64) {
        let walk = self.walk.take();
        debug_assert!(walk.is_some(), "what ends has begun");
        debug_assert!(self.waiting.is_none(), "moments wait for one sweep");
        self.is_incomplete |= walk.as_ref().is_some_and(|walk| walk.is_incomplete);
        let left = walk.filter(|walk| walk.below_memtables > 0);
        if let Some(walk) = left {
            self.waiting = Some((walk.dropped, write_outs));
        }
    }
}

impl GarbageSweep {
    /// Reports whether a sweep is under way, is to be done again, or passed over something.
    pub(crate) fn is_unfinished(&self) -> bool {
        let state = self.state.lock();
        state.walk.is_some() || state.waiting.is_some() || state.is_incomplete
    }
}

impl Store {
    /// Walks one slice, and brings back what is found there. Returns false if there is nothing to
    /// be swept.
    ///
    /// # Errors
    /// Those of compactions.
    pub(crate) fn sweep_garbage(&self) -> Result<bool, VtError> {
        let mut state = self.garbage.state.lock();
        let write_outs = self.counters.write_outs.get();
        let new = match &state.walk {
            Some(_) => DroppedByTree::default(),
            None => self.snapshots.take_dropped(),
        };
        state.begin(new, write_outs);
        let Some(walk) = &mut state.walk else {
            return Ok(false);
        };
        let view = self.views.get();
        let weight_max = SLICE_TABLES.saturating_mul(self.sizing.now().pick.table_bytes);
        let Some((tree, bounds)) = walk.slice(&view.version, weight_max) else {
            state.end(write_outs);
            return Ok(true);
        };
        let dropped = walk.dropped.of(tree.info.id);
        let dropped = dropped.expect("only trees with some are walked");
        let bounds = Arc::new(bounds);
        let scope = GarbageScope {
            held: &self.snapshots.held().of(tree.info.id),
            dropped,
            bounds: Arc::clone(&bounds),
        };
        let found = self.find_garbage(&view, tree, &scope);
        let found = found.or_else(|error| match is_damage(&error) {
            // A read of the damaged blocks returns the error.
            true => {
                walk.is_incomplete = true;
                Ok(FoundGarbage::default())
            }
            false => Err(error),
        })?;
        let (id, block_bytes) = (tree.info.id, u64::from(tree.info.options.block_bytes));
        drop(view);
        walk.below_memtables += found.below_memtables;
        let brought = self.bring_back(id, found, block_bytes)?;
        walk.is_incomplete |= brought.has_failed;
        walk.advance(&bounds, brought.has_sunk);
        Ok(true)
    }

    /// Compacts what has garbage or replaces it. Less than a block of a table stays.
    fn bring_back(
        &self,
        tree: TreeId,
        found: FoundGarbage,
        least_bytes: u64,
    ) -> Result<BroughtBack, VtError> {
        debug_assert!(least_bytes > 0, "a block has a length");
        let mut brought = BroughtBack::default();
        let is_due = |bytes: u64| bytes >= least_bytes;
        for (table, bytes) in found.below.into_iter().filter(|(_, b)| is_due(*b)) {
            let before = self.version().level_of((tree, table));
            let has_run = self.compactor.sink_over_garbage((tree, table), bytes)?;
            let stays = self.version().level_of((tree, table)) == before;
            brought.has_sunk |= has_run;
            brought.has_failed |= match has_run {
                true => stays,
                false => self.compactor.leaves_out((tree, table)),
            };
            if has_run {
                self.counters.garbage_bytes.add(bytes);
            }
        }
        let in_place = found.in_place.into_iter();
        for (table, garbage) in in_place.filter(|(_, garbage)| is_due(garbage.bytes)) {
            let has_run = self
                .compactor
                .rewrite_garbage((tree, table), garbage.blocks)?;
            brought.has_failed |= self.version().level_of((tree, table)).is_some();
            if has_run {
                self.counters.garbage_bytes.add(garbage.bytes);
            }
        }
        Ok(brought)
    }

    /// Reports whether nothing is left that another life had to sweep for. Its memtables are
    /// written out.
    pub(crate) fn is_swept(&self) -> bool {
        let pins = self.pins.holds().into_iter().map(|(_, hold)| hold);
        let mut lasting: Vec<_> = pins.collect();
        lasting.extend(self.branches.lasting_holds(&self.version()));
        !self.garbage.is_unfinished() && !self.snapshots.leave_any_beside(&lasting)
    }
}

/// What compactions of a slice have done.
#[derive(Clone, Copy, Debug, Default)]
struct BroughtBack {
    /// Something went down a level, or failed to.
    has_sunk: bool,
    /// Something is still where it was, for damage or want of space.
    has_failed: bool,
}

/// Sweeps of the background.
#[derive(Debug, Default)]
pub(crate) struct IdleSweep {
    rest_until: Duration,
}

impl IdleSweep {
    /// Does one step, if it is time to and there is something to sweep for. Returns true if it did.
    pub(crate) fn look(&mut self, store: &Store) -> Result<bool, VtError> {
        let clock = &store.options.clock;
        let begin = clock.monotonic();
        if begin < self.rest_until {
            return Ok(false);
        }
        // What replaces garbage may be in memory.
        if store.snapshots.has_dropped() && store.write_outs.seal_values()? {
            return Ok(false);
        }
        let has_worked = store.sweep_garbage()?;
        let end = clock.monotonic();
        debug_assert!(end >= begin, "time goes on");
        self.rest_until = end + end.saturating_sub(begin) * REST_TIMES;
        Ok(has_worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dropped::DroppedMoments;
    use crate::testing::text_version;
    use stitch_base::Seqno;

    fn dropped() -> DroppedByTree {
        let mut dropped = DroppedByTree::default();
        dropped.add(None, DroppedMoments::one(Seqno(7)));
        dropped
    }

    fn slices(version: &Version, weight_max: u64) -> Vec<String> {
        let mut walk = GarbageWalk::new(dropped());
        let mut slices = Vec::new();
        while let Some((tree, slice)) = walk.slice(version, weight_max) {
            let (start, end) = (slice.start.escape_ascii(), slice.end.as_deref());
            let end = end.unwrap_or_default().escape_ascii();
            slices.push(format!("{} {start}..{end}", tree.info.id));
            walk.advance(&slice, false);
        }
        slices
    }

    #[test]
    fn slices_follow_each_other_through_all_trees() {
        let version = "tree 1\nL1 1 a..f 100\nL1 2 g..k 100\nL2 3 c..d 100\nL2 4 h..z 100\n\
                       tree 2\nL1 5 b..c 10\ntree 3";
        let version = text_version(version);
        let expected = ["1 ..g", "1 g..", "2 ..", "3 .."];
        assert_eq!(slices(&version, 150), expected);
        assert_eq!(slices(&version, 1000), ["1 ..", "2 ..", "3 .."]);
    }

    #[test]
    fn a_slice_is_walked_again_while_something_goes_down() {
        let version = text_version("tree 1\nL1 1 a..f 100");
        let mut walk = GarbageWalk::new(dropped());
        for _ in 1..ROUNDS_MAX {
            let (_, slice) = walk.slice(&version, 1000).expect("the one slice");
            walk.advance(&slice, true);
        }
        let (_, slice) = walk.slice(&version, 1000).expect("still the same");
        walk.advance(&slice, true);
        assert!(walk.slice(&version, 1000).is_none(), "not for ever");
    }

    #[test]
    fn garbage_below_entries_in_memory_is_swept_for_after_a_write_out() {
        let none = DroppedByTree::default;
        let mut state = SweepState::default();
        assert!(!state.begin(none(), 3));
        assert!(state.begin(dropped(), 3));
        state.walk.as_mut().expect("it began").below_memtables = 1;
        state.end(3);
        assert!(!state.begin(none(), 3), "nothing was written out since");
        assert!(state.begin(none(), 4));
        state.end(4);
        assert!(!state.begin(none(), 5), "nothing is left");
    }
}
