//! Absorbs that move tables: what was written to the branches is not copied, its size does not
//! count.
//!
//! 1. Everything in memtables is written out, so that the branches are tables alone.
//! 2. Each branch is brought to few runs of tables ([`crate::compaction`]). What cannot leave its
//!    branch, because a pin sees it there, is written anew ([`super::rewritten`]).
//! 3. The batch that comes along is written to tables.
//! 4. Guards are checked. Then commits are *paused*. What they wrote since 1 is written out: no
//!    memtable holds anything. Guards are checked for what changed since they were first.
//! 5. With the lock of installs, one edit is installed: tables leave the branches and enter the
//!    parents, and the branches are dropped. Then the writes are visible, all at once.
//!
//! ```text
//! last write    deeper level of the branch     its level 0           the batch
//! ... 69 70 |  31..38, shift 40: 71 .. 78 |  41..44, 38: 79 .. 82 |  83 84 |  85 ...
//!           |  35..36, shift 36: 71 .. 72 |                       |        |
//! ```
//!
//! - A moved table gets a *shift* ([`stitch_format::vt_manifest::TableMeta::shift`]): what it holds
//!   is newer than all that was committed before. Tables that may overlap are in *layers*, the
//!   oldest first, each newer as a whole than the one before.
//! - Memtables are read before tables. No memtable holds anything older than the moved tables: all
//!   were empty at 5, and the active one is replaced with the edit, so that a reader with the view
//!   from before meets no later commit in it.
//! - A compaction that meets the moved tables keeps what a reader from before sees: that moment is
//!   held until the writes are visible.
//!
//! A crash leaves the branches as they were, or the edit. The log has no record of it.

use super::rewritten::OWN_LEVEL;
use super::{Absorbed, Absorber, Frozen, check_absorbed};
use crate::VtError;
use crate::buffer::Buffer;
use crate::commit::Committer;
use crate::compaction::{MovedTable, Placing};
use crate::install::{Install, Installer};
use crate::kept::KeptViews;
use crate::tables::Tables;
use crate::version::Version;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_format::superblock::{FEATURE_BRANCHES, FEATURE_SHIFTS};
use stitch_format::vt_manifest::{TableMeta, VersionEdit};
use stitch_kv::KvError;

/// Sequence numbers that a table may span. Each absorb leaves a jump, which later tables of
/// branches that are open span; numbers that are written anew are close together.
const SEQNOS_MAX: u64 = 1 << 36;
/// How often new pins may come in between.
const TRIES: usize = 8;
/// Branches are surely too long to be copied if their data blocks have this many times the bytes of
/// the longest batch that is. Blocks may be compressed, and versions in them hidden.
const LONG_FACTOR: u64 = 2;

/// Reports whether branches are too long to be copied by the sizes of their tables alone. Nothing
/// of them is read for that.
pub(super) fn are_long(version: &Version, branches: &[TreeId], copied_bytes_max: u64) -> bool {
    let trees = branches.iter().filter_map(|tree| version.trees.get(tree));
    let tables = trees.flat_map(|tree| tree.tables());
    let bytes: u64 = tables.map(|(_, table)| table.meta().data_bytes).sum();
    bytes > copied_bytes_max.saturating_mul(LONG_FACTOR)
}

/// Tables that are written and not installed.
///
/// Invariant: they are installed, or their space is given back.
pub(super) struct Prepared<'a> {
    tables: &'a Tables,
    /// Of branches whose own tables stay: copies of them.
    rewritten: BTreeMap<TreeId, Vec<TableMeta>>,
    /// What comes along, with sequence numbers from 1 on.
    batch: Vec<TableMeta>,
    /// Number of messages that come along.
    batch_count: u64,
}

impl Prepared<'_> {
    /// Keeps their blocks: the tables belong to a version, or it is unknown whether they do.
    fn forget(&mut self) {
        self.rewritten.clear();
        self.batch.clear();
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        let tables = self.rewritten.values().flatten().chain(&self.batch);
        let tables: Vec<TableMeta> = tables.cloned().collect();
        self.tables.discard(&tables, &[]);
    }
}

/// Commits wait until this is dropped.
struct Paused<'a>(&'a Committer);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let was_paused = std::mem::replace(&mut self.0.lock().is_paused, false);
        debug_assert!(was_paused, "a pause ends once");
        self.0.gate.wake_commits();
    }
}

/// The edit of an absorb that is not installed yet.
struct Moved<'a> {
    edit: VersionEdit,
    placing: Placing<'a>,
    /// The last sequence number of what was moved and of the batch.
    last: Seqno,
}

