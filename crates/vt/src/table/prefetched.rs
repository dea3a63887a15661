//! Block runs that are prefetched on a hint, before a scan asks for them.
//!
//! A file is read by one request after the other, each with a scan of its own, so no single scan
//! can read ahead. The caller sees all requests and gives the hint
//! ([`stitch_kv::Engine::read_ahead`]). A *block run* is neighbouring blocks of one table whose
//! keys are within bounds. The reader threads find and read them ([`crate::readers`]), and scans
//! take blocks from here ([`super::run::RunIter`]).
//!
//! ```text
//! hint "keys k..p"    table 7   [ i..k | k..l | m..n | o..p | q.. ]
//!                                        `---- block run -----'
//! scan "k..l"  takes its block from the run    scan "o..p"  takes the last: the run is removed
//! ```
//!
//! - A block is identified by its reference, checksum included: a scan never takes a block that was
//!   overwritten since.
//! - A block run that cannot be read is empty. The scan that needs its blocks reads them itself,
//!   and reports the error.
//! - A block run that is read in order is removed when a scan reaches its end. One that is read in
//!   parts is removed when each of its blocks was taken.
//! - Together the block runs hold no more memory than the reader threads may. Those that are read
//!   in parts hold at most half of it. Of these, one that a scan has used is evicted for a new
//!   hint; for a hint of the kind [`Coming::Later`] it must have been unused for [`RECENT_TAKES`]
//!   takes.

use super::blocks::BlockList;
use super::loader::{DataRef, Loader};
use super::run::Bounds;
use super::stream::{Found, Item, ReadWindow, WINDOW_BYTES_MAX, collect};
use crate::readers::{Ahead, Layout, ReaderWork, Readers};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::{Caching, Coming};

/// Number of hints that are refused before one evicts the oldest block run that is unused.
const REFUSALS_MAX: usize = 32;
/// The same for block runs that are read in parts, none of which was used.
const PARTS_REFUSALS_MAX: usize = 4;
/// A hint for later evicts no block run that was used in this many last takes.
const RECENT_TAKES: u64 = 32;
/// Most block runs that are read in parts, for each full one that their memory is enough for. Of
/// several tables with the same keys, most have few blocks.
const PARTS_MAX_PER_RUN: u64 = 4;

/// The task of finding and reading the blocks of a run.
struct Search(Box<dyn FnOnce() -> Vec<Found> + Send>);

impl ReaderWork for Search {
    type Answer = Vec<Found>;

    fn run(self) -> Self::Answer {
        (self.0)()
    }
}

enum RunState {
    /// `None` only while it is taken.
    Reading(Option<Ahead<Search>>),
    Read(Blocks),
}

/// The blocks of a run that was read.
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

    /// Panics unless the blocks that are left are counted.
    fn assert_invariants(&self) {
        debug_assert_eq!(self.taken.len(), self.found.len(), "each has its mark");
        debug_assert_eq!(
            self.taken.iter().filter(|taken| !**taken).count(),
            self.left,
            "those that were not taken are left"
        );
    }

    /// Takes a block and those after it, at most `count`. Returns none if the run lacks the block.
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
        self.assert_invariants();
        self.found[at..end].to_vec()
    }
}

/// Facts about a run that its task finds out, and its use.
struct Progress {
    /// First key of the first block behind the run.
    until: OnceLock<Vec<u8>>,
    /// Its length in bytes; until that is known, the longest that it can be.
    bytes: AtomicU64,
    /// Number of the take that last used it; 0 if none did.
    taken_at: AtomicU64,
}

