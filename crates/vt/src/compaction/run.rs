//! Runs a plan: writes its tables, and installs them.

use super::Compactor;
use super::begin::Picked;
use super::detours::split_hidden;
use super::distill::{DistillRules, distill};
use super::fragments::{Fragments, surviving};
use super::held_keys::HeldKeys;
use super::inputs::Inputs;
use super::level_outputs::{Bytes, LevelOutputs};
use super::made::{Made, Ran};
use super::picker::{Plan, PlanKind, end_of};
use super::scheduler::Slot;
use super::stitch::{BlockInfo, Piece, Planner, Step, StitchRules};
use crate::VtError;
use crate::entry::{BoxIter, EntryIter, RangeDelete};
use crate::install::Install;
use crate::iter::MergeIter;
use crate::key_moments::KeyMoments;
use crate::options::COMPACTIONS_MAX;
use crate::output::{OutputRules, Outputs};
use crate::range_delete::RangeDeletes;
use crate::runs::{coalesce, meets_any};
use crate::superseded::{Holders, has_released};
use crate::table::{Carry, Table};
use crate::under_way::UnderWay;
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_base::{ErrorKind, TableId};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::{Run, TableMeta};
use stitch_volume::Stream;

/// Blocks that a step takes, where it may be parted: so many index entries are in memory, about a
/// megabyte. Few while debugging, so that tests have parted steps.
const STEP_BLOCKS: usize = if cfg!(debug_assertions) { 32 } else { 4096 };

/// Streams by output level and slot: what is compacted together lies together, and what is at once
/// apart.
pub(super) const fn stream(level: usize, slot: usize) -> Stream {
    const { assert!(COMPACTIONS_MAX == 2, "each has its streams") };
    debug_assert!(slot < COMPACTIONS_MAX, "a slot of the scheduler");
    debug_assert!(level < LEVELS, "a level of a tree");
    match (level, slot) {
        (0 | 1, 0) => Stream(1),
        (_, 0) => Stream(2),
        (0 | 1, _) => Stream(6),
        _ => Stream(7),
    }
}

impl Compactor {
    /// Runs a plan and takes note of what came of it.
    pub(super) fn carry_out(&self, picked: &Picked, slot: &Slot<'_>) -> Result<(), VtError> {
        debug_assert!(slot.number() < COMPACTIONS_MAX, "a slot of the scheduler");
        picked.plan.assert_invariants();
        let plan = &picked.plan;
        tracing::debug!(%plan, slot = slot.number(), "compaction");
        match self.run_plan(picked, slot) {
            Ok(ran) => {
                let mut state = self.scheduler.lock();
                ran.note(plan, &mut state);
                Ok(())
            }
            Err(VtError::Closed) => Err(VtError::Closed),
            Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => {
                let mut state = self.scheduler.lock();
                if slot.had_company(&state) {
                    // Alone it may find some.
                    state.is_short = true;
                    tracing::debug!(%error, %plan, "two compactions found no space");
                    return Ok(());
                }
                // Others may need less. Tried again when one of them has succeeded, or later.
                tracing::warn!(%error, %plan, "a compaction found no space");
                state.is_short = false;
                state.exclusions.avoided.extend(upper_ids(plan));
                Ok(())
            }
            Err(error) => self.go_around(plan, error),
        }
    }

    /// True if the store is in so many pieces that a plan copies the values that it meets, where
    /// there is space for all of them: where there is none, what was overwritten has to come back
    /// first.
    fn is_to_be_joined(&self, version: &Version, plan: &Plan) -> bool {
        let is_in_pieces = version.list_bytes() > self.volume.base_bytes_max() / 2;
        let copied_bytes: u64 = plan.inputs().map(|t| t.meta().owned_bytes()).sum();
        is_in_pieces && copied_bytes <= self.volume.zones().usage().usable / 2
    }

