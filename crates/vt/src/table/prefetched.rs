//! Block runs that are prefetched on a hint, before a scan asks for them.
//!
//! A file is read by one request after the other, each with a scan of its own, so no single scan
//! can read ahead. The caller sees all requests and gives the hint
//! ([`stitch_kv::Engine::read_ahead`]). A *block run* is neighbouring blocks of one table that have
//! keys of a hint. The index names them at once; the reader threads read them
//! ([`crate::readers`]), and scans take them from here ([`super::run::RunIter`]).
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
//! - A hint for keys that runs have, or whose blocks are cached, loads nothing.
//! - Together the block runs hold no more bytes than the reader threads may, and those of random
//!   access half of them. A hint that finds no room evicts the least recently used of the runs that
//!   it may, or is refused. A random hint evicts no sequential run:
//!   - a *spare* run: a sequential one that a scan read to its end, a random one that was used. A
//!     hint for later evicts none that was used in the last [`RECENT_TAKES`] takes;
//!   - an abandoned run, unless the hint is for later: it was not used while [`RANDOM_REFUSALS`]
//!     hints were refused, or [`REFUSALS_PER_RUN`] for each run if the hint is sequential.

use super::blocks::BlockList;
use super::loader::{DataRef, Loader};
use super::run::Bounds;
use super::stream::{Found, Item, WINDOW_BYTES_MAX, collect, read_window};
use crate::VtError;
use crate::readers::{Ahead, Holder, Layout, Readers, while_held};
use std::collections::VecDeque;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_kv::{Priority, ReadHint, ReadOrder};

/// Number of refused hints, for each run, after which a sequential hint evicts an unused run.
const REFUSALS_PER_RUN: u64 = 16;
/// Number of refused hints after which a random hint evicts an unused run.
const RANDOM_REFUSALS: u64 = 4;
/// A hint for later evicts no block run that was used in this many last takes.
const RECENT_TAKES: u64 = 32;
/// A run has keys beyond those of its hint up to this part of what runs may hold together: with
/// little memory most would be evicted unread.
const BEYOND_SHARE: u64 = 8;
/// Largest number of block runs.
const RUNS_MAX: usize = 128;

/// The blocks of a run. Invariant: each block that was read has a mark.
#[derive(Debug, Default)]
struct Blocks {
    /// The task that reads them, until a scan has waited for it.
    reading: Option<Ahead<Vec<Found>>>,
    found: Vec<Found>,
    is_taken: Vec<bool>,
}

impl Blocks {
    fn holds(&self) -> bool {
        self.is_taken.len() == self.found.len()
    }

    /// Takes a block and those after it, at most `count`; waits until they are read. Returns none
    /// if the run lacks the block. Reports also whether all of its blocks were taken.
    fn take(&mut self, wanted: &DataRef, count: usize) -> (Vec<Found>, bool) {
        debug_assert!(self.holds());
        debug_assert!(count > 0, "the wanted block is one");
        if let Some(reading) = self.reading.take() {
            self.found = reading.take();
            self.is_taken = vec![false; self.found.len()];
        }
        let at = self.found.iter().position(|(data, _)| data == wanted);
        let Some(at) = at else {
            return (Vec::new(), self.found.is_empty());
        };
        let end = self.found.len().min(at.saturating_add(count));
        debug_assert!(self.holds());
        debug_assert!(at < end, "the wanted block is among them");
        debug_assert!(end - at <= count, "no more than wanted");
        self.is_taken[at..end].fill(true);
        let is_done = self.is_taken.iter().all(|taken| *taken);
        (self.found[at..end].to_vec(), is_done)
    }
}

/// Neighbouring blocks of a table, or of blocks without a table, and their use.
#[derive(Debug)]
struct BlockRun {
    table: TableId,
    start: Vec<u8>,
    /// First key behind it; `None` for no end.
    end: Option<Vec<u8>>,
    order: ReadOrder,
    bytes: u64,
    blocks: Arc<Mutex<Blocks>>,
    /// A new run may take its memory, though it has blocks that were not taken.
    is_spare: bool,
    /// Numbers of takes and of refusals when it was last used, or came.
    used_at: (u64, u64),
}

impl BlockRun {
    fn holds(&self, table: TableId, key: &[u8]) -> bool {
        let is_before_end = || self.end.as_deref().is_none_or(|end| key < end);
        self.table == table && self.start.as_slice() <= key && is_before_end()
    }

    /// Reports whether a scan that ends at `end` reads it to its end.
    fn ends_by(&self, end: Option<&[u8]>) -> bool {
        match (self.end.as_deref(), end) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(end)) => own <= end,
        }
    }

    /// Reports whether it counts for what runs of this order may hold.
    fn counts_for(&self, order: ReadOrder) -> bool {
        order == ReadOrder::Sequential || self.order == order
    }
}

