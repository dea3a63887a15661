//! A memtable with what belongs to it: where its records begin in the backup log, and the space
//! that is promised to its write-out.

use crate::batch_trees::BatchTrees;
use crate::direct::{DirectRun, DirectRuns, RUN_COUNT_MAX};
use crate::memtable::Memtable;
use crate::options::Sizes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{Lsn, Seqno, TreeId};
use stitch_volume::Reservation;

/// Space that a table takes beyond its entries: its root, and what rounding loses.
pub(crate) const TABLE_OVERHEAD_BYTES: u64 = 16 << 10;

/// Space that a commit uses up of what is promised.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// Of these, for value blocks of whole pages: they need no run longer than themselves.
    pub(crate) page_bytes: u64,
}

/// A memtable, active or sealed.
pub(crate) struct Buffer {
    pub(crate) memtable: Arc<Memtable>,
    /// Values of its commits that are in their zones already.
    pub(crate) direct: DirectRuns,
    /// Its records, and all later ones, are in the backup log from here.
    pub(crate) log_start: Lsn,
    state: Mutex<BufferState>,
}

/// What commits change. Invariant: pages are a part of the space that is used up.
#[derive(Default)]
struct BufferState {
    /// Space promised for the write-out.
    room: Option<Reservation>,
    /// How much of it commits have used up.
    used_bytes: u64,
    /// Of these, for value blocks of whole pages.
    page_bytes: u64,
    trees: BTreeSet<TreeId>,
    last_seqno: Seqno,
    has_deletes: bool,
}

impl BufferState {
    fn holds(&self) -> bool {
        self.page_bytes <= self.used_bytes
    }
}

impl Buffer {
    pub(crate) fn new(memtable: Memtable, log_start: Lsn) -> Self {
        debug_assert!(memtable.is_empty(), "nothing was added yet");
        Self {
            memtable: Arc::new(memtable),
            direct: DirectRuns::default(),
            log_start,
            state: Mutex::new(BufferState::default()),
        }
    }

    /// Returns the memtable of a store in which nothing was written yet.
    pub(crate) fn empty(sizes: &Sizes, log_start: Lsn) -> Self {
        let hint = usize::try_from(sizes.memtable).unwrap_or(usize::MAX);
        let buffer = Self::new(Memtable::new(hint), log_start);
        debug_assert!(buffer.is_empty(), "nothing was added yet");
        buffer
    }

    /// True if nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.memtable.is_empty() && self.direct.count() == 0
    }

    /// Adds a run that is newer than all before.
    pub(crate) fn add_run(&self, run: DirectRun) {
        self.direct.add(&self.memtable, run);
        debug_assert!(!self.is_empty(), "the run is in it");
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memtable.bytes() as u64 + self.direct.memory_bytes()
    }

    /// True if it should be sealed before `bytes` more go into the memtable.
    pub(crate) fn is_full_for(&self, bytes: u64, sizes: &Sizes) -> bool {
        debug_assert!(sizes.memtable > 0, "a memtable has room");
        let held = self.memory_bytes();
        held + bytes > sizes.memtable
            || self.direct.bytes() >= sizes.direct
            || self.direct.count() >= RUN_COUNT_MAX
    }

    /// Trees that have something in it, in order.
    pub(crate) fn trees(&self) -> BTreeSet<TreeId> {
        let mut trees = self.direct.trees();
        trees.extend(self.memtable.trees());
        trees
    }

    /// Of the trees, how many have nothing in this buffer yet.
    pub(crate) fn new_trees(&self, trees: &BatchTrees) -> u64 {
        let state = self.state.lock();
        let is_new = |tree: &TreeId| !state.trees.contains(tree);
        debug_assert!(state.holds());
        trees.iter().filter(is_new).count() as u64
    }

    /// Promised space, used up or not.
    pub(crate) fn promised_bytes(&self) -> u64 {
        let state = self.state.lock();
        debug_assert!(state.holds());
        state.room.as_ref().map_or(0, Reservation::bytes)
    }

    /// Promised space that no commit has used up.
    pub(crate) fn room_bytes(&self) -> u64 {
        let state = self.state.lock();
        debug_assert!(state.holds());
        let promised = state.room.as_ref().map_or(0, Reservation::bytes);
        promised.saturating_sub(state.used_bytes)
    }

    /// Space that commits have used up and that is not promised: after a replay of the log on a
    /// full store, where the promises of the last life could not be made again.
    pub(crate) fn lacking_bytes(&self) -> u64 {
        let state = self.state.lock();
        debug_assert!(state.holds());
        let promised = state.room.as_ref().map_or(0, Reservation::bytes);
        state.used_bytes.saturating_sub(promised)
    }

    /// Promised space that commits have used up for value blocks of whole pages.
    pub(crate) fn page_bytes(&self) -> u64 {
        let state = self.state.lock();
        debug_assert!(state.holds());
        state.page_bytes
    }

    /// Adds promised space.
    pub(crate) fn add_room(&self, room: Reservation) {
        let mut state = self.state.lock();
        debug_assert!(state.holds());
        match &mut state.room {
            Some(before) => before.absorb(room),
            None => state.room = Some(room),
        }
    }

    /// Notes a commit.
    pub(crate) fn note(&self, trees: &BatchTrees, room: Room, deletes: bool, last: Seqno) {
        let mut state = self.state.lock();
        state.trees.extend(trees.iter());
        debug_assert!(
            room.page_bytes <= room.bytes,
            "pages are a part of the room"
        );
        state.used_bytes += room.bytes;
        state.page_bytes += room.page_bytes;
        debug_assert!(state.holds());
        state.has_deletes |= deletes;
        debug_assert!(last > state.last_seqno, "sequence numbers rise");
        state.last_seqno = last;
    }

    /// The newest write in it; 0 if there is none.
    pub(crate) fn last_seqno(&self) -> Seqno {
        self.state.lock().last_seqno
    }

    /// True if something in it removes something.
    pub(crate) fn has_deletes(&self) -> bool {
        let state = self.state.lock();
        debug_assert!(
            !state.has_deletes || state.last_seqno > Seqno(0),
            "what removes something was written"
        );
        state.has_deletes
    }

    /// Gives up what is promised and no commit has used up. The caller holds the lock of commits.
    /// Returns false if that is nothing.
    pub(crate) fn give_back_room(&self) -> bool {
        let mut state = self.state.lock();
        debug_assert!(state.holds());
        let used_bytes = state.used_bytes;
        let Some(room) = &mut state.room else {
            return false;
        };
        let unused_bytes = room.bytes().saturating_sub(used_bytes);
        room.release(unused_bytes);
        debug_assert!(room.bytes() <= used_bytes, "what is left is used up");
        unused_bytes > 0
    }

    /// Gives up the promised space: its tables are written.
    pub(crate) fn release_room(&self) {
        let mut state = self.state.lock();
        state.page_bytes = 0;
        debug_assert!(state.holds());
        drop(state.room.take());
    }
}
