//! Commits.
//!
//! 1. The batch is checked: sizes, trees, upsert functions. The writer is slowed if it must be.
//! 2. Under the committer's lock: room in the memtable and promised space are made sure of, the
//!    messages get their sequence numbers, the batch is appended to the backup log, inserted into
//!    the memtable, and published. With guards, what they name is checked first: see [`guards`].
//! 3. Outside the lock, where asked for: the log is synced. Syncs of several commits are one.
//!
//! Long runs of puts go to their zone at once, and the log holds where they are: see
//! [`crate::direct`].

mod absorb;
mod divided;
mod guards;
mod room;
mod write_stream;

use crate::VtError;
use crate::batch_trees::BatchTrees;
use crate::buffer::{Buffer, TABLE_OVERHEAD_BYTES};
use crate::committer::Committer;
use crate::compaction::Pressure;
use crate::direct::{Direct, DirectRun, Puts, divide};
use crate::entry::{EntryRef, Op, RangeDelete};
use crate::memtable::Memtable;
use crate::signals::Worker;
use crate::store::Store;
use crate::table::{NewTable, WrittenBlocks};
use crate::version::Version;
use crate::view::View;
use divided::{Divided, Parts};
use room::is_value_block;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::sync::MutexGuard;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{ErrorKind, Lsn, Seqno, TreeId};
use stitch_format::logged_commit::{self, HEAD_BYTES, LoggedRun};
use stitch_format::vt_index::value_block_bytes;
use stitch_kv::{
    Batch, CommitOptions, Guards, KvError, Limits, Message, SpaceClass, Stretch, TreeInfo,
};
use stitch_volume::{PAGE_BYTES, Stream, VolumeError};

/// Longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: u64 = 4 << 10;
/// Longest value or delta, in bytes.
pub(crate) const VALUE_BYTES_MAX: u64 = 1 << 20;
/// Largest batch, in bytes, where the backup log can take it.
const BATCH_BYTES_MAX: u64 = 8 << 20;
/// What commits write at once lies together.
const DIRECT_STREAM: Stream = Stream(3);
/// What a value block takes beyond its value: padding, and an index entry without the key.
const VALUE_BLOCK_OVERHEAD_BYTES: u64 = 512 + 64;

/// What a batch amounts to.
struct Tally {
    trees: BatchTrees,
    data_bytes: u64,
    has_deletes: bool,
    /// Bytes that value blocks will take beyond what is put.
    overhead_bytes: u64,
    /// Bytes of value blocks that are of whole pages: they need no run longer than themselves.
    page_bytes: u64,
    /// The longest of these.
    pages_run: u64,
}

impl Store {
    /// What the engine takes.
    pub(crate) fn limits(&self) -> Limits {
        let record = self.volume.log().record_bytes_max();
        let batch_bytes_max = BATCH_BYTES_MAX.min(record - HEAD_BYTES as u64);
        // Any one message fits a batch, and any one entry a block in a run that is kept free.
        let in_batch = batch_bytes_max - KEY_BYTES_MAX - 64;
        let in_zone = self.space.run_bytes() - 2 * KEY_BYTES_MAX;
        Limits {
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max: VALUE_BYTES_MAX.min(in_batch).min(in_zone),
            batch_bytes_max,
        }
    }

