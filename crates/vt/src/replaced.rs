//! What branches give up: rows of a parent that no reader of a branch sees through it.
//!
//! A branch holds its moment of its parent, of every key. Once a key is deleted or overwritten in
//! the branch, for all that read the branch, it need not hold that key. So a file that is deleted
//! in a directory and in each of its clones gives its space back:
//!
//! ```text
//! parent   f at 10, deleted at 40     moment 20 of the branch keeps f at 10
//! branch   begins at 20, f deleted at 30
//!          snapshot at 25 of it       it reads f in the parent: the moment is held
//!          snapshot dropped           nothing does: the moment is held of all keys but f
//! ```
//!
//! - What counts is in tables. A delete in a memtable may be lost with the power, and with it, were
//!   it counted, the row that the delete is of.
//! - What counts is as old as the oldest moment that is held of the branch, by readers, pins and
//!   branches of it. Later ones are newer, so they see it too.
//! - An upsert reads the row below it, so it replaces nothing.
//! - Replaced keys between which no parent has one that the branch sees are given up as one range:
//!   the files of a directory are.
//! - A branch keeps an entry of a key for as long as it is there, since nothing is at its bottom.
//!   So what is given up once is never read again, and nothing of this is stored: after an open
//!   every key is held, and found again.
//! - The caller may know which keys of its parent a branch reads at all: a clone of a directory
//!   reads the contents of its files, and none of other directories
//!   ([`stitch_kv::Engine::release_beside`]).
//! - A branch that was dropped is read through its own branches alone. What none of them holds of
//!   it, it need not hold of its parent.
//! - The moment itself can be asked for ([`stitch_kv::Engine::branch_moment`]), and reads of the
//!   parent at it would miss rows. So this is done for branches that are never merged: those that
//!   the engine was told of, and those that were dropped and are read by others still.

use crate::VtError;
use crate::branch_changes::branch_in;
use crate::branches::Look;
use crate::entry::{EntryIter, Op};
use crate::iter::MergeIter;
use crate::signals::Worker;
use crate::store::Store;
use crate::table::Bounds;
use crate::version::{TreeVersion, Version};
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{KeyRange, KeyRanges, KvError, OwnedKeyRange, Snapshot};

/// Most ranges of keys that are given up for one branch. Of others it holds its moment.
const RANGES_MAX: usize = 1 << 14;
/// Most keys of a branch that are looked at.
const KEYS_MAX: usize = 1 << 17;
/// Most entries of a parent that are passed, between two keys, since they are newer.
const NEWER_MAX: usize = 16;

impl Store {
    /// Lets branches give up what they replace.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::Invalid`].
    pub(crate) fn release_replaced(&self, branches: &[TreeId]) -> Result<(), KvError> {
        let view = self.views.get();
        for branch in branches {
            branch_in(&view, *branch)?;
        }
        self.branches.releases.tell(branches);
        self.signals.wake(Worker::Compaction);
        Ok(())
    }

    /// Lets a branch give up all of its parent but for these keys, unless there is a reader of the
    /// branch from before `at`. Returns whether it does.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::Invalid`].
    pub(crate) fn release_beside(
        &self,
        branch: TreeId,
        ranges: &KeyRanges,
        at: &Snapshot,
    ) -> Result<bool, KvError> {
        let view = self.views.get();
        branch_in(&view, branch)?;
        let moments = self.snapshots.held().of(branch);
        let is_older = |oldest: &Seqno| *oldest < at.seqno();
        if moments.all().first().is_some_and(is_older) {
            return Ok(false);
        }
        self.branches.releases.note_read(branch, ranges.clone());
        self.signals.wake(Worker::Compaction);
        Ok(true)
    }

    /// Looks at branches that were written to since the last look. Returns whether any has given
    /// up something.
    pub(crate) fn give_up_replaced(&self) -> bool {
        // In this order: a snapshot that is taken after the list sees all that is in the version.
        let version = self.views.version();
        let held = self.snapshots.held();
        if self.branches.releases.is_all_seen(&version, &held) {
            return false;
        }
        let branches = version.trees.values().filter(|tree| tree.is_branch());
        let mut has_given_up = false;
        for tree in branches {
            let look = Look::of(tree, &held);
            if !self.branches.releases.is_due(tree, &look) {
                continue;
            }
            if self.signals.is_stopped() {
                return false;
            }
            match self.replaced_in(tree, look.oldest) {
                Ok(replaced) => has_given_up |= self.give_up(&version, tree, (&look, &replaced)),
                // A read there gets the error.
                Err(error) => tracing::debug!(%error, "a look at a branch ends"),
            }
            self.branches.releases.note(tree.info.id, look);
        }
        // What was given up may let others give up more.
        if !has_given_up {
            self.branches.releases.note_all(&version, held);
        }
        has_given_up
    }

    /// Holds the moment of a branch of all that it began with, but for what it has replaced.
    /// Returns whether that is less than before.
    fn give_up(
        &self,
        version: &Version,
        tree: &TreeVersion,
        (look, replaced): (&Look, &KeyRanges),
    ) -> bool {
        let info = &tree.info;
        let point = info.branch.expect("a branch has a parent");
        debug_assert!(version.trees.contains_key(&point.parent), "which stays");
        let read = self.branches.releases.read_by(info.id);
        if replaced.count() == 0 && read.is_none() && look.read.is_none() {
            return false;
        }
        let mut left = replaced.beside();
        let known = [&info.branch_ranges, &read, &look.read];
        for ranges in known.into_iter().flatten() {
            left = ranges.common(&left);
        }
        debug_assert!(
            !replaced.iter().any(|range| left.meets(range)),
            "they are out"
        );
        let hold = self
            .snapshots
            .take_for_branch(point.seqno, point.parent, Some(left));
        self.branches.renew(info.id, hold);
        true
    }

