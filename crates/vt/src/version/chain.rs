//! Chains of branches: for a branch tree, the levels that its reads search, its own and those of
//! its parents.
//!
//! A read of a branch goes on in the parent, and in the parent's parent. Most trees of a chain have
//! tables in one or two of eight levels. A chain lists the trees and these levels alone, each with
//! the heads of its first and last key. So a get compares two numbers, instead of searching trees
//! in a map and keys in empty levels. A level of one table has that table beside these: if the
//! table has a filter of its own, a get asks it before it compares whole keys.
//!
//! ```text
//! chain of 9    tree   sees up to   levels with tables
//!               9      any          1 [c .. f]
//!               7      120          none: a memtable may still have entries of it
//!               2      80           0 [a .. z], 3 [a .. y], 4 [a .. z]
//! get of "d"    9: level 1    2: levels 0, 3, 4
//! get of "x"                  2: levels 0, 3, 4
//! ```
//!
//! Invariants:
//! - a version makes a chain when a read asks for it first, once. A version never changes, so no
//!   chain is out of date: an edit makes another version, and a copy of a version has no chain;
//! - memtables are in no chain. They take entries for as long as a version lives.

use super::{Level, TableHandle, TreeVersion, Version};
use crate::prefix::first_bytes;
use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::sync::{Arc, OnceLock};
use stitch_base::{Seqno, TreeId};

/// The chains of a version.
#[derive(Default)]
pub(crate) struct BranchChains {
    /// A place for that of each branch tree.
    of_branches: OnceLock<BTreeMap<TreeId, OnceLock<BranchChain>>>,
}

impl Clone for BranchChains {
    /// None of them: the copy of a version may get other tables.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Debug for BranchChains {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BranchChains").finish_non_exhaustive()
    }
}

/// A branch tree and its parents, the nearest first.
pub(crate) struct BranchChain {
    trees: Vec<ChainTree>,
}

/// One tree of a chain.
pub(crate) struct ChainTree {
    /// Its tables.
    pub(crate) tree: Arc<TreeVersion>,
    /// The newest write to it that the branch sees; the greatest number for the branch itself.
    pub(crate) seqno: Seqno,
    levels: Vec<ChainLevel>,
}

/// A level with tables.
struct ChainLevel {
    number: usize,
    /// The first bytes of its smallest key.
    first: u128,
    /// The first bytes of its largest key, or of the end behind it.
    last: u128,
    /// Its table, if it is the only one and has no range deletes.
    lone: Option<Arc<TableHandle>>,
}

/// A level that may have a key.
pub(crate) struct FoundLevel<'a> {
    pub(crate) number: usize,
    pub(crate) level: &'a Level,
    /// Its table, if it is the only one and has no range deletes: without the key in it, the level
    /// says nothing about the key.
    pub(crate) lone: Option<&'a Arc<TableHandle>>,
}

impl BranchChain {
    /// The chain of a branch tree of a version.
    fn new(version: &Version, branch: &Arc<TreeVersion>) -> Self {
        let mut seqno = Seqno(u64::MAX);
        let lineage = version.lineage(branch.info.id).map(|tree| {
            let link = ChainTree::new(tree, seqno);
            if let Some(point) = tree.info.branch {
                seqno = seqno.min(point.seqno);
            }
            link
        });
        let trees: Vec<ChainTree> = lineage.collect();
        debug_assert!(
            trees.is_sorted_by(|tree, parent| tree.tree.info.id > parent.tree.info.id),
            "a parent is older"
        );
        debug_assert!(
            trees.is_sorted_by(|tree, parent| tree.seqno >= parent.seqno),
            "of a parent no more is seen than of its branch"
        );
        debug_assert!(trees.len() > 1, "a branch has a parent");
        debug_assert!(
            trees.last().is_some_and(|last| !last.tree.is_branch()),
            "a chain ends with a tree that has no parent"
        );
        Self { trees }
    }

    /// Its trees, the branch itself first.
    pub(crate) fn trees(&self) -> &[ChainTree] {
        &self.trees
    }
}

impl ChainTree {
    fn new(tree: &Arc<TreeVersion>, seqno: Seqno) -> Self {
        let levels = tree.levels.iter().enumerate();
        Self {
            tree: Arc::clone(tree),
            seqno,
            levels: levels.filter_map(ChainLevel::new).collect(),
        }
    }

    /// The levels that may have a key with these first bytes, newest data first.
    pub(crate) fn levels_with(&self, head: u128) -> impl Iterator<Item = FoundLevel<'_>> {
        debug_assert!(
            self.levels
                .is_sorted_by(|level, next| level.number < next.number),
            "levels are in order, newest data first"
        );
        let found = self.levels.iter().filter(move |level| level.may_hold(head));
        found.map(|level| FoundLevel {
            number: level.number,
            level: &self.tree.levels[level.number],
            lone: level.lone.as_ref(),
        })
    }

    /// Reports whether reads that find nothing in it go on in its parent for this key.
    pub(crate) fn goes_on(&self, key: &[u8]) -> bool {
        let ranges = self.tree.info.branch_ranges.as_ref();
        debug_assert!(
            ranges.is_none() || self.tree.is_branch(),
            "only a branch begins with ranges of keys"
        );
        self.tree.is_branch() && ranges.is_none_or(|ranges| ranges.has(key))
    }
}

impl ChainLevel {
    /// That of a level; `None` if it has no table.
    fn new((number, level): (usize, &Level)) -> Option<Self> {
        let smallest = level.tables.iter().map(|table| &table.meta().smallest);
        let largest = level.tables.iter().map(|table| &table.meta().largest);
        let (first, last) = (first_bytes(smallest.min()?), first_bytes(largest.max()?));
        debug_assert!(first <= last, "the first key is not behind the last one");
        let lone = match level.tables.as_slice() {
            [table] if table.meta().range_delete_count == 0 => Some(Arc::clone(table)),
            _ => None,
        };
        Some(Self {
            number,
            first,
            last,
            lone,
        })
    }

    const fn may_hold(&self, head: u128) -> bool {
        debug_assert!(
            self.first <= self.last,
            "the first key is not behind the last"
        );
        self.first <= head && head <= self.last
    }
}

impl Version {
    /// Returns the chain of a branch tree of this version.
    ///
    /// # Panics
    /// If the tree is no branch of this version.
    pub(crate) fn chain(&self, branch: &Arc<TreeVersion>) -> &BranchChain {
        let places = self.chains.of_branches.get_or_init(|| {
            let branches = self.trees.iter().filter(|(_, tree)| tree.is_branch());
            branches.map(|(id, _)| (*id, OnceLock::new())).collect()
        });
        let place = places.get(&branch.info.id);
        let chain = place.expect("each branch has a place");
        let chain = chain.get_or_init(|| BranchChain::new(self, branch));
        debug_assert!(
            Arc::ptr_eq(&chain.trees[0].tree, branch),
            "the chain has the tables of this version"
        );
        chain
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
