//! The log's end as mapped memory, while much is appended between syncs.
//!
//! An append of 100 bytes is a system call that copies a page (`tail`), and takes longer than the
//! rest of a small commit. If the device can share pages with this process
//! ([`stitch_device::Device::open_window`]), the next pages of the log are written once as zeros,
//! and records are copied into them.
//!
//! - After a kill or a power cut, and for a replay, the medium is the same as with the writes of
//!   `tail`: whole pages that hold older records, new records, and zeros.
//! - The pages never hold live records of the ring's other end, and never go across its end.
//! - A page fault costs as much as a system call. So records of 1 KiB and more are written by
//!   system calls, to pages that were prepared as zeros ([`stitch_device::Device::prepare`]).
//! - A sync writes the zeros to the medium too. So a window is opened only if a multiple of its
//!   length was appended since the last sync.

use super::PAGE_BYTES;
use super::tail::{Ring, bytes_of, page_of};
use crate::VolumeError;
use crate::window::usize_from;
use stitch_base::Lsn;
use stitch_device::Window;

const WINDOW_BYTES_MAX: u64 = 64 << 10;
/// A window is at most one part in this many of the ring.
const RING_PARTS: u64 = 128;
/// Records from this length on are not copied to a new window.
const LONG_BYTES: u64 = 1 << 10;
/// Length of the log that is prepared for them at once, up to a multiple of it.
const READY_BYTES: u64 = 128 << 10;
/// A window is opened after this many lengths of it were appended since the last sync.
const WINDOWS_BEFORE: u64 = 2;

/// Mapped pages of the log.
#[derive(Debug)]
pub(super) struct Mapped {
    from: Lsn,
    len_bytes: u64,
    /// Offset of the pages on the device.
    addr: u64,
    window: Box<dyn Window>,
}

/// Statistics that decide whether a window is opened.
#[derive(Debug, Default)]
pub(super) struct Flow {
    unsynced_bytes: u64,
    is_refused: bool,
    /// Position up to which the log is prepared for writes.
    ready: Lsn,
}

/// Length of a window in this ring.
fn window_bytes(ring: &Ring<'_>) -> u64 {
    let part = ring.len_bytes / RING_PARTS;
    debug_assert!(
        ring.len_bytes.is_multiple_of(PAGE_BYTES),
        "a ring is whole pages"
    );
    WINDOW_BYTES_MAX.min(part - part % PAGE_BYTES)
}

impl Flow {
    /// Counts an append.
    pub(super) const fn appended(&mut self, len: u64) {
        self.unsynced_bytes = self.unsynced_bytes.saturating_add(len);
    }

    /// Resets the counters at a sync.
    pub(super) const fn synced(&mut self) {
        self.unsynced_bytes = 0;
    }

    /// Reports whether a window is worthwhile for an append of `len` bytes.
    pub(super) fn wants_window(&self, ring: &Ring<'_>, len: u64) -> bool {
        let window = window_bytes(ring);
        let is_short = len < LONG_BYTES && 4 * len <= window;
        !self.is_refused && is_short && self.unsynced_bytes >= WINDOWS_BEFORE * window
    }

    /// Prepares the pages behind that of `lsn` for an append of `len` bytes, if that is worthwhile.
    pub(super) fn make_ready(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        len: u64,
    ) -> Result<(), VolumeError> {
        let is_wanted = (LONG_BYTES..=READY_BYTES / 4).contains(&len);
        let is_steady = self.unsynced_bytes >= WINDOWS_BEFORE * READY_BYTES;
        if !is_wanted || !is_steady || lsn.0 + len <= self.ready.0 {
            return Ok(());
        }
        let from = Lsn(lsn.0.next_multiple_of(PAGE_BYTES));
        let to_multiple = READY_BYTES - ring.addr(from) % READY_BYTES;
        let bytes = to_multiple.min(ring.room_from(from));
        debug_assert!(bytes.is_multiple_of(PAGE_BYTES), "whole pages are prepared");
        debug_assert!(from >= lsn, "what was written is not prepared again");
        self.ready = Lsn(from.0 + bytes);
        match bytes {
            0 => Ok(()),
            bytes => ring.core.prepare(ring.addr(from), bytes),
        }
    }

    /// Opens a window at the page of `lsn`, which holds `first` up to there. Returns `None` if the
    /// window would not hold `len` bytes, or the device has none.
    pub(super) fn open(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        len: u64,
        first: &[u8],
    ) -> Result<Option<Mapped>, VolumeError> {
        let from = page_of(lsn);
        let len_bytes = window_bytes(ring).min(ring.room_from(from));
        if lsn.0 + len > from.0 + len_bytes {
            return Ok(None);
        }
        let addr = ring.addr(from);
        debug_assert_eq!(first.len() as u64, lsn.0 - from.0, "the page up to there");
        debug_assert!(
            len_bytes.is_multiple_of(PAGE_BYTES),
            "whole pages are mapped"
        );
        let opened = ring.core.open_window(addr, usize_from(len_bytes), first)?;
        self.is_refused = opened.is_none();
        Ok(opened.map(|window| Mapped {
            from,
            len_bytes,
            addr,
            window,
        }))
    }
}

impl Mapped {
    /// Reports whether the window covers `len` bytes at `lsn`, and the ring has not moved.
    pub(super) fn holds(&self, ring: &Ring<'_>, lsn: Lsn, len: u64) -> bool {
        let is_within = self.from <= lsn && lsn.0 + len <= self.from.0 + self.len_bytes;
        debug_assert!(
            self.len_bytes.is_multiple_of(PAGE_BYTES),
            "whole pages are mapped"
        );
        is_within && ring.addr(self.from) == self.addr
    }

    /// Copies `pieces` to `lsn`.
    pub(super) fn write(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        debug_assert!(self.holds(ring, lsn, bytes_of(pieces)), "it fits");
        let at = usize_from(lsn.0 - self.from.0);
        ring.core.write_window(&mut *self.window, at, pieces)
    }

    /// Reads the log's last page: the one that holds `end` or ends there.
    pub(super) fn last_page(&self, end: Lsn, out: &mut [u8]) -> Result<Lsn, VolumeError> {
        assert!(self.from <= end, "the log's end does not go back");
        let last = Lsn(self.from.0 + self.len_bytes - PAGE_BYTES);
        let page = page_of(end).min(last);
        debug_assert_eq!(out.len() as u64, PAGE_BYTES, "one page");
        debug_assert!(page >= self.from, "the page is mapped");
        self.window.read(usize_from(page.0 - self.from.0), out)?;
        Ok(page)
    }

    pub(super) const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests;