    /// Returns the keys that are deleted or overwritten in the tables of a branch for all that see
    /// what was written up to a moment; `None`: for the present.
    fn replaced_in(&self, tree: &TreeVersion, oldest: Option<Seqno>) -> Result<KeyRanges, VtError> {
        let oldest = oldest.unwrap_or(Seqno(u64::MAX));
        let mut ranges: Vec<OwnedKeyRange> = Vec::new();
        let mut sources = Vec::new();
        let bounds = all_keys();
        for (_, handle) in tree.tables() {
            let table = self.tables.reader(handle);
            if handle.meta().range_delete_count > 0 {
                let deletes = table.range_deletes()?;
                let seen = deletes.iter().filter(|delete| delete.seqno <= oldest);
                ranges.extend(seen.map(|d| (d.start.clone(), Some(d.end.clone()))));
            }
            sources.push(table.iter(Arc::clone(&bounds)));
        }
        let mut entries = MergeIter::new(sources);
        entries.seek(b"", Seqno(u64::MAX))?;
        let keys = replaced_keys(&mut entries, oldest)?;
        let parent = match keys.is_empty() {
            true => None,
            false => ParentKeys::of(self, tree)?,
        };
        if let Some(parent) = parent {
            ranges.extend(parent.join(keys)?);
        }
        let mut all = KeyRanges::new(ranges);
        if all.count() > RANGES_MAX {
            all = KeyRanges::new(all.as_slice()[..RANGES_MAX].iter().cloned());
        }
        debug_assert!(all.count() <= RANGES_MAX, "ranges are bounded");
        Ok(all)
    }
}

fn all_keys() -> Arc<Bounds> {
    Arc::new(Bounds::of_keys(KeyRange::from(&[])))
}

/// Returns the keys of entries that replace what is below them, in order.
fn replaced_keys(entries: &mut MergeIter, oldest: Seqno) -> Result<Vec<Vec<u8>>, VtError> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut decided: Option<Vec<u8>> = None;
    while let Some(entry) = entries.current()
        && keys.len() < KEYS_MAX
    {
        let is_decided = decided.as_deref() == Some(entry.key);
        if entry.seqno <= oldest && !is_decided {
            // The newest one that all see.
            if !matches!(entry.op, Op::Upsert { .. }) {
                keys.push(entry.key.to_vec());
            }
            decided = Some(entry.key.to_vec());
        }
        entries.next()?;
    }
    debug_assert!(keys.len() <= KEYS_MAX, "they are bounded");
    debug_assert!(keys.is_sorted_by(|key, next| key < next), "each key once");
    Ok(keys)
}

/// What lies between keys of a branch, in what it reads.
struct ParentKeys {
    /// Of the parent and of each parent of that, with what is in memory; and where the branch below
    /// begins.
    parents: Vec<(MergeIter, Seqno)>,
}

impl ParentKeys {
    /// Of all parents of a branch, if they are there.
    fn of(store: &Store, branch: &TreeVersion) -> Result<Option<Self>, VtError> {
        let view = store.views.get();
        let mut parents = Vec::new();
        let mut next = branch.info.branch;
        while let Some(point) = next {
            let Some(parent) = view.version.trees.get(&point.parent) else {
                return Ok(None);
            };
            let bounds = all_keys();
            let sources = store
                .reads
                .own_sources(&view, parent, &bounds, point.seqno)?;
            let entries = sources.into_iter().map(|source| source.entries);
            parents.push((MergeIter::new(entries.collect()), point.seqno));
            next = parent.info.branch;
        }
        debug_assert!(!parents.is_empty(), "a branch has a parent");
        Ok(Some(Self { parents }))
    }

    /// Joins keys between which there is none.
    fn join(mut self, keys: Vec<Vec<u8>>) -> Result<Vec<OwnedKeyRange>, VtError> {
        debug_assert!(keys.len() <= KEYS_MAX, "they are bounded");
        let mut ranges: Vec<OwnedKeyRange> = Vec::new();
        for mut end in keys {
            let start = end.clone();
            end.push(0);
            match ranges.last_mut() {
                Some((_, Some(last))) if self.is_empty(last, &start)? => *last = end,
                _ => ranges.push((start, Some(end))),
            }
        }
        debug_assert!(
            ranges
                .iter()
                .all(|(start, end)| end.as_ref().is_some_and(|end| start < end)),
            "each range has keys, and ends"
        );
        debug_assert!(ranges.is_sorted(), "keys come in order");
        Ok(ranges)
    }

    /// Reports whether the branch sees no key of its parents from `start` on and before `end`.
    fn is_empty(&mut self, start: &[u8], end: &[u8]) -> Result<bool, VtError> {
        for (entries, seqno) in &mut self.parents {
            if !is_empty(entries, *seqno, (start, end))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reports whether no entry up to `seqno` has a key from `start` on and before `end`; false also if
/// many newer ones are passed.
fn is_empty(
    entries: &mut MergeIter,
    seqno: Seqno,
    (start, end): (&[u8], &[u8]),
) -> Result<bool, VtError> {
    debug_assert!(start <= end, "keys come in order");
    entries.seek(start, Seqno(u64::MAX))?;
    for _ in 0..NEWER_MAX {
        match entries.current() {
            Some(entry) if entry.key >= end => return Ok(true),
            Some(entry) if entry.seqno <= seqno => return Ok(false),
            Some(_) => entries.next()?,
            None => return Ok(true),
        }
    }
    Ok(false)
}
