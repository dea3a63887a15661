//! Trees and their options.

use crate::{BranchPoint, KeyRanges};
use stitch_base::TreeId;

/// How a tree's blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4, where it saves an eighth or more: fast both ways.
    Lz4,
    /// Zstandard, where it saves an eighth or more: smaller than LZ4, and slower.
    Zstd,
}

impl Compression {
    /// Number by which stores know it.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// Returns the compression of a number.
    #[must_use]
    pub const fn of_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// What a tree is tuned for. Stored with the tree. All of it is a hint: what a tree holds and
/// answers is the same whatever they say, and an engine that has no use for an option ignores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Size of a data block before compression, in bytes: what a point read reads.
    pub block_bytes: u32,
    /// Stitching threshold: the shortest contiguous span of blocks, in bytes, that a compaction
    /// re-references instead of copying. 0 never copies what does not overlap; `u64::MAX` always
    /// copies, as a plain LSM-tree does. Small ones write less, large ones keep scans sequential.
    /// For engines that can re-reference blocks; one that always writes nodes anew ignores it.
    pub stitch_bytes: u64,
    /// Compression of data blocks.
    pub compression: Compression,
    /// Shortest value, in bytes, that gets a *value block*: a block of its own, without anything
    /// else
    /// in it, which compactions carry over and never copy, whatever `stitch_bytes` says (other than
    /// `u64::MAX`). A random overwrite then costs the device the value and a few dozen bytes for
    /// each
    /// level; a scan reads values in the order of their arrival, memtable by memtable. Its place
    /// is a multiple of 512 bytes. Not in trees with compression. 0: no value does. For engines
    /// that can keep values apart from their keys; others ignore it.
    pub value_block_bytes: u32,
}

impl TreeOptions {
    /// True if a value of `len` bytes gets a value block.
    #[must_use]
    pub fn has_value_block(&self, len: usize) -> bool {
        self.value_block_bytes > 0
            && len as u64 >= u64::from(self.value_block_bytes)
            && self.compression == Compression::None
    }
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            block_bytes: 8 << 10,
            stitch_bytes: 64 << 10,
            compression: Compression::None,
            value_block_bytes: 2 << 10,
        }
    }
}

/// A tree as a store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeInfo {
    /// Its number, never reused.
    pub id: TreeId,
    /// Its name, unique among living trees.
    pub name: String,
    /// Its options.
    pub options: TreeOptions,
    /// Where it begins, if it is a branch tree.
    pub branch: Option<BranchPoint>,
    /// Of a branch tree that begins at a narrowed pin: the keys of the parent that it begins with.
    /// `None` for all.
    pub branch_ranges: Option<KeyRanges>,
}
