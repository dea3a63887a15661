//! Data blocks without the index that makes a table of them.

use super::places::Places;
use std::sync::Arc;
use stitch_format::vt_index::{IndexBuilder, IndexEntry, IndexLayout};
use stitch_volume::{Extent, Stream, Volume};

/// Data blocks that were written for themselves. Dropped, they give their space back.
#[derive(Debug)]
pub(crate) struct WrittenBlocks {
    pub(super) index: Vec<IndexEntry>,
    pub(super) places: Places,
}

impl WrittenBlocks {
    /// None yet.
    pub(crate) fn new(volume: &Arc<Volume>) -> Self {
        Self {
            index: Vec::new(),
            places: Places::new(Arc::clone(volume), Stream(0)),
        }
    }

    /// Adds a block, and the space that it is in.
    pub(crate) fn add(&mut self, entry: IndexEntry, extent: Extent) {
        debug_assert_eq!(entry.block.addr, extent.addr, "the block is in its space");
        debug_assert_eq!(u64::from(entry.block.len_bytes), extent.len, "and fills it");
        debug_assert!(
            self.index
                .last()
                .is_none_or(|before| before.last < entry.first),
            "blocks are in key order"
        );
        self.places.own(extent);
        self.index.push(entry);
    }

    /// What an index block holds of them.
    pub(crate) fn index_payload(&self) -> Vec<u8> {
        debug_assert!(!self.index.is_empty(), "an index block has entries");
        let mut builder = IndexBuilder::new();
        for entry in &self.index {
            builder.add(entry);
        }
        let payload = builder.finish();
        debug_assert!(
            IndexLayout::read(&payload).is_ok_and(|read| read.entry_count() == self.index.len()),
            "a replay reads each entry"
        );
        payload
    }

    /// Their index entries; their space is the caller's from now on.
    pub(crate) fn keep(mut self) -> Vec<IndexEntry> {
        debug_assert!(
            self.index.iter().all(|entry| entry.block.addr > 0),
            "each block has its place"
        );
        self.places.take_runs().expect("blocks of their own");
        self.index
    }
}
