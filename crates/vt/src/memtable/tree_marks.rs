//! Marks of trees that have something in a memtable: one bit for each residue of their numbers.
//!
//! ```text
//! marked      3   70          bits 3 and 6 (70 % 64)
//! may_have    3, 6, 67, 70    not 4: its search is spared
//! ```
//!
//! Branches of branches have numbers near each other, so the trees of a chain have bits of their
//! own.
//!
//! Invariants:
//! - a tree is marked before its first entry is published. A reader that may see an entry has read,
//!   with an acquiring load, what its writer published after that; so it sees the mark;
//! - a mark is never taken back.

use stitch_base::TreeId;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// Bits of trees.
#[derive(Debug, Default)]
pub(super) struct TreeMarks(AtomicU64);

impl TreeMarks {
    /// Marks a tree.
    #[inline]
    pub(super) fn add(&self, tree: TreeId) {
        let bit = bit(tree);
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Release);
        }
        debug_assert!(self.may_have(tree), "a mark stays");
    }

    /// Reports whether a tree is marked, or another one with the same bit.
    #[inline]
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
