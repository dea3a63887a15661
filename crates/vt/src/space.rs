//! Space: what commits may still be promised, and how more is made.
//!
//! What commits put into memtables will need space when it is written out, so it is promised to
//! them beforehand. Some is kept back for compactions, without which nothing would ever come back.
//!
//! Free bytes are of use only in runs as long as a block. So three sums are kept apart: bytes that are free,
//! bytes in runs for any data or index block, and bytes in runs for value blocks of whole pages, which leave
//! holes of their own length. Where the first suffice and another does not, holes are made into room: zones
//! with many holes are evacuated.

use crate::VtError;
use crate::compaction::Pressure;
use crate::store::Store;
use std::collections::BTreeSet;
use stitch_base::sync::atomic::Ordering;
use stitch_kv::{KvError, SpaceClass, SpaceUsage, TreeOptions, check_free};
use stitch_volume::{Class, PAGE_BYTES};

/// Below this share of the zones, space is low: one part in this many.
const LOW_PART: u64 = 10;
/// What may be rewritten to give space back where nobody waits for it, in multiples of what hides it, as soon as
/// space is low; twice as much where half of that is left, and so on.
const LOW_COST: u64 = 4;
/// What a block takes beyond its longest entry.
const BLOCK_MARGIN_BYTES: u64 = 16 << 10;

/// Of what is kept, what this class leaves alone.
const fn for_class(kept: u64, class: SpaceClass) -> u64 {
    match class {
        SpaceClass::Normal => kept,
        // Deletes leave compactions half of the reserve to work with.
        SpaceClass::Reserve => kept / 2,
        // Room to put values again before compactions have given back the old ones.
        SpaceClass::Allocated => kept - kept / 4,
    }
}

impl Store {
    /// Space of the store.
    pub(crate) fn space(&self) -> SpaceUsage {
        let total = self.volume.zones().usage().total;
        SpaceUsage {
            total_bytes: total.saturating_sub(self.reserve_bytes()),
            free_bytes: self.free_bytes(SpaceClass::Normal),
        }
    }

    /// Bytes that commits of this class may still have promised to them.
    pub(crate) fn free_bytes(&self, class: SpaceClass) -> u64 {
        let all = self.all_aside_bytes();
        let others = match class {
            SpaceClass::Normal | SpaceClass::Reserve => all,
            SpaceClass::Allocated => all.saturating_sub(self.aside_bytes.load(Ordering::Relaxed)),
        };
        self.unpromised_bytes(class).saturating_sub(others)
    }

    /// Bytes that all stores of the volume set aside.
    pub(crate) fn all_aside_bytes(&self) -> u64 {
        self.sum_of(&|store| store.aside_bytes.load(Ordering::Relaxed))
    }

    /// Bytes that this class leaves neither to compactions nor to memtables, with what is set
    /// aside.
    fn unpromised_bytes(&self, class: SpaceClass) -> u64 {
        let free = self.volume.space().available_bytes(Class::Internal);
        free.saturating_sub(self.kept_bytes(class))
    }

