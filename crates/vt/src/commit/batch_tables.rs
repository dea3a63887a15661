//! Batches to temporary branch trees that become tables at once, without log and memtable.
//!
//! 1. The batch is long. All its trees are temporary ([`crate::version`]), and what it has of each
//!    is in order: deleted ranges, then keys, each once. No memtable has an entry of these trees:
//!    reads look there first.
//! 2. Space is promised, and the tables are written with sequence numbers from 1 on. No lock is
//!    held.
//! 3. With the locks of installs and of commits, the tables get a shift, so that they are newer
//!    than all that was committed before. They enter their trees, and are visible.
//!
//! ```text
//! batch    tree 7: 31000 puts              tree 9: 200 puts
//! tables   1 .. 31000, shift 500           31001 .. 31200, shift 500
//!          501 .. 31500                    31501 .. 31700
//! ```
//!
//! A table enters level 1 where it overlaps no other one of its tree, as batches in the order of
//! keys do: an absorb then moves it as it is. Otherwise it enters level 0.
//!
//! Nothing is appended to a log. The absorb of the branches is the first edit on the medium that
//! names the tables, and syncs the device before. A crash leaves their blocks in no version.

use super::{Committer, Tally, entry_of};
use crate::VtError;
use crate::buffer::TABLE_OVERHEAD_BYTES;
use crate::compaction::MovedTable;
use crate::entry::RangeDelete;
use crate::install::{Install, Installer};
use crate::key_moments::KeyMoments;
use crate::output::{OutputRules, Outputs};
use crate::tables::Tables;
use crate::version::Version;
use crate::view::View;
use std::sync::Arc;
use stitch_base::sync::MutexGuard;
use stitch_base::{ErrorKind, Seqno};
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{Batch, CommitOptions, KvError, Message, TreeInfo};
use stitch_volume::Stream;

/// As that of write-outs: what is short-lived lies together.
const BATCH_STREAM: Stream = Stream(0);
/// What a message takes in a table beyond its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 24;
/// Fewest bytes of a batch for each of its trees: less is gathered in a memtable.
const PART_BYTES_MIN: u64 = 64 << 10;
/// Where a table enters its tree if it overlaps no other.
const DISJOINT_LEVEL: usize = 1;

/// Tables that are written and not installed. Dropped, they give their space back.
struct BatchTables<'a> {
    tables: &'a Tables,
    made: Vec<TableMeta>,
}

impl Drop for BatchTables<'_> {
    fn drop(&mut self) {
        self.tables.discard(&self.made, &[]);
    }
}

impl Committer {
    /// Commits a batch as tables. Returns `None` if it goes through the log.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::commit`].
    pub(super) fn commit_as_tables(
        &self,
        batch: &Batch<'_>,
        tally: &Tally,
        options: CommitOptions,
    ) -> Result<Option<Seqno>, KvError> {
        let is_long = batch.len_bytes() as u64 >= self.options.batch_table_bytes_min;
        if !is_long || options.sync {
            return Ok(None);
        }
        let view = self.views.get();
        if !self.becomes_tables(batch, tally, &view) {
            return Ok(None);
        }
        let needed_bytes = needed_bytes(batch, tally);
        let Ok(room) = self.space.promise_tables(needed_bytes, options.space) else {
            // A commit that goes through the log makes room.
            return Ok(None);
        };
        let written = match self.write_tables(batch, &view.version) {
            Ok(Some(written)) => written,
            Ok(None) => return Ok(None),
            // There is none in one piece.
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        drop(view);
        let committed = self.install_tables(batch, tally, written)?;
        drop(room);
        if !self.room.has_threads {
            self.room.work_inline()?;
        }
        Ok(committed)
    }

    /// Reports whether a long batch can be committed as tables.
    fn becomes_tables(&self, batch: &Batch<'_>, tally: &Tally, view: &View) -> bool {
        let bytes = batch.len_bytes() as u64;
        let version = &view.version;
        let trees = tally.trees.iter().count() as u64;
        debug_assert!(trees > 0, "a batch has messages");
        let part_bytes_min = PART_BYTES_MIN.min(self.options.batch_table_bytes_min);
        bytes / trees >= part_bytes_min
            && tally.trees.iter().all(|tree| version.is_temporary(tree))
            && !is_in_memtables(view, tally)
    }

    /// Writes the tables of a batch, with sequence numbers from 1 on. Returns `None` if it is not
    /// in order: that is found on the way, as a look beforehand would decode all messages again.
    fn write_tables(
        &self,
        batch: &Batch<'_>,
        version: &Version,
    ) -> Result<Option<BatchTables<'_>>, VtError> {
        let tables = &*self.direct.tables;
        let mut written = BatchTables {
            tables,
            made: Vec::new(),
        };
        let mut messages = batch.messages().zip(1..).peekable();
        while let Some(((tree, _), _)) = messages.peek() {
            let info = &version.trees[tree].info;
            let of_tree = std::iter::from_fn(|| {
                let ((_, message), seqno) = messages.next_if(|((of, _), _)| *of == info.id)?;
                Some((message, Seqno(seqno)))
            });
            let is_new = written.made.iter().all(|table| table.tree != info.id);
            let made = match is_new {
                true => self.write_table(info, of_tree)?,
                false => None,
            };
            let Some(made) = made else {
                return Ok(None);
            };
            written.made.extend(made);
        }
        debug_assert!(!written.made.is_empty(), "a batch has messages");
        debug_assert!(
            written
                .made
                .iter()
                .all(|table| table.max_seqno.0 <= batch.count() as u64),
            "numbers are those of the messages"
        );
        Ok(Some(written))
    }

