//! Guards of commits: what changed in a view since a moment.
//!
//! A guarded commit is checked twice. The first time it holds no lock and looks at everything that
//! is newer than the moments of its guards. The second time, under the lock of commits, it looks
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
//!    it; a guard on a range walks the entries of the range; a guard on what a branch has walks all
//!    that is newer, and looks each key up in the branch.
//!
//! Value blocks are not read: their index entries have key and sequence number.

use super::Committer;
use crate::VtError;
use crate::buffer::Buffer;
use crate::keys_between::{SmallestKeys, newer_buffers};
use crate::read::ReadPath;
use crate::snapshots::Snapshots;
use crate::table::SeqnoWindow;
use crate::version::{TableHandle, TreeVersion};
use crate::view::View;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{ChangedKey, Guard, Guarded, Guards, KeyRange, KvError, check_branch_of};

impl Committer {
    /// Checks guards without a lock. Returns the newest write up to which nothing has changed.
    ///
    /// # Errors
    /// [`KvError::Conflict`] and as [`stitch_kv::Engine::commit_guarded`].
    pub(super) fn check_guards(&self, guards: &Guards) -> Result<Seqno, KvError> {
        debug_assert!(!guards.is_empty(), "something is guarded");
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
        debug_assert!(
            checked.0 <= self.visible.load(Ordering::Acquire),
            "what was checked is visible"
        );
        // Taken after `visible` was read: it has all that is visible then.
        let view = self.views.get();
        let check = self.guard_check(&view);
        guards.check(|guard| {
            let mut changed = check.changed_under(guard, checked, 1)?;
            Ok(changed.pop_first())
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
        let check = self.guard_check(&view);
        guards.changed_keys(count_max, |guard| {
            let changed = check.changed_under(guard, Seqno(0), count_max)?;
            Ok(changed.into_vec())
        })
    }

    fn guard_check<'a>(&'a self, view: &'a View) -> GuardCheck<'a> {
        GuardCheck {
            snapshots: &self.snapshots,
            reads: &self.reads,
            view,
        }
    }
}

/// Looks for what changed under guards in one view.
///
/// Invariant: all that was visible when the view was taken is in it.
struct GuardCheck<'a> {
    snapshots: &'a Arc<Snapshots>,
    reads: &'a ReadPath,
    view: &'a View,
}

impl GuardCheck<'_> {
    /// The keys under a guard with a write that is newer than `checked` and than its moment.
    fn changed_under(
        &self,
        guard: &Guard<'_>,
        checked: Seqno,
        count_max: usize,
    ) -> Result<SmallestKeys, KvError> {
        let hold = self.snapshots.own(guard.since);
        let hold = hold.ok_or_else(|| KvError::Invalid("a guard of another store".to_owned()))?;
        hold.check_held(&self.view.version, (guard.tree, guard.on))?;
        let tree = self.view.version.trees.get(&guard.tree);
        let tree = tree.filter(|tree| tree.hidden.is_none());
        let tree = tree.ok_or(KvError::NoTree(guard.tree))?;
        let since = guard.since.seqno().max(checked);
        debug_assert!(since >= checked, "what was checked is passed over");
        let mut changed = SmallestKeys::new(count_max);
        match guard.on {
            Guarded::Key(key) if self.is_key_changed(tree, key, since)? => {
                changed.add(key);
            }
            Guarded::Key(_) => {}
            Guarded::Range(range) => {
                self.changed_in_range(tree, range, since, &mut changed)?;
            }
            Guarded::Written(branch) => {
                let branch = self.branch_of(branch, guard.tree)?;
                self.changed_in_branch(tree, branch, since, &mut changed)?;
                for key in changed.iter() {
                    let on = Guarded::Key(key);
                    hold.check_held(&self.view.version, (guard.tree, on))?;
                }
            }
        }
        Ok(changed)
    }

    /// Returns a living branch of a tree.
    fn branch_of(&self, branch: TreeId, parent: TreeId) -> Result<&TreeVersion, KvError> {
        let found = self.view.version.trees.get(&branch);
        let found = found.filter(|tree| tree.hidden.is_none());
        let found = found.ok_or(KvError::NoTree(branch))?;
        let no_branch = || KvError::Invalid(format!("tree {branch} is no branch tree"));
        let point = found.info.branch.ok_or_else(no_branch)?;
        check_branch_of(branch, point.parent, parent)?;
        debug_assert_eq!(found.info.id, branch, "a tree is found by its number");
        Ok(found)
    }

