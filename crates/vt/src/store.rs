//! The state of an open store, shared by callers and background threads.
//!
//! Locks, in the order in which they may be taken:
//! 0. `peers.evacuation`: one evacuation of many zones at a time, on one volume.
//! 1. A turn to compact (`turns`): one compaction at a time, or two that do not overlap.
//! 2. `write_out`: one write-out at a time.
//! 3. `installer`: one version edit at a time.
//! 4. `committer`: one commit at a time.
//! 5. the view's own locks; those of a buffer, the pins, the snapshots, the superseded versions, the volume, and of `turns`
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
use crate::instances::Peers;
use crate::key_order::KeyOrder;
use crate::options::{Sizes, VtOptions};
use crate::pace::Pace;
use crate::pins::Pins;
use crate::read::FoldedValues;
use crate::snapshots::Snapshots;
use crate::superseded::SupersededVersions;
use crate::table::ValueReader;
use crate::under_way::Work;
use crate::version::{TableHandle, Version};
use crate::view::{View, Views};
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Apart, Condvar, Mutex};
use stitch_base::{Lsn, Seqno, TableId, TreeId};
use stitch_volume::{PAGE_BYTES, Volume};

/// An open store.
pub(crate) struct Store {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) options: VtOptions,
    /// As the store was opened; see [`Store::sizes_now`].
    pub(crate) sizes: Sizes,
    /// Length of the zones when it was.
    pub(crate) opened_zones_bytes: u64,
    /// This and the others that are apart change with each commit: reads should not wait for that.
    pub(crate) counters: Apart<VtCounters>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// Changed with `installer`.
    pub(crate) pins: Pins,
    pub(crate) superseded: SupersededVersions,
    pub(crate) key_order: KeyOrder,
    pub(crate) folded: FoldedValues,
    pub(crate) gaps: Gaps,
    pub(crate) views: Views,
    /// The newest write that readers may see.
    pub(crate) visible: Apart<AtomicU64>,
    /// Syncs that somebody has asked for.
    pub(crate) asked_syncs: Apart<AtomicU64>,
    /// Number for the next table. Numbers of tables that were given up are skipped.
    next_table: AtomicU64,
    pub(crate) committer: Apart<Mutex<Committer>>,
    /// A commit that waits for room waits here, with `committer`.
    pub(crate) room: Condvar,
    pub(crate) installer: Mutex<Installer>,
    pub(crate) write_out: Mutex<()>,
    pub(crate) turns: Turns,
    /// Space of compactions that run now.
    pub(crate) work: Arc<Work>,
    /// What reads pay for level 0.
    pub(crate) level0: Level0Debt,
    /// The stores on the same volume, this one among them.
    pub(crate) peers: Arc<Peers>,
    pub(crate) pace: Pace,
    /// Bytes that are left to commits of
    /// [`SpaceClass::Allocated`](stitch_kv::SpaceClass::Allocated).
    pub(crate) aside_bytes: AtomicU64,
    /// Length of a run that holds any block which may have to be written now, in bytes.
    pub(crate) longest_run: AtomicU64,
    /// Length of a run that held the value blocks of whole pages of the last batch that asked for space, in bytes.
    pub(crate) pages_run: AtomicU64,
    pub(crate) signals: Signals,
    /// The last write-out found no space.
    pub(crate) lacks_space: AtomicBool,
    is_failed: AtomicBool,
    is_closed: AtomicBool,
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

/// Wakes background threads.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<Wanted>,
    write_out: Condvar,
    compaction: Condvar,
    help: Condvar,
    gaps: Condvar,
}

#[derive(Default)]
struct Wanted {
    write_out: bool,
    compaction: bool,
    help: bool,
    gaps: bool,
    stop: bool,
}

/// Who waits for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    WriteOut,
    Compaction,
    /// The second that compacts.
    Help,
    Gaps,
}

