//! Reading index blocks: with one that is missing come those beside it.
//!
//! The index blocks of a table lie one after the other, and lead to far more bytes than they have.
//! So a cold store soon has its index in the cache, while it has room, and a point read has one
//! block to wait for and not two. A point read does not wait for those beside it where they are
//! fetched behind it ([`super::index_prefetch`]).

use super::block::{IndexBlock, Root};
use super::blocks::LeafPlace;
use super::index_prefetch::IndexPrefetches;
use super::loader::Loader;
use crate::VtError;
use crate::cache::{CachedBlock, Expectation};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stitch_format::vt_index::BlockPtr;
use stitch_format::vt_root::Leaf;
use stitch_volume::{BlockKind, Wanted};

/// Index blocks within so many bytes are read together. It takes a disk less than twice as long as
/// one of them.
const GROUP_BYTES: u64 = 128 << 10;

/// The kind of read that misses an index block: it decides which others are read with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A walk: those beside it come at once.
    Walk,
    /// A point read: a prefetch fetches them after it, if there are threads and room for it.
    Point,
}

/// What a walk over indexes took.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Blocks that were found past the cache and are not counted there yet.
    pub(super) hits: u64,
    /// Index blocks that were not in the cache.
    pub(super) reads: u64,
}

impl Clone for Seen {
    /// None of it: each is counted once.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Loader {
    /// As [`Self::index`]. What it took is counted in `seen`; a block that the root knows nowhere
    /// else.
    ///
    /// # Panics
    /// As there.
    pub(super) fn leaf(
        &self,
        root: &Root,
        leaves: &[Leaf],
        at: usize,
        reader: Reader,
        seen: &mut Seen,
    ) -> Result<Arc<IndexBlock>, VtError> {
        debug_assert!(at < leaves.len(), "the root has the index block");
        let way = root.way_to(at);
        if let Some(index) = way.get() {
            seen.hits += 1;
            return Ok(index);
        }
        let index = self.index(leaves, at, reader, seen)?;
        way.set(&index);
        Ok(index)
    }

    /// Returns an index block, if it is in memory. `seen` counts it as [`Self::leaf`] does.
    pub(super) fn cached_leaf(
        &self,
        place: &LeafPlace<'_>,
        seen: &mut Seen,
    ) -> Option<Arc<IndexBlock>> {
        debug_assert!(
            place.at < place.leaves.len(),
            "the root has the index block"
        );
        let way = place.root.way_to(place.at);
        if let Some(index) = way.get() {
            seen.hits += 1;
            return Some(index);
        }
        let key = self.own_key(place.leaves[place.at].block.addr);
        let Some(CachedBlock::Index(index)) = self.cache.get(&key) else {
            return None;
        };
        way.set(&index);
        Some(index)
    }

    /// Numbers of the index blocks that `reader` reads with one that is missing.
    pub(super) fn read_with(&self, leaves: &[Leaf], at: usize, reader: Reader) -> Range<usize> {
        debug_assert!(at < leaves.len(), "the root has the index block");
        match reader {
            Reader::Point if IndexPrefetches::may_fetch(self) => at..at + 1,
            Reader::Point | Reader::Walk => self.group(leaves, at),
        }
    }

    /// An index block of the table, whose index blocks are `leaves`; `seen` counts it if it had to
    /// be read.
    ///
    /// # Panics
    /// If there is no block `at`.
    pub(super) fn index(
        &self,
        leaves: &[Leaf],
        at: usize,
        reader: Reader,
        seen: &mut Seen,
    ) -> Result<Arc<IndexBlock>, VtError> {
        let ptr = &leaves[at].block;
        if let Some(CachedBlock::Index(index)) = self.cache.get(&self.own_key(ptr.addr)) {
            return Ok(index);
        }
        seen.reads += 1;
        let group = self.read_with(leaves, at, reader);
        debug_assert!(group.contains(&at), "the wanted block is in the group");
        // What is wrong with a neighbour is nothing to who wants this one.
        if group.len() > 1
            && let Some(index) = self.read_group(&leaves[group.clone()], at - group.start)
        {
            return Ok(index);
        }
        let payload = self.read_plain(ptr, BlockKind::TableIndex)?;
        self.keep_index(ptr, payload)
    }

