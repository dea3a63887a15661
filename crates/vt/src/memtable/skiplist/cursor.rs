//! A cursor over the entries of a skiplist.
#![expect(unsafe_code, reason = "nodes are found by pointers into the list")]

use super::SkipList;
use super::node::{Node, NodeRef, Position, Sought};
use crate::entry::EntryRef;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use stitch_base::TreeId;

/// A place in a list, which it keeps alive or borrows.
#[derive(Debug)]
pub(in crate::memtable) struct Cursor<L: Deref<Target = SkipList> = Arc<SkipList>> {
    list: L,
    /// Null beyond either end.
    node: *const Node,
}

// SAFETY: the node belongs to the list, which lives as long as the cursor; see the list.
unsafe impl<L: Deref<Target = SkipList> + Send> Send for Cursor<L> {}
// SAFETY: as above.
unsafe impl<L: Deref<Target = SkipList> + Sync> Sync for Cursor<L> {}

impl<L: Deref<Target = SkipList>> Cursor<L> {
    /// A cursor beyond the end. `list` is an `Arc` or a reference: it always leads to the same one.
    pub(in crate::memtable) fn new(list: L) -> Self {
        Self {
            list,
            node: ptr::null(),
        }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the node belongs to the list, which lives as long as self.
        unsafe { NodeRef::new(self.node.cast_mut()) }
    }

    /// Reports whether the entry it stands on is before another one.
    fn is_before(&self, other: NodeRef<'_>) -> bool {
        let own = self.node().map(NodeRef::position);
        own.is_some_and(|own| other.cmp(&Sought::new(&own)).is_gt())
    }

    fn set(node: Option<NodeRef<'_>>) -> *const Node {
        node.map_or(ptr::null(), |node| node.as_ptr().cast_const())
    }

    /// Goes to the first entry at or after `at`.
    pub(in crate::memtable) fn seek(&mut self, at: &Position<'_>) {
        let at = Sought::new(at);
        let mut node = self.list.before(&at).next(0);
        // Since the search looked, entries may have been linked in before `at`.
        while let Some(found) = node
            && found.cmp(&at).is_lt()
        {
            node = found.next(0);
        }
        debug_assert!(node.is_none_or(|node| !self.list.is_head(node)), "an entry");
        debug_assert!(
            node.is_none_or(|node| node.cmp(&at).is_ge()),
            "entries before the position are passed over"
        );
        self.node = Self::set(node);
    }

    /// Goes to the last entry before `at`.
    pub(in crate::memtable) fn seek_before(&mut self, at: &Position<'_>) {
        let before = self.list.before(&Sought::new(at));
        debug_assert!(
            self.list.is_head(before) || before.cmp(&Sought::new(at)).is_lt(),
            "the entry is before the position"
        );
        self.node = Self::set((!self.list.is_head(before)).then_some(before));
    }

    /// One entry on. Does nothing beyond the end.
    pub(in crate::memtable) fn next(&mut self) {
        let next = self.node().and_then(|node| node.next(0));
        debug_assert!(
            next.is_none_or(|next| self.is_before(next)),
            "entries are in order"
        );
        self.node = Self::set(next);
    }

    /// One entry back. Does nothing beyond the end.
    pub(in crate::memtable) fn prev(&mut self) {
        let Some(node) = self.node() else { return };
        let before = self.list.before(&Sought::new(&node.position()));
        debug_assert!(
            self.list.is_head(before) || before.cmp(&Sought::new(&node.position())).is_lt(),
            "entries are in order"
        );
        self.node = Self::set((!self.list.is_head(before)).then_some(before));
    }

    /// The entry it stands on, and its tree.
    pub(in crate::memtable) fn current(&self) -> Option<(TreeId, EntryRef<'_>)> {
        debug_assert!(
            self.node().is_none_or(|node| !self.list.is_head(node)),
            "the head is no entry"
        );
        self.node()
            .map(|node| (TreeId(node.node().tree), node.entry()))
    }

    /// What tells where the value of the entry lies, if that is not in the list.
    pub(in crate::memtable) fn place(&self) -> Option<&[u8]> {
        debug_assert!(
            self.node()
                .is_none_or(|node| node.place().is_none_or(|place| !place.is_empty())),
            "a place has bytes"
        );
        self.node()?.place()
    }
}
