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
//! - A block run is removed when each of its blocks was taken. Blocks that are not read once go
//!   into the cache, too, without a round: they are probationary ([`crate::cache`]).
//! - A hint for keys that runs have loads nothing.
//! - Together the block runs hold no more bytes than the reader threads may, and those of random
//!   access half of them. A hint that finds no room is refused, or evicts a run:
//!   - *sequential*: a run that a scan has read to its end, or one that no scan used while
//!     [`REFUSALS_PER_RUN`] hints were refused for each run;
//!   - *random*: the least recently used run of random access; after [`RANDOM_REFUSALS_MAX`]
//!     refusals the oldest one, though it was not used;
//!   - *random, later*: the least recently used one, unused for [`RECENT_TAKES`] takes.

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
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use stitch_kv::{Priority, ReadHint, ReadOrder};

/// Number of refused sequential hints, for each run, before one evicts a run that was not used.
const REFUSALS_PER_RUN: usize = 16;
/// Number of random hints that are refused before one evicts the oldest run, which was not used.
const RANDOM_REFUSALS_MAX: usize = 4;
/// A hint for later evicts no block run that was used in this many last takes.
const RECENT_TAKES: u64 = 32;
/// Largest number of block runs for each full one that their memory is enough for. Of several
/// tables with the same keys, most have few blocks.
const RUNS_PER_FULL_RUN: u64 = 4;

/// The task of finding and reading the blocks of a run.
struct Search(Box<dyn FnOnce() -> Vec<Found> + Send>);

impl Work for Search {
    type Answer = Vec<Found>;

    fn run(self) -> Self::Answer {
        (self.0)()
    }
}

enum State {
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
    /// A scan has read it to its end.
    is_ended: AtomicBool,
    /// Number of sequential hints that were refused since it was used.
    refusals: AtomicUsize,
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
    order: ReadOrder,
    state: Mutex<State>,
}

impl BlockRun {
    /// Takes a block and those after it, at most `count`; waits until they are read. Returns none
    /// if the run lacks the block. Reports also whether it is used up.
    fn take(&self, wanted: &DataRef, count: usize) -> (Vec<Found>, bool) {
        let mut state = self.state.lock();
        if let State::Reading(search) = &mut *state {
            let found = search.take().map(Ahead::take).unwrap_or_default();
            *state = State::Read(Blocks::new(found));
        }
        let State::Read(blocks) = &mut *state else {
            unreachable!("it was read");
        };
        let found = blocks.take(wanted, count);
        (found, blocks.left == 0)
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
    /// Random hints that were refused since one evicted a run.
    refusals: usize,
    /// Number of takes from all runs.
    takes: u64,
}

impl BlockRuns {
    /// Returns the runs of random access, the oldest first.
    fn random(&self) -> impl Iterator<Item = &Arc<BlockRun>> {
        let runs = self.runs.iter();
        runs.filter(|run| run.order == ReadOrder::Random)
    }

    /// Reports whether one more run may take more than `bytes_max`.
    fn is_full(&self, order: ReadOrder, bytes_max: u64) -> bool {
        let bytes = |run: &Arc<BlockRun>| run.progress.bytes.load(Ordering::Relaxed);
        let (held, count, max) = match order {
            ReadOrder::Sequential => {
                let held: u64 = self.runs.iter().map(bytes).sum();
                (held, self.runs.len(), bytes_max)
            }
            ReadOrder::Random => {
                let held = self.random().map(bytes).sum();
                (held, self.random().count(), bytes_max / 2)
            }
        };
        let count_max = RUNS_PER_FULL_RUN * (max / WINDOW_BYTES_MAX);
        held + WINDOW_BYTES_MAX > max || count as u64 >= count_max
    }

    /// Returns the run that a hint evicts.
    fn victim(&mut self, hint: &ReadHint<'_>) -> Option<Arc<BlockRun>> {
        match (hint.order, hint.priority) {
            (ReadOrder::Sequential, _) => self.unused(),
            (ReadOrder::Random, Priority::Later) => self.least_recently_used(RECENT_TAKES),
            (ReadOrder::Random, Priority::Soon) => self.least_recently_used(0).or_else(|| {
                self.refusals = (self.refusals + 1) % RANDOM_REFUSALS_MAX;
                let oldest = self.random().next();
                oldest.filter(|_| self.refusals == 0).cloned()
            }),
        }
    }

    /// Returns a run that no scan is likely to use any more. Counts a refusal if there is none.
    fn unused(&self) -> Option<Arc<BlockRun>> {
        let refusals_max = REFUSALS_PER_RUN * self.runs.len();
        let is_unused = |run: &&Arc<BlockRun>| {
            let Progress {
                is_ended, refusals, ..
            } = &*run.progress;
            is_ended.load(Ordering::Relaxed) || refusals.load(Ordering::Relaxed) >= refusals_max
        };
        let unused = self.runs.iter().find(is_unused).cloned();
        if unused.is_none() {
            for run in &self.runs {
                run.progress.refusals.fetch_add(1, Ordering::Relaxed);
            }
        }
        unused
    }

