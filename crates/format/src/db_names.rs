//! Names of trees and pins that the database makes in a store, beside those that users name.
//!
//! ```text
//! tree  branch~NAME/TREE    the branch of tree TREE in the branch NAME of a database
//! tree  spill~N/TREE        what transaction N has written to tree number TREE and not in memory
//! pin   db/NAME             the snapshot NAME of a database
//! ```
//!
//! Both kinds of trees are branch trees. `spill~` trees belong to a transaction of one process:
//! those that are there when a store is opened are what a crash has left. A user's tree of such a
//! name is no branch tree.

use stitch_base::TreeId;

/// Prefix of the names of trees in branches of a database; the name of the branch follows.
pub const BRANCH_PREFIX: &str = "branch~";
/// Prefix of the names of trees of transactions; a number follows.
pub const SPILL_PREFIX: &str = "spill~";
/// Prefix of the names of pins that are snapshots of a database; the snapshot's name follows.
pub const PIN_PREFIX: &str = "db/";

/// Returns the name of the branch of tree `tree` in the branch `branch`, which has no slash.
#[must_use]
pub fn branch_tree_name(branch: &str, tree: &str) -> String {
    debug_assert!(!branch.contains('/'), "a branch's name has no slash");
    format!("{BRANCH_PREFIX}{branch}/{tree}")
}

/// Returns the branch, and the name of the tree that is branched, of a tree's name.
#[must_use]
pub fn parse_branch_tree_name(name: &str) -> Option<(&str, &str)> {
    let (branch, tree) = name.strip_prefix(BRANCH_PREFIX)?.split_once('/')?;
    (!branch.is_empty()).then_some((branch, tree))
}

/// Returns the name of the tree in which transaction `number` keeps what it writes to `parent`.
#[must_use]
pub fn spill_tree_name(number: u64, parent: TreeId) -> String {
    debug_assert!(parent.0 > 0, "tree 0 is never given out");
    format!("{SPILL_PREFIX}{number}/{parent}")
}

/// Reports whether a transaction keeps in a tree of this name what it writes to `parent`.
#[must_use]
pub fn is_spill_tree_name(name: &str, parent: TreeId) -> bool {
    let rest = name.strip_prefix(SPILL_PREFIX);
    let number = rest.and_then(|rest| rest.split_once('/')?.0.parse().ok());
    number.is_some_and(|number| spill_tree_name(number, parent) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_pinned_and_read_back() {
        assert_eq!(branch_tree_name("what-if", "a/b"), "branch~what-if/a/b");
        let parsed = parse_branch_tree_name("branch~what-if/a/b");
        assert_eq!(parsed, Some(("what-if", "a/b")));
        for other in ["what-if/a", "branch~what-if", "branch~/a", "spill~1/2"] {
            assert_eq!(parse_branch_tree_name(other), None, "{other}");
        }
        assert_eq!(spill_tree_name(7, TreeId(12)), "spill~7/12");
        assert!(is_spill_tree_name("spill~7/12", TreeId(12)));
        for other in [
            "spill~7/13",
            "spill~07/12",
            "spill~7/12/3",
            "spill~x/12",
            "7/12",
        ] {
            assert!(!is_spill_tree_name(other, TreeId(12)), "{other}");
        }
        assert_eq!(PIN_PREFIX, "db/");
    }
}
