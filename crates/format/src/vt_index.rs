//! Index blocks of a VT-tree table: the index entries of data blocks, as the payload of a block or
//! inside a table's root.
//!
//! | part | layout |
//! |---|---|
//! | entries | see below, in key order |
//! | offsets | u32 each: where entries begin |
//! | count | u32: number of entries, not 0 |
//!
//! Of an entry, numbers are varints unless said otherwise, keys and filter byte strings: last key,
//! first key, block (see [`BlockPtr`]), number of the table that it was written for, length before
//! compression, count of entries, count of deletes, flags (u8, bit 0: has several versions of a
//! key, bit 1: a value block), smallest sequence number, largest minus smallest, quotient filter.
//!
//! A *value block* is the bytes of one put's value and zeros to the next sector; it has no header.
//! All else stands here: the key is the last key (the first is stored empty), there is one entry
//! and no filter, the length before compression is the value's, and the checksum is that of
//! [`value_checksum`].
//!
//! A block is reused in another table by copying its entry.

use crate::FormatError;
use crate::block::{ALIGN, PAYLOAD_BYTES_MAX, block_bytes};
use crate::codec::{Reader, checksum, checksum_append, put_bytes, put_varint};
use crate::vt_manifest::Run;
use std::ops::Range;
use stitch_base::{Seqno, TableId};

const RECORD: &str = "table index block";
const HAS_VERSIONS: u8 = 1;
const IS_VALUE: u8 = 2;
const NUMBER_BYTES: usize = 4;

/// A pointer to a block: its extent, and the checksum that identifies it. Stored as address u64,
/// length u32, checksum u32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPtr {
    /// Offset on the device, in bytes.
    pub addr: u64,
    /// Length on the device, in bytes.
    pub len_bytes: u32,
    /// The checksum in the block's header: an older block at the same place has another.
    pub checksum: u32,
}

impl BlockPtr {
    /// Bytes that a pointer takes.
    pub const ENCODED_BYTES: usize = 16;

    /// Returns its extent.
    #[must_use]
    pub const fn run(&self) -> Run {
        Run {
            addr: self.addr,
            len_bytes: self.len_bytes as u64,
        }
    }

    /// Offset after the block.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.addr.saturating_add(self.len_bytes as u64)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.addr.to_le_bytes());
        out.extend_from_slice(&self.len_bytes.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let ptr = Self {
            addr: r.u64()?,
            len_bytes: r.u32()?,
            checksum: r.u32()?,
        };
        let len = u64::from(ptr.len_bytes);
        let is_aligned = ptr.addr.is_multiple_of(ALIGN) && len.is_multiple_of(ALIGN);
        let is_bounded = 0 < len && len <= block_bytes(PAYLOAD_BYTES_MAX as u64);
        if !is_aligned || !is_bounded || ptr.addr.checked_add(len).is_none() {
            return Err(r.field("block", "a place of a block", format!("{ptr:?}")));
        }
        Ok(ptr)
    }
}

/// Checksum of a value block: CRC-32C of the volume's salt, the address and the value.
#[must_use]
pub fn value_checksum(salt: u64, addr: u64, value: &[u8]) -> u32 {
    let mut sum = checksum(&salt.to_le_bytes());
    sum = checksum_append(sum, &addr.to_le_bytes());
    checksum_append(sum, value)
}

/// Bytes that the block of a value takes on the device.
#[must_use]
pub const fn value_block_bytes(value_len: u64) -> u64 {
    value_len.next_multiple_of(ALIGN)
}

/// The index entry of a data block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// First key in the block.
    pub first: Vec<u8>,
    /// Last key in the block.
    pub last: Vec<u8>,
    /// Pointer to the block.
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
    /// True if it is a value block.
    pub is_value: bool,
    /// Smallest sequence number in it.
    pub min_seqno: Seqno,
    /// Largest sequence number in it.
    pub max_seqno: Seqno,
    /// Quotient filter of its keys; none for a value block.
    pub filter: Vec<u8>,
}

impl IndexEntry {
    /// Creates the entry of a value block: one put, of `key` at `seqno`, with `raw_bytes` of value.
    #[must_use]
    pub fn value(
        key: &[u8],
        seqno: Seqno,
        block: BlockPtr,
        origin: TableId,
        raw_bytes: u32,
    ) -> Self {
        Self {
            first: key.to_vec(),
            last: key.to_vec(),
            block,
            origin,
            raw_bytes,
            entry_count: 1,
            is_value: true,
            min_seqno: seqno,
            max_seqno: seqno,
            ..Self::default()
        }
    }

