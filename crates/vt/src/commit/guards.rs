//! Guards of commits: what changed in a view since a moment.
//!
//! A guarded commit is checked twice. The first time it holds no lock and looks at everything that
//! is newer than the moments of its guards. The second time, under the committer's lock, it looks
//! only at what was committed since the first:
//!
//! ```text
//! moment of the guards      visible when the first look began      the commit
//!         |------------- first look, no lock -----------|-- second look --|
//! ```
//!
//! 1. Memtables whose newest write is not newer are passed over; so are tables, by the newest
//!    sequence number in their record, and blocks, by the one in their index entry.
//! 2. In the others, a guard on a key looks for its newest version and the newest range delete over
//!    it; a guard on a range walks the entries of the range.
//!
//! Value blocks are not read: their index entries have key and sequence number.

use crate::VtError;
use crate::buffer::Buffer;
use crate::entry::EntryIter;
use crate::range_delete::RangeDeletes;
use crate::store::Store;
use crate::version::{TableHandle, TreeVersion};
use crate::view::View;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{ChangedKey, Guard, Guarded, Guards, KeyRange, KvError};

/// Keys of a guard that changed: the smallest, in order, at most `count_max`.
struct Changed {
    keys: BTreeSet<Vec<u8>>,
    count_max: usize,
}

impl Changed {
    const fn new(count_max: usize) -> Self {
        Self {
            keys: BTreeSet::new(),
            count_max,
        }
    }

    /// Adds a key. Returns false if no greater key can be among the smallest.
    fn add(&mut self, key: &[u8]) -> bool {
        let is_full = self.keys.len() >= self.count_max;
        let is_smaller = self.keys.last().is_some_and(|last| key < last.as_slice());
        if self.count_max == 0 || (is_full && !is_smaller) {
            return false;
        }
        self.keys.insert(key.to_vec());
        if self.keys.len() > self.count_max {
            self.keys.pop_last();
        }
        true
    }
}

impl Store {
    /// Checks guards without a lock. Returns the newest write up to which nothing has changed.
    ///
    /// # Errors
    /// [`KvError::Conflict`] and as [`stitch_kv::Engine::commit_guarded`].
    pub(super) fn check_guards(&self, guards: &Guards) -> Result<Seqno, KvError> {
        self.limits().check_guards(guards)?;
        let visible = Seqno(self.visible.load(Ordering::Acquire));
        self.check_guards_from(guards, Seqno(0))?;
        Ok(visible)
    }

    /// Checks guards against what is newer than `checked`, and not older than their moments.
    ///
    /// # Errors
    /// As [`Self::check_guards`].
    pub(super) fn check_guards_from(&self, guards: &Guards, checked: Seqno) -> Result<(), KvError> {
        // Taken after `visible` was read: it has all that is visible then.
        let view = self.views.get();
        guards.check(|guard| {
            let mut changed = self.changed_under(&view, guard, checked, 1)?;
            Ok(changed.keys.pop_first())
        })
    }

    /// The keys under guards that changed, at most `count_max`.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::changed_keys`].
    pub(crate) fn changed_keys(
        &self,
        guards: &Guards,
        count_max: usize,
    ) -> Result<Vec<ChangedKey>, KvError> {
        let view = self.views.get();
        guards.changed_keys(count_max, |guard| {
            let changed = self.changed_under(&view, guard, Seqno(0), count_max)?;
            Ok(changed.keys.into_iter().collect())
        })
    }

    fn changed_under(
        &self,
        view: &View,
        guard: &Guard<'_>,
        checked: Seqno,
        count_max: usize,
    ) -> Result<Changed, KvError> {
        if self.snapshots.own(guard.since).is_none() {
            return Err(KvError::Invalid("a guard of another store".to_owned()));
        }
        let tree = view.version.trees.get(&guard.tree);
        let tree = tree.filter(|tree| tree.hidden.is_none());
        let tree = tree.ok_or(KvError::NoTree(guard.tree))?;
        let since = guard.since.seqno().max(checked);
        let mut changed = Changed::new(count_max);
        match guard.on {
            Guarded::Key(key) if self.is_key_changed(view, tree, key, since)? => {
                changed.add(key);
            }
            Guarded::Key(_) => {}
            Guarded::Range(range) => {
                self.changed_in_range(view, tree, range, since, &mut changed)?;
            }
        }
        Ok(changed)
    }

