//! The moments that are held of a store, and of each tree.
//!
//! A reader holds its moment of every tree, a pin of every tree or of some, and of ranges of keys
//! of others. A branch tree holds its moment of its parent alone: the parents of that one are held
//! by the branch that the parent itself is.
//!
//! A moment that nothing holds any more is noted if a write-out or a compaction kept versions for
//! it. Most snapshots are dropped before any of these begins.

use crate::dropped::{DroppedByTree, DroppedMoments};
use crate::key_moments::KeyMoments;
use std::collections::BTreeMap;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{KeyRanges, PinRanges};

/// Moments that are held, of every tree or of one.
#[derive(Debug, Default)]
struct ScopeMoments {
    /// How often each is held.
    counts: BTreeMap<Seqno, u64>,
    /// The newest that was held when something was written. Moments are held in ascending order, so
    /// those before it were held then too.
    newest_kept: Seqno,
}

/// All moments that are held.
#[derive(Debug, Default)]
pub(crate) struct HeldMoments {
    of_store: ScopeMoments,
    of_trees: BTreeMap<TreeId, ScopeMoments>,
    /// For each tree of which pins hold ranges alone: their moments, once for each pin.
    of_ranges: BTreeMap<TreeId, Vec<(Seqno, KeyRanges)>>,
    /// Moments that something was kept for, and nothing holds any more.
    pub(crate) dropped: DroppedByTree,
    /// Number of the first tree that was not made yet.
    pub(crate) next_tree: TreeId,
}

/// The moments that were held at some time, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldSeqnos {
    of_store: Vec<Seqno>,
    of_trees: BTreeMap<TreeId, Vec<Seqno>>,
    of_ranges: BTreeMap<TreeId, Vec<(Seqno, KeyRanges)>>,
}

impl HeldSeqnos {
    /// Returns the moments that are held of a tree.
    pub(crate) fn of(&self, tree: TreeId) -> KeyMoments {
        debug_assert!(self.of_store.is_sorted(), "moments are in order");
        debug_assert!(
            self.of_trees.get(&tree).is_none_or(|own| own.is_sorted()),
            "moments are in order"
        );
        let mut whole = self.of_store.clone();
        whole.extend(self.of_trees.get(&tree).into_iter().flatten());
        let ranged = self.of_ranges.get(&tree).cloned();
        KeyMoments::new(whole, ranged.unwrap_or_default())
    }

    /// Returns the oldest moment that is held of any key of a tree from the first to the last of
    /// `keys`, both included.
    pub(crate) fn oldest_of(&self, tree: TreeId, (first, last): (&[u8], &[u8])) -> Option<Seqno> {
        debug_assert!(first <= last, "a range of keys is in order");
        debug_assert!(self.of_store.is_sorted(), "moments are in order");
        debug_assert!(
            self.of_trees.get(&tree).is_none_or(|own| own.is_sorted()),
            "moments are in order"
        );
        let own = self.of_trees.get(&tree).and_then(|own| own.first());
        let ranged = self.of_ranges.get(&tree).into_iter().flatten();
        let ranged = ranged.filter(|(_, ranges)| ranges.meets_keys(first, last));
        let ranged = ranged.map(|(seqno, _)| seqno);
        let whole = self.of_store.first().into_iter().chain(own);
        whole.chain(ranged).min().copied()
    }

    /// Moments of every tree.
    #[cfg(test)]
    pub(crate) fn of_store(seqnos: &[Seqno]) -> Self {
        Self {
            of_store: seqnos.to_vec(),
            ..Self::default()
        }
    }
}

impl ScopeMoments {
    /// Something is written that has versions for these moments. Returns those that were dropped
    /// before this call.
    fn keep(&mut self, seqnos: &[Seqno]) -> Vec<Seqno> {
        debug_assert!(seqnos.is_sorted(), "moments are in order");
        let before = self.newest_kept;
        self.newest_kept = before.max(seqnos.last().copied().unwrap_or_default());
        debug_assert!(self.newest_kept >= before, "what was kept stays kept");
        let new = seqnos.iter().rev().take_while(|seqno| **seqno > before);
        new.filter(|seqno| !self.counts.contains_key(seqno))
            .copied()
            .collect()
    }

