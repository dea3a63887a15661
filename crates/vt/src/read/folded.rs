//! Remembers what long chains of upserts were folded to.
//!
//! A row that is upserted again and again (a directory in which files are made) has a chain of all
//! of them until a write-out folds it. A read that had to fold many leaves the value here, with the
//! newest write in it; the next read folds only what is newer. Bounded in entries, and in their
//! bytes.

use bytes::Bytes;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::{Seqno, TreeId};

/// Chains shorter than this are not worth it.
pub(crate) const CHAIN_COUNT_MIN: usize = 8;
const SLOT_COUNT: u64 = 512;
/// Longest key and value together that are remembered.
const ENTRY_BYTES_MAX: usize = 8 << 10;

/// The value of a key after a certain write.
#[derive(Clone, Debug)]
pub(crate) struct Folded {
    tree: TreeId,
    key: Box<[u8]>,
    /// The newest write in the value.
    pub(crate) seqno: Seqno,
    /// The value; `None` for none.
    pub(crate) value: Option<Bytes>,
}

impl Folded {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// Values of some keys, each in the one slot that its hash names.
#[derive(Debug)]
pub(crate) struct FoldedValues {
    slots: Vec<Mutex<Option<Folded>>>,
    bytes_max: usize,
    /// Bytes of all keys and values. Changes of a slot are counted with its lock held.
    bytes: AtomicUsize,
    /// The slot that makes room next.
    hand: AtomicUsize,
}

impl FoldedValues {
    /// None yet; keys and values of at most so many bytes in all are remembered.
    pub(crate) fn new(bytes_max: usize) -> Self {
        const { assert!(CHAIN_COUNT_MIN > 1, "one upsert is no chain") };
        let slots = (0..SLOT_COUNT).map(|_| Mutex::new(None)).collect();
        Self {
            slots,
            bytes_max,
            bytes: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
        }
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Forgets some values, until all of them and `more` bytes keep within the bound.
    fn make_room(&self, more: usize) {
        debug_assert!(more <= ENTRY_BYTES_MAX, "long values are not remembered");
        for _ in 0..SLOT_COUNT {
            if self.bytes() + more <= self.bytes_max {
                return;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            let mut slot = self.slots[hand % self.slots.len()].lock();
            self.replace(&mut slot, None);
        }
    }

    fn replace(&self, slot: &mut Option<Folded>, with: Option<Folded>) {
        let bytes = |of: &Option<Folded>| of.as_ref().map_or(0, Folded::bytes);
        debug_assert!(
            bytes(&with) <= ENTRY_BYTES_MAX,
            "long values are not remembered"
        );
        self.bytes.fetch_add(bytes(&with), Ordering::Relaxed);
        let before = std::mem::replace(slot, with);
        let sum = self.bytes.fetch_sub(bytes(&before), Ordering::Relaxed);
        debug_assert!(sum >= bytes(&before), "remembered bytes are counted");
    }

    fn slot(&self, tree: TreeId, key: &[u8]) -> &Mutex<Option<Folded>> {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(key, u64::from(tree.0));
        debug_assert_eq!(self.slots.len() as u64, SLOT_COUNT, "each hash has a slot");
        let index = usize::try_from(hash % SLOT_COUNT).expect("a small number");
        &self.slots[index]
    }

    /// What is remembered of a key, if a reader of `seqno` sees it.
    pub(crate) fn get(&self, tree: TreeId, key: &[u8], seqno: Seqno) -> Option<Folded> {
        let slot = self.slot(tree, key).lock();
        let found = slot.as_ref()?;
        debug_assert!(
            found.bytes() <= ENTRY_BYTES_MAX,
            "long values are not remembered"
        );
        let is_it = found.tree == tree && *found.key == *key && found.seqno <= seqno;
        is_it.then(|| found.clone())
    }

    /// Remembers the value of a key after the write `seqno`.
    pub(crate) fn put(&self, tree: TreeId, key: &[u8], seqno: Seqno, value: Option<&Bytes>) {
        let bytes = key.len() + value.map_or(0, Bytes::len);
        if bytes > ENTRY_BYTES_MAX {
            return;
        }
        self.make_room(bytes);
        let mut slot = self.slot(tree, key).lock();
        let is_newer = slot
            .as_ref()
            .is_some_and(|found| found.tree == tree && *found.key == *key && found.seqno >= seqno);
        if !is_newer {
            let folded = Folded {
                tree,
                key: key.into(),
                seqno,
                value: value.map(|value| Bytes::copy_from_slice(value)),
            };
            debug_assert_eq!(folded.bytes(), bytes, "as many as room was made for");
            self.replace(&mut slot, Some(folded));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId(3);

    #[test]
    fn only_readers_that_see_the_write_get_its_value() {
        let values = FoldedValues::new(1 << 20);
        let value = Bytes::from_static(b"value");
        values.put(TREE, b"key", Seqno(7), Some(&value));
        assert!(values.get(TREE, b"key", Seqno(6)).is_none());
        assert!(values.get(TREE, b"kez", Seqno(9)).is_none());
        assert!(values.get(TreeId(4), b"key", Seqno(9)).is_none());
        let found = values
            .get(TREE, b"key", Seqno(7))
            .expect("it is remembered");
        assert_eq!((found.seqno, found.value), (Seqno(7), Some(value)));
    }

    #[test]
    fn older_values_do_not_replace_newer_ones() {
        let values = FoldedValues::new(1 << 20);
        values.put(TREE, b"key", Seqno(7), None);
        values.put(TREE, b"key", Seqno(5), Some(&Bytes::from_static(b"old")));
        let found = values
            .get(TREE, b"key", Seqno(9))
            .expect("it is remembered");
        assert_eq!((found.seqno, found.value), (Seqno(7), None));
    }

    #[test]
    fn large_values_are_not_remembered() {
        let values = FoldedValues::new(1 << 20);
        let value = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        values.put(TREE, b"key", Seqno(7), Some(&value));
        assert!(values.get(TREE, b"key", Seqno(9)).is_none());
    }

    #[test]
    fn values_keep_within_the_bound_and_new_ones_find_room() {
        let bytes_max = 64 << 10;
        let values = FoldedValues::new(bytes_max);
        let value = Bytes::from(vec![7; 5000]);
        for number in 0..2000u64 {
            let key = number.to_be_bytes();
            values.put(TREE, &key, Seqno(number), Some(&value));
            assert!(values.bytes() <= bytes_max, "after {number}");
            assert!(values.get(TREE, &key, Seqno(number)).is_some());
        }
        assert!(values.bytes() > bytes_max / 2, "{}", values.bytes());
        let held = values.slots.iter().filter_map(|slot| slot.lock().clone());
        assert_eq!(held.map(|f| f.bytes()).sum::<usize>(), values.bytes());
    }
}
