//! Where the sources of a scan stand, upward: the one with the smallest key on top.
//!
//! A heap. The first eight bytes of each source's key are kept beside it, so that most comparisons
//! ask no source.
//!
//! - Of sources that stand on the same key, the newest (the one with the lowest number) is above the
//!   others.

use super::source::Source;
use crate::entry::EntryIter;
use crate::prefix::prefix_of;

/// A source that stands on an entry.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Of the key.
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
                let prefix = prefix_of(entry.key);
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
            Some(entry) => top.prefix = prefix_of(entry.key),
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
