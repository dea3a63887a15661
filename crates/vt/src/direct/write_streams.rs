//! Write streams: puts in the order of their keys, commit after commit, as a program that writes a
//! file or a log makes them.
//!
//! A put that names its stream continues it if its key is greater than the last key of the stream:
//! see [`names`]. Any other put continues a stream if its key follows the last key of the stream
//! and the memtable has no key between the two. The values of a long stream go to a zone at once,
//! one behind the other in an *append extent* that belongs to the stream alone. Keys in random
//! order make no long streams: their values wait for the write-out, which sorts them.
//!
//! ```text
//! puts        k1   z7   k2   k3   b4   k4  ...  k40            streams: k1 k2 k3 k4 ... k40
//! log         k1   z7   k2   k3   b4   k4                      the first values, and all others
//! zone                                     ...| k40 | free |   append extent of the stream
//! ```
//!
//! Nearly every put is a stream of one put. These must cost nothing, so the end of a stream is
//! found by the memtable's entry of its last key, which the insert visits in any case. A note in
//! the entry says whether a put continued it, and which stream it ends. Only a stream of two puts
//! gets a number and a record here. When the memtable is sealed, the last keys of streams are
//! listed, each with the next key of the memtable; if there are more than [`ENDS_MAX`], only those
//! of streams that were continued twice in this memtable.
//!
//! A wrong guess or name costs speed alone: the values of a stream lie in key order in any case.

mod names;

use crate::memtable::{Memtable, Neighbour};
use names::StreamNames;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_kv::StreamName;
use stitch_volume::{Extent, PAGE_BYTES, Stream, Volume, VolumeError};

/// Most streams that are followed. When there are more, those that were continued by the last
/// `STREAMS_MAX / 2` puts stay.
const STREAMS_MAX: usize = 8192;
/// Most last keys that are listed when the memtable is sealed, but for those of streams that were
/// continued in it at least this often.
const ENDS_MAX: usize = 1024;
const KEPT_TIMES_MIN: u32 = 2;
/// Note of an entry that no put continued. Other notes are the number of the stream that it ends,
/// from 1.
const ALONE: u32 = 0;
/// Note of an entry that a put continued.
const PASSED: u32 = u32::MAX;
/// Length of an append extent: an eighth of the bytes of its stream, within these bounds.
const EXTENT_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 20);
/// All append extents together take at most one part in this many of the usable space.
const EXTENTS_PART: u64 = 32;
/// An append extent is prepared for writes up to a multiple of this length: half of what was put to
/// its stream since the last sync, by puts of at most a quarter of the least length.
const READY_BYTES: std::ops::RangeInclusive<u64> = (32 << 10)..=(128 << 10);
/// Most bytes that are prepared for all streams which are written by turns: prepared pages must be
/// overwritten before the kernel writes them back.
const READY_BYTES_ALL: u64 = 16 << 20;
/// Append extents lie in zones of their own.
const STREAM: Stream = Stream(5);

// Whole pages are prepared.
const _: () = assert!(READY_BYTES.start().is_multiple_of(PAGE_BYTES));
const _: () = assert!(*READY_BYTES.end() <= *EXTENT_BYTES.end());

/// Puts of a batch, in one tree and in the order of their keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Puts<'a> {
    pub(crate) tree: TreeId,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
    pub(crate) bytes: u64,
    /// The write stream that they continue, if their writer has named one.
    pub(crate) name: Option<StreamName>,
}

/// Number of a stream. It is reused when too many are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteStreamId(u32);

impl WriteStreamId {
    /// Returns the note of the entry that ends the stream.
    const fn note(self) -> u32 {
        assert!((self.0 as usize) < STREAMS_MAX, "streams are bounded");
        self.0 + 1
    }

    #[cfg(test)]
    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    #[cfg(test)]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    const fn of_note(note: u32) -> Option<Self> {
        debug_assert!(
            matches!(note, ALONE | PASSED) || note as usize <= STREAMS_MAX,
            "a note names a stream"
        );
        match note {
            ALONE | PASSED => None,
            note => Some(Self(note - 1)),
        }
    }
}