#[derive(Debug, Default)]
struct BlockRuns {
    runs: VecDeque<BlockRun>,
    /// Number of takes from all runs.
    takes: u64,
    /// Number of hints that were refused, other than those for later.
    refusals: u64,
}

impl BlockRuns {
    /// Invariant: runs are few, and each was used at a take and a refusal before now.
    fn holds(&self) -> bool {
        let last = self.runs.back();
        self.runs.len() <= RUNS_MAX
            && last.is_none_or(|run| run.used_at <= (self.takes, self.refusals))
    }

    fn has_room(&self, new: &BlockRun, bytes_max: u64) -> bool {
        debug_assert!(self.holds());
        debug_assert!(new.bytes > 0, "a run has blocks");
        let counted = self.runs.iter().filter(|run| run.counts_for(new.order));
        let held: u64 = counted.map(|run| run.bytes).sum();
        self.runs.len() < RUNS_MAX && (held == 0 || held + new.bytes <= bytes_max)
    }

    /// Removes the run that a hint evicts. Counts a refusal if there is none.
    fn evict(&mut self, hint: &ReadHint<'_>, readers: &Readers) -> Option<BlockRun> {
        let (idle_min, refusals_min) = match (hint.order, hint.priority) {
            (ReadOrder::Sequential, _) => (0, REFUSALS_PER_RUN * self.runs.len() as u64),
            (ReadOrder::Random, Priority::Soon) => (0, RANDOM_REFUSALS),
            (ReadOrder::Random, Priority::Later) => (RECENT_TAKES, u64::MAX),
        };
        let is_evictable = |run: &BlockRun| {
            let (takes, refusals) = run.used_at;
            debug_assert!(takes <= self.takes, "it was used before now");
            debug_assert!(refusals <= self.refusals, "it was used before now");
            let is_idle = self.takes - takes >= idle_min;
            let is_abandoned = self.refusals - refusals >= refusals_min;
            run.counts_for(hint.order) && (run.is_spare && is_idle || is_abandoned)
        };
        let evictable = (0..).zip(&self.runs).filter(|(_, run)| is_evictable(run));
        let least_recent = evictable.min_by_key(|(_, run)| run.used_at.0);
        let at = least_recent.map(|(at, _)| at);
        if at.is_none() && hint.priority == Priority::Soon {
            self.refusals += 1;
        }
        self.remove(at?, readers)
    }

    fn remove(&mut self, at: usize, readers: &Readers) -> Option<BlockRun> {
        let run = self.runs.remove(at);
        debug_assert!(self.holds());
        debug_assert!(run.is_some(), "it was found there");
        if run.is_some() && self.runs.is_empty() {
            readers.leave(Layout::Rows);
        }
        run
    }
}

