//! Where the blocks of a table being written go, and what it owns so far.

use crate::VtError;
use crate::under_way::UnderWay;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stitch_format::vt_index::BlockPtr;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Extent, Stream, Volume};

/// Where value blocks lie together.
const VALUE_STREAM: Stream = Stream(4);
/// With less free zones than one of so many, value blocks fill holes, and leave long runs to blocks
/// that need them.
pub(crate) const FREE_ZONES_PART: u64 = 8;

/// Space of a table being written. Given back when dropped before [`Self::take_runs`].
#[derive(Debug)]
pub(super) struct Places {
    volume: Arc<Volume>,
    stream: Stream,
    /// Allocated for this table.
    owned: Vec<Extent>,
    /// Blocks of other tables.
    stitched: Vec<Run>,
    /// Where it counts what it allocates.
    under_way: Option<Arc<UnderWay>>,
}

impl Places {
    pub(super) const fn new(volume: Arc<Volume>, stream: Stream) -> Self {
        Self {
            volume,
            stream,
            owned: Vec::new(),
            stitched: Vec::new(),
            under_way: None,
        }
    }

    /// From now on, counts what it allocates.
    pub(super) fn count(&mut self, under_way: Arc<UnderWay>) {
        debug_assert!(self.owned.is_empty(), "nothing was allocated yet");
        self.under_way = Some(under_way);
    }

    /// Takes over space that was allocated elsewhere.
    pub(super) fn own(&mut self, extent: Extent) {
        debug_assert!(extent.addr > 0, "an extent of the zones");
        debug_assert!(extent.len > 0, "an extent is not empty");
        self.owned.push(extent);
    }

    /// True if every byte of a block is handed out.
    pub(super) fn is_live(&self, block: &BlockPtr) -> bool {
        self.volume.zones().is_live(Extent {
            addr: block.addr,
            len: u64::from(block.len_bytes),
        })
    }

    /// Reports whether a write from `start` on, of this range of a buffer, stays within allocated
    /// space.
    fn is_own(&self, start: u64, range: &Range<usize>) -> bool {
        self.volume.zones().is_live(Extent {
            addr: start,
            len: range.len() as u64,
        })
    }

    /// Notes a block of another table.
    pub(super) fn refer(&mut self, block: &BlockPtr) {
        debug_assert!(block.len_bytes > 0, "a block has a length");
        let len_bytes = u64::from(block.len_bytes);
        if let Some(run) = self.stitched.last_mut()
            && run.end() == block.addr
        {
            run.len_bytes += len_bytes;
            return;
        }
        let addr = block.addr;
        self.stitched.push(Run { addr, len_bytes });
    }

    /// Places for blocks of these lengths: their addresses. Blocks follow each other as far as
    /// there is room.
    pub(super) fn allocate(&mut self, lens: &[u64]) -> Result<Vec<u64>, VtError> {
        debug_assert!(!lens.is_empty(), "some block wants a place");
        self.allocate_in(self.stream, false, lens)
    }

    /// Places for value blocks. When few zones are free, or some are to be cut off, they fill
    /// holes. What is evacuated while many are free stays in key order.
    pub(super) fn allocate_values(&mut self, lens: &[u64]) -> Result<Vec<u64>, VtError> {
        debug_assert!(!lens.is_empty(), "some block wants a place");
        let zones = self.volume.zones();
        let usage = zones.usage();
        let is_low = usage.zones_free < usage.zones / FREE_ZONES_PART;
        let fills = is_low || zones.fenced().is_some();
        self.allocate_in(VALUE_STREAM, fills, lens)
    }

