//! What compactions that run now have to themselves: keys of levels.
//!
//! A compaction from a level to the next takes tables out of the first and puts tables into the
//! second. It *claims*:
//!
//! - of the first level, the keys from its first upper table to its last; of level 0 all, since
//!   there only the oldest can go down;
//! - of the second level, the keys of all that goes in, where all that comes out will lie.
//!
//! Two compactions whose claims do not meet may run at once, in any order of their installations:
//!
//! - they have no table in common, so both edits can be installed;
//! - what they put into a level does not overlap;
//! - neither takes a key past the other: where both have a key, the levels of one are all above
//!   those of the other;
//! - what one found to be the *bottom* stays so: a key that was in no deeper level when it began
//!   can get there only by a compaction of that key out of its own levels.

use super::picker::{Plan, PlanKind, end_of};
use crate::options::COMPACTIONS_MAX;
use crate::version::{LEVELS, TableHandle};
use std::sync::Arc;
use stitch_base::TreeId;

/// Stands for the slot of an absorb that places moved tables.
const PLACING: usize = usize::MAX;

/// Keys of a level, `start` included and `end` not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    tree: TreeId,
    level: usize,
    start: Vec<u8>,
    /// `None`: to the end of the tree.
    end: Option<Vec<u8>>,
    /// What is there goes down: it is as good as gone.
    goes_down: bool,
}

impl Claim {
    fn meets(&self, tree: TreeId, level: usize, start: &[u8], end: Option<&[u8]>) -> bool {
        debug_assert!(end.is_none_or(|end| start < end), "a claim has keys");
        let begins = end.is_none_or(|end| self.start.as_slice() < end);
        let reaches = self.end.as_ref().is_none_or(|own| own.as_slice() > start);
        (self.tree, self.level) == (tree, level) && begins && reaches
    }

    fn meets_other(&self, other: &Self) -> bool {
        debug_assert!(
            self.end.as_ref().is_none_or(|end| self.start < *end),
            "a claim has keys"
        );
        self.meets(other.tree, other.level, &other.start, other.end.as_deref())
    }
}

/// The claims of all that run now, each with the number of its slot.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    all: Vec<(usize, Claim)>,
    /// What goes into each compaction, by the number of its slot.
    weights: Vec<(usize, u64)>,
}

impl Claims {
    /// A plan begins.
    ///
    /// # Panics
    /// If it meets what another has claimed.
    pub(super) fn add(&mut self, slot: usize, plan: &Plan) {
        debug_assert!(slot != PLACING, "a slot of the scheduler");
        assert!(!self.meet(plan), "compactions at once do not overlap");
        let claims = claims_of(plan).into_iter().map(|claim| (slot, claim));
        self.all.extend(claims);
        debug_assert!(
            self.weights.iter().all(|(of, _)| *of != slot),
            "a slot has one plan"
        );
        self.weights.push((slot, plan.input_weight()));
        debug_assert!(
            self.all.iter().any(|(of, _)| *of == slot),
            "what a plan reads and writes is claimed"
        );
    }

    /// A slot is given back.
    pub(super) fn remove(&mut self, slot: usize) {
        self.all.retain(|(of, _)| *of != slot);
        self.weights.retain(|(of, _)| *of != slot);
        debug_assert!(
            self.weights.len() <= self.all.len(),
            "each plan has a claim"
        );
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.all.is_empty();
        debug_assert!(
            !is_empty || self.weights.is_empty(),
            "each plan has a claim"
        );
        is_empty
    }

    /// What goes into compactions that run now: so much their outputs may still take.
    pub(super) fn weight(&self) -> u64 {
        debug_assert!(
            self.weights.len() <= COMPACTIONS_MAX,
            "few compactions run at once"
        );
        self.weights.iter().map(|(_, weight)| weight).sum()
    }

    /// True if a plan cannot run beside those that do.
    pub(super) fn meet(&self, plan: &Plan) -> bool {
        let meets = |claim: &Claim| self.all.iter().any(|(_, own)| own.meets_other(claim));
        !self.is_empty() && claims_of(plan).iter().any(meets)
    }

