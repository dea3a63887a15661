//! Readers of dropped pins, which keep a view of trees that are about to go.
//!
//! Invariant: a reader that sees a tree has a view with it, from before the tree is dropped until
//! the reader ends, or until [`KeptViews::take_back`] when the tree stays.

use crate::buffer::Buffer;
use crate::snapshots::Hold;
use crate::version::Version;
use crate::view::View;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;

/// Readers that were given a view.
pub(crate) struct KeptViews(Vec<Arc<Hold>>);

impl KeptViews {
    /// Gives the readers of dropped pins a view of trees that are about to go. `view` has them.
    pub(crate) fn give(view: &View, readers: Vec<Arc<Hold>>, trees: &[TreeId]) -> Self {
        let is_there = |tree: &TreeId| view.version.trees.contains_key(tree);
        debug_assert!(trees.iter().all(is_there), "they are about to go");
        let sees_any = |hold: &Arc<Hold>| {
            let sight = hold.sight();
            sight.is_some_and(|s| trees.iter().any(|t| s.sees_in(&view.version, *t)))
        };
        let readers: Vec<_> = readers.into_iter().filter(sees_any).collect();
        debug_assert!(
            readers.is_empty() || !trees.is_empty(),
            "a reader sees a tree that goes"
        );
        let last = Arc::new(view_of(view, trees));
        for sight in readers.iter().filter_map(|hold| hold.sight()) {
            sight.keep(Arc::clone(&last));
        }
        Self(readers)
    }

    /// Takes the view from them: the trees did not go.
    pub(crate) fn take_back(&self) {
        for sight in self.0.iter().filter_map(|hold| hold.sight()) {
            sight.take_back();
        }
    }
}

/// A view of these trees and their parents alone, so that a reader holds no space but theirs.
fn view_of(view: &View, trees: &[TreeId]) -> View {
    let lineages = trees.iter().flat_map(|tree| view.version.lineage(*tree));
    let kept: BTreeMap<TreeId, _> = lineages.map(|t| (t.info.id, Arc::clone(t))).collect();
    debug_assert!(
        trees.iter().all(|tree| kept.contains_key(tree)),
        "a tree is in its own lineage"
    );
    let has_any = |buffer: &Buffer| {
        let has = buffer.trees();
        kept.keys().any(|tree| has.contains(tree))
    };
    View {
        buffers: view
            .buffers
            .iter()
            .filter(|buffer| has_any(buffer))
            .map(Arc::clone)
            .collect(),
        version: Arc::new(Version {
            trees: kept,
            ..Version::clone(&view.version)
        }),
    }
}
