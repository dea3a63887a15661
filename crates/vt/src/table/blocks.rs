//! A cursor over the data blocks of a table, by its index.

use super::Table;
use super::block::{IndexBlock, Root};
use super::block_source::{BlockSource, OneByOne};
use super::leaves::{Reader, Seen};
use super::loader::DataRef;
use crate::VtError;
use crate::cache::ReadCount;
use std::ops::Deref;
use std::sync::Arc;
use stitch_format::FormatError;
use stitch_format::vt_index::{IndexEntry, IndexEntryRef};
use stitch_format::vt_root::{Leaf, RootIndex};

/// Data blocks in key order, and a place among them.
pub(crate) trait BlockList {
    /// Goes to the first block whose last key is at or after `key`.
    fn seek(&mut self, key: &[u8]) -> Result<(), VtError>;

    /// Goes to the last block whose first key is before `key`; with `None` to the last.
    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError>;

    /// One block on.
    fn next(&mut self) -> Result<(), VtError>;

    /// One block back.
    fn prev(&mut self) -> Result<(), VtError>;

    /// What is known of the block it stands on, with sequence numbers as they count; `None` beyond
    /// either end.
    fn current(&self) -> Result<Option<IndexEntryRef<'_>>, VtError>;

    /// Whether the block it stands on may have a key of this hash; `None` where that takes a look
    /// at [`Self::current`] first.
    fn may_hold(&self, _hash: u64) -> Option<bool> {
        None
    }

    /// The block `offset` blocks on, as far as that is known without reading.
    fn ahead(&self, offset: usize) -> Result<Option<DataRef>, VtError>;
}

/// An index block of a table, and the reader that asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafPlace<'a> {
    pub(super) root: &'a Root,
    /// All index blocks of the root.
    pub(super) leaves: &'a [Leaf],
    /// Number of the block.
    pub(super) at: usize,
    pub(super) reader: Reader,
}

/// The blocks of a whole table, which it borrows or shares.
#[derive(Clone, Debug)]
pub(crate) struct TableBlocks<T: Deref<Target = Table>> {
    table: T,
    /// Read with the first seek.
    root: Option<Arc<Root>>,
    leaf_number: usize,
    /// The index block it stands in; `None` beyond either end.
    leaf: Option<Arc<IndexBlock>>,
    entry: usize,
    reader: Reader,
    seen: Seen,
}

impl<T: Deref<Target = Table>> TableBlocks<T> {
    /// A cursor that stands nowhere yet. `reader` is who moves it.
    pub(super) fn new(table: T, reader: Reader) -> Self {
        Self {
            reader,
            table,
            root: None,
            leaf_number: 0,
            leaf: None,
            entry: 0,
            seen: Seen::default(),
        }
    }

    /// Takes what it has seen, for a caller that counts it instead.
    pub(super) fn take_seen(&mut self) -> Seen {
        std::mem::take(&mut self.seen)
    }

    /// It stands on an entry of an index block of its root, or beyond either end.
    fn holds(&self) -> bool {
        self.leaf.as_ref().is_none_or(|leaf| {
            // An index block is one of a root, and the root has it.
            self.root.is_some() && self.leaf_number < self.leaf_count() && self.entry < leaf.len()
        })
    }

    fn open<S: BlockSource>(&mut self, source: &mut S) -> Result<(), S::Error> {
        self.leaf = None;
        if self.root.is_none() {
            self.root = Some(source.root(&self.table, &mut self.seen)?);
        }
        debug_assert!(self.root.is_some(), "an open list has a root");
        Ok(())
    }

    fn index(&self) -> &RootIndex {
        let root = self.root.as_ref();
        root.map_or(&RootIndex::None, |root| &root.root.index)
    }

    fn leaf_count(&self) -> usize {
        match self.index() {
            RootIndex::None => 0,
            RootIndex::Inside(_) => 1,
            RootIndex::Leaves(leaves) => {
                debug_assert!(!leaves.is_empty(), "a root without keys has no index");
                leaves.len()
            }
        }
    }

    fn damaged(&self, error: FormatError) -> VtError {
        debug_assert!(self.root.is_some(), "an index block is one of a root");
        let addr = match self.index() {
            RootIndex::Leaves(leaves) => leaves.get(self.leaf_number).map_or(0, |l| l.block.addr),
            _ => 0,
        };
        self.table.loader.damaged(addr, error)
    }

