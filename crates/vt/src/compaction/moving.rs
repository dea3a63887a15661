//! What absorbs that move tables from a branch to its parent need of compactions.
//!
//! - *Flatten*: the branch is brought to few runs. A reader meets at most so many more of them in
//!   the parent as the branch has. What is written in the order of its keys, as the rows of new
//!   files are, has few runs already: tables of level 0 that do not overlap are one run.
//! - *Place*: each table gets the deepest level of the parent above which nothing overlaps it, so
//!   that what is written to new keys does not go through all levels once more.
//!
//! ```text
//! level 0   [a..c]             | a moved table d..f passes levels 0 and 1, and meets d..k in 2:
//! level 1   [a..b]      [m..p] | it goes to level 1
//! level 2        [d..k]        |
//! ```
//!
//! What is placed is claimed ([`super::claims`]) until it is installed: a compaction that begins
//! meanwhile puts nothing where it will lie.

use super::Compactor;
use super::exclusions::Exclusions;
use super::picker::{PickRules, Plan, Pressure, end_of, flatten_plan, run_plan};
use crate::VtError;
use crate::version::{LEVELS, TableHandle, TreeVersion, Version};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_format::vt_manifest::TableMeta;

/// Most runs of a branch that is flat: tables that hold one key, and deeper levels.
const RUNS_MAX: usize = 4;
/// Most tables of level 0 of a branch that is flat: all may enter level 0 of the parent, and
/// writers wait where that has too many.
const LEVEL0_TABLES_MAX: usize = 8;

/// A table that enters a tree.
#[derive(Clone, Debug)]
pub(crate) struct MovedTable {
    /// Its level in the tree that it comes from.
    pub(crate) from_level: usize,
    /// As it will be.
    pub(crate) meta: TableMeta,
}

impl MovedTable {
    pub(crate) fn new(from_level: usize, meta: &TableMeta) -> Self {
        debug_assert!(from_level < LEVELS, "a level of a tree");
        debug_assert!(meta.smallest <= meta.largest, "a table has keys");
        let meta = meta.clone();
        Self { from_level, meta }
    }
}

/// Tables with the levels where they enter. Their keys are claimed until this is dropped.
pub(crate) struct Placing<'a> {
    compactor: &'a Compactor,
    pub(crate) tables: Vec<(u8, TableMeta)>,
}

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        let state = &mut self.compactor.scheduler.lock();
        state.exclusions.claims.end_placing();
    }
}

impl TreeVersion {
    /// Reports whether it has few runs: the most tables of level 0 that hold one key, and the
    /// deeper levels.
    pub(crate) fn is_flat(&self) -> bool {
        debug_assert_eq!(self.levels.len(), LEVELS, "a tree has all levels");
        let deeper = self.levels[1..].iter().filter(|l| !l.tables.is_empty());
        let deeper = deeper.count();
        let level0 = &self.levels[0].tables;
        if level0.len() > LEVEL0_TABLES_MAX {
            return false;
        }
        overlap_depth(level0) + deeper <= RUNS_MAX
    }

    /// Every table with its level. Of two that hold versions of one key, that with the older ones
    /// comes first: versions move down oldest first, so a deeper level has older ones.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = (usize, &Arc<TableHandle>)> {
        let levels = self.levels.iter().enumerate().rev();
        levels.flat_map(|(n, level)| level.tables.iter().rev().map(move |table| (n, table)))
    }
}

impl Compactor {
    /// Compacts a tree that takes no writes until it is flat. What cannot be compacted is left.
    /// Waits for a compaction that runs only if both cannot run at once.
    ///
    /// # Errors
    /// As [`Self::compact_one`].
    pub(crate) fn flatten(&self, tree: TreeId) -> Result<(), VtError> {
        loop {
            let before = self.views.version();
            let before = before.trees.get(&tree).cloned();
            let is_done = |tree: &Arc<TreeVersion>| tree.is_flat();
            if before.as_ref().is_none_or(is_done) {
                return Ok(());
            }
            let plan = |version: &Version, exclusions: &Exclusions| {
                self.flatten_plan(version, tree, exclusions)
            };
            let has_run = self.compact_beside(plan)?
                || self.compact_alone(|version| {
                    let state = self.scheduler.lock();
                    Ok(self.flatten_plan(version, tree, &state.exclusions))
                })?;
            let after = self.views.version();
            let after = after.trees.get(&tree).cloned();
            let is_same = match (&before, &after) {
                (Some(before), Some(after)) => Arc::ptr_eq(before, after),
                _ => true,
            };
            if !has_run || is_same {
                return Ok(());
            }
        }
    }