    fn run_plan(&self, picked: &Picked, slot: &Slot<'_>) -> Result<Ran, VtError> {
        let Picked {
            version,
            moments,
            plan,
        } = picked;
        let tree = &version.trees[&plan.tree];
        debug_assert!(plan.is_of(tree), "the inputs are tables of the version");
        let is_in_pieces = self.is_to_be_joined(version, plan);
        let most_bytes = written_bytes_max(tree, plan, is_in_pieces);
        let under_way = self.space.begin_compaction(most_bytes);
        let made = match plan.kind {
            PlanKind::Move => Made::default(),
            PlanKind::Compact | PlanKind::Join | PlanKind::Order => Job {
                is_in_pieces,
                slot: slot.number(),
                ..Job::new(self, tree, plan, moments, &under_way)?
            }
            .run()?,
            PlanKind::Part => self.part(tree, plan)?,
        };
        if made.is_futile {
            return Ok(made.ran(plan));
        }
        let mut installer = self.versions.lock();
        let now = self.views.version();
        if !now.trees.contains_key(&plan.tree) {
            under_way.end();
            let metas: Vec<TableMeta> = made.tables.into_iter().map(|(_, t)| t).collect();
            self.tables.discard(&metas, &input_runs(plan));
            return Ok(Ran::default());
        }
        let ran = made.ran(plan);
        debug_assert!(
            made.tables.iter().all(|(_, table)| table.tree == plan.tree),
            "a compaction makes tables of one tree"
        );
        let levels = [plan.from_level, plan.to_level].map(level_number);
        debug_assert!(
            made.tables.iter().all(|(level, _)| levels.contains(level)),
            "new tables go to the levels of the plan"
        );
        let edit = made.into_edit(now.edit(), plan);
        drop(now);
        let made = edit.added.clone();
        let install = Install {
            edit,
            ..Install::default()
        };
        self.versions
            .install(&mut installer, install)
            .inspect_err(|error| {
                under_way.end();
                self.versions
                    .discard_refused(error, &made, &input_runs(plan));
            })?;
        self.count_installed(plan);
        // What went in is given back when `picked` is gone, at the earliest.
        under_way.end();
        Ok(ran)
    }

    fn count_installed(&self, plan: &Plan) {
        let upper = plan.upper.len() as u64;
        debug_assert!(upper > 0, "a plan has inputs");
        match plan.kind {
            PlanKind::Move => self.counters.moved_tables.add(upper),
            PlanKind::Compact | PlanKind::Part | PlanKind::Join | PlanKind::Order => {
                self.counters.compactions.add(1);
            }
        }
        if plan.kind == PlanKind::Join {
            self.counters.joined_tables.add(upper);
        }
    }
}

/// The most that a plan writes: all that goes in but value blocks that are carried over.
fn written_bytes_max(tree: &TreeVersion, plan: &Plan, is_in_pieces: bool) -> u64 {
    debug_assert_eq!(tree.info.id, plan.tree, "the plan is of the tree");
    let copies_values = is_in_pieces || tree.info.options.stitch_bytes == u64::MAX;
    if plan.kind == PlanKind::Move {
        return 0;
    }
    let owned: u64 = plan.inputs().map(|t| t.owned_bytes()).sum();
    let values: u64 = plan.inputs().map(|t| t.meta().value_bytes).sum();
    let evacuated: u64 = plan.evacuate.iter().map(|run| run.len_bytes).sum();
    let carried = if copies_values { 0 } else { values };
    (owned - carried).saturating_add(evacuated).min(owned)
}

pub(super) fn upper_ids(plan: &Plan) -> impl Iterator<Item = TableId> {
    plan.upper.iter().map(|table| table.meta().id)
}

/// True for errors that may be of one block only.
pub(crate) fn is_damage(error: &VtError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
}

/// Runs that belong to the inputs, sorted.
pub(super) fn input_runs(plan: &Plan) -> Vec<Run> {
    let runs = coalesce(plan.inputs().flat_map(|t| t.meta().runs.clone()).collect());
    debug_assert_eq!(
        runs.iter().map(|run| run.len_bytes).sum::<u64>(),
        plan.inputs().map(|table| table.owned_bytes()).sum::<u64>(),
        "the inputs have no block in common"
    );
    runs
}

pub(super) fn level_number(level: usize) -> u8 {
    debug_assert!(level < LEVELS, "a level of a tree");
    u8::try_from(level).expect("there are 8 levels")
}

/// A compaction under way.
struct Job<'a> {
    compactor: &'a Compactor,
    tree: &'a TreeVersion,
    plan: &'a Plan,
    moments: &'a KeyMoments,
    /// The number of its slot.
    slot: usize,
    range_deletes: Fragments,
    /// A base version would take half of its room to list what tables own.
    is_in_pieces: bool,
    /// What stays in its level.
    held_keys: HeldKeys,
    /// Unreadable tables that range deletes hide from all readers.
    dropped: Vec<TableId>,
    /// Dropped snapshots that the inputs still hold versions for.
    released: BTreeSet<Holders>,
    /// The inputs that are read, newest data first.
    tables: Vec<Arc<Table>>,
    under_way: Arc<UnderWay>,
}

