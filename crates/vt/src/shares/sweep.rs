//! The walk over versions in key order.
//!
//! 1. The input whose next key is the least comes first.
//! 2. If that is a table or a block and no other input comes to any of its keys, the visitor may
//!    take it whole.
//! 3. Otherwise it is opened: a table to its blocks, a block to its entries.
//! 4. Entries of one key are gathered from all inputs and shown newest first.

use super::input::{SweepInput, SweepScope};
use super::{SweepVisit, VersionCost};
use crate::VtError;
use crate::entry::RangeDelete;
use crate::range_delete::RangeDeletes;
use crate::table::Bounds;
use crate::tables::Tables;
use crate::version::{TableHandle, TreeVersion};
use crate::view::View;
use std::cmp::Reverse;
use std::sync::Arc;
use stitch_base::Seqno;

/// Inputs, and the range deletes over them.
#[derive(Default)]
pub(super) struct Sweep {
    inputs: Vec<SweepInput>,
    range_deletes: Vec<RangeDelete>,
}

/// Where a sweep is: the input that comes first, and whether it shares its keys with none.
struct Next {
    input: usize,
    is_alone: bool,
}

impl Sweep {
    /// Adds what was written to a tree, with its range deletes.
    pub(super) fn add(
        &mut self,
        (view, tree): (&View, &TreeVersion),
        seen: &SweepScope,
        tables: &Tables,
    ) -> Result<(), VtError> {
        self.add_memtables((view, tree), seen)?;
        let (start, end) = (seen.bounds.start.as_slice(), seen.bounds.end.as_deref());
        let (level0, below) = tree.levels.split_first().expect("there are 8 levels");
        debug_assert!(
            end.is_none_or(|end| start <= end),
            "a range of keys is in order"
        );
        let touches = |table: &&Arc<TableHandle>| table.meta().overlaps(start, end);
        for table in level0.tables.iter().filter(touches) {
            let one = std::iter::once(Arc::clone(table));
            self.inputs.push(SweepInput::tables(one, seen)?);
        }
        for level in below {
            let touched = &level.tables[level.overlapping(start, end)];
            self.inputs
                .push(SweepInput::tables(touched.iter().cloned(), seen)?);
        }
        for (_, table) in tree.tables() {
            if table.meta().range_delete_count > 0 && touches(&table) {
                self.add_range_deletes(&*tables.reader(table).range_deletes()?, seen);
            }
        }
        Ok(())
    }

    /// Adds what was written to a tree and is in no table yet.
    pub(super) fn add_memtables(
        &mut self,
        (view, tree): (&View, &TreeVersion),
        seen: &SweepScope,
    ) -> Result<(), VtError> {
        let id = tree.info.id;
        let (start, end) = (seen.bounds.start.as_slice(), seen.bounds.end.as_deref());
        for buffer in &view.buffers {
            let entries = buffer.memtable.iter(id);
            self.inputs.push(SweepInput::memtable(entries, seen)?);
            let runs = buffer.direct.overlapping(id, start, end);
            let runs = runs.iter().map(|run| SweepInput::direct(run, seen));
            self.inputs.extend(runs);
            self.add_range_deletes(&buffer.memtable.range_deletes(id), seen);
        }
        Ok(())
    }

    fn add_range_deletes(&mut self, set: &RangeDeletes, seen: &SweepScope) {
        let visible = set.iter().filter(|delete| delete.seqno <= seen.ceiling);
        debug_assert!(
            set.iter().all(|delete| delete.start < delete.end),
            "ranges hold keys"
        );
        self.range_deletes.extend(visible.cloned());
    }

    /// Takes out the range deletes that are seen.
    pub(super) fn take_range_deletes(&mut self) -> Vec<RangeDelete> {
        std::mem::take(&mut self.range_deletes)
    }

    /// Walks all of it. `passed` is called with the bytes of each table that is done or opened;
    /// returns false if it did.
    pub(super) fn run(
        mut self,
        tables: &Tables,
        visit: &mut dyn SweepVisit,
        passed: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, VtError> {
        let mut key: Vec<u8> = Vec::new();
        let mut versions: Vec<VersionCost> = Vec::new();
        self.inputs.retain(|input| input.first().is_some());
        while let Some(next) = self.next() {
            let input = &mut self.inputs[next.input];
            if let Some(span) = input.span() {
                let bytes = input.table_bytes();
                let is_whole = next.is_alone && visit.takes_whole(&span);
                match is_whole {
                    true => input.advance()?,
                    false => input.open(tables)?,
                }
                if bytes.is_some_and(|bytes| !passed(bytes)) {
                    return Ok(false);
                }
                self.drop_ended(next.input);
                continue;
            }
            key.clear();
            key.extend_from_slice(input.first().expect("the least is there"));
            debug_assert!(
                self.inputs[next.input].is_open(),
                "a table or block is opened first"
            );
            self.gather(&key, &mut versions, tables)?;
            visit.key(&key, &versions);
            self.inputs.retain(|input| input.first().is_some());
        }
        Ok(true)
    }

    fn drop_ended(&mut self, input: usize) {
        if self.inputs[input].first().is_none() {
            self.inputs.swap_remove(input);
        }
    }

    /// Of inputs with the same first key one that can be opened comes first.
    fn next(&self) -> Option<Next> {
        let order = |a: &SweepInput, b: &SweepInput| {
            let by_key = a.first().cmp(&b.first());
            by_key.then_with(|| a.is_open().cmp(&b.is_open()))
        };
        let numbered = self.inputs.iter().enumerate();
        let (number, least) = numbered.min_by(|(_, a), (_, b)| order(a, b))?;
        debug_assert!(least.first().is_some(), "what has ended is dropped");
        let last = least.span().map(|span| span.last);
        let others = self.inputs.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != number);
        let is_alone = others.all(|(_, other)| other.first() > last);
        Some(Next {
            input: number,
            is_alone,
        })
    }

    /// Takes all versions of a key. No table or block that may have it is closed.
    fn gather(
        &mut self,
        key: &[u8],
        versions: &mut Vec<VersionCost>,
        tables: &Tables,
    ) -> Result<(), VtError> {
        versions.clear();
        for input in &mut self.inputs {
            loop {
                // The versions of a key may go on in the next block.
                while input.span().is_some() && input.first() == Some(key) {
                    input.open(tables)?;
                }
                match input.take(key)? {
                    Some(version) => versions.push(version),
                    None => break,
                }
            }
        }
        versions.sort_unstable_by_key(|version| Reverse(version.seqno));
        debug_assert!(!versions.is_empty(), "the key was there");
        Ok(())
    }
}

/// All keys of one tree, without a ceiling.
pub(super) fn all_of_one() -> SweepScope {
    SweepScope {
        ceiling: Seqno(u64::MAX),
        depth: 0,
        bounds: Arc::new(Bounds::default()),
    }
}
