//! What tables take in memory while they are not read: their lists of runs, their keys, their
//! handles.
//!
//! Each handle counts itself when it is made and when it goes, so that the sum needs no walk over
//! all tables.

use super::TableHandle;
use crate::table::Table;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_format::vt_manifest::{Run, TableMeta};

/// The counts of an `Arc`.
const ARC_BYTES: usize = 2 * size_of::<usize>();
/// Beside each allocation, and what an allocator rounds up.
const ALLOCATION_BYTES: usize = 16;
/// A table's place in two versions, the old and the new, and while the new one is built.
const PLACE_BYTES: usize = 2 * size_of::<usize>() + 64;
/// The hole before a run, in the online-map.
const HOLE_BYTES: usize = 16;
/// What a base version takes for a run, at most in nearly all cases. While it is written it is
/// there twice.
const BASE_RUN_BYTES: usize = 2 * super::RUN_BYTES as usize;
/// The same of a table without its runs and keys.
const BASE_TABLE_BYTES: usize = 2 * 64;

/// Bytes of memory that a table takes as long as it is there, whether or not it is read; and of a
/// base version, while one is written.
pub(crate) fn table_bytes(meta: &TableMeta) -> usize {
    let keys = meta.smallest.capacity() + meta.largest.capacity();
    debug_assert!(meta.smallest <= meta.largest, "a table has keys");
    let fixed = size_of::<TableHandle>() + size_of::<TableMeta>() + 2 * ARC_BYTES;
    let opened = Table::MEMORY_BYTES + ARC_BYTES;
    let runs = meta.runs.capacity() * size_of::<Run>();
    let elsewhere = meta.runs.len() * (HOLE_BYTES + BASE_RUN_BYTES);
    let base = BASE_TABLE_BYTES + 2 * keys;
    fixed + opened + PLACE_BYTES + 6 * ALLOCATION_BYTES + keys + runs + elsewhere + base
}

/// Bytes in memory.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicUsize);

impl Gauge {
    pub(crate) fn add(&self, bytes: usize) {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        debug_assert!(
            before.checked_add(bytes).is_some(),
            "tables go before memory ends"
        );
    }

    pub(crate) fn take(&self, bytes: usize) {
        let before = self.0.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "what goes has come");
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
