//! What comes behind the data blocks of a table: its index, its range deletes and its root, and how
//! long they are.

use super::{LEAF_BYTES, TableWriter};
use std::ops::Range;
use stitch_format::block::block_bytes;
use stitch_format::vt_index::{BlockPtr, IndexBuilder, IndexEntry, IndexLayout};
use stitch_format::vt_range_delete::{self, StoredRangeDelete};
use stitch_format::vt_root::{Leaf, RootIndex, TableRoot};

impl TableWriter {
    /// Where index blocks and range delete blocks are cut.
    pub(super) fn leaf_bytes(&self) -> usize {
        self.block_bytes
            .clamp(*LEAF_BYTES.start(), *LEAF_BYTES.end())
    }

    /// Cuts the index into index blocks. One that is small enough goes into the root; it has the
    /// only leaf then.
    pub(super) fn plan_leaves(&self) -> Vec<Range<usize>> {
        let mut leaves = Vec::new();
        let (mut start, mut builder) = (0, IndexBuilder::new());
        for (at, entry) in self.index.iter().enumerate() {
            if builder.len_bytes() >= self.leaf_bytes() {
                leaves.push(start..at);
                (start, builder) = (at, IndexBuilder::new());
            }
            builder.add(entry);
        }
        if !builder.is_empty() {
            leaves.push(start..self.index.len());
        }
        debug_assert_eq!(
            leaves.iter().map(Range::len).sum::<usize>(),
            self.index.len(),
            "an entry is in one leaf"
        );
        debug_assert!(
            leaves.iter().all(|leaf| !leaf.is_empty()),
            "each index block has entries"
        );
        leaves
    }

    pub(super) fn leaf_payload(&self, entries: Range<usize>) -> Vec<u8> {
        debug_assert!(!entries.is_empty(), "an index block has entries");
        debug_assert!(entries.end <= self.index.len(), "the index has the entries");
        let mut builder = IndexBuilder::new();
        for entry in &self.index[entries] {
            builder.add(entry);
        }
        let payload = builder.finish();
        debug_assert!(
            IndexLayout::read(&payload).is_ok(),
            "a reader takes the index block"
        );
        payload
    }

    pub(super) fn range_delete_payloads(&self) -> Vec<Vec<u8>> {
        debug_assert!(
            self.range_deletes
                .is_sorted_by(|delete, next| delete.start <= next.start),
            "range deletes are sorted"
        );
        let mut out = Vec::new();
        let mut batch: Vec<StoredRangeDelete<'_>> = Vec::new();
        let mut bytes = 0;
        for delete in &self.range_deletes {
            let stored = StoredRangeDelete {
                start: &delete.start,
                end: &delete.end,
                seqno: delete.seqno,
            };
            if !batch.is_empty() && bytes + stored.bytes_max() > self.leaf_bytes() {
                out.push(vt_range_delete::encode(&batch));
                batch.clear();
                bytes = 0;
            }
            bytes += stored.bytes_max();
            batch.push(stored);
        }
        if !batch.is_empty() {
            out.push(vt_range_delete::encode(&batch));
        }
        debug_assert_eq!(
            out.is_empty(),
            self.range_deletes.is_empty(),
            "each range delete is in a block"
        );
        debug_assert!(
            out.iter()
                .all(|payload| vt_range_delete::decode(payload).is_ok()),
            "a reader takes the range deletes"
        );
        out
    }

    /// The root, with pointers to nowhere yet.
    pub(super) fn root(&self, leaf_count: usize, range_delete_blocks: usize) -> TableRoot {
        debug_assert!(
            leaf_count <= self.index.len(),
            "each index block has entries"
        );
        debug_assert!(
            range_delete_blocks <= self.range_deletes.len(),
            "each block has range deletes"
        );
        let sum = |count: fn(&IndexEntry) -> u32| {
            let counts = self.index.iter().map(|e| u64::from(count(e)));
            counts.sum::<u64>()
        };
        TableRoot {
            id: self.table.id,
            tree: self.table.tree,
            entry_count: sum(|e| e.entry_count),
            delete_count: sum(|e| e.delete_count),
            range_delete_count: self.range_deletes.len() as u64,
            data_bytes: self.data_bytes,
            range_deletes: vec![BlockPtr::default(); range_delete_blocks],
            index: match leaf_count {
                0 => RootIndex::None,
                _ => RootIndex::Inside(0..0),
            },
        }
    }

    pub(super) fn encode_root(&self, root: &TableRoot, leaves: &[Range<usize>]) -> Vec<u8> {
        debug_assert_eq!(
            matches!(root.index, RootIndex::None),
            leaves.is_empty(),
            "a root without an index is that of a table without keys"
        );
        match (&root.index, leaves) {
            (RootIndex::Inside(_), [leaf]) => root.encode(&self.leaf_payload(leaf.clone())),
            _ => root.encode(&[]),
        }
    }

    /// Lengths on the device of all blocks that are still to be written.
    pub(super) fn tail_lens(
        &self,
        leaves: &[Range<usize>],
        range_deletes: &[Vec<u8>],
        root: &TableRoot,
    ) -> Vec<u64> {
        let padded = |payload: &Vec<u8>| block_bytes(payload.len() as u64);
        let mut lens = self.pending_lens();
        let mut root = root.clone();
        if leaves.len() > 1 {
            lens.extend(
                leaves
                    .iter()
                    .map(|leaf| padded(&self.leaf_payload(leaf.clone()))),
            );
            let leaf = |leaf: &Range<usize>| Leaf {
                last: self.index[leaf.end - 1].last.clone(),
                block: BlockPtr::default(),
            };
            root.index = RootIndex::Leaves(leaves.iter().map(leaf).collect());
        }
        lens.extend(range_deletes.iter().map(padded));
        lens.push(padded(&self.encode_root(&root, leaves)));
        debug_assert!(lens.iter().all(|len| *len > 0), "each block has a length");
        lens
    }
}
