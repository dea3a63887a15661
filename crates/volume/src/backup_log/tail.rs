//! The log's last page, kept in memory, so that the log is written in whole pages.
//!
//! An append that writes a few bytes into a page that the page cache has dropped would have to wait
//! until the page is read; and a device without a page cache takes whole sectors only. So every
//! write begins and ends with a page, and repeats what the page holds already.
//!
//! That harms nothing that was synced, although those sectors are written again:
//! - the bytes before the log's end are the same in memory, on the medium and in the write;
//! - a sector comes out old or new ([`stitch_device::SECTOR_BYTES`], or a multiple), and where a
//!   sync has filled it both are the same, so any mix of sectors holds all that was synced;
//! - beyond the end a page holds what stood there, or zeros: never less than the live records that
//!   a ring which is nearly full has there.
//!
//! A page cache above a file or a disk writes whole pages back in any case.
//!
//! While much is appended between syncs, its pages are memory (`mapped`).

use super::PAGE_BYTES;
use super::mapped::{Flow, Mapped};
use crate::VolumeError;
use crate::core::Core;
use crate::window::usize_from;
use stitch_base::Lsn;

const PAGE: usize = 4096;

type Page = Box<[u8; PAGE]>;

/// Where the pages are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<'a> {
    pub(super) core: &'a Core,
    pub(super) at: u64,
    pub(super) len_bytes: u64,
    /// Where live records start: from one ring further on, pages hold them.
    pub(super) start: Lsn,
}

impl Ring<'_> {
    pub(super) fn addr(&self, page: Lsn) -> u64 {
        debug_assert!(page.0.is_multiple_of(PAGE_BYTES), "the start of a page");
        self.at + page.0 % self.len_bytes
    }

    /// True if a page has live records beyond the log's end in it.
    pub(super) fn is_shared(&self, page: Lsn) -> bool {
        page.0 + PAGE_BYTES > self.start.0 + self.len_bytes
    }

    /// Bytes from the start of a page to the next live record, or to the ring's end: whole pages.
    pub(super) const fn room_from(&self, page: Lsn) -> u64 {
        let to_live = (self.start.0 + self.len_bytes).saturating_sub(page.0);
        let to_end = self.len_bytes - page.0 % self.len_bytes;
        let room = if to_live < to_end { to_live } else { to_end };
        room - room % PAGE_BYTES
    }

    fn read(&self, page: Lsn) -> Result<Page, VolumeError> {
        let mut bytes = Box::new([0; PAGE]);
        self.core.read(self.addr(page), &mut bytes[..])?;
        Ok(bytes)
    }

    /// A page that no record of this life begins in: its bytes behind the log's end do not matter,
    /// unless they are live.
    fn next(&self, page: Lsn) -> Result<Page, VolumeError> {
        match self.is_shared(page) {
            true => self.read(page),
            false => Ok(Box::new([0; PAGE])),
        }
    }
}

/// The page that the log ends in.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Where the page begins, and what is in it; `None` until it was needed once.
    page: Option<(Lsn, Page)>,
    /// The pages that it ends in, where they are memory: then `page` is an older one.
    mapped: Option<Mapped>,
    flow: Flow,
    /// Bytes written beside those that were given: the rest of their pages.
    padding_bytes: u64,
}

impl Tail {
    /// Writes `pieces` at `lsn`, in whole pages. What was written before stands before `lsn`; what
    /// stands in the last page behind the pieces stays or becomes zeros.
    pub(super) fn write(
        &mut self,
        ring: &Ring<'_>,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        let len = bytes_of(pieces);
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
        copy_end(pieces, &mut bytes[begin..end]);
        Ok(())
    }

    /// Takes note of a sync that is about to be.
    pub(super) const fn synced(&mut self) {
        self.flow.synced();
    }

    /// As [`Self::write`], for a mark: the next write goes over it.
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

    /// True if `len` bytes at `lsn` go to pages that are memory. Those that are not right for it are given up.
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
        self.mapped = self.flow.open(ring, lsn, len, first)?;
        self.padding_bytes += self.mapped.as_ref().map_or(0, Mapped::len_bytes);
        Ok(self.mapped.is_some())
    }

    /// Gives up the pages that are memory: the log ends at `end`, and goes on in the page that it ends in.
    pub(super) fn unmap(&mut self, end: Lsn) -> Result<(), VolumeError> {
        if let Some(mapped) = self.mapped.take() {
            let mut bytes = Box::new([0; PAGE]);
            let page = mapped.last_page(end, &mut bytes[..])?;
            self.page = Some((page, bytes));
        }
        Ok(())
    }

    /// As [`Self::write`], of less than a page: the page in memory takes the pieces, and is written. If that
    /// fails nothing is written any more, so it does not matter that it was not.
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
        copy_end(pieces, &mut bytes[begin..begin + usize_from(len)]);
        ring.core.write(ring.addr(*page), &[&bytes[..]])?;
        self.padding_bytes += PAGE_BYTES - len;
        Ok(())
    }

    /// As [`Self::write`], for what the next write will go over: the log's end stays. Answers the
    /// last page if it is not the first, as it was before.
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
        between(before, pieces, after, |all| {
            ring.core.write(ring.addr(first), all)
        })?;
        self.padding_bytes += (before.len() + after.len()) as u64;
        Ok(later)
    }

    pub(super) const fn padding_bytes(&self) -> u64 {
        self.padding_bytes
    }

    /// Makes the page at `first` the one in memory.
    fn hold(&mut self, ring: &Ring<'_>, first: Lsn) -> Result<(), VolumeError> {
        let bytes = match &self.page {
            Some((page, _)) if *page == first => return Ok(()),
            Some((page, _)) => {
                assert!(*page < first, "the log's end does not go back");
                ring.next(first)?
            }
            None => ring.read(first)?,
        };
        self.page = Some((first, bytes));
        Ok(())
    }
}

/// The first and the last page of `len` bytes at `lsn`.
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

/// Does something with `pieces` between two others. A few of them take no memory.
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
    all[0] = first;
    all[1..count - 1].copy_from_slice(pieces);
    all[count - 1] = last;
    use_all(all)
}

/// Where the page of a position begins.
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