    /// Goes into an index block; beyond the end if there is none of this number.
    fn enter(&mut self, leaf_number: usize) -> Result<(), VtError> {
        self.enter_from(leaf_number, &mut OneByOne)?;
        debug_assert!(self.holds());
        Ok(())
    }

    /// As [`Self::enter`], with the index block from `source`.
    fn enter_from<S: BlockSource>(
        &mut self,
        leaf_number: usize,
        source: &mut S,
    ) -> Result<(), S::Error> {
        self.leaf = None;
        self.leaf_number = leaf_number;
        self.entry = 0;
        debug_assert!(
            leaf_number <= self.leaf_count(),
            "an index block or the end behind the last one"
        );
        let Some(root) = &self.root else {
            return Ok(());
        };
        self.leaf = match &root.root.index {
            RootIndex::Inside(_) if leaf_number == 0 => root.inside.clone(),
            RootIndex::Leaves(leaves) if leaf_number < leaves.len() => {
                let place = LeafPlace {
                    root,
                    leaves,
                    at: leaf_number,
                    reader: self.reader,
                };
                Some(source.leaf(&self.table.loader, &place, &mut self.seen)?)
            }
            RootIndex::None | RootIndex::Inside(_) | RootIndex::Leaves(_) => None,
        };
        debug_assert_eq!(
            self.leaf.is_some(),
            leaf_number < self.leaf_count(),
            "each index block can be entered"
        );
        Ok(())
    }

    fn enter_last(&mut self, leaf_number: usize) -> Result<(), VtError> {
        debug_assert!(leaf_number < self.leaf_count(), "one of the index blocks");
        self.enter(leaf_number)?;
        self.entry = self.leaf.as_ref().map_or(0, |leaf| leaf.len() - 1);
        debug_assert!(self.holds());
        Ok(())
    }

    /// As [`BlockList::seek`], with root and index block from `source`. An index block that holds
    /// less than its root says is followed by one that is read at once.
    pub(super) fn seek_from<S: BlockSource>(
        &mut self,
        key: &[u8],
        source: &mut S,
    ) -> Result<(), S::Error> {
        self.open(source)?;
        let leaf_number = self.root.as_ref().map_or(0, |root| root.leaf_of(key));
        self.enter_from(leaf_number, source)?;
        let Some(leaf) = &self.leaf else {
            return Ok(());
        };
        let (found, count) = (leaf.find(key), leaf.len());
        self.entry = found.map_err(|e| self.damaged(e))?;
        debug_assert!(
            self.entry <= count,
            "an entry or the end behind the last one"
        );
        if self.entry == count {
            // Only for the last, or where a leaf holds less than its root says.
            self.enter(self.leaf_number + 1)?;
        }
        debug_assert!(self.holds());
        Ok(())
    }
}

impl<T: Deref<Target = Table>> Drop for TableBlocks<T> {
    fn drop(&mut self) {
        let hits = self.take_seen().hits;
        debug_assert_eq!(self.seen.hits, 0, "hits are counted once");
        if hits > 0 {
            self.table
                .loader
                .cache
                .counters()
                .add(ReadCount::Hits, hits);
        }
    }
}

impl<T: Deref<Target = Table>> BlockList for TableBlocks<T> {
    fn seek(&mut self, key: &[u8]) -> Result<(), VtError> {
        self.seek_from(key, &mut OneByOne)?;
        debug_assert!(self.root.is_some(), "a seek has read the root");
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        self.open(&mut OneByOne)?;
        let Some(key) = key else {
            return match self.leaf_count().checked_sub(1) {
                Some(last) => self.enter_last(last),
                None => Ok(()),
            };
        };
        self.seek(key)?;
        if self.leaf.is_none() {
            return self.seek_before(None);
        }
        // Versions of one key may span blocks, so several can begin with it.
        while let Some(entry) = self.current()?
            && entry.first >= key
        {
            self.prev()?;
        }
        debug_assert!(self.holds());
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        let Some(leaf) = &self.leaf else {
            return Ok(());
        };
        self.entry += 1;
        if self.entry == leaf.len() {
            if let RootIndex::Leaves(leaves) = self.index()
                && self.leaf_number + 2 < leaves.len()
            {
                self.table
                    .loader
                    .prefetch_index(leaves, self.leaf_number + 2);
            }
            return self.enter(self.leaf_number + 1);
        }
        debug_assert!(self.holds());
        Ok(())
    }