/// A write stream.
#[derive(Debug)]
struct WriteStream {
    tree: TreeId,
    /// The last key.
    end: Vec<u8>,
    bytes: u64,
    /// Number of puts in the active memtable that continued it.
    times: u32,
    /// The turn of the put that continued it last.
    turn: u64,
    /// The name by which puts find it.
    name: Option<StreamName>,
    flow: Flow,
    extent: Option<AppendExtent>,
}

/// The rate of a stream since the last sync.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    bytes: u64,
    /// Number of syncs of the device before.
    syncs: u64,
    /// Turns from one put of the stream to the next, lately: the number of streams that are written
    /// by turns.
    turns: u64,
}

impl Flow {
    /// Counts puts that come `turns` after the last ones.
    const fn add(&mut self, bytes: u64, turns: u64) {
        let is_small = bytes <= *READY_BYTES.start() / 4;
        self.bytes = if is_small { self.bytes + bytes } else { 0 };
        self.turns = (3 * self.turns + turns).div_ceil(4);
    }

    /// Returns how many bytes of the append extent to prepare at once, if any: a power of two.
    fn ready_bytes(&mut self, syncs: u64) -> Option<u64> {
        if self.syncs != syncs {
            (self.bytes, self.syncs) = (0, syncs);
        }
        let share = READY_BYTES_ALL / self.turns.max(1);
        let wanted = (self.bytes / 2).min(share).min(*READY_BYTES.end());
        let bytes = wanted.checked_ilog2().map_or(0, |log| 1 << log);
        debug_assert!(bytes <= share, "all streams share what is prepared");
        READY_BYTES.contains(&bytes).then_some(bytes)
    }
}

/// Space for the next values of a stream. Dropped, it frees what is left.
#[derive(Debug)]
struct AppendExtent {
    volume: Arc<Volume>,
    left: Extent,
    /// End of the pages that are prepared for writes.
    ready: u64,
    /// Number of the table that its blocks count as part of until a write-out makes one.
    origin: TableId,
}

impl AppendExtent {
    /// Prepares its next pages for writes, up to a multiple of `unit`.
    fn make_ready(&mut self, unit: u64) -> Result<(), VolumeError> {
        debug_assert!(unit.is_multiple_of(PAGE_BYTES), "whole pages are prepared");
        let from = self.left.addr.next_multiple_of(PAGE_BYTES);
        let end = self.left.end() / PAGE_BYTES * PAGE_BYTES;
        let to = (from / unit + 1) * unit;
        self.ready = to.min(end).max(self.left.addr);
        debug_assert!(self.ready <= self.left.end(), "its own pages are prepared");
        match self.ready.checked_sub(from) {
            None | Some(0) => Ok(()),
            Some(len) => self.volume.prepare(Extent { addr: from, len }),
        }
    }
}

impl Drop for AppendExtent {
    fn drop(&mut self) {
        debug_assert!(
            self.left.len == 0 || self.volume.zones().is_live(self.left),
            "what is left was allocated"
        );
        self.volume.zones().give_back(self.left);
    }
}

/// The last key of a stream, in the memtable that was sealed last.
#[derive(Debug)]
struct End {
    id: WriteStreamId,
    /// The next key in that memtable.
    next: Option<Vec<u8>>,
}

/// The streams that are followed.
#[derive(Debug, Default)]
pub(crate) struct WriteStreams {
    /// By number.
    streams: Vec<WriteStream>,
    names: StreamNames,
    /// Where the search for a number to reuse begins.
    hand: usize,
    turn: u64,
    /// Last keys that are not in the active memtable.
    ends: BTreeMap<TreeId, BTreeMap<Vec<u8>, End>>,
    /// Streams that the current commit continues: its puts have no entry yet.
    followed: Vec<WriteStreamId>,
    /// The first keys that continued nothing since a memtable was sealed last.
    begun: Vec<(TreeId, Vec<u8>)>,
}

