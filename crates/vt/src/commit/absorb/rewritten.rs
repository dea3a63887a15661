//! Tables of absorbs that are written anew: the batch that comes along, and what was written to a
//! branch whose own tables stay where they are.
//!
//! No read ever sees a part of what is absorbed. So each key has one state, and only the order of
//! the numbers counts. A copy numbers them anew, close together:
//!
//! ```text
//! range deletes   1
//! entries         NEWEST; older upserts of the key NEWEST - 1, NEWEST - 2, ...
//! ```

use super::{Absorbed, Absorber, range_deletes};
use crate::VtError;
use crate::buffer::TABLE_OVERHEAD_BYTES;
use crate::commit::insert_message;
use crate::compaction::{DistillRules, Distilled, Fragments, distill};
use crate::entry::{EntryIter, EntryRef, RangeDelete};
use crate::iter::MergeIter;
use crate::key_moments::KeyMoments;
use crate::memtable::Memtable;
use crate::output::{OutputRules, Outputs};
use crate::read::ReadPath;
use crate::sizing::Sizing;
use crate::space::SpaceLedger;
use crate::table::Bounds;
use crate::tables::Tables;
use crate::version::TreeVersion;
use crate::view::View;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{KeyRange, KvError, SpaceClass, TreeInfo, UpsertRegistry};
use stitch_volume::Stream;

/// The number of the newest version of each key in a copy.
const NEWEST: u64 = 1 << 32;
/// Where copies come from: they are one run of tables that do not overlap.
pub(super) const OWN_LEVEL: usize = 1;
/// What is short-lived lies together, as that of write-outs.
const BATCH_STREAM: Stream = Stream(0);
/// As that of compactions into level 1.
const COPY_STREAM: Stream = Stream(1);
/// What a message takes in a table beyond its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;

impl Absorber {
    /// Writes the batch of an absorb to tables of the trees that it names, with sequence numbers
    /// from 1 on. They are not installed.
    pub(super) fn write_batch(&self, absorbed: &Absorbed<'_>) -> Result<Vec<TableMeta>, KvError> {
        let batch = absorbed.batch;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let version = self.committer.views.version();
        // Also checks every message.
        let tally = self.committer.tally(batch, &version)?;
        let trees = tally.trees.iter().count() as u64;
        let bytes = batch.len_bytes() as u64;
        let messages = batch.count() as u64 * MESSAGE_OVERHEAD_BYTES + tally.overhead_bytes;
        let wanted = bytes + bytes / 8 + messages + trees * TABLE_OVERHEAD_BYTES;
        let space = &self.writer.space;
        let room = space.promise_tables(wanted, absorbed.options.space)?;
        let memtable = Memtable::new(batch.len_bytes());
        debug_assert!(wanted >= bytes, "a table takes no less than what is in it");
        for ((tree, message), seqno) in batch.messages().zip(1..) {
            insert_message(&memtable, tree, Seqno(seqno), message);
        }
        let mut tables: Vec<TableMeta> = Vec::new();
        for tree in tally.trees.iter() {
            let info = version.trees.get(&tree).map(|tree| &tree.info);
            let made = match info {
                Some(info) => self
                    .writer
                    .write_memtable(info, &memtable)
                    .map_err(KvError::from),
                None => Err(KvError::NoTree(tree)),
            };
            match made {
                Ok(made) => tables.extend(made),
                Err(error) => {
                    self.tables.discard(&tables, &[]);
                    return Err(error);
                }
            }
        }
        drop(room);
        debug_assert!(
            tables
                .iter()
                .all(|table| table.max_seqno.0 <= batch.count() as u64),
            "numbers are those of the messages"
        );
        Ok(tables)
    }
}

/// Writes tables of absorbs. They are not installed.
///
/// Invariant: space for what is written is promised before.
pub(crate) struct AbsorbWriter {
    pub(crate) tables: Arc<Tables>,
    pub(crate) space: Arc<SpaceLedger>,
    /// To read what was written to a branch.
    pub(crate) reads: Arc<ReadPath>,
    pub(crate) sizing: Arc<Sizing>,
    pub(crate) upserts: UpsertRegistry,
}

impl AbsorbWriter {
    fn write_memtable(
        &self,
        tree: &TreeInfo,
        memtable: &Memtable,
    ) -> Result<Vec<TableMeta>, VtError> {
        let deletes = memtable.range_deletes(tree.id);
        let deletes = Fragments::new(deletes.iter(), &KeyMoments::default());
        let rules = self.distill_rules(&deletes);
        let output = output_rules(BATCH_STREAM, self.tables.precision(0), u64::MAX);
        let mut outputs = Outputs::new(&self.tables, tree, output, deletes.sorted());
        let mut source = memtable.iter(tree.id);
        source.seek(&[], Seqno(u64::MAX))?;
        distill(&mut source, &rules, &mut |kept| outputs.keep(kept))?;
        let made = outputs.finish()?;
        debug_assert!(made.len() <= 1, "a tree gets one table");
        Ok(made)
    }