impl Absorber {
    /// Absorbs frozen branches by moving their tables.
    pub(super) fn absorb_by_move(
        &self,
        absorbed: &Absorbed<'_>,
        frozen: &mut Frozen<'_>,
    ) -> Result<Seqno, KvError> {
        debug_assert!(!frozen.is_absorbed, "branches are absorbed once");
        let _one_at_a_time = self.moving.lock();
        let room = &self.committer.room;
        if !room.has_threads {
            // Tables of earlier absorbs.
            room.work_inline()?;
        }
        self.member.write_all_out()?;
        for _ in 0..TRIES {
            let mut prepared = self.prepare_move(absorbed)?;
            // As late as may be: what is newer is looked at while commits wait.
            let checked = absorbed.guards;
            let checked = checked.map(|guards| self.committer.check_guards(guards));
            let checked = checked.transpose()?;
            let _paused = self.pause();
            self.member.write_all_out()?;
            if let (Some(guards), Some(checked)) = (absorbed.guards, checked) {
                self.committer.check_guards_from(guards, checked)?;
            }
            if let Some(last) = self.try_move(absorbed, &mut prepared, frozen)? {
                return Ok(last);
            }
        }
        let what = "pins are made faster than branches are absorbed: try again later";
        Err(KvError::Invalid(what.to_owned()))
    }

