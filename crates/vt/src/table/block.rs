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

/// A data block. Invariant: the memory that is counted holds the payload.
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
        let layout = DataLayout::read(&payload)?;
        debug_assert!(layout.restart_count() > 0, "a data block holds an entry");
        debug_assert!(
            layout.entries_end() < payload.len(),
            "restarts follow the entries"
        );
        Ok(Self::of(payload, Some(layout), memory_bytes))
    }

    /// A value block.
    pub(super) fn value(payload: Bytes, memory_bytes: usize) -> Self {
        Self::of(payload, None, memory_bytes)
    }

    /// A block whose payload lies in a buffer of `buffer_bytes`.
    fn of(payload: Bytes, layout: Option<DataLayout>, buffer_bytes: usize) -> Self {
        let block = Self {
            payload,
            layout,
            memory_bytes: buffer_bytes + size_of::<Self>(),
        };
        debug_assert!(block.holds());
        block
    }

    fn holds(&self) -> bool {
        self.payload.len() + size_of::<Self>() <= self.memory_bytes
    }

    /// Reports whether all of it is a value.
    pub(super) const fn is_value(&self) -> bool {
        self.layout.is_none()
    }

    #[inline]
    pub(super) const fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The same block in a buffer of its own.
    pub(super) fn detached(&self) -> Self {
        debug_assert!(self.holds());
        let payload = Bytes::copy_from_slice(&self.payload);
        let len = payload.len();
        let own = Self::of(payload, self.layout, len);
        debug_assert!(
            own.memory_bytes <= self.memory_bytes,
            "a buffer of its own is no longer"
        );
        own
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
        debug_assert!(
            self.memory_bytes > size_of::<Self>(),
            "the payload is counted"
        );
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

/// An index block, or the index inside a root. Invariant: each entry has a head of its last key
/// and a place of its filter.
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
        let block = Self {
            memory_bytes: memory_bytes + size_of::<Self>() + tables_bytes,
            payload,
            layout,
            heads,
            filters,
            hits: HitCount::default(),
        };
        debug_assert!(block.holds());
        Ok(block)
    }

    fn holds(&self) -> bool {
        self.filters.len() == self.len()
            && self.heads.len() == self.len()
            && self.payload.len() < self.memory_bytes
    }

    /// What a block of this length takes in memory at most, in bytes, unless its entries are
    /// unusually short.
    pub(super) const fn memory_bytes_of(len_bytes: usize) -> usize {
        debug_assert!(len_bytes > 0, "a block has a length");
        // An entry has 48 bytes or more, mostly 200, and sixteen beside the payload.
        len_bytes + len_bytes / 3 + size_of::<Self>()
    }

    /// Number of entries, at least 1.
    pub(super) const fn len(&self) -> usize {
        self.layout.entry_count()
    }

    pub(super) fn entry(&self, index: usize) -> Result<IndexEntryRef<'_>, FormatError> {
        debug_assert!(index < self.len(), "an entry of this block");
        debug_assert!(self.holds());
        self.layout.entry(&self.payload, index)
    }

    /// The first entry whose last key is at or after `key`; the number of entries if none.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, FormatError> {
        let last = |at| self.layout.last(&self.payload, at);
        let found = self.heads.find(key, last)?;
        debug_assert!(
            found <= self.len(),
            "an entry or the end behind the last one"
        );
        Ok(found)
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
        debug_assert!(
            self.memory_bytes > size_of::<Self>(),
            "the payload is counted"
        );
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
    debug_assert!(place.end <= payload.len(), "the filter lies in the payload");
    debug_assert!(!place.is_empty(), "an empty place stands for a value block");
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

/// A root, with its index if that is inside. Invariant: each index block has a head of its last
/// key and a way to it, and none is beside an index inside.
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
        debug_assert!(
            leaves.is_sorted_by(|leaf, next| leaf.last <= next.last),
            "index blocks are in key order"
        );
        let leaf_bytes =
            |leaf: &Leaf| size_of_val(leaf) + leaf.last.len() + CachedRef::<IndexBlock>::BYTES;
        let memory_bytes = size_of::<Self>()
            + size_of_val(root.range_deletes.as_slice())
            + inside.as_ref().map_or(0, IndexBlock::memory_bytes)
            + leaves.iter().map(leaf_bytes).sum::<usize>()
            + heads.memory_bytes();
        let root = Self {
            leaves: leaves.iter().map(|_| CachedRef::default()).collect(),
            root,
            inside: inside.map(Arc::new),
            heads,
            hits: HitCount::default(),
            memory_bytes,
        };
        debug_assert!(root.holds());
        root
    }

    fn holds(&self) -> bool {
        self.heads.len() == self.leaves.len()
            && (self.leaves.is_empty() || self.inside.is_none())
            && self.memory_bytes > size_of::<Self>()
    }

    /// Number of the first index block whose last key is at or after `key`.
    pub(super) fn leaf_of(&self, key: &[u8]) -> usize {
        debug_assert!(self.holds());
        match &self.root.index {
            RootIndex::Leaves(leaves) => {
                debug_assert_eq!(leaves.len(), self.leaves.len(), "each has a way to it");
                let found = self.heads.find_in(key, |at| &leaves[at].last);
                debug_assert!(
                    leaves
                        .get(found)
                        .is_none_or(|leaf| leaf.last.as_slice() >= key),
                    "the index block reaches the key"
                );
                debug_assert!(
                    found == 0 || leaves[found - 1].last.as_slice() < key,
                    "the index block before it does not"
                );
                found
            }
            RootIndex::None | RootIndex::Inside(_) => 0,
        }
    }

    /// The way to an index block.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn way_to(&self, leaf_number: usize) -> &CachedRef<IndexBlock> {
        debug_assert!(
            leaf_number < self.leaves.len(),
            "an index block of this root"
        );
        &self.leaves[leaf_number]
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        debug_assert!(
            self.memory_bytes > size_of::<Self>(),
            "the payload is counted"
        );
        self.memory_bytes
    }
}

impl CountsHits for Root {
    fn hits(&self) -> &HitCount {
        &self.hits
    }
}
