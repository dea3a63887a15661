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
//! 1. A block that a newer range delete hides from all readers is dropped unread.
//! 2. Blocks whose key ranges overlap, directly or through others, form a group. Groups are in key
//!    order and share no key.
//! 3. A group of one block is a candidate for stitching where nothing in it can vanish now.
//! 4. Candidates that follow each other in key order and on the medium, and have the same stitching
//!    threshold, form a span. A span of at least the threshold is stitched; what is left is merged.
//!
//! Blocks come in key order and steps go out as they are certain, so that no more of the indexes is
//! in memory than one step needs.
//!
//! Paper: VT-trees, FAST 2013, section 2.2 (stitching, the stitching threshold).

mod planner;

pub(crate) use planner::Planner;

use super::fragments::Fragments;
use crate::key_moments::KeyMoments;
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
    /// True if only a part of it takes part, or it is to be written anew for another reason.
    pub(crate) is_cut: bool,
}

impl<'a> BlockInfo<'a> {
    /// A block that takes part whole.
    pub(crate) fn of(entry: &'a IndexEntry) -> Self {
        debug_assert!(
            entry.first <= entry.last,
            "the keys of a block are in order"
        );
        debug_assert!(
            entry.min_seqno <= entry.max_seqno,
            "its numbers are in order"
        );
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

    /// Returns its first and last key.
    const fn keys(&self) -> (&'a [u8], &'a [u8]) {
        (self.first, self.last)
    }

    /// Returns its smallest and largest sequence number.
    const fn seqnos(&self) -> (Seqno, Seqno) {
        (self.min_seqno, self.max_seqno)
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

/// One step of a compaction. Stitches and merges are in key order and share no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Re-reference these blocks: they follow each other on the medium.
    Stitch(Piece),
    /// Read these blocks and write what is left of them. Pieces of one input are in order.
    Merge(Vec<Piece>),
    /// No reader can see anything in these blocks.
    Drop(Piece),
}

/// What stitching goes by.
pub(crate) struct StitchRules<'a> {
    /// Shortest span that is stitched, in bytes, for a block that begins with this key.
    /// `u64::MAX`: stitch nothing.
    pub(crate) threshold: &'a dyn Fn(&[u8]) -> u64,
    /// Moments held open.
    pub(crate) moments: &'a KeyMoments,
    /// Range deletes of all inputs.
    pub(crate) range_deletes: &'a Fragments,
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
    plan_in_batches(inputs, rules, usize::MAX)
}

/// The same, in steps of not much more than `batch` blocks.
fn plan_in_batches(
    inputs: &[Vec<BlockInfo<'_>>],
    rules: &StitchRules<'_>,
    batch: usize,
) -> Vec<Step> {
    let numbered = |(input, blocks): (usize, &Vec<_>)| (0..blocks.len()).map(move |b| (input, b));
    let mut order: Vec<(usize, usize)> = inputs.iter().enumerate().flat_map(numbered).collect();
    order.sort_by_key(|&(input, block)| (inputs[input][block].first, input, block));
    let mut planner = Planner::new(rules, batch);
    for (input, block) in order {
        planner.push(input, block, &inputs[input][block]);
    }
    planner.finish();
    let steps: Vec<Step> = std::iter::from_fn(|| planner.pop()).collect();
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

/// Reports whether newer range deletes hide every entry of a block from all readers.
fn is_hidden(block: &BlockInfo<'_>, rules: &StitchRules<'_>) -> bool {
    debug_assert!(block.min_seqno <= block.max_seqno, "numbers are in order");
    rules.range_deletes.hide_all(block.keys(), block.seqnos())
}

/// What is to be done with a block that overlaps no other.
fn fate(block: &BlockInfo<'_>, rules: &StitchRules<'_>) -> Fate {
    debug_assert!(
        block.first <= block.last,
        "the keys of a block are in order"
    );
    if rules.range_deletes.hide_any(block.keys(), block.seqnos()) {
        return Fate::Merge;
    }
    if block.is_cut {
        return Fate::Merge;
    }
    if block.has_deletes && (rules.is_bottom)(block.first, block.last) {
        return Fate::Merge;
    }
    if block.has_versions && !needs_versions(block, rules) {
        return Fate::Merge;
    }
    Fate::Stitch
}

/// Reports whether every key of a block may need all its versions. Where keys have different
/// moments, some may not.
fn needs_versions(block: &BlockInfo<'_>, rules: &StitchRules<'_>) -> bool {
    debug_assert!(block.has_versions, "a block of single versions needs none");
    let own = rules.moments.of_keys(block.first, block.last);
    let is_held = holds_any(&own, block.min_seqno, block.max_seqno);
    is_held && !rules.moments.differ(block.first, block.last)
}

/// True if any of `snapshots` is in `[low, high)`: it sees `low` and not `high`.
pub(crate) fn holds_any(snapshots: &[Seqno], low: Seqno, high: Seqno) -> bool {
    debug_assert!(low <= high, "a range of numbers is in order");
    debug_assert!(snapshots.is_sorted(), "moments are in order");
    let first = snapshots.partition_point(|s| *s < low);
    snapshots.get(first).is_some_and(|s| *s < high)
}

impl Step {
    /// The pieces of the step.
    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            Self::Stitch(piece) | Self::Drop(piece) => {
                debug_assert!(!piece.blocks.is_empty(), "a piece has blocks");
                std::slice::from_ref(piece)
            }
            Self::Merge(pieces) => {
                debug_assert!(!pieces.is_empty(), "something is merged");
                pieces
            }
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