impl<'a> Job<'a> {
    fn new(
        compactor: &'a Compactor,
        tree: &'a TreeVersion,
        plan: &'a Plan,
        moments: &'a KeyMoments,
        under_way: &Arc<UnderWay>,
    ) -> Result<Self, VtError> {
        let mut deletes: Vec<Arc<RangeDeletes>> = Vec::new();
        for handle in plan.inputs() {
            if handle.meta().range_delete_count > 0 {
                deletes.push(compactor.tables.reader(handle).range_deletes()?);
            }
        }
        let range_deletes = Fragments::new(deletes.iter().flat_map(|set| set.iter()), moments);
        let (dropped, around) = split_hidden(&plan.around, &range_deletes);
        debug_assert_eq!(dropped.len() + around.len(), plan.around.len());
        let mut tables = Vec::new();
        for handle in plan.inputs() {
            if is_hidden(handle.meta(), &range_deletes) {
                compactor
                    .counters
                    .dropped_bytes
                    .add(handle.meta().data_bytes);
                continue;
            }
            tables.push(Arc::clone(compactor.tables.reader(handle)));
        }
        debug_assert!(
            tables.len() <= plan.upper.len() + plan.lower.len(),
            "each table is an input"
        );
        let ids = plan.inputs().map(|t| t.meta().id);
        Ok(Self {
            released: compactor.tables.superseded.released_of(ids, moments),
            compactor,
            tree,
            plan,
            moments,
            slot: 0,
            range_deletes,
            is_in_pieces: false,
            held_keys: HeldKeys::new(plan, &around),
            dropped,
            tables,
            under_way: Arc::clone(under_way),
        })
    }

    /// Reports whether nothing at all can go down.
    fn is_futile(&self) -> bool {
        let stays = |t: &Arc<TableHandle>| {
            let (start, end) = (&t.meta().smallest, end_of(t.meta()));
            debug_assert!(*start < end, "a table has keys");
            self.held_keys.has_all(start, &end)
        };
        !self.plan.around.is_empty() && self.dropped.is_empty() && self.plan.upper.iter().all(stays)
    }

    /// Makes the tables.
    fn run(&self) -> Result<Made, VtError> {
        if self.is_futile() {
            return Ok(Made {
                is_futile: true,
                ..Made::default()
            });
        }
        let is_bottom = |start: &[u8], end: &[u8]| self.is_bottom(start, end);
        let rules = StitchRules {
            threshold: &|first| self.stitch_bytes(first),
            moments: self.moments,
            range_deletes: &self.range_deletes,
            is_bottom: &is_bottom,
        };
        let mut planner = Planner::new(&rules, STEP_BLOCKS);
        let mut inputs = Inputs::new(&self.tables, self.plan.until.as_deref())?;
        let mut outputs = self.outputs();
        while let Some((input, number)) = inputs.next()? {
            let info = self.block_info(input, inputs.block(input, number));
            planner.push(input, number, &info);
            self.run_steps(&mut planner, &mut inputs, &mut outputs)?;
        }
        planner.finish();
        self.run_steps(&mut planner, &mut inputs, &mut outputs)?;
        // Of a slice, what the one upper table has beyond it stays, stitched.
        while let Some(block) = inputs.next_beyond()? {
            match self.is_shifted(0) && !block.is_value {
                true => self.copy(block, &mut outputs)?,
                false => outputs.rest.stitch(std::slice::from_ref(&block))?,
            }
        }
        let bytes = outputs.bytes;
        let down = outputs.down.finish()?;
        let rest = outputs.rest.finish().inspect_err(|_| {
            self.under_way.end();
            self.compactor.tables.discard(&down, &input_runs(self.plan));
        })?;
        self.count(bytes, &down);
        let levels = [self.plan.to_level, self.plan.from_level].map(level_number);
        let down = down.into_iter().map(|table| (levels[0], table));
        let rest = rest.into_iter().map(|table| (levels[1], table));
        debug_assert!(
            rest.len() == 0 || !self.held_keys.points().is_empty(),
            "only keys that are held stay in their level"
        );
        debug_assert!(
            self.plan.kind != PlanKind::Join || down.len() + rest.len() <= 1,
            "tables are joined to one"
        );
        Ok(Made {
            tables: down.chain(rest).collect(),
            dropped: self.dropped.clone(),
            ..Made::default()
        })
    }

    /// True if an input has a shift: other tables can refer to its value blocks, whose sequence
    /// numbers are in the index, and to no other.
    fn is_shifted(&self, input: usize) -> bool {
        self.tables[input].shift() > 0
    }

