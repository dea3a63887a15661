//! Keys and values that are made from a number, so that a reader of a value can tell what it must
//! be.
//!
//! Values are pieces of a pool of random bytes: they cannot be compressed, and making one costs a
//! look-up.

use stitch_base::random::Rng;

const POOL_BYTES: usize = 4 << 20;
/// Longest value.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;
/// What is compared of a value that was read, at each of its ends.
const ENDS_BYTES: usize = 16;

/// The pool.
pub(crate) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// The same pool for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut pool = vec![0; POOL_BYTES + VALUE_BYTES_MAX];
        Rng::new(seed).fill(&mut pool);
        Self { pool }
    }

    /// The value of this number and length.
    pub(crate) fn value(&self, id: u64, len_bytes: usize) -> &[u8] {
        assert!(len_bytes <= VALUE_BYTES_MAX, "values have a bound");
        let at = usize::try_from(mix(!id) % POOL_BYTES as u64).expect("below the pool's length");
        &self.pool[at..at + len_bytes]
    }

    /// Whether `found` is the value of this number and length, by its length and its two ends.
    pub(crate) fn is_value(&self, id: u64, len_bytes: usize, found: &[u8]) -> bool {
        let wanted = self.value(id, len_bytes);
        let ends = ENDS_BYTES.min(len_bytes);
        found.len() == len_bytes
            && found[..ends] == wanted[..ends]
            && found[len_bytes - ends..] == wanted[len_bytes - ends..]
    }
}

/// A permutation of the 64-bit numbers that leaves no order (the finalizer of SplitMix64): the
/// images of 0, 1, 2, ... are random keys without repetition that need not be remembered.
pub(crate) const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key of 16 decimal digits, as db_bench makes them.
pub(crate) fn decimal_key(number: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let mut rest = number;
    for digit in key.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("one digit");
        rest /= 10;
    }
    key
}

/// Numbers below `count` of which few are drawn most of the time, as YCSB draws them (theta 0.99;
/// Gray et al., *Quickly Generating Billion-Record Synthetic Databases*, SIGMOD 1994).
pub(crate) struct Zipf {
    count: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    /// For this many numbers.
    #[expect(clippy::cast_precision_loss, reason = "a distribution, not a count")]
    pub(crate) fn new(count: u64) -> Self {
        assert!(count > 1, "nothing to choose from");
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (zeta, zeta2, count) = (zeta_of(count), zeta_of(2), count as f64);
        let eta = (1.0 - (2.0 / count).powf(1.0 - THETA)) / (1.0 - zeta2 / zeta);
        Self { count, zeta, eta }
    }

    /// The next number; 0 is the most frequent.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a distribution, not a count; the result is clamped"
    )]
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let base = self.eta.mul_add(uniform, 1.0 - self.eta);
        let number = self.count * base.powf(1.0 / (1.0 - THETA));
        (number.max(0.0) as u64).min(self.count as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_from_others() {
        let values = Values::new(1);
        assert!(values.is_value(7, 100, Values::new(1).value(7, 100)));
        assert!(!values.is_value(7, 100, values.value(8, 100)));
        assert!(!values.is_value(7, 100, values.value(7, 99)));
        assert!(values.is_value(7, 0, &[]));
    }

    #[test]
    fn decimal_keys_are_in_the_order_of_their_numbers() {
        assert_eq!(&decimal_key(1234), b"0000000000001234");
        assert!(decimal_key(99) < decimal_key(100));
    }

    #[test]
    fn few_numbers_are_drawn_most_of_the_time() {
        let (zipf, mut rng) = (Zipf::new(1000), Rng::new(3));
        let drawn: Vec<u64> = (0..10_000).map(|_| zipf.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|&n| n < 1000));
        let low = drawn.iter().filter(|&&n| n < 100).count();
        assert!((5_500..8_500).contains(&low), "{low}");
    }
}
