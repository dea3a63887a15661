//! Parting a table: its unreadable data blocks get tables of their own, in the same level. Every
//! block is stitched, none is read.
//!
//! Versions of a key may span blocks. What shares a key with an unreadable block goes with it, so
//! that the tables share none. Unreadable blocks that follow each other stay together.
//!
//! The parts of a table with a shift have that shift too: its blocks and range deletes go into them
//! with the sequence numbers that are stored.

use crate::VtError;
use crate::compaction::Compactor;
use crate::compaction::fragments::Fragments;
use crate::compaction::made::Made;
use crate::compaction::picker::Plan;
use crate::compaction::run::{input_runs, level_number, stream};
use crate::output::{OutputRules, Outputs};
use crate::version::TreeVersion;
use std::ops::Range;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;

impl Compactor {
    /// Makes the parts of a plan's only table.
    pub(in crate::compaction) fn part(
        &self,
        tree: &TreeVersion,
        plan: &Plan,
    ) -> Result<Made, VtError> {
        let [handle] = plan.upper.as_slice() else {
            unreachable!("one table is parted");
        };
        let table = self.tables.reader(handle).unshifted();
        let shift = handle.meta().shift;
        let index = table.index_entries(&[], None)?;
        let deletes = table.range_deletes()?;
        let units = {
            let detours = &self.scheduler.lock().exclusions.detours;
            units(&index, |block| detours.has_block(block))
        };
        let mut cuts = Vec::new();
        for unit in &units {
            let blocks = &index[unit.clone()];
            cuts.push(blocks[0].first.clone());
            cuts.push(after(&blocks[blocks.len() - 1].last));
        }
        cuts.dedup();
        let rules = OutputRules {
            stream: stream(plan.to_level, 0),
            precision: self.tables.precision(plan.to_level),
            table_bytes: u64::MAX,
            moments: self.snapshots.held().of(tree.info.id).stored(shift),
            cuts,
            input_runs: input_runs(plan),
            under_way: None,
        };
        let deletes = Fragments::new(deletes.iter(), &rules.moments).sorted();
        let mut outputs = Outputs::new(&self.tables, &tree.info, rules, deletes);
        outputs.stitch(&index)?;
        let mut tables = outputs.finish()?;
        debug_assert!(!tables.is_empty(), "what is parted has parts");
        if shift > 0 {
            tables.iter_mut().for_each(|table| table.move_by(shift));
            // They were counted by moments that are not those of any snapshot.
            let ids = tables.iter().map(|table| table.id);
            ids.for_each(|id| self.tables.superseded.forget(id));
        }
        let is_of = |table: &TableMeta, unit: &Range<usize>| {
            let first = &index[unit.start].first;
            table.smallest <= *first && table.reaches(first)
        };
        let unreadable = tables
            .iter()
            .filter(|table| units.iter().any(|unit| is_of(table, unit)))
            .map(|table| table.id)
            .collect();
        let level = level_number(plan.to_level);
        debug_assert_eq!(
            plan.to_level, plan.from_level,
            "a table is parted in its level"
        );
        Ok(Made {
            tables: tables.into_iter().map(|table| (level, table)).collect(),
            unreadable,
            ..Made::default()
        })
    }
}

/// Blocks that must stay together, around those that cannot be read.
fn units(index: &[IndexEntry], is_bad: impl Fn(&IndexEntry) -> bool) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    while start < index.len() {
        // A chain of blocks of which each shares a key with the next, or both are unreadable.
        let mut end = start + 1;
        let mut has_bad = is_bad(&index[start]);
        while let (Some(last), Some(next)) = (index.get(end - 1), index.get(end)) {
            let are_bad = is_bad(last) && is_bad(next);
            if last.last != next.first && !are_bad {
                break;
            }
            has_bad |= is_bad(next);
            end += 1;
        }
        if has_bad {
            out.push(start..end);
            debug_assert!(
                index[start..end].iter().any(&is_bad),
                "a unit is around an unreadable block"
            );
        }
        start = end;
        debug_assert!(start <= index.len(), "a unit is of the index");
    }
    debug_assert!(
        out.is_sorted_by(|unit, next| unit.end <= next.start),
        "units are in order and apart"
    );
    out
}

/// The first key after one.
fn after(key: &[u8]) -> Vec<u8> {
    let mut after = key.to_vec();
    after.push(0);
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::{Seqno, TableId};
    use stitch_format::vt_index::BlockPtr;

    fn block(first: &str, last: &str) -> IndexEntry {
        IndexEntry {
            first: first.into(),
            last: last.into(),
            origin: TableId(1),
            block: BlockPtr::default(),
            raw_bytes: 0,
            entry_count: 1,
            delete_count: 0,
            min_seqno: Seqno(1),
            max_seqno: Seqno(1),
            has_versions: false,
            is_value: false,
            filter: Vec::new(),
        }
    }

    #[test]
    fn what_shares_a_key_stays_together() {
        let blocks = [("a", "b"), ("b", "c"), ("d", "e"), ("f", "f"), ("f", "g")];
        let index: Vec<_> = blocks.iter().map(|(a, b)| block(a, b)).collect();
        let bad = |names: &'static str| {
            let units = units(&index, move |b| names.as_bytes().contains(&b.last[0]));
            let ends = units.into_iter().map(|unit| (unit.start, unit.end));
            ends.collect::<Vec<_>>()
        };
        assert_eq!(bad("e"), [(2, 3)]);
        assert_eq!(bad("c"), [(0, 2)]);
        assert_eq!(bad("ce"), [(0, 3)]);
        assert_eq!(bad("bg"), [(0, 2), (3, 5)]);
        assert_eq!(bad(""), []);
    }
}
