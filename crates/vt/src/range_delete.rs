//! Deleted ranges of keys, and who is deleted by them.
//!
//! A set of range deletes is immutable; adding one makes a new set that shares most of the old.
//!
//! 1. A set is a list of layers of falling size. A new range delete is a layer of one; layers of
//!    like size are joined, so there are O(log n) of them and each range delete is moved O(log n)
//!    times.
//! 2. A layer cuts the keys at the ends of its ranges. Over the pieces stands a segment tree: each
//!    range delete is noted at the O(log n) nodes that make up its range, each node keeps its
//!    sequence numbers newest first. A key is looked up on the way from its piece to the root.
//!
//! Invariants:
//! - memory is O(n log n), and n are added in O(n log n) steps, however the ranges overlap;
//! - a lookup is O(log^3 n) at worst, and mostly one layer.
//!
//! Differs: LSM-trees of today cut overlapping ranges into pieces that each list all sequence
//! numbers, which takes quadratic memory for nested ranges (truncating a file again and again).

use crate::entry::RangeDelete;
use std::cmp::Reverse;
use std::sync::Arc;
use stitch_base::Seqno;

/// A set of range deletes of one tree. Invariant: layers are of falling size.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeDeletes {
    /// Largest first.
    layers: Vec<Arc<Layer>>,
    /// The shift of the table that it was read from, which is in the sequence numbers.
    shift: u64,
}

/// What covers a key, and how far that answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover<'a> {
    /// The newest range delete over the key, not newer than asked.
    pub(crate) seqno: Option<Seqno>,
    /// The first key after it for which the answer may be another; `None` if none.
    pub(crate) until: Option<&'a [u8]>,
}

impl RangeDeletes {
    /// The set of these.
    pub(crate) fn new(deletes: Vec<RangeDelete>) -> Self {
        let deletes: Vec<_> = deletes.into_iter().filter(is_range).map(Arc::new).collect();
        if deletes.is_empty() {
            return Self::default();
        }
        let set = Self {
            layers: vec![Arc::new(Layer::new(deletes))],
            shift: 0,
        };
        debug_assert!(!set.is_empty(), "a range delete is in it");
        set
    }

    /// The same set, read from a table with this shift.
    pub(crate) fn of_shift(self, shift: u64) -> Self {
        debug_assert_eq!(self.shift, 0, "a set is shifted once");
        debug_assert!(self.holds());
        Self { shift, ..self }
    }

    /// The shift that is in its sequence numbers.
    pub(crate) const fn shift(&self) -> u64 {
        self.shift
    }

    fn holds(&self) -> bool {
        let layers = &self.layers;
        layers.is_sorted_by(|layer, next| layer.deletes.len() > next.deletes.len())
    }

    /// This set and one more.
    pub(crate) fn with(&self, delete: RangeDelete) -> Self {
        debug_assert!(self.holds());
        if !is_range(&delete) {
            return self.clone();
        }
        let mut layers = self.layers.clone();
        let mut newest = vec![Arc::new(delete)];
        while let Some(layer) = layers.pop_if(|layer| layer.deletes.len() <= newest.len()) {
            newest.extend(layer.deletes.iter().cloned());
        }
        layers.push(Arc::new(Layer::new(newest)));
        let set = Self {
            layers,
            shift: self.shift,
        };
        debug_assert!(set.holds());
        debug_assert_eq!(set.len(), self.len() + 1, "one more");
        set
    }