    fn allocate_in(
        &mut self,
        stream: Stream,
        fills: bool,
        lens: &[u64],
    ) -> Result<Vec<u64>, VtError> {
        debug_assert!(lens.iter().all(|len| *len > 0), "each block has a length");
        let mut addrs = Vec::with_capacity(lens.len());
        while addrs.len() < lens.len() {
            let left = &lens[addrs.len()..];
            let (want, min) = (left.iter().sum(), left[0]);
            let zones = self.volume.zones();
            let hole = fills.then(|| zones.allocate_hole(want, min)).flatten();
            let extent = match hole {
                Some(hole) => hole,
                None => zones.allocate(want, min, self.volume.stream(stream))?,
            };
            debug_assert!(extent.len >= min, "the first block has room");
            let mut at = extent.addr;
            for len in left {
                if at + len > extent.end() {
                    break;
                }
                addrs.push(at);
                at += len;
            }
            assert!(at > extent.addr, "the first block fits");
            zones.give_back(Extent {
                addr: at,
                len: extent.end() - at,
            });
            let len = at - extent.addr;
            let addr = extent.addr;
            if let Some(under_way) = &self.under_way {
                under_way.wrote(len, stream == VALUE_STREAM);
            }
            self.owned.push(Extent { addr, len });
        }
        debug_assert_eq!(addrs.len(), lens.len(), "each block has a place");
        Ok(addrs)
    }

    /// Writes the blocks in `buffer`, which lie there one after the other, to their places: one
    /// request for each run.
    pub(super) fn write(&self, addrs: &[u64], lens: &[u64], buffer: &[u8]) -> Result<(), VtError> {
        for (start, run) in runs(addrs, lens, buffer.len()) {
            debug_assert!(self.is_own(start, &run), "only allocated space is written");
            self.volume.write(start, &[&buffer[run]])?;
        }
        Ok(())
    }

    /// As [`Self::write`], without waiting where the device goes on with it.
    pub(super) fn write_behind(
        &self,
        addrs: &[u64],
        lens: &[u64],
        buffer: &Bytes,
    ) -> Result<(), VtError> {
        for (start, run) in runs(addrs, lens, buffer.len()) {
            debug_assert!(self.is_own(start, &run), "only allocated space is written");
            self.volume.write_behind(start, &buffer.slice(run))?;
        }
        Ok(())
    }

    /// Everything that the table owns, in order of addresses. It is the table's from now on.
    ///
    /// # Errors
    /// The extent that is owned twice: an index that blocks were stitched from is damaged.
    pub(super) fn take_runs(&mut self) -> Result<Vec<Run>, Run> {
        let own = self.owned.iter().map(|e| Run {
            addr: e.addr,
            len_bytes: e.len,
        });
        let mut all: Vec<Run> = self.stitched.iter().copied().chain(own).collect();
        all.sort_unstable();
        let mut runs: Vec<Run> = Vec::with_capacity(all.len());
        debug_assert!(
            all.iter().all(|run| run.len_bytes > 0),
            "extents have a length"
        );
        for next in all {
            match runs.last_mut() {
                Some(before) if before.end() > next.addr => return Err(next),
                Some(before) if before.end() == next.addr => before.len_bytes += next.len_bytes,
                _ => runs.push(next),
            }
        }
        debug_assert!(
            runs.is_sorted_by(|run, next| run.end() < next.addr),
            "extents are in order and do not touch"
        );
        self.owned.clear();
        // They stay in memory as long as the table.
        runs.shrink_to_fit();
        Ok(runs)
    }
}

/// Blocks that follow each other on the device, as they do in a buffer: the address of each such
/// run, and where in the buffer it is.
fn runs(addrs: &[u64], lens: &[u64], buffer_len: usize) -> Vec<(u64, Range<usize>)> {
    assert_eq!(addrs.len(), lens.len(), "every block has a place");
    let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
    let mut at = 0;
    for (addr, len) in addrs.iter().zip(lens) {
        let next = at + usize::try_from(*len).expect("a block is bounded");
        debug_assert!(at < next, "a block has a length");
        match runs.last_mut() {
            Some((start, run)) if *start + run.len() as u64 == *addr => run.end = next,
            _ => runs.push((*addr, at..next)),
        }
        at = next;
    }
    assert_eq!(at, buffer_len, "all blocks are in the buffer");
    runs
}

impl Drop for Places {
    fn drop(&mut self) {
        if !self.owned.is_empty()
            && let Some(under_way) = &self.under_way
        {
            // It has failed.
            under_way.end();
        }
        self.volume.zones().free(&self.owned);
    }
}
