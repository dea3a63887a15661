//! Facts about tables that plans depend on: weights, key ranges, overlaps.

use super::PickRules;
use crate::options::PickOptions;
use crate::version::{LEVELS, Level, TableHandle, TreeVersion};
use std::ops::Range;
use std::sync::Arc;
use stitch_format::vt_manifest::TableMeta;

/// The weight of all these tables.
pub(super) fn weight(tables: &[Arc<TableHandle>]) -> u64 {
    tables.iter().map(|t| t.weight()).sum()
}

/// The weight of the tables of a level that tables which come down to it overlap, in thousandths of
/// their own weight. A level that is not there costs nothing.
pub(super) fn cost(tree: &TreeVersion, upper: &[Arc<TableHandle>], level: usize) -> u128 {
    debug_assert!(!upper.is_empty(), "something comes down");
    debug_assert!(level > 0, "tables come down to a lower level");
    let below = tree.levels.get(level);
    let lower = below.zip(bounds(upper)).map_or(0, |(below, (start, end))| {
        weight(&below.tables[below.overlapping(&start, Some(&end))])
    });
    u128::from(lower) * 1000 / u128::from(weight(upper).max(1))
}

/// Reports whether a deeper level has a table in the range of a table.
pub(super) fn has_below(tree: &TreeVersion, level: usize, meta: &TableMeta) -> bool {
    debug_assert!(level < LEVELS, "a level of the tree");
    debug_assert_eq!(meta.tree, tree.info.id, "a table of the tree");
    let end = end_of(meta);
    tree.levels[level + 1..]
        .iter()
        .any(|deeper| !deeper.overlapping(&meta.smallest, Some(&end)).is_empty())
}

/// Reports whether a table has at least half the weight at which tables end.
pub(super) fn is_large(table: &TableHandle, options: &PickOptions) -> bool {
    table.weight() >= options.table_bytes / 2
}

/// Adds the small neighbours of a range of tables, so that they are joined with it. Those that must
/// not be read stay out.
pub(super) fn with_small_neighbours(
    level: &Level,
    mut range: Range<usize>,
    rules: PickRules<'_>,
) -> Range<usize> {
    let count = range.len();
    debug_assert!(range.start <= range.end, "tables in order");
    debug_assert!(range.end <= level.tables.len(), "tables of the level");
    let joins = |t: &TableHandle| !is_large(t, rules.options) && !rules.exclusions.stops(t);
    if range.start > 0 && joins(&level.tables[range.start - 1]) {
        range.start -= 1;
    }
    if range.end < level.tables.len() && joins(&level.tables[range.end]) {
        range.end += 1;
    }
    debug_assert!(range.len() <= count + 2, "a range has two neighbours");
    range
}

/// Returns the first key of the tables, and the first key after them. `None` without tables.
pub(in crate::compaction) fn bounds(tables: &[Arc<TableHandle>]) -> Option<(Vec<u8>, Vec<u8>)> {
    let smallest = tables.iter().map(|t| &t.meta().smallest).min()?;
    let end = tables.iter().map(|t| end_of(t.meta())).max()?;
    debug_assert!(*smallest < end, "tables have keys");
    Some((smallest.clone(), end))
}

/// Returns the first key after a table's range.
pub(crate) fn end_of(meta: &TableMeta) -> Vec<u8> {
    let mut end = meta.largest.clone();
    if !meta.largest_excluded {
        end.push(0);
    }
    debug_assert!(meta.smallest < end, "a table has keys");
    end
}

/// Reports whether no two of the tables overlap.
pub(in crate::compaction) fn are_disjoint(tables: &[Arc<TableHandle>]) -> bool {
    let mut by_key: Vec<&TableMeta> = tables.iter().map(|t| &**t.meta()).collect();
    by_key.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    by_key.windows(2).all(|pair| pair[0].is_before(pair[1]))
}
