//! Rows of blocks that somebody has said to read soon, read before he does.
//!
//! A file is read by one request after the other, each with a scan of its own: what no scan reads
//! ahead is foreseen by who sees the requests ([`stitch_kv::Engine::read_ahead`]). A row is the
//! blocks of one table, or run, with certain keys. The store's readers find and read them
//! ([`crate::readers`]), and scans take blocks from here ([`super::run::RunIter`]).
//!
//! - A block is known by its reference, checksum included: what was written over meanwhile is taken
//!   by nobody, however old the row is.
//! - A row that cannot be read is empty: what is wrong is told to who comes to it.
//! - A row whose keys come in order goes when a scan comes to its end; one that comes in parts goes
//!   once each of its blocks was taken.
//! - Rows that nobody came for make room for others in the end, and hold no more than readers may.
//!   Those that come in parts are at most half of all, and make room as soon as somebody had a part
//!   of them; for those that come later, once nobody has had one for a while.

use super::blocks::BlockList;
use super::loader::{DataRef, Loader};
use super::run::Bounds;
use super::stream::{Found, Item, WINDOW_BYTES_MAX, Window, collect};
use crate::readers::{Ahead, Layout, Readers, Work};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::{Caching, Coming};

/// While there are as many rows as may be, one of so many newer ones takes the place of the oldest.
const REFUSALS_MAX: usize = 32;
/// The same for those that come in parts, if nobody had a part of any.
const PARTS_REFUSALS_MAX: usize = 4;
/// Those that come later take no place of one that somebody had a part of among so many that were
/// taken last.
const RECENT_TAKES: u64 = 32;
/// Most of those for each whole row that they may be as long as: of several tables with the same
/// keys, most have little.
const PARTS_MAX_PER_ROW: u64 = 4;

/// Finds and reads the blocks of a row.
struct Search(Box<dyn FnOnce() -> Vec<Found> + Send>);

impl Work for Search {
    type Answer = Vec<Found>;

    fn run(self) -> Self::Answer {
        (self.0)()
    }
}

enum State {
    /// `None` only while it is taken.
    Under(Option<Ahead<Search>>),
    Read(Blocks),
}

/// The blocks of a row that was read.
struct Blocks {
    found: Vec<Found>,
    /// Which of them were taken, and how many were not.
    taken: Vec<bool>,
    left: usize,
}

impl Blocks {
    fn new(found: Vec<Found>) -> Self {
        let (taken, left) = (vec![false; found.len()], found.len());
        Self { found, taken, left }
    }

    /// A block and those after it, `count` at most. None if the row has not got it.
    fn take(&mut self, wanted: &DataRef, count: usize) -> Vec<Found> {
        let at = self.found.iter().position(|(data, _)| data == wanted);
        let Some(at) = at else {
            return Vec::new();
        };
        let end = self.found.len().min(at.saturating_add(count));
        for taken in &mut self.taken[at..end] {
            self.left -= usize::from(!*taken);
            *taken = true;
        }
        self.found[at..end].to_vec()
    }
}

/// What comes to be known of a row.
struct Progress {
    /// First key of the first block that it has not got.
    until: OnceLock<Vec<u8>>,
    /// Its bytes, once that is known; until then as many as there may be.
    bytes: AtomicU64,
    /// When somebody last had a part of it, in takes; 0: nobody had one. Who has may make room.
    taken_at: AtomicU64,
}

impl Progress {
    fn note_items(&self, items: &[Item], next: Option<&[u8]>) {
        if let Some(next) = next {
            let _ = self.until.set(next.to_vec());
        }
        let lens = items
            .iter()
            .map(|(data, _)| u64::from(data.block.len_bytes));
        self.bytes.store(lens.sum(), Ordering::Relaxed);
        if items.iter().all(|(_, cached)| cached.is_some()) {
            // It can be had from the cache.
            self.taken_at.fetch_max(1, Ordering::Relaxed);
        }
    }

