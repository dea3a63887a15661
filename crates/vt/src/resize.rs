//! A store that becomes longer or shorter while it is open.
//!
//! Shrinking: the zones behind the new end are set aside, so that nothing new goes there; what is
//! in them gets into tables (values that commits wrote to zones at once), tables are evacuated, and
//! when the last reader of the old ones is gone the volume is cut. Until then nothing has changed
//! that a crash would have to undo.

use crate::VtError;
use crate::defrag::Watch;
use crate::member::Member;
use crate::signals::Worker;
use crate::victims::run_of;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_volume::{Shrinking, Space, VolumeError};

/// How long readers of what was moved are waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

impl Member {
    pub(crate) fn shrink(&self, device_bytes: u64, watch: &mut Watch<'_>) -> Result<bool, VtError> {
        let _one_at_a_time = self.pool.evacuation.lock();
        self.gate.check_writable()?;
        let areas = self.volume.superblock().areas;
        let zones_bytes = device_bytes.saturating_sub(areas.zones_at);
        let kept = self.space.reserve_bytes_on(zones_bytes);
        // Deletes are taken afterwards, too.
        let kept = kept.max(Space::reserve_bytes_on(zones_bytes)) + self.space.all_aside_bytes();
        // What was deleted need not be moved.
        if !self.give_back(watch)? {
            return Ok(false);
        }
        // Room in long runs must be left, and it is made while there is some.
        let cut_bytes = areas.device_bytes.saturating_sub(device_bytes);
        let is_tight = self.volume.zones().usage().zones_free_bytes < cut_bytes + 2 * kept;
        if is_tight && !self.evacuate_untried(&mut BTreeSet::new(), watch)? {
            return Ok(false);
        }
        let mut shrinking = self.volume.begin_shrink(device_bytes, kept)?;
        let stores = self.with_others();
        for store in &stores {
            store.compactor.forget_avoided();
        }
        let total = shrinking.live_bytes()?;
        // They need zones that lie side by side, so before all else; if there are none, once more
        // when all else was moved.
        match move_logs(&mut shrinking, &stores) {
            Err(VtError::Volume(VolumeError::NoZones { .. })) => {}
            other => other?,
        }
        if !self.empty(&mut shrinking, total, watch)? {
            return Ok(false);
        }
        let committed = shrinking.commit().map_err(VtError::from);
        committed.inspect_err(|error| self.gate.fail(error))?;
        for store in &stores {
            store.signals.wake(Worker::Compaction);
        }
        Ok(true)
    }

    /// Moves all that is in the part that is to be cut off.
    fn empty(
        &self,
        shrinking: &mut Shrinking<'_>,
        total: u64,
        watch: &mut Watch<'_>,
    ) -> Result<bool, VtError> {
        let clock = &*self.clock;
        let tail = run_of(shrinking.tail()?);
        debug_assert!(tail.len_bytes > 0, "something is cut off");
        const {
            assert!(
                POLL.as_millis() < PATIENCE.as_millis(),
                "readers are waited for"
            )
        };
        let mut moved_at = clock.monotonic();
        let mut left = total;
        loop {
            let live = shrinking.note_moved()?;
            if live == 0 {
                return Ok(true);
            }
            if live < left {
                (left, moved_at) = (live, clock.monotonic());
            }
            if !watch(total - live.min(total), total) {
                return Ok(false);
            }
            if self.evacuate_any(&[tail], true)? {
                continue;
            }
            // Values that were written at once, and what write-outs have under way.
            for store in self.with_others() {
                self.told(&store, store.write_all_out())?;
            }
            if self.evacuate_any(&[tail], true)? {
                continue;
            }
            move_logs(shrinking, &self.with_others())?;
            let stores = self.pool.all();
            if stores.iter().any(|store| store.has_tables_in(tail)) {
                return Err(self.stuck(shrinking, tail));
            }
            if clock.monotonic().saturating_sub(moved_at) >= PATIENCE {
                return Err(VtError::Unmovable {
                    what: format!("{live} bytes that were moved are still being read; try again"),
                    kind: ErrorKind::Conflict,
                });
            }
            clock.sleep(POLL);
        }
    }

    /// True if a table owns anything in a part of the device.
    fn has_tables_in(&self, part: stitch_format::vt_manifest::Run) -> bool {
        debug_assert!(part.len_bytes > 0, "a part of the device is not empty");
        let version = self.views.version();
        let is_in = |meta| crate::compaction::is_in(meta, &[part]);
        version.tables().any(|(_, table)| is_in(table.meta()))
    }

    /// Why tables are left there.
    fn stuck(&self, shrinking: &Shrinking<'_>, tail: stitch_format::vt_manifest::Run) -> VtError {
        if let Some(name) = self.closed_in(tail) {
            return VtError::Unmovable {
                what: format!("instance {name} was closed and has data there; open the store anew"),
                kind: ErrorKind::Conflict,
            };
        }
        let stores = self.with_others();
        if let Some(store) = stores.iter().find(|s| s.compactor.has_unreadable_in(tail)) {
            let what = "there is data at the end of the volume that cannot be read, and so not \
                        moved; a check says whose it is";
            let error = VtError::Unmovable {
                what: what.to_owned(),
                kind: ErrorKind::Corrupt,
            };
            return self.named(store, error);
        }
        shrinking.too_small().into()
    }
}

/// Moves the logs of all instances out of what is to be cut off.
fn move_logs(shrinking: &mut Shrinking<'_>, stores: &[Arc<Member>]) -> Result<(), VtError> {
    for store in stores {
        shrinking.move_logs(&store.volume)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
