//! How numbers are spread over tables in memory: inode numbers, which are given by us, and hashes
//! of names, which are secret. So no program can choose them badly, and a multiplication is enough.

use std::hash::{BuildHasherDefault, Hasher};
use stitch_base::Ino;

/// An odd number near 2^64 over the golden ratio: multiples of it lie apart (Knuth, The Art of
/// Computer Programming, volume 3, section 6.4).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(
    !FACTOR.is_multiple_of(2),
    "no two numbers have the same product"
);

/// A number whose high bits depend on all bits of this one.
pub(crate) const fn spread(number: u64) -> u64 {
    number.wrapping_mul(FACTOR)
}

const _: () = assert!(
    spread(1) >> 56 != spread(2) >> 56,
    "neighbours differ in the first byte, which chooses a lock"
);

/// The same for a name, by its directory and its hash there.
pub(crate) const fn spread_name(dir: Ino, hash: u64) -> u64 {
    spread(dir.0 ^ hash)
}

/// Hasher of a number.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are numbers");
    }

    /// The high bits of the product depend on all of the number, but are the same within a shard,
    /// which they choose: so they end up where a table looks at neither place nor tag.
    fn write_u64(&mut self, number: u64) {
        self.0 = spread(number).rotate_left(26);
    }
}

pub(crate) type Spreading = BuildHasherDefault<Spread>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    #[test]
    fn numbers_that_follow_each_other_lie_apart() {
        // As one shard of 64 has them.
        let in_shard = |ino: &u64| spread(*ino) >> 56 & 63 == 5;
        let hash = |ino| Spreading::default().hash_one(ino);
        let hashes: Vec<u64> = (16..1 << 16).filter(in_shard).map(hash).collect();
        let (mut places, mut tags) = (BTreeSet::new(), BTreeSet::new());
        for hash in &hashes {
            places.insert(hash & 2047);
            tags.insert(hash >> 57);
        }
        assert!((1000..1050).contains(&hashes.len()), "{}", hashes.len());
        assert!(places.len() > 700, "{} places", places.len());
        assert!(tags.len() > 100, "{} tags", tags.len());
    }
}
