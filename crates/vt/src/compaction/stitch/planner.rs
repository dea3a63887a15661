//! The planner: blocks come in key order, steps go out as soon as they are certain. What it knows
//! of blocks whose step is not out yet is bounded.

use super::{BlockInfo, Fate, Piece, Step, StitchRules, fate, is_hidden};
use std::collections::VecDeque;

/// Plans the steps of a compaction: `(push pop*)* finish pop*`.
pub(crate) struct Planner<'a> {
    rules: &'a StitchRules<'a>,
    /// A step that has so many blocks ends where it can.
    batch: usize,
    /// Blocks that overlap, by first key.
    group: Vec<(usize, usize)>,
    /// The largest key in it.
    last: Vec<u8>,
    /// If the group is one block that may be stitched.
    single: Option<Single>,
    span: Option<Span>,
    merge: Vec<Piece>,
    /// Blocks of the merge, and those dropped since it began.
    merge_blocks: usize,
    out: VecDeque<Step>,
}

/// A block that may be stitched.
#[derive(Clone, Copy)]
struct Single {
    threshold: u64,
    addr: u64,
    len_bytes: u64,
}

/// Such blocks, one after the other in key order and on the medium.
struct Span {
    piece: Piece,
    threshold: u64,
    end_addr: u64,
    /// With what of it went out already.
    bytes: u64,
}

impl Span {
    const fn is_long(&self) -> bool {
        self.bytes >= self.threshold
    }
}

impl<'a> Planner<'a> {
    /// A planner by these rules. Steps of more than `batch` blocks are parted where that changes
    /// nothing.
    pub(crate) const fn new(rules: &'a StitchRules<'a>, batch: usize) -> Self {
        debug_assert!(batch > 0, "a step has blocks");
        Self {
            rules,
            batch,
            group: Vec::new(),
            last: Vec::new(),
            single: None,
            span: None,
            merge: Vec::new(),
            merge_blocks: 0,
            out: VecDeque::new(),
        }
    }

    /// Takes the next block: of all that are left, the one with the least first key.
    pub(crate) fn push(&mut self, input: usize, block: usize, info: &BlockInfo<'_>) {
        debug_assert!(
            info.min_seqno <= info.max_seqno,
            "numbers of a block are in order"
        );
        debug_assert!(info.first <= info.last, "a block's keys are in order");
        let is_apart = self.group.is_empty() || info.first > self.last.as_slice();
        if is_apart {
            self.end_group();
        }
        if is_hidden(info, self.rules) {
            self.drop_block(input, block);
            return;
        }
        self.group.push((input, block));
        if is_apart {
            self.last.clear();
            self.last.extend_from_slice(info.last);
            self.single = self.single(info);
        } else {
            self.single = None;
            if info.last > self.last.as_slice() {
                self.last.clear();
                self.last.extend_from_slice(info.last);
            }
        }
        self.assert_invariants();
    }

    /// Panics unless its parts fit each other.
    fn assert_invariants(&self) {
        debug_assert!(
            self.single.is_none() || self.group.len() == 1,
            "a block that may be stitched overlaps no other"
        );
        debug_assert!(
            !self.merge.is_empty() || self.merge_blocks == 0,
            "blocks are counted for a merge"
        );
        let is_whole = |span: &Span| !span.piece.blocks.is_empty() || span.is_long();
        debug_assert!(
            self.span.as_ref().is_none_or(is_whole),
            "of a short span nothing went out"
        );
    }

