//! Value blocks: those that wait to be written, and those that are carried over.

use super::TableWriter;
use crate::VtError;
use crate::entry::EntryRef;
use crate::page_buffers::{KEPT_BYTES, PageBuffer, PageBuffers};
use bytes::Bytes;
use std::ops::Range;
use stitch_format::vt_index::{BlockPtr, IndexEntry, value_block_bytes};
use stitch_volume::PAGE_BYTES;

/// Value blocks, one after the other, each padded. Invariant: they lie in the buffer, and have a
/// length together if any waits.
#[derive(Debug, Default)]
pub(super) struct Values {
    buffers: PageBuffers,
    buffer: Option<PageBuffer>,
    /// How much of the buffer they fill.
    len_bytes: usize,
    /// Where each value is, without padding, and its number in the index.
    waiting: Vec<(Range<usize>, usize)>,
    /// They are written behind.
    are_behind: bool,
}

impl Values {
    /// None yet, in memory of these.
    pub(super) fn new(buffers: PageBuffers) -> Self {
        Self {
            buffers,
            ..Self::default()
        }
    }

    fn holds(&self) -> bool {
        let room = self.buffer.as_ref().map_or(0, |b| b.as_ref().len());
        self.len_bytes <= room && self.waiting.is_empty() == (self.len_bytes == 0)
    }

    /// The buffer, with room for so many bytes.
    fn with_room(&mut self, len_bytes: usize) -> &mut [u8] {
        debug_assert!(len_bytes > self.len_bytes, "room for one more block");
        let has = self.buffer.as_ref().map_or(0, |b| b.as_ref().len());
        if has < len_bytes {
            let room = len_bytes.next_power_of_two().max(KEPT_BYTES);
            let mut longer = self.buffers.take(room);
            debug_assert!(
                longer.as_ref().len() >= len_bytes,
                "the buffer has the room"
            );
            longer.as_mut()[..self.len_bytes].copy_from_slice(self.bytes());
            self.buffer = Some(longer);
        }
        let buffer = self.buffer.as_mut().expect("just made sure of");
        buffer.as_mut()
    }

    /// Adds a value. Answers the length of its block.
    pub(super) fn add(&mut self, value: &[u8], number: usize) -> u32 {
        debug_assert!(!value.is_empty(), "an empty value has no block");
        debug_assert!(
            self.waiting
                .last()
                .is_none_or(|(_, before)| *before < number),
            "values wait in the order of the index"
        );
        let (start, len_bytes) = (self.len_bytes, value_block_bytes(value.len() as u64));
        let end = start + usize::try_from(len_bytes).expect("a value is bounded");
        let block = &mut self.with_room(end)[start..end];
        let (head, padding) = block.split_at_mut(value.len());
        head.copy_from_slice(value);
        padding.fill(0);
        self.len_bytes = end;
        self.waiting.push((start..start + value.len(), number));
        debug_assert!(self.holds());
        u32::try_from(len_bytes).expect("a value is bounded")
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if they fill whole pages.
    pub(super) fn are_pages(&self) -> bool {
        debug_assert!(self.holds());
        (self.len_bytes as u64).is_multiple_of(PAGE_BYTES)
    }

    pub(super) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The blocks as they are to be written.
    pub(super) fn bytes(&self) -> &[u8] {
        debug_assert!(self.holds());
        let buffer = self.buffer.as_ref();
        buffer.map_or(&[], |buffer| &buffer.as_ref()[..self.len_bytes])
    }

    /// Lengths of the blocks.
    pub(super) fn lens(&self) -> impl Iterator<Item = u64> {
        let values = self.waiting.iter();
        values.map(|(value, _)| value_block_bytes(value.len() as u64))
    }

    /// The numbers in the index, and the values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let (values, bytes) = (self.waiting.iter(), self.bytes());
        values.map(|(value, number)| (*number, &bytes[value.clone()]))
    }

    /// Lets go of the blocks. The next ones have memory of their own.
    fn take(&mut self) -> Bytes {
        let len_bytes = self.len_bytes;
        debug_assert!(self.holds());
        debug_assert_eq!(
            self.lens().sum::<u64>(),
            len_bytes as u64,
            "the buffer holds the blocks and nothing else"
        );
        self.clear();
        let buffer = self.buffer.take();
        buffer.map_or_else(Bytes::new, |buffer| {
            Bytes::from_owner(buffer).slice(..len_bytes)
        })
    }

