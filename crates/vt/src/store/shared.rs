//! How the parts of a store are put together: each gets what it uses of what they share.

use crate::branches::Branches;
use crate::cache::BlockCache;
use crate::commit::{AbsorbWriter, Absorber, CommitRoom, Committer, DirectWriter};
use crate::commit_lock::{CommitLock, CommitState};
use crate::compaction::{Compactor, Level0Debt, Scheduler};
use crate::counters::VtCounters;
use crate::gate::Gate;
use crate::install::{Installer, VersionLog};
use crate::member::Member;
use crate::options::VtOptions;
use crate::pace::Pace;
use crate::pins::Pins;
use crate::pool::Pool;
use crate::read::{ReadParts, ReadPath};
use crate::signals::Signals;
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::space::SpaceLedger;
use crate::tables::Tables;
use crate::tree_changes::TreeChanges;
use crate::view::{View, Views};
use crate::write_out::WriteOuts;
use std::sync::Arc;
use stitch_base::Lsn;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64};
use stitch_base::sync::{Apart, Mutex};
use stitch_volume::Volume;

/// What parts of a store share, while it is put together.
pub(super) struct SharedParts {
    pub(super) volume: Arc<Volume>,
    pub(super) cache: Arc<BlockCache>,
    pub(super) options: VtOptions,
    pub(super) sizing: Arc<Sizing>,
    pub(super) counters: Arc<Apart<VtCounters>>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) pins: Arc<Pins>,
    pub(super) branches: Arc<Branches>,
    pub(super) views: Arc<Views>,
    pub(super) visible: Arc<Apart<AtomicU64>>,
    pub(super) commits: Arc<CommitLock>,
    pub(super) gate: Arc<Gate>,
    pub(super) signals: Arc<Signals>,
    pub(super) pace: Arc<Pace>,
    pub(super) level0: Arc<Level0Debt>,
    pub(super) tables: Arc<Tables>,
    pub(super) space: Arc<SpaceLedger>,
}

impl SharedParts {
    /// Returns what the parts of a store in this state share.
    pub(super) fn new<S>(
        volume: Arc<Volume>,
        options: VtOptions,
        sizing: Arc<Sizing>,
        view: View,
        pool: &Pool<S>,
    ) -> Self {
        debug_assert!(view.active().is_empty(), "nothing was replayed");
        let version = Arc::clone(&view.version);
        let sizes = sizing.opened;
        let cache = BlockCache::new(usize::try_from(sizes.cache).unwrap_or(usize::MAX));
        let cache = Arc::new(cache.with_readers(sizes.ahead));
        cache.set_capacity(sizes.cache_beside(version.lists.bytes()));
        let views = Arc::new(Views::new(view));
        let copies_values = options.stitch_by_key.is_some();
        let space = SpaceLedger::new(&volume, &sizing, &views, &pool.ledgers, copies_values);
        let tables = Tables::new(&volume, &cache, &version, options.caches_writes);
        Self {
            counters: Arc::default(),
            snapshots: {
                let snapshots = Snapshots::default();
                snapshots.note_trees(version.next_tree);
                Arc::new(snapshots)
            },
            pins: Arc::default(),
            branches: Arc::default(),
            visible: Arc::new(Apart(AtomicU64::new(version.last_seqno.0))),
            commits: Arc::new(Apart(Mutex::new(CommitState::new(&version)))),
            gate: Arc::new(Gate::new(&volume)),
            signals: Arc::default(),
            pace: Arc::default(),
            level0: Arc::default(),
            tables: Arc::new(tables),
            space: Arc::new(space),
            volume,
            cache,
            options,
            sizing,
            views,
        }
    }

    pub(super) fn read_path(&self) -> ReadPath {
        let parts = ReadParts {
            volume: Arc::clone(&self.volume),
            cache: Arc::clone(&self.cache),
            upserts: self.options.upserts.clone(),
            counters: Arc::clone(&self.counters),
            signals: Arc::clone(&self.signals),
            views: Arc::clone(&self.views),
            visible: Arc::clone(&self.visible),
            commits: Arc::clone(&self.commits),
            level0: Arc::clone(&self.level0),
        };
        ReadPath::new(parts, &self.sizing.opened)
    }

    pub(super) fn version_log(&self, log_start: Lsn) -> VersionLog {
        VersionLog {
            volume: Arc::clone(&self.volume),
            cache: Arc::clone(&self.cache),
            sizing: Arc::clone(&self.sizing),
            views: Arc::clone(&self.views),
            tables: Arc::clone(&self.tables),
            pins: Arc::clone(&self.pins),
            branches: Arc::clone(&self.branches),
            snapshots: Arc::clone(&self.snapshots),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
            pace: Arc::clone(&self.pace),
            is_paranoid: self.options.is_paranoid,
            installer: Mutex::new(Installer { log_start }),
        }
    }