    /// Reports whether something may have been kept for a moment that is not held in `lasting`.
    fn has_kept_beside(&self, lasting: &Self) -> bool {
        let mut kept = self.counts.range(..=self.newest_kept);
        kept.any(|(seqno, count)| {
            debug_assert!(*count > 0, "what is held is counted");
            !lasting.counts.contains_key(seqno)
        })
    }
}

/// Returns how a moment is counted: once for every tree, or once for each of some.
fn scopes(trees: Option<&[TreeId]>) -> impl Iterator<Item = Option<TreeId>> {
    debug_assert!(
        trees.is_none_or(|trees| trees.is_sorted_by(|tree, next| tree < next)),
        "each tree once, in order"
    );
    let every = trees.is_none().then_some(None);
    let each = trees.unwrap_or_default().iter().copied().map(Some);
    every.into_iter().chain(each)
}

impl HeldMoments {
    fn scope(&mut self, tree: Option<TreeId>) -> &mut ScopeMoments {
        match tree {
            None => &mut self.of_store,
            Some(tree) => self.of_trees.entry(tree).or_default(),
        }
    }

    /// Holds a moment once more, of each of some trees; `None` for every tree.
    pub(crate) fn add(&mut self, trees: Option<&[TreeId]>, seqno: Seqno) {
        for tree in scopes(trees) {
            let count = self.scope(tree).counts.entry(seqno).or_default();
            *count += 1;
            debug_assert!(*count > 0, "what is held is counted");
        }
    }

    /// Gives up a moment that is held so.
    ///
    /// # Panics
    /// Panics if it is not held.
    pub(crate) fn remove(&mut self, trees: Option<&[TreeId]>, seqno: Seqno) {
        for tree in scopes(trees) {
            self.remove_of(tree, seqno);
        }
    }

    fn remove_of(&mut self, tree: Option<TreeId>, seqno: Seqno) {
        let scope = self.scope(tree);
        let count = scope.counts.get_mut(&seqno);
        let count = count.expect("what is held is counted");
        debug_assert!(*count > 0, "what is held is counted");
        *count -= 1;
        if *count > 0 {
            return;
        }
        scope.counts.remove(&seqno);
        let (is_kept, is_last) = (seqno <= scope.newest_kept, scope.counts.is_empty());
        if is_kept {
            self.dropped.add(tree, DroppedMoments::one(seqno));
        }
        if let Some(tree) = tree.filter(|_| is_last) {
            self.of_trees.remove(&tree);
        }
    }

    /// Holds a moment once more, of the keys in ranges of some trees.
    pub(crate) fn add_ranges(&mut self, ranges: &PinRanges, seqno: Seqno) {
        debug_assert!(!ranges.is_empty(), "ranges are of some tree");
        for (tree, ranges) in ranges {
            let of_tree = self.of_ranges.entry(*tree).or_default();
            of_tree.push((seqno, ranges.clone()));
        }
    }

    /// Gives up a moment that is held so. It is noted in any case: there are few of them.
    ///
    /// # Panics
    /// Panics if it is not held.
    pub(crate) fn remove_ranges(&mut self, ranges: &PinRanges, seqno: Seqno) {
        for (tree, ranges) in ranges {
            let of_tree = self.of_ranges.entry(*tree).or_default();
            debug_assert!(!of_tree.is_empty(), "what is held is listed");
            let is_it = |(held, of): &(Seqno, KeyRanges)| *held == seqno && of == ranges;
            let at = of_tree.iter().position(is_it);
            of_tree.swap_remove(at.expect("what is held is listed"));
            if of_tree.is_empty() {
                self.of_ranges.remove(tree);
            }
            self.dropped.add(Some(*tree), DroppedMoments::one(seqno));
        }
    }

    /// Takes it that tables have versions for all moments that are held: those of an earlier life.
    pub(crate) fn keep_all(&mut self) {
        let trees = self.of_trees.values_mut();
        for scope in std::iter::once(&mut self.of_store).chain(trees) {
            let newest = scope.counts.last_key_value().map(|(seqno, _)| *seqno);
            scope.newest_kept = scope.newest_kept.max(newest.unwrap_or_default());
            debug_assert!(scope.counts.keys().all(|held| *held <= scope.newest_kept));
        }
    }