    fn pause(&self) -> Paused<'_> {
        let mut commits = self.committer.lock();
        assert!(!commits.is_paused, "one absorb at a time moves tables");
        commits.is_paused = true;
        Paused(&self.committer)
    }

    /// Brings the branches to few runs, and writes what has to be written.
    fn prepare_move(&self, absorbed: &Absorbed<'_>) -> Result<Prepared<'_>, KvError> {
        let mut prepared = Prepared {
            tables: &self.tables,
            rewritten: BTreeMap::new(),
            batch: Vec::new(),
            batch_count: absorbed.batch.count() as u64,
        };
        for branch in absorbed.order {
            self.compactor.flatten(*branch)?;
            let view = self.committer.views.get();
            if self.may_move(&view.version, absorbed, *branch) {
                continue;
            }
            let tables = self
                .writer
                .rewrite(&view, *branch, absorbed.options.space)?;
            let before = prepared.rewritten.insert(*branch, tables);
            debug_assert!(before.is_none(), "a branch is copied once");
        }
        prepared.batch = self.write_batch(absorbed)?;
        debug_assert!(
            prepared
                .batch
                .iter()
                .all(|table| table.max_seqno.0 <= prepared.batch_count),
            "numbers are those of the messages"
        );
        Ok(prepared)
    }

    /// Reports whether the tables of a branch can leave it and enter its parent as they are.
    fn may_move(&self, version: &Version, absorbed: &Absorbed<'_>, branch: TreeId) -> bool {
        let mut edit = version.edit();
        version.note_dropped(&mut edit, absorbed.branches, (&self.pins, &[]));
        let Some(tree) = version.trees.get(&branch) else {
            return false;
        };
        debug_assert!(tree.is_branch(), "only branches are absorbed");
        let mut metas = tree.tables().map(|(_, table)| table.meta());
        let is_short = metas.all(|meta| meta.max_seqno.0 - meta.min_seqno.0 < SEQNOS_MAX);
        edit.dropped_trees.contains(&branch) && tree.is_flat() && is_short
    }

    /// Installs the edit, and makes the writes visible. Returns `None` if a branch whose tables
    /// were to be moved cannot give them any more.
    fn try_move(
        &self,
        absorbed: &Absorbed<'_>,
        prepared: &mut Prepared<'_>,
        frozen: &mut Frozen<'_>,
    ) -> Result<Option<Seqno>, KvError> {
        let mut installer = self.versions.lock();
        let version = self.committer.views.version();
        check_absorbed(&version, absorbed.branches)?;
        let trees = absorbed.batch.messages().map(|(tree, _)| tree);
        let first = {
            let commits = self.committer.lock();
            commits.check_trees(trees)?;
            commits.last_seqno.next()
        };
        let Some(moved) = self.moved(&version, absorbed, prepared, first) else {
            return Ok(None);
        };
        drop(version);
        // Compactions keep what reads see now, until the moved tables are visible to all new reads.
        let moment = self.committer.hold_now();
        let last = moved.last;
        debug_assert!(last.0 + 1 >= first.0, "sequence numbers rise");
        self.install_moved(&mut installer, moved, prepared)?;
        frozen.is_absorbed = true;
        self.publish_moved(absorbed, last);
        drop(moment);
        Ok(Some(last))
    }

    /// The edit: the tables of the branches in their order, then the batch, each newer than all
    /// before.
    fn moved(
        &self,
        version: &Version,
        absorbed: &Absorbed<'_>,
        prepared: &Prepared<'_>,
        first: Seqno,
    ) -> Option<Moved<'_>> {
        let mut edit = version.edit();
        version.note_dropped(&mut edit, absorbed.branches, (&self.pins, &[]));
        let mut next = first.0;
        let mut tables: Vec<MovedTable> = Vec::new();
        for branch in absorbed.order {
            let tree = &version.trees[branch];
            let parent = tree.info.branch.expect("it is a branch").parent;
            let own: Vec<MovedTable> = match prepared.rewritten.get(branch) {
                Some(copies) => copies
                    .iter()
                    .map(|t| MovedTable::new(OWN_LEVEL, t))
                    .collect(),
                None if self.may_move(version, absorbed, *branch) => tree
                    .oldest_first()
                    .map(|(level, t)| MovedTable::new(level, t.meta()))
                    .collect(),
                None => return None,
            };
            // Tables of a level below level 0 do not overlap.
            let is_one =
                |a: &MovedTable, b: &MovedTable| a.from_level == b.from_level && a.from_level > 0;
            for layer in own.chunk_by(is_one) {
                next = append(&mut tables, layer, Some(parent), next);
            }
        }
        let batch = prepared.batch.iter().map(|t| MovedTable::new(0, t));
        let batch: Vec<MovedTable> = batch.collect();
        debug_assert!(next >= first.0, "sequence numbers rise");
        let after_batch = next + prepared.batch_count;
        let batch_end = append(&mut tables, &batch, None, next);
        assert!(batch_end <= after_batch, "a message has one number");
        let last = Seqno(after_batch - 1);
        edit.last_seqno = edit.last_seqno.max(last);
        debug_assert!(
            tables.iter().all(|table| table.meta.max_seqno <= last),
            "the last number is that of the newest table"
        );
        let placing = self.compactor.place(version, tables);
        let added = placing.tables.iter().cloned();
        edit.added = added.map(|(level, meta)| (level, Arc::new(meta))).collect();
        debug_assert!(
            edit.added
                .iter()
                .all(|(_, table)| !absorbed.branches.contains(&table.tree)),
            "no table stays in an absorbed branch"
        );
        Some(Moved {
            edit,
            placing,
            last,
        })
    }

    fn install_moved(
        &self,
        installer: &mut Installer,
        moved: Moved<'_>,
        prepared: &mut Prepared<'_>,
    ) -> Result<(), KvError> {
        let Moved { edit, placing, .. } = moved;
        debug_assert!(edit.removed.is_empty(), "tables leave with their branch");
        debug_assert_eq!(
            placing.tables.len(),
            edit.added.len(),
            "each table has its place"
        );
        // What is on the medium stays the state after some commit.
        self.committer.sync()?;
        let mut features = FEATURE_SHIFTS;
        if edit.has_branches() {
            features |= FEATURE_BRANCHES;
        }
        let required = self.committer.volume.require_feature(features);
        required.map_err(VtError::from)?;
        let view = self.committer.views.get();
        let active = view.active();
        assert!(
            active.is_empty() && view.sealed_count() == 0,
            "memtables hold nothing while tables are moved"
        );
        let fresh = Arc::new(Buffer::new(active.memtable.fresh(), active.log_start));
        let kept = KeptViews::give(&view, self.pins.lingering(), &edit.dropped_trees);
        drop(view);
        let install = Install {
            edit,
            fresh: Some(fresh),
            ..Install::default()
        };
        let installed = self.versions.install(installer, install);
        drop(placing);
        match installed {
            Ok(_) => {
                prepared.forget();
                Ok(())
            }
            Err(error) => {
                kept.take_back();
                if !crate::install::is_refused(&error) {
                    // It may be on the medium.
                    prepared.forget();
                }
                Err(error.into())
            }
        }
    }

    /// Makes what was moved visible. The caller holds the lock of installs.
    fn publish_moved(&self, absorbed: &Absorbed<'_>, last: Seqno) {
        let version = self.committer.views.version();
        let mut commits = self.committer.lock();
        for tree in version.trees.keys().chain(absorbed.branches) {
            self.committer.reads.gaps.forget(*tree);
        }
        assert!(commits.is_paused, "nothing was committed meanwhile");
        commits.publish(last, &self.committer.visible);
        drop(commits);
        let counters = &self.committer.counters;
        counters.commits.add(1);
        counters.absorbs_moved.add(1);
        counters.put_messages.add(absorbed.batch.count() as u64);
    }
}

/// Adds tables of a layer, with sequence numbers from `next` on, to a tree if that is another one
/// than theirs. Returns the number after their largest.
fn append(
    tables: &mut Vec<MovedTable>,
    layer: &[MovedTable],
    tree: Option<TreeId>,
    next: u64,
) -> u64 {
    let mut end = next;
    for mut table in layer.iter().cloned() {
        debug_assert!(
            table.meta.min_seqno <= table.meta.max_seqno,
            "its numbers are in order"
        );
        let first = table.meta.min_seqno.0;
        table.meta.move_by(next.saturating_sub(first));
        assert!(
            table.meta.min_seqno.0 >= next,
            "what is moved becomes newer"
        );
        table.meta.tree = tree.unwrap_or(table.meta.tree);
        end = end.max(table.meta.max_seqno.0 + 1);
        tables.push(table);
    }
    end
}
