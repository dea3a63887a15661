//! Replays the backup log into the memtables of a store that is being opened.
//!
//! A record is replayed as it was committed: sequence numbers rise, its messages go to the active
//! memtable, and what it put counts for gaps and for the longest key. Records of trees that were
//! dropped since are skipped.

use crate::VtError;
use crate::batch_trees::BatchTrees;
use crate::branches::Branches;
use crate::buffer::{Buffer, Room, TABLE_OVERHEAD_BYTES};
use crate::commit::{Committer, insert_message};
use crate::direct::DirectRun;
use crate::member::{Member, explain};
use crate::pool::Pool;
use crate::sizing::Sizing;
use crate::store::Store;
use crate::tables::Tables;
use crate::version::{TreeVersion, extents};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{ErrorKind, Lsn, Seqno, TreeId};
use stitch_format::FormatError;
use stitch_format::logged_commit::{LogItem, LogItems, LoggedRun, is_closing_mark};
use stitch_format::vt_index::{IndexEntry, IndexLayout};
use stitch_kv::Message;
use stitch_volume::{Class, Replay};

/// Replays the backup log.
///
/// Invariants:
/// - a record is replayed as a whole or not at all, and none after the first that is not;
/// - nothing is written.
pub(super) struct LogReplay<'a> {
    /// Does the commits again.
    committer: &'a Committer,
    tables: &'a Tables,
    /// To note branches that records have absorbed.
    branches: &'a Branches,
    sizing: &'a Sizing,
    pool: &'a Pool<Member>,
    /// The end of the log up to which it is known to be durable, once it was asked for.
    durable_end: OnceCell<Lsn>,
}

impl<'a> LogReplay<'a> {
    /// Returns the replay of a store that was not used yet.
    pub(super) fn new(store: &'a Store) -> Self {
        debug_assert!(
            store.views.get().active().is_empty(),
            "nothing was replayed"
        );
        Self {
            committer: &store.committer,
            tables: &store.tables,
            branches: &store.branches,
            sizing: &store.sizing,
            pool: &store.member.pool,
            durable_end: OnceCell::new(),
        }
    }

    /// Replays the log from `log_start` on.
    ///
    /// # Errors
    /// [`VtError`] if a record contradicts the version or itself, or cannot be read.
    pub(super) fn run(&self, log_start: Lsn) -> Result<ReplayedLog, VtError> {
        let mut found = ReplayedLog::default();
        let mut at = log_start;
        let log = self.committer.volume.log();
        log.replay(log_start, &mut |end, payload: &[u8]| {
            debug_assert!(at <= end, "records follow each other");
            let is_mark = is_closing_mark(payload);
            if !is_mark && !self.replay_record((at, end), payload)? {
                return Ok(Replay::EndsHere);
            }
            at = end;
            found.records += u64::from(!is_mark);
            found.is_marked = is_mark;
            Ok::<Replay, VtError>(Replay::Next)
        })?;
        Ok(found)
    }

    /// Reports whether the log is known to be durable up to `end`. Asked only where a record has
    /// runs: to know it may take reads.
    fn is_durable(&self, end: Lsn) -> Result<bool, VtError> {
        let known = match self.durable_end.get() {
            Some(known) => *known,
            None => {
                let found = self.committer.volume.log().known_durable()?;
                *self.durable_end.get_or_init(|| found)
            }
        };
        Ok(end <= known)
    }