impl Progress {
    fn note_items(&self, items: &[Item], next: Option<&[u8]>) {
        debug_assert!(self.until.get().is_none(), "the run is found once");
        if let Some(next) = next {
            let _ = self.until.set(next.to_vec());
        }
        let lens = items
            .iter()
            .map(|(data, _)| u64::from(data.block.len_bytes));
        let bytes: u64 = lens.sum();
        let last = items.last();
        debug_assert!(
            last.is_none_or(|(data, _)| bytes - u64::from(data.block.len_bytes) < WINDOW_BYTES_MAX),
            "all blocks but the last fit into a window"
        );
        self.bytes.store(bytes, Ordering::Relaxed);
        if items.iter().all(|(_, cached)| cached.is_some()) {
            // It may be evicted: its blocks are cached.
            self.taken_at.fetch_max(1, Ordering::Relaxed);
        }
    }

    fn is_used(&self) -> bool {
        self.taken_at.load(Ordering::Relaxed) > 0
    }
}

/// Neighbouring blocks of a table, or of blocks without a table, whose keys are within bounds.
pub(super) struct BlockRun {
    table: TableId,
    bounds: Arc<Bounds>,
    progress: Arc<Progress>,
    is_in_order: bool,
    state: Mutex<RunState>,
}

impl BlockRun {
    /// Takes a block and those after it, at most `count`; waits until they are read. Returns none
    /// if the run lacks the block. Reports also whether it is read in parts and used up.
    fn take(&self, wanted: &DataRef, count: usize) -> (Vec<Found>, bool) {
        let mut state = self.state.lock();
        if let RunState::Reading(search) = &mut *state {
            let found = search.take().map(Ahead::take).unwrap_or_default();
            *state = RunState::Read(Blocks::new(found));
        }
        let RunState::Read(blocks) = &mut *state else {
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

    /// Returns the first key behind it.
    fn end(&self) -> Option<&[u8]> {
        let until = self.progress.until.get().map(Vec::as_slice);
        until.or(self.bounds.end.as_deref())
    }

    /// Reports whether a scan that ends at `end` reads it to its end.
    fn ends_by(&self, end: Option<&[u8]>) -> bool {
        match (self.bounds.end.as_deref(), end) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(end)) => own <= end,
        }
    }
}

#[derive(Default)]
struct BlockRuns {
    runs: VecDeque<Arc<BlockRun>>,
    refusals: usize,
    /// Number of takes from all runs.
    takes: u64,
}

impl BlockRuns {
    /// Returns the runs that are read in parts, the oldest first.
    fn parts(&self) -> impl Iterator<Item = &Arc<BlockRun>> {
        let runs = self.runs.iter();
        runs.filter(|run| !run.is_in_order)
    }

    /// Counts the runs that are read in parts, and the full runs that take as much memory.
    fn count_parts(&self) -> (u64, u64) {
        let bytes = |run: &Arc<BlockRun>| run.progress.bytes.load(Ordering::Relaxed);
        let bytes_all: u64 = self.parts().map(bytes).sum();
        let count = self.parts().count() as u64;
        (count, bytes_all.div_ceil(WINDOW_BYTES_MAX))
    }

    /// Reports whether the memory of `runs_max` full runs is used.
    fn is_full(&self, is_in_order: bool, runs_max: u64) -> bool {
        let (parts, parts_as_runs) = self.count_parts();
        debug_assert!(
            parts <= self.runs.len() as u64,
            "parts are some of the runs"
        );
        if is_in_order {
            return self.runs.len() as u64 - parts + parts_as_runs >= runs_max;
        }
        let parts_max = runs_max / 2;
        parts >= PARTS_MAX_PER_RUN * parts_max || parts_as_runs >= parts_max
    }

    /// Returns the least recently used run, unused for at least `takes` takes.
    fn least_recently_used(&self, takes: u64) -> Option<Arc<BlockRun>> {
        let at = |run: &Arc<BlockRun>| run.progress.taken_at.load(Ordering::Relaxed);
        let used = self.parts().filter(|run| run.progress.is_used());
        let first = used.min_by_key(|run| at(run))?;
        debug_assert!(
            at(first) <= self.takes.max(1),
            "no use is later than the last take"
        );
        (at(first).saturating_add(takes) <= self.takes.max(1)).then(|| Arc::clone(first))
    }

