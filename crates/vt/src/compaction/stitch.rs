//! Decides, block by block, what a compaction stitches, merges and drops. A pure function of what
//! the inputs' indexes say about their blocks: no data block is read for it.
//!
//! ```text
//! newer   [ 1 ][  2  ]           [ 3 ]
//! older          [ 4  ]  [ 5 ][ 6 ]        [ 7 ][ 8 ][ 9 ]
//!         stitch merge   stitch  merge     stitch
//!         1      2 4     5       6 3       7 8 9
//! ```
//!
//! 1. A block that a newer range delete hides from everyone is dropped unread.
//! 2. Blocks whose key ranges overlap, directly or through others, form a group. Groups are in key
//!    order and share no key.
//! 3. A group of one block is a candidate for stitching where nothing in it can vanish now.
//! 4. Candidates that follow each other in key order and on the medium, and have the same stitching
//!    threshold, form a span. A span of at least the threshold is stitched; what is left is merged.
//!
//! Paper: VT-trees, FAST 2013, section 2.2 (stitching, the stitching threshold).

use crate::range_delete::RangeDeletes;
use std::fmt;
use std::ops::Range;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;

/// What an input's index says about one of its data blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockInfo<'a> {
    /// First key.
    pub(crate) first: &'a [u8],
    /// Last key.
    pub(crate) last: &'a [u8],
    /// Where it is on the device.
    pub(crate) addr: u64,
    /// How long it is there, in bytes.
    pub(crate) len_bytes: u64,
    /// Smallest sequence number in it.
    pub(crate) min_seqno: Seqno,
    /// Largest sequence number in it.
    pub(crate) max_seqno: Seqno,
    /// True if it holds deletes.
    pub(crate) has_deletes: bool,
    /// True if it holds several versions of a key.
    pub(crate) has_versions: bool,
    /// True if only a part of it takes part.
    pub(crate) is_cut: bool,
}

impl<'a> BlockInfo<'a> {
    /// A block that takes part whole.
    pub(crate) fn of(entry: &'a IndexEntry) -> Self {
        Self {
            first: &entry.first,
            last: &entry.last,
            addr: entry.block.addr,
            len_bytes: u64::from(entry.block.len_bytes),
            min_seqno: entry.min_seqno,
            max_seqno: entry.max_seqno,
            has_deletes: entry.delete_count > 0,
            has_versions: entry.has_versions,
            is_cut: false,
        }
    }
}

/// Blocks of one input that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which input.
    pub(crate) input: usize,
    /// Its blocks, by index.
    pub(crate) blocks: Range<usize>,
}

/// One step of a compaction. Steps are in key order and share no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Re-reference these blocks: they follow each other on the medium.
    Stitch(Piece),
    /// Read these blocks and write what is left of them. Pieces of one input are in order.
    Merge(Vec<Piece>),
    /// Nobody can see anything in these blocks.
    Drop(Piece),
}

/// What stitching goes by.
pub(crate) struct StitchRules<'a> {
    /// Shortest span that is stitched, in bytes, for a block that begins with this key.
    /// `u64::MAX`: stitch nothing.
    pub(crate) threshold: &'a dyn Fn(&[u8]) -> u64,
    /// Moments held open, in ascending order.
    pub(crate) snapshots: &'a [Seqno],
    /// Range deletes of all inputs.
    pub(crate) range_deletes: &'a RangeDeletes,
    /// True if nothing below the output holds a key of this range.
    pub(crate) is_bottom: &'a dyn Fn(&[u8], &[u8]) -> bool,
}

/// What may be done with a block that overlaps no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stitch,
    Merge,
}

/// Plans the steps for the blocks of the inputs; `inputs[i]` in key order.
pub(crate) fn plan_steps(inputs: &[Vec<BlockInfo<'_>>], rules: &StitchRules<'_>) -> Vec<Step> {
    let mut steps = Steps {
        inputs,
        rules,
        span: None,
        threshold: 0,
        out: Vec::new(),
    };
    for group in groups(inputs, &mut |input, block| {
        let is_hidden = is_hidden(&inputs[input][block], rules);
        if is_hidden {
            steps.push_drop(input, block);
        }
        is_hidden
    }) {
        match group.as_slice() {
            [(input, block)] => steps.single(*input, *block),
            many => steps.merge(many),
        }
    }
    steps.end_span();
    let steps = steps.out;
    debug_assert_eq!(
        steps
            .iter()
            .flat_map(Step::pieces)
            .map(|p| p.blocks.len())
            .sum::<usize>(),
        inputs.iter().map(Vec::len).sum::<usize>(),
        "every block has one step"
    );
    steps
}

/// Groups of overlapping blocks, in key order; in a group, by first key. Leaves out what `skip`
/// says.
fn groups(
    inputs: &[Vec<BlockInfo<'_>>],
    skip: &mut dyn FnMut(usize, usize) -> bool,
) -> Vec<Vec<(usize, usize)>> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (input, blocks) in inputs.iter().enumerate() {
        order.extend(
            (0..blocks.len())
                .filter(|b| !skip(input, *b))
                .map(|b| (input, b)),
        );
    }
    order.sort_by(|a, b| {
        inputs[a.0][a.1]
            .first
            .cmp(inputs[b.0][b.1].first)
            .then(a.cmp(b))
    });
    let mut out: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut last: &[u8] = &[];
    for at in order {
        let block = &inputs[at.0][at.1];
        debug_assert!(block.first <= block.last, "a block's keys are in order");
        match out.last_mut() {
            Some(group) if block.first <= last => {
                group.push(at);
                last = last.max(block.last);
            }
            _ => {
                out.push(vec![at]);
                last = block.last;
            }
        }
    }
    out
}

struct Steps<'a> {
    inputs: &'a [Vec<BlockInfo<'a>>],
    rules: &'a StitchRules<'a>,
    span: Option<Piece>,
    /// Of the blocks in the span.
    threshold: u64,
    out: Vec<Step>,
}

