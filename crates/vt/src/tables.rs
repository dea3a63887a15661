//! The tables of a store: their numbers, their readers and writers, and what is known of the old
//! versions in them.
//!
//! Invariants:
//! - no number is given out twice, in this life of the store or a later one;
//! - a table that was written and not installed gives its space back by [`Tables::discard`].

use crate::cache::BlockCache;
use crate::runs::subtract;
use crate::superseded::SupersededVersions;
use crate::table::{NewTable, Table, TableWriter, ValueReader};
use crate::version::{LEVELS, TableHandle, Version, extents};
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_filter::Precision;
use stitch_format::vt_manifest::{Run, TableMeta};
use stitch_volume::Volume;

/// First version of the format with precise filters. A store of an older one stays as it is.
const FORMAT_OF_PRECISE_FILTERS: (u16, u16) = (2, 2);

/// The tables of a store.
pub(crate) struct Tables {
    volume: Arc<Volume>,
    cache: Arc<BlockCache>,
    /// Blocks go into the cache as they are written.
    caches_writes: bool,
    /// Number for the next table. Numbers of tables that were given up are skipped.
    next: AtomicU64,
    /// Old versions that tables hold.
    pub(crate) superseded: SupersededVersions,
}

impl Tables {
    /// Returns the tables of a store with this version, of which nothing was read yet.
    pub(crate) fn new(
        volume: &Arc<Volume>,
        cache: &Arc<BlockCache>,
        version: &Version,
        caches_writes: bool,
    ) -> Self {
        debug_assert!(
            version
                .tables()
                .all(|(_, t)| t.meta().id < version.next_table),
            "numbers of tables are given out once"
        );
        Self {
            volume: Arc::clone(volume),
            cache: Arc::clone(cache),
            caches_writes,
            next: AtomicU64::new(version.next_table.0),
            superseded: SupersededVersions::of_unknown(version.tables().map(|(_, t)| t)),
        }
    }

    /// Returns a number for a new table.
    pub(crate) fn new_id(&self) -> TableId {
        TableId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives out no number up to this one.
    pub(crate) fn skip_ids(&self, last: TableId) {
        let next = last.0.saturating_add(1);
        self.next.fetch_max(next, Ordering::Relaxed);
        debug_assert!(self.next_id().0 >= next, "numbers are skipped for good");
    }

    /// Returns a number that every table so far is below.
    pub(crate) fn next_id(&self) -> TableId {
        TableId(self.next.load(Ordering::Relaxed))
    }

    /// Returns a table's reader.
    pub(crate) fn reader<'a>(&self, handle: &'a TableHandle) -> &'a Arc<Table> {
        handle.table(&self.volume, &self.cache)
    }

    /// Returns a reader of values that no table has yet.
    pub(crate) fn values(&self) -> ValueReader {
        ValueReader::new(Arc::clone(&self.volume), Arc::clone(&self.cache))
    }

    /// Returns a writer of a table, in memory that was used before.
    pub(crate) fn writer(&self, table: NewTable) -> TableWriter {
        let writer = TableWriter::new(&self.volume, table).reusing(self.cache.buffers());
        match self.caches_writes {
            true => writer.cached_in(&self.cache),
            false => writer,
        }
    }

    /// Returns how seldom filters of a level's tables should be wrong. A read looks into all tables
    /// of level 0, and into one of each level below it, which hold most keys.
    pub(crate) fn precision(&self, level: usize) -> Precision {
        debug_assert!(level < LEVELS, "a level of the tree");
        let is_known = self.volume.superblock().readable >= FORMAT_OF_PRECISE_FILTERS;
        match level == 0 && is_known {
            true => Precision::High,
            false => Precision::Normal,
        }
    }

    /// Gives back the space of tables that were not installed, but for what their inputs own.
    pub(crate) fn discard(&self, tables: &[TableMeta], input_runs: &[Run]) {
        debug_assert!(input_runs.is_sorted(), "runs of the inputs are in order");
        for table in tables {
            self.superseded.forget(table.id);
            debug_assert!(table.runs.is_sorted(), "a table lists its runs in order");
            debug_assert!(table.id < self.next_id(), "its number was given out");
            let own = subtract(&table.runs, input_runs);
            self.volume.zones().free(&extents(&own));
        }
    }
}
