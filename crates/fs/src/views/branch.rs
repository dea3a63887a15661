//! The trees of views, as branches of those of other views.

use crate::locator::Tree;
use crate::schema::view_schema;
use std::collections::HashMap;
use stitch_base::TreeId;
use stitch_kv::{Engine, KvError, NewBranch, Snapshot, TreeInfo};

/// Finds the trees of some clones in a list of trees: all of each, in the order of [`Tree::ALL`].
/// `None` if one is missing.
pub(super) fn trees_of(
    listed: &[TreeInfo],
    clones: impl Iterator<Item = u64>,
) -> Option<Vec<TreeId>> {
    let named = listed.iter().map(|info| (info.name.as_str(), info.id));
    let by_name: HashMap<&str, TreeId> = named.collect();
    debug_assert_eq!(by_name.len(), listed.len(), "a name is of one tree");
    let mut trees = Vec::new();
    for number in clones {
        debug_assert!(number > 0, "mainline has another schema");
        let schema = view_schema(number);
        for tree in Tree::ALL {
            trees.push(*by_name.get(tree.name_in(&schema).as_str())?);
        }
    }
    Some(trees)
}

/// Makes the trees of views with numbers from `first` on, in one step and of one moment: as
/// branches of `parents`, all trees of each view.
///
/// # Errors
/// [`KvError::NoTree`] with a parent that is not there any more; those of
/// [`Engine::branch_trees`].
pub(super) fn branch_views(
    engine: &dyn Engine,
    parents: &[TreeId],
    first: u64,
    at: Option<&Snapshot>,
) -> Result<Vec<TreeId>, KvError> {
    let per_view = Tree::ALL.len();
    debug_assert!(first > 0, "0 is mainline");
    debug_assert!(parents.len().is_multiple_of(per_view), "all trees of each");
    let mut names = Vec::with_capacity(parents.len());
    for number in (first..).take(parents.len() / per_view) {
        let schema = view_schema(number);
        names.extend(Tree::ALL.map(|tree| tree.name_in(&schema)));
    }
    debug_assert_eq!(parents.len(), names.len(), "a name for each");
    let pairs = parents.iter().zip(&names);
    let branches: Vec<NewBranch<'_>> = pairs
        .map(|(parent, name)| NewBranch::new(*parent, name))
        .collect();
    let made = engine.branch_trees(&branches, at)?;
    debug_assert_eq!(made.len(), branches.len(), "each is made");
    Ok(made)
}
