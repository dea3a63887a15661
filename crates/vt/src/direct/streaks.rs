//! Streaks of puts: commit after commit puts the next key, as who writes a file or a log does.
//!
//! A put goes on with a streak if its key follows the streak's end and the memtable has no key
//! between the two. A streak that has become long is written like a run: the values of its next
//! puts go to their zone at once, and follow each other there in lane that is taken for the streak
//! alone. Keys in random order make no long streaks, so their values wait for the write-out, which
//! puts them in order.
//!
//! Nearly every put is the end of a streak of one. So that these cost nothing, an end is known by
//! the entry of its key in the memtable, which the insert has to find in any case: a note there
//! says whether something went on with it, and with which streak it goes on. Only what went on once
//! has a number and a row here. When the memtable is sealed, the ends in it are remembered by key,
//! with the next key there; if they are many, only those of streaks that went on twice in it.
//!
//! What is known here is a guess and costs only speed when it is wrong.

use crate::memtable::{Memtable, Neighbour};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_volume::{Extent, PAGE_BYTES, Stream, Volume, VolumeError};

/// Most streaks that are followed. When there are more, those that went on in the last half as many
/// turns stay.
const STREAKS_MAX: usize = 8192;
/// Most ends that are remembered when their memtable is sealed, unless they went on in it so often.
const ENDS_MAX: usize = 1024;
const KEPT_TIMES_MIN: u32 = 2;
/// Note of an entry with which nothing went on; others say which streak goes on with it, from 1.
const ALONE: u32 = 0;
/// Note of an entry with which something went on.
const PASSED: u32 = u32::MAX;
/// Lane for a streak, in bytes: an eighth of what is in it, within these bounds.
const LANE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 20);
/// All lanes together take no more of the usable space than one part of so many.
const LANES_PART: u64 = 32;
/// A lane is made ready for writes up to a multiple of such a length: half of what went on with its
/// streak since the last sync, by a quarter of the least at most each time,
const READY_BYTES: std::ops::RangeInclusive<u64> = (32 << 10)..=(128 << 10);
/// and so that all streaks that go on by turns have no more ready than this: it is written again
/// soon, not by the kernel before.
const READY_BYTES_ALL: u64 = 16 << 20;
/// Streaks lie in zones of their own.
const STREAM: Stream = Stream(5);

/// Puts of a batch, in one tree and in the order of their keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Puts<'a> {
    pub(crate) tree: TreeId,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
    pub(crate) bytes: u64,
    /// Length of the shortest value that is finished; more than any where none is.
    pub(crate) value_bytes_min: usize,
}

/// Number of a streak. It is given to another one when too many are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreakId(u32);

impl StreakId {
    /// The note that an entry gets which is the end.
    const fn note(self) -> u32 {
        self.0 + 1
    }

    const fn of_note(note: u32) -> Option<Self> {
        match note {
            ALONE | PASSED => None,
            note => Some(Self(note - 1)),
        }
    }
}

/// A streak of puts.
#[derive(Debug)]
struct Streak {
    tree: TreeId,
    /// The last key.
    end: Vec<u8>,
    bytes: u64,
    /// How often it went on in the active memtable.
    times: u32,
    /// The turn in which it went on last.
    turn: u64,
    flow: Flow,
    lane: Option<Lane>,
}

/// What goes on with a streak without a break.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    bytes: u64,
    /// Syncs of the device before it.
    syncs: u64,
    /// Turns from one time to the next, lately: as many streaks go on by turns.
    turns: u64,
}

impl Flow {
    /// Takes note of puts, so many turns after the last.
    const fn add(&mut self, bytes: u64, turns: u64) {
        let is_small = bytes <= *READY_BYTES.start() / 4;
        self.bytes = if is_small { self.bytes + bytes } else { 0 };
        self.turns = (3 * self.turns + turns).div_ceil(4);
    }

    /// So much of a lane is to be made ready at once, if any: a power of two.
    fn ready_bytes(&mut self, syncs: u64) -> Option<u64> {
        if self.syncs != syncs {
            (self.bytes, self.syncs) = (0, syncs);
        }
        let share = READY_BYTES_ALL / self.turns.max(1);
        let wanted = (self.bytes / 2).min(share).min(*READY_BYTES.end());
        let bytes = wanted.checked_ilog2().map_or(0, |log| 1 << log);
        READY_BYTES.contains(&bytes).then_some(bytes)
    }
}

/// Space for the next values of a streak. Dropped, it gives back what is left.
#[derive(Debug)]
struct Lane {
    volume: Arc<Volume>,
    left: Extent,
    /// Up to here it is ready for writes.
    ready: u64,
    /// Number of the table that its blocks are of, until they are in one.
    origin: TableId,
}

