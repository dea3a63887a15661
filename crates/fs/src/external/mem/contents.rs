//! Contents of a plain file in memory: pages that were written, and holes.

use super::FileChange;
use std::collections::BTreeMap;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;

pub(super) const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// The bytes of a plain file.
#[derive(Clone, Default)]
pub(super) struct MemContents {
    pub(super) len: u64,
    /// Those that were written; others are holes.
    pub(super) pages: BTreeMap<u64, Arc<[u8]>>,
}

impl MemContents {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut offset = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = usize::try_from(offset % PAGE).expect("in a page");
            let room = usize::try_from(PAGE).expect("small") - skip;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            let mut page = self.page(offset / PAGE);
            page[skip..skip + piece.len()].copy_from_slice(piece);
            self.pages.insert(offset / PAGE, page.into());
            offset += piece.len() as u64;
            rest = after;
        }
        debug_assert_eq!(offset, at + bytes.len() as u64, "all of it is written");
        self.len = self.len.max(offset);
        self.check();
    }

    /// Checks that pages are whole and begin below the end.
    pub(super) fn check(&self) {
        let Some((last, page)) = self.pages.last_key_value() else {
            return;
        };
        debug_assert!(
            *last < self.len.div_ceil(PAGE),
            "no page lies beyond the end"
        );
        debug_assert_eq!(page.len() as u64, PAGE, "pages are whole");
        debug_assert!(
            self.pages.len() as u64 <= self.len.div_ceil(PAGE),
            "a page has one number"
        );
    }

    fn page(&self, number: u64) -> Vec<u8> {
        debug_assert!(
            self.pages
                .get(&number)
                .is_none_or(|page| page.len() as u64 == PAGE),
            "pages are whole"
        );
        let page = self.pages.get(&number).map(|page| page.to_vec());
        page.unwrap_or_else(|| vec![0; usize::try_from(PAGE).expect("small")])
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.punch(len, self.len - len);
            // The last page has zeros by now, and would be told as data once the file grows.
            drop(self.pages.split_off(&len.div_ceil(PAGE)));
        }
        self.len = len;
        self.check();
    }

    /// Whole pages become holes, others get zeros.
    fn punch(&mut self, at: u64, len: u64) {
        debug_assert!(at.checked_add(len).is_some(), "a range of bytes");
        let end = at + len;
        let numbers = self.pages.range(at / PAGE..end.div_ceil(PAGE));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        for number in numbers {
            let start = number * PAGE;
            let from = at.max(start) - start;
            let to = end.min(start + PAGE) - start;
            debug_assert!(from <= to && to <= PAGE, "a part of the page");
            if to - from == PAGE {
                self.pages.remove(&number);
                continue;
            }
            let mut page = self.page(number);
            let within = |offset: u64| usize::try_from(offset).expect("in a page");
            page[within(from)..within(to)].fill(0);
            self.pages.insert(number, page.into());
        }
    }

    pub(super) fn apply(&mut self, change: &FileChange) {
        match change {
            FileChange::Write { at, bytes } => self.write(*at, bytes),
            FileChange::SetLen(len) => self.set_len(*len),
            FileChange::Allocate => {}
            FileChange::Punch { at, len } => self.punch(*at, *len),
        }
    }

    pub(super) fn tear(&mut self, at: u64, bytes: &[u8], rng: &mut Rng) {
        let mut offset = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = usize::try_from(offset % SECTOR as u64).expect("in a sector");
            let (piece, after) = rest.split_at((SECTOR - skip).min(rest.len()));
            if rng.one_in(2) {
                self.write(offset, piece);
            }
            offset += piece.len() as u64;
            rest = after;
            debug_assert!(piece.len() <= SECTOR, "sectors are torn apart, and no less");
        }
        debug_assert_eq!(
            offset,
            at + bytes.len() as u64,
            "each sector was decided on"
        );
    }

    pub(super) fn read(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> usize {
        let before = out.len();
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        let mut at = offset;
        let end = offset + len as u64;
        while at < end {
            let page = self.page(at / PAGE);
            let stop = end.min((at / PAGE + 1) * PAGE);
            let within = |offset: u64| usize::try_from(offset).expect("in a page");
            out.extend_from_slice(
                &page[within(at % PAGE)..within(stop - 1 - at / PAGE * PAGE) + 1],
            );
            at = stop;
        }
        debug_assert_eq!(out.len() - before, len, "all bytes up to the end");
        len
    }
}
