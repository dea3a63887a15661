//! Branches that are absorbed by their parents. What is short is copied, as below; all else is
//! moved ([`moving`]), which costs a few syncs and no more for longer branches.
//!
//! 1. The branches take no more writes.
//! 2. What was written to them is read in order and put into a batch for the parents: the deleted
//!    ranges first, then of each key the versions that no later write hides.
//! 3. With the locks of installs and of commits: guards are checked, and the batch is committed.
//!    Its log record marks the branches as absorbed.
//! 4. Before any other edit is installed, one drops the branches. It syncs the log first, unless
//!    all of them are temporary: then nothing of it is on the medium.
//!
//! ```text
//! crash            after an open
//! before 3         the branches are there, the parents do not have their writes
//! between 3 and 4  the replayed record has the writes, and its mark drops the branches
//! after 4          the branches are gone
//! ```
//!
//! The record is in the log until step 4 is done: no write-out is installed in between.

mod moving;
mod rewritten;

pub(crate) use rewritten::AbsorbWriter;

use super::{Committer, Placement, Tally, insert_message};
use crate::VtError;
use crate::branches::Branches;
use crate::commit_lock::CommitState;
use crate::compaction::Compactor;
use crate::entry::{EntryIter, Op, RangeDelete};
use crate::install::{Installer, VersionLog};
use crate::iter::MergeIter;
use crate::member::Member;
use crate::pins::Pins;
use crate::read::ReadPath;
use crate::table::Bounds;
use crate::tables::Tables;
use crate::tree_changes::TreeChanges;
use crate::version::Version;
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::{Mutex, MutexGuard};
use stitch_base::{Lsn, Seqno, TreeId};
use stitch_format::logged_commit::{self, put_absorbed};
use stitch_kv::{Batch, CommitOptions, Guards, KeyRange, KvError, Message};
use stitch_volume::VolumeError;

/// Absorbs branches into their parents.
///
/// Invariants:
/// - branches take no writes from the begin of an absorb to its end, and again after a failure;
/// - readers see all of what an absorb brings, or nothing of it;
/// - one absorb at a time moves tables.
pub(crate) struct Absorber {
    /// What absorbs share with commits: guards, room, and what is visible.
    pub(crate) committer: Arc<Committer>,
    /// To write memtables out, so that branches are tables alone.
    pub(crate) member: Arc<Member>,
    /// To drop absorbed branches.
    pub(crate) trees: Arc<TreeChanges>,
    pub(crate) versions: Arc<VersionLog>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) branches: Arc<Branches>,
    pub(crate) writer: AbsorbWriter,
    /// One absorb at a time moves tables.
    pub(crate) moving: Mutex<()>,
}

/// What is committed when branches are absorbed.
struct Absorbed<'a> {
    branches: &'a BTreeSet<TreeId>,
    /// The same, in the order in which they are applied.
    order: &'a [TreeId],
    /// Where they are copied: what was written to them and the batch that comes along. Where they
    /// are moved: the batch that comes along.
    batch: &'a Batch<'a>,
    guards: Option<&'a Guards>,
    options: CommitOptions,
}

/// Branches that take no writes while they are absorbed.
struct Frozen<'a> {
    committer: &'a Committer,
    branches: &'a BTreeSet<TreeId>,
    is_absorbed: bool,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.is_absorbed {
            let trees = &mut self.committer.lock().trees;
            debug_assert!(
                trees.is_disjoint(self.branches),
                "frozen branches take no writes"
            );
            trees.extend(self.branches.iter().copied());
        }
    }
}

