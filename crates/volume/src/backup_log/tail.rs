//! The log's last page, kept in memory, so that the log is written in whole pages.
//!
//! A write of a few bytes into a page that the page cache has dropped would first read the page. A
//! device without a page cache takes only whole sectors. So every write begins and ends at a page
//! boundary, and repeats the older bytes of its first page.
//!
//! Synced bytes survive, although their sectors are written again:
//! - the bytes before the log's end are the same in memory, on the medium and in the write;
//! - a sector is written wholly or not at all ([`stitch_device::SECTOR_BYTES`], or a multiple), and
//!   sectors that a sync has filled are the same before and after, so any mix of sectors holds all
//!   synced bytes;
//! - beyond the end a page keeps its bytes, or holds zeros; live records of a nearly full ring are
//!   always kept.
//!
//! A page cache above a file or a disk writes whole pages back in any case.
//!
//! While much is appended between syncs, the last pages are mapped memory (`mapped`).

use super::PAGE_BYTES;
use super::mapped::{Flow, Mapped};
use crate::VolumeError;
use crate::core::Core;
use crate::window::usize_from;
use stitch_base::Lsn;

const PAGE: usize = 4096;

type Page = Box<[u8; PAGE]>;

/// The ring that the pages belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<'a> {
    pub(super) core: &'a Core,
    pub(super) at: u64,
    pub(super) len_bytes: u64,
    /// Start of the live records; one ring length further on, pages hold them.
    pub(super) start: Lsn,
}

impl Ring<'_> {
    pub(super) fn addr(&self, page: Lsn) -> u64 {
        debug_assert!(page.0.is_multiple_of(PAGE_BYTES), "the start of a page");
        self.at + page.0 % self.len_bytes
    }

    /// Reports whether a page has live records beyond the log's end.
    pub(super) fn is_shared(&self, page: Lsn) -> bool {
        debug_assert!(page.0.is_multiple_of(PAGE_BYTES), "the start of a page");
        page.0 + PAGE_BYTES > self.start.0 + self.len_bytes
    }

    /// Returns the number of bytes from the start of a page to the next live record, or to the
    /// ring's end: whole pages.
    pub(super) const fn room_from(&self, page: Lsn) -> u64 {
        let to_live = (self.start.0 + self.len_bytes).saturating_sub(page.0);
        let to_end = self.len_bytes - page.0 % self.len_bytes;
        let room = if to_live < to_end { to_live } else { to_end };
        debug_assert!(room <= self.len_bytes, "no more than the ring");
        room - room % PAGE_BYTES
    }

    fn read(&self, page: Lsn) -> Result<Page, VolumeError> {
        debug_assert!(
            page.0 % self.len_bytes + PAGE_BYTES <= self.len_bytes,
            "pages do not straddle"
        );
        let mut bytes = Box::new([0; PAGE]);
        self.core.read(self.addr(page), &mut bytes[..])?;
        Ok(bytes)
    }

    /// Returns a page in which no record of this life begins: its bytes behind the log's end do not
    /// matter, unless they are live.
    fn next(&self, page: Lsn) -> Result<Page, VolumeError> {
        match self.is_shared(page) {
            true => self.read(page),
            false => Ok(Box::new([0; PAGE])),
        }
    }
}

/// The last page of the log.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Position and contents of the page; `None` until it was needed once.
    page: Option<(Lsn, Page)>,
    /// The mapped pages at the log's end; if any, `page` is an older one.
    mapped: Option<Mapped>,
    flow: Flow,
    /// Bytes written to fill up pages.
    padding_bytes: u64,
}

impl Tail {
    /// Writes `pieces` at `lsn`, in whole pages. The bytes before `lsn` in its page are repeated.
    /// The bytes behind the pieces in the last page stay or become zeros.
    pub(super) fn write(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        let len = bytes_of(pieces);
        debug_assert!(
            lsn.0 + len <= ring.start.0 + ring.len_bytes,
            "live records are not written over"
        );
        let (first, last) = pages_of(ring, lsn, len);
        self.flow.appended(len);
        if self.maps(ring, lsn, len)? {
            let mapped = self.mapped.as_mut().expect("just seen");
            self.padding_bytes = self.padding_bytes.saturating_sub(len);
            return mapped.write(ring, lsn, pieces);
        }
        if first == last {
            return self.write_in_page(ring, lsn, pieces);
        }
        self.flow.make_ready(ring, lsn, len)?;
        let later = self.write_over(ring, lsn, pieces)?;
        self.page = later.or(self.page.take());
        let (page, bytes) = self.page.as_mut().expect("just written");
        let end = usize_from(lsn.0 + bytes_of(pieces) - page.0);
        let begin = usize_from(lsn.0.max(page.0) - page.0);
        debug_assert!(
            begin < end && end <= PAGE,
            "the record ends in its last page"
        );
        copy_end(pieces, &mut bytes[begin..end]);
        Ok(())
    }

    /// Prepares for a sync that is about to be made.
    pub(super) const fn synced(&mut self) {
        self.flow.synced();
    }

    /// Writes a mark as [`Self::write`] does; the next write overwrites it.
    pub(super) fn write_mark(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        mark: &[u8],
    ) -> Result<(), VolumeError> {
        match &mut self.mapped {
            Some(mapped) if mapped.holds(ring, lsn, mark.len() as u64) => {
                mapped.write(ring, lsn, &[mark])
            }
            _ => {
                self.unmap(lsn)?;
                self.write_over(ring, lsn, &[mark]).map(drop)
            }
        }
    }

