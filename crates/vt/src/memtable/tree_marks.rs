//! Marks of the trees that have entries in a memtable: one bit for each residue of their numbers.
//!
//! ```text
//! trees with entries    3   70          bits 3 and 6 (70 % 64)
//! may_have              3, 6, 67, 70    not 4: its search is spared
//! ```
//!
//! Branches of branches have numbers near each other, so the trees of a chain have bits of their
//! own.
//!
//! Invariants:
//! - a tree is marked before its first entry is added. A reader that may see an entry has read,
//!   with an acquiring load, what its writer published after that; so it sees the mark;
//! - a mark is never taken back.

use stitch_base::TreeId;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// Bits of trees.
#[derive(Debug, Default)]
pub(super) struct TreeMarks(AtomicU64);

impl TreeMarks {
    /// Marks a tree.
    pub(super) fn add(&self, tree: TreeId) {
        let bit = bit(tree);
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Release);
        }
        debug_assert!(self.may_have(tree), "a mark stays");
    }

    /// Reports whether a tree is marked, or another one with the same bit.
    pub(super) fn may_have(&self, tree: TreeId) -> bool {
        self.0.load(Ordering::Acquire) & bit(tree) != 0
    }

    /// Reports whether no tree is marked.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

const fn bit(tree: TreeId) -> u64 {
    1 << (tree.0 % u64::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_marked_by_the_residues_of_their_numbers() {
        let marks = TreeMarks::default();
        assert!(marks.is_empty());
        for tree in [3, 70] {
            marks.add(TreeId(tree));
        }
        let marked: Vec<u32> = (0..80)
            .filter(|tree| marks.may_have(TreeId(*tree)))
            .collect();
        assert_eq!(marked, [3, 6, 67, 70]);
        assert!(!marks.is_empty());
    }
}
