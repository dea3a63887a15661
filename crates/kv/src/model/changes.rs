//! Keys that changed since a moment, or between two.

use super::{ModelEngine, State};
use crate::{Guard, Guarded, KeyRange, KvError, Snapshot};
use stitch_base::TreeId;

impl ModelEngine {
    /// The keys under a guard that changed since its moment, in order.
    pub(super) fn changed(
        &self,
        state: &State,
        guard: &Guard<'_>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let of = (guard.tree, guard.on);
        state.check_held(self.holds.own(guard.since), of)?;
        let rows = self.rows(state, of, None)?;
        let rows = rows.read();
        let Guarded::Written(branch) = guard.on else {
            return Ok(rows.changed(guard.on, guard.since.seqno(), count_max));
        };
        let is_written = state.written_in(branch, guard.tree)?;
        let mut changed = rows.changed(guard.on, guard.since.seqno(), usize::MAX);
        changed.retain(|key| is_written(key));
        changed.truncate(count_max);
        for key in &changed {
            state.check_held(self.holds.own(guard.since), (guard.tree, Guarded::Key(key)))?;
        }
        Ok(changed)
    }

    pub(super) fn listed_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        (from, to): (&Snapshot, Option<&Snapshot>),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let state = self.state.read();
        let of = (tree, Guarded::Range(range));
        let rows = self.rows(&state, of, to)?;
        let from_hold = self.holds.own(from);
        state.check_held(from_hold, of)?;
        let (_, last_tree) = from_hold.moment();
        if tree > last_tree {
            return Err(KvError::NoTree(tree));
        }
        let seqnos = (from.seqno(), to.map_or(state.seqno, Snapshot::seqno));
        let rows = rows.read();
        Ok(rows.changed_between(range, seqnos, count_max))
    }
}
