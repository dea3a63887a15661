//! A cursor over the entries of a list of data blocks, with read-ahead.
//!
//! Blocks with no key that is asked for are not entered: that one of them cannot be read is nothing
//! to the reader of its neighbour.
//!
//! When blocks are read in their order, several are read at a time: twice as many bytes each time,
//! up to a bound. Those that lie one after the other on the device, as most do, are one request;
//! the others are read at the same time. And the device is told which ones come after them.

use super::block::DataBlock;
use super::block_iter::BlockIter;
use super::blocks::BlockList;
use super::loader::{DataRef, Loader};
use super::stream::{Found, Start, Stream, StreamGrowth};
use crate::VtError;
use crate::cache::Expectation;
use crate::entry::{EntryIter, EntryRef};
use crate::runs::meets_any;
use std::collections::VecDeque;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::Run;
use stitch_kv::KeyRange;

mod whole;

/// Most bytes read with one request, unless one block is longer.
const WINDOW_BYTES_MAX: u64 = 256 << 10;
const WINDOW_BYTES_MIN: u64 = 32 << 10;
/// So many bytes are asked for ahead, once less than the least of them are left.
const PREFETCH_BYTES: u64 = 4 << 20;
const PREFETCH_BYTES_MIN: u64 = 768 << 10;

const _: () = assert!(WINDOW_BYTES_MIN <= WINDOW_BYTES_MAX);
// The device is told of more blocks while a window's length is left.
const _: () =
    assert!(WINDOW_BYTES_MAX <= PREFETCH_BYTES_MIN && PREFETCH_BYTES_MIN < PREFETCH_BYTES);

/// What becomes of blocks that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// They go into the cache.
    Cache,
    /// They are forgotten: a compaction reads them for the last time.
    Nothing,
    /// The same, and those leave the cache that were written and not found since.
    Leave,
}

/// The keys that a cursor is asked for: `[start, end)`. It may give others too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    /// First key.
    pub(crate) start: Vec<u8>,
    /// First key after them; `None` for no end.
    pub(crate) end: Option<Vec<u8>>,
    /// All of them will be read: blocks are asked for together.
    pub(crate) is_whole: bool,
    /// Only keys are read: an entry whose value has a block of its own comes without its value.
    pub(crate) is_of_keys: bool,
}

impl Bounds {
    /// Those of a range.
    pub(crate) fn of(range: KeyRange<'_>, is_whole: bool) -> Self {
        Self {
            start: range.start.to_vec(),
            end: range.end.map(<[u8]>::to_vec),
            is_whole,
            is_of_keys: false,
        }
    }

    /// Those of a range of which only keys are read.
    pub(crate) fn of_keys(range: KeyRange<'_>) -> Self {
        Self {
            is_of_keys: true,
            ..Self::of(range, false)
        }
    }
}

/// Which value blocks a cursor carries over unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Carry {
    /// None.
    Nothing,
    /// All, other than those in extents of the device that are to be left.
    Values {
        /// Those extents, sorted and apart.
        out_of: Arc<[Run]>,
    },
}

impl Carry {
    /// What a reader within bounds has no use for.
    fn within(bounds: &Bounds) -> Self {
        match bounds.is_of_keys {
            true => Self::Values {
                out_of: Arc::default(),
            },
            false => Self::Nothing,
        }
    }

    fn has(&self, data: &DataRef) -> bool {
        match self {
            Self::Nothing => false,
            Self::Values { out_of } => data.is_value && !meets_any(out_of, &data.block.run()),
        }
    }
}

/// A cursor over the entries of a list of data blocks. Invariant: it reads no more at a time than
/// one window, and has no stream where it carries blocks over.
#[derive(Debug)]
pub(crate) struct RunIter<L> {
    loader: Loader,
    blocks: L,
    bounds: Arc<Bounds>,
    keep: Keep,
    carry: Carry,
    /// The block that it stands in.
    data: Option<BlockIter>,
    data_addr: u64,
    /// Blocks that were read ahead, in order.
    ahead: VecDeque<Found>,
    /// What comes after them, if it is read far ahead.
    stream: Option<Stream<L>>,
    /// Shared with those who read what lies before and after.
    growth: Arc<StreamGrowth>,
    /// How to begin, where another cursor has read up to here.
    start: Option<Start>,
    window_bytes: u64,
    /// It has come to the block that it stands on from the one before.
    is_going_on: bool,
    /// Number of blocks, from the one it stands on, that the device was told of.
    told: usize,
}

