//! Gaps in scans: how a scan finds them, notes them and skips them; see [`crate::gaps`].

use crate::VtError;
use crate::buffer::Buffer;
use crate::entry::{EntryIter, Op};
use crate::gaps::{Gap, Hint, TreeGaps, gap_at, successor};
use crate::read::{ReadPath, VtScan};
use crate::version::{TreeVersion, Version};
use crate::view::View;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Direction, KeyRange, Message};

/// Deleted keys without a row between them that make a gap, in a store of ordinary size.
const LEARN_COUNT: u64 = 32;
/// A smaller memtable makes gaps of fewer.
const LEARN_MEMTABLE_BYTES: u64 = 64 << 10;
/// Deletes in a row that are worth a look, in a store of ordinary size.
const RUN_COUNT: u64 = 1024;
/// A smaller memtable makes a row of fewer.
const RUN_MEMTABLE_BYTES: u64 = 4 << 10;
/// Where rows are longer than this on average, only scans look for gaps.
const LOOK_ROW_BYTES_MAX: u64 = 1024;
/// A look at a row of deletes ends after so many rows that are none.
const LOOK_ROWS_MAX: u64 = 1024;

/// What a scan has passed since its last row.
pub(super) struct Passed {
    /// The gaps as the scan may use them.
    gaps: Option<TreeGaps>,
    /// All commits up to this one were there to be read.
    complete: Seqno,
    /// Keys without a row, since the last row.
    total: u64,
    /// The same, since the last jump.
    count: u64,
    /// The same, since the last step that was larger than a key.
    steps: u64,
    /// Where that began. Forward: the first key; backward: the first key after it, or no end.
    from: From,
}

enum From {
    /// Not beyond the row given last.
    Row,
    Key(Vec<u8>),
    End,
}

impl Passed {
    /// At the beginning of a scan that sees `seqno`.
    pub(super) fn new(
        reads: &ReadPath,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        complete: Seqno,
    ) -> Self {
        let from = match (direction, range.end) {
            (Direction::Forward, _) => From::Key(range.start.to_vec()),
            (Direction::Backward, Some(end)) => From::Key(end.to_vec()),
            (Direction::Backward, None) => From::End,
        };
        Self {
            gaps: reads.gaps.of(tree),
            complete,
            total: 0,
            count: 0,
            steps: 0,
            from,
        }
    }

    /// Panics unless its counts fit each other.
    fn assert_invariants(&self) {
        debug_assert!(self.steps <= self.count, "steps are counted since a jump");
        debug_assert!(self.count <= self.total, "jumps are counted since a row");
        debug_assert!(
            !self.is_nothing() || self.total == 0,
            "what was passed has a beginning"
        );
    }

    /// True if nothing was passed since the last row.
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self.from, From::Row)
    }

    /// A row was found. Returns how many keys without one came before it.
    pub(super) fn row(&mut self) -> u64 {
        self.assert_invariants();
        (self.count, self.steps) = (0, 0);
        self.from = From::Row;
        std::mem::take(&mut self.total)
    }

    /// A key without a row was passed. Returns the gap to jump over, if it is in one.
    pub(super) fn absent(&mut self, key: &[u8], direction: Direction, seqno: Seqno) -> Option<Gap> {
        if matches!(self.from, From::Row) {
            self.from = From::Key(match direction {
                Direction::Forward => key.to_vec(),
                Direction::Backward => successor(key),
            });
        }
        self.count += 1;
        self.steps += 1;
        self.total += 1;
        self.assert_invariants();
        let gaps = self.gaps.as_ref()?;
        if !self.is_due() {
            return None;
        }
        gap_at(gaps, key, seqno).cloned()
    }

    /// True if it is time to see whether a larger step can be made.
    pub(super) const fn is_due(&self) -> bool {
        self.steps.is_power_of_two() || self.steps.is_multiple_of(64)
    }

    /// Blocks were gone over in one step.
    pub(super) fn leapt(&mut self) {
        self.steps = 0;
        self.assert_invariants();
    }

    /// The gap up to `to` (forward: the first key that is not in it; backward: the first that is),
    /// if it is worth it.
    pub(super) fn gap(
        &self,
        to: Option<&[u8]>,
        direction: Direction,
        seqno: Seqno,
        count_min: u64,
    ) -> Option<Gap> {
        if self.count < count_min {
            return None;
        }
        let from = match &self.from {
            From::Row => return None,
            From::Key(key) => Some(key.as_slice()),
            From::End => None,
        };
        debug_assert!(
            matches!(direction, Direction::Backward) || from.is_some(),
            "upward, what was passed has a first key"
        );
        debug_assert!(
            matches!(direction, Direction::Forward) || to.is_some(),
            "downward, a gap has a first key"
        );
        let (start, end) = match direction {
            Direction::Forward => (from?, to),
            Direction::Backward => (to?, from),
        };
        let is_range = end.is_none_or(|end| start < end);
        is_range.then(|| Gap::new(start, end, seqno))
    }

    /// After a jump over a gap that ended there.
    pub(super) fn jumped(&mut self, to: &[u8]) {
        (self.count, self.steps) = (0, 0);
        self.from = From::Key(to.to_vec());
        self.assert_invariants();
    }

    pub(super) const fn complete(&self) -> Seqno {
        self.complete
    }
}

