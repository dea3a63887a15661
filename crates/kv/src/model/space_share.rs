//! Shares of the space of the model engine: a copy tells what a drop gives back.

use super::{ModelEngine, State};
use crate::{Engine, Guarded, Holder, KeyRange, KvError, Snapshot, SpaceShare, check_holders};
use stitch_base::{Seqno, TreeId};

impl State {
    /// What the rows of all trees take, living and hidden.
    fn row_bytes(&self) -> u64 {
        self.used() - self.pins.bytes()
    }
}

impl ModelEngine {
    pub(super) fn exclusive(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        check_holders(holders)?;
        let mut all = Vec::new();
        for (done, holder) in (0..).zip(holders) {
            if !watch(done, holders.len() as u64) {
                return Ok(None);
            }
            // Only what outlives the process comes along: no open snapshot.
            let copy = self.reopened();
            let before = copy.state.read().row_bytes();
            match holder {
                // `reopened` has dropped it.
                Holder::Garbage => {}
                Holder::Pin(name) => copy.drop_pin(name)?,
                Holder::Pins(names) => names.iter().try_for_each(|name| copy.drop_pin(name))?,
                Holder::Trees(trees) => copy.drop_trees(trees)?,
            }
            copy.quiesce()?;
            let after = copy.state.read().row_bytes();
            debug_assert!(after <= before, "a drop takes no space");
            all.push(before - after);
        }
        Ok(Some(all))
    }

    pub(super) fn share_of(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        let moments = self.reopened().holds.of(tree);
        let held = |key: &[u8]| match at {
            // All of it is older, so nothing is exclusive.
            Some(_) => Some(Seqno(u64::MAX)),
            None => moments.of(key).pop(),
        };
        let state = self.state.read();
        let seqno = at.map_or(state.seqno, Snapshot::seqno);
        let mut sum = SpaceShare::default();
        if ranges.is_empty() {
            let none = Guarded::Range(KeyRange::new(b"", b""));
            self.rows(&state, (tree, none), at)?;
        }
        for range in ranges {
            let rows = self.rows(&state, (tree, Guarded::Range(*range)), at)?;
            sum.add(rows.read().share((range.start, range.end), seqno, &held));
        }
        Ok(sum)
    }
}