    /// Writes what a block of the first input has anew, where what stays goes.
    fn copy(&self, block: IndexEntry, outputs: &mut LevelOutputs<'_>) -> Result<(), VtError> {
        debug_assert!(
            self.plan.until.is_some(),
            "only a slice leaves blocks behind"
        );
        debug_assert!(!block.is_value, "a value block is referenced where it is");
        let mut entries = self.tables[0].blocks_iter(vec![block], Carry::Nothing);
        entries.seek(&[], Seqno(u64::MAX))?;
        while let Some(entry) = entries.current() {
            outputs.rest.add(&entry)?;
            entries.next()?;
        }
        Ok(())
    }

    /// The stitching threshold for a block that begins with `first`.
    fn stitch_bytes(&self, first: &[u8]) -> u64 {
        if !self.plan.evacuate.is_empty() || self.plan.kind == PlanKind::Join {
            // Only what has to move does.
            return 0;
        }
        let info = &self.tree.info;
        let by_key = self.compactor.options.stitch_by_key.as_ref();
        let given = by_key.and_then(|by_key| by_key.threshold(info, first));
        given.unwrap_or(info.options.stitch_bytes)
    }

    /// Weight at which a table ends and the next begins.
    fn table_bytes(&self) -> u64 {
        let table_bytes = self.compactor.sizing.now().pick.table_bytes;
        debug_assert!(table_bytes > 0, "a table has blocks");
        let is_in_place = self.plan.from_level == self.plan.to_level;
        let is_short = self.plan.input_weight() <= table_bytes.saturating_mul(2);
        // The block that is being filled counts before it is packed, so that even a small table
        // could be cut.
        match self.plan.kind == PlanKind::Join || (is_in_place && is_short) {
            true => u64::MAX,
            false => table_bytes,
        }
    }

