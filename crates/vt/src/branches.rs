//! Branch trees: trees that read in a parent what was not written to them.
//!
//! - A branch sees its parent as of a moment, and holds that moment of the parent like a snapshot
//!   ([`crate::snapshots`]): from before its edit is logged until after the edit that drops it. So
//!   compactions of the parent keep what it sees. Those of other trees need not. After an open the
//!   moments are held before anything is written out.
//! - All that was written to a branch is newer than its moment. So a read looks at the sources of
//!   the branch, then at those of the parent up to the moment, then at those of the parent's
//!   parent, and versions still come newest first.
//! - Nothing is ever at the bottom of a branch: below its deepest level lie the levels of its
//!   parent. Compactions keep its deletes, and upserts without a base.
//! - A tree that is dropped while another reads it stays in the version, *hidden*
//!   ([`crate::pins`]). The edit that drops its last reader drops the tree.
//!
//! ```text
//!   time      tree 5 made | 6 made, a branch of 5 | 5 dropped | 6 dropped
//!   tree 5    living                              | hidden    | gone
//! ```

mod releases;

use crate::pins::Pins;
use crate::snapshots::{Hold, Snapshots};
use crate::version::{TreeVersion, Version};
pub(crate) use releases::Look;
use releases::Releases;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{PinId, Seqno, TreeId};
use stitch_format::vt_manifest::VersionEdit;
use stitch_kv::{KeyRanges, KvError};

/// The moments of a store's branch trees.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    holds: Mutex<BTreeMap<TreeId, Arc<Hold>>>,
    /// Of an open: branches that a replayed record has absorbed.
    absorbed: Mutex<BTreeSet<TreeId>>,
    pub(crate) releases: Releases,
}

impl Branches {
    /// Holds the moments of the branches of an earlier life.
    pub(crate) fn restore(&self, version: &Version, snapshots: &Arc<Snapshots>) {
        let mut holds = self.holds.lock();
        debug_assert!(holds.is_empty(), "branches are restored once");
        for tree in version.trees.values() {
            if let Some(branch) = tree.info.branch {
                let ranges = tree.info.branch_ranges.clone();
                let hold = snapshots.take_for_branch(branch.seqno, branch.parent, ranges);
                debug_assert_eq!(hold.seqno(), branch.seqno, "the branch's moment is held");
                holds.insert(tree.info.id, hold);
            }
        }
    }

    /// Notes a branch that a replayed record has absorbed.
    pub(crate) fn note_absorbed(&self, tree: TreeId) {
        self.absorbed.lock().insert(tree);
    }

    /// Takes out the branches that replayed records have absorbed.
    pub(crate) fn take_absorbed(&self) -> BTreeSet<TreeId> {
        std::mem::take(&mut *self.absorbed.lock())
    }

    /// Takes over what holds the moments of new branches.
    pub(crate) fn add(&self, new: impl Iterator<Item = (TreeId, Arc<Hold>)>) {
        let new = new.inspect(|(tree, hold)| {
            let is_older = |parent: TreeId| parent < *tree;
            debug_assert!(hold.parent().is_some_and(is_older), "a parent is older");
            debug_assert!(hold.sight().is_none(), "a branch is no pin");
        });
        self.holds.lock().extend(new);
    }

    /// Lets go of the moments of branches that are gone.
    pub(crate) fn remove(&self, gone: &[TreeId]) {
        if gone.is_empty() {
            return;
        }
        let mut holds = self.holds.lock();
        let removed: Vec<_> = gone.iter().filter_map(|tree| holds.remove(tree)).collect();
        drop(holds);
        self.releases.forget(gone);
        // Their moments are let go without the lock.
        drop(removed);
    }

    /// Returns what holds the moment of a branch.
    ///
    /// # Errors
    /// [`KvError::Invalid`] for a tree that is no branch.
    pub(crate) fn find(&self, tree: TreeId) -> Result<Arc<Hold>, KvError> {
        let found = self.holds.lock().get(&tree).map(Arc::clone);
        debug_assert!(
            found.as_ref().is_none_or(|hold| !hold.has(tree)),
            "a branch holds its parent, not itself"
        );
        found.ok_or_else(|| KvError::Invalid(format!("tree {tree} is no branch")))
    }

