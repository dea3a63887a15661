//! Blocks in memory: read, checked, unpacked.

use super::loader::contradiction;
use crate::cache::{CachedRef, CountsHits, HitCount};
use crate::key_heads::KeyHeads;
use bytes::Bytes;
use std::sync::Arc;
use stitch_filter::QuotientFilterRef;
use stitch_format::FormatError;
use stitch_format::vt_data::DataLayout;
use stitch_format::vt_index::{IndexEntryRef, IndexLayout};
use stitch_format::vt_root::{Leaf, RootIndex, TableRoot};

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

    #[inline]
    pub(super) const fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The same block in a buffer of its own.
    pub(super) fn detached(&self) -> Self {
        debug_assert!(
            self.payload.len() + size_of::<Self>() <= self.memory_bytes,
            "a buffer of its own is no longer"
        );
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
    #[inline]
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

/// A range of a payload, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct FilterPlace {
    start: u32,
    len_bytes: u32,
}

/// An index block, or the index inside a root.
#[derive(Debug)]
pub(crate) struct IndexBlock {
    payload: Bytes,
    layout: IndexLayout,
    /// Those of the last keys of entries.
    heads: KeyHeads,
    /// Where in the payload the filter of each entry lies, which was checked; nowhere for a value
    /// block.
    filters: Box<[FilterPlace]>,
    hits: HitCount,
    memory_bytes: usize,
}

impl IndexBlock {
    /// A block of this payload. `memory_bytes` is what the buffer behind it takes.
    pub(super) fn new(payload: Bytes, memory_bytes: usize) -> Result<Self, FormatError> {
        let layout = IndexLayout::read(&payload)?;
        let count = layout.entry_count();
        debug_assert!(count > 0, "an index block has entries");
        let heads = KeyHeads::new(count, |at| layout.last(&payload, at))?;
        let filters = (0..count).map(|at| filter_place(&payload, &layout, at));
        let filters = filters.collect::<Result<Box<[_]>, _>>()?;
        let tables_bytes = heads.memory_bytes() + size_of_val(&*filters);
        Ok(Self {
            memory_bytes: memory_bytes + size_of::<Self>() + tables_bytes,
            payload,
            layout,
            heads,
            filters,
            hits: HitCount::default(),
        })
    }

    /// What a block of this length takes in memory at most, in bytes, unless its entries are
    /// unusually short.
    pub(super) const fn memory_bytes_of(len_bytes: usize) -> usize {
        // An entry has 48 bytes or more, mostly 200, and sixteen beside the payload.
        len_bytes + len_bytes / 3 + size_of::<Self>()
    }

    /// Number of entries, at least 1.
    pub(super) const fn len(&self) -> usize {
        self.layout.entry_count()
    }

    pub(super) fn entry(&self, index: usize) -> Result<IndexEntryRef<'_>, FormatError> {
        debug_assert!(index < self.len(), "an entry of this block");
        self.layout.entry(&self.payload, index)
    }

    /// The first entry whose last key is at or after `key`; the number of entries if none.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, FormatError> {
        let last = |at| self.layout.last(&self.payload, at);
        self.heads.find(key, last)
    }

    /// Whether an entry's block may have a key of this hash; `None` for a value block.
    pub(super) fn may_hold(&self, index: usize, hash: u64) -> Option<bool> {
        debug_assert!(index < self.len(), "an entry of this block");
        let place = self.filters[index];
        if place.len_bytes == 0 {
            return None;
        }
        let filter = &self.payload[place.start as usize..][..place.len_bytes as usize];
        Some(QuotientFilterRef::of_checked(filter).may_contain(hash))
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// Where the filter of an entry lies. The entry is as it should be, and so is the filter.
fn filter_place(
    payload: &[u8],
    layout: &IndexLayout,
    index: usize,
) -> Result<FilterPlace, FormatError> {
    let (entry, place) = layout.entry_and_filter(payload, index)?;
    if entry.is_value {
        return Ok(FilterPlace::default());
    }
    check_filter(entry.filter)?;
    debug_assert_eq!(
        &payload[place.clone()],
        entry.filter,
        "the filter lies there"
    );
    let narrow = |number: usize| u32::try_from(number).expect("a block is bounded");
    Ok(FilterPlace {
        start: narrow(place.start),
        len_bytes: narrow(place.len()),
    })
}

/// The filter of these bytes.
pub(super) fn check_filter(bytes: &[u8]) -> Result<QuotientFilterRef<'_>, FormatError> {
    QuotientFilterRef::new(bytes).map_err(|error| {
        let found = error.to_string();
        contradiction("filter", "a quotient filter".to_owned(), found)
    })
}

impl CountsHits for IndexBlock {
    fn hits(&self) -> &HitCount {
        &self.hits
    }
}

/// A root, with its index if that is inside.
#[derive(Debug)]
pub(crate) struct Root {
    pub(super) root: TableRoot,
    pub(super) inside: Option<Arc<IndexBlock>>,
    /// Those of the last keys of index blocks.
    heads: KeyHeads,
    /// The ways to index blocks.
    leaves: Box<[CachedRef<IndexBlock>]>,
    hits: HitCount,
    memory_bytes: usize,
}

impl Root {
    /// A root; `inside` is the index in it.
    pub(super) fn new(root: TableRoot, inside: Option<IndexBlock>) -> Self {
        let is_inside = matches!(root.index, RootIndex::Inside(_));
        debug_assert_eq!(is_inside, inside.is_some(), "an index in the root is given");
        let leaves = match &root.index {
            RootIndex::Leaves(leaves) => leaves.as_slice(),
            RootIndex::None | RootIndex::Inside(_) => &[],
        };
        let heads = KeyHeads::of(leaves.len(), |at| &leaves[at].last);
        let leaf_bytes =
            |leaf: &Leaf| size_of_val(leaf) + leaf.last.len() + CachedRef::<IndexBlock>::BYTES;
        let memory_bytes = size_of::<Self>()
            + size_of_val(root.range_deletes.as_slice())
            + inside.as_ref().map_or(0, IndexBlock::memory_bytes)
            + leaves.iter().map(leaf_bytes).sum::<usize>()
            + heads.memory_bytes();
        Self {
            leaves: leaves.iter().map(|_| CachedRef::default()).collect(),
            root,
            inside: inside.map(Arc::new),
            heads,
            hits: HitCount::default(),
            memory_bytes,
        }
    }

    /// Number of the first index block whose last key is at or after `key`.
    pub(super) fn leaf_of(&self, key: &[u8]) -> usize {
        match &self.root.index {
            RootIndex::Leaves(leaves) => self.heads.find_in(key, |at| &leaves[at].last),
            RootIndex::None | RootIndex::Inside(_) => 0,
        }
    }

    /// The way to an index block.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn way_to(&self, leaf_number: usize) -> &CachedRef<IndexBlock> {
        &self.leaves[leaf_number]
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl CountsHits for Root {
    fn hits(&self) -> &HitCount {
        &self.hits
    }
}