    /// True if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.deletes.len()).sum()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.layers.iter().map(|layer| layer.bytes).sum();
        debug_assert_eq!(bytes == 0, self.is_empty(), "a layer takes memory");
        bytes
    }

    /// The newest range delete over `key` that is not newer than `max_seqno`.
    pub(crate) fn newest_covering(&self, key: &[u8], max_seqno: Seqno) -> Option<Seqno> {
        note_steps(self.layers.len());
        let newest = |layer: &Arc<Layer>| layer.newest_at(layer.piece_of(key)?, max_seqno);
        let newest = self.layers.iter().filter_map(newest).max();
        debug_assert!(
            newest.is_none_or(|newest| newest <= max_seqno),
            "the reader sees it"
        );
        newest
    }

    /// As [`Self::newest_covering`], and up to which key that holds.
    pub(crate) fn cover(&self, key: &[u8], max_seqno: Seqno) -> Cover<'_> {
        note_steps(self.layers.len());
        let bounds = self
            .layers
            .iter()
            .filter_map(|layer| layer.bound_after(key));
        let until = bounds.min();
        debug_assert!(
            until.is_none_or(|until| until > key),
            "it holds for the key"
        );
        let seqno = self.newest_covering(key, max_seqno);
        Cover { seqno, until }
    }

    /// The first key from which on the answer of [`Self::cover`] for `key` holds.
    pub(crate) fn cover_start(&self, key: &[u8]) -> &[u8] {
        let bounds = self
            .layers
            .iter()
            .filter_map(|layer| layer.bound_before(key));
        let start = bounds.max().unwrap_or_default();
        debug_assert!(start <= key, "it holds for the key");
        start
    }

    /// All of them, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RangeDelete> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| layer.deletes.iter().map(|delete| &**delete))
    }
}

/// Counts steps over range deletes. Tests bound them; nothing else does.
pub(crate) fn note_steps(count: usize) {
    #[cfg(test)]
    crate::testing::note_delete_steps(count);
    #[cfg(not(test))]
    let _ = count;
}

fn is_range(delete: &RangeDelete) -> bool {
    delete.start < delete.end
}

fn order(delete: &RangeDelete) -> (&[u8], Reverse<Seqno>, &[u8]) {
    (&delete.start, Reverse(delete.seqno), &delete.end)
}

/// Range deletes that never change. Invariant: there is a piece, and each node of the segment tree
/// has its sequence numbers.
#[derive(Debug)]
struct Layer {
    /// By start.
    deletes: Vec<Arc<RangeDelete>>,
    /// Where pieces begin, in key order; the last is where the last piece ends.
    bounds: Vec<Bound>,
    /// Of each node of the segment tree: where its sequence numbers begin in `seqnos`.
    node_starts: Vec<u32>,
    seqnos: Vec<Seqno>,
    bytes: usize,
}

/// An end of a range, found through its range delete.
#[derive(Clone, Copy, Debug)]
struct Bound {
    delete: u32,
    is_end: bool,
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("range deletes in memory are counted in 32 bits")
}

impl Layer {
    fn new(mut deletes: Vec<Arc<RangeDelete>>) -> Self {
        debug_assert!(!deletes.is_empty(), "a layer is not empty");
        debug_assert!(
            deletes.iter().all(|delete| is_range(delete)),
            "ranges hold keys"
        );
        note_steps(deletes.len());
        deletes.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut layer = Self {
            bounds: Vec::new(),
            node_starts: Vec::new(),
            seqnos: Vec::new(),
            bytes: 0,
            deletes,
        };
        layer.cut();
        layer.plant();
        layer.bytes = layer.weigh();
        debug_assert!(layer.holds());
        layer
    }

    fn holds(&self) -> bool {
        self.bounds.len() >= 2
            && self.node_starts.len() == 2 * self.piece_count() + 1
            && self.bytes > size_of::<Self>()
    }

    fn bound(&self, bound: Bound) -> &[u8] {
        debug_assert!(
            (bound.delete as usize) < self.deletes.len(),
            "a range of this layer"
        );
        let delete = &self.deletes[bound.delete as usize];
        if bound.is_end {
            &delete.end
        } else {
            &delete.start
        }
    }

    /// Fills in the bounds.
    fn cut(&mut self) {
        let mut bounds: Vec<Bound> = (0..narrow(self.deletes.len()))
            .flat_map(|delete| [false, true].map(|is_end| Bound { delete, is_end }))
            .collect();
        bounds.sort_by(|a, b| self.bound(*a).cmp(self.bound(*b)));
        bounds.dedup_by(|a, b| self.bound(*a) == self.bound(*b));
        debug_assert!(
            bounds.is_sorted_by(|a, b| self.bound(*a) < self.bound(*b)),
            "each piece holds keys"
        );
        debug_assert!(bounds.len() >= 2, "a range has two ends");
        self.bounds = bounds;
    }

    fn piece_count(&self) -> usize {
        debug_assert!(self.bounds.len() >= 2, "a range has two ends");
        self.bounds.len() - 1
    }

