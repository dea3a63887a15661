//! Reading a table.

use super::block::Root;
use super::blocks::{BlockList, ListedBlocks, TableBlocks};
use super::filter::TableFilter;
use super::index_prefetch::Held;
use super::leaves::Reader;
use super::loader::{DataRef, Loader, contradiction};
use super::prefetched::prefetch;
use super::run::{Bounds, Carry, Keep, RunIter};
use super::stream::StreamGrowth;
use crate::VtError;
use crate::cache::{BlockCache, BlockKey, CachedBlock, CachedRef, Expectation, ReadCount};
use crate::entry::{BoxIter, RangeDelete};
use crate::range_delete::RangeDeletes;
use crate::readers::Holder;
use bytes::Bytes;
use std::sync::Arc;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_format::vt_range_delete;
use stitch_kv::ReadHint;
use stitch_volume::{BlockKind, Volume};

/// A cursor over the entries of a table.
pub(crate) type TableIter = RunIter<TableBlocks<Arc<Table>>>;

/// A table. Shared by threads.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) meta: Arc<TableMeta>,
    pub(super) loader: Loader,
    /// The way to the root.
    root: CachedRef<Root>,
    pub(super) filter: TableFilter,
}

impl Table {
    /// What it takes, with what is left of a root that its cache has let go: the way to it is weak.
    pub(crate) const MEMORY_BYTES: usize = size_of::<Self>() + CachedRef::<Root>::BYTES;

    /// A table of the volume. Reads nothing yet.
    pub(crate) fn open(
        volume: Arc<Volume>,
        cache: Arc<BlockCache>,
        meta: Arc<TableMeta>,
    ) -> Arc<Self> {
        debug_assert!(meta.smallest <= meta.largest, "a table has a range of keys");
        debug_assert!(meta.min_seqno <= meta.max_seqno, "the newest is not older");
        debug_assert!(meta.root_bytes > 0, "a table has a root");
        debug_assert!(
            meta.shift == 0 || meta.shift < meta.min_seqno.0,
            "writes are counted from 1 in its blocks, too"
        );
        let loader = Loader {
            volume,
            cache,
            id: meta.id,
            shift: meta.shift,
        };
        Arc::new(Self {
            meta,
            loader,
            root: CachedRef::default(),
            filter: TableFilter::default(),
        })
    }

    /// What sequence numbers in its blocks are less than they count: see [`TableMeta::shift`].
    pub(crate) fn shift(&self) -> u64 {
        debug_assert_eq!(self.meta.shift, self.loader.shift, "the reader adds it");
        self.meta.shift
    }

    /// The same table with sequence numbers as its blocks have them.
    pub(crate) fn unshifted(self: &Arc<Self>) -> Arc<Self> {
        let shift = self.meta.shift;
        if shift == 0 {
            return Arc::clone(self);
        }
        let mut meta = TableMeta::clone(&self.meta);
        meta.move_back_by(shift);
        debug_assert_eq!(meta.shift, 0, "numbers are those of the blocks");
        debug_assert!(
            meta.min_seqno < self.meta.min_seqno,
            "they are less than they count"
        );
        debug_assert!(meta.min_seqno <= meta.max_seqno, "the newest is not older");
        let (volume, cache) = (&self.loader.volume, &self.loader.cache);
        Self::open(Arc::clone(volume), Arc::clone(cache), Arc::new(meta))
    }

