//! Which branches give up what they have replaced, and what a look at each went by
//! ([`crate::replaced`]).

use super::Branches;
use crate::held::HeldSeqnos;
use crate::snapshots::Hold;
use crate::version::{TreeVersion, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use stitch_base::sync::Mutex;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_kv::KeyRanges;

/// The branches that give up what they have replaced. Invariant: what was looked at is of branches
/// that were there then.
#[derive(Debug, Default)]
pub(crate) struct Releases(Mutex<ReleasesState>);

#[derive(Debug, Default)]
struct ReleasesState {
    told: BTreeSet<TreeId>,
    /// The keys that are read of the parent, where that is known.
    read: BTreeMap<TreeId, KeyRanges>,
    looked_at: BTreeMap<TreeId, Look>,
    /// The version in which all were looked at, and what was held then.
    all_in: Option<(Weak<Version>, HeldSeqnos)>,
}

/// What a look at a branch went by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    tables: Vec<TableId>,
    /// The oldest moment that is held of the branch.
    pub(crate) oldest: Option<Seqno>,
    /// Of a dropped branch: the keys that its readers read there, if not all.
    pub(crate) read: Option<KeyRanges>,
}

impl Look {
    pub(crate) fn of(tree: &TreeVersion, held: &HeldSeqnos) -> Self {
        let tables = tree.tables().map(|(_, table)| table.meta().id).collect();
        let moments = held.of(tree.info.id);
        let oldest = moments.all().first().copied();
        debug_assert!(moments.all().is_sorted(), "moments are in order");
        let is_dropped = tree.hidden.is_some();
        Self {
            tables,
            oldest,
            read: is_dropped.then(|| moments.keys()).flatten(),
        }
    }
}

impl Releases {
    pub(crate) fn tell(&self, branches: &[TreeId]) {
        let mut state = self.0.lock();
        state.told.extend(branches);
        state.all_in = None;
    }

    /// Reports whether all were looked at in this version, while these moments were held.
    pub(crate) fn is_all_seen(&self, version: &Arc<Version>, held: &HeldSeqnos) -> bool {
        let state = self.0.lock();
        let seen = state.all_in.as_ref();
        seen.is_some_and(|(of, then)| {
            std::ptr::eq(of.as_ptr(), Arc::as_ptr(version)) && then == held
        })
    }

    /// Notes that all were looked at.
    pub(crate) fn note_all(&self, version: &Arc<Version>, held: HeldSeqnos) {
        self.0.lock().all_in = Some((Arc::downgrade(version), held));
    }

    /// Reports whether a branch may give anything up, and was not looked at like this.
    pub(crate) fn is_due(&self, tree: &TreeVersion, look: &Look) -> bool {
        debug_assert!(tree.is_branch(), "a branch has replaced something");
        let state = self.0.lock();
        let id = tree.info.id;
        let may = tree.hidden.is_some() || state.told.contains(&id);
        let is_some_read = look.read.is_some() || state.read.contains_key(&id);
        let has_any = !look.tables.is_empty() || is_some_read;
        may && has_any && state.looked_at.get(&id) != Some(look)
    }

    /// Notes the keys of its parent that a branch reads. It is looked at once more.
    pub(crate) fn note_read(&self, branch: TreeId, ranges: KeyRanges) {
        let mut state = self.0.lock();
        state.told.insert(branch);
        state.read.insert(branch, ranges);
        debug_assert!(
            state.read.keys().all(|branch| state.told.contains(branch)),
            "what is read is known of branches that give something up"
        );
        state.looked_at.remove(&branch);
        state.all_in = None;
    }

    /// Returns the keys of its parent that a branch reads, if that is known.
    pub(crate) fn read_by(&self, branch: TreeId) -> Option<KeyRanges> {
        self.0.lock().read.get(&branch).cloned()
    }

    pub(crate) fn note(&self, branch: TreeId, look: Look) {
        self.0.lock().looked_at.insert(branch, look);
    }

    /// Forgets branches that are gone.
    pub(super) fn forget(&self, gone: &[TreeId]) {
        let mut state = self.0.lock();
        for branch in gone {
            state.told.remove(branch);
            state.read.remove(branch);
            state.looked_at.remove(branch);
        }
        debug_assert!(
            state.read.len() <= state.told.len(),
            "what is read is known of branches that give something up"
        );
    }
}

impl Branches {
    /// Takes another hold of a branch in the place of the one before, unless the branch is gone.
    pub(crate) fn renew(&self, branch: TreeId, hold: Arc<Hold>) {
        let mut holds = self.holds.lock();
        let before = match holds.get_mut(&branch) {
            Some(own) => {
                debug_assert_eq!(own.seqno(), hold.seqno(), "the moment stays");
                debug_assert_eq!(own.parent(), hold.parent(), "and the parent");
                std::mem::replace(own, hold)
            }
            None => hold,
        };
        drop(holds);
        // Its moment is let go without the lock.
        drop(before);
    }
}
