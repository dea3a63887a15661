//! Writing out: memtables are sealed, and the oldest sealed one becomes tables of level 0, one for
//! each tree, installed with one edit that also moves the start of the backup log. Values that are
//! in data blocks already are stitched into them.
//!
//! ```text
//! active -- seal --> sealed, newest first -- write_one --> tables of level 0
//!                                             the oldest
//! ```

use crate::VtError;
use crate::buffer::Buffer;
use crate::commit_lock::CommitLock;
use crate::counters::VtCounters;
use crate::gate::Gate;
use crate::install::{Install, VersionLog};
use crate::pace::Pace;
use crate::read::ReadPath;
use crate::runs::subtract;
use crate::signals::Signals;
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::tables::Tables;
use crate::view::Views;
use std::sync::Arc;
use stitch_base::clock::Clock;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Apart, Mutex, MutexGuard};
use stitch_base::{ErrorKind, Lsn};
use stitch_kv::UpsertRegistry;
use stitch_volume::{Stream, Volume};
use writer::MemtableWriter;

mod emptied;
mod seal;
mod stitched;
mod writer;

/// Level 0 tables are short-lived and lie together.
const STREAM: Stream = Stream(0);

/// Seals the memtables of a store and writes them out.
///
/// Invariants:
/// - memtables are written out in the order in which they were sealed, one at a time;
/// - a memtable stays in the view, and its records in the log, until its tables are installed;
/// - a failure that is not want of space closes the gate.
pub(crate) struct WriteOuts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) upserts: UpsertRegistry,
    pub(crate) sizing: Arc<Sizing>,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) views: Arc<Views>,
    /// Taken to seal.
    pub(crate) commits: Arc<CommitLock>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) versions: Arc<VersionLog>,
    /// To find what deletes have emptied.
    pub(crate) reads: Arc<ReadPath>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pace: Arc<Pace>,
    /// One write-out at a time.
    pub(crate) running: Mutex<()>,
    /// The last write-out found no space.
    pub(crate) lacks_space: AtomicBool,
}

impl WriteOuts {
    /// Waits until no memtable is written out, and none is until the lock is given up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }

    /// Reports whether the last write-out found no space.
    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space.load(Ordering::Relaxed)
    }

    /// Writes out the oldest sealed memtable. Returns false if there is none. Where it finds no
    /// space, it is tried again as long as `make_room` returns true.
    ///
    /// # Errors
    /// [`VtError`]; then the store takes no more writes, unless it was only for want of space.
    pub(crate) fn write_one(&self, make_room: &dyn Fn() -> bool) -> Result<bool, VtError> {
        loop {
            let result = {
                let _one_at_a_time = self.lock();
                self.pace.begin_write_out(&*self.clock);
                let result = self.write_oldest();
                let has_written = matches!(result, Ok(true));
                self.pace.end_write_out(has_written, &*self.clock);
                result
            };
            match result {
                Ok(done) => {
                    self.lacks_space.store(false, Ordering::Relaxed);
                    return Ok(done);
                }
                // It was promised space, but holes may be too short for its blocks.
                Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => {
                    if !make_room() {
                        // The log has all of it, so it can be tried again. A caller that waits for
                        // the write-out gets the error.
                        if !self.lacks_space.swap(true, Ordering::Relaxed) {
                            tracing::warn!(%error, "a memtable finds no space to be written out");
                        }
                        return Err(error);
                    }
                }
                Err(error) => {
                    self.gate.fail(&error);
                    return Err(error);
                }
            }
        }
    }

    /// The oldest sealed memtable, and where the log of the next one starts.
    fn oldest_sealed(&self) -> Option<(Arc<Buffer>, Lsn)> {
        let view = self.views.get();
        let count = view.buffers.len();
        let oldest = (count > 1).then(|| Arc::clone(&view.buffers[count - 1]))?;
        let log_start = view.buffers[count - 2].log_start;
        debug_assert!(!oldest.is_empty(), "a sealed memtable holds something");
        debug_assert!(
            oldest.log_start <= log_start,
            "memtables are in the log's order"
        );
        Some((oldest, log_start))
    }

    fn write_oldest(&self) -> Result<bool, VtError> {
        let Some((buffer, log_start)) = self.oldest_sealed() else {
            return Ok(false);
        };
        let tables = {
            // In this order: a snapshot that is taken after the list sees all that is in the
            // version.
            let version = self.views.version();
            let held = self.snapshots.held();
            self.snapshots.keep_versions(&held, buffer.trees());
            let writer = MemtableWriter {
                buffer: &buffer,
                version: &version,
                held: &held,
                volume: &self.volume,
                tables: &self.tables,
                reads: &self.reads,
                counters: &self.counters,
                upserts: &self.upserts,
            };
            writer.write()?
        };
        let direct = buffer.direct.extents();
        debug_assert!(
            tables.iter().all(|t| t.max_seqno <= buffer.last_seqno()),
            "tables are no newer than their memtable"
        );
        let written: u64 = tables
            .iter()
            .flat_map(|table| subtract(&table.runs, &direct))
            .map(|run| run.len_bytes)
            .sum();
        let mut installer = self.versions.lock();
        let version = self.views.version();
        let (tables, dropped): (Vec<_>, Vec<_>) = tables
            .into_iter()
            .partition(|t| version.trees.contains_key(&t.tree));
        self.tables.discard(&dropped, &direct);
        let mut edit = version.edit();
        edit.last_seqno = edit.last_seqno.max(buffer.last_seqno());
        edit.added = tables.into_iter().map(|t| (0, Arc::new(t))).collect();
        debug_assert!(
            edit.last_seqno >= version.last_seqno,
            "a version is no older"
        );
        drop(version);
        let made = edit.added.clone();
        let install = Install {
            edit,
            written: Some((buffer, log_start)),
            ..Install::default()
        };
        self.versions
            .install(&mut installer, install)
            .inspect_err(|error| self.versions.discard_refused(error, &made, &direct))?;
        debug_assert!(
            installer.log_start >= log_start,
            "the log begins after the memtable"
        );
        self.counters.write_outs.add(1);
        self.counters.write_out_bytes.add(written);
        Ok(true)
    }
}
