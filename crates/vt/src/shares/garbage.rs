//! What dropped moments have left in a tree: versions that nothing needs any more.
//!
//! A version that was written at `a` and replaced at `b` is left by a dropped moment if one is from
//! `a` on and before `b`, and none is held there:
//!
//! ```text
//! moments          5 (held)      8 (dropped)
//! put@3, put@7     needed by 5
//! put@6, put@9                   |- garbage -|
//! ```
//!
//! What brings it back depends on where the newer version is:
//!
//! ```text
//! in the same table      that table is rewritten in its level, the block of the older one merged
//! in a table above       that table goes down
//! in a memtable          it is written out first
//! ```

use super::exclusive::costs_of;
use super::sweep::Sweep;
use super::{Kind, SweepPlace, SweepSpan, SweepVisit, VersionCost, input::SweepScope};
use crate::VtError;
use crate::compaction::{Fragments, Hidden};
use crate::dropped::DroppedMoments;
use crate::key_moments::{KeyMoments, MomentCursor};
use crate::store::Store;
use crate::table::Bounds;
use crate::version::TreeVersion;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::{Seqno, TableId};

/// Where to look for garbage.
#[derive(Clone, Debug)]
pub(crate) struct GarbageScope<'a> {
    /// Moments that are held.
    pub(crate) held: &'a KeyMoments,
    pub(crate) dropped: DroppedMoments,
    pub(crate) bounds: Arc<Bounds>,
}

/// Garbage in one table that goes when the table is rewritten.
#[derive(Clone, Debug, Default)]
pub(crate) struct GarbageInTable {
    pub(crate) bytes: u64,
    /// Addresses of the blocks that have some.
    pub(crate) blocks: BTreeSet<u64>,
}

/// Garbage of a key range, by the table that is to be compacted for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundGarbage {
    pub(crate) in_place: BTreeMap<TableId, GarbageInTable>,
    /// For each table, bytes below it that it replaces.
    pub(crate) below: BTreeMap<TableId, u64>,
    /// Bytes that entries in memory replace.
    pub(crate) below_memtables: u64,
}

impl Store {
    /// Finds what dropped moments have left in a range of a tree.
    pub(crate) fn find_garbage(
        &self,
        view: &View,
        tree: &TreeVersion,
        scope: &GarbageScope<'_>,
    ) -> Result<FoundGarbage, VtError> {
        let (start, end) = (scope.bounds.start.as_slice(), scope.bounds.end.as_deref());
        let tables = || {
            let all = tree.tables().map(|(_, table)| table.meta());
            all.filter(|meta| meta.overlaps(start, end))
        };
        let may_see = tables().any(|meta| scope.dropped.may_see(meta.min_seqno));
        let may_miss = tables().any(|meta| scope.dropped.may_miss(meta.max_seqno));
        if !may_see || !may_miss {
            return Ok(FoundGarbage::default());
        }
        let mut sweep = Sweep::default();
        let seen = SweepScope {
            ceiling: Seqno(u64::MAX),
            depth: 0,
            bounds: Arc::clone(&scope.bounds),
        };
        sweep.add((view, tree), &seen, &self.tables)?;
        let range_deletes = sweep.take_range_deletes();
        let with_deletes = tables().filter(|meta| meta.range_delete_count > 0);
        let mut visit = OfDropped {
            range_deletes: Fragments::new(&range_deletes, scope.held),
            moments: MomentCursor::new(scope.held),
            scope,
            with_range_deletes: with_deletes.map(|meta| meta.id).collect(),
            found: FoundGarbage::default(),
            costs: Vec::new(),
        };
        let swept = &self.counters.swept_bytes;
        sweep.run(&self.tables, &mut visit, &mut |bytes| {
            swept.add(bytes);
            !self.signals.is_stopped()
        })?;
        debug_assert!(
            visit
                .found
                .in_place
                .values()
                .all(|garbage| !garbage.blocks.is_empty()),
            "garbage is in blocks"
        );
        Ok(visit.found)
    }
}

/// Finds versions that dropped moments alone have needed.
struct OfDropped<'a> {
    moments: MomentCursor<'a>,
    range_deletes: Fragments,
    scope: &'a GarbageScope<'a>,
    with_range_deletes: BTreeSet<TableId>,
    found: FoundGarbage,
    /// What the versions of a key cost, in their order.
    costs: Vec<u64>,
}