impl WriteStreams {
    /// Begins a commit. Forgets the streams that a failed one continued.
    pub(crate) fn begin(&mut self) {
        self.followed.clear();
    }

    /// Notes puts before they are inserted into the memtable. Returns the stream that they
    /// continue, and its length in bytes.
    pub(crate) fn follow(
        &mut self,
        puts: &Puts<'_>,
        memtable: &Memtable,
    ) -> Option<(WriteStreamId, u64)> {
        debug_assert!(
            puts.first <= puts.last,
            "puts are in the order of their keys"
        );
        self.turn += 1;
        let named = self.named(puts);
        if let Some(id) = named
            && self.streams[id.0 as usize].end[..] < *puts.first
        {
            return Some((id, self.go_on(id, puts)));
        }
        let Some(id) = self.infer(puts, memtable) else {
            match puts.name {
                Some(name) if named.is_none() => self.begin_named(name, puts),
                _ if self.begun.len() <= ENDS_MAX => {
                    self.begun.push((puts.tree, puts.last.to_vec()));
                }
                _ => {}
            }
            return None;
        };
        if let Some(name) = puts.name
            && named.is_none()
        {
            self.set_name(id, Some(name));
        }
        Some((id, self.go_on(id, puts)))
    }

    /// Continues a stream with puts. Returns its length before.
    fn go_on(&mut self, id: WriteStreamId, puts: &Puts<'_>) -> u64 {
        let stream = &mut self.streams[id.0 as usize];
        debug_assert!(stream.end[..] < *puts.first, "a stream has rising keys");
        debug_assert_eq!(stream.tree, puts.tree, "a stream is of one tree");
        debug_assert!(stream.turn <= self.turn, "turns are counted up");
        debug_assert!(
            puts.first <= puts.last,
            "puts are in the order of their keys"
        );
        let before = stream.bytes;
        stream.end.clear();
        stream.end.extend_from_slice(puts.last);
        stream.bytes += puts.bytes;
        stream.times += 1;
        stream.flow.add(puts.bytes, self.turn - stream.turn);
        stream.turn = self.turn;
        self.followed.push(id);
        before
    }

    /// Returns the stream that the memtables show to end next before puts.
    fn infer(&mut self, puts: &Puts<'_>, memtable: &Memtable) -> Option<WriteStreamId> {
        let around = memtable.around(puts.tree, puts.first);
        debug_assert!(
            around.before.is_none_or(|before| before.key() < puts.first),
            "the entry before is of a smaller key"
        );
        if (!around.is_new || puts.first != puts.last)
            && let Some(again) = memtable.oldest(puts.tree, puts.last)
        {
            again.set_note(ALONE);
        }
        self.remembered(puts, around.before)
            .or_else(|| self.passed(puts, around.before?))
    }

    /// Returns the stream that ended before the puts in the sealed memtable, if neither memtable
    /// has a key between.
    fn remembered(
        &mut self,
        puts: &Puts<'_>,
        before: Option<Neighbour<'_>>,
    ) -> Option<WriteStreamId> {
        let ends = self.ends.get_mut(&puts.tree)?;
        let from = before.map_or(Bound::Unbounded, |before| Bound::Excluded(before.key()));
        let range = (from, Bound::Excluded(puts.first));
        let (key, end) = ends.range::<[u8], _>(range).next_back()?;
        debug_assert!(
            key.as_slice() < puts.first,
            "the stream ends before the puts"
        );
        if end.next.as_deref().is_some_and(|next| next < puts.first) {
            return None;
        }
        let key = key.clone();
        let id = ends.remove(&key)?.id;
        debug_assert!(
            (id.0 as usize) < self.streams.len(),
            "the stream has a record"
        );
        self.ends_with(id, puts.tree, &key).then_some(id)
    }

    /// Returns the stream that ends with the entry before the puts: a new one, if no put continued
    /// that entry. A stream that puts continue by name does not note that it has passed an entry.
    fn passed(&mut self, puts: &Puts<'_>, before: Neighbour<'_>) -> Option<WriteStreamId> {
        let note = before.note().filter(|note| *note != PASSED)?;
        before.set_note(PASSED);
        let known = WriteStreamId::of_note(note);
        if known.is_some_and(|id| self.has_passed(id, puts.tree, before.key())) {
            return None;
        }
        known
            .filter(|id| self.ends_with(*id, puts.tree, before.key()))
            .or_else(|| self.new_stream(puts.tree, before.bytes()))
    }

