//! Remembers what long chains of upserts were folded to.
//!
//! A row that is upserted again and again (a directory in which files are made) has a chain of all
//! of them until a write-out folds it. A read that had to fold many leaves the value here, with the
//! newest write in it; the next read folds only what is newer. Bounded in entries and in their size.

use bytes::Bytes;
use stitch_base::sync::Mutex;
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

/// Values of some keys, each in the one slot that its hash names.
#[derive(Debug)]
pub(crate) struct FoldedValues {
    slots: Vec<Mutex<Option<Folded>>>,
}

impl Default for FoldedValues {
    fn default() -> Self {
        let slots = (0..SLOT_COUNT).map(|_| Mutex::new(None)).collect();
        Self { slots }
    }
}

impl FoldedValues {
    fn slot(&self, tree: TreeId, key: &[u8]) -> &Mutex<Option<Folded>> {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(key, u64::from(tree.0));
        let index = usize::try_from(hash % SLOT_COUNT).expect("a small number");
        &self.slots[index]
    }

    /// What is remembered of a key, if a reader of `seqno` sees it.
    pub(crate) fn get(&self, tree: TreeId, key: &[u8], seqno: Seqno) -> Option<Folded> {
        let slot = self.slot(tree, key).lock();
        let found = slot.as_ref()?;
        let is_it = found.tree == tree && *found.key == *key && found.seqno <= seqno;
        is_it.then(|| found.clone())
    }

    /// Remembers the value of a key after the write `seqno`.
    pub(crate) fn put(&self, tree: TreeId, key: &[u8], seqno: Seqno, value: Option<&Bytes>) {
        let bytes = key.len() + value.map_or(0, Bytes::len);
        if bytes > ENTRY_BYTES_MAX {
            return;
        }
        let mut slot = self.slot(tree, key).lock();
        let is_newer = slot
            .as_ref()
            .is_some_and(|found| found.tree == tree && *found.key == *key && found.seqno >= seqno);
        if !is_newer {
            *slot = Some(Folded {
                tree,
                key: key.into(),
                seqno,
                value: value.map(|value| Bytes::copy_from_slice(value)),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId(3);

    #[test]
    fn only_readers_that_see_the_write_get_its_value() {
        let values = FoldedValues::default();
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
        let values = FoldedValues::default();
        values.put(TREE, b"key", Seqno(7), None);
        values.put(TREE, b"key", Seqno(5), Some(&Bytes::from_static(b"old")));
        let found = values
            .get(TREE, b"key", Seqno(9))
            .expect("it is remembered");
        assert_eq!((found.seqno, found.value), (Seqno(7), None));
    }

    #[test]
    fn large_values_are_not_remembered() {
        let values = FoldedValues::default();
        let value = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        values.put(TREE, b"key", Seqno(7), Some(&value));
        assert!(values.get(TREE, b"key", Seqno(9)).is_none());
    }
}