impl<L: BlockList + Clone> RunIter<L> {
    /// A cursor that stands nowhere yet.
    pub(super) fn new(loader: Loader, blocks: L, bounds: Arc<Bounds>, keep: Keep) -> Self {
        let window_bytes = match keep {
            Keep::Cache => 0,
            Keep::Nothing | Keep::Leave => WINDOW_BYTES_MAX,
        };
        Self {
            loader,
            blocks,
            carry: Carry::within(&bounds),
            bounds,
            keep,
            data: None,
            data_addr: 0,
            ahead: VecDeque::new(),
            stream: None,
            growth: Arc::default(),
            start: None,
            window_bytes,
            is_going_on: false,
            told: 0,
        }
    }

    /// The same, carrying value blocks over.
    pub(super) fn carrying(mut self, carry: Carry) -> Self {
        debug_assert!(self.data.is_none(), "it stands nowhere yet");
        if let Carry::Values { out_of } = &carry {
            debug_assert!(
                out_of.is_sorted_by(|run, next| run.end() <= next.addr),
                "extents are sorted and apart"
            );
        }
        self.carry = carry;
        self
    }

    /// The same, which grows on from where others of this growth ended.
    pub(super) fn growing_on(mut self, growth: Arc<StreamGrowth>) -> Self {
        debug_assert!(self.data.is_none(), "it stands nowhere yet");
        self.growth = growth;
        self
    }

    fn holds(&self) -> bool {
        self.window_bytes <= WINDOW_BYTES_MAX
            && (self.stream.is_none() || self.carry == Carry::Nothing)
    }

    /// Enters the block that the list stands on; false beyond either end, and where it has none of
    /// the keys that are asked for.
    fn enter(&mut self) -> Result<bool, VtError> {
        self.data = None;
        debug_assert!(self.holds());
        let Some(entry) = self.blocks.current()? else {
            if let Some(stream) = self.stream.take() {
                stream.end(&self.growth);
            }
            return Ok(false);
        };
        let is_after = self
            .bounds
            .end
            .as_deref()
            .is_some_and(|end| entry.first >= end);
        if is_after || entry.last < self.bounds.start.as_slice() {
            return Ok(false);
        }
        debug_assert!(entry.first <= entry.last, "a block's keys are in order");
        let wanted = DataRef::of(&entry);
        if self.carry.has(&wanted) {
            let entry = entry.to_owned();
            self.data = Some(BlockIter::carried(entry));
            return Ok(true);
        }
        let put = entry
            .is_value
            .then(|| (entry.last.to_vec(), entry.max_seqno));
        let block = self.load(&wanted)?;
        debug_assert!(
            wanted.is_of(&block),
            "the block is the one that is referenced"
        );
        self.data_addr = wanted.block.addr;
        self.data = Some(match put {
            Some((key, seqno)) => BlockIter::value(key, seqno, block),
            None => BlockIter::Entries(self.loader.entries(block)),
        });
        debug_assert!(self.holds());
        Ok(true)
    }

    fn load(&mut self, wanted: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(!self.carry.has(wanted), "a carried block is not read");
        if let Some(block) = self.read_ahead(wanted) {
            return Ok(block);
        }
        debug_assert!(
            self.ahead.is_empty() && self.stream.is_none(),
            "what was read ahead is used up"
        );
        if self.bounds.is_whole
            && let Some(block) = self.prefetched(wanted)?
        {
            return Ok(block);
        }
        let cached = match self.keep {
            Keep::Cache => self.loader.cached_data(wanted),
            Keep::Nothing => self.loader.glance_data(wanted),
            Keep::Leave => self.loader.take_data(wanted),
        };
        if let Some(block) = cached {
            return Ok(block);
        }
        if self.bounds.is_whole {
            return self.load_whole(wanted);
        }
        if self.keep == Keep::Cache
            && let Some(block) = self.prefetched(wanted)?
        {
            return Ok(block);
        }
        if let Some(start) = self.start.take()
            && let Some(block) = self.stream_from(wanted, start)
        {
            return Ok(block);
        }
        if self.keep == Keep::Cache {
            self.window_bytes = match self.is_going_on {
                true => (self.window_bytes * 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX),
                false => 0,
            };
            debug_assert!(self.holds());
            if self.window_bytes == WINDOW_BYTES_MAX
                && let Some(block) = self.stream_from(wanted, Start::SMALL)
            {
                return Ok(block);
            }
        }
        let (span, next) = self.span(wanted)?;
        self.tell(next)?;
        let expectation = match self.window_bytes {
            0 => Expectation::Normal,
            _ => Expectation::Scan,
        };
        let keep = (self.keep == Keep::Cache).then_some(expectation);
        self.read_span(span, false, keep)
    }

