//! stub
use stitch_base::{Seqno, TableId};

/// Where a block is, and how to know that it is the right one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPtr {
    /// Offset on the device, in bytes.
    pub addr: u64,
    /// Length on the device, in bytes.
    pub len_bytes: u32,
    /// The block's checksum.
    pub checksum: u32,
}

/// What a table's index says about a data block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// First key in the block.
    pub first: Vec<u8>,
    /// Last key in the block.
    pub last: Vec<u8>,
    /// Where it is.
    pub block: BlockPtr,
    /// The table for which it was written.
    pub origin: TableId,
    /// Length of its content before compression, in bytes.
    pub raw_bytes: u32,
    /// Number of its entries.
    pub entry_count: u32,
    /// Number of those that are deletes.
    pub delete_count: u32,
    /// True if it holds several versions of a key, or a key of which other blocks hold versions.
    pub has_versions: bool,
    /// Smallest sequence number in it.
    pub min_seqno: Seqno,
    /// Largest sequence number in it.
    pub max_seqno: Seqno,
    /// Quotient filter of its keys.
    pub filter: Vec<u8>,
}
