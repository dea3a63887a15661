//! Writing out: the oldest sealed memtable becomes tables of level 0, one for each tree, installed
//! with one edit that also moves the start of the backup log. Values that are in data blocks
//! already are stitched into them.

use crate::VtError;
use crate::compaction::Pressure;
use crate::install::Install;
use crate::runs::subtract;
use crate::store::Store;
use std::sync::Arc;
use stitch_base::ErrorKind;
use stitch_base::sync::atomic::Ordering;
use stitch_volume::Stream;
use writer::MemtableWriter;

mod emptied;
mod stitched;
mod writer;

/// Level 0 tables are short-lived and lie together.
const STREAM: Stream = Stream(0);

impl Store {
    /// Writes out the oldest sealed memtable. Returns false if there is none.
    ///
    /// # Errors
    /// [`VtError`]; then the store takes no more writes, unless it was only for want of space.
    pub(crate) fn write_out_one(&self) -> Result<bool, VtError> {
        loop {
            let result = {
                let _one_at_a_time = self.write_out.lock();
                let clock = &*self.options.clock;
                self.pace.begin_write_out(clock);
                let result = self.write_out_oldest();
                self.pace.end_write_out(matches!(result, Ok(true)), clock);
                result
            };
            match result {
                Ok(done) => {
                    self.lacks_space.store(false, Ordering::Relaxed);
                    return Ok(done);
                }
                // It was promised space, but holes may be too short for its blocks.
                Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => {
                    let has_room = self.compactor.compact_one(Pressure::Room).unwrap_or(false);
                    if !has_room && !self.compact_others() {
                        // The log has all of it, so it can be tried again. Whoever waits for it is
                        // told.
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

    fn write_out_oldest(&self) -> Result<bool, VtError> {
        let Some((buffer, log_start)) = self.oldest_sealed() else {
            return Ok(false);
        };
        let tables = {
            // In this order: a snapshot that is taken after the list sees all that is in the
            // version.
            let version = self.version();
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
                upserts: &self.options.upserts,
            };
            writer.write()?
        };
        let direct = buffer.direct.extents();
        let written: u64 = tables
            .iter()
            .flat_map(|table| subtract(&table.runs, &direct))
            .map(|run| run.len_bytes)
            .sum();
        let mut installer = self.versions.lock();
        let version = self.version();
        let (tables, dropped): (Vec<_>, Vec<_>) = tables
            .into_iter()
            .partition(|t| version.trees.contains_key(&t.tree));
        self.tables.discard(&dropped, &direct);
        let mut edit = version.edit();
        edit.last_seqno = edit.last_seqno.max(buffer.last_seqno());
        edit.added = tables.into_iter().map(|t| (0, Arc::new(t))).collect();
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
        self.counters.write_outs.add(1);
        self.counters.write_out_bytes.add(written);
        Ok(true)
    }
}