/// Returns the largest number of bytes that runs of this order, and those that count for it, may
/// hold.
fn bytes_max(readers: &Readers, order: ReadOrder) -> u64 {
    let all = readers.share_bytes(Layout::Rows);
    match order {
        ReadOrder::Sequential => all,
        ReadOrder::Random => all / 2,
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
#[derive(Debug, Default)]
pub(crate) struct Prefetched(Mutex<BlockRuns>);

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
        let (blocks, is_to_end) = {
            let all = self.0.lock();
            let holds = |run: &&BlockRun| run.holds(wanted.table, wanted.key);
            let Some(run) = all.runs.iter().find(holds) else {
                return Vec::new();
            };
            let is_to_end = run.order == ReadOrder::Sequential && run.ends_by(wanted.end);
            (Arc::clone(&run.blocks), is_to_end)
        };
        let count = if is_to_end { usize::MAX } else { count() };
        debug_assert!(count > 0, "the wanted block is one");
        let (found, is_done) = blocks.lock().take(&wanted.data, count);
        debug_assert!(found.len() <= count, "no more than wanted");
        let mut all = self.0.lock();
        all.takes += 1;
        let used_at = (all.takes, all.refusals);
        let at = all
            .runs
            .iter()
            .position(|run| Arc::ptr_eq(&run.blocks, &blocks));
        if let Some(at) = at.filter(|_| is_done) {
            all.remove(at, readers);
        } else if let Some(at) = at.filter(|_| !found.is_empty()) {
            let run = &mut all.runs[at];
            debug_assert!(
                run.used_at.0 < used_at.0,
                "each take has a number of its own"
            );
            run.used_at = used_at;
            run.is_spare |= is_to_end || run.order == ReadOrder::Random;
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

    /// Returns the keys of a new run; `None` if other runs have them.
    fn missing(&self, table: TableId, bounds: &Bounds, hint: &ReadHint<'_>) -> Option<Bounds> {
        let all = self.0.lock();
        let (mut start, end) = (bounds.start.as_slice(), bounds.end.as_deref());
        // Runs may be in any order: each moves it once at most.
        for _ in 0..all.runs.len() {
            let Some(run) = all.runs.iter().find(|run| run.holds(table, start)) else {
                break;
            };
            let next = run.end.as_deref()?;
            debug_assert!(next > start, "each run moves it on");
            start = next;
        }
        debug_assert!(start >= bounds.start.as_slice(), "runs move it on");
        let is_missing = end.is_none_or(|end| start < end);
        is_missing.then(|| match hint.order {
            // A scan begins with the block that has its first key, though another run has it too.
            ReadOrder::Sequential => bounds.clone(),
            ReadOrder::Random => Bounds {
                start: start.to_vec(),
                ..bounds.clone()
            },
        })
    }

    /// Adds a run, if there is room for it.
    fn add(&self, run: BlockRun, hint: &ReadHint<'_>, readers: &Readers) -> bool {
        loop {
            let mut all = self.0.lock();
            if all.has_room(&run, bytes_max(readers, run.order)) {
                if all.runs.is_empty() {
                    readers.enter(Layout::Rows);
                }
                let used_at = (all.takes, all.refusals);
                all.runs.push_back(BlockRun { used_at, ..run });
                debug_assert!(all.holds());
                return true;
            }
            let Some(evicted) = all.evict(hint, readers) else {
                return false;
            };
            // Without the lock: dropping it waits for its task.
            drop(all);
            drop(evicted);
        }
    }
}

/// Finds the blocks with keys within bounds, as many as one run may have. If any is missing, a few
/// with keys beyond follow. Moves the end of the bounds behind them.
fn find(
    loader: &Loader,
    mut list: impl BlockList,
    bounds: &mut Bounds,
    hint: &ReadHint<'_>,
) -> Result<Vec<Item>, VtError> {
    let mut items = Vec::new();
    let bytes_max = bytes_max(loader.cache.readers(), hint.order);
    list.seek(&bounds.start)?;
    let within = WINDOW_BYTES_MAX.min(bytes_max);
    let mut is_all = collect(&mut list, loader, bounds, within, &mut items)?;
    let end = bounds.end.as_deref();
    if let Some(beyond) = hint.beyond.filter(|_| is_all && !are_cached(&items))
        && end.is_some_and(|end| end < beyond)
    {
        bounds.end = Some(beyond.to_vec());
        let left = WINDOW_BYTES_MAX.min(bytes_max / BEYOND_SHARE);
        let left = left.saturating_sub(bytes_of(&items));
        is_all = collect(&mut list, loader, bounds, left, &mut items)?;
    }
    if !is_all && let Some(next) = list.current()? {
        bounds.end = Some(next.first.to_vec());
    }
    Ok(items)
}

fn are_cached(items: &[Item]) -> bool {
    items.iter().all(|(_, cached)| cached.is_some())
}

fn bytes_of(items: &[Item]) -> u64 {
    let lens = items.iter().map(|(data, _)| data.block.len_bytes);
    lens.map(u64::from).sum()
}

/// Prefetches the blocks of `list` whose keys are within bounds, as far as there is memory for
/// them. `holder` keeps their extents allocated while they are read; until then they may go, since
/// no scan is left that would meet them. Returns false if there is no memory.
pub(super) fn prefetch(
    loader: &Loader,
    list: impl BlockList,
    bounds: &Bounds,
    hint: &ReadHint<'_>,
    holder: Holder,
) -> bool {
    let (cache, order) = (&loader.cache, hint.order);
    let (prefetched, readers) = (cache.prefetched(), cache.readers());
    let Some(mut bounds) = prefetched.missing(loader.id, bounds, hint) else {
        return true;
    };
    // An error of the index is reported by the scan that meets it.
    let items = find(loader, list, &mut bounds, hint).unwrap_or_default();
    if are_cached(&items) {
        return true;
    }
    let blocks = Arc::new(Mutex::new(Blocks::default()));
    let run = BlockRun {
        table: loader.id,
        start: bounds.start,
        end: bounds.end,
        order,
        bytes: bytes_of(&items),
        blocks: Arc::clone(&blocks),
        is_spare: false,
        used_at: (0, 0),
    };
    // A scan that finds the run waits until it has its task.
    let mut own = blocks.lock();
    debug_assert!(own.reading.is_none(), "it has no task yet");
    debug_assert!(own.found.is_empty(), "nothing was read yet");
    let is_added = prefetched.add(run, hint, readers);
    if is_added {
        let (loader, once) = (loader.clone(), hint.once);
        let read = move || read_window(&loader, items, once).unwrap_or_default();
        let read = while_held(&holder, read);
        own.reading = Some(readers.hand(read, hint.priority));
    }
    is_added
}
