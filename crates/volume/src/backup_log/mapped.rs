//! The log's end as memory, while much is appended between syncs.
//!
//! An append of a hundred bytes is a call of the operating system that copies a page (`tail`), and takes longer
//! than all else that a small commit does. Where the device can share some of its pages with us
//! ([`stitch_device::Device::open_window`]), the log's next pages are written once, as zeros behind what the first
//! holds, and records are copied into them.
//!
//! - To a killed process, a power cut and a replay these are the writes of `tail`: whole pages that hold
//!   what they held, records, and zeros.
//! - The pages never hold live records of the ring's other end, and never go across its end.
//! - A sync takes the zeros to the medium too. So there is a window only where a multiple of it was appended
//!   since the last sync.

use super::PAGE_BYTES;
use super::tail::{Ring, bytes_of, page_of};
use crate::VolumeError;
use crate::window::usize_from;
use stitch_base::Lsn;
use stitch_device::Window;

const WINDOW_BYTES_MAX: u64 = 64 << 10;
/// A window is at most such a part of the ring.
const RING_PARTS: u64 = 128;
/// So many windows were filled since the last sync before there is one.
const WINDOWS_BEFORE: u64 = 2;

/// Pages of the log that are memory.
#[derive(Debug)]
pub(super) struct Mapped {
    from: Lsn,
    len_bytes: u64,
    /// Where they are on the device.
    addr: u64,
    window: Box<dyn Window>,
}

/// What decides whether there is a window.
#[derive(Debug, Default)]
pub(super) struct Flow {
    unsynced_bytes: u64,
    is_refused: bool,
}

/// Length of a window in this ring.
fn window_bytes(ring: &Ring<'_>) -> u64 {
    let part = ring.len_bytes / RING_PARTS;
    WINDOW_BYTES_MAX.min(part - part % PAGE_BYTES)
}

impl Flow {
    /// Takes note of an append.
    pub(super) const fn appended(&mut self, len: u64) {
        self.unsynced_bytes = self.unsynced_bytes.saturating_add(len);
    }

    /// Takes note of a sync.
    pub(super) const fn synced(&mut self) {
        self.unsynced_bytes = 0;
    }

    /// True if it is worth while to open a window for an append of so many bytes.
    pub(super) fn wants_window(&self, ring: &Ring<'_>, len: u64) -> bool {
        let window = window_bytes(ring);
        !self.is_refused && 4 * len <= window && self.unsynced_bytes >= WINDOWS_BEFORE * window
    }

    /// Opens one at the page of `lsn`, which holds `first` up to there. `None` if it would not hold `len` bytes, or
    /// the device has none.
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
    /// True if it holds `len` bytes at `lsn`, and is still where the ring is.
    pub(super) fn holds(&self, ring: &Ring<'_>, lsn: Lsn, len: u64) -> bool {
        let is_within = self.from <= lsn && lsn.0 + len <= self.from.0 + self.len_bytes;
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

    /// Reads the page that ends before or holds `end`: the log's last one.
    pub(super) fn last_page(&self, end: Lsn, out: &mut [u8]) -> Result<Lsn, VolumeError> {
        assert!(self.from <= end, "the log's end does not go back");
        let last = Lsn(self.from.0 + self.len_bytes - PAGE_BYTES);
        let page = page_of(end).min(last);
        self.window.read(usize_from(page.0 - self.from.0), out)?;
        Ok(page)
    }

    pub(super) const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests;