    /// Returns the hold of every branch that outlives this opening of the store.
    pub(crate) fn lasting_holds(&self, version: &Version) -> Vec<Arc<Hold>> {
        let holds = self.holds.lock();
        debug_assert!(
            holds.values().all(|hold| hold.parent().is_some()),
            "of branches"
        );
        let lasting = holds.iter().filter(|(id, _)| !version.is_temporary(**id));
        lasting.map(|(_, hold)| Arc::clone(hold)).collect()
    }

    /// Returns the newest moment that a branch sees; 0 without any branch.
    pub(crate) fn newest_seqno(&self) -> Seqno {
        let holds = self.holds.lock();
        holds.values().map(|h| h.seqno()).max().unwrap_or_default()
    }

    /// Returns the newest moment that a branch of a tree sees of every key, 0 without any; and
    /// those that branches see of ranges of it.
    pub(crate) fn newest_seqnos_of(&self, parent: TreeId) -> (Seqno, Vec<(Seqno, KeyRanges)>) {
        let holds = self.holds.lock();
        let (mut whole, mut ranged) = (Seqno(0), Vec::new());
        for hold in holds.values().filter(|h| h.parent() == Some(parent)) {
            debug_assert!(hold.has(parent), "the moment is held of the parent");
            match hold.ranges_of(parent) {
                Some(ranges) => ranged.push((hold.seqno(), ranges.clone())),
                None => whole = whole.max(hold.seqno()),
            }
        }
        (whole, ranged)
    }
}

impl TreeVersion {
    /// Returns whether it has a parent, in which reads go on.
    pub(crate) const fn is_branch(&self) -> bool {
        self.info.branch.is_some()
    }
}

impl Version {
    /// Returns how many parents a tree has, one above the other.
    pub(crate) fn branch_depth(&self, tree: TreeId) -> usize {
        self.lineage(tree).count().saturating_sub(1)
    }

    /// Returns a tree and its parents, the nearest first.
    pub(crate) fn lineage(&self, tree: TreeId) -> impl Iterator<Item = &Arc<TreeVersion>> {
        let parent = |tree: &&Arc<TreeVersion>| {
            let branch = tree.info.branch?;
            debug_assert!(branch.parent < tree.info.id, "a parent is older");
            self.trees.get(&branch.parent)
        };
        std::iter::successors(self.trees.get(&tree), parent)
    }

    /// Adds the drop of trees to an edit. Of these and of the trees that are hidden already, those
    /// go that no pin but the pins `but`, which are in order, sees and no branch reads. The others
    /// become hidden, or stay so. No pin sees a temporary tree.
    pub(crate) fn note_dropped(
        &self,
        edit: &mut VersionEdit,
        trees: &BTreeSet<TreeId>,
        (pins, but): (&Pins, &[PinId]),
    ) {
        debug_assert!(but.is_sorted(), "the pins are in order");
        debug_assert!(
            edit.pins.last >= self.last_pin,
            "the edit is of this version"
        );
        let mut parents = BTreeSet::new();
        // A branch is newer than its parent, so what reads a tree is known when the tree is met.
        for (id, tree) in self.trees.iter().rev() {
            let is_dropped = trees.contains(id);
            debug_assert!(!is_dropped || tree.hidden.is_none(), "dropped once");
            let unseen_by = tree.hidden.unwrap_or_else(|| edit.pins.last.next());
            let may_go = is_dropped || tree.hidden.is_some();
            let is_seen = || !self.is_temporary(*id) && pins.has_seer(*id, unseen_by, but);
            let is_kept = !may_go || parents.contains(id) || is_seen();
            if !is_kept {
                edit.dropped_trees.push(*id);
                continue;
            }
            if is_dropped {
                edit.pins.hidden.push((*id, unseen_by));
            }
            parents.extend(tree.info.branch.map(|branch| branch.parent));
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
