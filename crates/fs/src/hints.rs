//! Name hints: a table from (directory, name) to inode, which may be wrong.
//!
//! When the kernel removes or moves a file, it names the file by directory and name. The row that
//! would be read is mostly known: the inode table has all of it but what is behind its head, and
//! many rows have nothing there. Only the inode number has to be found.
//!
//! A hint is an inode number, noted when a name is looked up, made or moved. It may be old: the
//! inode table says whether the inode has that name. So a hint need not be dropped; that of a
//! deleted name is, to make room.
//!
//! 1. The table is an array of buckets of one cache line each. A spread of directory and hash
//!    chooses the bucket, and a tag whose high bits choose as well.
//! 2. Within a bucket the newest hint comes first, and the oldest one is evicted.
//! 3. When more inodes are known than three quarters of the slots, each bucket is split in two by
//!    the next bit of the tags.

use crate::DirName;
use crate::inode::Inode;
use crate::residents::Residents;
use crate::spread::spread_name;
use stitch_base::Ino;
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// Slots of a bucket.
const WAYS: usize = 8;
/// Buckets at first: 2 KiB.
const BUCKETS_MIN: usize = 1 << BASE_BITS;
const BASE_BITS: u32 = 5;
/// Low bits of a slot: an inode number. Larger ones are not noted. The other bits are the tag.
const INO_BITS: u32 = 40;
const INO_MAX: u64 = (1 << INO_BITS) - 1;
const TAG_BITS: u32 = u64::BITS - INO_BITS;
/// So that tags still tell most hints of a bucket from each other: 32 MiB.
const BUCKETS_MAX: usize = BUCKETS_MIN << (TAG_BITS - 10);
const _: () = assert!(BUCKETS_MAX.is_power_of_two(), "buckets are divided in two");
const _: () = assert!(BUCKETS_MIN <= BUCKETS_MAX, "a table only grows");
// The model checker's atomics are larger.
#[cfg(not(feature = "shuttle"))]
const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is a cache line");
/// Largest memory of the table for each known inode: when it has just grown.
#[cfg(test)]
pub(crate) const HINT_BYTES: usize = (2 * size_of::<AtomicU64>() * 4).div_ceil(3);

/// A line of the processor's caches. An empty slot is 0.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

impl Bucket {
    fn slots(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|slot| slot.load(Ordering::Relaxed))
    }

    fn find(&self, tag: u64) -> Option<Ino> {
        debug_assert_eq!(tag & INO_MAX, 0, "a tag leaves room for a number");
        let found = self.slots().find(|slot| is_of(*slot, tag));
        debug_assert!(
            found.is_none_or(|slot| slot & INO_MAX > 0),
            "a hint names an inode"
        );
        found.map(|slot| Ino(slot & INO_MAX))
    }

    /// Two threads that note at once may lose a hint, no more.
    fn note(&self, tag: u64, ino: Ino) {
        debug_assert!((1..=INO_MAX).contains(&ino.0), "0 is an empty slot");
        debug_assert_eq!(tag & INO_MAX, 0, "a tag leaves room for a number");
        let mut moved = tag | ino.0;
        for slot in &self.0 {
            let old = slot.load(Ordering::Relaxed);
            debug_assert!(moved & INO_MAX > 0, "a hint names an inode");
            slot.store(moved, Ordering::Relaxed);
            if old == 0 || is_of(old, tag) {
                return;
            }
            moved = old;
        }
    }

    fn remove(&self, tag: u64) {
        debug_assert_eq!(tag & INO_MAX, 0, "a tag leaves room for a number");
        let Some(index) = self.slots().position(|slot| is_of(slot, tag)) else {
            return;
        };
        let later = self.0[index + 1..].iter();
        let later = later.map(|slot| slot.load(Ordering::Relaxed));
        for (slot, next) in self.0[index..].iter().zip(later.chain([0])) {
            slot.store(next, Ordering::Relaxed);
        }
    }

    /// Returns the hints whose tag has this bit set, or not.
    fn half(&self, bit: u64, is_set: bool) -> Self {
        debug_assert!(bit.is_power_of_two(), "a bit of the tag");
        debug_assert!(bit > INO_MAX, "a bit of the tag");
        let half = Self::default();
        let slots = self.slots().filter(|slot| (slot & bit != 0) == is_set);
        for (slot, place) in slots.filter(|slot| *slot != 0).zip(&half.0) {
            place.store(slot, Ordering::Relaxed);
        }
        debug_assert!(
            half.slots()
                .all(|slot| slot == 0 || (slot & bit != 0) == is_set),
            "each hint is in its half"
        );
        half
    }
}