impl Lane {
    /// Makes the next of it ready for writes, up to a multiple of `unit`.
    fn make_ready(&mut self, unit: u64) -> Result<(), VolumeError> {
        let from = self.left.addr.next_multiple_of(PAGE_BYTES);
        let end = self.left.end() / PAGE_BYTES * PAGE_BYTES;
        let to = (from / unit + 1) * unit;
        self.ready = to.min(end).max(self.left.addr);
        match self.ready.checked_sub(from) {
            None | Some(0) => Ok(()),
            Some(len) => self.volume.prepare(Extent { addr: from, len }),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.volume.zones().give_back(self.left);
    }
}

/// An end in the memtable that was sealed last.
#[derive(Debug)]
struct End {
    id: StreakId,
    /// The next key in that memtable.
    next: Option<Vec<u8>>,
}

/// The streaks that are followed.
#[derive(Debug, Default)]
pub(crate) struct Streaks {
    /// By number.
    streaks: Vec<Streak>,
    /// Where the next one that is given up is looked for.
    hand: usize,
    turn: u64,
    /// Ends that are not in the active memtable, by key.
    ends: BTreeMap<TreeId, BTreeMap<Vec<u8>, End>>,
    /// Those that the commit which is being made went on with: its puts have no entry yet.
    followed: Vec<StreakId>,
    /// Keys that went on with nothing since a memtable was sealed last. The first of them only.
    begun: Vec<(TreeId, Vec<u8>)>,
}

impl Streaks {
    /// A commit begins. What another one followed that came to nothing is forgotten.
    pub(crate) fn begin(&mut self) {
        self.followed.clear();
    }

    /// Takes note of puts that are to be inserted into the memtable. Answers the streak with which
    /// they go on, and how many bytes were in it.
    pub(crate) fn follow(
        &mut self,
        puts: &Puts<'_>,
        memtable: &Memtable,
    ) -> Option<(StreakId, u64)> {
        self.turn += 1;
        let around = memtable.around(puts.tree, puts.first);
        if (!around.is_new || puts.first != puts.last)
            && let Some(again) = memtable.oldest(puts.tree, puts.last)
        {
            again.set_note(ALONE);
        }
        let id = self
            .remembered(puts, around.before)
            .or_else(|| self.passed(puts, around.before?));
        let Some(id) = id else {
            if self.begun.len() <= ENDS_MAX {
                self.begun.push((puts.tree, puts.last.to_vec()));
            }
            return None;
        };
        let streak = &mut self.streaks[id.0 as usize];
        let before = streak.bytes;
        streak.end.clear();
        streak.end.extend_from_slice(puts.last);
        streak.bytes += puts.bytes;
        streak.times += 1;
        streak.flow.add(puts.bytes, self.turn - streak.turn);
        streak.turn = self.turn;
        self.followed.push(id);
        Some((id, before))
    }

    /// The streak that ended before the puts in the memtable before, if nothing lies between in
    /// either.
    fn remembered(&mut self, puts: &Puts<'_>, before: Option<Neighbour<'_>>) -> Option<StreakId> {
        let ends = self.ends.get_mut(&puts.tree)?;
        let from = before.map_or(Bound::Unbounded, |before| Bound::Excluded(before.key()));
        let range = (from, Bound::Excluded(puts.first));
        let (key, end) = ends.range::<[u8], _>(range).next_back()?;
        if end.next.as_deref().is_some_and(|next| next < puts.first) {
            return None;
        }
        let key = key.clone();
        let id = ends.remove(&key)?.id;
        self.ends_with(id, puts.tree, &key).then_some(id)
    }

    /// The streak that ends with the entry next before the puts: one of two, if it is alone.
    fn passed(&mut self, puts: &Puts<'_>, before: Neighbour<'_>) -> Option<StreakId> {
        let note = before.note().filter(|note| *note != PASSED)?;
        before.set_note(PASSED);
        let known = StreakId::of_note(note);
        known
            .filter(|id| self.ends_with(*id, puts.tree, before.key()))
            .or_else(|| self.new_streak(puts.tree, before.bytes()))
    }

    fn ends_with(&self, id: StreakId, tree: TreeId, end: &[u8]) -> bool {
        let streak = self.streaks.get(id.0 as usize);
        streak.is_some_and(|streak| streak.tree == tree && streak.end == end)
    }

    /// A streak of one put. If there are too many, one that did not go on lately makes way.
    fn new_streak(&mut self, tree: TreeId, bytes: u64) -> Option<StreakId> {
        let fresh = Streak {
            tree,
            end: Vec::new(),
            bytes,
            times: 0,
            turn: self.turn,
            flow: Flow::default(),
            lane: None,
        };
        if self.streaks.len() < STREAKS_MAX {
            self.streaks.push(fresh);
            return Some(StreakId(u32::try_from(self.streaks.len() - 1).ok()?));
        }
        // In each turn one streak goes on at most, so at least half of them are older.
        let oldest = self.turn - STREAKS_MAX as u64 / 2;
        while self.streaks[self.hand].turn > oldest {
            self.hand = (self.hand + 1) % STREAKS_MAX;
        }
        self.streaks[self.hand] = fresh;
        Some(StreakId(u32::try_from(self.hand).ok()?))
    }

