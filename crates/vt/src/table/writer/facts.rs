//! What is noted about a data block while it is filled.

use super::{NewTable, key_hash};
use crate::entry::{EntryRef, Op};
use stitch_base::Seqno;
use stitch_filter::{QuotientFilter, QuotientFilterRef};
use stitch_format::vt_index::{BlockPtr, IndexEntry};

#[derive(Debug, Default)]
pub(super) struct BlockFacts {
    first: Option<Vec<u8>>,
    hashes: Vec<u64>,
    entry_count: u32,
    delete_count: u32,
    pub(super) has_versions: bool,
    seqnos: Option<(Seqno, Seqno)>,
}

impl BlockFacts {
    /// Notes an entry. `is_version`: its key is that of the entry before, in this block or not.
    pub(super) fn add(&mut self, entry: &EntryRef<'_>, is_version: bool) {
        if self.first.is_none() || !is_version {
            self.hashes.push(key_hash(entry.key));
        }
        debug_assert!(
            self.first.as_deref().is_none_or(|first| first <= entry.key),
            "keys rise"
        );
        self.first.get_or_insert_with(|| entry.key.to_vec());
        self.entry_count += 1;
        self.delete_count += u32::from(entry.op == Op::Delete);
        let (min, max) = self.seqnos.unwrap_or((entry.seqno, entry.seqno));
        self.seqnos = Some((min.min(entry.seqno), max.max(entry.seqno)));
    }

    /// The index entry of the block, which is written for `table`.
    pub(super) fn into_entry(
        mut self,
        table: &NewTable,
        last: &[u8],
        block: BlockPtr,
        raw_bytes: u32,
    ) -> IndexEntry {
        let (min_seqno, max_seqno) = self.seqnos.expect("a block holds an entry");
        debug_assert!(self.delete_count <= self.entry_count, "deletes are entries");
        debug_assert!(
            self.hashes.len() <= self.entry_count as usize,
            "a key is hashed once"
        );
        debug_assert!(
            self.first
                .as_ref()
                .is_some_and(|first| first.as_slice() <= last),
            "keys rise"
        );
        let mut filter = Vec::new();
        QuotientFilter::build(&mut self.hashes, table.precision, &mut filter);
        debug_assert!(!filter.is_empty(), "a filter has a header");
        debug_assert!(
            self.hashes
                .iter()
                .all(|hash| QuotientFilterRef::of_checked(&filter).may_contain(*hash)),
            "a filter denies no key of its block"
        );
        IndexEntry {
            first: self.first.expect("a block holds an entry"),
            last: last.to_vec(),
            block,
            origin: table.id,
            raw_bytes,
            entry_count: self.entry_count,
            delete_count: self.delete_count,
            has_versions: self.has_versions,
            is_value: false,
            min_seqno,
            max_seqno,
            filter,
        }
    }
}