    fn is_begun(&self) -> bool {
        self.taken_at.load(Ordering::Relaxed) > 0
    }
}

/// Blocks of a table, or run, whose keys are within bounds.
pub(super) struct Row {
    table: TableId,
    bounds: Arc<Bounds>,
    progress: Arc<Progress>,
    is_in_order: bool,
    state: Mutex<State>,
}

impl Row {
    /// A block and those after it, `count` at most, as soon as they are there; none if it has not
    /// got that one. Answers too whether it comes in parts and all of its blocks were taken by now.
    fn take(&self, wanted: &DataRef, count: usize) -> (Vec<Found>, bool) {
        let mut state = self.state.lock();
        if let State::Under(search) = &mut *state {
            let found = search.take().map(Ahead::take).unwrap_or_default();
            *state = State::Read(Blocks::new(found));
        }
        let State::Read(blocks) = &mut *state else {
            unreachable!("it was read");
        };
        let found = blocks.take(wanted, count);
        (found, !self.is_in_order && blocks.left == 0)
    }

    fn holds(&self, table: TableId, key: &[u8]) -> bool {
        self.table == table
            && self.bounds.start.as_slice() <= key
            && self.end().is_none_or(|end| key < end)
    }

    /// First key after it.
    fn end(&self) -> Option<&[u8]> {
        let until = self.progress.until.get().map(Vec::as_slice);
        until.or(self.bounds.end.as_deref())
    }

    /// True if nothing of it comes after a scan that ends at `end`.
    fn ends_by(&self, end: Option<&[u8]>) -> bool {
        match (self.bounds.end.as_deref(), end) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(end)) => own <= end,
        }
    }
}

#[derive(Default)]
struct Rows {
    rows: VecDeque<Arc<Row>>,
    refusals: usize,
    /// How often a part of a row was taken.
    takes: u64,
}

impl Rows {
    /// Those that come in parts, the oldest first.
    fn parts(&self) -> impl Iterator<Item = &Arc<Row>> {
        let rows = self.rows.iter();
        rows.filter(|row| !row.is_in_order)
    }

    /// How many come in parts, and as how many whole rows these count.
    fn count_parts(&self) -> (u64, u64) {
        let bytes = |row: &Arc<Row>| row.progress.bytes.load(Ordering::Relaxed);
        let bytes_all: u64 = self.parts().map(bytes).sum();
        let count = self.parts().count() as u64;
        (count, bytes_all.div_ceil(WINDOW_BYTES_MAX))
    }

    /// True if there are as many as so many rows may be.
    fn is_full(&self, is_in_order: bool, rows_max: u64) -> bool {
        let (parts, parts_as_rows) = self.count_parts();
        if is_in_order {
            return self.rows.len() as u64 - parts + parts_as_rows >= rows_max;
        }
        let parts_max = rows_max / 2;
        parts >= PARTS_MAX_PER_ROW * parts_max || parts_as_rows >= parts_max
    }

    /// The one of which somebody had a part longest ago, so many takes at least.
    fn begun(&self, takes: u64) -> Option<Arc<Row>> {
        let at = |row: &Arc<Row>| row.progress.taken_at.load(Ordering::Relaxed);
        let begun = self.parts().filter(|row| row.progress.is_begun());
        let first = begun.min_by_key(|row| at(row))?;
        (at(first).saturating_add(takes) <= self.takes.max(1)).then(|| Arc::clone(first))
    }

    /// Forgets a row, unless that was done.
    fn remove(&mut self, row: &Arc<Row>, readers: &Readers) {
        let at = self.rows.iter().position(|other| Arc::ptr_eq(other, row));
        if at.and_then(|at| self.rows.remove(at)).is_some() && self.rows.is_empty() {
            readers.leave(Layout::Rows);
        }
    }
}