    /// Returns the least recently used run, unused for at least `takes` takes.
    fn least_recently_used(&self, takes: u64) -> Option<Arc<BlockRun>> {
        let at = |run: &Arc<BlockRun>| run.progress.taken_at.load(Ordering::Relaxed);
        let used = self.random().filter(|run| run.progress.is_used());
        let first = used.min_by_key(|run| at(run))?;
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

    /// Takes the wanted block and those after it, at most `count()`. Waits until they are read.
    /// Returns none if they were not prefetched.
    pub(super) fn take(
        &self,
        wanted: &Wanted<'_>,
        count: impl FnOnce() -> usize,
        readers: &Readers,
    ) -> Vec<Found> {
        let run = {
            let mut all = self.0.lock();
            let holds = |run: &&Arc<BlockRun>| run.holds(wanted.table, wanted.key);
            let Some(run) = all.runs.iter().find(holds).cloned() else {
                return Vec::new();
            };
            all.takes += 1;
            run.progress.taken_at.store(all.takes, Ordering::Relaxed);
            run.progress.refusals.store(0, Ordering::Relaxed);
            run
        };
        let is_whole = run.order == ReadOrder::Sequential && run.ends_by(wanted.end);
        let count = if is_whole { usize::MAX } else { count() };
        let (found, is_done) = run.take(&wanted.data, count);
        if is_done || found.is_empty() {
            // A run that lacks the block was overwritten, or could not be read.
            self.0.lock().remove(&run, readers);
        } else if is_whole {
            run.progress.is_ended.store(true, Ordering::Relaxed);
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

    /// Returns the first key within bounds that no run has; `None` if they have all.
    fn uncovered(&self, table: TableId, bounds: &Bounds) -> Option<Vec<u8>> {
        let all = self.0.lock();
        let mut start = bounds.start.clone();
        // Runs may be in any order: each moves it once at most.
        for _ in 0..all.runs.len() {
            let Some(run) = all.runs.iter().find(|run| run.holds(table, &start)) else {
                break;
            };
            start = run.end()?.to_vec();
        }
        let is_left = bounds.end.as_ref().is_none_or(|end| start < *end);
        is_left.then_some(start)
    }

    /// Makes room for one run. Returns false if there is none.
    fn has_room(&self, hint: &ReadHint<'_>, readers: &Readers) -> bool {
        let mut all = self.0.lock();
        if !all.is_full(hint.order, readers.share_bytes(Layout::Rows)) {
            return true;
        }
        let Some(victim) = all.victim(hint) else {
            return false;
        };
        all.remove(&victim, readers);
        // Without the lock: dropping it waits for its task.
        drop(all);
        drop(victim);
        true
    }

    /// Returns the number of the take that counts as the first use of a new run. One whose blocks
    /// go to the cache may be evicted at once.
    fn taken_at_first(&self, hint: &ReadHint<'_>) -> u64 {
        match (hint.order, hint.once) {
            (ReadOrder::Random, false) => self.0.lock().takes.max(1),
            (ReadOrder::Random, true) | (ReadOrder::Sequential, _) => 0,
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
    hint: &ReadHint<'_>,
) -> Option<Arc<Bounds>> {
    let start = prefetched.uncovered(table, bounds)?;
    if hint.order == ReadOrder::Sequential {
        // A scan begins with the block that has its first key, though another run has it too.
        return Some(Arc::clone(bounds));
    }
    let beyond = hint.beyond.unwrap_or_default();
    let end = bounds.end.as_deref();
    Some(Arc::new(Bounds {
        start,
        end: end.map(|end| end.max(beyond).to_vec()),
        is_whole: bounds.is_whole,
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
    hint: &ReadHint<'_>,
    holder: Arc<dyn Any + Send + Sync>,
) -> bool {
    let (prefetched, readers) = (loader.cache.prefetched(), loader.cache.readers());
    let Some(bounds) = bounds_of_run(prefetched, loader.id, bounds, hint) else {
        return true;
    };
    if hint.order == ReadOrder::Random && is_cached(loader, &mut list, &bounds) {
        return true;
    }
    if !prefetched.has_room(hint, readers) {
        return false;
    }
    let progress = Arc::new(Progress {
        until: OnceLock::new(),
        bytes: AtomicU64::new(WINDOW_BYTES_MAX),
        taken_at: AtomicU64::new(prefetched.taken_at_first(hint)),
        is_ended: AtomicBool::new(false),
        refusals: AtomicUsize::new(0),
    });
    let (own_loader, own_bounds) = (loader.clone(), Arc::clone(&bounds));
    let own_progress = Arc::clone(&progress);
    let once = hint.once;
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
            Ok(()) if !items.is_empty() => Window::new(own_loader, items, once).run(),
            _ => Ok(Vec::new()),
        };
        drop(holder);
        blocks.unwrap_or_default()
    };
    let search = readers.hand(Search(Box::new(search)), hint.priority);
    let run = BlockRun {
        table: loader.id,
        bounds,
        progress,
        order: hint.order,
        state: Mutex::new(State::Reading(Some(search))),
    };
    prefetched.add(run, readers);
    true
}
