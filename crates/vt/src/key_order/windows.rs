//! How scattered the values of a table are, by its index alone.
//!
//! A *window* is 1 MiB of values that follow each other in key order. It is *scattered* if it lies
//! in more than four extents: a value begins an extent where it does not follow the one before it
//! on the medium.
//!
//! ```text
//! keys      a  b  c  d  e  f        windows of six values
//! medium    0  1  9  3  4  5        extents 0..2, 9, 3..6
//! ```
//!
//! Of a key with several versions only the newest counts: a scan of the present reads no other, and
//! what only a snapshot sees is about to go.

use crate::VtError;
use crate::runs::union;
use crate::table::IndexCursor;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::Run;

/// Bytes of values in a window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;
/// A window may lie in one extent for so many bytes.
const EXTENT_BYTES: u64 = 256 << 10;
/// This many extents are no scatter, however short the window is: it may lie across the end of a
/// zone.
const EXTENTS_MIN: u64 = 2;

/// The windows of a table: `add* finish`.
///
/// Invariant: extents are kept of scattered windows, up to a limit, and the current window has
/// extents if it has bytes.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Most bytes of scattered windows whose extents are kept.
    kept_bytes_max: u64,
    /// Bytes of all scattered windows.
    scattered_bytes: u64,
    /// Bytes of those whose extents are kept.
    kept_bytes: u64,
    kept: Vec<Run>,
    /// The window that is not complete, by extent, in key order.
    current: Vec<Run>,
    current_bytes: u64,
    /// Key of the last value.
    key: Vec<u8>,
}

/// A table's scattered windows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scattered {
    /// Bytes of all scattered windows.
    pub(super) bytes: u64,
    /// Bytes of the first of them, up to a limit.
    pub(super) kept_bytes: u64,
    /// The extents of these, by address.
    pub(super) extents: Vec<Run>,
}

impl Windows {
    /// Returns windows without values. Of the first scattered ones, extents are kept.
    pub(super) fn keeping(kept_bytes_max: u64) -> Self {
        Self {
            kept_bytes_max,
            ..Self::default()
        }
    }

    /// Adds all values of an index.
    ///
    /// # Errors
    /// [`VtError`] where the index cannot be read.
    pub(super) fn of_index(mut self, mut index: IndexCursor) -> Result<Scattered, VtError> {
        while let Some(entry) = index.next()? {
            self.add(&entry);
        }
        Ok(self.finish())
    }

    /// Adds the next block of a table.
    fn add(&mut self, entry: &IndexEntry) {
        if !entry.is_value || (entry.last == self.key && !self.key.is_empty()) {
            return;
        }
        if self.current_bytes >= WINDOW_BYTES {
            self.end_window();
        }
        self.key.clear();
        self.key.extend_from_slice(&entry.last);
        let run = entry.block.run();
        self.current_bytes += run.len_bytes;
        debug_assert!(run.len_bytes > 0, "a block has a length");
        match self.current.last_mut() {
            Some(last) if last.end() == run.addr => last.len_bytes += run.len_bytes,
            _ => self.current.push(run),
        }
        debug_assert!(self.holds());
    }

    fn end_window(&mut self) {
        let bytes = std::mem::take(&mut self.current_bytes);
        let extents = self.current.len() as u64;
        debug_assert!(extents <= bytes, "an extent has a length");
        debug_assert_eq!(
            self.current.iter().map(|run| run.len_bytes).sum::<u64>(),
            bytes,
            "a window has the bytes of its extents"
        );
        if extents <= bytes.div_ceil(EXTENT_BYTES).max(EXTENTS_MIN) {
            self.current.clear();
            return;
        }
        self.scattered_bytes += bytes;
        if self.kept_bytes + bytes <= self.kept_bytes_max {
            self.kept_bytes += bytes;
            self.kept.append(&mut self.current);
        } else {
            // What is kept follows each other.
            self.kept_bytes_max = self.kept_bytes;
        }
        self.current.clear();
        debug_assert!(self.holds());
    }