    /// Replays a record. Returns false if it cannot count: it is not known to be durable, and a
    /// value of it is not whole.
    fn replay_record(&self, (at, end): (Lsn, Lsn), payload: &[u8]) -> Result<bool, VtError> {
        let damaged = |source: FormatError| VtError::Format {
            context: format!("backup log record at {at}"),
            source,
        };
        let (first, items) = LogItems::read(payload).map_err(damaged)?;
        let items: Vec<LogItem<'_>> = items.collect::<Result<_, _>>().map_err(damaged)?;
        self.make_room(at, payload.len() as u64);
        let view = self.committer.views.get();
        let trees = &view.version.trees;
        let Some(runs) = self.replayed_runs(trees, &items, end, &damaged)? else {
            return Ok(false);
        };
        let mut commits = self.committer.lock();
        debug_assert!(
            !commits.is_paused,
            "nothing is absorbed while a store is opened"
        );
        if first <= commits.last_seqno {
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
            } else if let Some(own) = trees.get(&tree) {
                replayed.note_tree(own, view.active());
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
                        self.committer.reads.gaps.forget(tree);
                    }
                    LogItem::Absorbed(_) => unreachable!("it was noted above"),
                }
            }
            replayed.next = Seqno(replayed.next.0.saturating_add(count));
        }
        debug_assert!(replayed.next >= first, "sequence numbers rise");
        debug_assert!(runs.next().is_none(), "each run is in a memtable");
        if replayed.next > first {
            commits.publish(Seqno(replayed.next.0 - 1), &self.committer.visible);
        }
        self.note_replayed(view.active(), &replayed, payload, commits.last_seqno);
        Ok(true)
    }

    /// Inserts a message, and notes what it means for gaps as its commit did.
    fn replay_message(&self, active: &Buffer, tree: TreeId, message: &Message<'_>, at: Seqno) {
        let operand_bytes = match message {
            Message::Put { value, .. } => value.len(),
            Message::Upsert { delta, .. } => delta.len(),
            Message::Delete { .. } | Message::DeleteRange { .. } => 0,
        };
        self.committer
            .space
            .note_longest(message.key().len() as u64, operand_bytes as u64);
        insert_message(&active.memtable, tree, at, *message);
        match message {
            Message::Put { key, .. } | Message::Upsert { key, .. } => {
                self.committer.reads.gaps.put(std::iter::once((tree, *key)));
            }
            Message::DeleteRange { .. } => self
                .committer
                .reads
                .note_range_delete(active, tree, message, at),
            Message::Delete { .. } => {}
        }
    }

    /// The runs of a record, of trees that are still there; `None` if one is not as it was written
    /// and may never have been.
    fn replayed_runs(
        &self,
        trees: &BTreeMap<TreeId, Arc<TreeVersion>>,
        items: &[LogItem<'_>],
        end: Lsn,
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
            let committer = self.committer;
            let entries = logged_entries(logged).map_err(damaged)?;
            let origin = entries.iter().map(|entry| entry.origin).max();
            debug_assert!(
                entries.is_sorted_by(|entry, next| entry.last < next.first),
                "entries were checked"
            );
            self.tables.skip_ids(origin.expect("an index is not empty"));
            let run = DirectRun::new(&committer.volume, &committer.cache, logged.tree, entries);
            // A read of what is durable and damaged returns the error.
            if !self.is_durable(end)?
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
        let volume = &self.committer.volume;
        for run in &runs {
            let wanted = extents(&run.extents);
            let adopted = volume.zones().adopt(&wanted).map_err(VtError::from);
            adopted.map_err(|e| explain(self.pool, e, volume.name(), &wanted))?;
        }
        Ok(Some(runs))
    }

    /// Space for what is replayed was promised by the last life; it is promised again.
    fn note_replayed(&self, active: &Buffer, replayed: &Replayed, payload: &[u8], last: Seqno) {
        let overhead = active.new_trees(&replayed.trees) * TABLE_OVERHEAD_BYTES;
        let bytes = payload.len() as u64;
        let needed = bytes + bytes / 8 + overhead;
        debug_assert!(needed >= bytes, "a table takes no less than what is in it");
        debug_assert!(last >= active.last_seqno(), "records are replayed in order");
        if let Ok(room) = self
            .committer
            .volume
            .space()
            .reserve(needed, Class::Internal)
        {
            active.add_room(room);
        }
        let used = Room {
            bytes: needed,
            page_bytes: 0,
        };
        active.note(&replayed.trees, used, replayed.has_deletes, last);
    }

    /// Begins the next memtable before a record that the active one has no room for.
    fn make_room(&self, at: Lsn, bytes: u64) {
        let view = self.committer.views.get();
        let active = view.active();
        debug_assert!(active.log_start <= at, "memtables are in the log's order");
        if active.is_full_for(bytes, &self.sizing.opened) && !active.is_empty() {
            let fresh = Arc::new(Buffer::new(active.memtable.fresh(), at));
            self.committer
                .views
                .change(|view| view.buffers.insert(0, fresh));
        }
    }
}

/// What a log amounted to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplayedLog {
    /// Number of commits.
    pub(super) records: u64,
    /// The last record is a closing mark.
    pub(super) is_marked: bool,
}

/// What a record amounted to.
struct Replayed {
    /// The sequence number after it.
    next: Seqno,
    trees: BatchTrees,
    has_deletes: bool,
}

impl Replayed {
    /// Notes a tree that the record writes to. As in a commit, the memtable filters the keys of a
    /// branch.
    fn note_tree(&mut self, tree: &TreeVersion, active: &Buffer) {
        let id = tree.info.id;
        self.trees.insert(id);
        if tree.is_branch() {
            active.memtable.filter_keys_of(id);
            debug_assert!(active.memtable.may_hold(id), "the tree is marked");
        }
    }
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
    debug_assert_eq!(entries.len(), layout.entry_count(), "all of them");
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

#[cfg(test)]
mod tests;
