//! What the rows in ranges of keys take.

use super::input::SweepScope;
use super::sweep::Sweep;
use super::{Kind, SweepSpan, SweepVisit, VersionCost};
use crate::VtError;
use crate::compaction::{Fragments, Hidden};
use crate::key_moments::{KeyMoments, MomentCursor};
use crate::store::Store;
use crate::table::Bounds;
use crate::view::View;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{KeyRange, KeyRanges, SpaceShare};

impl Store {
    /// Adds up what the rows in `ranges` take that a reader of `seqno` sees. With `is_now`, those
    /// count as exclusive that no pin and no branch sees.
    pub(crate) fn range_space(
        &self,
        view: &View,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        (seqno, is_now): (Seqno, bool),
    ) -> Result<SpaceShare, VtError> {
        let (of_pins, mut ranged) = self.pins.newest_seqnos_of(tree);
        let (of_branches, of_ranges) = self.branches.newest_seqnos_of(tree);
        ranged.extend(of_ranges);
        let held = of_pins.max(of_branches);
        let held = match is_now {
            true => KeyMoments::new(vec![held], ranged),
            false => KeyMoments::of_every_key(&[Seqno(u64::MAX)]),
        };
        let mut share = SpaceShare::default();
        for range in ranges
            .iter()
            .filter(|r| r.end.is_none_or(|end| r.start < end))
        {
            let bounds = Arc::new(Bounds::of(*range, false));
            let (mut sweep, seen) = self.lineage_sweep(view, tree, &bounds, seqno)?;
            let range_deletes = sweep.take_range_deletes();
            let mut visit = OfRange {
                range_deletes: Fragments::new(&range_deletes, &KeyMoments::default()),
                bounds,
                seen,
                held: MomentCursor::new(&held),
                share,
            };
            sweep.run(&self.tables, &mut visit, &mut |_| true)?;
            debug_assert!(
                visit.share.referenced_bytes >= share.referenced_bytes,
                "shares of ranges add up"
            );
            share = visit.share;
        }
        Ok(share)
    }

    /// A sweep over a tree and its parents, with what is seen of each.
    fn lineage_sweep(
        &self,
        view: &View,
        tree: TreeId,
        bounds: &Arc<Bounds>,
        mut ceiling: Seqno,
    ) -> Result<(Sweep, Vec<SeenOfTree>), VtError> {
        let (mut sweep, mut all) = (Sweep::default(), Vec::new());
        let mut ranges: Vec<KeyRanges> = Vec::new();
        for (depth, tree) in view.version.lineage(tree).enumerate() {
            let seen = SweepScope {
                ceiling,
                depth,
                bounds: Arc::clone(bounds),
            };
            sweep.add((view, tree), &seen, &self.tables)?;
            all.push(SeenOfTree {
                ceiling,
                ranges: ranges.clone(),
            });
            if let Some(branch) = tree.info.branch {
                ceiling = ceiling.min(branch.seqno);
                ranges.extend(tree.info.branch_ranges.clone());
            }
        }
        debug_assert!(
            all.is_sorted_by(|branch, parent| branch.ceiling >= parent.ceiling),
            "a branch sees no more of a parent than was there"
        );
        debug_assert!(!all.is_empty(), "the tree is there");
        Ok((sweep, all))
    }
}

/// What a reader sees of a tree, or of one of its parents.
struct SeenOfTree {
    /// The newest write.
    ceiling: Seqno,
    /// The keys are in all of these ranges: the branches below begin with them.
    ranges: Vec<KeyRanges>,
}

impl SeenOfTree {
    fn has(&self, key: &[u8]) -> bool {
        self.ranges.iter().all(|ranges| ranges.has(key))
    }

    /// Reports whether all keys from `first` to `last`, both included, are seen.
    fn has_all(&self, first: &[u8], last: &[u8]) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        let mut ranges = self.ranges.iter();
        ranges.all(|of| of.contains(KeyRange::new(first, last)) && of.has(last))
    }
}

/// Adds up the versions that one reader sees.
struct OfRange<'a> {
    range_deletes: Fragments,
    bounds: Arc<Bounds>,
    /// What is seen of the tree and of each of its parents.
    seen: Vec<SeenOfTree>,
    /// The newest moments of each key that something else sees.
    held: MomentCursor<'a>,
    share: SpaceShare,
}

impl OfRange<'_> {
    fn holds(&self, key: &[u8]) -> bool {
        let end = self.bounds.end.as_deref();
        *self.bounds.start <= *key && end.is_none_or(|end| key < end)
    }

    fn add(&mut self, bytes: u64, is_exclusive: bool) {
        debug_assert!(!self.seen.is_empty(), "the tree is there");
        self.share.add(SpaceShare {
            referenced_bytes: bytes,
            exclusive_bytes: if is_exclusive { bytes } else { 0 },
        });
        debug_assert!(
            self.share.exclusive_bytes <= self.share.referenced_bytes,
            "exclusive bytes are referenced ones"
        );
    }

    /// What a parent has is seen by its branch, and so is never exclusive.
    fn is_exclusive(&self, depth: usize, seqno: Seqno) -> bool {
        debug_assert!(depth < self.seen.len(), "a tree of the lineage");
        let newest = self.held.seqnos().last();
        depth == 0 && newest.is_none_or(|newest| seqno > *newest)
    }
}

impl SweepVisit for OfRange<'_> {
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool {
        debug_assert!(span.first <= span.last, "the keys of a span are in order");
        debug_assert!(
            span.min_seqno <= span.max_seqno,
            "numbers of a span are in order"
        );
        let is_within = self.holds(span.first) && self.holds(span.last);
        if span.has_versions || !is_within || span.max_seqno > self.seen[span.depth].ceiling {
            return false;
        }
        if !self.seen[span.depth].has_all(span.first, span.last) {
            return false;
        }
        if self.held.moments().differ(span.first, span.last) {
            return false;
        }
        self.held.seek(span.first);
        let is_exclusive = self.is_exclusive(span.depth, span.min_seqno);
        if is_exclusive != self.is_exclusive(span.depth, span.max_seqno) {
            return false;
        }
        let seqnos = (span.min_seqno, span.max_seqno);
        let hidden = self.range_deletes.hidden((span.first, span.last), seqnos);
        if hidden == Hidden::Nothing {
            self.add(span.bytes, is_exclusive);
        }
        hidden != Hidden::Some
    }

    fn key(&mut self, key: &[u8], versions: &[VersionCost]) {
        debug_assert!(!versions.is_empty(), "the key was there");
        if !self.holds(key) {
            return;
        }
        self.held.seek(key);
        let deleted = self.range_deletes.newest(&[], key, 0);
        debug_assert!(
            versions.is_sorted_by(|newer, older| newer.seqno >= older.seqno),
            "versions come newest first"
        );
        for version in versions {
            // Nor is what further parents have.
            if !self.seen[version.depth].has(key) {
                return;
            }
            if deleted.is_some_and(|deleted| deleted > version.seqno) {
                return;
            }
            if version.kind != Kind::Delete {
                let is_exclusive = self.is_exclusive(version.depth, version.seqno);
                self.add(version.bytes, is_exclusive);
            }
            if version.kind != Kind::Upsert {
                return;
            }
        }
    }
}