    fn flatten_plan(
        &self,
        version: &Version,
        tree: TreeId,
        exclusions: &Exclusions,
    ) -> Option<Plan> {
        let tree = version.trees.get(&tree).filter(|tree| !tree.is_flat())?;
        debug_assert!(tree.tables().next().is_some(), "what has no tables is flat");
        let free_bytes = self.unclaimed_bytes(exclusions.claims.weight());
        let options = self.pick_options(version, Pressure::Shape, free_bytes);
        let rules = PickRules::new(&options, exclusions);
        let stacked = match version.is_temporary(tree.info.id) {
            true => run_plan(tree, rules, ("flatten", RUNS_MAX)),
            false => None,
        };
        stacked.or_else(|| flatten_plan(tree, rules))
    }

    /// Gives each of the tables, oldest first, the level where it enters its tree.
    pub(crate) fn place(&self, version: &Version, tables: Vec<MovedTable>) -> Placing<'_> {
        debug_assert!(
            tables.is_sorted_by(|a, b| a.meta.tree != b.meta.tree || a.from_level >= b.from_level),
            "the oldest tables come first"
        );
        let count = tables.len();
        let mut state = self.scheduler.lock();
        let claims = &mut state.exclusions.claims;
        let mut placed: Vec<(u8, TableMeta)> = Vec::new();
        for MovedTable { from_level, meta } in tables {
            let tree = &version.trees[&meta.tree];
            let end = end_of(&meta);
            let keys = (meta.smallest.as_slice(), end.as_slice());
            let most = deepest(tree, &placed, from_level, &meta);
            debug_assert!(most < LEVELS, "a level of the tree");
            let is_free = |level: &usize| *level == 0 || !claims.has(meta.tree, *level, keys);
            let level = (0..=most).rev().find(is_free).unwrap_or(0);
            if level > 0 {
                // Level 0 takes any table on top.
                claims.place(meta.tree, level, keys);
            }
            let level = u8::try_from(level).expect("there are 8 levels");
            placed.push((level, meta));
        }
        debug_assert_eq!(placed.len(), count, "each table has its place");
        drop(state);
        Placing {
            compactor: self,
            tables: placed,
        }
    }
}

/// Returns the largest number of tables that may hold one key.
fn overlap_depth(tables: &[Arc<TableHandle>]) -> usize {
    // A range that ends where another one begins has none of its keys.
    let edges = tables.iter().flat_map(|table| {
        let meta = table.meta();
        [(meta.smallest.clone(), 1), (end_of(meta), -1)]
    });
    let mut edges: Vec<(Vec<u8>, i8)> = edges.collect();
    edges.sort_unstable();
    let (mut depth, mut most) = (0_usize, 0);
    for (_, step) in edges {
        depth = depth.strict_add_signed(isize::from(step));
        most = most.max(depth);
    }
    debug_assert_eq!(depth, 0, "each range ends");
    debug_assert!(most <= tables.len(), "a table counts once");
    most
}

