//! Sparse bytes in memory, in 4 KiB pages. Pages that were never written take no memory, and copies
//! share each page until one of them writes it.

use std::collections::BTreeMap;
use stitch_base::sync::Arc;

pub(crate) const PAGE_BYTES: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    pages: BTreeMap<u64, Arc<[u8; PAGE_BYTES]>>,
}

impl Pages {
    /// Copies bytes to `out`; bytes that were never written are zero.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for_each_page(offset, out.len(), |page, within, span| {
            match self.pages.get(&page) {
                Some(bytes) => {
                    out[span.clone()].copy_from_slice(&bytes[within..within + span.len()])
                }
                None => out[span].fill(0),
            }
        });
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_each_page(offset, bytes.len(), |page, within, span| {
            let len = span.len();
            if !self.pages.contains_key(&page) && bytes[span.clone()].iter().all(|&b| b == 0) {
                return;
            }
            let slot = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(slot)[within..within + len].copy_from_slice(&bytes[span]);
        });
    }

    /// Sets every byte of a range to `value`. Whole pages of zeros are freed.
    pub(crate) fn fill(&mut self, offset: u64, len_bytes: u64, value: u8) {
        let len = usize::try_from(len_bytes).expect("a range in memory");
        for_each_page(offset, len, |page, within, span| {
            if value == 0 && span.len() == PAGE_BYTES {
                self.pages.remove(&page);
                return;
            }
            let slot = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(slot)[within..within + span.len()].fill(value);
        });
    }

    /// Removes everything from `end` on, a multiple of the page length.
    pub(crate) fn cut(&mut self, end: u64) {
        assert!(end.is_multiple_of(PAGE_BYTES as u64), "cut between pages");
        self.pages.split_off(&(end / PAGE_BYTES as u64));
    }

    /// Start and bytes of every page that was written, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages
            .iter()
            .map(|(page, bytes)| (page * PAGE_BYTES as u64, &bytes[..]))
    }
}

/// Calls `body` with page number, offset in the page and the span of the request, page by page.
fn for_each_page(
    offset: u64,
    len: usize,
    mut body: impl FnMut(u64, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = usize::try_from(at % PAGE_BYTES as u64).expect("below a page");
        let piece = (PAGE_BYTES - within).min(len - done);
        body(at / PAGE_BYTES as u64, within, done..done + piece);
        done += piece;
    }
}