    /// Reads blocks, of which the first is wanted. Those of a long span share buffers, and go into
    /// the cache as far as it has room.
    fn read_span(
        &mut self,
        mut span: Vec<DataRef>,
        is_long: bool,
        keep: Option<Expectation>,
    ) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(!span.is_empty(), "the wanted block is read");
        let read = match is_long {
            true => self.loader.read_data_once(&span),
            false => self.loader.read_data_each(&span),
        };
        let blocks = match read {
            // The damaged one may be a block that the caller has not asked for.
            Err(_) if span.len() > 1 => {
                span.truncate(1);
                self.loader.read_data_each(&span)?
            }
            read => read?,
        };
        assert_eq!(span.len(), blocks.len(), "each block was read");
        debug_assert!(self.ahead.is_empty(), "what was read ahead is used up");
        for (data, block) in span.into_iter().zip(blocks) {
            match keep {
                Some(_) if is_long => self.loader.keep_if_room(&data, &block),
                Some(expectation) => self.loader.keep_data(&data, &block, expectation),
                None => {}
            }
            self.ahead.push_back((data, block));
        }
        let (_, block) = self.ahead.pop_front().expect("the span has the block");
        Ok(block)
    }

    /// A block that was read ahead; `None` if it was not, or could not be read.
    fn read_ahead(&mut self, wanted: &DataRef) -> Option<Arc<DataBlock>> {
        loop {
            while let Some((found, block)) = self.ahead.pop_front() {
                if found == *wanted {
                    return Some(block);
                }
            }
            match self.stream.as_mut()?.next() {
                Some(Ok(window)) => self.ahead = window.into(),
                // What is wrong is told to who comes to it.
                Some(Err(_)) | None => self.stream = None,
            }
        }
    }

    /// Begins to read far ahead, with the block that it stands on.
    fn stream_from(&mut self, wanted: &DataRef, start: Start) -> Option<Arc<DataBlock>> {
        if self.carry != Carry::Nothing {
            // It would read what is carried, too.
            return None;
        }
        let scout = self.blocks.clone();
        debug_assert!(self.stream.is_none(), "the stream before has ended");
        debug_assert!(self.ahead.is_empty(), "what was read ahead is used up");
        self.stream = Stream::begin(&self.loader, scout, &self.bounds, start);
        self.read_ahead(wanted)
    }

    /// It no longer goes from block to block in their order.
    fn turn(&mut self) {
        self.data = None;
        (self.stream, self.start) = (None, None);
        (self.is_going_on, self.told) = (false, 0);
    }

    /// The wanted block and those after it that are read with it, but for those that are carried
    /// over unread; and how many blocks on the next one is.
    fn span(&self, wanted: &DataRef) -> Result<(Vec<DataRef>, usize), VtError> {
        debug_assert!(!self.carry.has(wanted), "the first block is read");
        let mut span = vec![*wanted];
        let mut bytes = u64::from(wanted.block.len_bytes);
        let mut at = 1;
        while let Some(next) = self.blocks.ahead(at)? {
            if !self.carry.has(&next) {
                bytes += u64::from(next.block.len_bytes);
                if bytes > self.window_bytes || self.loader.glance_data(&next).is_some() {
                    break;
                }
                span.push(next);
            }
            at += 1;
        }
        debug_assert!(at >= span.len(), "blocks that are carried are passed over");
        Ok((span, at))
    }

    /// Tells the device which blocks are read later, from the one on that is `next` blocks on: many
    /// at a time and in the order of their places, since neighbours in the order of keys need not
    /// be neighbours there.
    fn tell(&mut self, next: usize) -> Result<(), VtError> {
        debug_assert!(next > 0, "the block that it stands on is read");
        if self.window_bytes < WINDOW_BYTES_MAX {
            return Ok(());
        }
        let mut rows: Vec<(u64, u64)> = Vec::new();
        let mut bytes = 0;
        let mut at = next;
        while let Some(next) = self.blocks.ahead(at)?
            && bytes < PREFETCH_BYTES
        {
            if !self.carry.has(&next) {
                bytes += u64::from(next.block.len_bytes);
                if at < self.told && bytes >= PREFETCH_BYTES_MIN {
                    return Ok(());
                }
                if at >= self.told {
                    rows.push((next.block.addr, next.block.end()));
                }
            }
            at += 1;
        }
        self.told = at;
        rows.sort_unstable();
        for row in rows.chunk_by(|before, after| before.1 == after.0) {
            let (start, end) = (row[0].0, row[row.len() - 1].1);
            self.loader.volume.prefetch(start, end - start);
            debug_assert!(start < end, "neighbours have a length together");
        }
        Ok(())
    }

    /// To the next block.
    fn go_on(&mut self) -> Result<(), VtError> {
        debug_assert!(!self.is_on_entry(), "it has come to the end of its block");
        self.is_going_on = true;
        self.told = self.told.saturating_sub(1);
        self.blocks.next()
    }

    /// Runs a step of the cursor in the block.
    #[inline]
    fn in_block(
        &mut self,
        step: impl FnOnce(&mut BlockIter) -> Result<(), stitch_format::FormatError>,
    ) -> Result<(), VtError> {
        let Some(data) = &mut self.data else {
            return Ok(());
        };
        step(data).map_err(|error| self.leave_damaged(error))
    }

    /// Leaves the block, in which something is wrong.
    #[cold]
    fn leave_damaged(&mut self, error: stitch_format::FormatError) -> VtError {
        debug_assert!(self.data.is_some(), "it stood in the block");
        self.data = None;
        self.loader.damaged(self.data_addr, error)
    }

    /// Goes on to the first entry of the next block.
    #[cold]
    fn next_block(&mut self) -> Result<(), VtError> {
        debug_assert!(!self.is_on_entry(), "it has come to the end of its block");
        self.data = None;
        self.go_on()?;
        self.enter()?;
        self.in_block(BlockIter::seek_first)
    }

    #[inline]
    fn is_on_entry(&self) -> bool {
        self.data.as_ref().is_some_and(BlockIter::is_on)
    }
}

