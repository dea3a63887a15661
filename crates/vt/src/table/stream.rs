//! Reading far ahead of a cursor that goes from block to block in their order.
//!
//! A scout goes through the index before the cursor, and hands what comes next over to the store's
//! readers ([`crate::readers`]), a window at a time: reading, checking and unpacking go on while
//! rows are given out. Blocks of a window that lie one after the other are one request, past the
//! page cache where the device can, and stay in the buffer that it went to.
//!
//! - What is wrong with a block, or with the index, is told to the cursor that comes there, not
//!   before: a window that cannot be read ends the stream, and the cursor reads on its own.

use super::block::DataBlock;
use super::blocks::BlockList;
use super::loader::{DataRef, Loader};
use super::run::Bounds;
use crate::VtError;
use crate::cache::ReadCount;
use crate::readers::{Ahead, Layout};
use std::collections::VecDeque;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_format::vt_index::BlockPtr;
use stitch_kv::Priority;

/// Windows that are read or waiting, beside the one whose rows are given out.
const WINDOWS: usize = 2;
/// Sizes of a window. The first is small, so that the reader soon has a row.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
pub(super) const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// The same where blocks lie in many places: a window is as many pieces as there are places, and it
/// grows until they are long.
const SCATTERED_BYTES_MIN: u64 = 512 << 10;
const SCATTERED_BYTES_MAX: u64 = 16 << 20;
/// Blocks are scattered if pieces are shorter than this on average.
const PIECE_BYTES_MIN: u64 = 32 << 10;
/// Pieces of this length take a device little longer than their bytes do.
const LONG_PIECE_BYTES: u64 = 128 << 10;
/// Most blocks of one window.
const WINDOW_BLOCKS_MAX: usize = 8192;

const _: () = assert!(WINDOW_BYTES_MIN <= WINDOW_BYTES_MAX);
const _: () = assert!(SCATTERED_BYTES_MIN <= SCATTERED_BYTES_MAX);
// Pieces that are not scattered may still be short.
const _: () = assert!(PIECE_BYTES_MIN <= LONG_PIECE_BYTES);

/// A block of a window, and itself where it was in the cache.
pub(super) type Item = (DataRef, Option<Arc<DataBlock>>);
/// A block that was read.
pub(super) type Found = (DataRef, Arc<DataBlock>);

/// Reads the blocks of a window that were not in the cache. Those that are not read once go there,
/// as far as it has room.
pub(super) fn read_window(
    loader: &Loader,
    items: Vec<Item>,
    once: bool,
) -> Result<Vec<Found>, VtError> {
    debug_assert!(!items.is_empty(), "a window has blocks");
    let wanted = items.iter().filter(|(_, cached)| cached.is_none());
    let wanted: Vec<DataRef> = wanted.map(|(data, _)| *data).collect();
    let counters = loader.cache.counters();
    counters.add(ReadCount::Misses, wanted.len() as u64);
    let read = loader.read_data_once(&wanted)?;
    debug_assert_eq!(read.len(), wanted.len(), "each block was read");
    if !once {
        for (data, block) in wanted.iter().zip(&read) {
            loader.keep_if_room(data, block);
        }
    }
    let mut read = read.into_iter();
    let found = items.into_iter().map(|(data, cached)| {
        let block = cached.or_else(|| read.next());
        (data, block.expect("all that were not cached were read"))
    });
    let found: Vec<Found> = found.collect();
    debug_assert!(
        read.next().is_none(),
        "each block that was read is given out"
    );
    debug_assert!(
        found.len() >= wanted.len(),
        "those from the cache are given out, too"
    );
    Ok(found)
}

/// How far streams have grown, for those that go on where others end: the tables of a level are
/// read one after the other.
#[derive(Debug, Default)]
pub(crate) struct StreamGrowth(Mutex<Option<Start>>);

impl StreamGrowth {
    /// A stream has come to its end.
    fn leave(&self, layout: Layout, window_bytes: u64) {
        debug_assert!(
            window_bytes >= WINDOW_BYTES_MIN,
            "a stream has read a window"
        );
        *self.0.lock() = Some(Start {
            layout,
            window_bytes,
        });
    }

    /// What the last stream has left; taken by one.
    pub(super) fn take(&self) -> Option<Start> {
        let start = self.0.lock().take();
        debug_assert!(
            start.is_none_or(|start| start.window_bytes >= WINDOW_BYTES_MIN),
            "a stream has read a window"
        );
        start
    }
}

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    layout: Layout,
    window_bytes: u64,
}

impl Start {
    /// Where nothing is known.
    pub(super) const SMALL: Self = Self {
        layout: Layout::Rows,
        window_bytes: 2 * WINDOW_BYTES_MIN,
    };
}

/// What is read ahead of a cursor.
#[derive(Debug)]
pub(super) struct Stream<L> {
    loader: Loader,
    /// Stands on the first block of the next window.
    scout: L,
    bounds: Arc<Bounds>,
    layout: Layout,
    is_at_end: bool,
    window_bytes: u64,
    /// Whether longer windows should give longer pieces.
    grows: bool,
    windows: VecDeque<Ahead<Result<Vec<Found>, VtError>>>,
}

/// How long a window may be now.
fn share(loader: &Loader, layout: Layout) -> u64 {
    loader.cache.readers().share_bytes(layout) / (WINDOWS as u64 + 1)
}

