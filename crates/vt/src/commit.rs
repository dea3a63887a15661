//! Commits.
//!
//! 1. The batch is checked: sizes, trees, upsert functions. The writer is slowed if it must be.
//! 2. Under the lock of commits: room in the memtable and promised space are made sure of, the
//!    messages get their sequence numbers, the batch is appended to the backup log, inserted into
//!    the memtable, and published. With guards, what they name is checked first: see [`guards`].
//! 3. Outside the lock, where asked for: the log is synced. Syncs of several commits are one.
//!
//! ```text
//! batch -- Segments::fill --> segments -- Placement::decide --> parts --> zones, log, memtable
//!          one pass         state, write streams --^
//! ```
//!
//! Values of direct runs and of long write streams go to their zone at once, and the log holds
//! where they are: see [`placement`], [`direct_writer`] and [`crate::direct`]. What a commit waits
//! for is in [`room`]. Long batches to temporary branches skip log and memtable: [`batch_tables`].

mod absorb;
mod batch_tables;
#[cfg(test)]
mod batch_text;
mod direct_writer;
mod guards;
mod placement;
mod room;
mod segments;
mod write_stream;

pub(crate) use absorb::{AbsorbWriter, Absorber};
pub(crate) use direct_writer::DirectWriter;
pub(crate) use room::CommitRoom;

use crate::VtError;
use crate::buffer::Buffer;
use crate::cache::BlockCache;
use crate::commit_lock::{CommitLock, CommitState};
use crate::compaction::Level0Debt;
use crate::counters::VtCounters;
use crate::direct::DirectRun;
use crate::entry::{EntryRef, Op, RangeDelete};
use crate::gate::Gate;
use crate::memtable::Memtable;
use crate::options::VtOptions;
use crate::read::ReadPath;
use crate::signals::{Signals, Worker};
use crate::snapshots::{Hold, Snapshots};
use crate::space::SpaceLedger;
use crate::table::WrittenBlocks;
use crate::version::Version;
use crate::view::Views;
use placement::{Continued, Parts, Placement, PlacementState};
use segments::{Segments, Tally};
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Apart, MutexGuard};
use stitch_base::{ErrorKind, Lsn, Seqno, TreeId};
use stitch_format::logged_commit::{self, HEAD_BYTES, LogItem, LogItems, LoggedRun};
use stitch_kv::{Batch, CommitOptions, Guards, KvError, Limits, Message, Stretch};
use stitch_volume::{Volume, VolumeError};

/// Longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: u64 = 4 << 10;
/// Longest value or delta, in bytes.
pub(crate) const VALUE_BYTES_MAX: u64 = 1 << 20;
/// Largest batch, in bytes, where the backup log can take it.
const BATCH_BYTES_MAX: u64 = 8 << 20;

/// Commits batches to a store.
///
/// Invariants:
/// - a batch is in the log before it is in the memtable, and in the memtable before it is visible;
/// - from the append to the publication the lock of commits is not given up;
/// - what the write-out of a batch takes is promised before the batch is in the log.
pub(crate) struct Committer {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) options: VtOptions,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    /// To know the moments of guards.
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) views: Arc<Views>,
    /// The newest write that readers may see.
    pub(crate) visible: Arc<Apart<AtomicU64>>,
    /// Syncs that callers have asked for.
    pub(crate) asked_syncs: Apart<AtomicU64>,
    pub(crate) state: Arc<CommitLock>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) space: Arc<SpaceLedger>,
    /// What reads pay for level 0, which ends when the store is written to.
    pub(crate) level0: Arc<Level0Debt>,
    /// To note the gaps that a batch makes and parts.
    pub(crate) reads: Arc<ReadPath>,
    pub(crate) room: CommitRoom,
    pub(crate) direct: DirectWriter,
}

