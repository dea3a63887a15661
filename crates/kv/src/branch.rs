//! Branch trees: trees that begin with what another tree held at a moment.
//!
//! ```text
//! parent   |--- rows ---| s |--- its own changes -------------------|
//!                         \                                  / absorb
//! branch                   |--- reads rows at s, own writes -|
//! ```
//!
//! - Making one copies nothing. A read looks at what was written to the branch, and for what it
//!   leaves open at the parent as of the moment `s`.
//! - Parent and branch never see each other's later writes.
//! - The branch keeps its moment: no snapshot and no pin is needed for that. A parent that is
//!   dropped is hidden for as long as a branch reads it.
//! - A branch may be a parent. A chain has at most [`BRANCH_DEPTH_MAX`] parents.
//! - [`Engine::absorb`](crate::Engine::absorb) gives what was written to a branch to its parent.
//! - A *temporary* branch ends with the process: the writes of an open transaction need no more.

use crate::KvError;
use stitch_base::{Seqno, TreeId};

/// Most parents above a tree.
pub const BRANCH_DEPTH_MAX: usize = 32;

/// Where a branch tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BranchPoint {
    /// The tree that it reads where it has nothing of its own. It may be hidden.
    pub parent: TreeId,
    /// The last write to the parent that it sees.
    pub seqno: Seqno,
}

/// A range of keys that was deleted: its first key, and the first key after it.
pub type DeletedRange = (Vec<u8>, Vec<u8>);

/// For engines: joins ranges that overlap or touch, and puts them in order.
#[must_use]
pub fn join_ranges(mut ranges: Vec<DeletedRange>) -> Vec<DeletedRange> {
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    let mut joined: Vec<DeletedRange> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(std::mem::take(last)),
            _ => joined.push((start, end)),
        }
    }
    debug_assert!(joined.is_sorted(), "ranges are in order");
    joined
}

/// A branch tree to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBranch<'a> {
    /// The tree whose rows it begins with.
    pub parent: TreeId,
    /// Its name, unique among living trees.
    pub name: &'a str,
    /// It ends with this opening of the store; see [`Self::temporary`].
    pub is_temporary: bool,
}

impl<'a> NewBranch<'a> {
    /// A branch of `parent`.
    #[must_use]
    pub const fn new(parent: TreeId, name: &'a str) -> Self {
        assert!(parent.0 > 0, "tree 0 is never given out");
        debug_assert!(!name.is_empty(), "a tree has a name");
        Self {
            parent,
            name,
            is_temporary: false,
        }
    }

    /// A branch of `parent` that is gone when the store is opened again, and that no pin holds. A
    /// branch of it is temporary, too. Only the caller reads and writes it: another thread that
    /// reads it during a commit to it may see later commits without that one.
    ///
    /// An engine may treat it as any other branch. Then it is there after an open.
    #[must_use]
    pub const fn temporary(parent: TreeId, name: &'a str) -> Self {
        Self {
            is_temporary: true,
            ..Self::new(parent, name)
        }
    }
}

/// Refuses a branch tree with more parents than [`BRANCH_DEPTH_MAX`].
///
/// # Errors
/// [`KvError::TooDeep`].
pub const fn check_branch_depth(depth: usize) -> Result<(), KvError> {
    if depth <= BRANCH_DEPTH_MAX {
        return Ok(());
    }
    Err(KvError::TooDeep)
}

/// For engines: refuses a guard of `tree` on what was written to a branch of another tree,
/// `parent`.
///
/// # Errors
/// [`KvError::Invalid`].
pub fn check_branch_of(branch: TreeId, parent: TreeId, tree: TreeId) -> Result<(), KvError> {
    debug_assert!(parent < branch, "a parent is older");
    if parent == tree {
        return Ok(());
    }
    let what = format!("tree {branch} is a branch of tree {parent}, not of {tree}");
    Err(KvError::Invalid(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        let range = |start: &str, end: &str| (start.as_bytes().to_vec(), end.as_bytes().to_vec());
        let ranges = vec![
            range("m", "p"),
            range("a", "c"),
            range("c", "d"),
            range("b", "e"),
            range("n", "o"),
            range("x", "x"),
        ];
        assert_eq!(join_ranges(ranges), [range("a", "e"), range("m", "p")]);
        assert!(join_ranges(Vec::new()).is_empty());
    }
}
