//! The moments that nothing holds any more, of which tables may still have versions.

use std::collections::BTreeMap;
use stitch_base::{Seqno, TreeId};

/// From the oldest to the newest dropped moment, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedMoments {
    oldest: Seqno,
    newest: Seqno,
}

impl DroppedMoments {
    /// One moment.
    pub(crate) const fn one(seqno: Seqno) -> Self {
        Self {
            oldest: seqno,
            newest: seqno,
        }
    }

    /// Any up to this one: of a store that was opened now.
    pub(crate) const fn up_to(newest: Seqno) -> Self {
        let oldest = Seqno(0);
        Self { oldest, newest }
    }

    /// Returns the least that has both.
    pub(crate) fn join(self, other: Self) -> Self {
        debug_assert!(self.oldest <= self.newest, "moments are in order");
        debug_assert!(other.oldest <= other.newest, "moments are in order");
        Self {
            oldest: self.oldest.min(other.oldest),
            newest: self.newest.max(other.newest),
        }
    }

    /// Reports whether any of these moments may have seen a write from `min_seqno` on.
    pub(crate) fn may_see(self, min_seqno: Seqno) -> bool {
        debug_assert!(self.oldest <= self.newest, "moments are in order");
        min_seqno <= self.newest
    }

    /// Reports whether any of these moments may not have seen a write up to `max_seqno`.
    pub(crate) fn may_miss(self, max_seqno: Seqno) -> bool {
        debug_assert!(self.oldest <= self.newest, "moments are in order");
        self.oldest < max_seqno
    }
}

/// Dropped moments, of the whole store and of single trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedByTree {
    of_store: Option<DroppedMoments>,
    of_trees: BTreeMap<TreeId, DroppedMoments>,
}

impl DroppedByTree {
    /// Adds moments of every tree, or of one.
    pub(crate) fn add(&mut self, tree: Option<TreeId>, dropped: DroppedMoments) {
        match tree {
            None => {
                let all = self.of_store.map_or(dropped, |all| all.join(dropped));
                debug_assert!(all.oldest <= dropped.oldest, "the new ones are among all");
                debug_assert!(all.newest >= dropped.newest, "the new ones are among all");
                self.of_store = Some(all);
            }
            Some(tree) => {
                let own = self.of_trees.entry(tree).or_insert(dropped);
                *own = own.join(dropped);
                debug_assert!(own.oldest <= dropped.oldest, "the new ones are among all");
                debug_assert!(own.newest >= dropped.newest, "the new ones are among all");
            }
        }
    }

    /// Adds all of another one.
    pub(crate) fn add_all(&mut self, other: Self) {
        other.of_store.into_iter().for_each(|d| self.add(None, d));
        let trees = other.of_trees.into_iter();
        trees.for_each(|(tree, dropped)| self.add(Some(tree), dropped));
    }

    /// Returns the moments of a tree, if there are any.
    pub(crate) fn of(&self, tree: TreeId) -> Option<DroppedMoments> {
        let own = self.of_trees.get(&tree).copied();
        let all = self
            .of_store
            .into_iter()
            .chain(own)
            .reduce(DroppedMoments::join);
        debug_assert!(
            all.is_none_or(|all| own.is_none_or(|own| all.oldest <= own.oldest)),
            "those of the tree are among them"
        );
        debug_assert!(
            all.is_none_or(|all| own.is_none_or(|own| own.newest <= all.newest)),
            "those of the tree are among them"
        );
        all
    }

    /// Reports whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.of_store.is_none() && self.of_trees.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_tree_are_those_of_the_store_and_its_own() {
        let (one, two) = (TreeId(1), TreeId(2));
        let mut all = DroppedByTree::default();
        assert!(all.is_empty());
        all.add(Some(one), DroppedMoments::one(Seqno(5)));
        assert_eq!(all.of(two), None);
        let mut more = DroppedByTree::default();
        more.add(None, DroppedMoments::one(Seqno(9)));
        more.add(Some(one), DroppedMoments::one(Seqno(7)));
        all.add_all(more);
        assert_eq!(all.of(two), Some(DroppedMoments::one(Seqno(9))));
        let own = all.of(one).expect("it has some");
        assert!(own.may_see(Seqno(9)) && !own.may_see(Seqno(10)));
        assert!(own.may_miss(Seqno(6)) && !own.may_miss(Seqno(5)));
        assert!(!all.is_empty());
    }
}
