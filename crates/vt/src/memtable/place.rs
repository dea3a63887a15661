//! Where the value of a put lies that went to its zone at once: its value block. In memory only.

use crate::entry::EntryRef;
use stitch_base::TableId;
use stitch_format::vt_index::{BlockPtr, IndexEntry};

/// Length in the memtable, in bytes.
const BYTES: usize = 28;

/// The value block of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    block: BlockPtr,
    origin: TableId,
    raw_bytes: u32,
}

impl Place {
    /// That of a value block.
    pub(crate) fn of(entry: &IndexEntry) -> Self {
        debug_assert!(entry.is_value, "a value block");
        debug_assert!(
            entry.raw_bytes <= entry.block.len_bytes,
            "the block holds the value"
        );
        Self {
            block: entry.block,
            origin: entry.origin,
            raw_bytes: entry.raw_bytes,
        }
    }

    /// The index entry of the block; `put` says whose it is.
    pub(crate) fn entry(&self, put: &EntryRef<'_>) -> IndexEntry {
        debug_assert!(
            self.raw_bytes <= self.block.len_bytes,
            "the block holds the value"
        );
        IndexEntry::value(put.key, put.seqno, self.block, self.origin, self.raw_bytes)
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&self.block.addr.to_le_bytes());
        out[8..16].copy_from_slice(&self.origin.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.block.len_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.block.checksum.to_le_bytes());
        out[24..].copy_from_slice(&self.raw_bytes.to_le_bytes());
        debug_assert_eq!(Self::decode(&out), *self, "it is read back as the same");
        out
    }

    /// What [`Self::encode`] gave.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), BYTES, "a place was put there");
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            block: BlockPtr {
                addr: long(0),
                len_bytes: short(16),
                checksum: short(20),
            },
            origin: TableId(long(8)),
            raw_bytes: short(24),
        }
    }
}