    pub(super) fn compactor(&self, versions: &Arc<VersionLog>) -> Compactor {
        debug_assert!(
            Arc::ptr_eq(&versions.tables, &self.tables),
            "parts of one store"
        );
        Compactor {
            volume: Arc::clone(&self.volume),
            options: self.options.clone(),
            sizing: Arc::clone(&self.sizing),
            counters: Arc::clone(&self.counters),
            snapshots: Arc::clone(&self.snapshots),
            views: Arc::clone(&self.views),
            tables: Arc::clone(&self.tables),
            versions: Arc::clone(versions),
            space: Arc::clone(&self.space),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
            pace: Arc::clone(&self.pace),
            level0: Arc::clone(&self.level0),
            scheduler: Scheduler::new(self.options.compactors),
        }
    }

    pub(super) fn write_outs(
        &self,
        versions: &Arc<VersionLog>,
        reads: &Arc<ReadPath>,
    ) -> WriteOuts {
        debug_assert!(
            Arc::ptr_eq(&versions.tables, &self.tables),
            "parts of one store"
        );
        WriteOuts {
            volume: Arc::clone(&self.volume),
            clock: Arc::clone(&self.options.clock),
            upserts: self.options.upserts.clone(),
            sizing: Arc::clone(&self.sizing),
            counters: Arc::clone(&self.counters),
            snapshots: Arc::clone(&self.snapshots),
            views: Arc::clone(&self.views),
            commits: Arc::clone(&self.commits),
            tables: Arc::clone(&self.tables),
            versions: Arc::clone(versions),
            reads: Arc::clone(reads),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
            pace: Arc::clone(&self.pace),
            running: Mutex::new(()),
            lacks_space: AtomicBool::new(false),
        }
    }

    pub(super) fn commit_room(
        &self,
        compactor: &Arc<Compactor>,
        member: &Arc<Member>,
    ) -> CommitRoom {
        debug_assert!(
            Arc::ptr_eq(&compactor.tables, &self.tables),
            "parts of one store"
        );
        debug_assert!(
            Arc::ptr_eq(&member.space, &self.space),
            "parts of one store"
        );
        CommitRoom {
            volume: Arc::clone(&self.volume),
            clock: Arc::clone(&self.options.clock),
            has_threads: self.options.background,
            sizing: Arc::clone(&self.sizing),
            counters: Arc::clone(&self.counters),
            views: Arc::clone(&self.views),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
            pace: Arc::clone(&self.pace),
            space: Arc::clone(&self.space),
            compactor: Arc::clone(compactor),
            write_outs: Arc::clone(&member.write_outs),
            member: Arc::clone(member),
        }
    }

    pub(super) fn committer(&self, reads: &Arc<ReadPath>, room: CommitRoom) -> Committer {
        debug_assert!(Arc::ptr_eq(&room.views, &self.views), "parts of one store");
        let direct = DirectWriter {
            volume: Arc::clone(&self.volume),
            views: Arc::clone(&self.views),
            tables: Arc::clone(&self.tables),
            space: Arc::clone(&self.space),
        };
        Committer {
            volume: Arc::clone(&self.volume),
            cache: Arc::clone(&self.cache),
            options: self.options.clone(),
            counters: Arc::clone(&self.counters),
            snapshots: Arc::clone(&self.snapshots),
            views: Arc::clone(&self.views),
            visible: Arc::clone(&self.visible),
            asked_syncs: Apart(AtomicU64::new(0)),
            state: Arc::clone(&self.commits),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
            space: Arc::clone(&self.space),
            level0: Arc::clone(&self.level0),
            reads: Arc::clone(reads),
            room,
            direct,
        }
    }

    pub(super) fn tree_changes(
        &self,
        versions: &Arc<VersionLog>,
        reads: &Arc<ReadPath>,
    ) -> TreeChanges {
        debug_assert!(
            Arc::ptr_eq(&versions.views, &self.views),
            "parts of one store"
        );
        TreeChanges {
            volume: Arc::clone(&self.volume),
            views: Arc::clone(&self.views),
            commits: Arc::clone(&self.commits),
            versions: Arc::clone(versions),
            pins: Arc::clone(&self.pins),
            space: Arc::clone(&self.space),
            reads: Arc::clone(reads),
            gate: Arc::clone(&self.gate),
            signals: Arc::clone(&self.signals),
        }
    }

    pub(super) fn absorber(
        &self,
        committer: &Arc<Committer>,
        member: &Arc<Member>,
        trees: &Arc<TreeChanges>,
    ) -> Absorber {
        debug_assert!(
            Arc::ptr_eq(&committer.views, &self.views),
            "parts of one store"
        );
        debug_assert!(
            Arc::ptr_eq(&member.versions, &trees.versions),
            "parts of one store"
        );
        let writer = AbsorbWriter {
            tables: Arc::clone(&self.tables),
            space: Arc::clone(&self.space),
            reads: Arc::clone(&committer.reads),
            sizing: Arc::clone(&self.sizing),
            upserts: self.options.upserts.clone(),
        };
        Absorber {
            committer: Arc::clone(committer),
            member: Arc::clone(member),
            trees: Arc::clone(trees),
            versions: Arc::clone(&member.versions),
            compactor: Arc::clone(&member.compactor),
            tables: Arc::clone(&self.tables),
            pins: Arc::clone(&self.pins),
            branches: Arc::clone(&self.branches),
            writer,
            moving: Mutex::new(()),
        }
    }
}