    fn distill_rules<'a>(&'a self, range_deletes: &'a Fragments) -> DistillRules<'a> {
        DistillRules {
            moments: range_deletes.moments(),
            range_deletes,
            is_bottom: &|_| false,
            upserts: &self.upserts,
            load: &|_| Ok(None),
        }
    }

    /// Writes what was written to a branch, all of which is in tables, to tables of its parent.
    /// They are not installed.
    pub(super) fn rewrite(
        &self,
        view: &View,
        branch: TreeId,
        class: SpaceClass,
    ) -> Result<Vec<TableMeta>, KvError> {
        debug_assert!(
            view.buffers
                .iter()
                .all(|buffer| !buffer.trees().contains(&branch)),
            "all that was written to the branch is in tables"
        );
        let tree = view.version.trees.get(&branch);
        let tree = tree.ok_or(KvError::NoTree(branch))?;
        let parent = tree.info.branch.ok_or(KvError::NoTree(branch))?.parent;
        let parent = view.version.trees.get(&parent);
        let parent = &parent.ok_or(KvError::NoTree(branch))?.info;
        debug_assert!(parent.id < branch, "a branch is made after its parent");
        let owned: u64 = tree.levels.iter().map(|level| level.owned_bytes).sum();
        let wanted = owned + owned / 8 + TABLE_OVERHEAD_BYTES;
        let room = self.space.promise_tables(wanted, class)?;
        let deletes = range_deletes(&self.reads, view, branch)?;
        let tables = self.copy(view, tree, parent, &deletes)?;
        debug_assert!(
            tables.iter().all(|table| table.tree == parent.id),
            "the copy is of the parent"
        );
        drop(room);
        Ok(tables)
    }

    fn copy(
        &self,
        view: &View,
        tree: &TreeVersion,
        parent: &TreeInfo,
        deletes: &[RangeDelete],
    ) -> Result<Vec<TableMeta>, VtError> {
        debug_assert_eq!(
            tree.info.branch.map(|point| point.parent),
            Some(parent.id),
            "the copy is of the parent"
        );
        let bounds = Arc::new(Bounds::of(KeyRange::all(), false));
        let sources = self
            .reads
            .own_sources(view, tree, &bounds, Seqno(u64::MAX))?;
        let mut source = MergeIter::new(sources.into_iter().map(|s| s.entries).collect());
        source.seek(&[], Seqno(u64::MAX))?;
        let deletes = Fragments::new(deletes.iter(), &KeyMoments::default());
        let numbered = |delete: RangeDelete| RangeDelete {
            seqno: Seqno(1),
            ..delete
        };
        let own = deletes.sorted().into_iter().map(numbered).collect();
        let rules = self.distill_rules(&deletes);
        let table_bytes = self.sizing.now().pick.table_bytes;
        let precision = self.tables.precision(OWN_LEVEL);
        let output = output_rules(COPY_STREAM, precision, table_bytes);
        let mut outputs = Outputs::new(&self.tables, parent, output, own);
        let mut last: Vec<u8> = Vec::new();
        let mut older = 0;
        distill(&mut source, &rules, &mut |kept| {
            let Distilled::Entry(entry) = kept else {
                unreachable!("sources of reads carry nothing over");
            };
            debug_assert!(
                last.is_empty() || entry.key >= last.as_slice(),
                "keys come in order"
            );
            let is_older = entry.key == last.as_slice() && !last.is_empty();
            older = if is_older { older + 1 } else { 0 };
            assert!(older < NEWEST - 2, "a key has fewer versions");
            if !is_older {
                last.clear();
                last.extend_from_slice(entry.key);
            }
            let seqno = Seqno(NEWEST - older);
            outputs.add(&EntryRef { seqno, ..entry })
        })?;
        outputs.finish()
    }
}

/// Rules of tables of which no read has seen a part.
fn output_rules(
    stream: Stream,
    precision: stitch_filter::Precision,
    table_bytes: u64,
) -> OutputRules {
    debug_assert!(table_bytes > 0, "a table has blocks");
    OutputRules {
        stream,
        precision,
        table_bytes,
        moments: KeyMoments::default(),
        cuts: Vec::new(),
        input_runs: Vec::new(),
        under_way: None,
    }
}
