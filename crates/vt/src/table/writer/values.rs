//! Value blocks: those that wait to be written, and those that are carried over.

use super::TableWriter;
use crate::VtError;
use crate::entry::EntryRef;
use std::ops::Range;
use stitch_format::vt_index::{BlockPtr, IndexEntry, value_block_bytes};
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

impl TableWriter {
    pub(super) fn add_value(
        &mut self,
        entry: &EntryRef<'_>,
        value: &[u8],
        is_version: bool,
    ) -> Result<(), VtError> {
        self.cut()?;
        let len_bytes = self.values.add(value, self.index.len());
        let block = BlockPtr {
            len_bytes,
            ..BlockPtr::default()
        };
        let raw_bytes = u32::try_from(value.len()).expect("a value is bounded");
        let put = IndexEntry::value(entry.key, entry.seqno, block, self.table.id, raw_bytes);
        self.push_value(IndexEntry {
            has_versions: is_version,
            ..put
        });
        if self.values.len_bytes() >= self.buffer_bytes {
            self.write_values()?;
        }
        Ok(())
    }

    /// Adds a value block of another table, as the entry that it is.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn carry(&mut self, entry: &IndexEntry) -> Result<(), VtError> {
        debug_assert!(entry.is_value, "a value block");
        let is_version = self.is_version(&entry.last, entry.max_seqno)?;
        self.cut()?;
        self.check_live(entry)?;
        self.places.refer(&entry.block);
        self.push_value(IndexEntry {
            has_versions: is_version,
            ..entry.clone()
        });
        Ok(())
    }

    /// Adds the index entry of a value block. No data block is open.
    fn push_value(&mut self, entry: IndexEntry) {
        debug_assert!(self.data.is_empty(), "it has no other entries");
        if entry.has_versions
            && let Some(before) = self.index.last_mut()
        {
            before.has_versions = true;
        }
        self.last.clear();
        self.last.extend_from_slice(&entry.last);
        self.last_seqno = entry.max_seqno;
        self.data_bytes += u64::from(entry.block.len_bytes);
        self.value_bytes += u64::from(entry.block.len_bytes);
        self.index.push(entry);
    }

    /// Writes the value blocks that wait.
    pub(super) fn write_values(&mut self) -> Result<(), VtError> {
        if self.values.is_empty() {
            return Ok(());
        }
        let lens: Vec<u64> = self.values.lens().collect();
        let addrs = self.places.allocate_values(&lens)?;
        self.put_values(&addrs, &lens)
    }

    /// Writes the value blocks to their places.
    pub(super) fn put_values(&mut self, addrs: &[u64], lens: &[u64]) -> Result<(), VtError> {
        for ((number, value), addr) in self.values.iter().zip(addrs) {
            let block = &mut self.index[number].block;
            block.addr = *addr;
            block.checksum = self.volume.value_checksum(*addr, value);
        }
        self.places.write(addrs, lens, self.values.bytes())?;
        self.values.clear();
        Ok(())
    }
}
