//! Which records a serializable transaction has read: keys, ranges that were scanned, whole trees.
//!
//! A scan counts as a read of its whole range. More than [`KEYS_BYTES_MAX`] of keys and ranges
//! count as the whole tree.

use super::ReadSet;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::TreeId;
use stitch_kv::{Guards, KeyRange};

/// Most bytes of keys and ranges of one tree.
const KEYS_BYTES_MAX: usize = 256 << 10;
/// What a key costs beside its bytes.
const KEY_BYTES: usize = 64;
const _: () = assert!(
    KEYS_BYTES_MAX > KEY_BYTES,
    "keys are noted before the tree is"
);

/// What was read of a tree.
#[derive(Clone, Debug)]
pub(in crate::transaction) enum TreeReads {
    Some(SomeReads),
    Whole,
}

/// Keys and ranges of one tree.
#[derive(Clone, Debug, Default)]
pub(in crate::transaction) struct SomeReads {
    keys: BTreeSet<Vec<u8>>,
    /// Start, and end if there is one.
    ranges: BTreeSet<(Vec<u8>, Option<Vec<u8>>)>,
    bytes: usize,
}

impl SomeReads {
    /// Reports whether the bytes are those of the keys and ranges, which have a bound.
    fn holds(&self) -> bool {
        let least = (self.keys.len() + self.ranges.len()) * KEY_BYTES;
        self.bytes >= least
    }
}

impl TreeReads {
    /// Adds guards on all of it in a tree.
    pub(in crate::transaction) fn guard(&self, tree: TreeId, guards: &mut Guards) {
        let Self::Some(some) = self else {
            return guards.range(tree, KeyRange::all());
        };
        debug_assert!(some.holds());
        debug_assert!(some.bytes <= KEYS_BYTES_MAX, "more is the whole tree");
        some.keys.iter().for_each(|key| guards.key(tree, key));
        for (start, end) in &some.ranges {
            let end = end.as_deref();
            guards.range(tree, KeyRange { start, end });
        }
    }

    /// Adds something, unless all counts already. `add` returns how many bytes it takes.
    fn add(&mut self, add: impl FnOnce(&mut SomeReads) -> usize) {
        let Self::Some(some) = self else {
            return;
        };
        debug_assert!(some.bytes <= KEYS_BYTES_MAX, "more is the whole tree");
        some.bytes += add(some);
        debug_assert!(some.bytes > 0, "something was read");
        debug_assert!(some.holds());
        if some.bytes > KEYS_BYTES_MAX {
            *self = Self::Whole;
        }
    }
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

    fn tree(&mut self, tree: TreeId) -> &mut TreeReads {
        let none = || TreeReads::Some(SomeReads::default());
        self.trees.entry(tree).or_insert_with(none)
    }
}

impl ReadSet {
    /// Notes a record, or that there is none.
    pub(in crate::transaction) fn note_record(&self, tree: TreeId, key: &[u8]) {
        debug_assert_eq!(self.clone, 0, "no clone has records");
        for set in self.all_outwards() {
            set.records.lock().tree(tree).add(|some| {
                let is_new = !some.keys.contains(key) && some.keys.insert(key.to_vec());
                usize::from(is_new) * (key.len() + KEY_BYTES)
            });
        }
    }

    /// Notes all records of a range.
    pub(in crate::transaction) fn note_records(&self, tree: TreeId, range: KeyRange<'_>) {
        let (start, end) = (range.start.to_vec(), range.end.map(<[u8]>::to_vec));
        let bytes = start.len() + end.as_ref().map_or(0, Vec::len) + KEY_BYTES;
        for set in self.all_outwards() {
            set.records.lock().tree(tree).add(|some| {
                let is_new = some.ranges.insert((start.clone(), end.clone()));
                usize::from(is_new) * bytes
            });
        }
    }

    /// Returns what was read of records.
    pub(super) fn record_reads(&self) -> RecordReads {
        debug_assert_eq!(self.clone, 0, "no clone has records");
        self.records.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stitch_base::Seqno;
    use stitch_kv::Snapshot;

    /// Guards on what was read of a tree.
    fn guards(set: &ReadSet, tree: TreeId) -> usize {
        let mut guards = Guards::since(&Snapshot::new(Seqno(1), Arc::new(())));
        let reads = set.record_reads();
        let read = reads.of_tree(tree).expect("something was read");
        read.guard(tree, &mut guards);
        guards.count()
    }

    #[test]
    fn many_keys_are_the_whole_tree() {
        let set = ReadSet::new(16);
        let (one, two) = (TreeId(7), TreeId(8));
        let is_whole = |tree| matches!(set.record_reads().of_tree(tree), Some(TreeReads::Whole));
        for _ in 0..2 {
            set.note_record(one, b"a");
            set.note_records(one, KeyRange::new(b"b", b"d"));
            set.note_records(one, KeyRange::from(b"x"));
        }
        assert!(guards(&set, one) == 3 && !is_whole(one));
        assert!(set.record_reads().of_tree(two).is_none());
        for index in 0..KEYS_BYTES_MAX / KEY_BYTES {
            set.note_record(one, &index.to_be_bytes());
            set.note_records(two, KeyRange::from(&index.to_be_bytes()));
        }
        assert!(is_whole(one) && is_whole(two));
        set.note_record(two, b"a");
        assert!(is_whole(two) && guards(&set, two) == 1);
        let unknown = ReadSet::unknown(16).record_reads();
        assert!(matches!(unknown.of_tree(TreeId(9)), Some(TreeReads::Whole)));
    }
}
