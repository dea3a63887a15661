//! Blocks that go into the cache as they are written.
//!
//! They have room, or displace *probationary* blocks: those that were written, or read by a scan,
//! and not found since. No rounds change.
//!
//! ```text
//! slots of a shard:   read  written  read  scanned  read     room for one block:
//!                     displacer -^                           the written one goes, the displacer
//!                                                            stands on the next slot
//! ```
//!
//! A compaction of a branch takes probationary blocks out as it reads them: their tables are about
//! to be removed, and what it writes needs the room.

use super::{BlockCache, BlockKey, CacheSlot, CachedBlock, Expectation, Shard};
use stitch_base::sync::atomic::Ordering;

/// Most slots that one insertion looks at.
const LOOKS_MAX: usize = 64;

impl BlockCache {
    /// Keeps a block that was just written, if it has room. With `displaces`, as many probationary
    /// blocks as it takes make room, if a few looks find them.
    pub(crate) fn insert_written(
        &self,
        key: BlockKey,
        block: CachedBlock,
        expectation: Expectation,
        displaces: bool,
    ) {
        let slot = CacheSlot::new(key, block, expectation).on_probation();
        let mut out = Vec::new();
        let mut shard = self.shard(&key).write();
        let bytes_max = self.shard_bytes_max.load(Ordering::Relaxed);
        debug_assert!(slot.bytes > super::SLOT_BYTES, "a block takes memory");
        if slot.bytes > bytes_max / 2 || shard.by_key.contains_key(&key) {
            return;
        }
        self.change(&mut shard, |shard| {
            if displaces {
                shard.displace(bytes_max - slot.bytes, &mut out);
            }
            if shard.bytes + slot.bytes <= bytes_max {
                shard.add(slot);
                debug_assert!(shard.bytes <= bytes_max, "a shard is bounded");
            }
        });
        drop(shard);
    }

    /// Returns a block, if it is here. A probationary one leaves the cache: a compaction reads it
    /// for the last time, and what it writes takes the room.
    pub(crate) fn take_written(&self, key: &BlockKey) -> Option<CachedBlock> {
        let mut shard = self.shard(key).write();
        let at = *shard.by_key.get(key)?;
        let slot = &shard.slots[at];
        slot.note(slot.block.take_finds());
        if !slot.is_probationary.load(Ordering::Relaxed) {
            return Some(slot.block.clone());
        }
        let mut taken = None;
        self.change(&mut shard, |shard| taken = Some(shard.remove(at)));
        debug_assert!(!shard.by_key.contains_key(key), "it is gone");
        drop(shard);
        taken.map(|slot| slot.block)
    }
}

impl Shard {
    /// Takes probationary blocks out until at most `bytes_max` are left, or enough slots were
    /// looked at.
    fn displace(&mut self, bytes_max: usize, out: &mut Vec<CacheSlot>) {
        debug_assert!(self.holds());
        for _ in 0..LOOKS_MAX.min(self.slots.len()) {
            if self.bytes <= bytes_max {
                return;
            }
            if self.displacer >= self.slots.len() {
                self.displacer = 0;
            }
            let slot = &self.slots[self.displacer];
            slot.note(slot.block.take_finds());
            debug_assert!(slot.bytes <= self.bytes, "a slot is a part of its shard");
            if slot.is_probationary.load(Ordering::Relaxed) {
                out.push(self.remove(self.displacer));
            }
            // The last slot has moved to the free place. It may be the newest: its turn is later.
            self.displacer += 1;
        }
        debug_assert!(self.holds());
    }
}
