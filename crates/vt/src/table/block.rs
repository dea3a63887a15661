//! Blocks in memory: read, checked, unpacked.

use bytes::Bytes;
use std::sync::Arc;
use stitch_format::FormatError;
use stitch_format::vt_data::DataLayout;
use stitch_format::vt_index::{IndexEntryRef, IndexLayout};
use stitch_format::vt_root::TableRoot;

/// A data block.
#[derive(Debug)]
pub(crate) struct DataBlock {
    payload: Bytes,
    /// `None` for a value block: all of the payload is the value.
    layout: Option<DataLayout>,
    memory_bytes: usize,
}

impl DataBlock {
    /// A block of this payload. `memory_bytes` is what the buffer behind it takes.
    pub(super) fn new(payload: Bytes, memory_bytes: usize) -> Result<Self, FormatError> {
        debug_assert!(
            payload.len() <= memory_bytes,
            "the buffer holds the payload"
        );
        Ok(Self {
            layout: Some(DataLayout::read(&payload)?),
            payload,
            memory_bytes: memory_bytes + size_of::<Self>(),
        })
    }

    /// A value block.
    pub(super) fn value(payload: Bytes, memory_bytes: usize) -> Self {
        debug_assert!(payload.len() <= memory_bytes, "the buffer holds the value");
        Self {
            payload,
            layout: None,
            memory_bytes: memory_bytes + size_of::<Self>(),
        }
    }

    pub(super) const fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The same block in a buffer of its own.
    pub(super) fn detached(&self) -> Self {
        Self {
            payload: Bytes::copy_from_slice(&self.payload),
            layout: self.layout,
            memory_bytes: self.payload.len() + size_of::<Self>(),
        }
    }

    /// Where its entries are.
    ///
    /// # Panics
    /// If it is a value block.
    pub(super) const fn layout(&self) -> &DataLayout {
        self.layout.as_ref().expect("a block of entries")
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// A block of one entry that takes about `len` bytes.
    #[cfg(test)]
    pub(crate) fn for_test(len: usize) -> Self {
        let mut builder = stitch_format::vt_data::DataBuilder::new();
        let value = vec![0; len];
        let op = stitch_format::vt_data::Op::Put(&value);
        builder.add(b"key", stitch_base::Seqno(1), &op);
        let mut payload = Vec::new();
        builder.finish(&mut payload);
        let len = payload.len();
        Self::new(payload.into(), len).expect("a block that was just made")
    }
}

/// An index block, or the index inside a root.
#[derive(Debug)]
pub(crate) struct IndexBlock {
    payload: Bytes,
    layout: IndexLayout,
    memory_bytes: usize,
}

impl IndexBlock {
    pub(super) fn new(payload: Bytes, memory_bytes: usize) -> Result<Self, FormatError> {
        Ok(Self {
            layout: IndexLayout::read(&payload)?,
            payload,
            memory_bytes: memory_bytes + size_of::<Self>(),
        })
    }

    /// Number of entries, at least 1.
    pub(super) const fn len(&self) -> usize {
        self.layout.entry_count()
    }

    pub(super) fn entry(&self, index: usize) -> Result<IndexEntryRef<'_>, FormatError> {
        self.layout.entry(&self.payload, index)
    }

    /// The first entry whose last key is at or after `key`; the number of entries if none.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, FormatError> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.layout.last(&self.payload, middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// A root, with its index if that is inside.
#[derive(Debug)]
pub(crate) struct Root {
    pub(super) root: TableRoot,
    pub(super) inside: Option<Arc<IndexBlock>>,
    pub(super) memory_bytes: usize,
}

impl Root {
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
