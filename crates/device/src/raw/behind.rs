//! Asynchronous direct writes: the caller continues while the device writes.
//!
//! 1. A write is submitted to the kernel with its memory, and is then in flight. Killing the
//!    process does not cancel it; see [`super::aio`].
//! 2. A read or write of the same bytes waits for it, so that every caller sees the written bytes.
//! 3. A sync waits for all writes. A failed write is remembered for as long as the device is open.
//!    Reads of its bytes fail, since they may be neither the new nor the old ones, and so does
//!    every sync.
//!
//! A write that cannot be made this way is refused, and the caller makes it synchronously. The page
//! cache is not involved: pages of the range that it got meanwhile are dropped after the write.
//!
//! Locks: `reaper`, then `state`. A request enters the list before `state` is unlocked, so that
//! each event finds its request.

#![expect(
    unsafe_code,
    reason = "the kernel reads memory that is kept in a list meanwhile"
)]

use super::aio::{Context, Event};
use crate::DeviceError;
use crate::counter::Request;
use crate::positioned::{self, PAGE_BYTES};
use bytes::Bytes;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::sync::OnceLock;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// Most bytes in flight.
const BYTES_MAX: usize = 4 << 20;
const DEPTH: u32 = 16;
/// Shortest asynchronous write. Shorter ones go through the page cache ([`super::strip`]).
pub(super) const LEN_MIN: usize = 64 << 10;

/// A write in flight.
#[derive(Debug)]
struct Slot {
    ticket: u64,
    offset: u64,
    bytes: Bytes,
}

impl Slot {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

fn share_pages(one: &Range<u64>, other: &Range<u64>) -> bool {
    let (one, other) = (positioned::pages(one), positioned::pages(other));
    one.start < other.end && other.start < one.end
}

/// A failed write and its error.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    range: Range<u64>,
    errno: Errno,
}

impl Lost {
    /// Returns the error for a caller that needs the bytes.
    pub(super) fn error(&self, name: &str) -> DeviceError {
        let len_bytes = self.range.end - self.range.start;
        Request::new("write", self.range.start, len_bytes).failed(name, self.errno)
    }
}

#[derive(Debug, Default)]
struct BehindState {
    slots: Vec<Slot>,
    last_ticket: u64,
    failed: Vec<Lost>,
}

impl BehindState {
    fn is_under_way(&self, range: &Range<u64>) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| share_pages(&slot.range(), range))
    }
}

/// The asynchronous writes of a device.
#[derive(Debug)]
pub(super) struct Behind {
    /// Opened with `O_DIRECT`.
    file: File,
    /// Created on first use; `None` if the kernel refuses.
    context: OnceLock<Option<Context>>,
    state: Mutex<BehindState>,
    /// Held by the thread that takes events.
    reaper: Mutex<()>,
    /// True if a write is in flight, or has failed.
    is_busy: AtomicBool,
}

impl Behind {
    /// Creates the list of writes to `file`, which was opened with `O_DIRECT`.
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            context: OnceLock::new(),
            state: Mutex::default(),
            reaper: Mutex::default(),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Submits a write of whole sectors. Returns false if the caller must write synchronously.
    pub(super) fn write(&self, offset: u64, bytes: &Bytes) -> bool {
        let is_aligned = (bytes.as_ptr().addr() as u64).is_multiple_of(PAGE_BYTES);
        if !is_aligned || bytes.len() < LEN_MIN || bytes.len() > BYTES_MAX {
            return false;
        }
        let Some(context) = self.context.get_or_init(|| Context::new(DEPTH).ok()) else {
            return false;
        };
        let slot = |ticket| Slot {
            ticket,
            offset,
            bytes: bytes.clone(),
        };
        let (room, range) = (BYTES_MAX - bytes.len(), slot(0).range());
        self.wait_while(|state| {
            let under_way: usize = state.slots.iter().map(|slot| slot.bytes.len()).sum();
            let is_full = under_way > room || state.slots.len() >= DEPTH as usize;
            is_full || state.is_under_way(&range)
        });
        let mut state = self.state.lock();
        if !state.failed.is_empty() {
            return false;
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        // SAFETY: the list keeps the bytes until the event is taken. On drop, `context` goes first,
        // as the first field. `Bytes` neither change nor move.
        let submitted = unsafe { context.write(&self.file, offset, bytes, ticket) };
        if submitted.is_err() {
            return false;
        }
        self.is_busy.store(true, Ordering::Release);
        state.slots.push(slot(ticket));
        true
    }

    /// Waits until no write to the pages of a range is in flight.
    pub(super) fn wait(&self, range: &Range<u64>) {
        if self.is_busy.load(Ordering::Acquire) {
            self.wait_while(|state| state.is_under_way(range));
        }
    }

    /// Waits as [`Self::wait`] does, before a read of the range.
    ///
    /// # Errors
    /// A write to the range has failed.
    pub(super) fn wait_to_read(&self, range: &Range<u64>) -> Result<(), Lost> {
        if !self.is_busy.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait(range);
        let state = self.state.lock();
        let lost = state.failed.iter().find(|l| share_pages(&l.range, range));
        lost.map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Waits for all writes that were submitted before.
    ///
    /// # Errors
    /// Any write has failed since the device was opened.
    pub(super) fn sync(&self) -> Result<(), Lost> {
        if !self.is_busy.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = self.state.lock().last_ticket;
        self.wait_while(|state| state.slots.iter().any(|slot| slot.ticket <= last));
        let state = self.state.lock();
        state.failed.first().map_or(Ok(()), |l| Err(l.clone()))
    }

    /// Waits while `is_so` holds. It must not hold when no write is in flight.
    fn wait_while(&self, is_so: impl Fn(&BehindState) -> bool) {
        loop {
            if !is_so(&self.state.lock()) {
                return;
            }
            let reaper = self.reaper.lock();
            // The previous holder of the lock may have taken the last event.
            if !is_so(&self.state.lock()) {
                return;
            }
            let context = self.context.get().and_then(Option::as_ref);
            let events = context.expect("something is under way").events();
            self.take(&events);
            drop(reaper);
        }
    }

    fn take(&self, events: &[Event]) {
        for event in events {
            let mut state = self.state.lock();
            let found = state.slots.iter().position(|s| s.ticket == event.ticket);
            let slot = &state.slots[found.expect("an event is of a slot")];
            let (range, bytes) = (slot.range(), slot.bytes.clone());
            drop(state);
            // The write stays in the list until all of it is written.
            let ended = self.end(&range, &bytes, event.written());
            state = self.state.lock();
            state.slots.retain(|slot| slot.ticket != event.ticket);
            if let Err(errno) = ended {
                state.failed.push(Lost { range, errno });
            }
            if state.slots.is_empty() && state.failed.is_empty() {
                self.is_busy.store(false, Ordering::Release);
            }
        }
    }

    /// Writes the rest of a short write.
    fn end(
        &self,
        range: &Range<u64>,
        bytes: &[u8],
        written: Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let done = written?;
        if done < bytes.len() {
            let rest = &bytes[done..];
            positioned::write_all(&self.file, range.start + done as u64, &[rest])
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        positioned::forget(&self.file, range);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