/// Reports whether a slot has a hint with this tag.
const fn is_of(slot: u64, tag: u64) -> bool {
    slot != 0 && slot & !INO_MAX == tag
}

#[derive(Debug)]
pub(crate) struct Hints {
    /// A power of two.
    buckets: RwLock<Vec<Bucket>>,
}

impl Default for Hints {
    fn default() -> Self {
        let buckets = (0..BUCKETS_MIN).map(|_| Bucket::default());
        Self {
            buckets: RwLock::new(buckets.collect()),
        }
    }
}

/// Returns the tag and the index of a bucket among `count`: some bits of the number, then the high
/// bits of the tag.
fn place_of(spread: u64, count: usize) -> (u64, usize) {
    debug_assert!(count.is_power_of_two(), "bits choose one");
    let tag = spread << TAG_BITS & !INO_MAX;
    let chosen = spread << TAG_BITS >> (u64::BITS - TAG_BITS);
    debug_assert_eq!(tag & INO_MAX, 0, "a tag leaves room for a number");
    let base = spread >> (u64::BITS - BASE_BITS);
    let shift = TAG_BITS - (count / BUCKETS_MIN).trailing_zeros();
    let index = base << (TAG_BITS - shift) | chosen >> shift;
    let index = usize::try_from(index).expect("less than their count");
    debug_assert!(index < count, "it is one of the buckets");
    (tag, index)
}

impl Hints {
    fn find(&self, spread: u64) -> Option<Ino> {
        let buckets = self.buckets.read();
        let (tag, index) = place_of(spread, buckets.len());
        buckets[index].find(tag)
    }

    /// Notes which inode a name leads to, where `known` inodes are known.
    fn note(&self, spread: u64, ino: Ino, known: usize) {
        debug_assert!(ino.0 > 0, "0 is no inode");
        if ino.0 > INO_MAX {
            return;
        }
        let buckets = self.buckets.read();
        let (tag, index) = place_of(spread, buckets.len());
        buckets[index].note(tag, ino);
        let is_small = is_small(buckets.len(), known);
        drop(buckets);
        if is_small {
            self.grow(known);
        }
    }

    fn remove(&self, spread: u64) {
        let buckets = self.buckets.read();
        let (tag, index) = place_of(spread, buckets.len());
        buckets[index].remove(tag);
    }

    fn grow(&self, known: usize) {
        let mut buckets = self.buckets.write();
        // Another thread may have grown it.
        if is_small(buckets.len(), known) {
            let before = buckets.len();
            let bit = 1 << 63 >> (buckets.len() / BUCKETS_MIN).trailing_zeros();
            let twice = buckets.iter();
            let twice = twice.flat_map(|b| [b.half(bit, false), b.half(bit, true)]);
            *buckets = twice.collect();
            debug_assert_eq!(buckets.len(), 2 * before, "each is divided in two");
            debug_assert!(buckets.len().is_power_of_two(), "bits choose a bucket");
            debug_assert!(buckets.len() <= BUCKETS_MAX, "tags still tell hints apart");
        }
    }
}

/// Reports whether the number of buckets is to be doubled.
const fn is_small(buckets: usize, known: usize) -> bool {
    known > buckets * WAYS / 4 * 3 && buckets < BUCKETS_MAX
}

impl Residents {
    /// Notes which inode a name leads to.
    pub(crate) fn hint(&self, at: DirName<'_>, ino: Ino) {
        self.hint_hash(at.parent, self.keys.name_hash(at.name), ino);
    }