impl Steps<'_> {
    fn single(&mut self, input: usize, block: usize) {
        let info = &self.inputs[input][block];
        match fate(info, self.rules) {
            Fate::Stitch => self.extend_span(input, block),
            Fate::Merge => self.merge(&[(input, block)]),
        }
    }

    /// Drops come first, block by block in the order of the inputs.
    fn push_drop(&mut self, input: usize, block: usize) {
        if let Some(Step::Drop(piece)) = self.out.last_mut()
            && piece.input == input
            && piece.blocks.end == block
        {
            piece.blocks.end += 1;
            return;
        }
        let blocks = block..block + 1;
        self.out.push(Step::Drop(Piece { input, blocks }));
    }

    fn extend_span(&mut self, input: usize, block: usize) {
        let threshold = (self.rules.threshold)(self.inputs[input][block].first);
        if let Some(span) = &mut self.span {
            let before = &self.inputs[span.input][span.blocks.end - 1];
            let follows = span.input == input
                && span.blocks.end == block
                && self.threshold == threshold
                && before.addr + before.len_bytes == self.inputs[input][block].addr;
            if follows {
                span.blocks.end += 1;
                return;
            }
        }
        self.end_span();
        let blocks = block..block + 1;
        self.span = Some(Piece { input, blocks });
        self.threshold = threshold;
    }

    fn end_span(&mut self) {
        let Some(span) = self.span.take() else { return };
        let blocks = &self.inputs[span.input][span.blocks.clone()];
        let bytes: u64 = blocks.iter().map(|b| b.len_bytes).sum();
        if self.threshold < u64::MAX && bytes >= self.threshold {
            self.out.push(Step::Stitch(span));
        } else {
            let all: Vec<_> = span.blocks.map(|block| (span.input, block)).collect();
            self.push_merge(&all);
        }
    }

    fn merge(&mut self, group: &[(usize, usize)]) {
        self.end_span();
        self.push_merge(group);
    }

    /// Merges go on in one step until something is stitched in between.
    fn push_merge(&mut self, group: &[(usize, usize)]) {
        if !matches!(self.out.last(), Some(Step::Merge(_))) {
            self.out.push(Step::Merge(Vec::new()));
        }
        let Some(Step::Merge(pieces)) = self.out.last_mut() else {
            unreachable!("a merge was just pushed");
        };
        for &(input, block) in group {
            match pieces.iter_mut().rfind(|p| p.input == input) {
                Some(piece) if piece.blocks.end == block => piece.blocks.end += 1,
                _ => pieces.push(Piece {
                    input,
                    blocks: block..block + 1,
                }),
            }
        }
    }
}

/// True if newer range deletes hide every entry of a block from everyone.
fn is_hidden(block: &BlockInfo<'_>, rules: &StitchRules<'_>) -> bool {
    let seqnos = (block.min_seqno, block.max_seqno);
    are_hidden(
        rules.range_deletes,
        (block.first, block.last),
        seqnos,
        rules.snapshots,
    )
}

/// True if `range_deletes` hide all entries with keys and sequence numbers in these ranges, ends
/// included, from every reader that could see any of them. Which deletes cover a key differs from
/// key to key, and a reader may see some of them only.
pub(crate) fn are_hidden(
    range_deletes: &RangeDeletes,
    (first, last): (&[u8], &[u8]),
    (min_seqno, max_seqno): (Seqno, Seqno),
    snapshots: &[Seqno],
) -> bool {
    let hides = |reader: Seqno| {
        let weakest = range_deletes.covers_range(first, last, reader);
        weakest.is_some_and(|by| by > max_seqno)
    };
    let from = snapshots.partition_point(|s| *s < min_seqno);
    hides(Seqno(u64::MAX)) && snapshots[from..].iter().all(|s| hides(*s))
}

/// What is to be done with a block that overlaps no other.
fn fate(block: &BlockInfo<'_>, rules: &StitchRules<'_>) -> Fate {
    for delete in rules.range_deletes.touching(block.first, block.last) {
        // The newest version that it can hide is the one that most likely vanishes.
        if delete.seqno > block.min_seqno {
            let newest = block.max_seqno.min(Seqno(delete.seqno.0 - 1));
            if !holds_any(rules.snapshots, newest, delete.seqno) {
                return Fate::Merge;
            }
        }
    }
    if block.is_cut {
        return Fate::Merge;
    }
    if block.has_deletes && (rules.is_bottom)(block.first, block.last) {
        return Fate::Merge;
    }
    if block.has_versions && !holds_any(rules.snapshots, block.min_seqno, block.max_seqno) {
        return Fate::Merge;
    }
    Fate::Stitch
}

/// True if any of `snapshots` is in `[low, high)`: it sees `low` and not `high`.
pub(crate) fn holds_any(snapshots: &[Seqno], low: Seqno, high: Seqno) -> bool {
    let first = snapshots.partition_point(|s| *s < low);
    snapshots.get(first).is_some_and(|s| *s < high)
}

impl Step {
    /// The pieces of the step.
    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            Self::Stitch(piece) | Self::Drop(piece) => std::slice::from_ref(piece),
            Self::Merge(pieces) => pieces,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stitch(_) => "stitch",
            Self::Merge(_) => "merge",
            Self::Drop(_) => "drop",
        })?;
        for piece in self.pieces() {
            write!(
                f,
                " {}[{}..{}]",
                piece.input, piece.blocks.start, piece.blocks.end
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
