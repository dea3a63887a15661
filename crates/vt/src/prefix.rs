//! Numbers in the order of keys, which are compared faster than keys.
//!
//! Keys often begin with a number that is small for its length, such as that of an inode, so that
//! their first bytes are zeros. A prefix counts these, up to seven, and holds the 61 bits behind
//! them:
//!
//! | bits | hold |
//! |---|---|
//! | 63..61 | seven, less the number of zero bytes that the key begins with |
//! | 60..0 | the bits behind these |
//!
//! Of two keys with another number of zeros the one with more is the smaller one, and of two with
//! the same number it is the one that is smaller behind them. A key that ends before has zeros
//! there.

/// Most zero bytes that are counted.
const ZEROS_MAX: u32 = 7;
/// Bits for their number.
const COUNT_BITS: u32 = 3;
/// Bytes of a key that decide on its prefix at most.
const BYTES: usize = size_of::<u128>();

/// Keys whose prefixes differ are in the order of these. Those whose prefixes are the same are in
/// any order.
#[inline]
pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    const { assert!(ZEROS_MAX < 1 << COUNT_BITS) };
    if let Some(first) = key.first_chunk::<8>()
        && first[0] != 0
    {
        let no_zeros = u64::from(ZEROS_MAX) << (u64::BITS - COUNT_BITS);
        let prefix = no_zeros | u64::from_be_bytes(*first) >> COUNT_BITS;
        debug_assert_eq!(prefix, prefix_with_zeros(key), "both ways give the same");
        return prefix;
    }
    prefix_with_zeros(key)
}

/// The same, of a key that may be short or begin with zeros.
fn prefix_with_zeros(key: &[u8]) -> u64 {
    let first = first_bytes(key);
    let zeros = (first.leading_zeros() / 8).min(ZEROS_MAX);
    debug_assert!(key.iter().take(zeros as usize).all(|byte| *byte == 0));
    let behind = (first << (8 * zeros)) >> u64::BITS;
    let behind = u64::try_from(behind).expect("the upper half");
    u64::from(ZEROS_MAX - zeros) << (u64::BITS - COUNT_BITS) | behind >> COUNT_BITS
}

/// The first sixteen bytes of a key, big-endian, zeros after its end.
pub(crate) fn first_bytes(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk() {
        let first = u128::from_be_bytes(*first);
        debug_assert_eq!(first >> u64::BITS, u128::from(first_eight_bytes(key)));
        return first;
    }
    debug_assert!(key.len() < BYTES, "a longer key has all of them");
    let missing_bits = 8 * (BYTES - key.len());
    if let (Some(front), Some(back)) = (key.first_chunk(), key.last_chunk()) {
        // Where they overlap they are the same.
        let front = u128::from(u64::from_be_bytes(*front)) << u64::BITS;
        return front | u128::from(u64::from_be_bytes(*back)) << missing_bits;
    }
    u128::from(first_eight_bytes(key)) << u64::BITS
}

/// The first eight bytes of a key, big-endian, zeros after its end.
pub(crate) fn first_eight_bytes(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    debug_assert!(key.len() < size_of::<u64>(), "a longer key has all of them");
    let mut first = [0; size_of::<u64>()];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
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
    fn first_bytes_are_the_key_and_zeros() {
        let long: Vec<u8> = (1..=20).collect();
        for len in 0..=long.len() {
            let mut padded = [0; 32];
            padded[..len].copy_from_slice(&long[..len]);
            let (eight, sixteen) = (padded.first_chunk(), padded.first_chunk());
            let eight = u64::from_be_bytes(*eight.expect("it is longer"));
            let sixteen = u128::from_be_bytes(*sixteen.expect("it is longer"));
            assert_eq!(first_eight_bytes(&long[..len]), eight);
            assert_eq!(first_bytes(&long[..len]), sixteen);
        }
    }

    #[test]
    fn a_key_without_zeros_has_the_prefix_of_all_keys() {
        for key in [
            &b"abcdefgh"[..],
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"a\0\0\0\0\0\0\0\x01",
        ] {
            assert_eq!(prefix_of(key), prefix_with_zeros(key), "{key:?}");
        }
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
