//! What the engine counts: the names of what only a VT-tree has, beside those of
//! [`stitch_kv::counters`].

use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::{Counters, counters as names};

/// Bytes written by memtable write-outs.
pub const WRITE_OUT_BYTES: &str = "vt.write_out_bytes";
/// Bytes of blocks re-referenced by compactions.
pub const STITCHED_BYTES: &str = "vt.stitched_bytes";
/// Bytes of blocks written by compactions.
pub const MERGED_BYTES: &str = "vt.merged_bytes";
/// Bytes of tables that were looked through for what dropped moments have left.
pub const SWEPT_BYTES: &str = "vt.swept_bytes";
/// Bytes of versions that nothing needed any more, found by these looks and compacted away.
pub const GARBAGE_BYTES: &str = "vt.garbage_bytes";
/// Data blocks read from the device, by reads, compactions and other work.
pub const DATA_BLOCKS_READ: &str = "vt.data_blocks_read";

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:expr;)+) => {
        /// Counters of an open store. What reads count is in [`crate::cache::ReadCounters`].
        #[derive(Debug, Default)]
        pub(crate) struct VtCounters {
            $($(#[$doc])* pub(crate) $field: Counter,)+
        }

        impl VtCounters {
            /// All of them, by name.
            pub(crate) fn export(&self, out: &mut Counters) {
                $(out.push($name, self.$field.get());)+
            }
        }
    };
}

counters! {
    /// Messages committed.
    put_messages = names::PUT_MESSAGES;
    /// Bytes of keys and values committed.
    put_bytes = names::PUT_BYTES;
    /// Batches committed.
    commits = names::COMMITS;
    /// Absorbs of branch trees that moved tables.
    absorbs_moved = "vt.absorbs_moved";
    /// Bytes appended to the backup log.
    log_bytes = names::LOG_BYTES;
    /// Bytes of values that commits wrote to their zones at once.
    direct_bytes = "vt.direct_bytes";
    /// Batches to temporary branch trees that became tables at once.
    table_batches = "vt.table_batches";
    /// Bytes of the tables that batches became.
    batch_table_bytes = "vt.batch_table_bytes";
    /// Bytes written by write-outs.
    write_out_bytes = WRITE_OUT_BYTES;
    /// Bytes of blocks re-referenced by compactions.
    stitched_bytes = STITCHED_BYTES;
    /// Bytes written by compactions.
    merged_bytes = MERGED_BYTES;
    /// Memtables written out.
    write_outs = "vt.write_outs";
    /// Compactions run.
    compactions = "vt.compactions";
    /// Compactions, of these and those that moved tables, that were begun while another ran.
    compactions_beside = "vt.compactions_beside";
    /// Tables moved a level down as they were.
    moved_tables = "vt.moved_tables";
    /// Tables that were joined with others of their level.
    joined_tables = "vt.joined_tables";
    /// Bytes of blocks that compactions dropped without reading them.
    dropped_bytes = "vt.dropped_bytes";
    /// Bytes that were moved out of zones with holes.
    evacuated_bytes = "vt.evacuated_bytes";
    /// Bytes written to bring scattered values into key order.
    ordered_bytes = "vt.ordered_bytes";
    /// Bytes of tables that were looked through for what dropped moments have left.
    swept_bytes = SWEPT_BYTES;
    /// Bytes that nothing needed any more, found by these looks and compacted away.
    garbage_bytes = GARBAGE_BYTES;
    /// Data blocks that compactions met and could not read.
    unreadable_blocks = "vt.unreadable_blocks";
    /// Tables whose index or range deletes compactions could not read.
    unreadable_tables = "vt.unreadable_tables";
    /// Time that writers were slowed, in microseconds.
    paced_us = "vt.paced_us";
    /// Longest time that a commit had to wait for room, in a memtable or on the volume, in
    /// microseconds.
    wait_us_max = "vt.wait_us_max";
    /// Times that a commit had to wait for room.
    waits = "vt.waits";
    /// Ranges that scans have found to be empty, and noted.
    gaps_learned = "vt.gaps_learned";
    /// Ranges that write-outs have found to be empty, and written as range deletes.
    emptied_ranges = "vt.emptied_ranges";
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
        debug_assert!(self.get() >= by, "it only grows");
    }

    pub(crate) fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
        debug_assert!(self.get() >= value, "it only grows");
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