    /// Reports whether `len` bytes at `lsn` go to mapped pages. Unmaps pages that do not fit.
    fn maps(&mut self, ring: &Ring<'_>, lsn: Lsn, len: u64) -> Result<bool, VolumeError> {
        if let Some(mapped) = &self.mapped
            && mapped.holds(ring, lsn, len)
        {
            return Ok(true);
        }
        self.unmap(lsn)?;
        if !self.flow.wants_window(ring, len) {
            return Ok(false);
        }
        self.hold(ring, page_of(lsn))?;
        let (page, bytes) = self.page.as_ref().expect("just read");
        let first = &bytes[..usize_from(lsn.0 - page.0)];
        debug_assert!(self.mapped.is_none(), "one window at a time");
        self.mapped = self.flow.open(ring, lsn, len, first)?;
        self.padding_bytes += self.mapped.as_ref().map_or(0, Mapped::len_bytes);
        Ok(self.mapped.is_some())
    }

    /// Unmaps the pages: the log ends at `end`, and its last page is kept in memory again.
    pub(super) fn unmap(&mut self, end: Lsn) -> Result<(), VolumeError> {
        if let Some(mapped) = self.mapped.take() {
            let mut bytes = Box::new([0; PAGE]);
            let page = mapped.last_page(end, &mut bytes[..])?;
            debug_assert!(page <= end, "the page holds the log's end, or ends there");
            self.page = Some((page, bytes));
        }
        Ok(())
    }

    /// Writes less than a page: copies the pieces into the page in memory and writes it. After a
    /// failure nothing is written any more, so the copy does not matter.
    fn write_in_page(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        self.hold(ring, page_of(lsn))?;
        let (page, bytes) = self.page.as_mut().expect("just read");
        let begin = usize_from(lsn.0 - page.0);
        let len = bytes_of(pieces);
        debug_assert!(
            *page == page_of(lsn),
            "the page in memory is that of the record"
        );
        debug_assert!(
            begin + usize_from(len) <= PAGE,
            "the record lies in the page"
        );
        copy_end(pieces, &mut bytes[begin..begin + usize_from(len)]);
        ring.core.write(ring.addr(*page), &[&bytes[..]])?;
        self.padding_bytes += PAGE_BYTES - len;
        Ok(())
    }

    /// Writes bytes that the next write overwrites: the log's end stays. Returns the last page as
    /// it was before, if it is not the first.
    fn write_over(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<Option<(Lsn, Page)>, VolumeError> {
        let len = bytes_of(pieces);
        let end = lsn.0 + len;
        let (first, last) = pages_of(ring, lsn, len);
        self.hold(ring, first)?;
        let (_, before) = self.page.as_ref().expect("just read");
        let later = match last == first {
            true => None,
            false => Some((last, ring.next(last)?)),
        };
        let after = later.as_ref().map_or(before, |(_, bytes)| bytes);
        let before = &before[..usize_from(lsn.0 - first.0)];
        let after = &after[usize_from(end - last.0)..];
        let all = before.len() as u64 + len + after.len() as u64;
        debug_assert!(all.is_multiple_of(PAGE_BYTES), "whole pages are written");
        between(before, pieces, after, |all| {
            ring.core.write(ring.addr(first), all)
        })?;
        self.padding_bytes += (before.len() + after.len()) as u64;
        Ok(later)
    }

    pub(super) const fn padding_bytes(&self) -> u64 {
        self.padding_bytes
    }

    /// Loads the page at `first` into memory.
    fn hold(&mut self, ring: &Ring<'_>, first: Lsn) -> Result<(), VolumeError> {
        let bytes = match &self.page {
            Some((page, _)) if *page == first => return Ok(()),
            Some((page, _)) => {
                assert!(*page < first, "the log's end does not go back");
                ring.next(first)?
            }
            None => ring.read(first)?,
        };
        debug_assert!(first.0.is_multiple_of(PAGE_BYTES), "the start of a page");
        self.page = Some((first, bytes));
        Ok(())
    }
}

/// Returns the first and the last page of `len` bytes at `lsn`.
fn pages_of(ring: &Ring<'_>, lsn: Lsn, len: u64) -> (Lsn, Lsn) {
    assert!(len > 0, "something is written");
    assert!(
        lsn.0 % ring.len_bytes + len <= ring.len_bytes,
        "records do not straddle"
    );
    (page_of(lsn), page_of(Lsn(lsn.0 + len - 1)))
}

pub(super) fn bytes_of(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Calls `with` with `pieces` between two others. A few of them need no allocation.
pub(super) fn between<T>(
    first: &[u8],
    pieces: &[&[u8]],
    last: &[u8],
    use_all: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    const FEW: usize = 8;
    let count = pieces.len() + 2;
    let mut few = [&[][..]; FEW];
    let mut many = Vec::new();
    let all = if count <= FEW {
        &mut few[..count]
    } else {
        many.resize(count, &[][..]);
        &mut many[..]
    };
    debug_assert_eq!(all.len(), count, "each piece has a place");
    all[0] = first;
    all[1..count - 1].copy_from_slice(pieces);
    all[count - 1] = last;
    use_all(all)
}

/// Returns the position at which the page of `lsn` begins.
pub(super) const fn page_of(lsn: Lsn) -> Lsn {
    Lsn(lsn.0 - lsn.0 % PAGE_BYTES)
}

/// Copies the end of all `pieces` to `out`.
fn copy_end(pieces: &[&[u8]], out: &mut [u8]) {
    let mut left = out.len();
    for piece in pieces.iter().rev() {
        let len = piece.len().min(left);
        out[left - len..left].copy_from_slice(&piece[piece.len() - len..]);
        left -= len;
    }
    debug_assert_eq!(left, 0, "the pieces are at least as long");
}

#[cfg(test)]
mod tests;
