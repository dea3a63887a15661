//! Rows of blocks that somebody has said to read soon, read before he does.
//!
//! A file is read by one request after the other, each with a scan of its own: what no scan reads ahead
//! is foreseen by who sees the requests ([`stitch_kv::Engine::read_ahead`]). A row is the blocks of one
//! table, or run, with certain keys. The store's readers find and read them ([`crate::readers`]), and
//! scans that read all of their keys take blocks from here ([`super::run::RunIter`]).
//!
//! - A block is known by its reference, checksum included: what was written over meanwhile is taken by
//!   nobody, however old the row is.
//! - A row that cannot be read is empty: what is wrong is told to who comes to it.
//! - Rows that nobody came for make room for others in the end, and hold no more than readers may.

use super::blocks::BlockList;
use super::loader::Loader;
use super::run::Bounds;
use super::stream::{Found, WINDOW_BYTES_MAX, Window, collect};
use crate::readers::{Ahead, Layout, Readers, Work};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_kv::Caching;

/// While there are as many rows as may be, one of so many newer ones takes the place of the oldest.
const REFUSALS_MAX: usize = 32;

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
    Read(Arc<[Found]>),
}

/// Blocks of a table, or run, whose keys are within bounds.
pub(super) struct Row {
    table: TableId,
    bounds: Arc<Bounds>,
    state: Mutex<State>,
}

impl Row {
    /// Its blocks, in order, as soon as they are there.
    pub(super) fn blocks(&self) -> Arc<[Found]> {
        let mut state = self.state.lock();
        let blocks = match &mut *state {
            State::Read(blocks) => return Arc::clone(blocks),
            State::Under(search) => search.take().map(Ahead::take).unwrap_or_default(),
        };
        let blocks: Arc<[Found]> = blocks.into();
        *state = State::Read(Arc::clone(&blocks));
        blocks
    }

    fn holds(&self, table: TableId, key: &[u8]) -> bool {
        let end = self.bounds.end.as_deref();
        self.table == table
            && self.bounds.start.as_slice() <= key
            && end.is_none_or(|end| key < end)
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
    /// The row that a key is in; it is not here any more if a scan that ends at `end` comes to its end.
    pub(super) fn find(
        &self,
        table: TableId,
        key: &[u8],
        end: Option<&[u8]>,
        readers: &Readers,
    ) -> Option<Arc<Row>> {
        let mut all = self.0.lock();
        let at = all.rows.iter().position(|row| row.holds(table, key))?;
        if !all.rows[at].ends_by(end) {
            return Some(Arc::clone(&all.rows[at]));
        }
        let row = all.rows.remove(at);
        if all.rows.is_empty() {
            readers.leave(Layout::Rows);
        }
        row
    }

    /// Forgets all rows; waits for those that are under way.
    pub(crate) fn clear(&self, readers: &Readers) {
        let rows = std::mem::take(&mut self.0.lock().rows);
        if !rows.is_empty() {
            readers.leave(Layout::Rows);
        }
    }

    /// Makes room for one row. Answers false if there is none.
    fn has_room(&self, readers: &Readers) -> bool {
        let mut all = self.0.lock();
        let rows_max = readers.share_bytes(Layout::Rows) / WINDOW_BYTES_MAX;
        if (all.rows.len() as u64) < rows_max {
            return true;
        }
        all.refusals += 1;
        if all.refusals < REFUSALS_MAX || rows_max == 0 {
            return false;
        }
        all.refusals = 0;
        let oldest = all.rows.pop_front();
        drop(all);
        drop(oldest);
        true
    }

    fn add(&self, row: Row, readers: &Readers) {
        let mut all = self.0.lock();
        if all.rows.is_empty() {
            readers.enter(Layout::Rows);
        }
        all.rows.push_back(Arc::new(row));
    }
}

/// Has blocks of `list` read whose keys are within bounds, as far as there is memory for them. `holder`
/// keeps them where they are until they were read.
pub(super) fn foresee<L: BlockList + Send + 'static>(
    loader: &Loader,
    mut list: L,
    bounds: &Arc<Bounds>,
    caching: Caching,
    holder: Arc<dyn Any + Send + Sync>,
) {
    let (foreseen, readers) = (loader.cache.foreseen(), loader.cache.readers());
    if !foreseen.has_room(readers) {
        return;
    }
    let (own_loader, own_bounds) = (loader.clone(), Arc::clone(bounds));
    let search = move || {
        let mut items = Vec::new();
        let found = list.seek(&own_bounds.start).and_then(|()| {
            collect(
                &mut list,
                &own_loader,
                &own_bounds,
                WINDOW_BYTES_MAX,
                &mut items,
            )
        });
        // What is wrong is told to who comes to it.
        let blocks = match found {
            Ok(_) if !items.is_empty() => Window::new(own_loader, items, caching).run(),
            _ => Ok(Vec::new()),
        };
        drop(holder);
        blocks.unwrap_or_default()
    };
    let row = Row {
        table: loader.id,
        bounds: Arc::clone(bounds),
        state: Mutex::new(State::Under(Some(readers.hand(Search(Box::new(search)))))),
    };
    foreseen.add(row, readers);
}
