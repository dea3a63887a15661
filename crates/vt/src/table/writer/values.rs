//! Value blocks that wait to be written.

use std::ops::Range;
use stitch_format::vt_index::value_block_bytes;
use stitch_volume::PAGE_BYTES;

/// Value blocks, one after the other, each padded.
#[derive(Debug, Default)]
pub(super) struct Values {
    bytes: Vec<u8>,
    /// Where each value is, without padding, and its number in the index.
    waiting: Vec<(Range<usize>, usize)>,
}

impl Values {
    /// Adds a value. Answers the length of its block.
    pub(super) fn add(&mut self, value: &[u8], number: usize) -> u32 {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.waiting.push((start..self.bytes.len(), number));
        let len_bytes = value_block_bytes(value.len() as u64);
        let len = usize::try_from(len_bytes).expect("a value is bounded");
        self.bytes.resize(start + len, 0);
        u32::try_from(len_bytes).expect("a value is bounded")
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if they fill whole pages.
    pub(super) fn are_pages(&self) -> bool {
        (self.bytes.len() as u64).is_multiple_of(PAGE_BYTES)
    }

    pub(super) const fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The blocks as they are to be written.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Lengths of the blocks.
    pub(super) fn lens(&self) -> impl Iterator<Item = u64> {
        let values = self.waiting.iter();
        values.map(|(value, _)| value_block_bytes(value.len() as u64))
    }

    /// The numbers in the index, and the values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let values = self.waiting.iter();
        values.map(|(value, number)| (*number, &self.bytes[value.clone()]))
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.waiting.clear();
    }
}
