//! Numbers in the order of keys, which are compared faster than keys.
//!
//! Keys often begin with a number that is small for its length, such as that of an inode, so that their first
//! bytes are zeros. A prefix counts these, up to seven, and holds the 61 bits behind them:
//!
//! | bits | hold |
//! |---|---|
//! | 63..61 | seven, less the number of zero bytes that the key begins with |
//! | 60..0 | the bits behind these |
//!
//! Of two keys with another number of zeros the one with more is the smaller one, and of two with the same
//! number it is the one that is smaller behind them. A key that ends before has zeros there.

/// Most zero bytes that are counted.
const ZEROS_MAX: u32 = 7;
/// Bits for their number.
const COUNT_BITS: u32 = 3;
/// Bytes of a key that decide on its prefix at most.
const BYTES: usize = size_of::<u128>();

/// Keys whose prefixes differ are in the order of these. Those whose prefixes are the same are in any order.
pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    const { assert!(ZEROS_MAX < 1 << COUNT_BITS) };
    let first = first_bytes(key);
    let zeros = (first.leading_zeros() / 8).min(ZEROS_MAX);
    let behind = (first << (8 * zeros)) >> u64::BITS;
    let behind = u64::try_from(behind).expect("the upper half");
    u64::from(ZEROS_MAX - zeros) << (u64::BITS - COUNT_BITS) | behind >> COUNT_BITS
}

/// The first bytes of a key, zeros after its end.
fn first_bytes(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<BYTES>() {
        return u128::from_be_bytes(*first);
    }
    let mut first = [0; BYTES];
    first[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    #[test]
    fn prefixes_order_as_keys_do() {
        let keys: [&[u8]; 12] = [
            b"",
            b"\0",
            b"\0\0\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\x01",
            b"\0\0\0\x01",
            b"\0\0\x01\0",
            b"\0a",
            b"a",
            b"a\0",
            b"abcdefgh",
            b"abcdefghi",
            b"b",
        ];
        for pair in keys.windows(2) {
            assert!(prefix_of(pair[0]) <= prefix_of(pair[1]), "{pair:?}");
        }
        assert!(prefix_of(b"abcdefgh") < prefix_of(b"b"));
    }

    #[test]
    fn names_in_one_directory_differ_in_their_prefixes() {
        let name = |hash: u64| {
            let parent = 70_000u64.to_be_bytes();
            [&parent[..], &hash.to_be_bytes(), b"name"].concat()
        };
        // Names have hashes of 59 bits; the prefix holds the first 32 of them.
        assert!(prefix_of(&name(1 << 27)) < prefix_of(&name(2 << 27)));
        assert!(prefix_of(&name((1 << 59) - 2)) > prefix_of(&name(1 << 58)));
    }

    #[test]
    fn prefixes_never_contradict() {
        let mut rng = Rng::new(11);
        // Few values, so that keys have much in common, and are the same now and then.
        let mut key = || -> Vec<u8> {
            let zeros = rng.below(12);
            let bytes = rng.below(8);
            let value = |number| [0, 1, 255][usize::try_from(number).expect("small")];
            let zeros = std::iter::repeat_n(0, usize::try_from(zeros).expect("small"));
            zeros
                .chain((0..bytes).map(|_| value(rng.below(3))))
                .collect()
        };
        for _ in 0..100_000 {
            let (a, b) = (key(), key());
            let prefixes = prefix_of(&a).cmp(&prefix_of(&b));
            assert!(prefixes.is_eq() || prefixes == a.cmp(&b), "{a:?} {b:?}");
        }
    }
}
