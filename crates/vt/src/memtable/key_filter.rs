//! A filter of the keys that branch trees have in a memtable, for reads through branches.
//!
//! A key has four bits in one word of 64 bits. Its hash chooses the word, its hash and its tree
//! the bits. A get through a chain asks for one key in several trees: it loads one word for all of
//! them.
//!
//! ```text
//! key k of 5 and 7    word 2 of k: ..1...11..1.1....1.1....1...    four bits of 5, four of 7
//! get of k            9: bits missing    7: search    5: search    one word loaded
//! ```
//!
//! Invariants:
//! - a bit is never cleared. So a key that was added is always found;
//! - the number of words does not change: a memtable that takes more keys than the filter is made
//!   for is searched more often.
//!
//! A [`stitch_filter::WordFilter`] is filled before it is read. Here a writer sets bits while
//! readers look.

use stitch_base::TreeId;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_filter::{word_bits, word_of};

/// A filter takes this part of its memtable: two bytes for a node of 128 bytes.
const MEMTABLE_PART: usize = 64;
/// Most bytes of a filter.
const BYTES_MAX: usize = 4 << 20;
/// Bytes of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// A filter of keys by tree.
#[derive(Debug)]
pub(super) struct KeyFilter {
    /// At least one.
    words: Box<[AtomicU64]>,
}

impl KeyFilter {
    /// Returns an empty filter for a memtable of about this size.
    pub(super) fn for_memtable(memtable_bytes: usize) -> Self {
        let bytes = (memtable_bytes / MEMTABLE_PART).min(BYTES_MAX);
        let word_count = (bytes / WORD_BYTES).max(1);
        let words = (0..word_count).map(|_| AtomicU64::new(0)).collect();
        Self { words }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        debug_assert!(!self.words.is_empty(), "a key has a word");
        self.words.len() * WORD_BYTES
    }

    /// Adds a key of a tree by its hash.
    ///
    /// The store is relaxed: a reader that must find the key is ordered after it by what the writer
    /// publishes later; see [`super::key_marks`].
    pub(super) fn add(&self, tree: TreeId, hash: u64) {
        let bits = bits_of(tree, hash);
        let word = &self.words[word_of(hash, self.words.len())];
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Relaxed);
        }
        debug_assert!(self.may_have(tree, hash), "a bit stays");
    }

    /// Reports whether a key of this hash may have been added for a tree. `false` is certain.
    #[inline]
    pub(super) fn may_have(&self, tree: TreeId, hash: u64) -> bool {
        let bits = bits_of(tree, hash);
        let word = &self.words[word_of(hash, self.words.len())];
        word.load(Ordering::Relaxed) & bits == bits
    }
}

/// The bits of a key in its word. Trees whose numbers differ modulo 64 share no first bit.
#[inline]
fn bits_of(tree: TreeId, hash: u64) -> u64 {
    let mixed = u64::from(tree.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = word_bits(hash ^ mixed);
    debug_assert!((1..=4).contains(&bits.count_ones()), "four bits, or fewer");
    bits
}