    /// What is known without reading.
    #[cfg(test)]
    pub(crate) const fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }

    pub(super) fn blocks(self: &Arc<Self>) -> TableBlocks<Arc<Self>> {
        TableBlocks::new(Arc::clone(self), Reader::Walk)
    }

    /// The root. If its place is known, `hits` counts it, and nothing else does.
    pub(super) fn root(&self, hits: &mut u64) -> Result<Arc<Root>, VtError> {
        if let Some(root) = self.root.get() {
            debug_assert_eq!(root.root.id, self.meta.id, "the way leads to its own root");
            *hits += 1;
            return Ok(root);
        }
        let root = self.loader.root(&self.meta)?;
        debug_assert_eq!(root.root.id, self.meta.id, "it is its own root");
        self.root.set(&root);
        Ok(root)
    }

    /// The root, if it is in memory. `hits` counts it as [`Self::root`] does.
    pub(super) fn cached_root(&self, hits: &mut u64) -> Option<Arc<Root>> {
        if let Some(root) = self.root.get() {
            debug_assert_eq!(root.root.id, self.meta.id, "the way leads to its own root");
            *hits += 1;
            return Some(root);
        }
        let root = self.loader.cached_root(&self.meta)?;
        debug_assert_eq!(root.root.id, self.meta.id, "it is its own root");
        self.root.set(&root);
        Some(root)
    }

    /// Has more of the indexes of `tables` fetched, since a point read had to wait for a block of
    /// this one's. Does not wait.
    pub(crate) fn fetch_indexes<T: Iterator<Item = Held>>(&self, tables: impl FnOnce() -> T) {
        self.loader
            .cache
            .index_prefetches()
            .hand(&self.loader, tables);
    }

    /// A cursor over the entries with these keys, and maybe some others. Blocks that it reads go
    /// into the cache.
    pub(crate) fn iter(self: &Arc<Self>, bounds: Arc<Bounds>) -> BoxIter {
        Box::new(self.iter_at(bounds, Arc::default()))
    }

    /// The same, for one of several tables that are read one after the other.
    pub(crate) fn iter_at(
        self: &Arc<Self>,
        bounds: Arc<Bounds>,
        growth: Arc<StreamGrowth>,
    ) -> TableIter {
        let blocks = self.blocks();
        let loader = self.loader.clone();
        RunIter::new(loader, blocks, bounds, Keep::Cache).growing_on(growth)
    }

    /// Has blocks with these keys read, as far as there is memory for them. `holder` keeps them
    /// where they are while they are read. Returns at once, and answers whether there is.
    pub(crate) fn read_ahead(
        self: &Arc<Self>,
        bounds: &Arc<Bounds>,
        hint: &ReadHint<'_>,
        holder: Holder,
    ) -> bool {
        prefetch(&self.loader, self.blocks(), bounds, hint, holder)
    }

    /// A cursor over the entries of some of the table's blocks, in their order. What it reads does
    /// not go into the cache, and the value blocks that it carries are not read.
    pub(crate) fn blocks_iter(&self, blocks: Vec<IndexEntry>, carry: Carry) -> BoxIter {
        blocks_iter(&self.loader, blocks, (carry, Keep::Nothing))
    }

    /// As [`Self::blocks_iter`], for a table that is about to be removed: blocks that were written
    /// and not found since leave the cache.
    pub(crate) fn leaving_blocks_iter(&self, blocks: Vec<IndexEntry>, carry: Carry) -> BoxIter {
        blocks_iter(&self.loader, blocks, (carry, Keep::Leave))
    }

    /// The value in a value block.
    pub(crate) fn value_of(&self, entry: &IndexEntry) -> Result<Bytes, VtError> {
        value_of(&self.loader, entry)
    }

    /// Reads a data block and everything in it, unless it is in the cache.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn probe_block(&self, entry: &IndexEntry) -> Result<(), VtError> {
        probe_block(&self.loader, entry)
    }

    /// Index entries of the blocks that hold any key of `[start, end)`, in order. Reads index
    /// blocks only.
    pub(crate) fn index_entries(
        self: &Arc<Self>,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> Result<Vec<IndexEntry>, VtError> {
        let mut blocks = self.blocks();
        blocks.seek(start)?;
        let mut out = Vec::new();
        while let Some(entry) = blocks.current()?
            && end.is_none_or(|end| entry.first < end)
        {
            out.push(entry.to_owned());
            blocks.next()?;
        }
        Ok(out)
    }

    /// The index entries of all blocks, one by one. Reads index blocks only, as they are wanted.
    pub(crate) fn index_cursor(self: &Arc<Self>) -> Result<IndexCursor, VtError> {
        self.index_cursor_from(&[])
    }

    /// As [`Self::index_cursor`], from the first block on that may hold `start`.
    pub(crate) fn index_cursor_from(
        self: &Arc<Self>,
        start: &[u8],
    ) -> Result<IndexCursor, VtError> {
        let mut blocks = self.blocks();
        blocks.seek(start)?;
        Ok(IndexCursor { blocks })
    }

    /// Its range deletes.
    pub(crate) fn range_deletes(&self) -> Result<Arc<RangeDeletes>, VtError> {
        if self.meta.range_delete_count == 0 {
            return Ok(Arc::default());
        }
        let mut hits = 0;
        let root = self.root(&mut hits)?;
        self.loader.cache.counters().add(ReadCount::Hits, hits);
        let Some(first) = root.root.range_deletes.first() else {
            let expected = self.meta.range_delete_count.to_string();
            let error = contradiction("range deletes", expected, "0".to_owned());
            return Err(self.loader.damaged(self.meta.root_addr, error));
        };
        // The whole set is cached under its first block. Readers of a version from before an absorb
        // have the table with another shift.
        let origin = self.meta.id;
        let addr = first.addr;
        let key = BlockKey { origin, addr };
        if let Some(CachedBlock::RangeDeletes(set)) = self.loader.cache.get(&key)
            && set.shift() == self.meta.shift
        {
            return Ok(set);
        }
        let set = Arc::new(self.read_range_deletes(&root)?);
        debug_assert_eq!(
            set.shift(),
            self.meta.shift,
            "the numbers are as they count"
        );
        let cached = CachedBlock::RangeDeletes(Arc::clone(&set));
        self.loader.cache.insert(key, cached, Expectation::Normal);
        Ok(set)
    }

    fn read_range_deletes(&self, root: &Root) -> Result<RangeDeletes, VtError> {
        debug_assert!(
            self.meta.range_delete_count > 0,
            "there are range deletes to read"
        );
        let mut deletes = Vec::new();
        for block in &root.root.range_deletes {
            let payload = self.loader.read_plain(block, BlockKind::RangeDeletes)?;
            let stored = vt_range_delete::decode(&payload);
            let stored = stored.map_err(|e| self.loader.damaged(block.addr, e))?;
            deletes.extend(stored.iter().map(|delete| RangeDelete {
                start: delete.start.to_vec(),
                end: delete.end.to_vec(),
                seqno: self.loader.shifted(delete.seqno),
            }));
        }
        if deletes.len() as u64 != self.meta.range_delete_count {
            let expected = self.meta.range_delete_count.to_string();
            let error = contradiction("range deletes", expected, deletes.len().to_string());
            return Err(self.loader.damaged(self.meta.root_addr, error));
        }
        debug_assert!(
            deletes.iter().all(|delete| delete.start < delete.end),
            "ranges hold keys"
        );
        Ok(RangeDeletes::new(deletes).of_shift(self.meta.shift))
    }
}