/// A range in which a reader finds nothing.
#[derive(Clone, Debug)]
pub(crate) struct EmptyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    /// How many keys it took to find that out.
    pub(crate) passed: u64,
}

impl EmptyRange {
    /// Adds one that begins where it ends.
    pub(crate) fn join(&mut self, next: Self) {
        debug_assert!(self.start < self.end, "a range has keys");
        debug_assert!(self.end == next.start, "nothing is between them");
        debug_assert!(next.start < next.end, "a range has keys");
        self.end = next.end;
        self.passed += next.passed;
    }
}

/// How long the rows of a tree are on average, in bytes, at least one; `None` if a look at deleted
/// rows would read much. Of a branch, those of the parent with the longest count.
pub(crate) fn short_row_bytes(version: &Version, tree: TreeId) -> Option<u64> {
    let mut lineage = version.lineage(tree);
    lineage.try_fold(1, |longest, tree| Some(own_row_bytes(tree)?.max(longest)))
}

/// The same, of what was written to the tree.
fn own_row_bytes(tree: &TreeVersion) -> Option<u64> {
    let (mut bytes, mut rows) = (0u64, 0u64);
    for (_, table) in tree.tables() {
        bytes = bytes.saturating_add(table.meta().data_bytes);
        rows = rows.saturating_add(table.meta().entry_count);
    }
    let is_short = bytes <= rows.saturating_mul(LOOK_ROW_BYTES_MAX);
    let row_bytes = (bytes / rows.max(1)).max(1);
    debug_assert!(
        !is_short || row_bytes <= LOOK_ROW_BYTES_MAX,
        "short rows are short on average"
    );
    is_short.then_some(row_bytes)
}

impl ReadPath {
    /// How many deletes in a row are worth a look.
    pub(crate) fn gap_run_count(&self) -> u64 {
        const {
            assert!(
                RUN_MEMTABLE_BYTES <= LEARN_MEMTABLE_BYTES,
                "a run that is worth a look makes a gap"
            );
            assert!(
                LEARN_COUNT <= RUN_COUNT,
                "a run that is worth a look makes a gap"
            );
        }
        (self.memtable_bytes / RUN_MEMTABLE_BYTES).clamp(16, RUN_COUNT)
    }

    /// How many deleted keys in a row make a gap.
    pub(crate) fn gap_count_min(&self) -> u64 {
        const { assert!(LEARN_COUNT >= 2, "a gap is of several keys") };
        (self.memtable_bytes / LEARN_MEMTABLE_BYTES).clamp(2, LEARN_COUNT)
    }

    /// The same, for looks: they come often, and scans find the small ones.
    pub(crate) fn gap_look_count_min(&self) -> u64 {
        let count = self.gap_count_min().max(self.gap_run_count() / 4);
        debug_assert!(
            count <= self.gap_run_count(),
            "a run that is worth a look makes a gap"
        );
        count
    }

    /// Takes note of the gap that a range delete makes, if it hides many entries of its own
    /// memtable: in all older sources a scan goes over what it hides at once. No reader sees `last`
    /// yet, and nothing newer is there.
    pub(crate) fn note_range_delete(
        &self,
        buffer: &Buffer,
        tree: TreeId,
        message: &Message<'_>,
        last: Seqno,
    ) {
        let Message::DeleteRange { start, end } = message else {
            return;
        };
        debug_assert!(last > self.visible(), "no reader sees the range delete yet");
        let many = self.gap_run_count();
        // A memtable can always be read.
        let hides_many = buffer.memtable.holds(tree, (start, end), many);
        if start < end && matches!(hides_many, Ok(true)) {
            let gap = Gap::new(start, Some(end), last);
            self.gaps.confirm(self.gaps.announce(tree, gap));
        }
    }

