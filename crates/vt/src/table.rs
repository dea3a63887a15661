//! stub
use crate::VtError;
use crate::cache::BlockCache;
use crate::entry::{BoxIter, EntryRef, RangeDelete};
use crate::range_delete::RangeDeletes;
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{TreeOptions, Violation};
use stitch_volume::{Stream, Volume};

/// Who a new table is and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct NewTable {
    /// Its number, never used before, not even for a table that was abandoned.
    pub(crate) id: TableId,
    /// Its tree.
    pub(crate) tree: TreeId,
    /// The tree's options.
    pub(crate) options: TreeOptions,
    /// With which other writes it should lie together.
    pub(crate) stream: Stream,
}

/// Makes a table: `(add | stitch)* add_range_delete* finish`, in entry order.
#[derive(Debug)]
pub(crate) struct TableWriter;

impl TableWriter {
    /// A writer.
    pub(crate) fn new(_volume: &Arc<Volume>, _table: NewTable) -> Self {
        Self
    }
    /// Adds an entry, in order.
    pub(crate) fn add(&mut self, _entry: &EntryRef<'_>) -> Result<(), VtError> {
        unimplemented!()
    }
    /// Adds a range delete, in any order.
    pub(crate) fn add_range_delete(&mut self, _delete: RangeDelete) {}
    /// Adds blocks of other tables, in order.
    pub(crate) fn stitch(&mut self, _blocks: &[IndexEntry]) -> Result<(), VtError> {
        unimplemented!()
    }
    /// Bytes of data blocks so far, stitched ones included.
    pub(crate) fn estimated_bytes(&self) -> u64 {
        0
    }
    /// Bytes written to the device so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        0
    }
    /// Writes the rest. `None` if nothing was added.
    pub(crate) fn finish(self) -> Result<Option<TableMeta>, VtError> {
        unimplemented!()
    }
}

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    meta: Arc<TableMeta>,
}

impl Table {
    /// A table; reads nothing yet.
    pub(crate) fn open(
        _volume: Arc<Volume>,
        _cache: Arc<BlockCache>,
        meta: Arc<TableMeta>,
    ) -> Arc<Self> {
        Arc::new(Self { meta })
    }
    /// What is known without reading.
    pub(crate) fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }
    /// Visits versions of a key not newer than `max_seqno`, newest first, until told to stop.
    pub(crate) fn versions_of(
        &self,
        _key: &[u8],
        _max_seqno: Seqno,
        _visit: &mut dyn FnMut(EntryRef<'_>, Option<&Bytes>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, VtError> {
        unimplemented!()
    }
    /// A cursor over all entries; caches what it reads.
    pub(crate) fn iter(self: &Arc<Self>) -> BoxIter {
        unimplemented!()
    }
    /// Index entries of the blocks that touch `[start, end)`, in order.
    pub(crate) fn index_entries(
        &self,
        _start: &[u8],
        _end: Option<&[u8]>,
    ) -> Result<Vec<IndexEntry>, VtError> {
        unimplemented!()
    }
    /// A cursor over these blocks of the table, in their order; what is read is not cached.
    pub(crate) fn blocks_iter(self: &Arc<Self>, _blocks: Vec<IndexEntry>) -> BoxIter {
        unimplemented!()
    }
    /// Its range deletes.
    pub(crate) fn range_deletes(&self) -> Result<Arc<RangeDeletes>, VtError> {
        unimplemented!()
    }
    /// Reads all of it and checks every rule.
    pub(crate) fn check(
        &self,
        _progress: &mut dyn FnMut(u64),
        _report: &mut dyn FnMut(Violation),
    ) -> Result<(), VtError> {
        unimplemented!()
    }
}