    /// Reports whether tables may have versions for a moment that is not held in `lasting`.
    pub(crate) fn has_kept_beside(&self, lasting: &Self) -> bool {
        let empty = ScopeMoments::default();
        let mut trees = self.of_trees.iter();
        let mut ranges = self.of_ranges.iter();
        self.of_store.has_kept_beside(&lasting.of_store)
            || trees.any(|(tree, scope)| {
                scope.has_kept_beside(lasting.of_trees.get(tree).unwrap_or(&empty))
            })
            || ranges.any(|(tree, held)| {
                let lasting = lasting.of_ranges.get(tree);
                let is_in = |one| lasting.is_some_and(|lasting| lasting.contains(one));
                !held.iter().all(is_in)
            })
    }

    /// Returns all that are held.
    pub(crate) fn list(&self) -> HeldSeqnos {
        debug_assert!(
            self.of_trees.values().all(|own| !own.counts.is_empty()),
            "a tree is listed while a moment of it is held"
        );
        debug_assert!(
            self.of_ranges.values().all(|held| !held.is_empty()),
            "a tree is listed while ranges of it are held"
        );
        let seqnos = |scope: &ScopeMoments| scope.counts.keys().copied().collect();
        let trees = self.of_trees.iter();
        HeldSeqnos {
            of_store: seqnos(&self.of_store),
            of_trees: trees.map(|(tree, scope)| (*tree, seqnos(scope))).collect(),
            of_ranges: self.of_ranges.clone(),
        }
    }

