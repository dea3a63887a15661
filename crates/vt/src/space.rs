//! Space: what commits may still be promised, and how more is made.
//!
//! What commits put into memtables will need space when it is written out, so it is promised to
//! them beforehand. Some is kept back for compactions, without which nothing would ever come back.
//!
//! Free bytes are of use only in runs as long as a block. So two sums are kept apart: bytes that
//! are free, and bytes in long runs. Where the first suffice and the second do not, holes are made
//! into room: zones with many holes are evacuated.

use crate::VtError;
use crate::compaction::Pressure;
use crate::store::Store;
use std::collections::BTreeSet;
use stitch_base::sync::atomic::Ordering;
use stitch_kv::{SpaceClass, SpaceUsage, TreeOptions};
use stitch_volume::Class;

/// Below this share of the zones, space is low: one part in this many.
const LOW_PART: u64 = 10;
/// What a block takes beyond its longest entry.
const BLOCK_MARGIN_BYTES: u64 = 16 << 10;

impl Store {
    /// Space of the store.
    pub(crate) fn space(&self) -> SpaceUsage {
        let total = self.volume.zones().usage().total;
        SpaceUsage {
            total_bytes: total.saturating_sub(self.kept_bytes(SpaceClass::Normal)),
            free_bytes: self.free_bytes(SpaceClass::Normal),
        }
    }

    /// Bytes that commits of this class may still have promised to them.
    pub(crate) fn free_bytes(&self, class: SpaceClass) -> u64 {
        let free = self.volume.space().available_bytes(Class::Internal);
        free.saturating_sub(self.kept_bytes(class))
    }

    /// Of these, bytes that are in long runs now. Value blocks of a page need none.
    pub(crate) fn roomy_bytes(&self, class: SpaceClass) -> u64 {
        let roomy = self.volume.zones().roomy_bytes(self.room_run_bytes());
        let promised = self.volume.space().promised_bytes();
        let pages: u64 = self
            .views
            .get()
            .buffers
            .iter()
            .map(|b| b.page_bytes())
            .sum();
        roomy.saturating_sub(promised.saturating_sub(pages) + self.kept_bytes(class))
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

    /// Bytes that this class leaves alone.
    fn kept_bytes(&self, class: SpaceClass) -> u64 {
        let zones_bytes = self.volume.zones().total_bytes();
        let kept = self.reserves(zones_bytes, &|store| store.sizes_now().reserve);
        let kept = kept.max(self.volume.space().reserve_bytes());
        match class {
            SpaceClass::Normal => kept,
            // Deletes leave compactions half of the reserve to work with.
            SpaceClass::Reserve => kept / 2,
        }
    }

    /// How hard compaction should look for work.
    pub(crate) fn pressure(&self, is_idle: bool) -> Pressure {
        let total = self.volume.zones().usage().total;
        let class = SpaceClass::Normal;
        let free = self.free_bytes(class).min(self.roomy_bytes(class));
        if free < total / LOW_PART {
            Pressure::Space
        } else if is_idle {
            Pressure::Idle
        } else {
            Pressure::Shape
        }
    }

    /// Compacts until more is free. Answers false if nothing more can be made: nothing that is there is
    /// garbage that a compaction finds.
    pub(crate) fn make_room_of_garbage(&self) -> Result<bool, VtError> {
        self.make_room_by(&|| self.free_bytes(SpaceClass::Reserve), &mut || Ok(false))
    }

    /// Compacts until there is more room in long runs. Answers false if nothing more can be made.
    pub(crate) fn make_room_of_holes(&self) -> Result<bool, VtError> {
        self.committer.lock().streaks.give_back();
        let mut tried = BTreeSet::new();
        let roomy_bytes = || self.roomy_bytes(SpaceClass::Reserve);
        self.make_room_by(&roomy_bytes, &mut || {
            // What was deleted since the last write-out may be worth something.
            self.seal_deletes()?;
            Ok(self.write_out_one()?
                || self.make_room_in_others()
                || self.evacuate_best(&mut tried)?)
        })
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