    /// Prefetches an index block that will be needed soon.
    pub(super) fn prefetch_index(&self, leaves: &[Leaf], at: usize) {
        debug_assert!(at < leaves.len(), "the root has the index block");
        if self
            .cache
            .glance(&self.own_key(leaves[at].block.addr))
            .is_none()
        {
            let group = &leaves[self.group(leaves, at)];
            let (start, end) = (group[0].block.addr, group[group.len() - 1].block.end());
            debug_assert!(start < end, "a group has a length");
            self.volume.prefetch(start, end - start);
        }
    }

    /// The index blocks that are read with one: those beside it that push nothing out of the cache.
    /// A table is divided into groups once for all, so that no group is read for another's sake.
    pub(super) fn group(&self, leaves: &[Leaf], at: usize) -> Range<usize> {
        debug_assert!(at < leaves.len(), "the root has the index block");
        let number = |leaf: &Leaf| leaf.block.addr.wrapping_sub(leaves[0].block.addr) / GROUP_BYTES;
        let belongs = |other: &Leaf| {
            let bytes = IndexBlock::memory_bytes_of(other.block.len_bytes as usize);
            number(other) == number(&leaves[at])
                && self.cache.has_room(&self.own_key(other.block.addr), bytes)
        };
        let follow = |pair: &[Leaf]| pair[0].block.end() == pair[1].block.addr;
        let (mut start, mut end) = (at, at + 1);
        while end < leaves.len() && follow(&leaves[end - 1..=end]) && belongs(&leaves[end]) {
            end += 1;
        }
        while start > 0 && follow(&leaves[start - 1..=start]) && belongs(&leaves[start - 1]) {
            start -= 1;
        }
        debug_assert!(start <= at, "the group holds the block");
        debug_assert!(at < end, "the group holds the block");
        debug_assert!(end <= leaves.len(), "the group is of these blocks");
        start..end
    }

    /// Reads index blocks that lie one after the other, and keeps those that are sound. Answers the
    /// one that is wanted, if it is.
    pub(super) fn read_group(&self, group: &[Leaf], wanted: usize) -> Option<Arc<IndexBlock>> {
        debug_assert!(wanted < group.len(), "the wanted block is in the group");
        debug_assert!(
            group.is_sorted_by(|leaf, next| leaf.block.end() == next.block.addr),
            "its blocks follow each other"
        );
        let (first, last) = (&group[0].block, &group[group.len() - 1].block);
        let offset = first.addr;
        let len = usize::try_from(last.end() - offset).expect("a group is bounded");
        let mut buffer = self.cache.buffers().take(len);
        debug_assert!(buffer.as_ref().len() == len, "exactly the group");
        let out = buffer.as_mut();
        self.volume.read_once(&mut [Wanted { offset, out }]).ok()?;
        let bytes = buffer.as_ref();
        let mut found = None;
        for (number, leaf) in group.iter().enumerate() {
            let ptr = &leaf.block;
            let start = usize::try_from(ptr.addr - offset).expect("within a group");
            // Each has a buffer of its own, so that one does not keep all alive.
            let block = Bytes::copy_from_slice(&bytes[start..start + ptr.len_bytes as usize]);
            let payload = self.open_plain(block, ptr, BlockKind::TableIndex);
            let index = payload.and_then(|payload| self.keep_index(ptr, payload));
            if number == wanted {
                found = index.ok();
            }
        }
        found
    }

    pub(super) fn keep_index(
        &self,
        ptr: &BlockPtr,
        payload: Bytes,
    ) -> Result<Arc<IndexBlock>, VtError> {
        let index = self.open_index(ptr, payload)?;
        let cached = CachedBlock::Index(Arc::clone(&index));
        self.cache
            .insert(self.own_key(ptr.addr), cached, Expectation::Often);
        Ok(index)
    }

    pub(super) fn open_index(
        &self,
        ptr: &BlockPtr,
        payload: Bytes,
    ) -> Result<Arc<IndexBlock>, VtError> {
        let index = IndexBlock::new(payload, ptr.len_bytes as usize);
        let index = index.map_err(|e| self.damaged(ptr.addr, e))?;
        debug_assert!(
            index.memory_bytes() > ptr.len_bytes as usize,
            "the cache counts the whole block"
        );
        Ok(Arc::new(index))
    }
}

#[cfg(test)]
mod tests;