    /// Removes a run, if it is still there.
    fn remove(&mut self, run: &Arc<BlockRun>, readers: &Readers) {
        let at = self.runs.iter().position(|other| Arc::ptr_eq(other, run));
        if at.and_then(|at| self.runs.remove(at)).is_some() && self.runs.is_empty() {
            readers.leave(Layout::Rows);
        }
    }
}

/// The block that a scan needs next.
pub(super) struct Wanted<'a> {
    pub(super) table: TableId,
    /// Its reference, and the first of its keys that the scan reads.
    pub(super) data: DataRef,
    pub(super) key: &'a [u8],
    /// End of the scan.
    pub(super) end: Option<&'a [u8]>,
}

/// The block runs of a store that were prefetched and are not used up.
#[derive(Default)]
pub(crate) struct Prefetched(Mutex<BlockRuns>);

impl Debug for Prefetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runs = self.0.lock().runs.len();
        f.debug_struct("Prefetched").field("runs", &runs).finish()
    }
}

impl Prefetched {
    /// Reports whether there is no block run.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().runs.is_empty()
    }

    /// Takes the wanted block and those after it, of a run that is read in parts at most `count()`.
    /// Waits until they are read. Returns none if they were not prefetched.
    pub(super) fn take(
        &self,
        wanted: &Wanted<'_>,
        count: impl FnOnce() -> usize,
        readers: &Readers,
    ) -> Vec<Found> {
        let run = {
            let mut all = self.0.lock();
            let holds = |run: &Arc<BlockRun>| run.holds(wanted.table, wanted.key);
            let Some(at) = all.runs.iter().position(holds) else {
                return Vec::new();
            };
            let run = Arc::clone(&all.runs[at]);
            all.takes += 1;
            run.progress.taken_at.store(all.takes, Ordering::Relaxed);
            if run.is_in_order && run.ends_by(wanted.end) {
                all.remove(&run, readers);
            }
            run
        };
        let count = if run.is_in_order { usize::MAX } else { count() };
        let (found, is_done) = run.take(&wanted.data, count);
        if is_done {
            self.0.lock().remove(&run, readers);
        }
        found
    }

    /// Removes all runs; waits for those that are being read.
    pub(crate) fn clear(&self, readers: &Readers) {
        let runs = std::mem::take(&mut self.0.lock().runs);
        if !runs.is_empty() {
            readers.leave(Layout::Rows);
        }
    }

    /// Returns the first key within bounds that no run has which is read in parts; `None` if they
    /// have all.
    fn uncovered(&self, table: TableId, bounds: &Bounds) -> Option<Vec<u8>> {
        let all = self.0.lock();
        let mut start = bounds.start.clone();
        // Runs may be in any order: each moves it once at most.
        for _ in 0..all.runs.len() {
            let Some(run) = all.parts().find(|run| run.holds(table, &start)) else {
                break;
            };
            start = run.end()?.to_vec();
        }
        debug_assert!(start >= bounds.start, "runs move it on");
        let is_left = bounds.end.as_ref().is_none_or(|end| start < *end);
        is_left.then_some(start)
    }

    /// Makes room for one run. Returns false if there is none.
    fn has_room(&self, coming: Coming<'_>, readers: &Readers) -> bool {
        let is_in_order = coming == Coming::InOrder;
        let mut all = self.0.lock();
        let runs_max = readers.share_bytes(Layout::Rows) / WINDOW_BYTES_MAX;
        if !all.is_full(is_in_order, runs_max) {
            return true;
        }
        let mut evicted = match coming {
            Coming::InOrder => None,
            Coming::Later => all.least_recently_used(RECENT_TAKES),
            Coming::InParts | Coming::Around(_) => all.least_recently_used(0),
        };
        if evicted.is_none() && coming == Coming::Later {
            return false;
        }
        if evicted.is_none() {
            all.refusals += 1;
            let refusals_max = match is_in_order {
                true => REFUSALS_MAX,
                false => PARTS_REFUSALS_MAX,
            };
            if all.refusals < refusals_max {
                return false;
            }
            all.refusals = 0;
            evicted = match is_in_order {
                true => all.runs.front().cloned(),
                false => all.parts().next().cloned(),
            };
        }
        let Some(evicted) = evicted else {
            return false;
        };
        all.remove(&evicted, readers);
        // Without the lock: dropping it waits for its task.
        drop(all);
        drop(evicted);
        true
    }

    /// Returns the number of the take that counts as the first use of a new run. One whose blocks
    /// go to the cache may be evicted at once.
    fn taken_at_first(&self, coming: Coming<'_>, caching: Caching) -> u64 {
        match (coming, caching) {
            (Coming::InOrder, _) | (_, Caching::Past) => 0,
            (_, Caching::IfRoom) => self.0.lock().takes.max(1),
        }
    }

    fn add(&self, run: BlockRun, readers: &Readers) {
        let mut all = self.0.lock();
        if all.runs.is_empty() {
            readers.enter(Layout::Rows);
        }
        all.runs.push_back(Arc::new(run));
    }
}

