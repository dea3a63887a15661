//! Memory for long reads and writes: begins at a page, so that a device can write to it itself, and
//! is used again.
//!
//! Fresh memory of this size comes from the kernel, which clears it first: that takes as long as
//! reading it from a fast device.
//!
//! Buffers that wait to be used are a part of what is read ahead: they and those in use are
//! together no more than that may take, or else are few.

use std::sync::Arc;
use stitch_base::sync::Mutex;

pub(crate) const PAGE_BYTES: usize = 4096;
/// What a buffer that is kept has room for, without the one block by which a window can be too
/// long.
pub(crate) const KEPT_BYTES: usize = 1 << 20;
/// Buffers that are kept are as long as this, and all longer ones are made anew.
pub(crate) const KEPT_BYTES_MAX: usize = KEPT_BYTES + (64 << 10);
/// Shorter ones are made anew, too.
const KEPT_BYTES_MIN: usize = 256 << 10;
/// Most buffers that wait to be used: those of the longest window.
const WAITING_MAX: usize = 16;
/// So many may wait and be in use together, however little memory there is.
const COUNT_MIN: usize = 8;

const _: () = assert!(KEPT_BYTES_MIN <= KEPT_BYTES && KEPT_BYTES <= KEPT_BYTES_MAX);
const _: () = assert!(KEPT_BYTES_MAX.is_multiple_of(PAGE_BYTES));

/// Buffers that were used, and will be again.
#[derive(Clone, Debug)]
pub(crate) struct PageBuffers(Arc<Home>);

#[derive(Debug)]
struct Home {
    kept: Mutex<FreeBuffers>,
    /// How many wait and are in use at most, unless more are in use.
    count_max: usize,
}

/// Buffers that wait. Invariant: they are few, and each is as long as all that are kept.
#[derive(Debug, Default)]
struct FreeBuffers {
    waiting: Vec<Vec<u8>>,
    /// How many are in use.
    used: usize,
}

impl FreeBuffers {
    fn holds(&self) -> bool {
        let len_bytes = KEPT_BYTES_MAX + PAGE_BYTES;
        let last = self.waiting.last();
        self.waiting.len() <= WAITING_MAX && last.is_none_or(|bytes| bytes.len() == len_bytes)
    }
}

/// Memory that begins at a page.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    /// Where it goes back to; `None` if it is not kept.
    home: Option<Arc<Home>>,
}

impl Default for PageBuffers {
    fn default() -> Self {
        Self::within(0)
    }
}

impl PageBuffers {
    /// Buffers of which so many bytes may wait and be in use.
    pub(crate) fn within(bytes_max: u64) -> Self {
        let count = usize::try_from(bytes_max / KEPT_BYTES as u64).unwrap_or(usize::MAX);
        Self(Arc::new(Home {
            kept: Mutex::default(),
            count_max: count.max(COUNT_MIN),
        }))
    }

    /// A buffer. What it holds is of no worth.
    pub(crate) fn take(&self, len: usize) -> PageBuffer {
        debug_assert!(self.0.count_max >= COUNT_MIN, "a few may always be in use");
        let is_kept = (KEPT_BYTES_MIN..=KEPT_BYTES_MAX).contains(&len);
        let waiting = is_kept.then(|| self.0.take()).flatten();
        let room = if is_kept { KEPT_BYTES_MAX } else { len };
        let bytes = waiting.unwrap_or_else(|| vec![0; room + PAGE_BYTES]);
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        assert!(start + len <= bytes.len(), "it is long enough");
        debug_assert_eq!(
            bytes[start..].as_ptr().align_offset(PAGE_BYTES),
            0,
            "it begins at a page"
        );
        PageBuffer {
            bytes,
            start,
            len,
            home: is_kept.then(|| Arc::clone(&self.0)),
        }
    }

    /// How many wait, and how many are in use.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        let kept = self.0.kept.lock();
        (kept.waiting.len(), kept.used)
    }
}

impl Home {
    /// One that waits. It, or the one that is made in its place, is in use from now on.
    fn take(&self) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        debug_assert!(kept.holds());
        kept.used += 1;
        kept.waiting.pop()
    }

    /// Takes one back that was in use, and answers it if it is one too many.
    fn put(&self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        debug_assert_eq!(bytes.len(), KEPT_BYTES_MAX + PAGE_BYTES, "one that is kept");
        let mut kept = self.kept.lock();
        debug_assert!(kept.used > 0, "it was taken");
        kept.used -= 1;
        let has_room =
            kept.waiting.len() < WAITING_MAX && kept.waiting.len() + kept.used < self.count_max;
        if !has_room {
            return Some(bytes);
        }
        kept.waiting.push(bytes);
        debug_assert!(kept.holds());
        debug_assert!(
            kept.waiting.len() + kept.used <= self.count_max,
            "they are bounded"
        );
        None
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
        if let Some(home) = self.home.take() {
            debug_assert!(!self.bytes.is_empty(), "its memory is given back once");
            drop(home.put(std::mem::take(&mut self.bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_begin_at_pages_and_are_used_again() {
        let buffers = PageBuffers::default();
        for len in [1, 4096, KEPT_BYTES_MIN, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1] {
            let buffer = buffers.take(len);
            assert_eq!(buffer.as_ref().len(), len);
            assert!(buffer.as_ref().as_ptr().addr().is_multiple_of(PAGE_BYTES));
        }
        assert_eq!(buffers.counts(), (1, 0));
        let first = buffers.take(KEPT_BYTES);
        assert_eq!(buffers.counts(), (0, 1), "it was used again");
        drop(first);
        assert_eq!(buffers.counts(), (1, 0));
    }

    #[test]
    fn what_waits_is_bounded_and_counts_with_what_is_used() {
        for (bytes_max, waiting) in [(0, COUNT_MIN), (12 << 20, 12), (1 << 30, WAITING_MAX)] {
            let buffers = PageBuffers::within(bytes_max);
            let take = |count| -> Vec<PageBuffer> {
                (0..count).map(|_| buffers.take(KEPT_BYTES)).collect()
            };
            drop(take(2 * WAITING_MAX));
            assert_eq!(buffers.counts(), (waiting, 0), "bounded");
            let used = take(waiting);
            let others = take(5);
            drop(others);
            let expected = if bytes_max == 1 << 30 { 5 } else { 0 };
            assert_eq!(buffers.counts(), (expected, waiting), "counted together");
            drop(used);
        }
    }
}
