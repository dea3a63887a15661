//! Which branches give up what they have replaced, and what a look at each went by
//! ([`crate::replaced`]).

use super::Branches;
use crate::held::HeldSeqnos;
use crate::snapshots::Hold;
use crate::version::TreeVersion;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{Seqno, TableId, TreeId};

/// The branches that give up what they have replaced. Invariant: what was looked at is of branches
/// that were there then.
#[derive(Debug, Default)]
pub(crate) struct Releases(Mutex<ReleasesState>);

#[derive(Debug, Default)]
struct ReleasesState {
    told: BTreeSet<TreeId>,
    looked_at: BTreeMap<TreeId, Look>,
}

/// What a look at a branch went by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) tables: Vec<TableId>,
    /// The oldest moment that is held of the branch.
    pub(crate) oldest: Option<Seqno>,
}

impl Look {
    pub(crate) fn of(tree: &TreeVersion, held: &HeldSeqnos) -> Self {
        let tables = tree.tables().map(|(_, table)| table.meta().id).collect();
        let moments = held.of(tree.info.id);
        let oldest = moments.all().first().copied();
        debug_assert!(moments.all().is_sorted(), "moments are in order");
        Self { tables, oldest }
    }
}

impl Releases {
    pub(crate) fn tell(&self, branches: &[TreeId]) {
        self.0.lock().told.extend(branches);
    }

    /// Reports whether a branch may give anything up, and was not looked at like this.
    pub(crate) fn is_due(&self, tree: &TreeVersion, look: &Look) -> bool {
        let state = self.0.lock();
        let id = tree.info.id;
        let may = tree.hidden.is_some() || state.told.contains(&id);
        may && !look.tables.is_empty() && state.looked_at.get(&id) != Some(look)
    }

    pub(crate) fn note(&self, branch: TreeId, look: Look) {
        debug_assert!(!look.tables.is_empty(), "there was something to see");
        self.0.lock().looked_at.insert(branch, look);
    }

    /// Forgets branches that are gone.
    pub(super) fn forget(&self, gone: &[TreeId]) {
        let mut state = self.0.lock();
        for branch in gone {
            state.told.remove(branch);
            state.looked_at.remove(branch);
        }
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
