//! Where a compaction puts what is left: one level down, or where it was.

use super::distill::Kept;
use super::holds::Holds;
use crate::VtError;
use crate::output::Outputs;
use stitch_format::vt_index::IndexEntry;

/// The tables of a compaction that are under way.
pub(super) struct Sinks<'a> {
    pub(super) holds: &'a Holds,
    pub(super) down: Outputs<'a>,
    pub(super) rest: Outputs<'a>,
    pub(super) bytes: Bytes,
}

/// What a compaction did without copying.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    /// Of blocks that were stitched, and of value blocks that were carried down.
    pub(super) stitched: u64,
    /// Of blocks that nobody can see.
    pub(super) dropped: u64,
}

impl Sinks<'_> {
    pub(super) fn add(&mut self, kept: Kept<'_>) -> Result<(), VtError> {
        let key = match kept {
            Kept::Entry(entry) => entry.key,
            Kept::Carried(block) => &block.last,
        };
        if self.holds.has(key) {
            return self.rest.keep(kept);
        }
        if let Kept::Carried(block) = kept {
            self.bytes.stitched += u64::from(block.block.len_bytes);
        }
        self.down.keep(kept)
    }

    /// Each block goes down whole, or stays whole.
    pub(super) fn stitch(&mut self, blocks: &[IndexEntry]) -> Result<(), VtError> {
        for block in blocks {
            self.bytes.stitched += u64::from(block.block.len_bytes);
            let block = std::slice::from_ref(block);
            if self.holds.has(&block[0].first) {
                self.rest.stitch(block)?;
            } else {
                self.down.stitch(block)?;
            }
        }
        Ok(())
    }
}
