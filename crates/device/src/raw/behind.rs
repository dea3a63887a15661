//! Writes that nobody waits for: past the page cache, and made while the caller goes on.
//!
//! 1. A write is handed to the kernel with its memory, and is under way from then on. A killed process does not
//!    take it back; see [`super::aio`].
//! 2. Whoever reads or writes the same bytes waits for it, so that all see what was written.
//! 3. A sync waits for all. One that failed is known for as long as the device is open: its bytes are errors
//!    to read, and every sync says so, as they may be neither what was written nor what was there before.
//!
//! What cannot be done so is refused, and is for the other way. The page cache has no part in it: what it was given
//! of these pages meanwhile, by whomever, it forgets afterwards.
//!
//! Locks: `reaper`, then `state`. A request is in the list before `state` is let go of, so that each event finds it.

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

/// Most that is under way.
const BYTES_MAX: usize = 4 << 20;
const DEPTH: u32 = 16;
/// Shorter ones are not worth a request of their own: they go through the page cache ([`super::strip`]).
pub(super) const LEN_MIN: usize = 64 << 10;

/// A write that is under way.
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

/// What could not be written, and why.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    range: Range<u64>,
    errno: Errno,
}

impl Lost {
    /// As who needs the bytes is told.
    pub(super) fn error(&self, name: &str) -> DeviceError {
        let len_bytes = self.range.end - self.range.start;
        Request::new("write", self.range.start, len_bytes).failed(name, self.errno)
    }
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    last_ticket: u64,
    failed: Vec<Lost>,
}

impl State {
    fn is_under_way(&self, range: &Range<u64>) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| share_pages(&slot.range(), range))
    }
}

/// The writes behind of a device.
#[derive(Debug)]
pub(super) struct Behind {
    /// Opened with `O_DIRECT`.
    file: File,
    /// Made when it is first needed; `None` if it cannot be had.
    context: OnceLock<Option<Context>>,
    state: Mutex<State>,
    /// Held by who takes events.
    reaper: Mutex<()>,
    /// Something is under way, or has failed.
    is_busy: AtomicBool,
}

impl Behind {
    /// `file` was opened with `O_DIRECT`.
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            context: OnceLock::new(),
            state: Mutex::default(),
            reaper: Mutex::default(),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Hands over a write of whole sectors. False if it is for the other way.
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
        // SAFETY: the bytes are in the list until the event is taken, or after the context was dropped: `context` is
        // the first field. `Bytes` do not change and do not move.
        let submitted = unsafe { context.write(&self.file, offset, bytes, ticket) };
        if submitted.is_err() {
            return false;
        }
        self.is_busy.store(true, Ordering::Release);
        state.slots.push(slot(ticket));
        true
    }

    /// Waits until nothing of the pages of a range is under way.
    pub(super) fn wait(&self, range: &Range<u64>) {
        if self.is_busy.load(Ordering::Acquire) {
            self.wait_while(|state| state.is_under_way(range));
        }
    }

    /// As [`Self::wait`], for who reads the range.
    ///
    /// # Errors
    /// A write to it has failed.
    pub(super) fn settle(&self, range: &Range<u64>) -> Result<(), Lost> {
        if !self.is_busy.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait(range);
        let state = self.state.lock();
        let lost = state.failed.iter().find(|l| share_pages(&l.range, range));
        lost.map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Waits for all writes that were handed over before.
    ///
    /// # Errors
    /// One has failed, now or at any time.
    pub(super) fn sync(&self) -> Result<(), Lost> {
        if !self.is_busy.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = self.state.lock().last_ticket;
        self.wait_while(|state| state.slots.iter().any(|slot| slot.ticket <= last));
        let state = self.state.lock();
        state.failed.first().map_or(Ok(()), |l| Err(l.clone()))
    }

    /// Waits while something is so, which ends when nothing is under way.
    fn wait_while(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            if !is_so(&self.state.lock()) {
                return;
            }
            let reaper = self.reaper.lock();
            // Whoever had the lock before may have taken the last event.
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
            // In the list until all of it is written.
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

    /// Writes what a write has left.
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