    /// The same, borrowed.
    #[must_use]
    pub fn borrow(&self) -> IndexEntryRef<'_> {
        IndexEntryRef {
            first: &self.first,
            last: &self.last,
            block: self.block,
            origin: self.origin,
            raw_bytes: self.raw_bytes,
            entry_count: self.entry_count,
            delete_count: self.delete_count,
            has_versions: self.has_versions,
            is_value: self.is_value,
            min_seqno: self.min_seqno,
            max_seqno: self.max_seqno,
            filter: &self.filter,
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.first.len() + self.last.len() + self.filter.len()
    }
}

/// An [`IndexEntry`] that is borrowed from an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntryRef<'a> {
    /// First key in the block.
    pub first: &'a [u8],
    /// Last key in the block.
    pub last: &'a [u8],
    /// Pointer to the block.
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
    /// True if it is a value block.
    pub is_value: bool,
    /// Smallest sequence number in it.
    pub min_seqno: Seqno,
    /// Largest sequence number in it.
    pub max_seqno: Seqno,
    /// Quotient filter of its keys; none for a value block.
    pub filter: &'a [u8],
}

impl IndexEntryRef<'_> {
    /// The same, owned.
    #[must_use]
    pub fn to_owned(&self) -> IndexEntry {
        IndexEntry {
            first: self.first.to_vec(),
            last: self.last.to_vec(),
            block: self.block,
            origin: self.origin,
            raw_bytes: self.raw_bytes,
            entry_count: self.entry_count,
            delete_count: self.delete_count,
            has_versions: self.has_versions,
            is_value: self.is_value,
            min_seqno: self.min_seqno,
            max_seqno: self.max_seqno,
            filter: self.filter.to_vec(),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.last);
        put_bytes(out, if self.is_value { &[] } else { self.first });
        self.block.put(out);
        put_varint(out, self.origin.0);
        put_varint(out, u64::from(self.raw_bytes));
        put_varint(out, u64::from(self.entry_count));
        put_varint(out, u64::from(self.delete_count));
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.push(flag(self.has_versions, HAS_VERSIONS) | flag(self.is_value, IS_VALUE));
        put_varint(out, self.min_seqno.0);
        put_varint(out, self.max_seqno.0 - self.min_seqno.0);
        put_bytes(out, self.filter);
    }
}

/// Builds an index block's payload.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    out: Vec<u8>,
    offsets: Vec<u32>,
}

impl IndexBuilder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Length of the payload if it were finished now, in bytes. Does not depend on the addresses
    /// and checksums of the blocks.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.out.len() + (self.offsets.len() + 1) * NUMBER_BYTES
    }

    /// True if nothing was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Adds an entry, which must come after those before.
    pub fn add(&mut self, entry: &IndexEntry) {
        let offset = u32::try_from(self.out.len()).expect("a block is bounded");
        self.offsets.push(offset);
        entry.borrow().put(&mut self.out);
    }

    /// The payload.
    ///
    /// # Panics
    /// If nothing was added.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        assert!(!self.offsets.is_empty(), "an index is not empty");
        for offset in &self.offsets {
            self.out.extend_from_slice(&offset.to_le_bytes());
        }
        let count = u32::try_from(self.offsets.len()).expect("a block is bounded");
        self.out.extend_from_slice(&count.to_le_bytes());
        self.out
    }
}

/// Offsets in an index block's payload. Every method takes the payload again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLayout {
    entries_end: usize,
    entry_count: usize,
}

