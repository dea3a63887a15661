//! What a memtable has entries of, for reads that would search it in vain: marks of trees, and a
//! filter of keys for branch trees.
//!
//! A tree is either filtered, or not, by the residue of its number ([`TreeMarks`]). A residue is
//! filtered if a branch tree is the first to write. Then the keys of all its trees are in the
//! filter.
//!
//! ```text
//! writes               marks                        a get through branches searches
//! 3 puts a             not filtered: 3              for 3: always
//! 9, a branch, puts b  filtered: 9    filter: 9 b   for 9: if the filter has the key
//! 73 puts c            (73 % 64 = 9)  filter: 73 c  for 73: if the filter has the key
//! 67, a branch, puts d not filtered: 3 (67 % 64)    for 67: always
//! ```
//!
//! So a tree of mainline pays one load and one branch for each entry. The filter is allocated with
//! the first filtered residue.
//!
//! Orders of memory: a writer marks the tree and adds the key before it links the node. After that
//! it publishes the sequence number of the entry with a releasing store. A reader that must see
//! the entry has read this number, or a later one, with an acquiring load. So mark, filter and
//! bits happened before its own loads, which may be relaxed. A reader of an older moment may find
//! bits of newer keys, and searches in vain.
//!
//! Invariants:
//! - of each entry that a reader must see, the residue is marked as not filtered; or it is marked
//!   as filtered, and the filter has the key;
//! - marks and bits are never taken back.

use super::key_filter::KeyFilter;
use super::tree_marks::TreeMarks;
use std::sync::OnceLock;
use stitch_base::TreeId;

/// Marks of trees, and a filter of keys.
#[derive(Debug, Default)]
pub(super) struct KeyMarks {
    /// Residues of trees with entries whose keys are not in the filter.
    unfiltered: TreeMarks,
    /// Residues of trees whose keys go to the filter from their first entry on.
    filtered: TreeMarks,
    filter: OnceLock<KeyFilter>,
}

impl KeyMarks {
    /// Has the keys of a tree go to the filter, if it has no entry yet, nor another tree with the
    /// same residue. Returns the bytes of memory that this takes: those of the filter, the first
    /// time. `memtable_bytes` is the size of the memtable.
    pub(super) fn filter_keys_of(&self, tree: TreeId, memtable_bytes: usize) -> usize {
        if self.may_have(tree) {
            return 0;
        }
        let mut bytes = 0;
        self.filter.get_or_init(|| {
            let filter = KeyFilter::for_memtable(memtable_bytes);
            bytes = filter.bytes();
            filter
        });
        self.filtered.add(tree);
        debug_assert!(self.may_have(tree), "the tree is marked");
        bytes
    }

    /// Adds a key of a tree, whose hash is asked for if it goes to the filter.
    #[inline]
    pub(super) fn add(&self, tree: TreeId, hash: impl FnOnce() -> u64) {
        if self.filtered.may_have(tree) {
            let filter = self.filter.get();
            let filter = filter.expect("it was made before the tree was marked");
            filter.add(tree, hash());
        } else {
            self.unfiltered.add(tree);
        }
        debug_assert!(self.may_have(tree), "a mark stays");
    }

    /// Reports whether a tree may have entries.
    #[inline]
    pub(super) fn may_have(&self, tree: TreeId) -> bool {
        self.unfiltered.may_have(tree) || self.filtered.may_have(tree)
    }

    /// Reports whether a tree may have entries of a key, whose hash is asked for if that depends on
    /// the filter. `false` is certain.
    #[inline]
    pub(super) fn may_have_key(&self, tree: TreeId, hash: impl FnOnce() -> u64) -> bool {
        if self.unfiltered.may_have(tree) {
            return true;
        }
        let filter = match self.filtered.may_have(tree) {
            true => self.filter.get(),
            false => None,
        };
        filter.is_some_and(|filter| filter.may_have(tree, hash()))
    }

    /// Reports whether no tree is marked.
    pub(super) fn is_empty(&self) -> bool {
        self.unfiltered.is_empty() && self.filtered.is_empty()
    }
}
