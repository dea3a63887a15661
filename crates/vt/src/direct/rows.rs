//! Rows of puts: commit after commit puts the next key, as who writes a file or a log does.
//!
//! A put goes on with a row if its key follows the row's end and the memtable has no key between the
//! two. A row that has become long is written like a run: the values of its next puts go to their
//! zone at once, and follow each other there in room that is taken for the row alone. Keys in random
//! order make no long rows, so their values wait for the write-out, which puts them in order.
//!
//! What is known here is a guess and costs only speed when it is wrong.

use crate::memtable::Memtable;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_volume::{Extent, Stream, Volume, VolumeError};

/// Most rows that are followed. When there are more, those that went on in the last half as many turns
/// stay.
const ROWS_MAX: usize = 8192;
/// Room for a row, in bytes: an eighth of what is in it, within these bounds.
const ROOM_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 20);
/// All rooms together take no more of the usable space than one part of so many.
const ROOMS_PART: u64 = 32;
/// Rows lie in zones of their own.
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

/// A row of puts.
#[derive(Debug, Default)]
struct Row {
    bytes: u64,
    /// The turn in which it went on last.
    turn: u64,
    room: Option<Room>,
}

/// Space for the next values of a row. Dropped, it gives back what is left.
#[derive(Debug)]
struct Room {
    volume: Arc<Volume>,
    left: Extent,
    /// Number of the table that its blocks are of, until they are in one.
    origin: TableId,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.volume.zones().give_back(self.left);
    }
}

/// The rows that are followed, by tree and last key.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: BTreeMap<(TreeId, Vec<u8>), Row>,
    turn: u64,
}

impl Rows {
    /// Takes note of puts. Answers how many bytes were in the row with which they go on: 0 for a new
    /// one.
    pub(crate) fn follow(&mut self, puts: &Puts<'_>, memtable: &Memtable) -> u64 {
        self.turn += 1;
        let mut row = self.going_on(puts, memtable).unwrap_or_default();
        let before = row.bytes;
        row.bytes += puts.bytes;
        row.turn = self.turn;
        self.rows.insert((puts.tree, puts.last.to_vec()), row);
        if self.rows.len() > ROWS_MAX {
            let oldest = self.turn - ROWS_MAX as u64 / 2;
            self.rows.retain(|_, row| row.turn > oldest);
        }
        debug_assert!(self.rows.len() <= ROWS_MAX, "rows are bounded");
        before
    }

    /// The row that ends before the puts, if nothing lies between.
    fn going_on(&mut self, puts: &Puts<'_>, memtable: &Memtable) -> Option<Row> {
        let tree = puts.tree;
        let nearest = self.rows.range(..(tree, puts.first.to_vec())).next_back();
        let (end, _) = nearest.filter(|((of, _), _)| *of == tree)?;
        if memtable.has_between(tree, &end.1, puts.first) {
            return None;
        }
        let end = end.clone();
        self.rows.remove(&end)
    }

    /// A place for a block of `len` bytes in the row that ends with `last`, and the number of the
    /// table that it is of.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`].
    pub(crate) fn place(
        &mut self,
        volume: &Arc<Volume>,
        (tree, last): (TreeId, &[u8]),
        len: u64,
        new_id: impl FnOnce() -> TableId,
    ) -> Result<(u64, TableId), VolumeError> {
        let key = (tree, last.to_vec());
        let fits = |row: &Row| row.room.as_ref().is_some_and(|room| room.left.len >= len);
        if !self.rows.get(&key).is_some_and(fits) {
            let left = self.allocate(volume, &key, len)?;
            let room = Room {
                volume: Arc::clone(volume),
                left,
                origin: new_id(),
            };
            // While the commit waited, another one may have gone on with the row.
            self.rows.entry(key.clone()).or_default().room = Some(room);
        }
        let row = self.rows.get_mut(&key);
        let room = row.and_then(|row| row.room.as_mut());
        let room = room.expect("the row has room");
        debug_assert!(room.left.len >= len, "the block fits");
        let addr = room.left.addr;
        room.left.addr += len;
        room.left.len -= len;
        Ok((addr, room.origin))
    }

    /// New room for a row, with at least `len` bytes.
    fn allocate(
        &mut self,
        volume: &Volume,
        key: &(TreeId, Vec<u8>),
        len: u64,
    ) -> Result<Extent, VolumeError> {
        let bytes = self.rows.get_mut(key).map_or(0, |row| {
            row.room = None;
            row.bytes
        });
        let wanted = (bytes / 8).clamp(*ROOM_BYTES.start(), *ROOM_BYTES.end());
        let taken: u64 = self.rooms().map(|room| room.len).sum();
        let most = volume.zones().usage().usable / ROOMS_PART;
        let wanted = wanted.min(most.saturating_sub(taken)).max(len);
        volume.zones().allocate(wanted, len, STREAM)
    }

    /// Space that is taken for rows and not used.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = Extent> {
        let rooms = self.rows.values().filter_map(|row| row.room.as_ref());
        rooms.map(|room| room.left).filter(|left| left.len > 0)
    }

    /// Gives back the space that is taken and not used. Answers false if there is none.
    pub(crate) fn give_back(&mut self) -> bool {
        let has_any = self.rooms().next().is_some();
        for row in self.rows.values_mut() {
            row.room = None;
        }
        has_any
    }
}

#[cfg(test)]
mod tests;
