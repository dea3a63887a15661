//! The blocks of a compaction's inputs in key order, by their indexes. Index entries are read as
//! they are wanted and kept until their step has run, so that a compaction of any size needs little
//! memory.

use super::stitch::Piece;
use crate::VtError;
use crate::table::{IndexCursor, Table};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use stitch_format::vt_index::IndexEntry;

/// The inputs: `(next (take | forget)*)* next_beyond*`.
pub(super) struct Inputs<'a> {
    inputs: Vec<Input>,
    /// The next block of each input that has one in the plan.
    heads: BinaryHeap<Head>,
    /// Blocks from this key on are not in the plan.
    until: Option<&'a [u8]>,
}

struct Input {
    index: IndexCursor,
    /// Number of the first entry that is kept.
    start: usize,
    /// Entries that were given out and whose step has not run.
    kept: VecDeque<IndexEntry>,
    /// The first block that is not in the plan.
    beyond: Option<IndexEntry>,
}

/// The next block of an input. The greatest is the one with the least key, of the first input.
struct Head {
    entry: IndexEntry,
    input: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.entry.first.cmp(&self.entry.first);
        by_key.then(other.input.cmp(&self.input))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

impl<'a> Inputs<'a> {
    pub(super) fn new(tables: &[Arc<Table>], until: Option<&'a [u8]>) -> Result<Self, VtError> {
        let mut inputs = Self {
            inputs: Vec::new(),
            heads: BinaryHeap::new(),
            until,
        };
        for (number, table) in tables.iter().enumerate() {
            inputs.inputs.push(Input {
                index: table.index_cursor()?,
                start: 0,
                kept: VecDeque::new(),
                beyond: None,
            });
            inputs.advance(number)?;
        }
        debug_assert_eq!(inputs.inputs.len(), tables.len(), "each table is an input");
        Ok(inputs)
    }

    /// The next block in key order: its input, and its number there.
    pub(super) fn next(&mut self) -> Result<Option<(usize, usize)>, VtError> {
        let Some(head) = self.heads.pop() else {
            return Ok(None);
        };
        let input = &mut self.inputs[head.input];
        let number = input.start + input.kept.len();
        input.kept.push_back(head.entry);
        self.advance(head.input)?;
        Ok(Some((head.input, number)))
    }

    /// Reads the next entry of an input.
    fn advance(&mut self, number: usize) -> Result<(), VtError> {
        let input = &mut self.inputs[number];
        debug_assert!(input.beyond.is_none(), "there is more before the end");
        let Some(entry) = input.index.next()? else {
            return Ok(());
        };
        if self
            .until
            .is_some_and(|until| entry.first.as_slice() >= until)
        {
            input.beyond = Some(entry);
            return Ok(());
        }
        let input = number;
        self.heads.push(Head { entry, input });
        Ok(())
    }

    /// A block that was given out.
    pub(super) fn block(&self, input: usize, number: usize) -> &IndexEntry {
        let input = &self.inputs[input];
        debug_assert!(number >= input.start, "the block is still kept");
        &input.kept[number - input.start]
    }

    /// The entries of a step's blocks. They and all before them are not kept any more.
    pub(super) fn take(&mut self, piece: &Piece) -> Vec<IndexEntry> {
        let input = &mut self.inputs[piece.input];
        debug_assert!(input.start <= piece.blocks.start, "steps are in key order");
        debug_assert!(piece.blocks.start < piece.blocks.end, "a piece has blocks");
        let given_out = input.start + input.kept.len();
        debug_assert!(piece.blocks.end <= given_out, "its blocks were given out");
        let mut before = input.kept.drain(..piece.blocks.end - input.start);
        let taken: Vec<IndexEntry> = before
            .by_ref()
            .skip(piece.blocks.start - input.start)
            .collect();
        drop(before);
        input.start = piece.blocks.end;
        debug_assert_eq!(taken.len(), piece.blocks.len(), "each block of it is taken");
        taken
    }

    /// The bytes of blocks that are not wanted. They are not kept, unless some before them are.
    pub(super) fn forget(&mut self, piece: &Piece) -> u64 {
        debug_assert!(!piece.blocks.is_empty(), "a piece has blocks");
        let blocks = piece.blocks.clone();
        let bytes_of = |number| u64::from(self.block(piece.input, number).block.len_bytes);
        let bytes = blocks.map(bytes_of).sum();
        if self.inputs[piece.input].start == piece.blocks.start {
            drop(self.take(piece));
        }
        bytes
    }

    /// The next block that is not in the plan, of the one input that has any.
    pub(super) fn next_beyond(&mut self) -> Result<Option<IndexEntry>, VtError> {
        debug_assert!(self.heads.is_empty(), "all others come first");
        let Some(input) = self.inputs.iter_mut().find(|input| input.beyond.is_some()) else {
            return Ok(None);
        };
        debug_assert!(self.until.is_some(), "only a slice leaves blocks behind");
        let next = input.index.next()?;
        Ok(std::mem::replace(&mut input.beyond, next))
    }
}