    /// Commits a batch.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::commit`].
    pub(crate) fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        self.commit_if(batch, None, options)
    }

    /// Commits a batch if nothing under the guards has changed.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::commit_guarded`].
    pub(crate) fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let guards = (!guards.is_empty()).then_some(guards);
        self.commit_if(batch, guards, options)
    }

    fn commit_if(
        &self,
        batch: &Batch,
        guards: Option<&Guards>,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.check_writable()?;
        let view = self.views.get();
        let tally = self.tally(batch, &view.version)?;
        if options.sync {
            self.note_asked_sync();
        }
        let checked = match guards {
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
        self.slow_down(batch.len_bytes() as u64, options.space, view);
        let (seqno, end) = self.apply(batch, &tally, checked, options)?;
        self.counters.commits.add(1);
        self.counters.put_messages.add(batch.count() as u64);
        self.counters.put_bytes.add(tally.data_bytes);
        if options.sync {
            self.volume.log().sync(end).map_err(VtError::from)?;
        }
        Ok(seqno)
    }

    /// Notes that somebody waits for a sync: not one that the store makes of itself.
    pub(crate) fn note_asked_sync(&self) {
        self.asked_syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes every commit that returned before durable.
    pub(crate) fn sync(&self) -> Result<(), VtError> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        let end = self.volume.log().end()?;
        Ok(self.volume.log().sync(end)?)
    }

    /// Checks everything that can be checked without a lock.
    fn tally(&self, batch: &Batch, version: &Version) -> Result<Tally, KvError> {
        let limits = self.limits();
        limits.check_batch(batch)?;
        let mut tally = Tally {
            trees: BatchTrees::new(),
            data_bytes: 0,
            has_deletes: false,
            overhead_bytes: 0,
            page_bytes: 0,
            pages_run: 0,
        };
        // Of operands, those that go into blocks with others, or do not take whole pages.
        let (mut longest_key, mut longest_operand) = (0, 0);
        for (tree, message) in batch.messages() {
            limits.check_message(message, &self.options.upserts)?;
            let operand = message.operand();
            let key_bytes = message.key().len() as u64;
            longest_key = longest_key.max(key_bytes);
            tally.data_bytes += (message.key().len() + operand.len()) as u64;
            tally.has_deletes |= matches!(
                message,
                Message::Delete { .. } | Message::DeleteRange { .. }
            );
            let is_block = is_value_block(version, tree, &message);
            if is_block {
                tally.overhead_bytes += key_bytes + VALUE_BLOCK_OVERHEAD_BYTES;
            }
            let block_bytes = value_block_bytes(operand.len() as u64);
            if is_block && block_bytes.is_multiple_of(PAGE_BYTES) {
                tally.page_bytes += operand.len() as u64;
                tally.pages_run = tally.pages_run.max(block_bytes);
            } else {
                longest_operand = longest_operand.max(operand.len() as u64);
            }
            tally.trees.insert(tree);
        }
        self.space.note_longest(longest_key, longest_operand);
        Ok(tally)
    }

    /// Takes the view, so that nothing is held while a commit waits.
    fn slow_down(&self, bytes: u64, class: SpaceClass, view: Arc<View>) {
        if !self.options.background {
            return;
        }
        let delay = self.pace.delay(
            (bytes, class),
            &view,
            &self.sizing.opened,
            &*self.options.clock,
        );
        drop(view);
        if !delay.is_zero() {
            self.options.clock.sleep(delay);
            let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
            self.counters.paced_us.add(us);
        }
    }

    /// Appends, inserts and publishes. Answers the last sequence number and the log's end.
    fn apply(
        &self,
        batch: &Batch,
        tally: &Tally,
        checked: Option<(&Guards, Seqno)>,
        options: CommitOptions,
    ) -> Result<(Seqno, Lsn), KvError> {
        let class = options.space;
        let mut committer = self.committer.lock();
        let mut divided = self.divided(&mut committer, batch, tally, options);
        loop {
            if divided.run_bytes > 0 && !self.has_direct_room(divided.run_bytes, class) {
                divided = Divided::whole(batch);
            }
            let active = self.make_room(&mut committer, divided.logged_bytes)?;
            let promised = self.promise(&mut committer, &active, &divided, tally, class)?;
            let Some(room) = promised else {
                continue;
            };
            if committer.is_paused {
                self.wait_while_paused(&mut committer)?;
                continue;
            }
            // From here on the lock is not given up before the batch is in.
            if let Some(gone) = tally.trees.iter().find(|t| !committer.trees.contains(t)) {
                return Err(KvError::NoTree(gone));
            }
            if let Some((guards, checked)) = checked {
                self.check_guards_from(guards, checked)?;
            }
            let first = committer.last_seqno.next();
            let runs = match self.write_runs(&mut committer, batch, &divided, (first, class)) {
                Ok(runs) => runs,
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    // Through the log it needs no long hole now.
                    divided = Divided::whole(batch);
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            let end = match self.log_commit(batch, &divided, first, &runs) {
                Ok(end) => end,
                Err(VolumeError::LogFull { .. }) => {
                    drop(runs);
                    self.make_log_room(&mut committer)?;
                    continue;
                }
                Err(other) => return Err(VtError::from(other).into()),
            };
            let last = self.insert(&active, first, batch, &divided, runs);
            committer.streams.note_followed(&active.memtable);
            active.note(&tally.trees, room, tally.has_deletes, last);
            self.note_gaps((&mut committer, &active), batch, tally, last);
            committer.last_seqno = last;
            self.visible.store(last.0, Ordering::Release);
            return Ok((last, end));
        }
    }

    /// Decides what of a batch goes to its zone at once.
    fn divided(
        &self,
        committer: &mut Committer,
        batch: &Batch,
        tally: &Tally,
        options: CommitOptions,
    ) -> Divided {
        committer.streams.begin();
        let bytes_min = self.options.direct_bytes_min;
        let asked_syncs = self.asked_syncs.load(Ordering::Relaxed);
        let unsynced_bytes = committer
            .unsynced
            .add(batch.len_bytes() as u64, asked_syncs);
        // Who waits for a sync of a little waits for fewer writes where it is in the log.
        let is_synced_soon = options.sync || unsynced_bytes < self.options.unsynced_bytes_min;
        let follows_streams = tally.overhead_bytes > 0 && bytes_min < u64::MAX && !is_synced_soon;
        if !follows_streams && (batch.len_bytes() as u64) < bytes_min {
            return Divided::whole(batch);
        }
        let view = self.views.get();
        let memtable = &view.active().memtable;
        let mut follow = |puts: &Puts<'_>| {
            let options = view.version.trees.get(&puts.tree).map(|t| &t.info.options);
            let are_blocks = options.is_some_and(|o| o.has_value_block(puts.value_bytes_min));
            if !follows_streams || !are_blocks {
                return None;
            }
            let (stream, before) = committer.streams.follow(puts, memtable)?;
            (before >= bytes_min).then_some(stream)
        };
        let parts = divide(batch, bytes_min, &mut follow);
        Divided::of(batch, Parts::Some(parts))
    }

    /// Notes gaps that range deletes make, parts those that the batch puts something into, and
    /// follows rows of deletes.
    fn note_gaps(
        &self,
        (committer, active): (&mut Committer, &Buffer),
        batch: &Batch,
        tally: &Tally,
        last: Seqno,
    ) {
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
                && let Some(hint) = committer.deletes.delete(tree, key, long)
            {
                self.reads.gaps.hint(hint);
                self.signals.wake(Worker::Gaps);
            }
        }
    }

    /// True if what goes to its zone at once finds long holes there, beside all that is promised.
    fn has_direct_room(&self, bytes: u64, class: SpaceClass) -> bool {
        let needed = bytes + bytes / 8 + TABLE_OVERHEAD_BYTES;
        needed <= self.space.roomy_bytes(class) && needed <= self.space.free_bytes(class)
    }

    /// Writes the runs of a batch to their zones.
    fn write_runs(
        &self,
        committer: &mut Committer,
        batch: &Batch,
        divided: &Divided,
        (first, class): (Seqno, SpaceClass),
    ) -> Result<Vec<WrittenBlocks>, VtError> {
        let mut runs = Vec::new();
        if divided.direct_bytes == 0 {
            return Ok(runs);
        }
        let mut seqno = first;
        let version = self.version();
        for part in divided.parts.iter() {
            let messages = batch.stretch().part(&part.place);
            match part.direct {
                Some(Direct {
                    stream: Some(stream),
                    ..
                }) => {
                    runs.push(self.write_stream(committer, stream, messages, (seqno, class))?);
                }
                Some(direct) => {
                    let tree = &version.trees[&direct.tree].info;
                    runs.push(self.write_run(tree, messages, seqno)?);
                }
                None => {}
            }
            seqno = Seqno(seqno.0 + part.count);
        }
        Ok(runs)
    }

    /// Writes puts as the data blocks of a table.
    fn write_run(
        &self,
        tree: &TreeInfo,
        messages: Stretch<'_>,
        first: Seqno,
    ) -> Result<WrittenBlocks, VtError> {
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

    /// Appends a batch to the log, with where the runs are instead of their values.
    fn log_commit(
        &self,
        batch: &Batch,
        divided: &Divided,
        first: Seqno,
        runs: &[WrittenBlocks],
    ) -> Result<Lsn, VolumeError> {
        let head = logged_commit::head(first);
        if let (Parts::Whole(_), Some(bytes)) = (&divided.parts, batch.stretch().as_one()) {
            return self.append(&[&head, bytes], divided);
        }
        let mut items: Vec<Vec<u8>> = Vec::with_capacity(runs.len());
        let directs = divided
            .parts
            .iter()
            .filter_map(|p| p.direct.map(|direct| (direct.tree, p)));
        for ((tree, part), run) in directs.zip(runs) {
            let (count, index) = (part.count, &run.index_payload());
            let mut item = Vec::new();
            LoggedRun { tree, count, index }.put(&mut item);
            items.push(item);
        }
        let mut items = items.iter();
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(divided.parts.len() + 1);
        pieces.push(&head);
        for part in divided.parts.iter() {
            match part.direct {
                Some(_) => pieces.push(items.next().expect("each run has an item")),
                None => pieces.extend(batch.stretch().part(&part.place).pieces()),
            }
        }
        self.append(&pieces, divided)
    }

    /// Appends a record to the log.
    fn append(&self, pieces: &[&[u8]], divided: &Divided) -> Result<Lsn, VolumeError> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        debug_assert!(bytes <= divided.record_bytes_max(), "as was foreseen");
        let end = self.volume.log().append(pieces)?;
        self.counters.log_bytes.add(bytes);
        Ok(end)
    }

    /// Seals the active memtable. The caller holds the committer's lock.
    pub(crate) fn seal(&self, committer: &mut Committer) -> Result<(), VtError> {
        let end = self.volume.log().end()?;
        let active = Arc::clone(self.views.get().active());
        committer.streams.seal(&active.memtable);
        let fresh = Arc::new(Buffer::new(active.memtable.fresh(), end));
        let view = self.views.change(|view| {
            debug_assert!(!view.active().is_empty(), "something is sealed");
            view.buffers.insert(0, fresh);
        });
        self.pace.update(&view, &self.sizing.now());
        self.signals.wake(Worker::WriteOut);
        Ok(())
    }

    /// Inserts the messages of a batch, the first with `first`. Answers the last sequence number.
    fn insert(
        &self,
        active: &Buffer,
        first: Seqno,
        batch: &Batch,
        divided: &Divided,
        runs: Vec<WrittenBlocks>,
    ) -> Seqno {
        let mut seqno = first;
        let mut runs = runs.into_iter();
        for part in divided.parts.iter() {
            if let Some(direct) = part.direct {
                let entries = runs.next().expect("each run was written").keep();
                let run = DirectRun::new(&self.volume, &self.cache, direct.tree, entries);
                self.counters.direct_bytes.add(run.bytes());
                active.add_run(run);
            } else {
                let messages = batch.stretch().part(&part.place).messages();
                for (message, seqno) in messages.zip(seqno.0..) {
                    let (tree, message) = message.expect("a batch encoded its own messages");
                    insert_message(&active.memtable, tree, Seqno(seqno), message);
                }
            }
            seqno = Seqno(seqno.0 + part.count);
        }
        assert!(seqno > first, "a batch has messages");
        Seqno(seqno.0 - 1)
    }

    /// What the threads would do, so that level 0 stays bounded without them.
    pub(crate) fn work_inline(&self) -> Result<(), VtError> {
        self.write_out_one()?;
        let bound =
            2 * self.sizing.opened.pick.level0_tables + self.sizing.opened.level0_tables_max;
        let version = self.version();
        if version
            .trees
            .values()
            .any(|t| t.levels[0].tables.len() > bound)
        {
            self.compactor.compact_one(Pressure::Shape)?;
        }
        Ok(())
    }

    /// Waits until fewer than `sealed` sealed memtables are left, or writes one out where no thread
    /// does.
    fn wait_for_write_out(
        &self,
        committer: &mut MutexGuard<'_, Committer>,
        sealed: usize,
    ) -> Result<(), VtError> {
        if !self.options.background {
            return MutexGuard::unlocked(committer, || self.work_inline());
        }
        let begin = self.options.clock.monotonic();
        debug_assert!(sealed > 0, "something is waited for");
        while self.views.get().sealed_count() >= sealed {
            self.check_writable()?;
            if self.lacks_space.load(Ordering::Relaxed) {
                // Not for ever: this succeeds, or says that there is none.
                MutexGuard::unlocked(committer, || self.write_out_one())?;
                continue;
            }
            self.signals.wake(Worker::WriteOut);
            self.gate.wait(committer, Duration::from_millis(20));
        }
        self.count_wait(begin);
        Ok(())
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

/// Inserts one message.
pub(crate) fn insert_message(
    memtable: &Memtable,
    tree: TreeId,
    seqno: Seqno,
    message: Message<'_>,
) {
    let (key, op) = match message {
        Message::Put { key, value } => (key, Op::Put(value)),
        Message::Delete { key } => (key, Op::Delete),
        Message::Upsert {
            key,
            function,
            delta,
        } => (key, Op::Upsert { function, delta }),
        Message::DeleteRange { start, end } => {
            let delete = RangeDelete {
                start: start.to_vec(),
                end: end.to_vec(),
                seqno,
            };
            memtable.insert_range_delete(tree, delete);
            return;
        }
    };
    memtable.insert(tree, &EntryRef { key, seqno, op });
}