impl<L: BlockList + Clone> EntryIter for RunIter<L> {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        self.turn();
        if key.is_empty() {
            self.start = self.growth.take();
        }
        self.blocks.seek(key)?;
        // The versions wanted may only be in a later block.
        while self.enter()? {
            self.in_block(|data| data.seek(key, seqno))?;
            debug_assert!(self.data.is_some(), "it has entered a block");
            if self.is_on_entry() {
                debug_assert!(
                    self.current().is_some_and(|entry| entry.key >= key),
                    "it goes to no key before the wanted one"
                );
                return Ok(());
            }
            self.go_on()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        self.turn();
        self.blocks.seek_before(key)?;
        if self.enter()? {
            self.in_block(|data| match key {
                Some(key) => data.seek_before(key),
                None => data.seek_last(),
            })?;
        }
        debug_assert!(
            self.current()
                .is_none_or(|entry| key.is_none_or(|key| entry.key < key)),
            "it stands before the key"
        );
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!(self.is_on_entry(), "stands on an entry");
        self.in_block(BlockIter::next)?;
        if self.is_on_entry() {
            return Ok(());
        }
        self.next_block()
    }

    fn prev(&mut self) -> Result<(), VtError> {
        debug_assert!(self.is_on_entry(), "stands on an entry");
        self.in_block(BlockIter::prev)?;
        if self.data.is_some() && !self.is_on_entry() {
            self.turn();
            self.blocks.prev()?;
            self.enter()?;
            self.in_block(BlockIter::seek_last)?;
        }
        Ok(())
    }

    fn skip_older(&mut self, seqno: Seqno, end: &[u8]) -> Result<bool, VtError> {
        let mut has_moved = false;
        debug_assert!(self.holds());
        while self.is_on_entry()
            && let Some(block) = self.blocks.current()?
            && block.max_seqno < seqno
            && block.last < end
        {
            self.blocks.next()?;
            has_moved = true;
        }
        if has_moved {
            self.turn();
            self.enter()?;
            self.in_block(BlockIter::seek_first)?;
        }
        Ok(has_moved)
    }

    fn skip_older_back(&mut self, seqno: Seqno, start: &[u8]) -> Result<bool, VtError> {
        let mut has_moved = false;
        debug_assert!(self.holds());
        while self.is_on_entry()
            && let Some(block) = self.blocks.current()?
            && block.max_seqno < seqno
            && block.first >= start
        {
            self.blocks.prev()?;
            has_moved = true;
        }
        if has_moved {
            self.turn();
            self.enter()?;
            self.in_block(BlockIter::seek_last)?;
        }
        Ok(has_moved)
    }

    #[inline]
    fn current(&self) -> Option<EntryRef<'_>> {
        debug_assert!(self.holds());
        self.data.as_ref()?.current()
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.is_on_entry()
    }

    fn carried(&self) -> Option<&IndexEntry> {
        self.data.as_ref()?.carried_block()
    }
}
