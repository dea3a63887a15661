//! The tables of a sealed memtable, one for each tree, written and not installed.

use super::STREAM;
use super::stitched::{self, WriteOutLayer};
use crate::VtError;
use crate::buffer::Buffer;
use crate::compaction::{DistillRules, Fragments};
use crate::counters::VtCounters;
use crate::direct::DirectRun;
use crate::held::HeldSeqnos;
use crate::output::{OutputRules, Outputs};
use crate::read::ReadPath;
use crate::tables::Tables;
use crate::version::{TreeVersion, Version};
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{TreeInfo, UpsertRegistry};
use stitch_volume::Volume;

/// Writes the tables of one memtable.
///
/// Invariant: all tables are written, or the space of those before the first failure is given back.
pub(super) struct MemtableWriter<'a> {
    /// The oldest sealed memtable.
    pub(super) buffer: &'a Buffer,
    /// The version that its tables go on top of.
    pub(super) version: &'a Version,
    /// Moments that were held after the version was taken.
    pub(super) held: &'a HeldSeqnos,
    pub(super) volume: &'a Volume,
    pub(super) tables: &'a Tables,
    /// To find what its deletes have emptied.
    pub(super) reads: &'a ReadPath,
    pub(super) counters: &'a VtCounters,
    pub(super) upserts: &'a UpsertRegistry,
}

impl MemtableWriter<'_> {
    /// Writes a table for each tree that is still there.
    ///
    /// # Errors
    /// [`VtError`]; then nothing is left of what was written.
    pub(super) fn write(&self) -> Result<Vec<TableMeta>, VtError> {
        let trees = self.buffer.trees();
        let living = trees.iter().filter_map(|tree| self.version.trees.get(tree));
        self.all_or_none(living.map(|tree| self.table_of(tree)))
    }

    fn table_of(&self, tree: &TreeVersion) -> Result<Vec<TableMeta>, VtError> {
        let emptied = self.emptied(tree);
        let tree = &tree.info;
        let layer = WriteOutLayer {
            memtable: Arc::clone(&self.buffer.memtable),
            tree: tree.id,
            runs: self.buffer.direct.overlapping(tree.id, &[], None),
            from: Seqno(0),
            to: Seqno(u64::MAX),
            emptied: emptied.into(),
        };
        debug_assert!(
            layer
                .runs
                .is_sorted_by(|run, next| run.min_seqno > next.min_seqno),
            "runs come newest first"
        );
        let error = match self.table_of_layer(tree, &layer) {
            Err(error) if !layer.runs.is_empty() => error,
            other => return other,
        };
        let is_bad = |run: &DirectRun| run.blocks.verify().is_err();
        if self.volume.is_poisoned() || !layer.runs.iter().any(|run| is_bad(run)) {
            return Err(error);
        }
        tracing::warn!(%error, "values that cannot be read keep their place");
        let layers = layer.apart(is_bad);
        let tables = layers.iter().map(|layer| self.table_of_layer(tree, layer));
        self.all_or_none(tables)
    }

    /// All tables; at the first failure, the space of those before is given back.
    fn all_or_none(
        &self,
        made: impl Iterator<Item = Result<Vec<TableMeta>, VtError>>,
    ) -> Result<Vec<TableMeta>, VtError> {
        let mut tables = Vec::new();
        for some in made {
            match some {
                Ok(some) => {
                    debug_assert!(
                        some.iter().all(|table| table.id < self.tables.next_id()),
                        "their numbers were given out"
                    );
                    tables.extend(some);
                }
                Err(error) => {
                    self.tables.discard(&tables, &self.buffer.direct.extents());
                    return Err(error);
                }
            }
        }
        Ok(tables)
    }

    /// A value that upserts stand on; `None` if it cannot be read: then they stay beside it.
    fn value_or_none(&self, block: &IndexEntry) -> Result<Option<Bytes>, VtError> {
        debug_assert!(block.is_value, "a value block");
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
        tree: &TreeInfo,
        layer: &WriteOutLayer,
    ) -> Result<Vec<TableMeta>, VtError> {
        debug_assert!(layer.from <= layer.to, "a layer is a range of numbers");
        debug_assert_eq!(layer.tree, tree.id, "a layer is of one tree");
        debug_assert!(
            layer.emptied.iter().all(|delete| delete.seqno <= layer.to),
            "range deletes are no newer than their layer"
        );
        let moments = self.held.of(tree.id);
        // Newer ones too: what an older one hides may lie between this layer and them.
        let deletes = layer.memtable.range_deletes(tree.id);
        let deletes = || {
            let all = deletes.iter().chain(&*layer.emptied);
            all.filter(|d| layer.from <= d.seqno)
        };
        let range_deletes = Fragments::new(deletes(), &moments);
        let rules = DistillRules {
            moments: &moments,
            range_deletes: &range_deletes,
            is_bottom: &|_| false,
            upserts: self.upserts,
            load: &|block| self.value_or_none(block),
        };
        let output = OutputRules {
            stream: STREAM,
            precision: self.tables.precision(0),
            table_bytes: u64::MAX,
            moments: moments.clone(),
            cuts: Vec::new(),
            input_runs: self.buffer.direct.extents(),
            // Its space is promised.
            under_way: None,
        };
        let own = match layer.to {
            Seqno(u64::MAX) => range_deletes.sorted(),
            to => Fragments::new(deletes().filter(|d| d.seqno <= to), &moments).sorted(),
        };
        let mut outputs = Outputs::new(self.tables, tree, output, own);
        stitched::write(layer, &rules, &mut outputs)?;
        outputs.finish()
    }
}