    /// Where the plan's keys go, and where those go that stay.
    fn outputs(&self) -> LevelOutputs<'_> {
        let outputs = |level: usize, deletes: Vec<RangeDelete>, table_bytes: u64| {
            let rules = OutputRules {
                stream: stream(level, self.slot),
                precision: self.compactor.tables.precision(level),
                table_bytes,
                moments: self.moments.clone(),
                cuts: self.held_keys.points().to_vec(),
                input_runs: input_runs(self.plan),
                under_way: Some(Arc::clone(&self.under_way)),
            };
            Outputs::new(&self.compactor.tables, &self.tree.info, rules, deletes)
        };
        let is_bottom = |start: &[u8], end: &[u8]| self.is_bottom_before(start, end);
        let down = self.held_keys.parts(&self.range_deletes, false);
        let down = surviving(down, self.moments, &is_bottom);
        let rest = self.held_keys.parts(&self.range_deletes, true);
        let rest = surviving(rest, self.moments, &|_, _| false);
        LevelOutputs {
            held_keys: &self.held_keys,
            down: outputs(self.plan.to_level, down, self.table_bytes()),
            rest: outputs(self.plan.from_level, rest, u64::MAX),
            bytes: Bytes::default(),
        }
    }

    /// Runs the steps that are certain.
    fn run_steps(
        &self,
        planner: &mut Planner<'_>,
        inputs: &mut Inputs<'_>,
        outputs: &mut LevelOutputs<'_>,
    ) -> Result<(), VtError> {
        while let Some(step) = planner.pop() {
            if self.compactor.signals.is_stopped() {
                return Err(VtError::Closed);
            }
            debug_assert!(
                step.pieces()
                    .iter()
                    .all(|piece| piece.input < self.tables.len()),
                "a step is of the inputs"
            );
            match step {
                Step::Drop(piece) => outputs.bytes.dropped += inputs.forget(&piece),
                Step::Stitch(piece) => outputs.stitch(&inputs.take(&piece))?,
                Step::Merge(pieces) => self.merge(&pieces, inputs, outputs)?,
            }
        }
        Ok(())
    }

    fn merge(
        &self,
        pieces: &[Piece],
        inputs: &mut Inputs<'_>,
        outputs: &mut LevelOutputs<'_>,
    ) -> Result<(), VtError> {
        debug_assert!(!pieces.is_empty(), "a step merges blocks");
        let mut sources: Vec<BoxIter> = Vec::new();
        for (input, table) in self.tables.iter().enumerate() {
            let pieces = pieces.iter().filter(|p| p.input == input);
            debug_assert!(
                pieces
                    .clone()
                    .is_sorted_by(|piece, next| piece.blocks.end <= next.blocks.start),
                "pieces of one input are in order"
            );
            let blocks: Vec<IndexEntry> = pieces.flat_map(|p| inputs.take(p)).collect();
            if !blocks.is_empty() {
                // Blocks of a branch make room in the cache for those that are written.
                sources.push(match self.tree.is_branch() {
                    true => table.leaving_blocks_iter(blocks, self.carry()),
                    false => table.blocks_iter(blocks, self.carry()),
                });
            }
        }
        debug_assert!(!sources.is_empty(), "a step has inputs");
        debug_assert!(sources.len() <= pieces.len(), "each source has a piece");
        let mut source = MergeIter::new(sources);
        source.seek(&[], Seqno(u64::MAX))?;
        let rules = DistillRules {
            moments: self.moments,
            range_deletes: &self.range_deletes,
            is_bottom: &|key| self.is_bottom(key, key),
            upserts: &self.compactor.options.upserts,
            load: &|block| self.tables[0].value_of(block).map(Some),
        };
        distill(&mut source, &rules, &mut |kept| outputs.add(kept))
    }

    /// True if no level below the output has anything from `start` to `end`, both included.
    fn is_bottom(&self, start: &[u8], end: &[u8]) -> bool {
        debug_assert!(start <= end, "a range of keys is in order");
        let mut after = end.to_vec();
        after.push(0);
        !self.held_keys.has(end) && self.is_bottom_before(start, &after)
    }

    /// True if no level below the output has anything from `start` up to `end`.
    fn is_bottom_before(&self, start: &[u8], end: &[u8]) -> bool {
        debug_assert!(start < end, "a range has keys");
        // Level 0 in place: an older table of level 0 may hold the key.
        if self.plan.to_level == 0 {
            return false;
        }
        // Below all levels of a branch are those of its parent.
        if self.tree.is_branch() {
            return false;
        }
        // Below what stays is what it is held by.
        if self.held_keys.has(start) || self.held_keys.cuts_before(start, end) {
            return false;
        }
        self.tree.levels[self.plan.to_level + 1..]
            .iter()
            .all(|level| level.overlapping(start, Some(end)).is_empty())
    }

    /// A block of an input.
    fn block_info<'b>(&self, input: usize, entry: &'b IndexEntry) -> BlockInfo<'b> {
        debug_assert!(
            entry.min_seqno <= entry.max_seqno,
            "numbers of a block are in order"
        );
        BlockInfo {
            is_cut: self.held_keys.cuts(&entry.first, &entry.last)
                || (self.is_shifted(input) && !entry.is_value)
                || meets_any(&self.plan.evacuate, &entry.block.run())
                || has_released(entry, &self.released)
                || self.plan.merged_blocks.contains(&entry.block.addr),
            ..BlockInfo::of(entry)
        }
    }

    /// Value blocks stay where they are, unless the tree copies all, they are to move, or the store
    /// is in too many pieces.
    fn carry(&self) -> Carry {
        let copies_all = self.tree.info.options.stitch_bytes == u64::MAX;
        if copies_all || self.is_in_pieces {
            return Carry::Nothing;
        }
        Carry::Values {
            out_of: Arc::clone(&self.plan.evacuate),
        }
    }

    fn count(&self, bytes: Bytes, tables: &[TableMeta]) {
        let counters = &self.compactor.counters;
        let owned: u64 = tables.iter().map(TableMeta::owned_bytes).sum();
        debug_assert!(
            bytes.stitched <= owned,
            "tables own what was stitched into them"
        );
        counters.dropped_bytes.add(bytes.dropped);
        counters.stitched_bytes.add(bytes.stitched);
        counters
            .merged_bytes
            .add(owned.saturating_sub(bytes.stitched));
        if !self.plan.evacuate.is_empty() {
            let moved = match self.plan.kind {
                PlanKind::Order => &counters.ordered_bytes,
                _ => &counters.evacuated_bytes,
            };
            moved.add(owned.saturating_sub(bytes.stitched));
        }
    }
}

/// True if newer range deletes hide a whole table from all readers.
fn is_hidden(meta: &TableMeta, range_deletes: &Fragments) -> bool {
    if meta.range_delete_count > 0 || range_deletes.is_empty() {
        return false;
    }
    debug_assert!(
        !meta.largest_excluded,
        "without range deletes, keys are included"
    );
    debug_assert!(end_of(meta) > meta.smallest, "a table holds something");
    let keys = (meta.smallest.as_slice(), meta.largest.as_slice());
    let seqnos = (meta.min_seqno, meta.max_seqno);
    debug_assert!(seqnos.0 <= seqnos.1, "numbers of a table are in order");
    range_deletes.hide_all(keys, seqnos)
}