    /// Fills in the segment tree. Piece `i` is leaf `i + piece_count`; node `n` has the children
    /// `2n` and `2n + 1`.
    fn plant(&mut self) {
        let mut notes: Vec<(u32, Reverse<Seqno>)> = Vec::new();
        for delete in &self.deletes {
            let piece = |key: &[u8]| self.bounds.partition_point(|b| self.bound(*b) < key);
            let mut low = piece(&delete.start) + self.piece_count();
            let mut high = piece(&delete.end) + self.piece_count();
            debug_assert!(low < high, "a range delete is over a piece");
            while low < high {
                if low % 2 == 1 {
                    notes.push((narrow(low), Reverse(delete.seqno)));
                    low += 1;
                }
                if high % 2 == 1 {
                    high -= 1;
                    notes.push((narrow(high), Reverse(delete.seqno)));
                }
                low /= 2;
                high /= 2;
            }
        }
        notes.sort_unstable();
        notes.dedup();
        let nodes = self.piece_count() * 2;
        let mut at = 0;
        self.node_starts = Vec::with_capacity(nodes + 1);
        for node in 0..=nodes {
            at += notes[at..]
                .iter()
                .take_while(|n| (n.0 as usize) < node)
                .count();
            self.node_starts.push(narrow(at));
        }
        self.seqnos = notes.into_iter().map(|(_, Reverse(seqno))| seqno).collect();
        debug_assert_eq!(self.node_starts.len(), nodes + 1, "each node has its notes");
        debug_assert_eq!(at, self.seqnos.len(), "each note is at a node");
        debug_assert!(self.node_starts.is_sorted(), "nodes share no notes");
    }

    fn weigh(&self) -> usize {
        let own = |d: &Arc<RangeDelete>| {
            size_of::<Arc<RangeDelete>>() + size_of::<RangeDelete>() + d.start.len() + d.end.len()
        };
        self.deletes.iter().map(own).sum::<usize>()
            + self.bounds.len() * size_of::<Bound>()
            + self.node_starts.len() * size_of::<u32>()
            + self.seqnos.len() * size_of::<Seqno>()
            + size_of::<Self>()
    }

    /// The piece that holds a key; `None` before the first and after the last.
    fn piece_of(&self, key: &[u8]) -> Option<usize> {
        let after = self.bounds.partition_point(|b| self.bound(*b) <= key);
        debug_assert!(
            after == 0 || self.bound(self.bounds[after - 1]) <= key,
            "the piece begins at or before the key"
        );
        (after > 0 && after < self.bounds.len()).then(|| after - 1)
    }

    fn bound_after(&self, key: &[u8]) -> Option<&[u8]> {
        let after = self.bounds.partition_point(|b| self.bound(*b) <= key);
        let next = self.bounds.get(after).map(|bound| self.bound(*bound));
        debug_assert!(
            next.is_none_or(|next| next > key),
            "the bound comes after the key"
        );
        next
    }

    /// The last bound that is not after `key`.
    fn bound_before(&self, key: &[u8]) -> Option<&[u8]> {
        let after = self.bounds.partition_point(|b| self.bound(*b) <= key);
        let before = self.bound(self.bounds[after.checked_sub(1)?]);
        debug_assert!(before <= key, "the bound is not after the key");
        Some(before)
    }

    /// The newest range delete over a piece that is not newer than `max_seqno`.
    fn newest_at(&self, piece: usize, max_seqno: Seqno) -> Option<Seqno> {
        debug_assert!(piece < self.piece_count(), "a piece of this layer");
        debug_assert!(self.holds());
        let mut node = piece + self.piece_count();
        let mut newest = None;
        while node > 0 {
            let seqnos = self.node_starts[node] as usize..self.node_starts[node + 1] as usize;
            let seqnos = &self.seqnos[seqnos];
            let first = seqnos.partition_point(|s| *s > max_seqno);
            newest = newest.max(seqnos.get(first).copied());
            node /= 2;
        }
        debug_assert!(
            newest.is_none_or(|newest| newest <= max_seqno),
            "the reader sees it"
        );
        newest
    }
}

#[cfg(test)]
mod steps;
#[cfg(test)]
mod tests;