/// The deepest level that a table may have, above all that it overlaps: no deeper than the tree is,
/// or than the table was.
fn deepest(
    tree: &TreeVersion,
    placed: &[(u8, TableMeta)],
    from_level: usize,
    meta: &TableMeta,
) -> usize {
    debug_assert!(from_level < LEVELS, "a level of a tree");
    let end = end_of(meta);
    let meets = |other: &TableMeta| other.overlaps(&meta.smallest, Some(&end));
    let is_met = |level: &usize| {
        let is_here = |(at, other): &&(u8, TableMeta)| {
            usize::from(*at) == *level && other.tree == meta.tree && meets(other)
        };
        let own = &tree.levels[*level].tables;
        own.iter().any(|table| meets(table.meta())) || placed.iter().any(|p| is_here(&p))
    };
    let first_met = (0..LEVELS).find(is_met).unwrap_or(LEVELS);
    let bottom = (0..LEVELS)
        .rev()
        .find(|n| !tree.levels[*n].tables.is_empty());
    let most = bottom.unwrap_or(0).max(from_level);
    debug_assert!(most < LEVELS, "there are 8 levels");
    first_met.saturating_sub(1).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, text_version};

    fn placed(version: &str, tables: &[(usize, &str, &str)]) -> Vec<usize> {
        let version = text_version(version);
        let tree = version.trees.keys().next().copied().expect("one tree");
        let mut placed: Vec<(u8, TableMeta)> = Vec::new();
        for ((from, first, last), id) in tables.iter().zip(100..) {
            let meta = meta(tree, id, first, last);
            let level = deepest(&version.trees[&tree], &placed, *from, &meta);
            placed.push((u8::try_from(level).expect("few levels"), meta));
        }
        placed
            .iter()
            .map(|(level, _)| usize::from(*level))
            .collect()
    }

    fn flat(version: &str) -> bool {
        let version = text_version(version);
        let tree = version.trees.values().next().expect("one tree");
        tree.is_flat()
    }

    #[test]
    fn tables_of_level_0_that_do_not_overlap_are_one_run() {
        let apart = "tree 1\nL0 9 a..c 100\nL0 8 d..f 100\nL0 7 g..i 100\nL0 6 j..l 100";
        let six = format!("{apart}\nL0 5 m..o 100\nL0 4 p..r 100");
        assert!(flat(&six), "one run");
        assert!(flat(&format!(
            "{six}\nL0 3 a..r 100\nL0 2 e..h 100\nL2 1 a..c 9"
        )));
        let four = format!("{apart}\nL0 3 a..r 100\nL0 2 e..h 100\nL0 1 f..f 100");
        assert!(flat(&four), "f is in four of them");
        assert!(
            !flat(&format!("{four}\nL2 30 a..c 100")),
            "and one more level"
        );
        assert!(
            !flat(&format!("{four}\nL0 30 f..g 100")),
            "f is in five of them"
        );
        assert!(flat("tree 1\nL1 5 a..b 100\nL2 4 a..n 100"), "two levels");
        let levels = (1..=5).map(|n| format!("\nL{n} {n} a..b 100"));
        assert!(
            !flat(&format!("tree 1{}", levels.collect::<String>())),
            "five levels"
        );
    }

    #[test]
    fn tables_meet_where_one_ends_with_the_first_key_of_another() {
        let tables = |text: &str| {
            let version = text_version(text);
            let tree = version.trees.values().next().expect("one tree");
            overlap_depth(&tree.levels[0].tables)
        };
        assert_eq!(tables("tree 1"), 0);
        assert_eq!(tables("tree 1\nL0 2 a..c 9\nL0 1 d..f 9"), 1);
        assert_eq!(tables("tree 1\nL0 2 a..c 9\nL0 1 c..f 9"), 2);
    }

    #[test]
    fn a_branch_with_many_tables_of_level_0_is_not_flat() {
        let table = |n: usize| format!("\nL0 {} k{n:03}..k{n:03}x 100", 900 - n);
        let many = |count: usize| (0..count).map(table).collect::<String>();
        assert!(flat(&format!("tree 1{}", many(LEVEL0_TABLES_MAX))));
        assert!(!flat(&format!("tree 1{}", many(LEVEL0_TABLES_MAX + 1))));
    }

    #[test]
    fn a_table_enters_above_what_it_overlaps() {
        let version = "tree 1\nL0 9 a..c 100\nL1 3 a..b 100\nL1 4 m..p 100\nL2 5 d..k 100";
        assert_eq!(placed(version, &[(0, "d", "f")]), [1]);
        assert_eq!(placed(version, &[(0, "b", "f")]), [0]);
        assert_eq!(placed(version, &[(0, "n", "q")]), [0]);
        assert_eq!(placed(version, &[(0, "q", "r")]), [2]);
        assert_eq!(placed(version, &[(3, "q", "r")]), [3]);
    }

    #[test]
    fn moved_tables_stay_above_older_ones_that_come_with_them() {
        let version = "tree 1\nL2 5 d..k 100";
        let tables = [(1, "a", "b"), (1, "c", "e"), (0, "a", "c"), (0, "x", "z")];
        assert_eq!(placed(version, &tables), [2, 1, 0, 2]);
        let overlapping = [(0, "a", "b"), (0, "a", "b"), (0, "a", "b"), (0, "a", "b")];
        assert_eq!(placed(version, &overlapping), [2, 1, 0, 0]);
    }
}
