//! Values that commits write to zones at once: as the data blocks of a table, or one after the
//! other in the append extent of a write stream.

use super::placement::{Destination, Placement};
use super::puts;
use crate::VtError;
use crate::buffer::TABLE_OVERHEAD_BYTES;
use crate::direct::WriteStreams;
use crate::entry::{EntryRef, Op};
use crate::space::SpaceLedger;
use crate::table::{NewTable, WrittenBlocks};
use crate::tables::Tables;
use crate::view::Views;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_kv::{Batch, SpaceClass, Stretch, TreeInfo};
use stitch_volume::{Stream, Volume};

/// What commits write at once lies together.
const DIRECT_STREAM: Stream = Stream(3);

/// Writes values of commits to their zones.
///
/// Invariants:
/// - what is written belongs to no version and no memtable yet: dropped, it gives its space back;
/// - the index entries of a run are numbered as its messages are, in their order.
pub(crate) struct DirectWriter {
    pub(crate) volume: Arc<Volume>,
    pub(crate) views: Arc<Views>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) space: Arc<SpaceLedger>,
}

impl DirectWriter {
    /// Reports whether what goes to its zone at once finds long holes there, beside all that is
    /// promised.
    pub(super) fn has_room(&self, bytes: u64, class: SpaceClass) -> bool {
        let needed = bytes + bytes / 8 + TABLE_OVERHEAD_BYTES;
        needed <= self.space.roomy_bytes(class) && needed <= self.space.free_bytes(class)
    }

    /// Writes the runs of a batch to their zones.
    pub(super) fn write_runs(
        &self,
        streams: &mut WriteStreams,
        (batch, placement): (&Batch, &Placement),
        (first, class): (Seqno, SpaceClass),
    ) -> Result<Vec<WrittenBlocks>, VtError> {
        let mut runs = Vec::new();
        if placement.direct_bytes == 0 {
            return Ok(runs);
        }
        debug_assert!(
            placement.run_bytes <= placement.direct_bytes,
            "runs are direct"
        );
        let mut seqno = first;
        let version = self.views.version();
        for part in placement.parts.iter() {
            let messages = batch.stretch().part(&part.range);
            match part.destination {
                Destination::Log => {}
                Destination::Run { tree } => {
                    let tree = &version.trees[&tree].info;
                    runs.push(self.write_run(tree, messages, seqno)?);
                }
                Destination::Stream { stream, .. } => {
                    runs.push(self.write_stream(streams, stream, messages, (seqno, class))?);
                }
            }
            seqno = Seqno(seqno.0 + part.count);
        }
        debug_assert_eq!(
            seqno.0 - first.0,
            batch.count() as u64,
            "a message has one number"
        );
        let directs = placement
            .parts
            .iter()
            .filter_map(|part| part.destination.direct_tree());
        debug_assert_eq!(runs.len(), directs.count(), "each direct part has a run");
        assert!(!runs.is_empty(), "what goes to zones is in runs");
        Ok(runs)
    }

    /// Writes puts as the data blocks of a table.
    fn write_run(
        &self,
        tree: &TreeInfo,
        messages: Stretch<'_>,
        first: Seqno,
    ) -> Result<WrittenBlocks, VtError> {
        debug_assert!(first.0 > 0, "0 is no number of a write");
        let table = NewTable {
            id: self.tables.new_id(),
            tree: tree.id,
            options: tree.options.clone(),
            stream: DIRECT_STREAM,
            precision: self.tables.precision(0),
            is_of_branch: tree.branch.is_some(),
        };
        // As what goes through the log, it is durable, or known not to be, with the next sync.
        let mut writer = self.tables.writer(table).behind();
        for (put, seqno) in puts(messages).zip(first.0..) {
            let (key, value) = put;
            let (seqno, op) = (Seqno(seqno), Op::Put(value));
            writer.add(&EntryRef { key, seqno, op })?;
        }
        writer.finish_blocks()
    }
}