impl IndexLayout {
    /// Reads the fixed parts of a payload.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn read(payload: &[u8]) -> Result<Self, FormatError> {
        let tail = payload.len().saturating_sub(NUMBER_BYTES);
        let mut reader = Reader::new(RECORD, &payload[tail..]);
        let entry_count = reader.u32()? as usize;
        let offsets = entry_count.saturating_mul(NUMBER_BYTES);
        if entry_count == 0 || offsets > tail {
            return Err(reader.field("count", "entries that fit", entry_count.to_string()));
        }
        Ok(Self {
            entries_end: tail - offsets,
            entry_count,
        })
    }

    /// Number of entries, at least 1.
    #[must_use]
    pub const fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// A reader that stands at the beginning of an entry.
    fn entry_reader<'a>(&self, payload: &'a [u8], index: usize) -> Result<Reader<'a>, FormatError> {
        assert!(index < self.entry_count, "an entry of this block");
        let at = self.entries_end + index * NUMBER_BYTES;
        let offset = Reader::new(RECORD, payload.get(at..).unwrap_or_default()).u32()?;
        let entries = payload.get(..self.entries_end).unwrap_or_default();
        let entry = entries.get(offset as usize..).unwrap_or_default();
        Ok(Reader::new(RECORD, entry))
    }

    /// The last key of an entry's block.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn last<'a>(&self, payload: &'a [u8], index: usize) -> Result<&'a [u8], FormatError> {
        self.entry_reader(payload, index)?.bytes()
    }

    /// An entry.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry<'a>(
        &self,
        payload: &'a [u8],
        index: usize,
    ) -> Result<IndexEntryRef<'a>, FormatError> {
        Self::read_entry(&mut self.entry_reader(payload, index)?)
    }

    /// An entry, and where in the payload its filter lies, in bytes.
    ///
    /// # Errors
    /// As for [`Self::entry`].
    ///
    /// # Panics
    /// As for [`Self::entry`].
    pub fn entry_and_filter<'a>(
        &self,
        payload: &'a [u8],
        index: usize,
    ) -> Result<(IndexEntryRef<'a>, Range<usize>), FormatError> {
        let mut r = self.entry_reader(payload, index)?;
        let start = self.entries_end - r.rest().len();
        let entry = Self::read_entry(&mut r)?;
        let end = start + r.at();
        let filter = end - entry.filter.len()..end;
        debug_assert_eq!(
            &payload[filter.clone()],
            entry.filter,
            "the end of an entry"
        );
        Ok((entry, filter))
    }

    fn read_entry<'a>(r: &mut Reader<'a>) -> Result<IndexEntryRef<'a>, FormatError> {
        let last = r.bytes()?;
        let first = r.bytes()?;
        let block = BlockPtr::read(r)?;
        let origin = TableId(r.varint()?);
        let raw_bytes = number(r, "raw length", PAYLOAD_BYTES_MAX as u64)?;
        let entry_count = number(r, "entry count", u64::from(raw_bytes))?;
        let delete_count = number(r, "delete count", u64::from(entry_count))?;
        let flags = r.u8()?;
        if flags & !(HAS_VERSIONS | IS_VALUE) != 0 {
            return Err(r.field("flags", "0 to 3", flags.to_string()));
        }
        let min_seqno = r.varint()?;
        let spread = r.varint()?;
        let max_seqno = min_seqno
            .checked_add(spread)
            .ok_or_else(|| r.field("seqnos", "64 bits", spread.to_string()))?;
        let filter = r.bytes()?;
        if first > last || entry_count == 0 {
            return Err(r.field("keys", "in order and some", format!("{entry_count} keys")));
        }
        let entry = IndexEntryRef {
            first,
            last,
            block,
            origin,
            raw_bytes,
            entry_count,
            delete_count,
            has_versions: flags & HAS_VERSIONS != 0,
            is_value: flags & IS_VALUE != 0,
            min_seqno: Seqno(min_seqno),
            max_seqno: Seqno(max_seqno),
            filter,
        };
        if entry.is_value {
            return as_value(r, entry);
        }
        Ok(entry)
    }
}

/// The entry of a value block: one put, and nothing left to say about it.
fn as_value<'a>(
    r: &Reader<'_>,
    entry: IndexEntryRef<'a>,
) -> Result<IndexEntryRef<'a>, FormatError> {
    let is_one = (entry.entry_count, entry.delete_count) == (1, 0);
    let is_bare = entry.first.is_empty() && entry.filter.is_empty();
    let is_whole =
        u64::from(entry.block.len_bytes) == value_block_bytes(u64::from(entry.raw_bytes));
    if !(is_one && is_bare && is_whole && entry.min_seqno == entry.max_seqno) {
        return Err(r.field("value block", "one put", format!("{:?}", entry.block)));
    }
    Ok(IndexEntryRef {
        first: entry.last,
        ..entry
    })
}

fn number(r: &mut Reader<'_>, field: &'static str, max: u64) -> Result<u32, FormatError> {
    let number = r.varint()?;
    let bounded = u32::try_from(number).ok().filter(|_| number <= max);
    bounded.ok_or_else(|| r.field(field, &format!("at most {max}"), number.to_string()))
}

#[cfg(test)]
mod tests;
