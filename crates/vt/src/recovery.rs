//! Opening a store.
//!
//! 1. The edits of the live base and its deltas give the version. No table is read.
//! 2. The runs of its tables rebuild the online-map. A byte with two owners is damage.
//! 3. The backup log is replayed into memtables. It ends before a record that no sync covered and
//!    whose values did not reach their zone.
//! 4. What is too much to hold is written out. Not before: first all that is in use must be known.
//!
//! Tables that were being written when the last life ended are in no version: their space is free.
//! Records of trees that were dropped since are skipped: tree numbers are never reused.

use crate::VtError;
use crate::batch_trees::BatchTrees;
use crate::buffer::{Buffer, Room};
use crate::commit::insert_message;
use crate::direct::DirectRun;
use crate::dropped::DroppedMoments;
use crate::member::{Member, explain};
use crate::options::{SEALED_COUNT_MAX, VtOptions};
use crate::pins::PinRecords;
use crate::pool::Pool;
use crate::sizing::Sizing;
use crate::store::Store;
use crate::version::{TreeVersion, Version, VersionBuilder, extents};
use crate::view::View;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{ErrorKind, Lsn, Seqno, TreeId};
use stitch_format::FormatError;
use stitch_format::logged_commit::{LogItem, LogItems, LoggedRun};
use stitch_format::superblock::{FEATURE_BRANCHES, FEATURE_PINS};
use stitch_format::vt_index::{IndexEntry, IndexLayout};
use stitch_format::vt_manifest::VersionEdit;
use stitch_kv::Message;
use stitch_volume::{Class, Opened, Replay, Volume};

impl Store {
    /// Finds what a volume holds, and writes nothing: nothing may be allocated before all that is
    /// in use is known. To be followed by [`Self::begin`].
    ///
    /// # Errors
    /// [`VtError`] if what is stored contradicts itself, or cannot be read.
    pub(crate) fn prepare(
        opened: Opened,
        options: VtOptions,
        pool: Arc<Pool<Member>>,
    ) -> Result<Self, VtError> {
        let Opened {
            volume,
            versions,
            log_start,
            ..
        } = opened;
        let (version, pins) = version_of(&versions)?;
        adopt(&volume, &version, &pool)?;
        let sizing = Arc::new(Sizing::new(&volume, &options));
        let view = View {
            buffers: vec![Arc::new(Buffer::empty(&sizing.opened, log_start))],
            version: Arc::new(version),
        };
        let store = Self::new(Arc::clone(&volume), options, sizing, view, log_start, pool);
        store.pins.restore(pins, &store.snapshots);
        store.branches.restore(&store.version(), &store.snapshots);
        for tree in store.version().trees.values() {
            store.space.note_tree(&tree.info.options);
        }
        // What was dropped in an earlier life may have left versions.
        let features = volume.superblock().incompatible;
        if features & (FEATURE_PINS | FEATURE_BRANCHES) != 0 {
            let dropped = DroppedMoments::up_to(store.version().last_seqno);
            store.snapshots.note_dropped(dropped);
        }
        let records = store.replay(&volume, log_start)?;
        store.skip_seen_seqnos();
        let last_seqno = store.committer.lock().last_seqno;
        tracing::info!(records, %last_seqno, "store found");
        Ok(store)
    }

    /// Writes out what of the log is too much to hold. From now on space is handed out.
    ///
    /// # Errors
    /// [`VtError`]; then the store takes no more writes.
    pub(crate) fn begin(&self) -> Result<(), VtError> {
        if !self.volume.is_read_only() {
            // Before a write-out: then the log may lose the record that says so.
            self.absorber.finish_replayed()?;
            while self.views.get().sealed_count() > SEALED_COUNT_MAX {
                match self.member.write_out_one() {
                    // They stay in memory and in the log, until something is deleted.
                    Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => {
                        break;
                    }
                    other => other?,
                };
            }
        }
        self.write_outs.hint_replayed();
        self.versions.fit_cache();
        self.pace.update(&self.views.get(), &self.sizing.opened);
        Ok(())
    }

    /// Gives out no number of a write that a pin or a branch sees. The log was synced up to there
    /// before it was made: it lacks such a write only if the device lost it.
    fn skip_seen_seqnos(&self) {
        let seen = self.pins.newest_seqno().max(self.branches.newest_seqno());
        let mut committer = self.committer.lock();
        if committer.last_seqno < seen {
            let found = committer.last_seqno;
            tracing::warn!(%found, %seen, "the log ends before a pin or branch: writes are lost");
            committer.last_seqno = seen;
            self.visible.store(seen.0, Ordering::Release);
        }
    }

