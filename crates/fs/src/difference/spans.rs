//! Which keys may hold something else on two sides: spans of the lives of trees.
//!
//! ```text
//!   one view at two moments          a clone and its source
//!   trees  ---from====to---->        source  ----s====from--->      between s and `from`
//!                                                 \
//!                                    clone         ======to-->      since the clone began
//! ```
//!
//! The sides differ at most in keys that were written in one of the spans. Clones of clones have a
//! span for each, and so do two clones of one source.
//!
//! Inode numbers go on in both from `s`, so from some number on the same one is another inode on
//! the other side ([`Relation::has_ino`]).

use super::moment::Moment;
use crate::locator::Tree;
use crate::{FsError, FsResult};
use std::collections::HashMap;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_sys::decode_number;
use stitch_kv::{BranchPoint, Engine, KeyRange, KeyRanges, KvError, Snapshot};

/// Keys that the engine is asked for at a time.
const PAGE: usize = 4096;
/// Longer than the rest of any key that begins as another one and is before it.
const REST_BYTES: usize = 512;
const _: () = assert!(PAGE > 0, "each page comes further");

/// Something of each tree, in the order of [`Tree::ALL`].
#[derive(Clone, Debug)]
struct ByTree<T>([T; Tree::ALL.len()]);

impl<T> ByTree<T> {
    fn of(&self, tree: Tree) -> &T {
        let index = Tree::ALL.iter().position(|other| *other == tree);
        &self.0[index.expect("all trees are there")]
    }
}

/// A part of the life of a view's trees.
#[derive(Debug)]
pub(super) struct Span {
    trees: ByTree<TreeId>,
    /// The moments at both ends, which hold them of each tree; `None` for a branch since it began.
    ends: Option<(ByTree<Snapshot>, ByTree<Snapshot>)>,
}

/// The trees of a view at a moment, or those that they are branches of where they begin.
struct Generation {
    trees: ByTree<TreeId>,
    at: ByTree<Snapshot>,
}

impl Generation {
    fn of(moment: &Moment<'_>) -> Self {
        Self {
            trees: ByTree(Tree::ALL.map(|tree| moment.tree(tree))),
            at: ByTree(Tree::ALL.map(|_| moment.at.clone())),
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.trees.0 == other.trees.0
    }

    /// Returns the trees that these are branches of, where they begin; `None` if they are none, or
    /// the branches were dropped.
    fn parents(
        &self,
        engine: &dyn Engine,
        branches: &HashMap<TreeId, BranchPoint>,
    ) -> FsResult<Option<Self>> {
        let mut trees = self.trees.clone();
        let mut at = self.at.clone();
        for (index, tree) in self.trees.0.iter().enumerate() {
            let Some(point) = branches.get(tree) else {
                return Ok(None);
            };
            debug_assert_ne!(point.parent, *tree, "a branch is another tree");
            at.0[index] = match engine.branch_moment(*tree) {
                Err(KvError::NoTree(_)) => return Ok(None),
                moment => moment?,
            };
            trees.0[index] = point.parent;
        }
        Ok(Some(Self { trees, at }))
    }
}

/// How two sides are related.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) spans: Vec<Span>,
    /// Of two views: the first number that inodes of their own may have; `None` for one view.
    pub(super) first_own: Option<Ino>,
}

impl Relation {
    /// Finds how a view at two moments, or two views, are related.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for views of which none begins with what the other held, and that
    /// have no common source; [`FsError::Invalid`] if the second moment of a view is before the
    /// first.
    pub(super) fn of(old: &Moment<'_>, new: &Moment<'_>) -> FsResult<Self> {
        let (before, after) = (Generation::of(old), Generation::of(new));
        if before.is_of(&after) {
            if old.at.seqno() > new.at.seqno() {
                return Err(FsError::Invalid("the second moment is before the first"));
            }
            let spans = vec![Span::between(before, after)];
            return Ok(Self {
                spans,
                first_own: None,
            });
        }
        let (before, after) = (lineage(old)?, lineage(new)?);
        for (depth, one) in before.iter().enumerate() {
            if let Some(other) = after.iter().position(|other| other.is_of(one)) {
                return Self::of_branches((before, depth), (after, other), new);
            }
        }
        Err(FsError::Unsupported)
    }

    /// Two lines of branches that have the generations at these indexes in common.
    fn of_branches(
        (mut before, in_before): (Vec<Generation>, usize),
        (mut after, in_after): (Vec<Generation>, usize),
        new: &Moment<'_>,
    ) -> FsResult<Self> {
        debug_assert!(
            in_before < before.len(),
            "the common trees are in both lines"
        );
        debug_assert!(in_after < after.len(), "the common trees are in both lines");
        debug_assert!(in_before + in_after > 0, "one side is a branch");
        let mut ends = (before.swap_remove(in_before), after.swap_remove(in_after));
        debug_assert!(ends.0.is_of(&ends.1), "the common trees");
        if ends.0.at.of(Tree::Meta).seqno() > ends.1.at.of(Tree::Meta).seqno() {
            std::mem::swap(&mut ends.0, &mut ends.1);
        }
        let first_own = {
            let (sys, at) = (ends.0.trees.of(Tree::Sys), ends.0.at.of(Tree::Sys));
            let next = new.engine.get(*sys, &new.keys().next_ino(), Some(at))?;
            Ino(next.map_or(Ok(0), |row| decode_number(&row))?)
        };
        // The common trees were taken out of their places: what is before them is as it was.
        let own = before.into_iter().take(in_before);
        let own = own.chain(after.into_iter().take(in_after));
        let mut spans: Vec<Span> = own
            .map(|of| Span {
                trees: of.trees,
                ends: None,
            })
            .collect();
        spans.push(Span::between(ends.0, ends.1));
        debug_assert_eq!(
            spans.len(),
            in_before + in_after + 1,
            "one for each branch, and the common trees"
        );
        Ok(Self {
            spans,
            first_own: Some(first_own),
        })
    }

