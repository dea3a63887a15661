//! Streaks of puts: commit after commit puts the next key, as who writes a file or a log does.
//!
//! A put goes on with a streak if its key follows the streak's end and the memtable has no key between the
//! two. A streak that has become long is written like a run: the values of its next puts go to their
//! zone at once, and follow each other there in lane that is taken for the streak alone. Keys in random
//! order make no long streaks, so their values wait for the write-out, which puts them in order.
//!
//! What is known here is a guess and costs only speed when it is wrong.

use crate::memtable::Memtable;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_volume::{Extent, Stream, Volume, VolumeError};

/// Most streaks that are followed. When there are more, those that went on in the last half as many turns
/// stay.
const STREAKS_MAX: usize = 8192;
/// Lane for a streak, in bytes: an eighth of what is in it, within these bounds.
const LANE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 20);
/// All lanes together take no more of the usable space than one part of so many.
const LANES_PART: u64 = 32;
/// Streaks lie in zones of their own.
const STREAM: Stream = Stream(5);

/// Puts of a batch, in one tree and in the order of their keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Puts<'a> {
    pub(crate) tree: TreeId,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
    pub(crate) bytes: u64,
    /// Length of the shortest value.
    pub(crate) value_bytes_min: usize,
}

/// A streak of puts.
#[derive(Debug, Default)]
struct Streak {
    bytes: u64,
    /// The turn in which it went on last.
    turn: u64,
    lane: Option<Lane>,
}

/// Space for the next values of a streak. Dropped, it gives back what is left.
#[derive(Debug)]
struct Lane {
    volume: Arc<Volume>,
    left: Extent,
    /// Number of the table that its blocks are of, until they are in one.
    origin: TableId,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.volume.zones().give_back(self.left);
    }
}

/// The streaks that are followed, by tree and last key.
#[derive(Debug, Default)]
pub(crate) struct Streaks {
    streaks: BTreeMap<(TreeId, Vec<u8>), Streak>,
    turn: u64,
}

impl Streaks {
    /// Takes note of puts. Answers how many bytes were in the streak with which they go on: 0 for a new
    /// one.
    pub(crate) fn follow(&mut self, puts: &Puts<'_>, memtable: &Memtable) -> u64 {
        self.turn += 1;
        let mut streak = self.going_on(puts, memtable).unwrap_or_default();
        let before = streak.bytes;
        streak.bytes += puts.bytes;
        streak.turn = self.turn;
        self.streaks.insert((puts.tree, puts.last.to_vec()), streak);
        if self.streaks.len() > STREAKS_MAX {
            let oldest = self.turn - STREAKS_MAX as u64 / 2;
            self.streaks.retain(|_, streak| streak.turn > oldest);
        }
        debug_assert!(self.streaks.len() <= STREAKS_MAX, "streaks are bounded");
        before
    }

    /// The streak that ends before the puts, if nothing lies between.
    fn going_on(&mut self, puts: &Puts<'_>, memtable: &Memtable) -> Option<Streak> {
        let tree = puts.tree;
        let nearest = self
            .streaks
            .range(..(tree, puts.first.to_vec()))
            .next_back();
        let (end, _) = nearest.filter(|((of, _), _)| *of == tree)?;
        if memtable.has_between(tree, &end.1, puts.first) {
            return None;
        }
        let end = end.clone();
        self.streaks.remove(&end)
    }

    /// A place for a block of `len` bytes in the streak that ends with `last`, and the number of the
    /// table that it is of. For a new lane `has_room` is asked whether so many bytes may be taken.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`].
    pub(crate) fn place(
        &mut self,
        volume: &Arc<Volume>,
        (tree, last): (TreeId, &[u8]),
        len: u64,
        (has_room, new_id): (&dyn Fn(u64) -> bool, &dyn Fn() -> TableId),
    ) -> Result<(u64, TableId), VolumeError> {
        let key = (tree, last.to_vec());
        let fits = |streak: &Streak| {
            streak
                .lane
                .as_ref()
                .is_some_and(|lane| lane.left.len >= len)
        };
        if !self.streaks.get(&key).is_some_and(fits) {
            let left = self.allocate(volume, &key, len, has_room)?;
            let lane = Lane {
                volume: Arc::clone(volume),
                left,
                origin: new_id(),
            };
            // While the commit waited, another one may have gone on with the streak.
            self.streaks.entry(key.clone()).or_default().lane = Some(lane);
        }
        let streak = self.streaks.get_mut(&key);
        let lane = streak.and_then(|streak| streak.lane.as_mut());
        let lane = lane.expect("the streak has lane");
        debug_assert!(lane.left.len >= len, "the block fits");
        let addr = lane.left.addr;
        lane.left.addr += len;
        lane.left.len -= len;
        Ok((addr, lane.origin))
    }

    /// New a lane for a streak, with at least `len` bytes.
    fn allocate(
        &mut self,
        volume: &Volume,
        key: &(TreeId, Vec<u8>),
        len: u64,
        has_room: &dyn Fn(u64) -> bool,
    ) -> Result<Extent, VolumeError> {
        let bytes = self.streaks.get_mut(key).map_or(0, |streak| {
            streak.lane = None;
            streak.bytes
        });
        let wanted = (bytes / 8).clamp(*LANE_BYTES.start(), *LANE_BYTES.end());
        let taken: u64 = self.lanes().map(|lane| lane.len).sum();
        let most = volume.zones().usage().usable / LANES_PART;
        let wanted = wanted.min(most.saturating_sub(taken)).max(len);
        if !has_room(wanted) {
            return Err(VolumeError::NoSpace {
                wanted_bytes: wanted,
                free_bytes: volume.zones().usage().largest_free,
            });
        }
        volume.zones().allocate(wanted, len, volume.stream(STREAM))
    }

    /// Space that is taken for streaks and not used.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Extent> {
        let lanes = self
            .streaks
            .values()
            .filter_map(|streak| streak.lane.as_ref());
        lanes.map(|lane| lane.left).filter(|left| left.len > 0)
    }

    /// Gives back the space that is taken and not used. Answers false if there is none.
    pub(crate) fn give_back(&mut self) -> bool {
        let has_any = self.lanes().next().is_some();
        for streak in self.streaks.values_mut() {
            streak.lane = None;
        }
        has_any
    }
}

#[cfg(test)]
mod tests;