impl Absorber {
    /// Absorbs branches.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::absorb`].
    pub(crate) fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch<'_>,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        if branches.is_empty() {
            return self.committer.commit(batch, Some(guards), options);
        }
        self.committer.gate.check_writable()?;
        self.committer.limits().check_batch(batch)?;
        let trees: BTreeSet<TreeId> = branches.iter().copied().collect();
        if trees.len() < branches.len() {
            return Err(KvError::Invalid("a branch is named twice".to_owned()));
        }
        let mut frozen = self.freeze(&trees)?;
        debug_assert_eq!(trees.len(), branches.len(), "each branch is named once");
        let Some(whole) = self.written(branches, batch)? else {
            let absorbed = Absorbed {
                branches: &trees,
                order: branches,
                batch,
                guards: (!guards.is_empty()).then_some(guards),
                options,
            };
            return self.absorb_by_move(&absorbed, &mut frozen);
        };
        let bytes = whole.len_bytes() as u64;
        let view = self.committer.views.get();
        self.committer.room.slow_down(bytes, options.space, view);
        let absorbed = Absorbed {
            branches: &trees,
            order: branches,
            batch: &whole,
            guards: (!guards.is_empty()).then_some(guards),
            options,
        };
        self.commit_absorbed(&absorbed, &mut frozen)
    }

    /// Writes out and compacts what an absorb of these branches would, if it would move their
    /// tables.
    ///
    /// # Errors
    /// As [`Self::absorb`].
    pub(crate) fn prepare(&self, branches: &[TreeId]) -> Result<(), KvError> {
        self.committer.gate.check_writable()?;
        let trees: BTreeSet<TreeId> = branches.iter().copied().collect();
        check_absorbed(&self.committer.views.version(), &trees)?;
        if self.written(branches, &Batch::new())?.is_some() {
            return Ok(());
        }
        self.member.write_all_out()?;
        for branch in branches {
            self.compactor.flatten(*branch)?;
        }
        Ok(())
    }

    /// Ends writes to branches, if they can be absorbed.
    fn freeze<'a>(&'a self, branches: &'a BTreeSet<TreeId>) -> Result<Frozen<'a>, KvError> {
        debug_assert!(!branches.is_empty(), "branches are absorbed");
        let installer = self.versions.lock();
        check_absorbed(&self.committer.views.version(), branches)?;
        let mut commits = self.committer.lock();
        commits.check_trees(branches.iter().copied())?;
        commits.close_trees(branches);
        debug_assert!(
            commits.trees.is_disjoint(branches),
            "frozen branches take no writes"
        );
        drop((commits, installer));
        Ok(Frozen {
            committer: &self.committer,
            branches,
            is_absorbed: false,
        })
    }

    /// Returns what was written to frozen branches as a batch for their parents, then `batch`;
    /// `None` if that is long enough to be moved.
    fn written(
        &self,
        branches: &[TreeId],
        batch: &Batch<'_>,
    ) -> Result<Option<Batch<'static>>, KvError> {
        let view = self.committer.views.get();
        let limit_bytes = self.committer.limits().batch_bytes_max;
        let limit_bytes = limit_bytes.min(self.committer.options.absorb_copy_bytes_max);
        let mut whole = Batch::new();
        let mark = |tree: &TreeId| {
            let mut mark = Vec::new();
            put_absorbed(&mut mark, *tree);
            mark.len()
        };
        let marks_bytes: usize = branches.iter().map(mark).sum();
        let is_short = |whole: &Batch<'_>| (whole.len_bytes() + marks_bytes) as u64 <= limit_bytes;
        if moving::are_long(&view.version, branches, limit_bytes) {
            return Ok(None);
        }
        for tree in branches {
            if !self.collect(&view, *tree, &mut whole, &is_short)? {
                return Ok(None);
            }
        }
        for (tree, message) in batch.messages() {
            whole.push(tree, message);
            if !is_short(&whole) {
                return Ok(None);
            }
        }
        debug_assert!(whole.count() >= batch.count(), "the batch comes along");
        Ok(Some(whole))
    }

    /// Adds what was written to a branch. Returns false as soon as it is not short.
    fn collect(
        &self,
        view: &View,
        branch: TreeId,
        whole: &mut Batch<'static>,
        is_short: &dyn Fn(&Batch<'_>) -> bool,
    ) -> Result<bool, KvError> {
        let tree = view.version.trees.get(&branch);
        let tree = tree.ok_or(KvError::NoTree(branch))?;
        let parent = tree.info.branch.ok_or(KvError::NoTree(branch))?.parent;
        let reads = &self.committer.reads;
        debug_assert!(parent < branch, "a branch is made after its parent");
        let deletes = range_deletes(reads, view, branch)?;
        for delete in &deletes {
            whole.delete_range(parent, &delete.start, &delete.end);
            if !is_short(whole) {
                return Ok(false);
            }
        }
        let bounds = Arc::new(Bounds::of(KeyRange::all(), false));
        let sources = reads.own_sources(view, tree, &bounds, Seqno(u64::MAX))?;
        let mut entries = MergeIter::new(sources.into_iter().map(|s| s.entries).collect());
        entries.seek(b"", Seqno(u64::MAX))?;
        let mut key = Vec::new();
        while let Some(entry) = entries.current() {
            key.clear();
            key.extend_from_slice(entry.key);
            let newest = newest_delete(&deletes, &key);
            let versions = key_versions(&mut entries, &key, newest)?;
            for version in versions.iter().rev() {
                whole.push(parent, version.message(&key));
            }
            if !is_short(whole) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn commit_absorbed(
        &self,
        absorbed: &Absorbed<'_>,
        frozen: &mut Frozen<'_>,
    ) -> Result<Seqno, KvError> {
        debug_assert!(!frozen.is_absorbed, "branches are absorbed once");
        debug_assert_eq!(
            absorbed.branches.len(),
            absorbed.order.len(),
            "each is applied once"
        );
        let tally = self
            .committer
            .tally(absorbed.batch, &self.committer.views.version())?;
        let checked = match absorbed.guards {
            Some(guards) => Some((guards, self.committer.check_guards(guards)?)),
            None => None,
        };
        loop {
            let mut installer = self.versions.lock();
            // A branch of one of them may have been made, or its parent dropped.
            check_absorbed(&self.committer.views.version(), absorbed.branches)?;
            let mut commits = self.committer.lock();
            if commits.is_paused {
                drop(installer);
                self.committer.room.wait_while_paused(&mut commits)?;
                continue;
            }
            commits.check_trees(tally.trees.iter())?;
            let logged = self.log_absorbed(absorbed, commits, (&tally, checked))?;
            let lacks_log = match logged {
                Logged::Done(last) => {
                    frozen.is_absorbed = true;
                    self.end_absorb(&mut installer, absorbed)?;
                    drop(installer);
                    if absorbed.options.sync {
                        // The drop of temporary branches is in no log, and synced none.
                        self.committer.sync()?;
                    }
                    return Ok(last);
                }
                Logged::NoRoom => false,
                Logged::LogFull => true,
            };
            // What makes room installs edits.
            drop(installer);
            self.wait_for_room(absorbed, &tally, lacks_log)?;
        }
    }

    /// Logs, inserts and publishes, if that needs no wait. The caller holds the lock of installs.
    fn log_absorbed(
        &self,
        absorbed: &Absorbed<'_>,
        mut commits: MutexGuard<'_, CommitState>,
        (tally, checked): (&Tally, Option<(&Guards, Seqno)>),
    ) -> Result<Logged, KvError> {
        debug_assert!(!commits.is_paused, "commits wait while tables are moved");
        let batch = absorbed.batch;
        let placement = Placement::logged(batch);
        let Some((active, room)) = self.committer.room.at_hand(&placement, tally)? else {
            return Ok(Logged::NoRoom);
        };
        if let Some((guards, checked)) = checked {
            self.committer.check_guards_from(guards, checked)?;
        }
        if batch.is_empty() {
            return Ok(Logged::Done(commits.last_seqno));
        }
        let first = commits.last_seqno.next();
        match self.append_absorbed(absorbed, first) {
            Ok(_) => {}
            Err(VolumeError::LogFull { .. }) => return Ok(Logged::LogFull),
            Err(other) => return Err(VtError::from(other).into()),
        }
        let trees = tally.trees.iter();
        self.committer.note_branches(&active.memtable, trees);
        for ((tree, message), seqno) in batch.messages().zip(first.0..) {
            insert_message(&active.memtable, tree, Seqno(seqno), message);
        }
        let last = Seqno(first.0 + batch.count() as u64 - 1);
        debug_assert!(last >= first, "a batch has messages");
        debug_assert!(room.bytes > 0, "what is inserted has its room");
        debug_assert!(last > commits.last_seqno, "the batch is not published yet");
        active.note(&tally.trees, room, tally.has_deletes, last);
        let committer = &self.committer;
        committer.note_gaps((&mut commits, &active), batch, tally, last);
        commits.publish(last, &committer.visible);
        Ok(Logged::Done(last))
    }

    /// Makes room as a commit does, without the lock of installs.
    fn wait_for_room(
        &self,
        absorbed: &Absorbed<'_>,
        tally: &Tally,
        lacks_log: bool,
    ) -> Result<(), KvError> {
        let placement = Placement::logged(absorbed.batch);
        let room = &self.committer.room;
        let mut commits = self.committer.lock();
        let active = room.make_room(&mut commits, placement.logged_bytes)?;
        let promise = (&placement, tally, absorbed.options.space);
        room.promise(&mut commits, &active, promise)?;
        if lacks_log {
            room.make_log_room(&mut commits)?;
        }
        Ok(())
    }

    fn append_absorbed(&self, absorbed: &Absorbed<'_>, first: Seqno) -> Result<Lsn, VolumeError> {
        let mut marks = Vec::new();
        for tree in absorbed.branches {
            put_absorbed(&mut marks, *tree);
        }
        debug_assert!(!marks.is_empty(), "a record names the absorbed branches");
        let head = logged_commit::head(first);
        let bytes = absorbed.batch.stretch().as_one();
        let bytes = bytes.expect("nothing is lent to a batch of copies");
        let counters = &self.committer.counters;
        let len_bytes = head.len() + bytes.len() + marks.len();
        counters.log_bytes.add(len_bytes as u64);
        self.committer.volume.log().append(&[&head, bytes, &marks])
    }

    /// Drops branches whose writes are committed. A failure ends writes to the store: they must not
    /// outlive the log record that says so.
    fn end_absorb(
        &self,
        installer: &mut Installer,
        absorbed: &Absorbed<'_>,
    ) -> Result<(), KvError> {
        debug_assert!(!absorbed.branches.is_empty(), "branches are absorbed");
        debug_assert_eq!(
            absorbed.branches.len(),
            absorbed.order.len(),
            "each is applied once"
        );
        let removed = self.trees.remove(installer, absorbed.branches);
        if let Err(error) = &removed {
            let what = format!("absorbed branch trees cannot be dropped: {error}");
            self.committer.gate.fail(&VtError::Version { what });
        }
        let counters = &self.committer.counters;
        counters.commits.add(1);
        counters.put_messages.add(absorbed.batch.count() as u64);
        removed
    }

    /// At an open: drops the branches that replayed records have absorbed.
    pub(crate) fn finish_replayed(&self) -> Result<(), VtError> {
        let version = self.committer.views.version();
        let absorbed = self.branches.take_absorbed().into_iter();
        let left: Vec<TreeId> = absorbed.filter(|tree| version.is_living(*tree)).collect();
        drop(version);
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!(?left, "branch trees were absorbed before the crash");
        let dropped = self.trees.drop_all(&left);
        dropped.map_err(|error| VtError::Version {
            what: format!("absorbed branch trees cannot be dropped: {error}"),
        })?;
        let version = self.committer.views.version();
        debug_assert!(
            left.iter().all(|tree| !version.is_living(*tree)),
            "absorbed branches are gone, or hidden"
        );
        Ok(())
    }
}

/// Whether a commit is done.
enum Logged {
    /// With this last sequence number.
    Done(Seqno),
    /// It has to wait for room in the memtable or in the zones first.
    NoRoom,
    /// It has to wait for room in the log first.
    LogFull,
}

/// What a version of a key does.
enum Owned {
    Put(Vec<u8>),
    Delete,
    Upsert(u32, Vec<u8>),
}

impl Owned {
    fn message<'a>(&'a self, key: &'a [u8]) -> Message<'a> {
        match self {
            Self::Put(value) => Message::Put { key, value },
            Self::Delete => Message::Delete { key },
            Self::Upsert(function, delta) => Message::Upsert {
                key,
                function: *function,
                delta,
            },
        }
    }
}

/// The ranges that were deleted in a tree.
fn range_deletes(reads: &ReadPath, view: &View, tree: TreeId) -> Result<Vec<RangeDelete>, VtError> {
    let mut deletes = Vec::new();
    for buffer in &view.buffers {
        deletes.extend(buffer.memtable.range_deletes(tree).iter().cloned());
    }
    for (_, handle) in view.version.trees[&tree].tables() {
        if handle.meta().range_delete_count > 0 {
            debug_assert_eq!(handle.meta().tree, tree, "a table of the tree");
            deletes.extend(reads.table(handle).range_deletes()?.iter().cloned());
        }
    }
    Ok(deletes)
}

/// The newest range delete that covers a key; 0 without one.
fn newest_delete(deletes: &[RangeDelete], key: &[u8]) -> Seqno {
    let covers = |delete: &&RangeDelete| *delete.start <= *key && *key < *delete.end;
    let covering = deletes.iter().filter(covers);
    covering
        .map(|delete| delete.seqno)
        .max()
        .unwrap_or_default()
}

/// The versions of a key that are newer than `deleted`, newest first, as far as they count: none
/// after a put or a delete. Leaves the cursor on the next key.
fn key_versions(
    entries: &mut MergeIter,
    key: &[u8],
    deleted: Seqno,
) -> Result<Vec<Owned>, VtError> {
    debug_assert!(
        entries.current().is_some_and(|entry| entry.key == key),
        "the cursor is on the key"
    );
    let mut versions = Vec::new();
    let mut is_over = false;
    while let Some(entry) = entries.current()
        && entry.key == key
    {
        is_over |= entry.seqno < deleted;
        if !is_over {
            is_over = !matches!(entry.op, Op::Upsert { .. });
            versions.push(match entry.op {
                Op::Put(value) => Owned::Put(value.to_vec()),
                Op::Delete => Owned::Delete,
                Op::Upsert { function, delta } => Owned::Upsert(function, delta.to_vec()),
            });
        }
        entries.next()?;
    }
    let mut newer = versions.iter().rev().skip(1);
    debug_assert!(
        newer.all(|version| matches!(version, Owned::Upsert(..))),
        "no version counts after a put or a delete"
    );
    Ok(versions)
}

/// Refuses trees that cannot be absorbed together.
fn check_absorbed(version: &Version, branches: &BTreeSet<TreeId>) -> Result<(), KvError> {
    for tree in branches {
        let found = version.trees.get(tree).filter(|_| version.is_living(*tree));
        let found = found.ok_or(KvError::NoTree(*tree))?;
        let no_branch = || KvError::Invalid(format!("tree {tree} is no branch"));
        let parent = found.info.branch.ok_or_else(no_branch)?.parent;
        if !version.is_living(parent) {
            return Err(KvError::NoTree(parent));
        }
    }
    for tree in version.living() {
        let mut parents = version.lineage(tree.info.id).skip(1);
        if let Some(parent) = parents.find(|parent| branches.contains(&parent.info.id)) {
            let id = parent.info.id;
            let what = format!("tree {id} has a branch: absorb or drop that first");
            return Err(KvError::Invalid(what));
        }
    }
    Ok(())
}