    /// Writes the table of one tree: of deleted ranges that do not overlap, then keys, both in
    /// order. Returns `None` if the messages are in another order.
    fn write_table<'b>(
        &self,
        tree: &TreeInfo,
        messages: impl Iterator<Item = (Message<'b>, Seqno)>,
    ) -> Result<Option<Vec<TableMeta>>, VtError> {
        let tables = &*self.direct.tables;
        let rules = OutputRules {
            stream: BATCH_STREAM,
            precision: tables.precision(0),
            table_bytes: u64::MAX,
            moments: KeyMoments::default(),
            cuts: Vec::new(),
            input_runs: Vec::new(),
            // Its space is promised.
            under_way: None,
        };
        let mut messages = messages.peekable();
        let mut before: Option<Message<'_>> = None;
        let mut range_deletes = Vec::new();
        while let Some((message, seqno)) = messages.peek()
            && let Message::DeleteRange { start, end } = message
        {
            if before.is_some_and(|before| !is_after(message, &before)) {
                return Ok(None);
            }
            before = Some(*message);
            range_deletes.push(RangeDelete {
                start: start.to_vec(),
                end: end.to_vec(),
                seqno: *seqno,
            });
            messages.next();
        }
        let mut outputs = Outputs::new(tables, tree, rules, range_deletes);
        for (message, seqno) in messages {
            if before.is_some_and(|before| !is_after(&message, &before)) {
                return Ok(None);
            }
            before = Some(message);
            outputs.add(&entry_of(message, seqno))?;
        }
        let made = outputs.finish()?;
        debug_assert!(made.len() <= 1, "a tree gets one table");
        Ok(Some(made))
    }

    /// Installs the tables of a batch, and publishes it. Returns `None` if a memtable has entries
    /// of its trees by now.
    fn install_tables(
        &self,
        batch: &Batch<'_>,
        tally: &Tally,
        mut written: BatchTables<'_>,
    ) -> Result<Option<Seqno>, KvError> {
        let versions = &self.room.member.versions;
        let (mut installer, mut commits) = loop {
            let installer = versions.lock();
            let mut commits = self.lock();
            if !commits.is_paused {
                break (installer, commits);
            }
            drop(installer);
            self.room.wait_while_paused(&mut commits)?;
        };
        self.gate.check_writable()?;
        commits.check_trees(tally.trees.iter())?;
        if is_in_memtables(&self.views.get(), tally) {
            return Ok(None);
        }
        // Compactions keep what reads see now, until the tables are visible to all new reads.
        let moment = self.hold_now();
        let last = Seqno(commits.last_seqno.0 + batch.count() as u64);
        debug_assert!(last > commits.last_seqno, "a batch has messages");
        let bytes = self.enter(&mut installer, commits.last_seqno, &mut written)?;
        for tree in tally.trees.iter() {
            self.reads.gaps.forget(tree);
        }
        commits.publish(last, &self.visible);
        drop((commits, installer));
        drop(moment);
        self.counters.table_batches.add(1);
        self.counters.batch_table_bytes.add(bytes);
        Ok(Some(last))
    }

    /// Makes tables a part of their trees, newer than all writes up to `before`. Returns their
    /// length. The caller holds the lock of commits.
    fn enter(
        &self,
        installer: &mut MutexGuard<'_, Installer>,
        before: Seqno,
        written: &mut BatchTables<'_>,
    ) -> Result<u64, VtError> {
        let version = self.views.version();
        let entering = written.made.iter().map(|meta| {
            let mut table = MovedTable::new(DISJOINT_LEVEL, meta);
            table.meta.move_by(before.0);
            debug_assert!(table.meta.min_seqno > before, "it is newer");
            table
        });
        let placing = self.room.compactor.place(&version, entering.collect());
        let mut edit = version.edit();
        let placed = placing.tables.iter().cloned();
        edit.added = placed
            .map(|(level, meta)| (level, Arc::new(meta)))
            .collect();
        debug_assert!(
            version.stored_edit(&edit, &[]).is_none(),
            "the medium gets nothing of it"
        );
        drop(version);
        debug_assert_eq!(
            edit.added.len(),
            written.made.len(),
            "each table has its place"
        );
        debug_assert!(
            written.made.iter().all(|table| table.min_seqno.0 > 0),
            "numbers are from 1 on"
        );
        let install = Install {
            edit,
            ..Install::default()
        };
        self.room.member.versions.install(installer, install)?;
        drop(placing);
        let made = std::mem::take(&mut written.made);
        Ok(made.iter().map(TableMeta::owned_bytes).sum())
    }
}

/// Returns the most that the tables of a batch take.
fn needed_bytes(batch: &Batch<'_>, tally: &Tally) -> u64 {
    let bytes = batch.len_bytes() as u64;
    let messages = batch.count() as u64 * MESSAGE_OVERHEAD_BYTES + tally.overhead_bytes;
    let trees = tally.trees.iter().count() as u64;
    debug_assert!(trees > 0, "a batch has messages");
    bytes + bytes / 8 + messages + trees * TABLE_OVERHEAD_BYTES
}

/// Reports whether a memtable has an entry, a run or a range delete of one of the trees.
fn is_in_memtables(view: &View, tally: &Tally) -> bool {
    view.buffers.iter().any(|buffer| {
        let trees = buffer.trees();
        tally.trees.iter().any(|tree| trees.contains(&tree))
    })
}

/// Reports whether a message may follow another one of its tree in a table.
fn is_after(message: &Message<'_>, before: &Message<'_>) -> bool {
    match (before, message) {
        (Message::DeleteRange { end, .. }, Message::DeleteRange { start, .. }) => end <= start,
        (Message::DeleteRange { .. }, _) => true,
        (_, Message::DeleteRange { .. }) => false,
        (before, message) => before.key() < message.key(),
    }
}

#[cfg(test)]
mod tests;
