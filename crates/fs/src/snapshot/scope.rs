//! Which trees of the store a snapshot holds.
//!
//! ```text
//! fs/meta, fs/data, ...    mainline         held by every snapshot: its path leads through it
//! fs~7/meta, ...           clone 7          held, unless the snapshot is of a directory in a clone
//!                                           that clone 7 does not lie in and that has not clone 7
//! txn~..., others          transactions,    not held: no snapshot shows them
//!                          records
//! ```

use crate::CloneInfo;
use crate::schema::{SCHEMA, view_of_tree};
use std::collections::{BTreeMap, BTreeSet};
use stitch_kv::TreeInfo;

/// The clones of a store, each with the view that it lies in; 0 is mainline.
pub(super) struct Homes(BTreeMap<u64, u64>);

impl Homes {
    pub(super) fn of(clones: &[CloneInfo]) -> Self {
        let homes: BTreeMap<u64, u64> =
            clones.iter().map(|info| (info.number, info.home)).collect();
        debug_assert_eq!(homes.len(), clones.len(), "a number is of one clone");
        debug_assert!(!homes.contains_key(&0), "mainline is no clone");
        Self(homes)
    }

    /// Reports whether a view is `outer`, or lies in it. Records of a damaged store may lie in each
    /// other.
    pub(super) fn lies_in(&self, view: u64, outer: u64) -> bool {
        let home = |view: &u64| self.0.get(view).copied();
        let mut way = std::iter::successors(Some(view), home).take(1 + self.0.len());
        let is_in = way.any(|at| at == outer);
        debug_assert!(is_in || view != outer, "a view lies in itself");
        is_in
    }

    /// Returns the clones that a snapshot of a directory in `view` neither shows nor leads through.
    fn unrelated(&self, view: u64) -> BTreeSet<u64> {
        let is_related = |clone: u64| self.lies_in(clone, view) || self.lies_in(view, clone);
        debug_assert!(is_related(view), "a view is related to itself");
        let clones = self.0.keys().copied();
        clones.filter(|clone| !is_related(*clone)).collect()
    }
}

/// The trees that a snapshot of a directory in a view holds: those of mainline, and of the clones
/// that may lie in the directory or above it. A clone stays in the view that it was made in, and
/// one that is being made is held: so none that the snapshot shows is missing.
pub(crate) struct HeldTrees {
    /// Clones whose trees are not held.
    unrelated: BTreeSet<u64>,
}

impl HeldTrees {
    /// Returns those of a snapshot in a store with these clones.
    pub(crate) fn of(clones: &[CloneInfo], view: u64) -> Self {
        let unrelated = Homes::of(clones).unrelated(view);
        debug_assert!(view > 0 || unrelated.is_empty(), "all lie in mainline");
        debug_assert!(!unrelated.contains(&view), "a view is related to itself");
        Self { unrelated }
    }

    /// Reports whether a tree is held.
    pub(crate) fn has(&self, tree: &TreeInfo) -> bool {
        let schema = tree.name.split_once('/').map(|(schema, _)| schema);
        let of_clone = view_of_tree(&tree.name);
        let is_related = |number: u64| !self.unrelated.contains(&number);
        schema == Some(SCHEMA) || of_clone.is_some_and(is_related)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::TreeId;
    use stitch_kv::TreeOptions;

    fn homes() -> Homes {
        // 1 and 2 lie in mainline, 3 and 4 in 1, 5 in 3.
        Homes(BTreeMap::from([(1, 0), (2, 0), (3, 1), (4, 1), (5, 3)]))
    }

    #[test]
    fn clones_above_and_below_are_related() {
        let unrelated = |view| homes().unrelated(view).into_iter().collect::<Vec<_>>();
        assert_eq!(unrelated(0), []);
        assert_eq!(unrelated(1), [2]);
        assert_eq!(unrelated(3), [2, 4]);
        assert_eq!(unrelated(5), [2, 4]);
        let damaged = Homes(BTreeMap::from([(1, 2), (2, 1), (3, 0)]));
        assert_eq!(damaged.unrelated(1), BTreeSet::from([3]));
    }

    #[test]
    fn a_snapshot_holds_trees_of_files_alone() {
        let held = HeldTrees {
            unrelated: homes().unrelated(3),
        };
        let is_held = |name: &str| {
            let tree = TreeInfo {
                id: TreeId(1),
                name: name.to_owned(),
                options: TreeOptions::default(),
                branch: None,
                branch_ranges: None,
            };
            held.has(&tree)
        };
        assert!(
            ["fs/meta", "fs/data", "fs~3/meta", "fs~6/data"]
                .into_iter()
                .all(is_held)
        );
        let others = [
            "fs~2/meta",
            "fs",
            "fs~x/meta",
            "txn~1/meta",
            "db0",
            "spill~1/2",
        ];
        assert!(!others.into_iter().any(is_held));
    }
}