    fn prev(&mut self) -> Result<(), VtError> {
        if self.leaf.is_none() {
            return Ok(());
        }
        if let Some(before) = self.entry.checked_sub(1) {
            self.entry = before;
            debug_assert!(self.holds());
            return Ok(());
        }
        match self.leaf_number.checked_sub(1) {
            Some(before) => self.enter_last(before),
            None => {
                self.leaf = None;
                Ok(())
            }
        }
    }

    fn current(&self) -> Result<Option<IndexEntryRef<'_>>, VtError> {
        let Some(leaf) = &self.leaf else {
            return Ok(None);
        };
        debug_assert!(self.holds());
        let entry = leaf.entry(self.entry);
        let mut entry = entry.map_err(|e| self.damaged(e))?;
        let loader = &self.table.loader;
        entry.min_seqno = loader.shifted(entry.min_seqno);
        entry.max_seqno = loader.shifted(entry.max_seqno);
        debug_assert!(
            entry.min_seqno <= entry.max_seqno,
            "a shift keeps the order"
        );
        Ok(Some(entry))
    }

    fn may_hold(&self, hash: u64) -> Option<bool> {
        let leaf = self.leaf.as_ref()?;
        debug_assert!(self.holds());
        leaf.may_hold(self.entry, hash)
    }

    fn ahead(&self, offset: usize) -> Result<Option<DataRef>, VtError> {
        let Some(leaf) = &self.leaf else {
            return Ok(None);
        };
        debug_assert!(offset > 0, "ahead of the block that it stands on");
        debug_assert!(self.holds());
        if self.entry + offset >= leaf.len() {
            return Ok(None);
        }
        let entry = leaf.entry(self.entry + offset);
        let entry = entry.map_err(|e| self.damaged(e))?;
        Ok(Some(DataRef::of(&entry)))
    }
}

/// Some blocks, given by their index entries. Invariant: it stands on one of them or beyond either
/// end.
#[derive(Clone, Debug)]
pub(super) struct ListedBlocks {
    entries: Arc<[IndexEntry]>,
    /// `None` beyond either end.
    at: Option<usize>,
}

impl ListedBlocks {
    /// A cursor over these, in key order, that stands nowhere yet.
    pub(super) const fn new(entries: Arc<[IndexEntry]>) -> Self {
        Self { entries, at: None }
    }

    fn set(&mut self, at: usize) {
        debug_assert!(
            at <= self.entries.len(),
            "a block or the end behind the last one"
        );
        self.at = (at < self.entries.len()).then_some(at);
        debug_assert!(self.holds());
    }

    fn holds(&self) -> bool {
        self.at.is_none_or(|at| at < self.entries.len())
    }
}

impl BlockList for ListedBlocks {
    fn seek(&mut self, key: &[u8]) -> Result<(), VtError> {
        self.set(self.entries.partition_point(|e| e.last.as_slice() < key));
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        let after = key.map_or(self.entries.len(), |key| {
            self.entries.partition_point(|e| e.first.as_slice() < key)
        });
        self.at = after.checked_sub(1);
        debug_assert!(self.holds());
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        if let Some(at) = self.at {
            self.set(at + 1);
            debug_assert!(self.at.is_none_or(|next| next == at + 1), "one block on");
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<(), VtError> {
        self.at = self.at.and_then(|at| at.checked_sub(1));
        debug_assert!(self.holds());
        Ok(())
    }

    fn current(&self) -> Result<Option<IndexEntryRef<'_>>, VtError> {
        debug_assert!(self.holds());
        Ok(self.at.map(|at| self.entries[at].borrow()))
    }

    fn ahead(&self, offset: usize) -> Result<Option<DataRef>, VtError> {
        debug_assert!(offset > 0, "ahead of the block that it stands on");
        debug_assert!(self.holds());
        let entry = self.at.and_then(|at| self.entries.get(at + offset));
        Ok(entry.map(|entry| DataRef::of(&entry.borrow())))
    }
}
