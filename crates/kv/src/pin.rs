//! Moments of a store that outlive the process.

use crate::KeyRanges;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{PinId, Seqno, TreeId};

/// The trees whose moment a pin holds, of those that were there when it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PinScope {
    /// All of them.
    #[default]
    AllTrees,
    /// These, in ascending order, each once.
    Trees(Arc<[TreeId]>),
}

impl PinScope {
    /// For engines: chooses among `living` trees, by number. Where all are chosen, the pin is one
    /// of all trees.
    #[must_use]
    pub fn chosen<T>(
        living: impl Iterator<Item = T>,
        id: impl Fn(&T) -> TreeId,
        is_held: impl Fn(&T) -> bool,
    ) -> Self {
        let (mut chosen, mut is_all) = (Vec::new(), true);
        for tree in living {
            match is_held(&tree) {
                true => chosen.push(id(&tree)),
                false => is_all = false,
            }
        }
        debug_assert!(chosen.is_sorted(), "trees are listed by number");
        match is_all {
            true => Self::AllTrees,
            false => Self::Trees(chosen.into()),
        }
    }

    /// Reports whether the moment is held of a tree that was there when the pin was created.
    #[must_use]
    pub fn has(&self, tree: TreeId) -> bool {
        match self {
            Self::AllTrees => true,
            Self::Trees(trees) => trees.binary_search(&tree).is_ok(),
        }
    }

    /// Returns the trees, unless it is all of them.
    #[must_use]
    pub fn trees(&self) -> Option<&[TreeId]> {
        match self {
            Self::AllTrees => None,
            Self::Trees(trees) => Some(trees),
        }
    }
}

/// Trees of which a pin holds ranges of keys alone: see
/// [`Engine::narrow_pin`](crate::Engine::narrow_pin).
pub type PinRanges = BTreeMap<TreeId, KeyRanges>;

/// A pin as a store lists it: a moment of its trees, held in the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinInfo {
    /// Its number, never reused. Later pins have larger numbers.
    pub id: PinId,
    /// Its name, unique among the store's pins.
    pub name: String,
    /// The last write that it sees.
    pub seqno: Seqno,
    /// The trees that it holds.
    pub scope: PinScope,
    /// Of some of these trees, the keys that it holds. It holds every key of the others.
    pub ranges: PinRanges,
    /// Bytes of the user, which the engine stores and does not read.
    pub user: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(living: &[u32], held: &[u32]) -> PinScope {
        let living = living.iter().copied();
        PinScope::chosen(living, |id| TreeId(*id), |id| held.contains(id))
    }

    #[test]
    fn a_scope_of_all_living_trees_is_all_trees() {
        assert_eq!(chosen(&[1, 2, 5], &[1, 2, 5, 9]), PinScope::AllTrees);
        assert_eq!(chosen(&[], &[]), PinScope::AllTrees);
        let two = chosen(&[1, 2, 5], &[1, 5]);
        assert_eq!(two.trees(), Some(&[TreeId(1), TreeId(5)][..]));
        assert!(two.has(TreeId(5)) && !two.has(TreeId(2)));
        let none = chosen(&[1, 2], &[]);
        assert!(!none.has(TreeId(1)) && none.trees() == Some(&[]));
    }
}