    /// Takes note of a gap that a scan has found, unless something was put there since. All commits
    /// up to `complete` were there to be read. Where the scan is not to wait for a commit that is
    /// under way, nothing is learned then.
    pub(super) fn learn_gap(
        &self,
        tree: TreeId,
        gap: &Gap,
        complete: Seqno,
        waits: bool,
    ) -> Result<(), VtError> {
        let seen = complete.min(gap.seqno);
        let (number, is_quiet) = {
            let committer = match waits {
                true => Some(self.parts.commits.lock()),
                false => self.parts.commits.try_lock(),
            };
            let Some(committer) = committer else {
                return Ok(());
            };
            let number = self.gaps.announce(tree, gap.clone());
            debug_assert!(seen <= committer.last_seqno, "visible commits are complete");
            (number, committer.last_seqno == seen)
        };
        let is_gap = match is_quiet {
            true => Ok(true),
            false => self.is_unwritten(tree, gap, seen),
        };
        if matches!(is_gap, Ok(true)) {
            self.gaps.confirm(number);
            self.parts.counters.gaps_learned.add(1);
        } else {
            self.gaps.withdraw(number);
        }
        is_gap.map(|_| ())
    }

    /// True if nothing was put into a gap after `seen`.
    fn is_unwritten(&self, tree: TreeId, gap: &Gap, seen: Seqno) -> Result<bool, VtError> {
        let view = self.parts.views.get();
        if view.version.last_seqno > seen || view.version.is_temporary(tree) {
            // It may be in a table by now.
            return Ok(false);
        }
        let end = gap.end.as_deref();
        debug_assert!(end.is_none_or(|end| *gap.start < *end), "a gap has keys");
        for buffer in view.buffers.iter().filter(|b| b.last_seqno() > seen) {
            let runs = buffer.direct.overlapping(tree, &gap.start, end);
            if !runs.is_empty() {
                return Ok(false);
            }
            let mut entries = buffer.memtable.iter(tree);
            entries.seek(&gap.start, Seqno(u64::MAX))?;
            while let Some(entry) = entries.current()
                && end.is_none_or(|end| entry.key < end)
            {
                if entry.seqno > seen && !matches!(entry.op, Op::Delete) {
                    return Ok(false);
                }
                entries.next()?;
            }
        }
        Ok(true)
    }

    /// Looks at one row of deletes that commits have noted. Returns false if there is none.
    pub(crate) fn look_for_gaps(&self) -> Result<bool, VtError> {
        let Some(row) = self.gaps.next_hint() else {
            return Ok(false);
        };
        let seqno = self.visible();
        let view = self.parts.views.get();
        let is_there = view.version.trees.contains_key(&row.tree);
        if is_there && short_row_bytes(&view.version, row.tree).is_some() {
            let mut rows = 0;
            self.look_at(view, &row, (seqno, seqno), &mut |_| {
                rows += 1;
                rows < LOOK_ROWS_MAX && !self.parts.signals.is_stopped()
            })?;
        }
        Ok(true)
    }

    /// Ranges within a row of deletes where a reader of `seqno` finds nothing. Ends after so many
    /// rows that are there; answers whether it came to the end.
    pub(crate) fn empty_ranges(
        &self,
        row: &Hint,
        seqno: Seqno,
        rows_max: u64,
    ) -> Result<(Vec<EmptyRange>, bool), VtError> {
        let mut found = Vec::new();
        let mut rows = 0;
        let complete = self.visible();
        let view = self.parts.views.get();
        if view.version.trees.contains_key(&row.tree) {
            self.look_at(view, row, (seqno, complete), &mut |range| {
                found.extend(range);
                rows += 1;
                rows < rows_max
            })?;
        }
        debug_assert!(
            found.len() as u64 <= rows,
            "at most one before each row, and the end"
        );
        debug_assert!(
            found.is_sorted_by(|range, next| range.end <= next.start),
            "ranges are in order and apart"
        );
        Ok((found, rows < rows_max))
    }

    /// Scans over a row of deletes, and learns the gaps in it. Gives what is before each row of the
    /// tree to `visit`, if there are keys, and what is after the last; until told to stop.
    fn look_at(
        &self,
        view: Arc<View>,
        row: &Hint,
        (seqno, complete): (Seqno, Seqno),
        visit: &mut dyn FnMut(Option<EmptyRange>) -> bool,
    ) -> Result<(), VtError> {
        debug_assert!(row.first <= row.last, "a row of deletes has keys");
        let last = successor(&row.last);
        let range = KeyRange {
            start: &row.first,
            end: Some(&last),
        };
        let way = (Direction::Forward, false);
        let mut scan = VtScan::new(self, view, row.tree, range, way, (seqno, complete))?;
        scan.begin_look();
        let mut start = row.first.clone();
        loop {
            let has_row = scan.advance()?.is_some();
            let end = if has_row { scan.key() } else { &last }.to_vec();
            let next = successor(&end);
            let passed = scan.passed_before();
            let start = std::mem::replace(&mut start, next);
            debug_assert!(start <= end, "a scan goes on");
            let range = (start < end).then_some(EmptyRange { start, end, passed });
            if !visit(range) || !has_row {
                return Ok(());
            }
        }
    }
}