    /// Adds the keys of a tree that were written since, and to a branch of it at any time. Walks
    /// what was written to the tree: of that there is little when a commit looks again.
    fn changed_in_branch(
        &self,
        tree: &TreeVersion,
        branch: &TreeVersion,
        since: Seqno,
        changed: &mut SmallestKeys,
    ) -> Result<(), VtError> {
        debug_assert_eq!(
            branch.info.branch.map(|point| point.parent),
            Some(tree.info.id),
            "a branch of the tree"
        );
        let (reads, view) = (self.reads, self.view);
        let (all, window) = (KeyRange::all(), SeqnoWindow::since(since));
        let mut failed = None;
        reads.keys_in_window(
            view,
            tree,
            all,
            window,
            &mut |key| match self.is_key_changed(branch, key, Seqno(0)) {
                Ok(true) => changed.add(key),
                Ok(false) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
        )?;
        if let Some(error) = failed {
            return Err(error);
        }
        let mut deleted = Vec::new();
        reads.deletes_in_window(view, tree, all, window, &mut |start, end| {
            deleted.push((start.to_vec(), end.to_vec()));
        })?;
        for (start, end) in &deleted {
            let mut first = SmallestKeys::new(1);
            let range = KeyRange::new(start, end);
            debug_assert!(start < end, "a deleted range has keys");
            self.changed_in_range(branch, range, Seqno(0), &mut first)?;
            if let Some(key) = first.pop_first() {
                changed.add(&key);
            }
        }
        Ok(())
    }

    fn is_key_changed(
        &self,
        tree: &TreeVersion,
        key: &[u8],
        since: Seqno,
    ) -> Result<bool, VtError> {
        for buffer in newer_buffers(self.view, since) {
            if is_key_newer_in(buffer, tree.info.id, key, since)? {
                return Ok(true);
            }
        }
        let reaches = |handle: &&Arc<TableHandle>| {
            let meta = handle.meta();
            meta.smallest.as_slice() <= key && meta.reaches(key)
        };
        for handle in newer_tables(tree, since).filter(reaches) {
            debug_assert_eq!(handle.meta().tree, tree.info.id, "a table of the tree");
            debug_assert!(handle.meta().max_seqno > since, "older tables are not read");
            let table = self.reads.table(handle);
            let deletes = table.range_deletes()?;
            let deleted = deletes.newest_covering(key, Seqno(u64::MAX));
            if deleted.max(table.newest_of(key, since)?) > Some(since) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn changed_in_range(
        &self,
        tree: &TreeVersion,
        range: KeyRange<'_>,
        since: Seqno,
        changed: &mut SmallestKeys,
    ) -> Result<(), VtError> {
        let window = SeqnoWindow::since(since);
        debug_assert!(tree.hidden.is_none(), "a hidden tree is not guarded");
        let (reads, view) = (self.reads, self.view);
        reads.deletes_in_window(view, tree, range, window, &mut |start, _| {
            changed.add(start);
        })?;
        reads.keys_in_window(view, tree, range, window, &mut |key| changed.add(key))
    }
}

/// Reports whether a memtable has a write of a key that is newer than `since`.
fn is_key_newer_in(
    buffer: &Buffer,
    tree: TreeId,
    key: &[u8],
    since: Seqno,
) -> Result<bool, VtError> {
    let all = Seqno(u64::MAX);
    let memtable = &buffer.memtable;
    let mut newest = memtable.newest_covering(tree, key, all);
    memtable.versions_of(tree, key, all, &mut |entry, _| {
        debug_assert_eq!(entry.key, key, "a version of the key");
        newest = newest.max(Some(entry.seqno));
        ControlFlow::Break(())
    });
    for run in buffer.direct.holding(tree, key) {
        debug_assert_eq!(run.tree, tree, "a run of the tree");
        newest = newest.max(run.blocks.newest_of(key, since)?);
    }
    Ok(newest > Some(since))
}

/// Tables with a write that is newer than `since`.
fn newer_tables(tree: &TreeVersion, since: Seqno) -> impl Iterator<Item = &Arc<TableHandle>> {
    let tables = tree.tables().map(|(_, handle)| handle);
    tables.filter(move |handle| handle.meta().max_seqno > since)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
