//! The output tables of a compaction: those of the level below, and those that replace held keys in
//! the level itself.

use super::distill::Distilled;
use super::held_keys::HeldKeys;
use crate::VtError;
use crate::output::Outputs;
use stitch_format::vt_index::IndexEntry;

/// The tables that a compaction writes, by level.
pub(super) struct LevelOutputs<'a> {
    pub(super) held_keys: &'a HeldKeys,
    pub(super) down: Outputs<'a>,
    pub(super) rest: Outputs<'a>,
    pub(super) bytes: Bytes,
}

/// The bytes that a compaction handled without copying them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    /// Of blocks that were stitched, and of value blocks that were carried down.
    pub(super) stitched: u64,
    /// Of blocks that no reader can see.
    pub(super) dropped: u64,
}

impl LevelOutputs<'_> {
    pub(super) fn add(&mut self, kept: Distilled<'_>) -> Result<(), VtError> {
        let key = match kept {
            Distilled::Entry(entry) => entry.key,
            Distilled::Carried(block) => &block.last,
        };
        if self.held_keys.has(key) {
            return self.rest.keep(kept);
        }
        if let Distilled::Carried(block) = kept {
            debug_assert!(block.is_value, "only values are carried");
            debug_assert_eq!(block.first, block.last, "a value block has one key");
            self.bytes.stitched += u64::from(block.block.len_bytes);
        }
        self.down.keep(kept)
    }

    /// Each block goes down whole, or stays whole.
    pub(super) fn stitch(&mut self, blocks: &[IndexEntry]) -> Result<(), VtError> {
        debug_assert!(!blocks.is_empty(), "a stitched piece has blocks");
        for block in blocks {
            debug_assert!(
                !self.held_keys.cuts(&block.first, &block.last),
                "a stitched block is on one side of each point"
            );
            self.bytes.stitched += u64::from(block.block.len_bytes);
            let block = std::slice::from_ref(block);
            if self.held_keys.has(&block[0].first) {
                self.rest.stitch(block)?;
            } else {
                self.down.stitch(block)?;
            }
        }
        Ok(())
    }
}