impl Signals {
    pub(crate) fn wake(&self, worker: Worker) {
        let mut state = self.state.lock();
        match worker {
            Worker::WriteOut => {
                state.write_out = true;
                self.write_out.notify_one();
            }
            Worker::Compaction => {
                state.compaction = true;
                self.compaction.notify_one();
            }
            Worker::Help => {
                state.help = true;
                self.help.notify_one();
            }
            Worker::Gaps => {
                state.gaps = true;
                self.gaps.notify_one();
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.write_out.notify_all();
        self.compaction.notify_all();
        self.help.notify_all();
        self.gaps.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until woken, stopped or timed out. Answers false when stopped.
    pub(crate) fn wait(&self, worker: Worker, timeout: std::time::Duration) -> bool {
        let mut state = self.state.lock();
        let (wanted, condvar) = match worker {
            Worker::WriteOut => (state.write_out, &self.write_out),
            Worker::Compaction => (state.compaction, &self.compaction),
            Worker::Help => (state.help, &self.help),
            Worker::Gaps => (state.gaps, &self.gaps),
        };
        if !wanted && !state.stop {
            condvar.wait_for(&mut state, timeout);
        }
        match worker {
            Worker::WriteOut => state.write_out = false,
            Worker::Compaction => state.compaction = false,
            Worker::Help => state.help = false,
            Worker::Gaps => state.gaps = false,
        }
        !state.stop
    }
}

impl Store {
    /// A store as recovery found it.
    pub(crate) fn new(
        volume: Arc<Volume>,
        options: VtOptions,
        sizes: Sizes,
        view: View,
        log_start: Lsn,
        peers: Arc<Peers>,
    ) -> Self {
        let version = Arc::clone(&view.version);
        let cache = BlockCache::new(usize::try_from(sizes.cache).unwrap_or(usize::MAX));
        let cache = Arc::new(cache.with_readers(sizes.ahead));
        cache.set_capacity(sizes.cache_beside(version.lists.bytes()));
        Self {
            cache,
            sizes,
            opened_zones_bytes: volume.zones().total_bytes(),
            turns: Turns::new(options.compactors),
            options,
            counters: Apart::default(),
            snapshots: Arc::new(Snapshots::default()),
            pins: Pins::default(),
            superseded: SupersededVersions::of_unknown(version.tables().map(|(_, t)| t)),
            key_order: KeyOrder::default(),
            folded: FoldedValues::new(sizes.folded),
            gaps: Gaps::new(sizes.gap),
            visible: Apart(AtomicU64::new(version.last_seqno.0)),
            asked_syncs: Apart(AtomicU64::new(0)),
            next_table: AtomicU64::new(version.next_table.0),
            committer: Apart(Mutex::new(Committer {
                last_seqno: version.last_seqno,
                trees: version.living().map(|tree| tree.info.id).collect(),
                deletes: DeleteRuns::default(),
                streaks: Streaks::default(),
                unsynced: Unsynced::default(),
            })),
            room: Condvar::new(),
            installer: Mutex::new(Installer { log_start }),
            write_out: Mutex::new(()),
            work: Arc::default(),
            level0: Level0Debt::default(),
            peers,
            pace: Pace::default(),
            longest_run: AtomicU64::new(0),
            aside_bytes: AtomicU64::new(0),
            pages_run: AtomicU64::new(PAGE_BYTES),
            signals: Signals::default(),
            lacks_space: AtomicBool::new(false),
            is_failed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            views: Views::new(view),
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
    pub(crate) fn check_writable(&self) -> Result<(), VtError> {
        if self.volume.is_read_only() {
            return Err(stitch_volume::VolumeError::ReadOnly.into());
        }
        let is_lost = self.is_failed.load(Ordering::Acquire) || self.volume.is_poisoned();
        if is_lost {
            return Err(VtError::Poisoned);
        }
        if self.is_closed() {
            return Err(VtError::Closed);
        }
        Ok(())
    }

    /// Refuses writes from now on: background work failed.
    pub(crate) fn fail(&self, error: &VtError) {
        if !self.is_failed.swap(true, Ordering::AcqRel) {
            let instance = self.volume.name();
            tracing::error!(%error, instance, "the store takes no more writes");
        }
        self.room.notify_all();
    }

    /// True if background work failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
    }

    /// True if the store was closed, or removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Refuses writes from now on: the store is closed. Answers false if it was already.
    pub(crate) fn mark_closed(&self) -> bool {
        let was_closed = self.is_closed.swap(true, Ordering::AcqRel);
        self.room.notify_all();
        !was_closed
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