    fn is_key_changed(
        &self,
        view: &View,
        tree: &TreeVersion,
        key: &[u8],
        since: Seqno,
    ) -> Result<bool, VtError> {
        for buffer in newer_buffers(view, since) {
            if self.is_key_newer_in(buffer, tree.info.id, key, since)? {
                return Ok(true);
            }
        }
        let reaches = |handle: &&Arc<TableHandle>| {
            let meta = handle.meta();
            meta.smallest.as_slice() <= key && meta.reaches(key)
        };
        for handle in newer_tables(tree, since).filter(reaches) {
            let table = self.table(handle);
            let deletes = table.range_deletes()?;
            let deleted = deletes.newest_covering(key, Seqno(u64::MAX));
            if deleted.max(table.newest_of(key, since)?) > Some(since) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_key_newer_in(
        &self,
        buffer: &Buffer,
        tree: TreeId,
        key: &[u8],
        since: Seqno,
    ) -> Result<bool, VtError> {
        let all = Seqno(u64::MAX);
        let memtable = &buffer.memtable;
        let mut newest = memtable.newest_covering(tree, key, all);
        memtable.versions_of(tree, key, all, &mut |entry, _| {
            newest = newest.max(Some(entry.seqno));
            ControlFlow::Break(())
        });
        for run in buffer.direct.holding(tree, key) {
            newest = newest.max(run.blocks.newest_of(key, since)?);
        }
        Ok(newest > Some(since))
    }

    fn changed_in_range(
        &self,
        view: &View,
        tree: &TreeVersion,
        range: KeyRange<'_>,
        since: Seqno,
        changed: &mut Changed,
    ) -> Result<(), VtError> {
        let id = tree.info.id;
        for buffer in newer_buffers(view, since) {
            newer_deletes(&buffer.memtable.range_deletes(id), range, since, changed);
            let mut entries = buffer.memtable.iter(id);
            newer_entries(&mut entries, range, since, changed)?;
            for run in buffer.direct.overlapping(id, range.start, range.end) {
                run.blocks
                    .newer_keys(range, since, &mut |key| changed.add(key))?;
            }
        }
        let overlaps = |handle: &&Arc<TableHandle>| handle.meta().overlaps(range.start, range.end);
        for handle in newer_tables(tree, since).filter(overlaps) {
            let table = self.table(handle);
            newer_deletes(&*table.range_deletes()?, range, since, changed);
            table.newer_keys(range, since, &mut |key| changed.add(key))?;
        }
        Ok(())
    }
}

/// Memtables with a write that is newer than `since`. What is being committed may not be noted yet:
/// the second look meets it.
fn newer_buffers(view: &View, since: Seqno) -> impl Iterator<Item = &Arc<Buffer>> {
    let buffers = view.buffers.iter();
    buffers.filter(move |buffer| buffer.last_seqno() > since)
}

/// Tables with a write that is newer than `since`.
fn newer_tables(tree: &TreeVersion, since: Seqno) -> impl Iterator<Item = &Arc<TableHandle>> {
    let tables = tree.tables().map(|(_, handle)| handle);
    tables.filter(move |handle| handle.meta().max_seqno > since)
}

/// Adds the first key of the range under each newer range delete.
fn newer_deletes(deletes: &RangeDeletes, range: KeyRange<'_>, since: Seqno, changed: &mut Changed) {
    for delete in deletes.iter().filter(|delete| delete.seqno > since) {
        let start = delete.start.as_slice().max(range.start);
        let is_before_end = range.end.is_none_or(|end| start < end);
        if is_before_end && start < delete.end.as_slice() {
            changed.add(start);
        }
    }
}

/// Adds the keys of newer entries in the range.
fn newer_entries(
    entries: &mut dyn EntryIter,
    range: KeyRange<'_>,
    since: Seqno,
    changed: &mut Changed,
) -> Result<(), VtError> {
    entries.seek(range.start, Seqno(u64::MAX))?;
    while let Some(entry) = entries.current()
        && range.end.is_none_or(|end| entry.key < end)
    {
        if entry.seqno > since && !changed.add(entry.key) {
            break;
        }
        entries.next()?;
    }
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
