//! The state of an open store, shared by callers and background threads.
//!
//! Locks, in the order in which they may be taken:
//! 0. `member.pool.evacuation`: one evacuation of many zones at a time, on one volume;
//!    `absorber.moving`: one absorb that moves tables at a time; the sweep for garbage.
//! 1. A slot of the compaction scheduler (`compactor.scheduler`): one compaction at a time, or two
//!    that do not overlap.
//! 2. `write_outs.running`: one write-out at a time.
//! 3. `versions.installer`: one version edit at a time.
//! 4. `committer.state`, the lock of commits: one commit at a time.
//! 5. the view's own locks; those of a buffer, the pins, the snapshots, the superseded versions,
//!    the volume, and of `scheduler` while nothing is waited for, are leaves.
//!
//! No lock above 3 is needed by commits, and none at all by reads.

mod shared;

use crate::branches::Branches;
use crate::cache::BlockCache;
use crate::commit::{Absorber, Committer};
use crate::compaction::{Compactor, Level0Debt};
use crate::counters::VtCounters;
use crate::garbage::GarbageSweep;
use crate::gate::Gate;
use crate::install::VersionLog;
use crate::key_order::KeyOrder;
use crate::member::Member;
use crate::options::VtOptions;
use crate::pace::Pace;
use crate::pins::Pins;
use crate::pool::Pool;
use crate::read::ReadPath;
use crate::signals::Signals;
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::space::SpaceLedger;
use crate::tables::Tables;
use crate::tree_changes::TreeChanges;
use crate::version::Version;
use crate::view::{View, Views};
use crate::write_out::WriteOuts;
use shared::SharedParts;
use std::sync::Arc;
use stitch_base::Lsn;
use stitch_base::sync::Apart;
use stitch_base::sync::atomic::AtomicU64;
use stitch_volume::Volume;

/// An open store: parts that own what they change, and what they share.
pub(crate) struct Store {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) options: VtOptions,
    pub(crate) sizing: Arc<Sizing>,
    /// This and the others that are apart change with each commit: reads should not wait for that.
    pub(crate) counters: Arc<Apart<VtCounters>>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) branches: Arc<Branches>,
    pub(crate) views: Arc<Views>,
    /// The newest write that readers may see.
    pub(crate) visible: Arc<Apart<AtomicU64>>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) absorber: Absorber,
    pub(crate) trees: Arc<TreeChanges>,
    /// Whether the store takes writes. A commit that waits for room waits here, with the lock of
    /// commits.
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pace: Arc<Pace>,
    /// The store as all stores of its volume use it.
    pub(crate) member: Arc<Member>,
    pub(crate) write_outs: Arc<WriteOuts>,
    pub(crate) space: Arc<SpaceLedger>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) versions: Arc<VersionLog>,
    pub(crate) reads: Arc<ReadPath>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) key_order: Arc<KeyOrder>,
    /// Finds what dropped moments have left.
    pub(crate) garbage: GarbageSweep,
    /// What reads pay for level 0.
    pub(crate) level0: Arc<Level0Debt>,
}

impl Store {
    /// Returns a store as recovery found it.
    pub(crate) fn new(
        volume: Arc<Volume>,
        options: VtOptions,
        sizing: Arc<Sizing>,
        view: View,
        log_start: Lsn,
        pool: Arc<Pool<Member>>,
    ) -> Self {
        debug_assert_eq!(
            view.active().log_start,
            log_start,
            "its records are from here on"
        );
        debug_assert_eq!(view.sealed_count(), 0, "nothing was replayed");
        let shared = SharedParts::new(volume, options, sizing, view, &pool);
        let versions = Arc::new(shared.version_log(log_start));
        let compactor = Arc::new(shared.compactor(&versions));
        let reads = Arc::new(shared.read_path());
        let key_order = Arc::new(KeyOrder::new(&compactor));
        let write_outs = Arc::new(shared.write_outs(&versions, &reads));
        let member = Arc::new(Member {
            volume: Arc::clone(&shared.volume),
            clock: Arc::clone(&shared.options.clock),
            counters: Arc::clone(&shared.counters),
            views: Arc::clone(&shared.views),
            commits: Arc::clone(&shared.commits),
            gate: Arc::clone(&shared.gate),
            signals: Arc::clone(&shared.signals),
            pool,
            space: Arc::clone(&shared.space),
            versions: Arc::clone(&versions),
            compactor: Arc::clone(&compactor),
            key_order: Arc::clone(&key_order),
            write_outs: Arc::clone(&write_outs),
        });
        let committer = shared.committer(&reads, shared.commit_room(&compactor, &member));
        let committer = Arc::new(committer);
        let trees = Arc::new(shared.tree_changes(&versions, &reads));
        let absorber = shared.absorber(&committer, &member, &trees);
        Self {
            reads,
            key_order,
            member,
            write_outs,
            garbage: GarbageSweep::default(),
            volume: shared.volume,
            cache: shared.cache,
            options: shared.options,
            sizing: shared.sizing,
            counters: shared.counters,
            snapshots: shared.snapshots,
            pins: shared.pins,
            branches: shared.branches,
            views: shared.views,
            visible: shared.visible,
            committer,
            absorber,
            trees,
            gate: shared.gate,
            signals: shared.signals,
            pace: shared.pace,
            space: shared.space,
            tables: shared.tables,
            versions,
            compactor,
            level0: shared.level0,
        }
    }

    /// The current version.
    pub(crate) fn version(&self) -> Arc<Version> {
        self.views.version()
    }
}
