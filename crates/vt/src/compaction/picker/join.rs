//! Joins tables where a level has too many for what they weigh, so that their number is bounded.
//!
//! A table becomes too small where it is: deletes, range deletes and dropped snapshots empty it, or
//! the store is opened with a larger `table_bytes`. Nothing but the way down a level would make it
//! larger again. So a level below 0 is *over its bound* when it has more than `2 * weight /
//! table_bytes + 1` tables. Then neighbours that together weigh no more than one table should are
//! joined.
//!
//! Why that is enough, and why it ends:
//!
//! 1. A level over its bound has two such neighbours. If each two of `n` tables weighed more than
//!    `table_bytes`, the first and second, third and fourth and so on would together weigh more
//!    than `(n - 1) / 2` times that, and the level would not be over its bound.
//! 2. A join makes one table of two or more, or none: it is not cut by size, and nothing else cuts
//!    it. So there are fewer joins than tables.
//! 3. What else is picked without new writes takes entries a level down, which can be done only so
//!    often, or lets some vanish. What is written anew in its level stays one table, if it weighs
//!    no more than two should, so that joins and it do not take turns.
//!
//! All blocks are stitched but those of which something can vanish, whatever the tree's threshold:
//! they lie as they did. So a join costs an index. None is begun beside another compaction, which
//! it could be in the way of, or while anything is unreadable: what is held lies in tables of its
//! own.
//!
//! Paper: VT-trees, FAST 2013, section 2 (the number of tables is limited by what was inserted).

use super::{PickInput, PickRules, Plan, PlanKind};
use crate::options::PickOptions;
use crate::version::{Level, TableHandle};
use std::sync::Arc;

/// Most tables that one join takes: all of them are open meanwhile.
const TABLES_MAX: usize = 16;

/// Picks the longest join in a level that is over its bound.
pub(super) fn pick_join(input: &PickInput<'_>) -> Option<Plan> {
    let PickRules {
        options,
        exclusions,
    } = input.rules;
    if !exclusions.detours.is_empty() || !exclusions.claims.is_empty() {
        return None;
    }
    let levels = input.levels().filter(|(_, n)| *n > 0);
    let mut over = levels.filter(|(tree, n)| is_over_bound(&tree.levels[*n], options));
    over.find_map(|(tree, n)| {
        let may_join = |t: &TableHandle| !exclusions.stops(t);
        let row = longest_row(&tree.levels[n].tables, options.table_bytes, may_join)?;
        debug_assert!(row.len() > 1, "two tables at least become one");
        Some(Plan::within(
            tree,
            n,
            (PlanKind::Join, "many"),
            row.to_vec(),
        ))
    })
}

/// True if a level has more tables than what they weigh asks for.
fn is_over_bound(level: &Level, options: &PickOptions) -> bool {
    let beyond_one = level.tables.len().saturating_sub(1) as u64;
    beyond_one.saturating_mul(options.table_bytes) > level.weight.saturating_mul(2)
}

/// The most neighbours, at least two, that together weigh no more than this.
fn longest_row(
    tables: &[Arc<TableHandle>],
    weight_max: u64,
    may_join: impl Fn(&TableHandle) -> bool,
) -> Option<&[Arc<TableHandle>]> {
    let mut longest = 0..0;
    let (mut start, mut weight) = (0, 0);
    for (at, table) in tables.iter().enumerate() {
        if !may_join(table) {
            (start, weight) = (at + 1, 0);
            continue;
        }
        weight += table.weight();
        while weight > weight_max || at + 1 - start > TABLES_MAX {
            weight -= tables[start].weight();
            start += 1;
        }
        if at + 1 - start > longest.len() {
            longest = start..at + 1;
        }
    }
    let row = &tables[longest];
    debug_assert!(
        row.iter().all(|table| may_join(table)),
        "no other table is between them"
    );
    debug_assert!(row.len() <= TABLES_MAX, "few tables are open");
    debug_assert!(
        row.iter().map(|table| table.weight()).sum::<u64>() <= weight_max,
        "they make one table"
    );
    (row.len() > 1).then_some(row)
}

#[cfg(test)]
mod tests;
