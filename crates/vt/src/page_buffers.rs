//! Memory for long reads and writes: begins at a page, so that a device can write to it itself, and is used again.
//!
//! Fresh memory of this size comes from the kernel, which clears it first: that takes as long as reading
//! it from a fast device.

use std::sync::Arc;
use stitch_base::sync::Mutex;

const PAGE_BYTES: usize = 4096;
/// Buffers that are kept are as long as this, and all others are made anew.
pub(crate) const KEPT_BYTES: usize = 1 << 20;
const KEPT_BYTES_MIN: usize = 256 << 10;
/// Most buffers that wait to be used.
const KEPT_MAX: usize = 8;

type Kept = Arc<Mutex<Vec<Vec<u8>>>>;

/// Buffers that were used, and will be again.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageBuffers(Kept);

/// Memory that begins at a page.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    home: Kept,
}

impl PageBuffers {
    /// A buffer. What it holds is of no worth.
    pub(crate) fn take(&self, len: usize) -> PageBuffer {
        let is_kept = (KEPT_BYTES_MIN..=KEPT_BYTES).contains(&len);
        let kept = is_kept.then(|| self.0.lock().pop()).flatten();
        let room = if is_kept { KEPT_BYTES } else { len };
        let bytes = kept.unwrap_or_else(|| vec![0; room + PAGE_BYTES]);
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        assert!(start + len <= bytes.len(), "it is long enough");
        PageBuffer {
            bytes,
            start,
            len,
            home: Arc::clone(&self.0),
        }
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for PageBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        if self.bytes.len() != KEPT_BYTES + PAGE_BYTES {
            return;
        }
        let mut kept = self.home.lock();
        if kept.len() < KEPT_MAX {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_begin_at_pages_and_are_used_again() {
        let buffers = PageBuffers::default();
        for len in [1, 4096, KEPT_BYTES_MIN, KEPT_BYTES, KEPT_BYTES + 1] {
            let buffer = buffers.take(len);
            assert_eq!(buffer.as_ref().len(), len);
            assert!(buffer.as_ref().as_ptr().addr().is_multiple_of(PAGE_BYTES));
        }
        let first = buffers.take(KEPT_BYTES);
        assert!(buffers.0.lock().is_empty(), "it was used again");
        let others: Vec<PageBuffer> = (0..2 * KEPT_MAX)
            .map(|_| buffers.take(KEPT_BYTES))
            .collect();
        drop((first, others));
        assert_eq!(buffers.0.lock().len(), KEPT_MAX, "bounded");
    }
}