    /// Replays the backup log. Answers the number of records.
    fn replay(&self, volume: &Volume, log_start: Lsn) -> Result<u64, VtError> {
        let mut records = 0u64;
        let mut at = log_start;
        let durable_end = OnceCell::new();
        volume.log().replay(log_start, &mut |end, payload: &[u8]| {
            let is_durable = || -> Result<bool, VtError> {
                if durable_end.get().is_none() {
                    let found = volume.log().known_durable()?;
                    let _ = durable_end.set(found);
                }
                Ok(durable_end.get().is_some_and(|durable| end <= *durable))
            };
            if !self.replay_record(at, payload, &is_durable)? {
                return Ok(Replay::EndsHere);
            }
            at = end;
            records += 1;
            Ok::<Replay, VtError>(Replay::Next)
        })?;
        Ok(records)
    }

    /// Replays a record. Answers false if it cannot count: it is not known to be durable, and a
    /// value of it is not whole.
    fn replay_record(
        &self,
        at: Lsn,
        payload: &[u8],
        is_durable: &dyn Fn() -> Result<bool, VtError>,
    ) -> Result<bool, VtError> {
        let damaged = |source: FormatError| VtError::Format {
            context: format!("backup log record at {at}"),
            source,
        };
        let (first, items) = LogItems::read(payload).map_err(damaged)?;
        let items: Vec<LogItem<'_>> = items.collect::<Result<_, _>>().map_err(damaged)?;
        self.make_replay_room(at, payload.len() as u64);
        let view = self.views.get();
        let trees = &view.version.trees;
        let Some(runs) = self.replayed_runs(trees, &items, is_durable, &damaged)? else {
            return Ok(false);
        };
        let mut committer = self.committer.lock();
        if first <= committer.last_seqno {
            let what = format!("log record at {at} goes back to write {first}");
            return Err(VtError::Version { what });
        }
        let mut replayed = Replayed {
            next: first,
            trees: BatchTrees::new(),
            has_deletes: false,
        };
        let mut runs = runs.into_iter();
        for item in &items {
            let (tree, count) = match item {
                LogItem::Message(tree, _) => (*tree, 1),
                LogItem::Run(run) => (run.tree, run.count),
                LogItem::Absorbed(tree) => (*tree, 0),
            };
            if tree >= view.version.next_tree {
                let what = format!("log record at {at} is of tree {tree}, which never was");
                return Err(VtError::Version { what });
            }
            if let LogItem::Absorbed(tree) = item {
                self.branches.note_absorbed(*tree);
            } else if trees.contains_key(&tree) {
                replayed.trees.insert(tree);
                match item {
                    LogItem::Message(_, message) => {
                        self.replay_message(view.active(), tree, message, replayed.next);
                        replayed.has_deletes |= matches!(
                            message,
                            Message::Delete { .. } | Message::DeleteRange { .. }
                        );
                    }
                    LogItem::Run(_) => {
                        let run = runs.next().expect("each run was looked at");
                        view.active().add_run(run);
                        self.reads.gaps.forget(tree);
                    }
                    LogItem::Absorbed(_) => unreachable!("it was noted above"),
                }
            }
            replayed.next = Seqno(replayed.next.0.saturating_add(count));
        }
        if replayed.next > first {
            committer.last_seqno = Seqno(replayed.next.0 - 1);
        }
        self.visible
            .store(committer.last_seqno.0, Ordering::Release);
        self.note_replayed(view.active(), &replayed, payload, committer.last_seqno);
        Ok(true)
    }

    /// Inserts a message, and notes what it means for gaps as its commit did.
    fn replay_message(&self, active: &Buffer, tree: TreeId, message: &Message<'_>, at: Seqno) {
        let operand_bytes = match message {
            Message::Put { value, .. } => value.len(),
            Message::Upsert { delta, .. } => delta.len(),
            Message::Delete { .. } | Message::DeleteRange { .. } => 0,
        };
        self.space
            .note_longest(message.key().len() as u64, operand_bytes as u64);
        insert_message(&active.memtable, tree, at, *message);
        match message {
            Message::Put { key, .. } | Message::Upsert { key, .. } => {
                self.reads.gaps.put(std::iter::once((tree, *key)));
            }
            Message::DeleteRange { .. } => self.reads.note_range_delete(active, tree, message, at),
            Message::Delete { .. } => {}
        }
    }