impl Committer {
    /// Takes the lock of commits: nothing is committed until it is given up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, CommitState> {
        self.state.lock()
    }

    /// What the engine takes.
    pub(crate) fn limits(&self) -> Limits {
        let record = self.volume.log().record_bytes_max();
        let batch_bytes_max = BATCH_BYTES_MAX.min(record - HEAD_BYTES as u64);
        // Any one message fits a batch, and any one entry a block in a run that is kept free.
        let in_batch = batch_bytes_max - KEY_BYTES_MAX - 64;
        let in_zone = self.space.run_bytes() - 2 * KEY_BYTES_MAX;
        debug_assert!(in_batch > 0 && in_zone > 0, "some message fits");
        debug_assert!(
            in_batch < batch_bytes_max,
            "a batch has more than its values"
        );
        Limits {
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max: VALUE_BYTES_MAX.min(in_batch).min(in_zone),
            batch_bytes_max,
        }
    }

    /// Commits a batch, with guards only if nothing under them has changed.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::commit`] and [`stitch_kv::Engine::commit_guarded`].
    pub(crate) fn commit(
        &self,
        batch: &Batch,
        guards: Option<&Guards>,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.gate.check_writable()?;
        let view = self.views.get();
        let mut segments = Segments::new();
        self.fill_segments(&mut segments, batch, &view.version)?;
        if options.sync {
            self.note_asked_sync();
        }
        let checked = match guards.filter(|guards| !guards.is_empty()) {
            Some(guards) => Some((guards, self.check_guards(guards)?)),
            None => None,
        };
        if batch.is_empty() {
            if options.sync {
                self.sync()?;
            }
            return Ok(Seqno(self.visible.load(Ordering::Acquire)));
        }
        self.level0.set_quiet(false);
        self.room
            .slow_down(batch.len_bytes() as u64, options.space, view);
        if checked.is_none()
            && let Some(seqno) = self.commit_as_tables(batch, &segments.tally, options)?
        {
            self.count_commit(batch, &segments.tally);
            return Ok(seqno);
        }
        let (seqno, end) = self.apply(batch, &mut segments, checked, options)?;
        debug_assert!(
            self.visible.load(Ordering::Acquire) >= seqno.0,
            "the batch is visible"
        );
        self.count_commit(batch, &segments.tally);
        if options.sync {
            let log = self.volume.log();
            log.sync(end).map_err(VtError::from)?;
            debug_assert!(log.durable_end() >= end, "the sync covers the record");
        }
        Ok(seqno)
    }

    fn count_commit(&self, batch: &Batch<'_>, tally: &Tally) {
        debug_assert!(!batch.is_empty(), "an empty batch is not committed");
        self.counters.commits.add(1);
        self.counters.put_messages.add(batch.count() as u64);
        self.counters.put_bytes.add(tally.data_bytes);
    }

    /// Counts a sync that a caller waits for. Syncs that the store makes of itself do not count.
    pub(crate) fn note_asked_sync(&self) {
        self.asked_syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Holds the moment of now: what is visible stays readable as it is.
    fn hold_now(&self) -> Arc<Hold> {
        self.snapshots.take(&self.visible)
    }

    /// Makes every commit that returned before durable.
    pub(crate) fn sync(&self) -> Result<(), VtError> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        let log = self.volume.log();
        let end = log.end()?;
        log.sync(end)?;
        debug_assert!(
            log.durable_end() >= end,
            "a sync covers what was there before it"
        );
        Ok(())
    }

    /// Checks everything that can be checked without a lock, and divides the batch into segments.
    fn fill_segments<'b>(
        &self,
        segments: &mut Segments<'b>,
        batch: &'b Batch<'_>,
        version: &Version,
    ) -> Result<(), KvError> {
        let limits = self.limits();
        limits.check_batch(batch)?;
        let options_of = |tree| Some(&version.trees.get(&tree)?.info.options);
        let check = |message: Message<'_>| limits.check_message(message, &self.options.upserts);
        segments.fill(batch, options_of, check)?;
        let Tally {
            longest_key,
            longest_operand,
            ..
        } = segments.tally;
        self.space.note_longest(longest_key, longest_operand);
        debug_assert!(
            longest_key <= limits.key_bytes_max,
            "each message was checked"
        );
        Ok(())
    }

    /// Checks a batch that goes to the log as a whole. Returns its figures.
    fn tally(&self, batch: &Batch<'_>, version: &Version) -> Result<Tally, KvError> {
        let mut segments = Segments::new();
        self.fill_segments(&mut segments, batch, version)?;
        Ok(segments.tally)
    }

    /// Appends, inserts and publishes. Returns the last sequence number and the end of the log.
    fn apply(
        &self,
        batch: &Batch,
        segments: &mut Segments<'_>,
        checked: Option<(&Guards, Seqno)>,
        options: CommitOptions,
    ) -> Result<(Seqno, Lsn), KvError> {
        let class = options.space;
        let mut commits = self.lock();
        let mut state = self.gather(&mut commits, batch, segments, options);
        let tally = &segments.tally;
        let mut placement = Placement::decide(batch, segments, &state);
        loop {
            if placement.run_bytes > 0 && !self.direct.has_room(placement.run_bytes, class) {
                state.has_zone_room = false;
                placement = Placement::decide(batch, segments, &state);
            }
            let active = self.room.make_room(&mut commits, placement.logged_bytes)?;
            let promise = (&placement, tally, class);
            let promised = self.room.promise(&mut commits, &active, promise)?;
            let Some(room) = promised else {
                continue;
            };
            if commits.is_paused {
                self.room.wait_while_paused(&mut commits)?;
                continue;
            }
            // From here on the lock is not given up before the batch is in.
            commits.check_trees(tally.trees.iter())?;
            if let Some((guards, checked)) = checked {
                self.check_guards_from(guards, checked)?;
            }
            debug_assert!(!commits.is_paused, "commits wait while tables are moved");
            let first = commits.last_seqno.next();
            let streams = &mut commits.streams;
            let of = (batch, &placement);
            let runs = match self.direct.write_runs(streams, of, (first, class)) {
                Ok(runs) => runs,
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    // Through the log it needs no long hole now.
                    state.has_zone_room = false;
                    placement = Placement::decide(batch, segments, &state);
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            let end = match self.log_commit(batch, &placement, first, &runs) {
                Ok(end) => end,
                Err(VolumeError::LogFull { .. }) => {
                    drop(runs);
                    self.room.make_log_room(&mut commits)?;
                    continue;
                }
                Err(other) => return Err(VtError::from(other).into()),
            };
            self.note_branches(&active.memtable, tally.trees.iter());
            let last = self.insert(&active, first, batch, &placement, runs);
            debug_assert!(
                active.log_start <= end,
                "the record is in the memtable's log"
            );
            commits.streams.note_followed(&active.memtable);
            active.note(&tally.trees, room, tally.has_deletes, last);
            self.note_gaps((&mut commits, &active), batch, tally, last);
            debug_assert_eq!(last.0 - commits.last_seqno.0, batch.count() as u64);
            commits.publish(last, &self.visible);
            debug_assert_eq!(commits.last_seqno, last, "readers see the batch");
            return Ok((last, end));
        }
    }

    /// Gathers what the placement of a batch depends on: the state of the store, and the write
    /// streams that segments continue.
    fn gather(
        &self,
        commits: &mut CommitState,
        batch: &Batch,
        segments: &mut Segments<'_>,
        options: CommitOptions,
    ) -> PlacementState {
        commits.streams.begin();
        let asked_syncs = self.asked_syncs.load(Ordering::Relaxed);
        let batch_bytes = batch.len_bytes() as u64;
        let unsynced_bytes = commits.unsynced.add(batch_bytes, asked_syncs);
        let state = PlacementState {
            run_bytes_min: self.options.direct_bytes_min,
            is_synced_soon: options.sync || unsynced_bytes < self.options.unsynced_bytes_min,
            has_zone_room: true,
        };
        if state.follows_streams(segments) {
            let view = self.views.get();
            let memtable = &view.active().memtable;
            let streams = &mut commits.streams;
            segments.continue_streams(|puts| {
                let (stream, bytes) = streams.follow(&puts.puts, memtable)?;
                Some(Continued { stream, bytes })
            });
        }
        state
    }

    /// Notes gaps that range deletes make, parts those that the batch puts something into, and
    /// follows rows of deletes.
    fn note_gaps(
        &self,
        (commits, active): (&mut CommitState, &Buffer),
        batch: &Batch,
        tally: &Tally,
        last: Seqno,
    ) {
        debug_assert!(last > commits.last_seqno, "the batch is not published yet");
        debug_assert!(batch.count() > 0, "a batch has messages");
        if tally.has_deletes {
            for (tree, message) in batch.messages() {
                self.reads.note_range_delete(active, tree, &message, last);
            }
        }
        // Of this batch, too, wherever in it: what was put before a range delete parts no less.
        let puts = batch
            .messages()
            .filter_map(|(tree, message)| match message {
                Message::Put { key, .. } | Message::Upsert { key, .. } => Some((tree, key)),
                Message::Delete { .. } | Message::DeleteRange { .. } => None,
            });
        self.reads.gaps.put(puts);
        if !tally.has_deletes {
            return;
        }
        let long = self.reads.gap_run_count();
        for (tree, message) in batch.messages() {
            if let Message::Delete { key } = message
                && let Some(hint) = commits.deletes.delete(tree, key, long)
            {
                self.reads.gaps.hint(hint);
                self.signals.wake(Worker::Gaps);
            }
        }
    }

    /// Appends a batch to the log, with where the runs are instead of their values.
    fn log_commit(
        &self,
        batch: &Batch,
        placement: &Placement,
        first: Seqno,
        runs: &[WrittenBlocks],
    ) -> Result<Lsn, VolumeError> {
        let head = logged_commit::head(first);
        if let (Parts::Logged(_), Some(bytes)) = (&placement.parts, batch.stretch().as_one()) {
            return self.append(&[&head, bytes], placement);
        }
        let mut items: Vec<Vec<u8>> = Vec::with_capacity(runs.len());
        let directs = placement
            .parts
            .iter()
            .filter_map(|part| Some((part.destination.direct_tree()?, part)));
        for ((tree, part), run) in directs.zip(runs) {
            debug_assert!(part.count > 0, "a run has puts");
            let (count, index) = (part.count, &run.index_payload());
            let mut item = Vec::new();
            LoggedRun { tree, count, index }.put(&mut item);
            debug_assert!(
                is_read_as_run(&head, &item, (tree, count)),
                "a replay reads the run"
            );
            items.push(item);
        }
        debug_assert_eq!(items.len(), runs.len(), "each run has an item");
        let mut items = items.iter();
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(placement.parts.len() + 1);
        pieces.push(&head);
        for part in placement.parts.iter() {
            match part.destination.direct_tree() {
                Some(_) => pieces.push(items.next().expect("each run has an item")),
                None => pieces.extend(batch.stretch().part(&part.range).pieces()),
            }
        }
        self.append(&pieces, placement)
    }

    /// Appends a record to the log.
    fn append(&self, pieces: &[&[u8]], placement: &Placement) -> Result<Lsn, VolumeError> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        debug_assert!(bytes <= placement.record_bytes_max(), "as was foreseen");
        debug_assert!(
            bytes > logged_commit::HEAD_BYTES as u64,
            "an empty one is a mark"
        );
        let end = self.volume.log().append(pieces)?;
        debug_assert!(end.0 > bytes, "a record has a header");
        self.counters.log_bytes.add(bytes);
        Ok(end)
    }

    /// Has a memtable filter the keys of those of these trees that are branches. The caller holds
    /// the lock of commits, and inserts entries of these trees next.
    fn note_branches(&self, memtable: &Memtable, trees: impl Iterator<Item = TreeId>) {
        for tree in trees.filter(|tree| memtable.lacks(*tree)) {
            let version = self.views.version();
            let is_branch = version.trees.get(&tree).is_some_and(|own| own.is_branch());
            if is_branch {
                memtable.filter_keys_of(tree);
            }
        }
    }

    /// Inserts the messages of a batch, the first with `first`. Answers the last sequence number.
    fn insert(
        &self,
        active: &Buffer,
        first: Seqno,
        batch: &Batch,
        placement: &Placement,
        runs: Vec<WrittenBlocks>,
    ) -> Seqno {
        let mut seqno = first;
        debug_assert!(first > active.last_seqno(), "numbers rise in a memtable");
        debug_assert!(
            std::ptr::eq(Arc::as_ptr(self.views.get().active()), active),
            "no memtable is sealed while the lock of commits is held"
        );
        let mut runs = runs.into_iter();
        for part in placement.parts.iter() {
            if let Some(tree) = part.destination.direct_tree() {
                let entries = runs.next().expect("each run was written").keep();
                let run = DirectRun::new(&self.volume, &self.cache, tree, entries);
                self.counters.direct_bytes.add(run.bytes());
                active.add_run(run);
            } else {
                let messages = batch.stretch().part(&part.range).messages();
                for (message, seqno) in messages.zip(seqno.0..) {
                    let (tree, message) = message.expect("a batch encoded its own messages");
                    insert_message(&active.memtable, tree, Seqno(seqno), message);
                }
            }
            debug_assert!(part.count > 0, "a part has messages");
            seqno = Seqno(seqno.0 + part.count);
        }
        assert!(seqno > first, "a batch has messages");
        assert!(runs.next().is_none(), "each run is in the memtable");
        let count = seqno.0 - first.0;
        debug_assert_eq!(count, batch.count() as u64, "a message has one number");
        Seqno(seqno.0 - 1)
    }
}

