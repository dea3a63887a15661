//! stub
use crate::entry::{BoxIter, EntryRef, RangeDelete};
use crate::range_delete::RangeDeletes;
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};

/// A memtable.
#[derive(Debug)]
pub(crate) struct Memtable;

impl Memtable {
    /// One that is about to take `capacity_hint` bytes.
    pub(crate) fn new(_capacity_hint: usize) -> Self {
        Self
    }
    /// Adds an entry.
    pub(crate) fn insert(&self, _tree: TreeId, _entry: &EntryRef<'_>) {}
    /// Adds a range delete.
    pub(crate) fn insert_range_delete(&self, _tree: TreeId, _delete: RangeDelete) {}
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        0
    }
    /// True if nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        true
    }
    /// Trees with entries or range deletes.
    pub(crate) fn trees(&self) -> Vec<TreeId> {
        Vec::new()
    }
    /// A cursor over the entries of a tree.
    pub(crate) fn iter(self: &Arc<Self>, _tree: TreeId) -> BoxIter {
        unimplemented!()
    }
    /// Versions of a key, newest first.
    pub(crate) fn versions_of(
        &self,
        _tree: TreeId,
        _key: &[u8],
        _max_seqno: Seqno,
        _visit: &mut dyn FnMut(EntryRef<'_>, Option<&Bytes>) -> ControlFlow<()>,
    ) {
    }
    /// Range deletes of a tree.
    pub(crate) fn range_deletes(&self, _tree: TreeId) -> Arc<RangeDeletes> {
        Arc::default()
    }
}