    /// Reports whether a number is of the same inode on both sides, if both have it.
    pub(super) fn has_ino(&self, ino: Ino) -> bool {
        self.first_own.is_none_or(|first| ino < first)
    }

    /// Reports whether both sides are one view.
    pub(super) const fn is_one_view(&self) -> bool {
        self.first_own.is_none()
    }
}

/// The trees of a view, and those that they begin with, the nearest first.
fn lineage(moment: &Moment<'_>) -> FsResult<Vec<Generation>> {
    let engine = moment.engine;
    let listed = [engine.trees(), engine.trees_at(&moment.at)];
    let branches: HashMap<TreeId, BranchPoint> = listed
        .iter()
        .flatten()
        .filter_map(|info| Some((info.id, info.branch?)))
        .collect();
    let mut line = vec![Generation::of(moment)];
    while let Some(last) = line.last()
        && let Some(parents) = last.parents(engine, &branches)?
    {
        line.push(parents);
    }
    debug_assert!(
        line.len() <= 1 + stitch_kv::BRANCH_DEPTH_MAX,
        "a bounded depth"
    );
    Ok(line)
}

impl Span {
    fn between(from: Generation, to: Generation) -> Self {
        debug_assert!(from.is_of(&to), "the same trees");
        debug_assert!(
            from.at.of(Tree::Meta).seqno() <= to.at.of(Tree::Meta).seqno(),
            "moments in their order"
        );
        Self {
            trees: from.trees,
            ends: Some((from.at, to.at)),
        }
    }

    /// The first keys of a tree from `start` on that were written in the span.
    fn keys(&self, engine: &dyn Engine, tree: Tree, start: &[u8]) -> FsResult<Vec<Vec<u8>>> {
        let id = *self.trees.of(tree);
        let Some((from, to)) = &self.ends else {
            let after = key_before(start);
            return Ok(engine.branch_keys(id, after.as_deref(), PAGE)?);
        };
        let ends = (from.of(tree), Some(to.of(tree)));
        let held = [from, to].map(|at| engine.held_ranges(id, at.of(tree)));
        if held.iter().all(Option::is_none) {
            return Ok(engine.keys_between(id, KeyRange::from(start), ends, PAGE)?);
        }
        // Narrowed snapshots. Beside what both hold are no files of their directories.
        let mut keys = Vec::new();
        for range in common_ranges(held, start).iter() {
            debug_assert!(keys.len() <= PAGE, "no more than a page");
            let count_max = PAGE - keys.len();
            keys.extend(engine.keys_between(id, range, ends, count_max)?);
        }
        Ok(keys)
    }
}

/// Returns the keys from `start` on that are in both of these ranges; `None` is all keys.
fn common_ranges([from, to]: [Option<KeyRanges>; 2], start: &[u8]) -> KeyRanges {
    let rest = || KeyRanges::new([(start.to_vec(), None)]);
    let from = from.unwrap_or_else(rest).common(&rest());
    to.map_or_else(|| from.clone(), |to| from.common(&to))
}

/// Returns a key that is before `start`, and of which few lie between; `None` if there is none.
fn key_before(start: &[u8]) -> Option<Vec<u8>> {
    let (last, rest) = start.split_last()?;
    let mut key = rest.to_vec();
    if *last > 0 {
        key.push(last - 1);
        key.resize(start.len() + REST_BYTES, u8::MAX);
    }
    debug_assert!(key.as_slice() < start, "it is before");
    Some(key)
}

/// Calls `visit` with the keys of a tree that may hold something else, a page at a time. One that
/// was written in several spans comes several times. `skip` returns from where on the list is to go
/// on after a page with this last key, if not right behind it.
pub(super) fn for_each_page(
    engine: &dyn Engine,
    spans: &[Span],
    tree: Tree,
    skip: impl Fn(&[u8]) -> Option<Vec<u8>>,
    mut visit: impl FnMut(&[&[u8]]) -> FsResult<()>,
) -> FsResult<()> {
    debug_assert!(!spans.is_empty(), "sides are related by a span at least");
    for span in spans {
        let mut start = Vec::new();
        loop {
            let page = span.keys(engine, tree, &start)?;
            debug_assert!(page.is_sorted(), "keys are in order");
            debug_assert!(page.len() <= PAGE, "no more than a page");
            let keys: Vec<&[u8]> = page.iter().map(Vec::as_slice).collect();
            visit(&keys)?;
            let Some(last) = page.last().filter(|_| page.len() == PAGE) else {
                break;
            };
            start = skip(last).unwrap_or_else(|| [last, &[0][..]].concat());
            debug_assert!(start.as_slice() > last.as_slice(), "the list goes on");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_before_another_one_skips_none_at_or_behind_it() {
        assert_eq!(key_before(b""), None);
        assert_eq!(key_before(b"a\0").as_deref(), Some(&b"a"[..]));
        assert_eq!(key_before(b"\0").as_deref(), Some(&b""[..]));
        let before = key_before(b"ab").expect("there is one");
        assert!(before.as_slice() < &b"ab"[..]);
        assert!(
            before.as_slice() > &b"aa\xff\xff\xff"[..],
            "few are between"
        );
    }
}
