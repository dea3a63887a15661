//! The trees that a batch writes to: nearly always a few, so that no commit asks for memory to list
//! them.

use std::collections::BTreeSet;
use stitch_base::TreeId;

/// So many are kept in place.
const FEW: usize = 4;

/// A set of trees, in no particular order.
#[derive(Debug)]
pub(crate) struct BatchTrees {
    few: [TreeId; FEW],
    few_count: usize,
    more: BTreeSet<TreeId>,
}

impl BatchTrees {
    pub(crate) const fn new() -> Self {
        Self {
            few: [TreeId(0); FEW],
            few_count: 0,
            more: BTreeSet::new(),
        }
    }

    pub(crate) fn insert(&mut self, tree: TreeId) {
        debug_assert!(tree.0 > 0, "tree 0 is never given out");
        if self.few[..self.few_count].contains(&tree) {
            return;
        }
        debug_assert!(
            self.more.is_empty() || self.few_count == FEW,
            "the first few are in place"
        );
        if self.few_count < FEW {
            self.few[self.few_count] = tree;
            self.few_count += 1;
        } else {
            self.more.insert(tree);
        }
    }

    /// Each once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TreeId> {
        let few = self.few[..self.few_count].iter();
        debug_assert!(
            few.clone().all(|tree| !self.more.contains(tree)),
            "a tree is in one place"
        );
        few.chain(&self.more).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tree_comes_once() {
        let mut trees = BatchTrees::new();
        assert_eq!(trees.iter().count(), 0);
        for number in [3, 1, 3, 9, 7, 1, 2, 8, 2, 7] {
            trees.insert(TreeId(number));
        }
        let mut found: Vec<u32> = trees.iter().map(|tree| tree.0).collect();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 7, 8, 9]);
    }
}