impl<L: BlockList> Stream<L> {
    /// A stream that begins with the block on which `scout` stands; `None` where there is no memory
    /// for it.
    pub(super) fn begin(
        loader: &Loader,
        scout: L,
        bounds: &Arc<Bounds>,
        start: Start,
    ) -> Option<Self> {
        debug_assert!(
            start.window_bytes >= WINDOW_BYTES_MIN,
            "a window has a length"
        );
        if share(loader, Layout::Scattered) < SCATTERED_BYTES_MIN {
            return None;
        }
        loader.cache.readers().enter(start.layout);
        Some(Self {
            loader: loader.clone(),
            scout,
            bounds: Arc::clone(bounds),
            layout: start.layout,
            is_at_end: false,
            window_bytes: start.window_bytes / 2,
            grows: true,
            windows: VecDeque::new(),
        })
    }

    /// Notes how far it has come, for the stream that goes on after it.
    pub(super) fn end(self, growth: &StreamGrowth) {
        growth.leave(self.layout, self.window_bytes);
    }

    /// The next window's blocks, in order; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Result<Vec<Found>, VtError>> {
        self.fill();
        debug_assert!(self.windows.len() <= WINDOWS, "a stream is bounded");
        let next = self.windows.pop_front()?;
        self.fill();
        Some(next.take())
    }

    fn fill(&mut self) {
        while self.windows.len() < WINDOWS && !self.is_at_end {
            let (least, most) = match self.layout {
                Layout::Rows => (WINDOW_BYTES_MIN, WINDOW_BYTES_MAX),
                Layout::Scattered => (SCATTERED_BYTES_MIN, SCATTERED_BYTES_MAX),
            };
            let share = share(&self.loader, self.layout);
            let grown = self.window_bytes << u32::from(self.grows);
            self.window_bytes = grown.min(share).clamp(least, most);
            debug_assert!(least <= self.window_bytes, "a window is worth a read");
            debug_assert!(self.window_bytes <= most, "a window is bounded");
            let mut items = Vec::new();
            // The cursor will come to the same error.
            let bytes_max = self.window_bytes;
            let collected = collect(
                &mut self.scout,
                &self.loader,
                &self.bounds,
                bytes_max,
                &mut items,
            );
            self.is_at_end = collected.unwrap_or(true);
            if items.is_empty() {
                debug_assert!(self.is_at_end, "only behind the end is a window empty");
                return;
            }
            self.look_at(&items);
            let loader = self.loader.clone();
            let window = move || read_window(&loader, items, false);
            let ahead = self.loader.cache.readers().hand(window, Priority::Soon);
            self.windows.push_back(ahead);
            debug_assert!(self.windows.len() <= WINDOWS, "a stream is bounded");
        }
    }

    /// Takes note if blocks lie in many places, and of how long their pieces are.
    fn look_at(&mut self, items: &[Item]) {
        debug_assert!(!items.is_empty(), "a window has blocks");
        if self.window_bytes < 4 * PIECE_BYTES_MIN {
            return;
        }
        let mut blocks: Vec<BlockPtr> = items.iter().map(|(data, _)| data.block).collect();
        if self.layout == Layout::Rows && piece_bytes(&blocks) < PIECE_BYTES_MIN {
            self.loader.cache.readers().leave(self.layout);
            self.layout = Layout::Scattered;
            self.loader.cache.readers().enter(self.layout);
        }
        if self.layout == Layout::Scattered {
            blocks.sort_unstable_by_key(|block| block.addr);
            self.grows = piece_bytes(&blocks) < LONG_PIECE_BYTES;
        }
    }
}

/// How long pieces are on average: blocks one after the other, each where the one before it ends.
fn piece_bytes(blocks: &[BlockPtr]) -> u64 {
    debug_assert!(!blocks.is_empty(), "a window has blocks");
    let breaks = blocks.windows(2).filter(|two| two[0].end() != two[1].addr);
    let bytes: u64 = blocks.iter().map(|block| u64::from(block.len_bytes)).sum();
    let piece = bytes / (breaks.count() as u64 + 1);
    debug_assert!(piece > 0, "a piece has a block");
    piece
}

/// The items of a window, from the block on which `scout` stands. Answers true if nothing comes
/// after them.
pub(super) fn collect(
    scout: &mut impl BlockList,
    loader: &Loader,
    bounds: &Bounds,
    bytes_max: u64,
    items: &mut Vec<Item>,
) -> Result<bool, VtError> {
    let mut bytes = 0;
    while bytes < bytes_max && items.len() < WINDOW_BLOCKS_MAX {
        let Some(entry) = scout.current()? else {
            return Ok(true);
        };
        let end = bounds.end.as_deref();
        if end.is_some_and(|end| entry.first >= end) {
            return Ok(true);
        }
        let data = DataRef::of(&entry);
        bytes += u64::from(data.block.len_bytes);
        items.push((data, loader.glance_data(&data)));
        debug_assert!(items.len() <= WINDOW_BLOCKS_MAX, "a window is bounded");
        scout.next()?;
    }
    Ok(false)
}

impl<L> Drop for Stream<L> {
    fn drop(&mut self) {
        self.loader.cache.readers().leave(self.layout);
    }
}

#[cfg(test)]
mod tests;