    fn ends_with(&self, id: WriteStreamId, tree: TreeId, end: &[u8]) -> bool {
        let stream = self.streams.get(id.0 as usize);
        stream.is_some_and(|stream| stream.tree == tree && stream.end == end)
    }

    /// Makes a stream of one put. If there are too many, it gets the number of one that no put
    /// continued lately.
    fn new_stream(&mut self, tree: TreeId, bytes: u64) -> Option<WriteStreamId> {
        let fresh = WriteStream {
            tree,
            end: Vec::new(),
            bytes,
            times: 0,
            turn: self.turn,
            name: None,
            flow: Flow::default(),
            extent: None,
        };
        debug_assert!(self.streams.len() <= STREAMS_MAX, "streams are bounded");
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(fresh);
            return Some(WriteStreamId(u32::try_from(self.streams.len() - 1).ok()?));
        }
        // A turn continues at most one stream, so at least half of them are older.
        debug_assert!(
            self.turn >= STREAMS_MAX as u64 / 2,
            "each stream took a turn"
        );
        let oldest = self.turn - STREAMS_MAX as u64 / 2;
        while self.streams[self.hand].turn > oldest {
            self.hand = (self.hand + 1) % STREAMS_MAX;
        }
        let id = WriteStreamId(u32::try_from(self.hand).ok()?);
        self.set_name(id, None);
        self.streams[self.hand] = fresh;
        Some(id)
    }

    /// Notes the streams of this commit in the memtable, which has its puts now.
    pub(crate) fn note_followed(&mut self, memtable: &Memtable) {
        for id in self.followed.drain(..) {
            let stream = &self.streams[id.0 as usize];
            if let Some(entry) = memtable.oldest(stream.tree, &stream.end) {
                entry.set_note(id.note());
            }
        }
    }

    /// Lists the last keys in a memtable that is about to be sealed: notes in its entries are not
    /// read any more.
    pub(crate) fn seal(&mut self, memtable: &Memtable) {
        self.number_begun(memtable);
        let before = std::mem::take(&mut self.ends);
        let is_near = |stream: &WriteStream| {
            let ends = before.get(&stream.tree);
            stream.times > 0 || ends.is_some_and(|ends| ends.contains_key(&stream.end))
        };
        let are_many = self.streams.iter().filter(|s| is_near(s)).count() > ENDS_MAX;
        let is_kept = |stream: &WriteStream| match are_many {
            true => stream.times >= KEPT_TIMES_MIN,
            false => is_near(stream),
        };
        for (id, stream) in (0..).map(WriteStreamId).zip(&self.streams) {
            if !is_kept(stream) {
                continue;
            }
            let known = before.get(&stream.tree).and_then(|e| e.get(&stream.end));
            let next = memtable.after(stream.tree, &stream.end);
            let next = next.map(|next| next.key().to_vec());
            let next = [next, known.and_then(|end| end.next.clone())];
            let next = next.into_iter().flatten().min();
            let ends = self.ends.entry(stream.tree).or_default();
            ends.insert(stream.end.clone(), End { id, next });
        }
        debug_assert!(
            self.ends.values().map(BTreeMap::len).sum::<usize>() <= self.streams.len(),
            "a stream has one last key"
        );
        self.forget_idle_names();
        for stream in &mut self.streams {
            stream.times = 0;
        }
        debug_assert!(self.streams.len() <= STREAMS_MAX, "streams are bounded");
    }

    /// Makes streams of the keys that no put continued, unless there are many.
    fn number_begun(&mut self, memtable: &Memtable) {
        let begun = std::mem::take(&mut self.begun);
        debug_assert!(begun.len() <= ENDS_MAX + 1, "keys are listed up to a bound");
        if begun.len() > ENDS_MAX {
            return;
        }
        for (tree, key) in begun {
            let alone = memtable.oldest(tree, &key);
            if let Some(alone) = alone.filter(|entry| entry.note() == Some(ALONE))
                && let Some(id) = self.new_stream(tree, alone.bytes())
            {
                let stream = &mut self.streams[id.0 as usize];
                stream.end = key;
                stream.times = 1;
            }
        }
    }

    /// Returns the address of a block of `len` bytes in a stream, and the number of its table.
    /// `has_room` decides whether a new append extent of some length may be allocated.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`]; those of a write.
    pub(crate) fn place(
        &mut self,
        volume: &Arc<Volume>,
        id: WriteStreamId,
        len: u64,
        (has_room, new_id): (&dyn Fn(u64) -> bool, &dyn Fn() -> TableId),
    ) -> Result<(u64, TableId), VolumeError> {
        debug_assert!(len > 0, "a block has bytes");
        let fits = |extent: &AppendExtent| extent.left.len >= len;
        if !self.streams[id.0 as usize]
            .extent
            .as_ref()
            .is_some_and(fits)
        {
            let left = self.allocate(volume, id, len, has_room)?;
            self.streams[id.0 as usize].extent = Some(AppendExtent {
                volume: Arc::clone(volume),
                left,
                ready: left.addr,
                origin: new_id(),
            });
        }
        let stream = &mut self.streams[id.0 as usize];
        let ready_bytes = stream.flow.ready_bytes(volume.syncs());
        let extent = stream
            .extent
            .as_mut()
            .expect("the stream has an append extent");
        debug_assert!(extent.left.len >= len, "the block fits");
        debug_assert!(
            extent.ready <= extent.left.end(),
            "its own pages are prepared"
        );
        if extent.ready < extent.left.addr + len
            && let Some(unit) = ready_bytes
        {
            extent.make_ready(unit)?;
        }
        let addr = extent.left.addr;
        extent.left.addr += len;
        extent.left.len -= len;
        Ok((addr, extent.origin))
    }

    /// Allocates an append extent for a stream, with at least `len` bytes.
    fn allocate(
        &mut self,
        volume: &Volume,
        id: WriteStreamId,
        len: u64,
        has_room: &dyn Fn(u64) -> bool,
    ) -> Result<Extent, VolumeError> {
        let stream = &mut self.streams[id.0 as usize];
        debug_assert!(
            stream
                .extent
                .as_ref()
                .is_none_or(|extent| extent.left.len < len),
            "the block does not fit into the extent before"
        );
        stream.extent = None;
        let wanted = (stream.bytes / 8).clamp(*EXTENT_BYTES.start(), *EXTENT_BYTES.end());
        let taken: u64 = self.append_extents().map(|extent| extent.len).sum();
        let most = volume.zones().usage().usable / EXTENTS_PART;
        let wanted = wanted.min(most.saturating_sub(taken)).max(len);
        if !has_room(wanted) {
            return Err(VolumeError::NoSpace {
                wanted_bytes: wanted,
                free_bytes: volume.zones().usage().largest_free,
            });
        }
        let allocated = volume.zones().allocate(wanted, len, volume.stream(STREAM));
        if let Ok(extent) = &allocated {
            debug_assert!(extent.len >= len, "the block fits");
        }
        allocated
    }

    /// Returns the free rests of all append extents.
    pub(crate) fn append_extents(&self) -> impl Iterator<Item = Extent> {
        let append_extents = self
            .streams
            .iter()
            .filter_map(|stream| stream.extent.as_ref());
        append_extents
            .map(|extent| extent.left)
            .filter(|left| left.len > 0)
    }

    /// Frees the rests of all append extents. Returns false if there are none.
    pub(crate) fn give_back(&mut self) -> bool {
        let has_any = self.append_extents().next().is_some();
        for stream in &mut self.streams {
            stream.extent = None;
        }
        debug_assert!(self.append_extents().next().is_none(), "all are given back");
        has_any
    }
}

#[cfg(test)]
mod tests;
