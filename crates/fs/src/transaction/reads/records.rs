//! Which records a serializable transaction has read: single keys, or whole trees.
//!
//! A scan counts as a read of its whole tree, and so do more than [`KEYS_BYTES_MAX`] of keys.

use super::ReadSet;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::TreeId;

/// Most bytes of keys of one tree.
const KEYS_BYTES_MAX: usize = 256 << 10;
/// What a key costs beside its bytes.
const KEY_BYTES: usize = 64;

/// What was read of a tree.
#[derive(Clone, Debug)]
pub(in crate::transaction) enum TreeReads {
    Keys {
        keys: BTreeSet<Vec<u8>>,
        bytes: usize,
    },
    Whole,
}

/// What was read of each tree of records.
#[derive(Clone, Debug, Default)]
pub(in crate::transaction) struct RecordReads {
    trees: BTreeMap<TreeId, TreeReads>,
    /// Some of it is not known: all trees count as read.
    pub(super) is_unknown: bool,
}

impl RecordReads {
    /// Returns what was read of a tree, if anything was.
    pub(in crate::transaction) fn of_tree(&self, tree: TreeId) -> Option<&TreeReads> {
        match self.is_unknown {
            true => Some(&TreeReads::Whole),
            false => self.trees.get(&tree),
        }
    }

    fn note_key(&mut self, tree: TreeId, key: &[u8]) {
        let reads = self.trees.entry(tree).or_insert_with(|| TreeReads::Keys {
            keys: BTreeSet::new(),
            bytes: 0,
        });
        let TreeReads::Keys { keys, bytes } = reads else {
            return;
        };
        if !keys.contains(key) {
            *bytes += key.len() + KEY_BYTES;
            keys.insert(key.to_vec());
        }
        if *bytes > KEYS_BYTES_MAX {
            *reads = TreeReads::Whole;
        }
    }
}

impl ReadSet {
    /// Notes a record, or that there is none.
    pub(in crate::transaction) fn note_record(&self, tree: TreeId, key: &[u8]) {
        self.records.lock().note_key(tree, key);
    }

    /// Notes all records of a tree.
    pub(in crate::transaction) fn note_records(&self, tree: TreeId) {
        self.records.lock().trees.insert(tree, TreeReads::Whole);
    }

    /// Returns what was read of records.
    pub(super) fn record_reads(&self) -> RecordReads {
        self.records.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_keys_and_scans_are_the_whole_tree() {
        let set = ReadSet::new(16);
        let (one, two) = (TreeId(7), TreeId(8));
        let is_whole = |tree| matches!(set.record_reads().of_tree(tree), Some(TreeReads::Whole));
        set.note_record(one, b"a");
        set.note_record(one, b"a");
        let reads = set.record_reads();
        let Some(TreeReads::Keys { keys, bytes }) = reads.of_tree(one) else {
            panic!("one key was read");
        };
        assert_eq!((keys.len(), *bytes), (1, 1 + KEY_BYTES));
        assert!(reads.of_tree(two).is_none());
        for index in 0..KEYS_BYTES_MAX / KEY_BYTES {
            set.note_record(one, &index.to_be_bytes());
        }
        assert!(is_whole(one) && !is_whole(two));
        set.note_records(two);
        set.note_record(two, b"a");
        assert!(is_whole(two));
        let unknown = ReadSet::unknown(16).record_reads();
        assert!(matches!(unknown.of_tree(TreeId(9)), Some(TreeReads::Whole)));
    }
}
