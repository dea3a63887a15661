//! Marks of the rows that a round has changed: most rows are known not to be among them without a
//! search.
//!
//! Invariant: a row that was noted since the last [`RowMarks::clear`] has its mark. Another row has
//! one by chance: with 800 rows, as 50 clients with 16 commands each have in a round, 1 of 40.

use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// Bits for marks; a power of two. They take 4 KiB, which stay in the processor's first cache.
const BITS: u64 = 1 << 15;
const WORD_BITS: u64 = u64::BITS as u64;

/// A bit for each hash of a row's key.
pub(super) struct RowMarks {
    words: Box<[u64]>,
    is_empty: bool,
}

impl fmt::Debug for RowMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowMarks")
            .field("is_empty", &self.is_empty)
            .finish_non_exhaustive()
    }
}

impl RowMarks {
    pub(super) fn new() -> Self {
        let words = usize::try_from(BITS / WORD_BITS).expect("a few hundred");
        Self {
            words: vec![0; words].into_boxed_slice(),
            is_empty: true,
        }
    }

    pub(super) fn note(&mut self, key: &[u8]) {
        let (word, bit) = place(key);
        self.words[word] |= bit;
        self.is_empty = false;
        debug_assert!(self.may_have(key), "a noted row has its mark");
    }

    /// Reports whether a row may have been noted; never false for one that was.
    pub(super) fn may_have(&self, key: &[u8]) -> bool {
        if self.is_empty {
            return false;
        }
        let (word, bit) = place(key);
        self.words[word] & bit != 0
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        if !std::mem::replace(&mut self.is_empty, true) {
            self.words.fill(0);
        }
    }
}

/// The word and the bit of a key's mark.
fn place(key: &[u8]) -> (usize, u64) {
    let at = xxh3_64(key) % BITS;
    let word = usize::try_from(at / WORD_BITS).expect("a few hundred");
    (word, 1 << (at % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_rows_have_marks_and_few_others() {
        let mut marks = RowMarks::new();
        let key = |number: u32| number.to_be_bytes();
        assert!(!marks.may_have(&key(0)));
        (0..800).for_each(|number| marks.note(&key(number)));
        assert!((0..800).all(|number| marks.may_have(&key(number))));
        let others = (800..10_800).filter(|number| marks.may_have(&key(*number)));
        assert!(others.count() < 500, "1 of 40 is expected");
        marks.clear();
        assert!(!(0..800).any(|number| marks.may_have(&key(number))));
    }
}