/// What a scan looks for.
pub(super) struct Wanted<'a> {
    pub(super) table: TableId,
    /// The block, and the first of its keys that is looked for.
    pub(super) data: DataRef,
    pub(super) key: &'a [u8],
    /// Where the scan ends.
    pub(super) end: Option<&'a [u8]>,
}

/// The rows of a store that were foreseen and not read yet.
#[derive(Default)]
pub(crate) struct Foreseen(Mutex<Rows>);

impl Debug for Foreseen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.0.lock().rows.len();
        f.debug_struct("Foreseen").field("rows", &rows).finish()
    }
}

impl Foreseen {
    /// True if nothing is foreseen.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().rows.is_empty()
    }

    /// The wanted block and those after it, of a row that comes in parts `count()` at most; none if
    /// nobody has foreseen it. Waits until they are read.
    pub(super) fn take(
        &self,
        wanted: &Wanted<'_>,
        count: impl FnOnce() -> usize,
        readers: &Readers,
    ) -> Vec<Found> {
        let row = {
            let mut all = self.0.lock();
            let holds = |row: &Arc<Row>| row.holds(wanted.table, wanted.key);
            let Some(at) = all.rows.iter().position(holds) else {
                return Vec::new();
            };
            let row = Arc::clone(&all.rows[at]);
            all.takes += 1;
            row.progress.taken_at.store(all.takes, Ordering::Relaxed);
            if row.is_in_order && row.ends_by(wanted.end) {
                all.remove(&row, readers);
            }
            row
        };
        let count = if row.is_in_order { usize::MAX } else { count() };
        let (found, is_done) = row.take(&wanted.data, count);
        if is_done {
            self.0.lock().remove(&row, readers);
        }
        found
    }

    /// Forgets all rows; waits for those that are under way.
    pub(crate) fn clear(&self, readers: &Readers) {
        let rows = std::mem::take(&mut self.0.lock().rows);
        if !rows.is_empty() {
            readers.leave(Layout::Rows);
        }
    }

    /// From where on bounds are not in rows that come in parts; `None` if all of it is.
    fn uncovered(&self, table: TableId, bounds: &Bounds) -> Option<Vec<u8>> {
        let all = self.0.lock();
        let mut start = bounds.start.clone();
        // Rows may be in any order: each moves it once at most.
        for _ in 0..all.rows.len() {
            let Some(row) = all.parts().find(|row| row.holds(table, &start)) else {
                break;
            };
            start = row.end()?.to_vec();
        }
        let is_left = bounds.end.as_ref().is_none_or(|end| start < *end);
        is_left.then_some(start)
    }

    /// Makes room for one row. Answers false if there is none.
    fn has_room(&self, coming: Coming<'_>, readers: &Readers) -> bool {
        let is_in_order = coming == Coming::InOrder;
        let mut all = self.0.lock();
        let rows_max = readers.share_bytes(Layout::Rows) / WINDOW_BYTES_MAX;
        if !all.is_full(is_in_order, rows_max) {
            return true;
        }
        let mut goes = match coming {
            Coming::InOrder => None,
            Coming::Later => all.begun(RECENT_TAKES),
            Coming::InParts | Coming::Around(_) => all.begun(0),
        };
        if goes.is_none() && coming == Coming::Later {
            return false;
        }
        if goes.is_none() {
            all.refusals += 1;
            let refusals_max = match is_in_order {
                true => REFUSALS_MAX,
                false => PARTS_REFUSALS_MAX,
            };
            if all.refusals < refusals_max {
                return false;
            }
            all.refusals = 0;
            goes = match is_in_order {
                true => all.rows.front().cloned(),
                false => all.parts().next().cloned(),
            };
        }
        let Some(goes) = goes else {
            return false;
        };
        all.remove(&goes, readers);
        // Without the lock: it may be under way.
        drop(all);
        drop(goes);
        true
    }

    /// As if somebody had had a part of a new row just now, if it can be had from the cache soon.
    fn taken_at_first(&self, coming: Coming<'_>, caching: Caching) -> u64 {
        match (coming, caching) {
            (Coming::InOrder, _) | (_, Caching::Past) => 0,
            (_, Caching::IfRoom) => self.0.lock().takes.max(1),
        }
    }

    fn add(&self, row: Row, readers: &Readers) {
        let mut all = self.0.lock();
        if all.rows.is_empty() {
            readers.enter(Layout::Rows);
        }
        all.rows.push_back(Arc::new(row));
    }
}