    /// What was followed is in the memtable now.
    pub(crate) fn note_followed(&mut self, memtable: &Memtable) {
        for id in self.followed.drain(..) {
            let streak = &self.streaks[id.0 as usize];
            if let Some(entry) = memtable.oldest(streak.tree, &streak.end) {
                entry.set_note(id.note());
            }
        }
    }

    /// The memtable is about to be sealed: its entries tell nothing any more.
    pub(crate) fn seal(&mut self, memtable: &Memtable) {
        self.number_begun(memtable);
        let before = std::mem::take(&mut self.ends);
        let is_near = |streak: &Streak| {
            let ends = before.get(&streak.tree);
            streak.times > 0 || ends.is_some_and(|ends| ends.contains_key(&streak.end))
        };
        let are_many = self.streaks.iter().filter(|s| is_near(s)).count() > ENDS_MAX;
        let is_kept = |streak: &Streak| match are_many {
            true => streak.times >= KEPT_TIMES_MIN,
            false => is_near(streak),
        };
        for (id, streak) in (0..).map(StreakId).zip(&self.streaks) {
            if !is_kept(streak) {
                continue;
            }
            let known = before.get(&streak.tree).and_then(|e| e.get(&streak.end));
            let next = memtable.after(streak.tree, &streak.end);
            let next = next.map(|next| next.key().to_vec());
            let next = [next, known.and_then(|end| end.next.clone())];
            let next = next.into_iter().flatten().min();
            let ends = self.ends.entry(streak.tree).or_default();
            ends.insert(streak.end.clone(), End { id, next });
        }
        for streak in &mut self.streaks {
            streak.times = 0;
        }
        debug_assert!(self.streaks.len() <= STREAKS_MAX, "streaks are bounded");
    }

    /// Makes streaks of the keys with which nothing went on, unless they are many.
    fn number_begun(&mut self, memtable: &Memtable) {
        let begun = std::mem::take(&mut self.begun);
        if begun.len() > ENDS_MAX {
            return;
        }
        for (tree, key) in begun {
            let alone = memtable.oldest(tree, &key);
            if let Some(alone) = alone.filter(|entry| entry.note() == Some(ALONE))
                && let Some(id) = self.new_streak(tree, alone.bytes())
            {
                let streak = &mut self.streaks[id.0 as usize];
                streak.end = key;
                streak.times = 1;
            }
        }
    }

    /// A place for a block of `len` bytes in a streak, and the number of the table that it is of.
    /// For a new lane `has_room` is asked whether so many bytes may be taken.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`]; those of a write.
    pub(crate) fn place(
        &mut self,
        volume: &Arc<Volume>,
        id: StreakId,
        len: u64,
        (has_room, new_id): (&dyn Fn(u64) -> bool, &dyn Fn() -> TableId),
    ) -> Result<(u64, TableId), VolumeError> {
        let fits = |lane: &Lane| lane.left.len >= len;
        if !self.streaks[id.0 as usize].lane.as_ref().is_some_and(fits) {
            let left = self.allocate(volume, id, len, has_room)?;
            self.streaks[id.0 as usize].lane = Some(Lane {
                volume: Arc::clone(volume),
                left,
                ready: left.addr,
                origin: new_id(),
            });
        }
        let streak = &mut self.streaks[id.0 as usize];
        let ready_bytes = streak.flow.ready_bytes(volume.syncs());
        let lane = streak.lane.as_mut().expect("the streak has lane");
        debug_assert!(lane.left.len >= len, "the block fits");
        if lane.ready < lane.left.addr + len
            && let Some(unit) = ready_bytes
        {
            lane.make_ready(unit)?;
        }
        let addr = lane.left.addr;
        lane.left.addr += len;
        lane.left.len -= len;
        Ok((addr, lane.origin))
    }

    /// New lane for a streak, with at least `len` bytes.
    fn allocate(
        &mut self,
        volume: &Volume,
        id: StreakId,
        len: u64,
        has_room: &dyn Fn(u64) -> bool,
    ) -> Result<Extent, VolumeError> {
        let streak = &mut self.streaks[id.0 as usize];
        streak.lane = None;
        let wanted = (streak.bytes / 8).clamp(*LANE_BYTES.start(), *LANE_BYTES.end());
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
            .iter()
            .filter_map(|streak| streak.lane.as_ref());
        lanes.map(|lane| lane.left).filter(|left| left.len > 0)
    }

    /// Gives back the space that is taken and not used. Answers false if there is none.
    pub(crate) fn give_back(&mut self) -> bool {
        let has_any = self.lanes().next().is_some();
        for streak in &mut self.streaks {
            streak.lane = None;
        }
        has_any
    }
}

#[cfg(test)]
mod tests;
