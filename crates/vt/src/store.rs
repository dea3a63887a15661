//! The state of an open store, shared by callers and background threads.
//!
//! Locks, in the order in which they may be taken:
//! 0. `pool.evacuation`: one evacuation of many zones at a time, on one volume.
//! 1. A turn to compact (`turns`): one compaction at a time, or two that do not overlap.
//! 2. `write_out`: one write-out at a time.
//! 3. `installer`: one version edit at a time.
//! 4. `committer`: one commit at a time.
//! 5. the view's own locks; those of a buffer, the snapshots, the superseded versions, the volume, and of `turns`
//!    while nothing is waited for, are leaves.
//!
//! No lock above 3 is needed by commits, and none at all by reads.

use crate::VtError;
use crate::buffer::Buffer;
use crate::cache::BlockCache;
use crate::commit::Unsynced;
use crate::compaction::{Level0Debt, Turns};
use crate::counters::VtCounters;
use crate::direct::Streaks;
use crate::gaps::{DeleteRuns, Gaps};
use crate::gate::Gate;
use crate::key_order::KeyOrder;
use crate::options::VtOptions;
use crate::pace::Pace;
use crate::pool::Pool;
use crate::read::FoldedValues;
use crate::signals::{Signals, Worker};
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::space::SpaceLedger;
use crate::superseded::SupersededVersions;
use crate::table::ValueReader;
use crate::version::{TableHandle, Version};
use crate::view::{View, Views};
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Apart, Mutex};
use stitch_base::{Lsn, Seqno, TableId, TreeId};
use stitch_volume::Volume;

/// An open store.
pub(crate) struct Store {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) options: VtOptions,
    pub(crate) sizing: Arc<Sizing>,
    /// This and the others that are apart change with each commit: reads should not wait for that.
    pub(crate) counters: Apart<VtCounters>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) superseded: SupersededVersions,
    pub(crate) key_order: KeyOrder,
    pub(crate) folded: FoldedValues,
    pub(crate) gaps: Gaps,
    pub(crate) views: Arc<Views>,
    /// The newest write that readers may see.
    pub(crate) visible: Apart<AtomicU64>,
    /// Syncs that somebody has asked for.
    pub(crate) asked_syncs: Apart<AtomicU64>,
    /// Number for the next table. Numbers of tables that were given up are skipped.
    next_table: AtomicU64,
    pub(crate) committer: Apart<Mutex<Committer>>,
    /// Whether the store takes writes. A commit that waits for room waits here, with `committer`.
    pub(crate) gate: Arc<Gate>,
    pub(crate) installer: Mutex<Installer>,
    pub(crate) write_out: Mutex<()>,
    pub(crate) turns: Turns,
    /// What reads pay for level 0.
    pub(crate) level0: Level0Debt,
    /// The stores on the same volume, this one among them.
    pub(crate) pool: Arc<Pool<Self>>,
    pub(crate) space: Arc<SpaceLedger>,
    pub(crate) pace: Pace,
    pub(crate) signals: Arc<Signals>,
    /// The last write-out found no space.
    pub(crate) lacks_space: AtomicBool,
}

/// What commits change.
pub(crate) struct Committer {
    /// The last sequence number given out.
    pub(crate) last_seqno: Seqno,
    /// Trees that take writes.
    pub(crate) trees: BTreeSet<TreeId>,
    /// Rows of deletes.
    pub(crate) deletes: DeleteRuns,
    /// Streaks of puts.
    pub(crate) streaks: Streaks,
    /// Bytes since somebody asked for a sync.
    pub(crate) unsynced: Unsynced,
}

/// What installations change.
pub(crate) struct Installer {
    /// Where live records of the backup log start.
    pub(crate) log_start: Lsn,
}

impl Store {
    /// A store as recovery found it.
    pub(crate) fn new(
        volume: Arc<Volume>,
        options: VtOptions,
        sizing: Arc<Sizing>,
        view: View,
        log_start: Lsn,
        pool: Arc<Pool<Self>>,
    ) -> Self {
        let version = Arc::clone(&view.version);
        let sizes = sizing.opened;
        let cache = BlockCache::new(usize::try_from(sizes.cache).unwrap_or(usize::MAX));
        let cache = Arc::new(cache.with_readers(sizes.ahead));
        cache.set_capacity(sizes.cache_beside(version.lists.bytes()));
        let views = Arc::new(Views::new(view));
        let copies_values = options.stitch_by_key.is_some();
        let space = SpaceLedger::new(&volume, &sizing, &views, &pool.ledgers, copies_values);
        let space = Arc::new(space);
        Self {
            cache,
            sizing,
            turns: Turns::new(options.compactors),
            options,
            counters: Apart::default(),
            snapshots: Arc::new(Snapshots::default()),
            superseded: SupersededVersions::of_unknown(version.tables().map(|(_, t)| t)),
            key_order: KeyOrder::default(),
            folded: FoldedValues::new(sizes.folded),
            gaps: Gaps::new(sizes.gap),
            visible: Apart(AtomicU64::new(version.last_seqno.0)),
            asked_syncs: Apart(AtomicU64::new(0)),
            next_table: AtomicU64::new(version.next_table.0),
            committer: Apart(Mutex::new(Committer {
                last_seqno: version.last_seqno,
                trees: version.trees.keys().copied().collect(),
                deletes: DeleteRuns::default(),
                streaks: Streaks::default(),
                unsynced: Unsynced::default(),
            })),
            gate: Arc::new(Gate::new(&volume)),
            installer: Mutex::new(Installer { log_start }),
            write_out: Mutex::new(()),
            level0: Level0Debt::default(),
            pool,
            space,
            pace: Pace::default(),
            signals: Arc::default(),
            lacks_space: AtomicBool::new(false),
            views,
            volume,
        }
    }

    /// A number for a new table.
    pub(crate) fn new_table_id(&self) -> TableId {
        TableId(self.next_table.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives out no number up to this one.
    pub(crate) fn skip_table_ids(&self, last: TableId) {
        self.next_table
            .fetch_max(last.0.saturating_add(1), Ordering::Relaxed);
    }

    /// A number that every table so far is below.
    pub(crate) fn next_table_id(&self) -> TableId {
        TableId(self.next_table.load(Ordering::Relaxed))
    }

    /// Refuses writes for a store that failed, was closed, or is for reading only.
    ///
    /// # Errors
    /// As [`Gate::check_writable`].
    pub(crate) fn check_writable(&self) -> Result<(), VtError> {
        self.gate.check_writable()
    }

    /// Has a second compaction begin, if one alone does not keep up.
    pub(crate) fn call_help(&self) {
        if self.pace.is_behind() {
            self.signals.wake(Worker::Help);
        }
    }

    /// A table's reader.
    pub(crate) fn table<'a>(&self, handle: &'a TableHandle) -> &'a Arc<crate::table::Table> {
        handle.table(&self.volume, &self.cache)
    }

    /// Reads values that no table has yet.
    pub(crate) fn values(&self) -> ValueReader {
        ValueReader::new(Arc::clone(&self.volume), Arc::clone(&self.cache))
    }

    /// The current version.
    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.views.get().version)
    }

    /// The oldest sealed memtable, and where the log of the next one starts.
    pub(crate) fn oldest_sealed(&self) -> Option<(Arc<Buffer>, Lsn)> {
        let view = self.views.get();
        let count = view.buffers.len();
        let oldest = (count > 1).then(|| Arc::clone(&view.buffers[count - 1]))?;
        Some((oldest, view.buffers[count - 2].log_start))
    }
}