    /// Sets how much is left to commits of [`SpaceClass::Allocated`]. More is refused where it is
    /// not free.
    pub(crate) fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        match self.try_set_aside(bytes) {
            // As a commit does before it is refused.
            Err(KvError::NoSpace { needed_bytes, .. }) if self.make_room_for(needed_bytes)? => {
                self.try_set_aside(bytes)
            }
            done => done,
        }
    }

    fn try_set_aside(&self, bytes: u64) -> Result<(), KvError> {
        let _one_at_a_time = self.peers.promising.lock();
        let before = self.aside_bytes.load(Ordering::Relaxed);
        if bytes > before {
            check_free(bytes - before, self.free_bytes(SpaceClass::Normal))?;
        }
        self.aside_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Of these, bytes that are in long runs now. Value blocks of whole pages need none.
    pub(crate) fn roomy_bytes(&self, class: SpaceClass) -> u64 {
        let roomy = self.volume.zones().roomy_bytes(self.room_run_bytes());
        let promised = self.volume.space().promised_bytes();
        let pages = self.page_bytes();
        roomy.saturating_sub(promised.saturating_sub(pages) + self.kept_in_runs(class))
    }

    /// Of the free bytes, those that are in runs for value blocks of this many bytes, whole pages, now.
    pub(crate) fn pages_room_bytes(&self, run_bytes: u64, class: SpaceClass) -> u64 {
        debug_assert!(run_bytes.is_multiple_of(PAGE_BYTES), "whole pages");
        if run_bytes <= PAGE_BYTES {
            return self.free_bytes(class);
        }
        let roomy = self.volume.zones().roomy_bytes(run_bytes);
        let promised = self.volume.space().promised_bytes();
        roomy.saturating_sub(promised + self.kept_in_runs(class))
    }

    /// Of what is promised to memtables, bytes for value blocks of whole pages.
    fn page_bytes(&self) -> u64 {
        let view = self.views.get();
        view.buffers.iter().map(|b| b.page_bytes()).sum()
    }

    /// A run of this length holds any block.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.volume.zones().zone_bytes() / 2
    }

    /// A run of this length holds any block that may have to be written now: of messages like those
    /// committed so far.
    pub(crate) fn room_run_bytes(&self) -> u64 {
        let longest = self.longest_run.load(Ordering::Relaxed);
        longest.min(self.run_bytes())
    }

    /// Takes note of messages that are to be committed.
    pub(crate) fn note_longest(&self, key_bytes: u64, value_bytes: u64) {
        // An index block's keys and a root's may be as long as those of its table.
        let needed = (64 * key_bytes).max(key_bytes + value_bytes + BLOCK_MARGIN_BYTES);
        self.longest_run.fetch_max(needed, Ordering::Relaxed);
    }

    /// Takes note of a tree.
    pub(crate) fn note_tree(&self, options: &TreeOptions) {
        let block_bytes = 4 * u64::from(options.block_bytes) + BLOCK_MARGIN_BYTES;
        self.longest_run.fetch_max(block_bytes, Ordering::Relaxed);
    }

    /// Bytes that compactions may need, when none runs.
    fn reserve_bytes(&self) -> u64 {
        let zones_bytes = self.volume.zones().total_bytes();
        let kept = self.reserves(zones_bytes, &|store| store.sizes_now().reserve);
        kept.max(self.volume.space().reserve_bytes())
    }

    /// Bytes that this class leaves alone: what compactions may need, or those that run have planned to write if
    /// that is more, without what they have written.
    fn kept_bytes(&self, class: SpaceClass) -> u64 {
        let planned = self.sum_of(&|store| store.work.planned_bytes());
        let written = self.sum_of(&|store| store.work.written_bytes());
        let kept = for_class(self.reserve_bytes(), class).max(planned);
        kept.saturating_sub(written)
    }

    /// Of these, bytes that have to be in long runs: what compactions write there. They carry value blocks over,
    /// so that a store of long values needs little more than its indexes.
    fn kept_in_runs(&self, class: SpaceClass) -> u64 {
        let zones_bytes = self.volume.zones().total_bytes();
        let kept = self.reserves(zones_bytes, &Self::run_reserve);
        let planned = self.sum_of(&|store| store.work.planned_bytes());
        let written = self.sum_of(&|store| store.work.run_bytes());
        let kept = for_class(kept, class).max(planned.min(kept));
        kept.saturating_sub(written).min(self.kept_bytes(class))
    }

    /// Returns the sum over all stores of the volume.
    pub(crate) fn sum_of(&self, of: &dyn Fn(&Self) -> u64) -> u64 {
        self.peers.all().iter().map(|store| of(store)).sum()
    }

    /// The most that this store's compactions write at a time, as far as it is in no value block.
    fn run_reserve(&self) -> u64 {
        let reserve = self.sizes_now().reserve;
        if self.options.stitch_by_key.is_some() {
            // It may have any value copied.
            return reserve;
        }
        let view = self.views.get();
        let promised: u64 = view.buffers.iter().map(|b| b.promised_bytes()).sum();
        let trees = view.version.trees.values();
        let written: u64 = trees.map(|tree| tree.rewritten_bytes()).sum();
        let least = self.sizes_now().pick.table_bytes;
        let most = written + promised.saturating_sub(self.page_bytes());
        most.saturating_add(least).min(reserve)
    }

    /// How hard compaction should look for work.
    pub(crate) fn pressure(&self, is_idle: bool) -> Pressure {
        if self.left_bytes() < self.low_bytes() {
            Pressure::Space
        } else if is_idle {
            Pressure::Idle
        } else {
            Pressure::Shape
        }
    }

    /// What commits may still have promised to them, in bytes and in long runs.
    fn left_bytes(&self) -> u64 {
        let class = SpaceClass::Normal;
        // Compactions do what the medium asks for, whoever may use it.
        self.unpromised_bytes(class).min(self.roomy_bytes(class))
    }

    /// Tells writers how much is left to them: where they put little but value blocks of whole pages, of these.
    pub(crate) fn note_left(&self) {
        let class = SpaceClass::Normal;
        let promised = self.volume.space().promised_bytes();
        let left = match self.page_bytes() > promised / 2 {
            true => {
                let run_bytes = self.pages_run.load(Ordering::Relaxed);
                let free = self.free_bytes(class);
                free.min(self.pages_room_bytes(run_bytes, class))
            }
            false => self.free_bytes(class).min(self.roomy_bytes(class)),
        };
        self.pace.note_left(left);
    }

    /// With less than this left, space is low.
    fn low_bytes(&self) -> u64 {
        self.volume.zones().usage().total / LOW_PART
    }

    /// What may be rewritten to give space back, in multiples of what hides it, while others write: as much as
    /// space is short.
    pub(crate) fn space_cost_max(&self) -> u64 {
        LOW_COST * self.low_bytes() / self.left_bytes().max(1)
    }

    /// Compacts until more is free. Answers false if nothing more can be made: nothing that is there is
    /// garbage that a compaction finds.
    pub(crate) fn make_room_of_garbage(&self) -> Result<bool, VtError> {
        let free_bytes = || self.unpromised_bytes(SpaceClass::Reserve);
        self.make_room_by(&free_bytes, &mut || self.make_room_of_deletes())
    }

    /// Compacts until there are more `bytes` of room in runs. Answers false if nothing more can be made.
    pub(crate) fn make_room_of_holes(&self, bytes: &dyn Fn() -> u64) -> Result<bool, VtError> {
        self.committer.lock().streaks.give_back();
        let mut tried = BTreeSet::new();
        self.make_room_by(bytes, &mut || {
            Ok(self.make_room_of_deletes()? || self.evacuate_best(&mut tried)?)
        })
    }

    /// Writes out what was deleted since the last write-out, which may be worth something, or makes room in
    /// another store. Answers false if there is nothing to be done.
    fn make_room_of_deletes(&self) -> Result<bool, VtError> {
        self.seal_deletes()?;
        Ok(self.write_out_one()? || self.make_room_in_others())
    }

    /// Compacts, and does what is `left` where nothing is to be compacted, until there are more `bytes`.
    fn make_room_by(
        &self,
        bytes: &dyn Fn() -> u64,
        left: &mut dyn FnMut() -> Result<bool, VtError>,
    ) -> Result<bool, VtError> {
        let before = bytes();
        while bytes() <= before {
            self.check_writable()?;
            if !self.compact_one(Pressure::Room)? && !left()? {
                // Another thread may have made some meanwhile.
                return Ok(bytes() > before);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