/// See [`Table::index_cursor`].
#[derive(Debug)]
pub(crate) struct IndexCursor {
    blocks: TableBlocks<Arc<Table>>,
}

impl IndexCursor {
    /// The next entry, in key order.
    pub(crate) fn next(&mut self) -> Result<Option<IndexEntry>, VtError> {
        let entry = self.blocks.current()?.map(|entry| entry.to_owned());
        debug_assert!(
            entry.as_ref().is_none_or(|entry| entry.first <= entry.last),
            "a block's keys are in order"
        );
        if entry.is_some() {
            self.blocks.next()?;
        }
        Ok(entry)
    }
}

/// See [`Table::blocks_iter`].
pub(super) fn blocks_iter(
    loader: &Loader,
    blocks: Vec<IndexEntry>,
    (carry, keep): (Carry, Keep),
) -> BoxIter {
    let blocks = ListedBlocks::new(blocks.into());
    let iter = RunIter::new(loader.clone(), blocks, Arc::default(), keep);
    Box::new(iter.carrying(carry))
}

/// See [`Table::value_of`].
pub(super) fn value_of(loader: &Loader, entry: &IndexEntry) -> Result<Bytes, VtError> {
    debug_assert!(entry.is_value, "a value block");
    let data = DataRef::of(&entry.borrow());
    let block = loader.data_once(&data)?;
    debug_assert!(
        data.is_of(&block),
        "the block is the one that is referenced"
    );
    Ok(block.payload().clone())
}

/// Reads a data block and everything in it, unless it is in the cache.
pub(super) fn probe_block(loader: &Loader, entry: &IndexEntry) -> Result<(), VtError> {
    debug_assert!(
        entry.first <= entry.last,
        "the keys of a block are in order"
    );
    let data = DataRef::of(&entry.borrow());
    let damaged = |error| loader.damaged(data.block.addr, error);
    let block = loader.data_once(&data)?;
    if entry.is_value {
        return Ok(());
    }
    let mut iter = loader.entries(block);
    iter.seek_first().map_err(damaged)?;
    while iter.current().is_some() {
        iter.next().map_err(damaged)?;
    }
    Ok(())
}