    /// Notes which inode the name of a directory and a hash leads to.
    pub(crate) fn hint_hash(&self, dir: Ino, hash: u64, ino: Ino) {
        debug_assert!(hash > 0, "0 is the row of the directory itself");
        let known = self.inodes.count();
        self.hints.note(spread_name(dir, hash), ino, known);
    }

    /// Drops the hint of a name that is gone.
    pub(crate) fn drop_hint(&self, dir: Ino, hash: u64) {
        debug_assert!(hash > 0, "0 is the row of the directory itself");
        self.hints.remove(spread_name(dir, hash));
    }

    /// Returns the inode that has this name and no other one, if it is known and has nothing behind
    /// its head in its row. The directory is locked.
    pub(crate) fn hinted(&self, at: DirName<'_>) -> Option<Inode> {
        let spread = spread_name(at.parent, self.keys.name_hash(at.name));
        let ino = self.hints.find(spread)?;
        self.known_row(ino, at)
    }

    /// Returns an inode if it is known, has this name and no other one, and has nothing behind its
    /// head in its row. That stays so while the inode is locked too.
    pub(crate) fn known_row(&self, ino: Ino, at: DirName<'_>) -> Option<Inode> {
        let known = self.inodes.find_at(ino, at)?;
        debug_assert_eq!(known.head.ino, ino, "the inode of the number");
        (!known.has_tail()).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_format::fs_key::name_hash;

    fn spread(number: u64) -> u64 {
        spread_name(Ino(77), name_hash(1, &number.to_le_bytes()))
    }

    fn bytes(hints: &Hints) -> usize {
        hints.buckets.read().len() * size_of::<Bucket>()
    }

    #[test]
    fn most_of_what_was_noted_is_found_and_nothing_else() {
        let hints = Hints::default();
        let count = 10_000;
        for number in 1..=count {
            hints.note(spread(number), Ino(number), number as usize);
        }
        let is_found = |number: &u64| hints.find(spread(*number)) == Some(Ino(*number));
        let found = (1..=count).filter(is_found).count();
        assert!(found > 9300, "{found} of {count}");
        let wrong = (count + 1..=2 * count).filter_map(|n| hints.find(spread(n)));
        let wrong = wrong.count();
        assert!(wrong < 10, "{wrong} tags are alike");
        assert!(bytes(&hints) <= HINT_BYTES * count as usize);
        assert!(bytes(&hints) >= HINT_BYTES / 2 * count as usize);
    }

    #[test]
    fn what_moves_leaves_room() {
        let hints = Hints::default();
        let count = 1_500;
        for number in 1..=count {
            hints.note(spread(number), Ino(number), number as usize);
        }
        let mut found = 0;
        for number in 1..=count {
            found += usize::from(hints.find(spread(number)) == Some(Ino(number)));
            hints.note(spread(count + number), Ino(number), count as usize);
            hints.remove(spread(number));
            assert_eq!(hints.find(spread(number)), None);
        }
        assert!(found > 1100, "{found} of {count}");
    }

    #[test]
    fn the_newest_hints_stay_and_a_name_has_one() {
        let bucket = Bucket::default();
        let tag = |number: u64| number << INO_BITS;
        for number in 0..=8 {
            bucket.note(tag(number), Ino(number + 1));
        }
        assert_eq!(bucket.find(tag(0)), None, "the oldest one went");
        bucket.note(tag(5), Ino(55));
        assert_eq!(bucket.find(tag(5)), Some(Ino(55)));
        bucket.remove(tag(5));
        assert_eq!(bucket.find(tag(5)), None);
        for number in [1, 2, 3, 4, 6, 7, 8] {
            assert_eq!(bucket.find(tag(number)), Some(Ino(number + 1)));
        }
    }

    #[test]
    fn numbers_that_are_too_large_are_not_noted() {
        let hints = Hints::default();
        hints.note(spread(1), Ino(INO_MAX + 1), 1);
        assert_eq!(hints.find(spread(1)), None);
        hints.note(spread(1), Ino(INO_MAX), 1);
        assert_eq!(hints.find(spread(1)), Some(Ino(INO_MAX)));
    }
}
