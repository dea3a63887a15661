//! A table as versions hold it. The space that a table leaves behind is given back when the last
//! version that knows it is gone, and with it the last reader.
//!
//! A stitched block is in the table that it came from and in the one that it went to. Readers of an
//! old version may read it through the first. So a removed table holds the tables that took over
//! its blocks: their space cannot be given back while it is in use.

use super::gauge::{Gauge, table_bytes};
use crate::cache::BlockCache;
use crate::table::Table;
use std::sync::{Arc, OnceLock};
use stitch_base::sync::Mutex;
use stitch_format::vt_manifest::{BaseBytes, Run, TableMeta};
use stitch_volume::{Extent, Volume};

/// A live table, or a removed one that an old reader still uses.
pub(crate) struct TableHandle {
    meta: Arc<TableMeta>,
    owned_bytes: u64,
    weight: u64,
    list_bytes: u64,
    base_bytes: BaseBytes,
    table: OnceLock<Arc<Table>>,
    left_behind: Mutex<Option<LeftBehind>>,
    /// Where its memory is counted.
    lists: Arc<Gauge>,
}

/// Space that is released when this is dropped.
pub(crate) struct LeftBehind {
    volume: Arc<Volume>,
    runs: Vec<Run>,
    /// Tables that took over the other blocks. Only to be dropped after the space is given back.
    successors: Vec<Arc<TableHandle>>,
}

impl LeftBehind {
    pub(crate) fn new(
        volume: &Arc<Volume>,
        runs: Vec<Run>,
        successors: Vec<Arc<TableHandle>>,
    ) -> Self {
        debug_assert!(
            runs.is_sorted_by(|run, next| run.end() <= next.addr),
            "extents are in order and apart"
        );
        let volume = Arc::clone(volume);
        debug_assert!(
            extents(&runs).iter().all(|e| volume.zones().is_live(*e)),
            "it was not given back yet"
        );
        Self {
            volume,
            runs,
            successors,
        }
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        let extents = extents(&self.runs);
        debug_assert!(
            extents.iter().all(|e| self.volume.zones().is_live(*e)),
            "space is given back once"
        );
        self.volume.zones().free(&extents);
        self.successors.clear();
    }
}

impl TableHandle {
    /// A handle of a live table. Reads nothing.
    pub(crate) fn new(meta: Arc<TableMeta>, lists: &Arc<Gauge>) -> Self {
        debug_assert!(meta.smallest <= meta.largest, "a table has keys");
        debug_assert!(meta.min_seqno <= meta.max_seqno, "its numbers are in order");
        debug_assert!(
            meta.runs.is_sorted_by(|run, next| run.end() <= next.addr),
            "what it owns is in order and apart"
        );
        debug_assert!(
            meta.value_bytes <= meta.data_bytes,
            "value blocks are data blocks"
        );
        lists.add(table_bytes(&meta));
        Self {
            owned_bytes: meta.owned_bytes(),
            weight: meta.weight(),
            list_bytes: meta.run_list_bytes(),
            base_bytes: meta.base_bytes(),
            meta,
            table: OnceLock::new(),
            left_behind: Mutex::new(None),
            lists: Arc::clone(lists),
        }
    }

    /// What is known of the table without reading it.
    pub(crate) fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }

    /// Bytes of the device that it owns.
    pub(crate) const fn owned_bytes(&self) -> u64 {
        self.owned_bytes
    }

    /// What it weighs in a compaction; see [`TableMeta::weight`].
    pub(crate) const fn weight(&self) -> u64 {
        self.weight
    }

    /// What a base takes to list what it owns.
    pub(crate) const fn list_bytes(&self) -> u64 {
        self.list_bytes
    }

    /// Returns what a base takes to list the table.
    pub(crate) const fn base_bytes(&self) -> BaseBytes {
        self.base_bytes
    }

    /// The table itself.
    pub(crate) fn table(&self, volume: &Arc<Volume>, cache: &Arc<BlockCache>) -> &Arc<Table> {
        let table = self.table.get_or_init(|| {
            let meta = Arc::clone(&self.meta);
            Table::open(Arc::clone(volume), Arc::clone(cache), meta)
        });
        debug_assert_eq!(
            table.shift(),
            self.meta.shift,
            "the reader is of this table"
        );
        table
    }

    /// Notes that the table is durably in no new version: `runs` are released when the handle is
    /// dropped. `successors` took over the rest.
    pub(crate) fn leave(&self, volume: &Arc<Volume>, runs: Vec<Run>, successors: Vec<Arc<Self>>) {
        debug_assert!(
            runs.iter().map(|run| run.len_bytes).sum::<u64>() <= self.owned_bytes,
            "a table leaves what it owned"
        );
        debug_assert!(
            successors
                .iter()
                .all(|table| !std::ptr::eq(&raw const **table, self)),
            "a table does not succeed itself"
        );
        let left_behind = LeftBehind::new(volume, runs, successors);
        let before = self.left_behind.lock().replace(left_behind);
        assert!(before.is_none(), "a table is removed once");
    }
}

impl Drop for TableHandle {
    fn drop(&mut self) {
        self.lists.take(table_bytes(&self.meta));
    }
}

/// Runs as the volume calls them.
pub(crate) fn extents(runs: &[Run]) -> Vec<Extent> {
    let extent = |run: &Run| Extent {
        addr: run.addr,
        len: run.len_bytes,
    };
    runs.iter().map(extent).collect()
}

impl std::fmt::Debug for TableHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {}", self.meta.id)
    }
}