/// The keys that a new row should have; `None` if other rows have them.
fn bounds_of_row(
    foreseen: &Foreseen,
    table: TableId,
    bounds: &Arc<Bounds>,
    coming: Coming<'_>,
) -> Option<Arc<Bounds>> {
    if coming == Coming::InOrder {
        return Some(Arc::clone(bounds));
    }
    let start = foreseen.uncovered(table, bounds)?;
    let end = match coming {
        Coming::Around(beyond) => bounds.end.as_deref().map(|end| end.max(beyond).to_vec()),
        Coming::InOrder | Coming::InParts | Coming::Later => bounds.end.clone(),
    };
    let is_whole = bounds.is_whole;
    Some(Arc::new(Bounds {
        start,
        end,
        is_whole,
    }))
}

/// True if there is nothing to read, or its first block is in the cache: then the others mostly are
/// too.
fn is_at_hand(loader: &Loader, list: &mut impl BlockList, bounds: &Bounds) -> bool {
    // What is wrong with the index is told to who comes to it.
    if list.seek(&bounds.start).is_err() {
        return true;
    }
    let end = bounds.end.as_deref();
    match list.current() {
        Ok(Some(entry)) if end.is_none_or(|end| entry.first < end) => {
            loader.glance_data(&DataRef::of(&entry)).is_some()
        }
        _ => true,
    }
}

/// Has blocks of `list` read whose keys are within bounds, as far as there is memory for them.
/// `holder` keeps them where they are until they were read. Answers false if there is no memory for
/// them.
pub(super) fn foresee<L: BlockList + Send + 'static>(
    loader: &Loader,
    mut list: L,
    bounds: &Arc<Bounds>,
    (coming, caching): (Coming<'_>, Caching),
    holder: Arc<dyn Any + Send + Sync>,
) -> bool {
    let (foreseen, readers) = (loader.cache.foreseen(), loader.cache.readers());
    let Some(bounds) = bounds_of_row(foreseen, loader.id, bounds, coming) else {
        return true;
    };
    let is_in_order = coming == Coming::InOrder;
    if !is_in_order && is_at_hand(loader, &mut list, &bounds) {
        return true;
    }
    if !foreseen.has_room(coming, readers) {
        return false;
    }
    let progress = Arc::new(Progress {
        until: OnceLock::new(),
        bytes: AtomicU64::new(WINDOW_BYTES_MAX),
        taken_at: AtomicU64::new(foreseen.taken_at_first(coming, caching)),
    });
    let (own_loader, own_bounds) = (loader.clone(), Arc::clone(&bounds));
    let own_progress = Arc::clone(&progress);
    let search = move || {
        let mut items = Vec::new();
        let found = list.seek(&own_bounds.start).and_then(|()| {
            let max = WINDOW_BYTES_MAX;
            let is_all = collect(&mut list, &own_loader, &own_bounds, max, &mut items)?;
            let next = if is_all { None } else { list.current()? };
            own_progress.note_items(&items, next.map(|next| next.first));
            Ok(())
        });
        // What is wrong is told to who comes to it.
        let blocks = match found {
            Ok(()) if !items.is_empty() => Window::new(own_loader, items, caching).run(),
            _ => Ok(Vec::new()),
        };
        drop(holder);
        blocks.unwrap_or_default()
    };
    let row = Row {
        table: loader.id,
        bounds,
        progress,
        is_in_order,
        state: Mutex::new(State::Under(Some(readers.hand(Search(Box::new(search)))))),
    };
    foreseen.add(row, readers);
    true
}