/// Returns the keys of a new run; `None` if other runs have them.
fn bounds_of_run(
    prefetched: &Prefetched,
    table: TableId,
    bounds: &Arc<Bounds>,
    coming: Coming<'_>,
) -> Option<Arc<Bounds>> {
    if coming == Coming::InOrder {
        return Some(Arc::clone(bounds));
    }
    let start = prefetched.uncovered(table, bounds)?;
    let end = match coming {
        Coming::Around(beyond) => bounds.end.as_deref().map(|end| end.max(beyond).to_vec()),
        Coming::InOrder | Coming::InParts | Coming::Later => bounds.end.clone(),
    };
    debug_assert!(
        end.as_ref().is_none_or(|end| start < *end),
        "a run has keys"
    );
    let is_whole = bounds.is_whole;
    Some(Arc::new(Bounds {
        start,
        end,
        is_whole,
        is_of_keys: false,
    }))
}

/// Reports whether there is nothing to read, or the first block is cached: then the others mostly
/// are, too.
fn is_cached(loader: &Loader, list: &mut impl BlockList, bounds: &Bounds) -> bool {
    // An error of the index is reported by the scan that meets it.
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

/// Prefetches the blocks of `list` whose keys are within bounds, as far as there is memory for
/// them. `holder` keeps their extents allocated until they are read. Returns false if there is no
/// memory.
pub(super) fn prefetch<L: BlockList + Send + 'static>(
    loader: &Loader,
    mut list: L,
    bounds: &Arc<Bounds>,
    (coming, caching): (Coming<'_>, Caching),
    holder: Arc<dyn Any + Send + Sync>,
) -> bool {
    let (prefetched, readers) = (loader.cache.prefetched(), loader.cache.readers());
    let Some(bounds) = bounds_of_run(prefetched, loader.id, bounds, coming) else {
        return true;
    };
    let is_in_order = coming == Coming::InOrder;
    if !is_in_order && is_cached(loader, &mut list, &bounds) {
        return true;
    }
    if !prefetched.has_room(coming, readers) {
        return false;
    }
    let progress = Arc::new(Progress {
        until: OnceLock::new(),
        bytes: AtomicU64::new(WINDOW_BYTES_MAX),
        taken_at: AtomicU64::new(prefetched.taken_at_first(coming, caching)),
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
        // An error is reported by the scan that meets it.
        let blocks = match found {
            Ok(()) if !items.is_empty() => ReadWindow::new(own_loader, items, caching).run(),
            _ => Ok(Vec::new()),
        };
        drop(holder);
        blocks.unwrap_or_default()
    };
    let run = BlockRun {
        table: loader.id,
        bounds,
        progress,
        is_in_order,
        state: Mutex::new(RunState::Reading(Some(
            readers.hand(Search(Box::new(search))),
        ))),
    };
    prefetched.add(run, readers);
    true
}
