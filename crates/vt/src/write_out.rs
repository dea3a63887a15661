//! Writing out: the oldest sealed memtable becomes tables of level 0, one for each tree, installed
//! with one edit that also moves the start of the backup log. Values that are in data blocks
//! already are stitched into them.

use crate::VtError;
use crate::buffer::Buffer;
use crate::compaction::{DistillRules, Fragments, Pressure};
use crate::direct::DirectRun;
use crate::install::Install;
use crate::output::{OutputRules, Outputs};
use crate::runs::subtract;
use crate::store::Store;
use crate::version::TreeVersion;
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{ErrorKind, Seqno};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::TreeInfo;
use stitch_volume::Stream;
use stitched::Layer;

mod emptied;
mod stitched;

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
        let tables = self.tables_of(&buffer)?;
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
        };
        self.versions
            .install(&mut installer, install)
            .inspect_err(|error| self.versions.discard_refused(error, &made, &direct))?;
        self.counters.write_outs.add(1);
        self.counters.write_out_bytes.add(written);
        Ok(true)
    }

    fn tables_of(&self, buffer: &Buffer) -> Result<Vec<TableMeta>, VtError> {
        let version = self.version();
        let snapshots = self.snapshots.held();
        let trees = buffer.trees();
        let living = trees.iter().filter_map(|tree| version.trees.get(tree));
        self.all_or_none(
            buffer,
            living.map(|tree| self.table_of(buffer, tree, &snapshots)),
        )
    }

    fn table_of(
        &self,
        buffer: &Buffer,
        tree: &TreeVersion,
        snapshots: &[Seqno],
    ) -> Result<Vec<TableMeta>, VtError> {
        let emptied = self.emptied(buffer, tree);
        let tree = &tree.info;
        let layer = Layer {
            memtable: Arc::clone(&buffer.memtable),
            tree: tree.id,
            runs: buffer.direct.overlapping(tree.id, &[], None),
            from: Seqno(0),
            to: Seqno(u64::MAX),
            emptied: emptied.into(),
        };
        let error = match self.table_of_layer(buffer, tree, snapshots, &layer) {
            Err(error) if !layer.runs.is_empty() => error,
            other => return other,
        };
        let is_bad = |run: &DirectRun| run.blocks.verify().is_err();
        if self.volume.is_poisoned() || !layer.runs.iter().any(|run| is_bad(run)) {
            return Err(error);
        }
        tracing::warn!(%error, "values that cannot be read keep their place");
        let layers = layer.apart(is_bad);
        let tables = layers
            .iter()
            .map(|layer| self.table_of_layer(buffer, tree, snapshots, layer));
        self.all_or_none(buffer, tables)
    }

    /// All tables; at the first failure, the space of those before is given back.
    fn all_or_none(
        &self,
        buffer: &Buffer,
        made: impl Iterator<Item = Result<Vec<TableMeta>, VtError>>,
    ) -> Result<Vec<TableMeta>, VtError> {
        let mut tables = Vec::new();
        for some in made {
            match some {
                Ok(some) => tables.extend(some),
                Err(error) => {
                    self.tables.discard(&tables, &buffer.direct.extents());
                    return Err(error);
                }
            }
        }
        Ok(tables)
    }

    /// A value that upserts stand on; `None` if it cannot be read: then they stay beside it.
    fn value_or_none(&self, block: &IndexEntry) -> Result<Option<Bytes>, VtError> {
        match self.tables.values().get_once(block) {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.volume.is_poisoned() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a value that cannot be read keeps its place");
                Ok(None)
            }
        }
    }

    /// The table of a layer, with the range deletes of its time.
    fn table_of_layer(
        &self,
        buffer: &Buffer,
        tree: &TreeInfo,
        snapshots: &[Seqno],
        layer: &Layer,
    ) -> Result<Vec<TableMeta>, VtError> {
        // Newer ones too: what an older one hides may lie between this layer and them.
        let deletes = layer.memtable.range_deletes(tree.id);
        let deletes = || {
            let all = deletes.iter().chain(&*layer.emptied);
            all.filter(|d| layer.from <= d.seqno)
        };
        let range_deletes = Fragments::new(deletes(), snapshots);
        let rules = DistillRules {
            snapshots,
            range_deletes: &range_deletes,
            is_bottom: &|_| false,
            upserts: &self.options.upserts,
            load: &|block| self.value_or_none(block),
        };
        let output = OutputRules {
            stream: STREAM,
            precision: self.tables.precision(0),
            table_bytes: u64::MAX,
            snapshots: snapshots.into(),
            cuts: Vec::new(),
            input_runs: buffer.direct.extents(),
            // Its space is promised.
            under_way: None,
        };
        let own = match layer.to {
            Seqno(u64::MAX) => range_deletes.sorted(),
            to => Fragments::new(deletes().filter(|d| d.seqno <= to), snapshots).sorted(),
        };
        let mut outputs = Outputs::new(&self.tables, tree, output, own);
        stitched::write(layer, &rules, &mut outputs)?;
        outputs.finish()
    }
}
