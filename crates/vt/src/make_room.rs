//! How room is made for commits that find none: memtables are written out, garbage is merged away,
//! zones with holes are evacuated, and other stores of the volume do the same.

use crate::VtError;
use crate::compaction::Pressure;
use crate::member::Member;
use std::collections::BTreeSet;
use stitch_kv::{KvError, SpaceClass};

/// Rounds of making room that one call waits for: others may take what it makes.
const ROUNDS_MAX: usize = 1 << 16;

impl Member {
    /// Sets how much is left to commits of [`SpaceClass::Allocated`]. More is refused where it is
    /// not free.
    pub(crate) fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        let set = || self.space.promising().set_aside(bytes);
        match set() {
            // As a commit does before it is refused.
            Err(KvError::NoSpace { needed_bytes, .. }) if self.make_room_for(needed_bytes)? => {
                set()
            }
            done => done,
        }
    }

    /// Makes room for commits of `bytes`, as they would themselves. Returns false if that is more
    /// than can be made.
    fn make_room_for(&self, bytes: u64) -> Result<bool, VtError> {
        debug_assert!(bytes > 0, "something was refused");
        let has_room = || bytes <= self.space.free_bytes(SpaceClass::Normal);
        if has_room() || bytes > self.space.usage().total_bytes {
            return Ok(has_room());
        }
        self.gate.check_writable()?;
        self.give_back_unused();
        // Each round gives something back.
        for _ in 0..ROUNDS_MAX {
            if has_room() || !(self.finish_write_outs()? || self.make_room_of_garbage()?) {
                break;
            }
        }
        Ok(has_room())
    }

    /// Writes out what is sealed. Returns false if nothing was.
    pub(crate) fn finish_write_outs(&self) -> Result<bool, VtError> {
        if self.views.get().sealed_count() == 0 {
            return Ok(self.finish_others() || self.have_unused_back());
        }
        while self.write_out_one()? {}
        Ok(true)
    }

    /// Compacts until more is free. Returns false if nothing more can be made: nothing that is
    /// there is garbage that a compaction finds.
    pub(crate) fn make_room_of_garbage(&self) -> Result<bool, VtError> {
        let free_bytes = || self.space.unpromised_bytes(SpaceClass::Reserve);
        self.make_room_by(&free_bytes, &mut || self.make_room_of_deletes())
    }

    /// Compacts until there are more `bytes` of room in runs. Returns false if nothing more can be
    /// made.
    pub(crate) fn make_room_of_holes(&self, bytes: &dyn Fn() -> u64) -> Result<bool, VtError> {
        self.commits.lock().streams.give_back();
        let mut tried = BTreeSet::new();
        self.make_room_by(bytes, &mut || {
            Ok(self.make_room_of_deletes()? || self.evacuate_best(&mut tried)?)
        })
    }

    /// Writes out what was deleted since the last write-out, which may be worth something, or makes
    /// room in another store. Returns false if there is nothing to be done.
    fn make_room_of_deletes(&self) -> Result<bool, VtError> {
        self.write_outs.seal_deletes()?;
        Ok(self.write_out_one()? || self.make_room_in_others())
    }

    /// Compacts, and does what is `left` where nothing is to be compacted, until there are more
    /// `bytes`.
    fn make_room_by(
        &self,
        bytes: &dyn Fn() -> u64,
        left: &mut dyn FnMut() -> Result<bool, VtError>,
    ) -> Result<bool, VtError> {
        let before = bytes();
        while bytes() <= before {
            self.gate.check_writable()?;
            if !self.compactor.compact_one(Pressure::Room)? && !left()? {
                // Another thread may have made some meanwhile.
                return Ok(bytes() > before);
            }
        }
        Ok(true)
    }
}
