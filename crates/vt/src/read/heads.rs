//! Where the sources of a scan stand, upward: the one with the smallest key on top.
//!
//! A heap. The first eight bytes of each source's key are kept beside it, so that most comparisons
//! ask no source.
//!
//! - Of sources that stand on the same key, the newest (the one with the lowest number) is above the
//!   others.

use super::source::Source;
use crate::entry::EntryIter;

/// Bytes of a key that are kept.
const PREFIX_BYTES: usize = size_of::<u64>();

/// A source that stands on an entry.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The key's first bytes, zeros after its end: orders as keys do, other than where it is equal.
    prefix: u64,
    source: usize,
}

/// The sources of a scan that stand on an entry, in a heap.
#[derive(Debug)]
pub(super) struct Heads {
    heap: Vec<Head>,
    /// Sources have moved without a word.
    is_stale: bool,
}

fn prefix(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<PREFIX_BYTES>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; PREFIX_BYTES];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

fn key_of(sources: &[Source], source: usize) -> &[u8] {
    let entry = sources[source].entries.current();
    entry.expect("sources in the heap stand on an entry").key
}

impl Heads {
    /// To be put in order with the first look.
    pub(super) const fn new() -> Self {
        Self {
            heap: Vec::new(),
            is_stale: true,
        }
    }

    /// Sources other than the top one may have moved.
    pub(super) const fn forget(&mut self) {
        self.is_stale = true;
    }

    /// The source with the smallest key, and of several the newest.
    pub(super) fn top(&mut self, sources: &[Source]) -> Option<usize> {
        if self.is_stale {
            self.rebuild(sources);
        }
        Some(self.heap.first()?.source)
    }

    fn rebuild(&mut self, sources: &[Source]) {
        self.is_stale = false;
        self.heap.clear();
        for (source, from) in sources.iter().enumerate() {
            if let Some(entry) = from.entries.current() {
                let prefix = prefix(entry.key);
                self.heap.push(Head { prefix, source });
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(sources, at);
        }
    }

    /// The top source has moved, and no other.
    pub(super) fn moved(&mut self, sources: &[Source]) {
        debug_assert!(!self.is_stale, "the top is known");
        let top = &mut self.heap[0];
        match sources[top.source].entries.current() {
            Some(entry) => top.prefix = prefix(entry.key),
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift_down(sources, 0);
    }

    fn sift_down(&mut self, sources: &[Source], mut at: usize) {
        while let Some(left) = self.heap.get(2 * at + 1) {
            let mut child = 2 * at + 1;
            if let Some(right) = self.heap.get(child + 1)
                && leads(sources, right, left)
            {
                child += 1;
            }
            if leads(sources, &self.heap[at], &self.heap[child]) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }
}

/// True if `a` comes before `b`.
fn leads(sources: &[Source], a: &Head, b: &Head) -> bool {
    if a.prefix != b.prefix {
        return a.prefix < b.prefix;
    }
    let order = key_of(sources, a.source).cmp(key_of(sources, b.source));
    order.then(a.source.cmp(&b.source)).is_lt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_order_as_keys_do() {
        let keys: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0a",
            b"a",
            b"a\0",
            b"abcdefgh",
            b"abcdefghi",
            b"b",
        ];
        for pair in keys.windows(2) {
            assert!(prefix(pair[0]) <= prefix(pair[1]), "{pair:?}");
        }
        assert!(prefix(b"abcdefgh") < prefix(b"b"));
    }
}
