//! A filter in memory that is filled key by key, and looks at one word of memory for a probe.
//!
//! The filter is an array of 64-bit words, two bytes for each key. The high bits of a hash choose
//! the word, its low 24 bits choose four bits of it:
//!
//! ```text
//! hash    [ word number .................. | bit | bit | bit | bit ]
//!            high bits, scaled               6     6     6     6
//! words   0: ..1...1.  1: 11......  2: ........     a key has its four bits set in one word
//! ```
//!
//! - A key that was added is always found.
//! - Another key is found with a probability of about 0.5 %.
//!
//! Quotient filters of blocks cannot be merged into such a filter: with few keys in each, they keep
//! about 13 bits of a hash, and a filter of many keys needs more.
//!
//! Paper: Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007
//! (blocked Bloom filters; here a block is one word).

/// Keys for each word.
const KEYS_PER_WORD: usize = 4;
/// Bits that choose a bit of a word.
const BIT_BITS: u32 = u64::BITS.trailing_zeros();

/// A filter of key hashes in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordFilter {
    /// At least one.
    words: Box<[u64]>,
}

impl WordFilter {
    /// Returns an empty filter for up to `key_count` keys. With more keys than that, it is wrong
    /// more often, and misses none.
    #[must_use]
    pub fn for_keys(key_count: usize) -> Self {
        let words = vec![0; word_count(key_count)].into_boxed_slice();
        debug_assert!(!words.is_empty(), "a hash has a word");
        Self { words }
    }

    /// Returns the bytes of memory of a filter for so many keys.
    #[must_use]
    pub const fn bytes_for(key_count: usize) -> usize {
        word_count(key_count) * size_of::<u64>()
    }

    /// Adds a key by its hash, which must be of good quality in its high and in its low bits.
    pub fn insert(&mut self, hash: u64) {
        let at = word_of(hash, self.words.len());
        self.words[at] |= word_bits(hash);
        debug_assert!(self.may_contain(hash), "a key that was added is found");
    }

    /// Reports whether a key of this hash may have been added. `false` is certain.
    #[must_use]
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let bits = word_bits(hash);
        self.words[word_of(hash, self.words.len())] & bits == bits
    }
}

const fn word_count(key_count: usize) -> usize {
    let count = key_count / KEYS_PER_WORD + 1;
    debug_assert!(count > 0, "a hash has a word");
    count
}

/// Returns the number of the word of a hash, by its high bits, among so many words. There is at
/// least one word.
#[must_use]
#[inline]
pub fn word_of(hash: u64, word_count: usize) -> usize {
    let at = (u128::from(hash) * word_count as u128) >> u64::BITS;
    debug_assert!(at < word_count as u128, "a hash has a word");
    at as usize
}

/// Returns the bits of a hash in its word, by its low 24 bits: four, or fewer.
#[must_use]
#[inline]
pub const fn word_bits(hash: u64) -> u64 {
    let bits = 1 << (hash % 64)
        | 1 << ((hash >> BIT_BITS) % 64)
        | 1 << ((hash >> (2 * BIT_BITS)) % 64)
        | 1 << ((hash >> (3 * BIT_BITS)) % 64);
    debug_assert!(bits != 0, "a key has a bit");
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stitch_base::random::Rng;

    fn filter_of(hashes: &[u64]) -> WordFilter {
        let mut filter = WordFilter::for_keys(hashes.len());
        for hash in hashes {
            filter.insert(*hash);
        }
        filter
    }

    #[test]
    fn an_empty_filter_denies_all() {
        let filter = WordFilter::for_keys(0);
        assert!(
            [0, 1, u64::MAX]
                .iter()
                .all(|hash| !filter.may_contain(*hash))
        );
    }

    /// Four bits by the low 24 bits, in the word that the high bits choose.
    #[test]
    fn the_bits_of_a_hash_lie_in_one_word() {
        let mut filter = WordFilter::for_keys(12);
        filter.insert(3 << 62 | 1 | 2 << 6 | 3 << 12 | 63 << 18);
        assert_eq!(*filter.words, [0, 0, 0, 1 << 63 | 0b1110]);
    }

    #[test]
    fn other_keys_are_found_seldom() {
        let mut random = Rng::new(1);
        for key_count in [1, 10, 1000, 100_000] {
            let hashes: Vec<u64> = (0..key_count).map(|_| random.next_u64()).collect();
            let filter = filter_of(&hashes);
            let probes = 200_000;
            let found = (0..probes).filter(|_| filter.may_contain(random.next_u64()));
            let share = found.count() as f64 / f64::from(probes);
            assert!(share < 0.01, "{key_count} keys: {share}");
        }
    }

    #[test]
    fn the_bytes_are_two_for_a_key() {
        assert_eq!(WordFilter::bytes_for(0), 8);
        assert_eq!(WordFilter::bytes_for(4000), 8008);
        let filter = WordFilter::for_keys(4000);
        assert_eq!(size_of_val(&*filter.words), WordFilter::bytes_for(4000));
    }

    proptest! {
        #[test]
        fn never_misses(
            hashes in prop::collection::vec(any::<u64>(), 0..600),
            room in 0..600_usize,
        ) {
            let mut filter = WordFilter::for_keys(room);
            for hash in &hashes {
                filter.insert(*hash);
            }
            for hash in &hashes {
                prop_assert!(filter.may_contain(*hash));
            }
        }
    }
}