    /// True if anything is claimed of these keys of a level.
    pub(super) fn has(&self, tree: TreeId, level: usize, keys: (&[u8], &[u8])) -> bool {
        debug_assert!(keys.0 < keys.1, "a range has keys");
        debug_assert!(level < LEVELS, "a level of a tree");
        let mut all = self.all.iter();
        all.any(|(_, claim)| claim.meets(tree, level, keys.0, Some(keys.1)))
    }

    /// Tables will lie there once they are installed.
    pub(super) fn place(&mut self, tree: TreeId, level: usize, (start, end): (&[u8], &[u8])) {
        debug_assert!(level > 0, "level 0 takes any table on top");
        debug_assert!(start < end, "a table has keys");
        let claim = Claim {
            tree,
            level,
            start: start.to_vec(),
            end: Some(end.to_vec()),
            goes_down: false,
        };
        self.all.push((PLACING, claim));
    }

    /// What was placed is installed, or will not be.
    pub(super) fn end_placing(&mut self) {
        self.remove(PLACING);
        debug_assert!(
            self.all
                .iter()
                .all(|(of, _)| self.weights.iter().any(|(slot, _)| slot == of)),
            "the others are of compactions"
        );
    }

    /// True if a table is going down.
    pub(super) fn takes_down(&self, tree: TreeId, level: usize, table: &TableHandle) -> bool {
        debug_assert_eq!(table.meta().tree, tree, "a table of the tree");
        let (start, end) = (&table.meta().smallest, end_of(table.meta()));
        debug_assert!(*start < end, "a table has keys");
        let mut down = self.all.iter().filter(|(_, claim)| claim.goes_down);
        down.any(|(_, claim)| claim.meets(tree, level, start, Some(&end)))
    }

    /// Makes plans of candidates, the one with the least score first. Returns the first plan that
    /// meets no claim.
    pub(super) fn first_free<S: Ord, C>(
        &self,
        candidates: impl Iterator<Item = (S, C)>,
        mut plan: impl FnMut(C) -> Option<Plan>,
    ) -> Option<Plan> {
        let mut candidates: Vec<(S, C)> = candidates.collect();
        candidates.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut plans = candidates.into_iter().filter_map(|(_, of)| plan(of));
        plans.find(|plan| !self.meet(plan))
    }
}

fn claims_of(plan: &Plan) -> Vec<Claim> {
    debug_assert!(!plan.upper.is_empty(), "a plan has inputs");
    let goes_down = plan.to_level > plan.from_level;
    let claim = |level: usize, tables: &mut dyn Iterator<Item = &Arc<TableHandle>>| {
        let (mut start, mut end): (Option<&[u8]>, Option<Vec<u8>>) = (None, None);
        for table in tables {
            let first = table.meta().smallest.as_slice();
            start = Some(start.map_or(first, |start| start.min(first)));
            end = end.max(Some(end_of(table.meta())));
        }
        let is_all = level == 0;
        Claim {
            tree: plan.tree,
            level,
            start: start.filter(|_| !is_all).unwrap_or_default().to_vec(),
            end: end.filter(|_| !is_all),
            goes_down: goes_down && level == plan.from_level,
        }
    };
    let mut claims = Vec::new();
    if plan.kind == PlanKind::Move {
        // They may be far from each other, and nothing between them is touched.
        for table in &plan.upper {
            claims.push(claim(plan.from_level, &mut std::iter::once(table)));
            claims.push(claim(plan.to_level, &mut std::iter::once(table)));
        }
        return claims;
    }
    claims.push(claim(
        plan.from_level,
        &mut plan.upper.iter().chain(&plan.around),
    ));
    if goes_down {
        let mut all = plan.inputs().chain(&plan.around);
        claims.push(claim(plan.to_level, &mut all));
    }
    debug_assert!(
        claims
            .iter()
            .all(|claim| claim.end.as_ref().is_none_or(|end| claim.start < *end)),
        "a claim has keys"
    );
    claims
}