impl OfDropped<'_> {
    fn has(&self, key: &[u8]) -> bool {
        let bounds = &self.scope.bounds;
        let end = bounds.end.as_deref();
        *bounds.start <= *key && end.is_none_or(|end| key < end)
    }

    /// Garbage that goes when its table is rewritten.
    fn add_in_place(&mut self, place: SweepPlace, bytes: u64) {
        debug_assert!(
            place.table.is_some() || place.block_addr == 0,
            "a block is in a table"
        );
        let Some(table) = place.table else {
            return;
        };
        let found = self.found.in_place.entry(table).or_default();
        found.bytes += bytes;
        found.blocks.insert(place.block_addr);
    }

    /// Garbage that a range delete hides from all readers that could see it. It goes with its table
    /// if the range delete is in it. Until then the range delete goes down, as all of them do.
    fn add_deleted(&mut self, place: SweepPlace, bytes: u64) {
        let is_near = |table: TableId| self.with_range_deletes.contains(&table);
        if place.table.is_some_and(is_near) {
            self.add_in_place(place, bytes);
        }
    }

    /// Garbage that a newer version replaces.
    fn add_replaced(&mut self, older: &VersionCost, newer: &VersionCost, bytes: u64) {
        debug_assert!(older.seqno < newer.seqno, "versions come newest first");
        if older.place.table.is_none() {
            // It is not written out.
            return;
        }
        match newer.place.table {
            table if table == older.place.table => self.add_in_place(older.place, bytes),
            // It stands on the older one until both are in one table.
            _ if newer.kind == Kind::Upsert => {}
            Some(table) => *self.found.below.entry(table).or_default() += bytes,
            None => self.found.below_memtables += bytes,
        }
    }

    /// Returns the number of the current key's moments that do not see a write.
    fn place(&self, seqno: Seqno) -> usize {
        self.moments.seqnos().partition_point(|s| *s < seqno)
    }

    /// Returns the place of the first moment that sees a range delete over a version.
    fn deleted_at(&self, key: &[u8], seqno: Seqno) -> Option<usize> {
        let (from, own) = (self.place(seqno), self.moments.seqnos());
        let hides = |place: &usize| {
            let newest = self.range_deletes.newest(own, key, *place);
            newest.is_some_and(|delete| delete > seqno)
        };
        let found = self.range_deletes.filled_from(own, from).find(hides);
        debug_assert!(
            found.is_none_or(|found| found >= from),
            "only newer range deletes hide it"
        );
        found
    }
}

impl SweepVisit for OfDropped<'_> {
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool {
        debug_assert!(
            span.min_seqno <= span.max_seqno,
            "numbers of a span are in order"
        );
        debug_assert!(span.first <= span.last, "its keys are in order");
        let dropped = self.scope.dropped;
        if !dropped.may_see(span.min_seqno) {
            return true;
        }
        let seqnos = (span.min_seqno, span.max_seqno);
        match self.range_deletes.hidden((span.first, span.last), seqnos) {
            Hidden::Nothing => !span.has_versions || !dropped.may_miss(span.max_seqno),
            Hidden::All(_) | Hidden::Some => false,
        }
    }

    fn key(&mut self, key: &[u8], versions: &[VersionCost]) {
        debug_assert!(!versions.is_empty(), "the key was there");
        if !self.has(key) {
            return;
        }
        let mut costs = std::mem::take(&mut self.costs);
        costs_of(versions, &mut costs);
        self.moments.seek(key);
        let mut newer: Option<&VersionCost> = None;
        for (version, cost) in versions.iter().zip(&costs) {
            debug_assert!(
                newer.is_none_or(|newer| newer.seqno >= version.seqno),
                "versions come newest first"
            );
            let start = self.place(version.seqno);
            let replaced = newer.filter(|newer| self.place(newer.seqno) == start);
            let is_left = |newer: &VersionCost| self.scope.dropped.may_miss(newer.seqno);
            if !self.scope.dropped.may_see(version.seqno) {
                // It came later.
            } else if self.deleted_at(key, version.seqno) == Some(start) {
                self.add_deleted(version.place, *cost);
            } else if let Some(newer) = replaced.filter(|newer| is_left(newer)) {
                self.add_replaced(version, newer, *cost);
            }
            newer = Some(version);
        }
        self.costs = costs;
    }
}