    /// The next step that is certain.
    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.out.pop_front()
    }

    /// There are no more blocks.
    pub(crate) fn finish(&mut self) {
        self.end_group();
        self.end_span();
        self.end_merge();
        self.assert_invariants();
        debug_assert!(
            self.group.is_empty() && self.merge.is_empty(),
            "each block has its step"
        );
    }

    /// What is to be known of a block that may be stitched.
    fn single(&self, info: &BlockInfo<'_>) -> Option<Single> {
        let threshold = (self.rules.threshold)(info.first);
        let may_be = threshold < u64::MAX && fate(info, self.rules) == Fate::Stitch;
        may_be.then_some(Single {
            threshold,
            addr: info.addr,
            len_bytes: info.len_bytes,
        })
    }

    fn drop_block(&mut self, input: usize, block: usize) {
        // No span goes on behind it, so what is before it need not wait.
        let is_behind = |span: &Span| span.piece.input == input;
        if self.group.is_empty() && self.span.as_ref().is_some_and(is_behind) {
            self.end_span();
        }
        if !self.merge.is_empty() {
            self.merge_blocks += 1;
            self.end_large_merge();
        }
        let blocks = block..block + 1;
        debug_assert!(
            self.merge
                .iter()
                .all(|p| p.input != input || p.blocks.end <= block),
            "blocks of an input come in order"
        );
        match self.out.back_mut() {
            Some(Step::Drop(piece)) if piece.input == input && piece.blocks.end == block => {
                piece.blocks.end += 1;
            }
            _ => self.out.push_back(Step::Drop(Piece { input, blocks })),
        }
    }

    fn end_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        if let Some(single) = self.single.take() {
            debug_assert_eq!(group.len(), 1, "it overlaps no other");
            self.extend_span(group[0], single);
        } else if !group.is_empty() {
            self.end_span();
            self.push_merge(&group);
        }
        self.group = group;
        self.group.clear();
    }

    fn extend_span(&mut self, (input, block): (usize, usize), single: Single) {
        let follows = |span: &Span| {
            span.piece.input == input
                && span.piece.blocks.end == block
                && span.threshold == single.threshold
                && span.end_addr == single.addr
        };
        if !self.span.as_ref().is_some_and(follows) {
            self.end_span();
        }
        let span = self.span.get_or_insert(Span {
            piece: Piece {
                input,
                blocks: block..block,
            },
            threshold: single.threshold,
            end_addr: single.addr,
            bytes: 0,
        });
        debug_assert_eq!(span.piece.blocks.end, block, "a span has no gaps");
        debug_assert_eq!(span.end_addr, single.addr, "its blocks follow each other");
        span.piece.blocks.end = block + 1;
        span.end_addr += single.len_bytes;
        span.bytes += single.len_bytes;
        if span.is_long() && span.piece.blocks.len() >= self.batch {
            let rest = block + 1..block + 1;
            let blocks = std::mem::replace(&mut span.piece.blocks, rest);
            self.stitch(Piece { input, blocks });
        }
    }

    fn end_span(&mut self) {
        let Some(span) = self.span.take() else { return };
        if span.is_long() {
            if !span.piece.blocks.is_empty() {
                self.stitch(span.piece);
            }
            return;
        }
        debug_assert!(
            !span.piece.blocks.is_empty(),
            "of a short span nothing went out"
        );
        let input = span.piece.input;
        for block in span.piece.blocks {
            self.push_merge(&[(input, block)]);
        }
    }

    fn stitch(&mut self, piece: Piece) {
        debug_assert!(!piece.blocks.is_empty(), "a stitched piece has blocks");
        self.end_merge();
        self.out.push_back(Step::Stitch(piece));
    }

    /// Merges go on in one step until something is stitched in between, or the step is large.
    /// Blocks of one group stay in one step.
    fn push_merge(&mut self, group: &[(usize, usize)]) {
        debug_assert!(!group.is_empty(), "blocks are merged");
        debug_assert!(self.span.is_none(), "blocks of a span come before");
        self.end_large_merge();
        for &(input, block) in group {
            self.merge_blocks += 1;
            let before = self.merge.iter().rfind(|p| p.input == input);
            debug_assert!(
                before.is_none_or(|piece| piece.blocks.end <= block),
                "blocks of an input come in order"
            );
            match self.merge.iter_mut().rfind(|p| p.input == input) {
                Some(piece) if piece.blocks.end == block => piece.blocks.end += 1,
                _ => self.merge.push(Piece {
                    input,
                    blocks: block..block + 1,
                }),
            }
        }
    }

    fn end_large_merge(&mut self) {
        if self.merge_blocks >= self.batch {
            self.end_merge();
        }
    }

    fn end_merge(&mut self) {
        debug_assert!(
            self.merge_blocks >= self.merge.len(),
            "each piece has a block"
        );
        self.merge_blocks = 0;
        let pieces = std::mem::take(&mut self.merge);
        if !pieces.is_empty() {
            self.out.push_back(Step::Merge(pieces));
        }
    }
}