    /// Notes that something is written to a tree that has versions for what was held.
    pub(crate) fn keep(&mut self, held: &HeldSeqnos, tree: TreeId) {
        debug_assert!(held.of_store.is_sorted(), "moments are in order");
        let own = held.of_trees.get(&tree).filter(|own| !own.is_empty());
        let own = own.map(|own| (Some(tree), own));
        for (scope, seqnos) in std::iter::once((None, &held.of_store)).chain(own) {
            for gone in self.scope(scope).keep(seqnos) {
                self.dropped.add(scope, DroppedMoments::one(gone));
            }
        }
        let is_idle = |scope: &ScopeMoments| scope.counts.is_empty();
        if self.of_trees.get(&tree).is_some_and(is_idle) {
            self.of_trees.remove(&tree);
        }
        debug_assert!(
            self.of_store.newest_kept >= held.of_store.last().copied().unwrap_or_default(),
            "versions are kept for all moments that were held"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId(3);
    const OTHER: TreeId = TreeId(4);

    fn one(seqno: u64) -> Option<DroppedMoments> {
        Some(DroppedMoments::one(Seqno(seqno)))
    }

    #[test]
    fn a_moment_of_one_tree_is_held_of_no_other() {
        let mut held = HeldMoments::default();
        held.add(None, Seqno(5));
        held.add(Some(&[TREE]), Seqno(3));
        held.add(Some(&[TREE]), Seqno(5));
        let list = held.list();
        assert_eq!(list.of(TREE).all(), [Seqno(3), Seqno(5)]);
        assert_eq!(list.of(OTHER).all(), [Seqno(5)]);
        held.remove(Some(&[TREE]), Seqno(3));
        held.remove(Some(&[TREE]), Seqno(5));
        assert_eq!(held.list().of(TREE).all(), [Seqno(5)]);
        assert!(held.dropped.is_empty(), "nothing was written");
    }

    #[test]
    fn a_moment_of_some_trees_is_held_of_each() {
        let mut held = HeldMoments::default();
        held.add(Some(&[TREE, OTHER]), Seqno(3));
        held.add(Some(&[]), Seqno(4));
        let list = held.list();
        assert_eq!(list.of(TREE).all(), [Seqno(3)]);
        assert_eq!(list.of(OTHER).all(), [Seqno(3)]);
        assert_eq!(list.of(TreeId(9)).all(), []);
        held.keep(&list, TREE);
        held.remove(Some(&[TREE, OTHER]), Seqno(3));
        assert_eq!(held.dropped.of(TREE), one(3));
        assert_eq!(held.dropped.of(OTHER), None, "it was not written");
        assert_eq!(held.list().of(TREE).all(), []);
    }

    #[test]
    fn a_moment_of_ranges_is_held_of_their_keys_alone() {
        let mut held = HeldMoments::default();
        let ranges = KeyRanges::new([(b"c".to_vec(), Some(b"e".to_vec()))]);
        let ranges = PinRanges::from([(TREE, ranges)]);
        held.add(Some(&[TREE]), Seqno(5));
        held.add_ranges(&ranges, Seqno(3));
        held.add_ranges(&ranges, Seqno(3));
        let list = held.list();
        assert_eq!(*list.of(TREE).of(b"d"), [Seqno(3), Seqno(5)]);
        assert_eq!(*list.of(TREE).of(b"e"), [Seqno(5)]);
        assert_eq!(list.oldest_of(TREE, (b"a", b"c")), Some(Seqno(3)));
        assert_eq!(list.oldest_of(TREE, (b"e", b"z")), Some(Seqno(5)));
        assert_eq!(list.oldest_of(OTHER, (b"", b"z")), None);
        held.remove_ranges(&ranges, Seqno(3));
        assert_eq!(*held.list().of(TREE).of(b"d"), [Seqno(3), Seqno(5)]);
        held.remove_ranges(&ranges, Seqno(3));
        assert_eq!(held.list().of(TREE).all(), [Seqno(5)]);
        assert_eq!(held.dropped.of(TREE), one(3));
        assert!(held.of_ranges.is_empty(), "nothing is left of it");
    }

    #[test]
    fn moments_of_an_earlier_life_are_noted_though_nothing_was_written_since() {
        let mut held = HeldMoments::default();
        held.add(None, Seqno(5));
        held.add(Some(&[TREE]), Seqno(3));
        held.keep_all();
        held.add(None, Seqno(6));
        held.remove(None, Seqno(6));
        assert!(held.dropped.is_empty(), "nothing was written under it");
        held.remove(Some(&[TREE]), Seqno(3));
        assert_eq!(
            (held.dropped.of(TREE), held.dropped.of(OTHER)),
            (one(3), None)
        );
        held.remove(None, Seqno(5));
        assert_eq!(held.dropped.of(OTHER), one(5));
    }

    #[test]
    fn what_was_kept_for_moments_that_do_not_last_is_told() {
        let lasting = || {
            let mut held = HeldMoments::default();
            held.add(None, Seqno(5));
            held.add(Some(&[TREE]), Seqno(3));
            held
        };
        let mut held = lasting();
        held.keep_all();
        assert!(!held.has_kept_beside(&lasting()));
        held.add(None, Seqno(7));
        assert!(!held.has_kept_beside(&lasting()), "nothing was written yet");
        held.keep(&held.list(), TREE);
        assert!(held.has_kept_beside(&lasting()));
        held.remove(None, Seqno(7));
        held.add(Some(&[OTHER]), Seqno(7));
        held.keep(&held.list(), OTHER);
        assert!(held.has_kept_beside(&lasting()));
        held.remove(Some(&[OTHER]), Seqno(7));
        assert!(!held.has_kept_beside(&lasting()));
        let ranges = KeyRanges::new([(b"c".to_vec(), None)]);
        held.add_ranges(&PinRanges::from([(TREE, ranges)]), Seqno(8));
        assert!(held.has_kept_beside(&lasting()), "of ranges in any case");
    }

    #[test]
    fn dropped_moments_are_noted_if_something_was_written_under_them() {
        let mut held = HeldMoments::default();
        held.add(Some(&[TREE]), Seqno(3));
        held.add(None, Seqno(5));
        held.keep(&held.list(), OTHER);
        held.remove(Some(&[TREE]), Seqno(3));
        assert!(held.dropped.is_empty(), "only another tree was written");
        held.add(Some(&[TREE]), Seqno(4));
        held.keep(&held.list(), TREE);
        held.remove(Some(&[TREE]), Seqno(4));
        assert_eq!(held.dropped.of(TREE), one(4));
        assert_eq!(held.dropped.of(OTHER), None);
        held.remove(None, Seqno(5));
        assert_eq!(held.dropped.of(OTHER), one(5));
    }

    #[test]
    fn what_is_dropped_while_something_is_written_is_noted_too() {
        let mut held = HeldMoments::default();
        held.add(Some(&[TREE]), Seqno(3));
        let list = held.list();
        held.remove(Some(&[TREE]), Seqno(3));
        assert!(held.dropped.is_empty());
        held.keep(&list, TREE);
        assert_eq!(held.dropped.of(TREE), one(3));
        assert!(held.of_trees.is_empty(), "nothing is left of it");
    }
}
