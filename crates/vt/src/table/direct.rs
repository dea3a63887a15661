//! Data blocks that belong to no table yet: their index entries are in memory and in the log.

use super::block_source::{BlockSource, OneByOne};
use super::blocks::{BlockList, ListedBlocks};
use super::loader::{DataRef, Loader};
use super::point_read::{PointRead, Visit, versions_in};
use super::prefetched::prefetch;
use super::reader::{blocks_iter, probe_block, value_of};
use super::run::{Bounds, Carry, Keep, RunIter};
use crate::VtError;
use crate::cache::BlockCache;
use crate::entry::BoxIter;
use crate::readers::Holder;
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_format::vt_index::IndexEntry;
use stitch_kv::ReadHint;
use stitch_volume::Volume;

/// Data blocks in key order, at least one. Shared by threads.
#[derive(Debug)]
pub(crate) struct DirectBlocks {
    loader: Loader,
    entries: Arc<[IndexEntry]>,
}

impl DirectBlocks {
    /// Blocks of the volume. Reads nothing yet.
    pub(crate) fn new(
        volume: Arc<Volume>,
        cache: Arc<BlockCache>,
        entries: Vec<IndexEntry>,
    ) -> Self {
        let id = entries.first().expect("at least one block").origin;
        debug_assert!(
            entries.windows(2).all(|pair| pair[0].last < pair[1].first),
            "in key order"
        );
        debug_assert!(
            entries.iter().all(|entry| entry.first <= entry.last),
            "each block has a range of keys"
        );
        debug_assert!(
            entries
                .iter()
                .all(|entry| entry.min_seqno <= entry.max_seqno),
            "numbers of a block are in order"
        );
        Self {
            loader: Loader {
                volume,
                cache,
                id,
                shift: 0,
            },
            entries: entries.into(),
        }
    }

    pub(super) const fn loader(&self) -> &Loader {
        &self.loader
    }

    /// A cursor over the blocks that stands nowhere yet.
    pub(super) fn list(&self) -> ListedBlocks {
        debug_assert!(!self.entries.is_empty(), "at least one block");
        ListedBlocks::new(Arc::clone(&self.entries))
    }

    /// Their index entries.
    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// True if any key from `start` on, before `end`, may be in them.
    pub(crate) fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        let (first, last) = (&self.entries[0], &self.entries[self.entries.len() - 1]);
        debug_assert!(first.first <= last.last, "in key order");
        last.last.as_slice() >= start && end.is_none_or(|end| first.first.as_slice() < end)
    }

    /// True if `key` may be in them.
    pub(crate) fn reach(&self, key: &[u8]) -> bool {
        let (first, last) = (&self.entries[0], &self.entries[self.entries.len() - 1]);
        debug_assert!(first.first <= last.last, "in key order");
        first.first.as_slice() <= key && key <= last.last.as_slice()
    }

    /// As [`super::Table::versions_of`].
    pub(crate) fn versions_of<S: BlockSource>(
        &self,
        read: &mut PointRead<'_, S>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, S::Error> {
        debug_assert!(self.reach(read.key()), "the key may be in the blocks");
        let mut blocks = self.list();
        blocks.seek(read.key())?;
        versions_in(&self.loader, &mut blocks, read, visit)
    }

    /// A cursor over the entries with these keys, and maybe some others. Blocks that it reads go
    /// into the cache.
    pub(crate) fn iter(&self, bounds: Arc<Bounds>) -> BoxIter {
        let blocks = self.list();
        Box::new(RunIter::new(
            self.loader.clone(),
            blocks,
            bounds,
            Keep::Cache,
        ))
    }

    /// As [`super::Table::read_ahead`].
    pub(crate) fn read_ahead(
        &self,
        bounds: &Arc<Bounds>,
        hint: &ReadHint<'_>,
        holder: Holder,
    ) -> bool {
        prefetch(&self.loader, self.list(), bounds, hint, holder)
    }

    /// As [`super::Table::blocks_iter`].
    pub(crate) fn blocks_iter(&self, blocks: Vec<IndexEntry>, carry: Carry) -> BoxIter {
        debug_assert!(
            blocks.is_sorted_by(|block, next| block.last < next.first),
            "in key order"
        );
        debug_assert!(
            blocks.iter().all(|block| self.reach(&block.last)),
            "blocks of these"
        );
        blocks_iter(&self.loader, blocks, (carry, Keep::Nothing))
    }

    /// Reads a block and everything in it, unless it is in the cache.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn probe_block(&self, entry: &IndexEntry) -> Result<(), VtError> {
        debug_assert!(self.reach(&entry.first), "one of these blocks");
        debug_assert!(self.reach(&entry.last), "one of these blocks");
        probe_block(&self.loader, entry)
    }

    /// Reads every block.
    ///
    /// # Errors
    /// What is wrong with the first that is not as it was written.
    pub(crate) fn verify(&self) -> Result<(), VtError> {
        debug_assert!(self.loader.shift == 0, "numbers are those of the blocks");
        self.entries().iter().try_for_each(|e| self.probe_block(e))
    }
}

/// Reads value blocks that belong to no table yet. Shared by threads.
#[derive(Clone, Debug)]
pub(crate) struct ValueReader {
    volume: Arc<Volume>,
    cache: Arc<BlockCache>,
}

impl ValueReader {
    /// One for the value blocks of a volume.
    pub(crate) const fn new(volume: Arc<Volume>, cache: Arc<BlockCache>) -> Self {
        Self { volume, cache }
    }

    fn loader(&self, entry: &IndexEntry) -> Loader {
        debug_assert!(entry.is_value, "a value block");
        debug_assert_eq!(entry.first, entry.last, "a value block has one key");
        Loader {
            volume: Arc::clone(&self.volume),
            cache: Arc::clone(&self.cache),
            id: entry.origin,
            shift: 0,
        }
    }

    /// The value in a block, for a reader: it stays in the cache.
    ///
    /// # Errors
    /// What is wrong with the block.
    pub(crate) fn get(&self, entry: &IndexEntry) -> Result<Bytes, VtError> {
        self.get_from(&mut OneByOne, entry)
    }

    /// As [`Self::get`], with the block from `source`.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn get_from<S: BlockSource>(
        &self,
        source: &mut S,
        entry: &IndexEntry,
    ) -> Result<Bytes, S::Error> {
        debug_assert!(entry.is_value, "a value block");
        let data = DataRef::of(&entry.borrow());
        let block = source.data(&self.loader(entry), &data)?;
        debug_assert!(
            data.is_of(&block),
            "the block is the one that is referenced"
        );
        Ok(block.payload().clone())
    }

    /// Reads like [`Self::get`], for a caller that reads the block once: the cache stays as it is.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn get_once(&self, entry: &IndexEntry) -> Result<Bytes, VtError> {
        debug_assert!(entry.is_value, "a value block");
        value_of(&self.loader(entry), entry)
    }
}