    /// The runs of a record, of trees that are still there; `None` if one is not as it was written
    /// and may never have been.
    fn replayed_runs(
        &self,
        trees: &BTreeMap<TreeId, Arc<TreeVersion>>,
        items: &[LogItem<'_>],
        is_durable: &dyn Fn() -> Result<bool, VtError>,
        damaged: &dyn Fn(FormatError) -> VtError,
    ) -> Result<Option<Vec<DirectRun>>, VtError> {
        let mut runs = Vec::new();
        for item in items {
            let LogItem::Run(logged) = item else {
                continue;
            };
            if !trees.contains_key(&logged.tree) {
                continue;
            }
            let entries = logged_entries(logged).map_err(damaged)?;
            let origin = entries.iter().map(|entry| entry.origin).max();
            self.tables.skip_ids(origin.expect("an index is not empty"));
            let run = DirectRun::new(&self.volume, &self.cache, logged.tree, entries);
            // What is durable and damaged is an error for who reads it.
            if !is_durable()?
                && let Err(error) = run.blocks.verify()
            {
                if error.kind() != ErrorKind::Corrupt {
                    return Err(error);
                }
                tracing::info!(%error, "a value that was never synced is lost");
                return Ok(None);
            }
            runs.push(run);
        }
        for run in &runs {
            let wanted = extents(&run.extents);
            let adopted = self.volume.zones().adopt(&wanted).map_err(VtError::from);
            adopted.map_err(|e| explain(&self.member.pool, e, self.volume.name(), &wanted))?;
        }
        Ok(Some(runs))
    }

    /// Space for what is replayed was promised by the last life; it is promised again.
    fn note_replayed(&self, active: &Buffer, replayed: &Replayed, payload: &[u8], last: Seqno) {
        let overhead = active.new_trees(&replayed.trees) * crate::buffer::TABLE_OVERHEAD_BYTES;
        let bytes = payload.len() as u64;
        let needed = bytes + bytes / 8 + overhead;
        if let Ok(room) = self.volume.space().reserve(needed, Class::Internal) {
            active.add_room(room);
        }
        let used = Room {
            bytes: needed,
            page_bytes: 0,
        };
        active.note(&replayed.trees, used, replayed.has_deletes, last);
    }

    fn make_replay_room(&self, at: Lsn, bytes: u64) {
        let view = self.views.get();
        let active = view.active();
        if active.is_full_for(bytes, &self.sizing.opened) && !active.is_empty() {
            let fresh = Arc::new(Buffer::new(active.memtable.fresh(), at));
            self.views.change(|view| view.buffers.insert(0, fresh));
        }
    }
}

/// What a record amounted to.
struct Replayed {
    /// The sequence number after it.
    next: Seqno,
    trees: BatchTrees,
    has_deletes: bool,
}

/// The index entries of a run, in order.
fn logged_entries(logged: &LoggedRun<'_>) -> Result<Vec<IndexEntry>, FormatError> {
    let layout = IndexLayout::read(logged.index)?;
    let mut entries: Vec<IndexEntry> = Vec::with_capacity(layout.entry_count().min(1024));
    let mut count = 0;
    for number in 0..layout.entry_count() {
        let entry = layout.entry(logged.index, number)?.to_owned();
        if entries
            .last()
            .is_some_and(|before| before.last >= entry.first)
        {
            return Err(wrong_run("keys", "in order", "not"));
        }
        count += u64::from(entry.entry_count);
        entries.push(entry);
    }
    let mut places: Vec<(u64, u64)> = entries
        .iter()
        .map(|entry| (entry.block.addr, entry.block.end()))
        .collect();
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(wrong_run("blocks", "apart", "one inside another"));
    }
    if count != logged.count {
        let (expected, found) = (logged.count.to_string(), count.to_string());
        return Err(wrong_run("count", &expected, &found));
    }
    Ok(entries)
}

fn wrong_run(field: &'static str, expected: &str, found: &str) -> FormatError {
    FormatError::Field {
        record: "direct run",
        field,
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

fn version_of(edits: &[Vec<u8>]) -> Result<(Version, PinRecords), VtError> {
    let mut builder = VersionBuilder::new(Version::empty());
    let mut pins = PinRecords::default();
    for (index, bytes) in edits.iter().enumerate() {
        let edit = VersionEdit::decode(bytes).map_err(|source| VtError::Format {
            context: format!("edit {index} of the live version"),
            source,
        })?;
        pins.apply(&edit.pins)?;
        builder.take_over(edit)?;
    }
    let version = builder.finish()?;
    pins.check(&version)?;
    Ok((version, pins))
}

fn adopt(volume: &Volume, version: &Version, pool: &Pool<Member>) -> Result<(), VtError> {
    // All at once, so that each zone is gone through in order, and once.
    let runs = version.tables().flat_map(|(_, t)| extents(&t.meta().runs));
    let wanted = runs.collect::<Vec<_>>();
    let adopted = volume.zones().adopt(&wanted).map_err(VtError::from);
    adopted.map_err(|error| explain(pool, error, volume.name(), &wanted))
}

#[cfg(test)]
mod tests;
