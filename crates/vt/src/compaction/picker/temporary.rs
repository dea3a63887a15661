//! Plans for temporary branch trees, which are absorbed soon: few runs, and no row merged twice.
//!
//! Edits of their tables cost nothing on the medium, so a run moves down as a whole, and level 0
//! becomes a run of its own above it:
//!
//! ```text
//! level 0   8 tables            -               8 tables            -
//! level 1   -          merge    run 1   move    -          merge    run 2
//! level 2   -                   -               run 1               run 1
//! ```
//!
//! Once levels 1 to 3 have a run each, the tree is kept in shape as any other.

use super::level0::plan_level0;
use super::{PickInput, PickRules, Plan, PlanKind};
use crate::version::{LEVELS, TreeVersion, Version};

/// Tables of level 0 that become a run. An absorb leaves up to 8 where they do not overlap.
const LEVEL0_TABLES: usize = 8;
/// Most runs below level 0: one less than a flat branch has.
const RUNS: usize = 3;

/// Picks a temporary tree whose level 0 is to become a run.
pub(super) fn pick_temporary(input: &PickInput<'_>) -> Option<Plan> {
    let version = input.version;
    let trees = version.temporary.iter();
    let mut trees = trees.filter_map(|tree| version.trees.get(tree));
    trees.find_map(|tree| {
        let is_due = tree.levels[0].tables.len() >= LEVEL0_TABLES;
        is_due.then(|| run_plan(tree, input.rules, ("temporary", RUNS)))?
    })
}

/// Reports whether a tree is a temporary one with room for a further run: then its levels have no
/// targets.
pub(super) fn stacks_runs(version: &Version, tree: &TreeVersion) -> bool {
    version.is_temporary(tree.info.id) && empty_level(tree, RUNS).is_some()
}

/// Makes a plan that leads to a level 0 which is a run of its own, with at most `runs` of them
/// below level 0. Returns `None` if there are as many already.
pub(crate) fn run_plan(
    tree: &TreeVersion,
    rules: PickRules<'_>,
    (reason, runs): (&'static str, usize),
) -> Option<Plan> {
    debug_assert!(runs < LEVELS, "runs have a level each");
    if tree.levels[0].tables.is_empty() {
        return None;
    }
    let level = empty_level(tree, runs)? - 1;
    debug_assert!(level < runs, "a run moves to an empty level");
    if level == 0 {
        return plan_level0(tree, reason, rules);
    }
    let run = tree.levels[level].tables.clone();
    debug_assert!(!run.is_empty(), "the first empty level is below it");
    let route = rules.route(tree, level, reason);
    let exclusions = rules.exclusions;
    exclusions.allowed(route.plan(PlanKind::Move, run, Vec::new()))
}

/// Returns the first level from 1 to `last` without a table.
fn empty_level(tree: &TreeVersion, last: usize) -> Option<usize> {
    debug_assert!(last < LEVELS, "a level of the tree");
    (1..=last).find(|level| tree.levels[*level].tables.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::exclusions::Exclusions;
    use crate::options::{Sizes, VtOptions};
    use crate::testing::text_version;

    /// The plan for the only tree of a version, as text.
    fn plan(text: &str, runs: usize) -> String {
        let version = text_version(text);
        let tree = version.trees.values().next().expect("one tree");
        let options = Sizes::new(&VtOptions::default(), 1 << 30, 64 << 20).pick;
        let exclusions = Exclusions::default();
        let rules = PickRules::new(&options, &exclusions);
        let plan = run_plan(tree, rules, ("temporary", runs));
        plan.map_or_else(|| "none".to_owned(), |plan| plan.to_string())
    }

    #[test]
    fn runs_move_down_until_level_1_is_free() {
        let level0 = "tree 1\nL0 9 a..z 100\nL0 8 a..z 100";
        assert_eq!(plan(level0, 3), "compact tree 1 L0 9 8 -> L1 (temporary)");
        let one = format!("{level0}\nL1 4 a..m 100\nL1 5 n..z 100");
        assert_eq!(plan(&one, 3), "move tree 1 L1 4 5 -> L2 (temporary)");
        let two = format!("{one}\nL2 3 a..z 100");
        assert_eq!(plan(&two, 3), "move tree 1 L2 3 -> L3 (temporary)");
        let three = format!("{two}\nL3 2 a..z 100");
        assert_eq!(plan(&three, 3), "none");
        assert_eq!(plan(&three, 4), "move tree 1 L3 2 -> L4 (temporary)");
        assert_eq!(plan("tree 1\nL2 3 a..z 100", 3), "none", "nothing above");
    }

    #[test]
    fn only_temporary_trees_with_room_for_a_run_have_no_targets() {
        let mut version = text_version("tree 1\nL1 5 a..c 100\nL2 6 a..c 100");
        let stacks = |version: &Version| {
            let tree = version.trees.values().next().expect("one tree");
            stacks_runs(version, tree)
        };
        assert!(!stacks(&version));
        let id = *version.trees.keys().next().expect("one tree");
        version.temporary.insert(id);
        assert!(stacks(&version));
        let mut full = text_version("tree 1\nL1 5 a..c 9\nL2 6 a..c 9\nL3 7 a..c 9");
        full.temporary.insert(id);
        assert!(!stacks(&full));
    }
}
