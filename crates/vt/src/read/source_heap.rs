//! The sources of a scan in a binary heap: the one with the smallest key on top.
//!
//! The prefix of each source's key ([`crate::prefix`]) is kept beside it, so that most
//! comparisons ask no source.
//!
//! - Of sources that stand on the same key, the newest (the one with the lowest number) is above
//!   the others.

use super::source::Source;
use crate::entry::EntryIter;
use crate::prefix::prefix_of;

/// A source that has a current entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapEntry {
    /// Of the key.
    pub(super) prefix: u64,
    pub(super) source: usize,
}

/// The sources of a scan that have a current entry, ordered by its key.
#[derive(Debug)]
pub(super) struct SourceHeap {
    heap: Vec<HeapEntry>,
    /// Sources moved without a call of [`Self::moved`].
    is_stale: bool,
}

fn key_of(sources: &[Source], source: usize) -> &[u8] {
    let entry = sources[source].entries.current();
    entry.expect("sources in the heap stand on an entry").key
}

impl SourceHeap {
    /// An empty heap, which the first [`Self::top`] builds.
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

    /// True if every move of a source was told by [`Self::moved`].
    pub(super) const fn is_fresh(&self) -> bool {
        !self.is_stale
    }

    /// The source with the smallest key, and of several the newest.
    #[inline]
    pub(super) fn top(&mut self, sources: &[Source]) -> Option<HeapEntry> {
        if self.is_stale {
            self.rebuild(sources);
        }
        debug_assert!(
            self.heap.len() <= sources.len(),
            "a source is in the heap once"
        );
        debug_assert!(
            self.heap
                .first()
                .is_none_or(|top| top.prefix == prefix_of(key_of(sources, top.source))),
            "each move of the top source was noted"
        );
        self.heap.first().copied()
    }

    #[cold]
    fn rebuild(&mut self, sources: &[Source]) {
        self.is_stale = false;
        self.heap.clear();
        for (source, from) in sources.iter().enumerate() {
            if let Some(entry) = from.entries.current() {
                let prefix = prefix_of(entry.key);
                self.heap.push(HeapEntry { prefix, source });
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(sources, at);
        }
        debug_assert!(self.is_heap(sources), "no source leads the one above it");
    }

    fn is_heap(&self, sources: &[Source]) -> bool {
        let leads = |at: usize| leads(sources, &self.heap[at], &self.heap[(at - 1) / 2]);
        !(1..self.heap.len()).any(leads)
    }

    /// The top source has moved to a key of this prefix, or beyond its end; and no other has.
    #[inline]
    pub(super) fn moved(&mut self, to: Option<u64>, sources: &[Source]) {
        debug_assert!(!self.is_stale, "the top is known");
        debug_assert_eq!(
            to,
            self.heap.first().and_then(|top| {
                let entry = sources[top.source].entries.current();
                entry.map(|entry| prefix_of(entry.key))
            }),
            "the top source has moved there"
        );
        match to {
            Some(prefix) => self.heap[0].prefix = prefix,
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift_down(sources, 0);
        debug_assert!(
            !(1..self.heap.len().min(3)).any(|at| leads(sources, &self.heap[at], &self.heap[0])),
            "no source leads the top one"
        );
    }

    fn sift_down(&mut self, sources: &[Source], mut at: usize) {
        debug_assert!(!self.is_stale, "the heap is of where the sources stand now");
        let heap = self.heap.as_mut_slice();
        let Some(&moving) = heap.get(at) else {
            return;
        };
        loop {
            let child = 2 * at + 1;
            let first = match heap.get(child..) {
                // Added, not branched on: which of the two it is cannot be guessed.
                Some([left, right, ..]) => child + usize::from(leads(sources, right, left)),
                Some([_]) => child,
                Some([]) | None => break,
            };
            if leads(sources, &moving, &heap[first]) {
                break;
            }
            heap[at] = heap[first];
            at = first;
        }
        heap[at] = moving;
    }
}

/// True if `a` comes before `b`.
#[inline]
fn leads(sources: &[Source], a: &HeapEntry, b: &HeapEntry) -> bool {
    if a.prefix == b.prefix {
        return leads_by_key(sources, a, b);
    }
    a.prefix < b.prefix
}

/// The same, of two that have one prefix.
#[cold]
fn leads_by_key(sources: &[Source], a: &HeapEntry, b: &HeapEntry) -> bool {
    debug_assert_ne!(a.source, b.source, "a source is in the heap once");
    let order = key_of(sources, a.source).cmp(key_of(sources, b.source));
    order.then(a.source.cmp(&b.source)).is_lt()
}