    fn clear(&mut self) {
        self.len_bytes = 0;
        self.waiting.clear();
    }
}

impl TableWriter {
    /// The same, not waiting for its value blocks: an error is that of the next sync of the device.
    pub(crate) const fn behind(mut self) -> Self {
        debug_assert!(self.values.is_empty(), "nothing was added yet");
        self.values.are_behind = true;
        self
    }

    pub(super) fn add_value(
        &mut self,
        entry: &EntryRef<'_>,
        value: &[u8],
        is_version: bool,
    ) -> Result<(), VtError> {
        self.cut()?;
        debug_assert!(!value.is_empty(), "an empty value has no block");
        debug_assert!(self.data.is_empty(), "the block before it has ended");
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
        if is_version {
            self.superseded
                .add(&entry.last, entry.max_seqno, self.last_seqno);
        }
        self.cut()?;
        self.check_live(entry)?;
        debug_assert!(entry.first == entry.last, "a value block holds one key");
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
        debug_assert!(entry.is_value, "a value block");
        debug_assert_eq!(entry.entry_count, 1, "a value block has one entry");
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
        debug_assert!(
            self.value_bytes <= self.data_bytes,
            "value blocks are data blocks"
        );
    }

    /// Writes the value blocks that wait.
    pub(super) fn write_values(&mut self) -> Result<(), VtError> {
        if self.values.is_empty() {
            return Ok(());
        }
        let lens: Vec<u64> = self.values.lens().collect();
        debug_assert!(lens.iter().all(|len| *len > 0), "each block has a length");
        let addrs = self.places.allocate_values(&lens)?;
        self.put_values(&addrs, &lens)
    }

    /// Writes the value blocks to their places.
    pub(super) fn put_values(&mut self, addrs: &[u64], lens: &[u64]) -> Result<(), VtError> {
        assert_eq!(addrs.len(), lens.len(), "every block has a place");
        assert_eq!(
            lens.iter().sum::<u64>(),
            self.values.len_bytes() as u64,
            "all that waits is written"
        );
        for ((number, value), addr) in self.values.iter().zip(addrs) {
            let entry = &mut self.index[number];
            debug_assert!(entry.is_value, "a value block");
            debug_assert_eq!(entry.raw_bytes as usize, value.len(), "the whole value");
            entry.block.addr = *addr;
            entry.block.checksum = self.volume.value_checksum(*addr, value);
            self.cached.value(entry, value);
        }
        if self.values.are_behind {
            return self.places.write_behind(addrs, lens, &self.values.take());
        }
        self.places.write(addrs, lens, self.values.bytes())?;
        self.values.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_buffer_held_before_is_no_padding() {
        let buffers = PageBuffers::default();
        buffers.take(KEPT_BYTES).as_mut().fill(0xee);
        let mut values = Values::new(buffers);
        assert_eq!(values.add(&[1; 1000], 0), 1024);
        assert_eq!(values.add(&[2; 512], 1), 512);
        let expected = [&[1; 1000][..], &[0; 24], &[2; 512]].concat();
        assert_eq!(values.bytes(), expected);
        // More than a kept buffer has room for.
        let long = vec![3; KEPT_BYTES - 300];
        values.add(&long, 2);
        assert_eq!(values.bytes()[..1536], expected);
        assert_eq!(values.bytes()[1536..1536 + long.len()], long);
        assert!(values.bytes()[1536 + long.len()..].iter().all(|b| *b == 0));
        assert_eq!(values.len_bytes(), values.lens().sum::<u64>() as usize);
        let taken = [values.bytes(), &[4; 512][..]].concat();
        values.add(&[4; 512], 3);
        let found: Vec<usize> = values.iter().map(|(number, _)| number).collect();
        assert_eq!(found, [0, 1, 2, 3]);
        assert_eq!(values.take(), taken);
        assert!(values.is_empty() && values.bytes().is_empty());
    }
}
