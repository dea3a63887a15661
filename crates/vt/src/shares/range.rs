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
use stitch_kv::{KeyRange, SpaceShare};

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
        let (of_pins, ranged) = self.pins.newest_seqnos_of(tree);
        let held = of_pins.max(self.branches.newest_seqno_of(tree));
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
            let (mut sweep, ceilings) = self.lineage_sweep(view, tree, &bounds, seqno)?;
            let range_deletes = sweep.take_range_deletes();
            let mut visit = OfRange {
                range_deletes: Fragments::new(&range_deletes, &KeyMoments::default()),
                bounds,
                ceilings,
                held: MomentCursor::new(&held),
                share,
            };
            sweep.run(&self.tables, &mut visit, &mut |_| true)?;
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
    ) -> Result<(Sweep, Vec<Seqno>), VtError> {
        let (mut sweep, mut ceilings) = (Sweep::default(), Vec::new());
        for (depth, tree) in view.version.lineage(tree).enumerate() {
            let seen = SweepScope {
                ceiling,
                depth,
                bounds: Arc::clone(bounds),
            };
            sweep.add((view, tree), &seen, &self.tables)?;
            ceilings.push(ceiling);
            if let Some(branch) = tree.info.branch {
                ceiling = ceiling.min(branch.seqno);
            }
        }
        Ok((sweep, ceilings))
    }
}

/// Adds up the versions that one reader sees.
struct OfRange<'a> {
    range_deletes: Fragments,
    bounds: Arc<Bounds>,
    /// The newest write that is seen in the tree and in each of its parents.
    ceilings: Vec<Seqno>,
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
        self.share.add(SpaceShare {
            referenced_bytes: bytes,
            exclusive_bytes: if is_exclusive { bytes } else { 0 },
        });
    }

    /// What a parent has is seen by its branch, and so is never exclusive.
    fn is_exclusive(&self, depth: usize, seqno: Seqno) -> bool {
        let newest = self.held.seqnos().last();
        depth == 0 && newest.is_none_or(|newest| seqno > *newest)
    }
}

impl SweepVisit for OfRange<'_> {
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool {
        let is_within = self.holds(span.first) && self.holds(span.last);
        if span.has_versions || !is_within || span.max_seqno > self.ceilings[span.depth] {
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
        if !self.holds(key) {
            return;
        }
        self.held.seek(key);
        let deleted = self.range_deletes.newest(&[], key, 0);
        for version in versions {
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