    fn holds(&self) -> bool {
        self.kept_bytes <= self.kept_bytes_max
            && self.kept_bytes <= self.scattered_bytes
            && self.current.is_empty() == (self.current_bytes == 0)
            && self.kept.is_empty() == (self.kept_bytes == 0)
    }

    fn finish(mut self) -> Scattered {
        self.end_window();
        debug_assert!(self.current.is_empty(), "all windows have ended");
        Scattered {
            bytes: self.scattered_bytes,
            kept_bytes: self.kept_bytes,
            extents: union(self.kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::{Seqno, TableId};
    use stitch_format::vt_index::BlockPtr;

    const PAGE: u64 = 4096;

    /// Adds pages at these page numbers, in key order.
    fn windows_of(pages: &[u64], kept_bytes_max: u64) -> Scattered {
        let mut windows = Windows::keeping(kept_bytes_max);
        for (key, page) in pages.iter().enumerate() {
            windows.add(&value(&(key as u64).to_be_bytes(), 7, *page));
        }
        windows.finish()
    }

    fn value(key: &[u8], seqno: u64, page: u64) -> IndexEntry {
        let block = BlockPtr {
            addr: page * PAGE,
            len_bytes: 4096,
            ..BlockPtr::default()
        };
        IndexEntry::value(key, Seqno(seqno), block, TableId(1), 4096)
    }

    /// A window in so many extents.
    fn window(extents: u64, first: u64) -> Vec<u64> {
        let step = |page: u64| page + page.min(extents - 1) * 10;
        (0..256).map(|page| first + step(page)).collect()
    }

    #[test]
    fn a_window_is_scattered_if_it_lies_in_more_than_four_extents() {
        for extents in 1..8 {
            let found = windows_of(&window(extents, 0), u64::MAX);
            let expected = if extents > 4 { WINDOW_BYTES } else { 0 };
            assert_eq!(found.bytes, expected, "{extents} extents");
            assert_eq!(found.kept_bytes, expected);
            let kept = if extents > 4 { extents } else { 0 };
            assert_eq!(found.extents.len() as u64, kept);
        }
    }

    #[test]
    fn short_windows_may_lie_in_two_extents() {
        assert_eq!(windows_of(&[5, 9], u64::MAX).bytes, 0);
        assert_eq!(windows_of(&[5, 9, 11], u64::MAX).bytes, 3 * PAGE);
        assert_eq!(windows_of(&[], u64::MAX).bytes, 0);
    }

    #[test]
    fn the_wrong_order_within_one_extent_is_scatter_too() {
        let backwards: Vec<u64> = (0..256).rev().collect();
        let found = windows_of(&backwards, u64::MAX);
        assert_eq!(found.bytes, WINDOW_BYTES);
        let whole = Run {
            addr: 0,
            len_bytes: WINDOW_BYTES,
        };
        assert_eq!(found.extents, [whole]);
    }

    #[test]
    fn extents_are_kept_up_to_the_limit_and_all_bytes_are_counted() {
        let windows = [
            window(9, 0),
            window(2, 1000),
            window(7, 2000),
            window(9, 3000),
        ];
        let found = windows_of(&windows.concat(), 2 * WINDOW_BYTES);
        assert_eq!(found.bytes, 3 * WINDOW_BYTES);
        assert_eq!(found.kept_bytes, 2 * WINDOW_BYTES);
        assert_eq!(found.extents.len(), 16);
        let found = windows_of(&windows.concat(), WINDOW_BYTES - 1);
        assert_eq!((found.bytes, found.kept_bytes), (3 * WINDOW_BYTES, 0));
    }

    #[test]
    fn older_versions_of_a_key_do_not_count() {
        let mut windows = Windows::keeping(u64::MAX);
        for key in 0..200u64 {
            windows.add(&value(&key.to_be_bytes(), 9, key));
            windows.add(&value(&key.to_be_bytes(), 5, 1000 + 7 * key));
        }
        assert_eq!(windows.finish().bytes, 0);
    }
}