/// The puts of a run, which are nothing else.
fn puts<'a>(messages: Stretch<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    messages.messages().map(
        |message| match message.expect("a batch encoded its own messages") {
            (_, Message::Put { key, value }) => (key, value),
            _ => unreachable!("a run is of puts"),
        },
    )
}

/// Reports whether a replay reads an item of a log record as a run of this tree and length.
fn is_read_as_run(head: &[u8], item: &[u8], (tree, count): (TreeId, u64)) -> bool {
    let record = [head, item].concat();
    let read = LogItems::read(&record).map(|(_, mut items)| items.next());
    matches!(read, Ok(Some(Ok(LogItem::Run(run)))) if (run.tree, run.count) == (tree, count))
}

/// Inserts one message.
pub(crate) fn insert_message(
    memtable: &Memtable,
    tree: TreeId,
    seqno: Seqno,
    message: Message<'_>,
) {
    debug_assert!(tree.0 > 0, "tree 0 is never given out");
    debug_assert!(seqno.0 > 0, "0 is no number of a write");
    if let Message::DeleteRange { start, end } = message {
        let delete = RangeDelete {
            start: start.to_vec(),
            end: end.to_vec(),
            seqno,
        };
        memtable.insert_range_delete(tree, delete);
        return;
    }
    memtable.insert(tree, &entry_of(message, seqno));
}

/// Returns a message to a key as an entry.
#[inline]
fn entry_of<'b>(message: Message<'b>, seqno: Seqno) -> EntryRef<'b> {
    let (key, op) = match message {
        Message::Put { key, value } => (key, Op::Put(value)),
        Message::Delete { key } => (key, Op::Delete),
        Message::Upsert {
            key,
            function,
            delta,
        } => (key, Op::Upsert { function, delta }),
        Message::DeleteRange { .. } => unreachable!("a range delete is no entry"),
    };
    EntryRef { key, seqno, op }
}
