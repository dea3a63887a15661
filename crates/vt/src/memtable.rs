//! The memtable: what was written and is not in tables yet, of all trees.
//!
//! Entries are in one skiplist, ordered by tree, key, and sequence number (newest first). Range
//! deletes are beside it, for each tree an immutable set that is replaced when one is added.
//!
//! A put whose value went to its zone at once has its place in the list, not its value.
//!
//! Writers come one at a time (a lock inside makes sure); readers of entries take no lock. What is
//! being added may or may not be seen: readers pass over what is newer than they should see.
//!
//! Trees with entries are marked, and keys of branch trees are in a filter, so that a read through
//! a chain of branches does not search the list for each tree of the chain ([`KeyMarks`]).

mod arena;
mod chunks;
mod key_filter;
mod key_marks;
mod node_index;
mod place;
mod skiplist;
mod tree_marks;

use crate::VtError;
use crate::entry::{BoxIter, EntryIter, EntryRef, RangeDelete};
use crate::options::SEALED_COUNT_MAX;
use crate::range_delete::RangeDeletes;
use crate::table::key_hash;
use chunks::Chunks;
use key_marks::KeyMarks;
pub(crate) use place::Place;
pub(crate) use skiplist::{Around, Neighbour};
use skiplist::{Cursor, Position, SkipList};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::{Seqno, TreeId};
use stitch_format::vt_index::IndexEntry;
use tree_marks::TreeMarks;

/// The arena grows by this part of the memtable.
const CHUNK_PART: usize = 16;
const CHUNK_BYTES: std::ops::RangeInclusive<usize> = (4 << 10)..=(256 << 10);

/// A memtable.
#[derive(Debug)]
pub(crate) struct Memtable {
    entries: Arc<SkipList>,
    /// Where its memory comes from.
    chunks: Arc<Chunks>,
    range_deletes: RwLock<BTreeMap<TreeId, Arc<RangeDeletes>>>,
    /// Trees that have range deletes.
    range_delete_marks: TreeMarks,
    no_range_deletes: Arc<RangeDeletes>,
    /// Trees that have entries, and keys of branch trees.
    marks: KeyMarks,
    /// Bytes of range deletes and of the filter.
    beside_bytes: AtomicUsize,
    /// The bytes that it is about to take.
    capacity_hint: usize,
}

impl Memtable {
    /// One that is about to take `capacity_hint` bytes. It may take more.
    pub(crate) fn new(capacity_hint: usize) -> Self {
        let chunk = capacity_hint / CHUNK_PART;
        let chunk = chunk.clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end());
        let budget = capacity_hint.saturating_mul(SEALED_COUNT_MAX + 1);
        Self::on(Arc::new(Chunks::new(chunk, budget)), capacity_hint)
    }

    /// An empty one, in the memory that this one and those before it have left and will leave.
    pub(crate) fn fresh(&self) -> Self {
        Self::on(Arc::clone(&self.chunks), self.capacity_hint)
    }

    /// Gives back the memory that is kept for the next one.
    pub(crate) fn give_back(&self) {
        self.chunks.give_back();
    }

    fn on(chunks: Arc<Chunks>, capacity_hint: usize) -> Self {
        let memtable = Self {
            entries: Arc::new(SkipList::new(Arc::clone(&chunks))),
            chunks,
            range_deletes: RwLock::default(),
            range_delete_marks: TreeMarks::default(),
            no_range_deletes: Arc::default(),
            marks: KeyMarks::default(),
            beside_bytes: AtomicUsize::new(0),
            capacity_hint,
        };
        debug_assert!(memtable.is_empty(), "nothing was added yet");
        memtable
    }

    /// Reports whether no entry of a tree was added yet, nor of another tree with the same mark.
    pub(crate) fn lacks(&self, tree: TreeId) -> bool {
        !self.marks.may_have(tree)
    }

    /// Has the keys of a branch tree go to the filter that reads through branches ask. Has an
    /// effect before the first entry of the tree alone. The caller is the writer.
    pub(crate) fn filter_keys_of(&self, branch: TreeId) {
        let bytes = self.marks.filter_keys_of(branch, self.capacity_hint);
        self.beside_bytes.fetch_add(bytes, Ordering::Relaxed);
        debug_assert!(!self.lacks(branch), "the tree is marked");
    }

    /// Adds an entry. No entry has the same tree, key and sequence number yet.
    pub(crate) fn insert(&self, tree: TreeId, entry: &EntryRef<'_>) {
        debug_assert!(entry.seqno > Seqno(0), "0 is before every write");
        self.marks.add(tree, || key_hash(entry.key));
        self.entries.insert(tree, entry);
        debug_assert!(!self.is_empty(), "the entry is marked");
    }

    /// Adds a put whose value lies in a value block; see [`Self::insert`].
    pub(crate) fn insert_placed(&self, tree: TreeId, entry: &IndexEntry) {
        debug_assert!(entry.is_value, "a value block");
        debug_assert_eq!(entry.min_seqno, entry.max_seqno, "one version");
        let place = Place::of(entry).encode();
        self.marks.add(tree, || key_hash(&entry.last));
        self.entries
            .insert_placed(tree, &entry.last, entry.max_seqno, &place);
        debug_assert!(!self.is_empty(), "the entry is marked");
    }

    /// What stands around the place of a key. Who inserts the key next does not search again.
    pub(crate) fn around(&self, tree: TreeId, key: &[u8]) -> Around<'_> {
        let around = self.entries.around(tree, key);
        debug_assert!(
            around.before.is_none_or(|before| before.key() < key),
            "the entry before is of a smaller key"
        );
        around
    }

    /// The oldest entry of a key: the one that [`Self::around`] finds before the next key.
    pub(crate) fn oldest(&self, tree: TreeId, key: &[u8]) -> Option<Neighbour<'_>> {
        let oldest = self.entries.oldest(tree, key);
        debug_assert!(
            oldest.is_none_or(|oldest| oldest.key() == key),
            "of the key"
        );
        oldest
    }

    /// The entry next after all of a key.
    pub(crate) fn after(&self, tree: TreeId, key: &[u8]) -> Option<Neighbour<'_>> {
        let after = self.entries.after(tree, key);
        debug_assert!(
            after.is_none_or(|after| after.key() > key),
            "of a greater key"
        );
        after
    }

    /// Adds a range delete.
    pub(crate) fn insert_range_delete(&self, tree: TreeId, delete: RangeDelete) {
        debug_assert!(delete.seqno > Seqno(0), "0 is before every write");
        let mut sets = self.range_deletes.write();
        let set = sets.entry(tree).or_default();
        let before = set.bytes();
        *set = Arc::new(set.with(delete));
        let after = set.bytes();
        self.beside_bytes.fetch_add(after, Ordering::Relaxed);
        let sum = self.beside_bytes.fetch_sub(before, Ordering::Relaxed);
        debug_assert!(sum >= before + after, "each set is counted");
        self.range_delete_marks.add(tree);
        debug_assert!(!self.is_empty(), "the range delete is marked");
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes() + self.beside_bytes.load(Ordering::Relaxed)
    }

    /// True if nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.range_delete_marks.is_empty()
    }

    /// Trees with entries or range deletes, in order.
    pub(crate) fn trees(&self) -> Vec<TreeId> {
        let mut trees: Vec<TreeId> = self.range_deletes.read().keys().copied().collect();
        let mut cursor = Cursor::new(Arc::clone(&self.entries));
        let mut from = Some(TreeId(0));
        while let Some(tree) = from {
            cursor.seek(&start_of(tree));
            let found = cursor.current().map(|(tree, _)| tree);
            debug_assert!(
                found.is_none_or(|found| found >= tree),
                "a search goes forward"
            );
            trees.extend(found);
            from = found.and_then(|tree| tree.0.checked_add(1)).map(TreeId);
        }
        trees.sort_unstable();
        trees.dedup();
        trees
    }

    /// Reports whether a tree may have entries or range deletes that a reader sees: they were added
    /// before what it sees became visible.
    pub(crate) fn may_hold(&self, tree: TreeId) -> bool {
        self.marks.may_have(tree) || self.may_delete_ranges(tree)
    }

    /// Reports whether a tree may have entries of a key that a reader sees. The reader goes through
    /// branches, and gives the key's hash if that is asked for. `false` is certain, of entries:
    /// range deletes have no keys.
    #[inline]
    pub(crate) fn may_hold_key(&self, tree: TreeId, hash: impl FnOnce() -> u64) -> bool {
        self.marks.may_have_key(tree, hash)
    }

    /// Reports whether a tree may have range deletes that a reader sees.
    #[inline]
    pub(crate) fn may_delete_ranges(&self, tree: TreeId) -> bool {
        self.range_delete_marks.may_have(tree)
    }

    /// A cursor over the entries of a tree. It carries values that are not in the memtable.
    pub(crate) fn iter(&self, tree: TreeId) -> BoxIter {
        Box::new(MemtableIter {
            cursor: Cursor::new(Arc::clone(&self.entries)),
            tree,
            carried: None,
        })
    }

    /// True if it has so many entries from `start` on and before `end`.
    pub(crate) fn holds(
        &self,
        tree: TreeId,
        (start, end): (&[u8], &[u8]),
        count: u64,
    ) -> Result<bool, VtError> {
        debug_assert!(start <= end, "a range of keys");
        let mut entries = self.iter(tree);
        entries.seek(start, Seqno(u64::MAX))?;
        for _ in 0..count {
            if entries.current().is_none_or(|entry| entry.key >= end) {
                return Ok(false);
            }
            entries.next()?;
        }
        Ok(true)
    }

    /// Visits the versions of a key that are not newer than `max_seqno`, newest first, until told
    /// to stop: each with the place of its value, if that is not in the memtable.
    pub(crate) fn versions_of(
        &self,
        tree: TreeId,
        key: &[u8],
        max_seqno: Seqno,
        visit: &mut dyn FnMut(EntryRef<'_>, Option<Place>) -> ControlFlow<()>,
    ) {
        if !self.marks.may_have(tree) {
            return;
        }
        let mut cursor = Cursor::new(&*self.entries);
        cursor.seek(&Position {
            tree,
            key,
            seqno: max_seqno,
        });
        while let Some((found, entry)) = cursor.current()
            && found == tree
            && entry.key == key
        {
            debug_assert!(entry.seqno <= max_seqno, "newer versions are passed over");
            if visit(entry, cursor.place().map(Place::decode)).is_break() {
                return;
            }
            cursor.next();
        }
    }

    /// The newest range delete over a key that is not newer than `max_seqno`.
    pub(crate) fn newest_covering(
        &self,
        tree: TreeId,
        key: &[u8],
        max_seqno: Seqno,
    ) -> Option<Seqno> {
        if !self.may_delete_ranges(tree) {
            return None;
        }
        let newest = self.range_deletes(tree).newest_covering(key, max_seqno);
        debug_assert!(
            newest.is_none_or(|newest| Seqno(0) < newest && newest <= max_seqno),
            "the reader sees it"
        );
        newest
    }

    /// Range deletes of a tree.
    pub(crate) fn range_deletes(&self, tree: TreeId) -> Arc<RangeDeletes> {
        if self.may_delete_ranges(tree)
            && let Some(set) = self.range_deletes.read().get(&tree)
        {
            return Arc::clone(set);
        }
        Arc::clone(&self.no_range_deletes)
    }
}

/// Before every entry of a tree.
const fn start_of(tree: TreeId) -> Position<'static> {
    Position {
        tree,
        key: &[],
        seqno: Seqno(u64::MAX),
    }
}

/// A cursor over the entries of one tree.
#[derive(Debug)]
struct MemtableIter {
    cursor: Cursor,
    tree: TreeId,
    /// The value block of the entry that it stands on.
    carried: Option<IndexEntry>,
}

impl MemtableIter {
    #[expect(clippy::unnecessary_wraps, reason = "as cursors answer")]
    fn arrive(&mut self) -> Result<(), VtError> {
        self.carried = self
            .cursor
            .place()
            .and_then(|place| Some(Place::decode(place).entry(&self.current()?)));
        debug_assert!(
            self.carried.as_ref().is_none_or(|block| block.is_value),
            "only value blocks have a place"
        );
        debug_assert!(
            self.carried.as_ref().is_none_or(|block| {
                self.current()
                    .is_some_and(|entry| entry.key == block.last.as_slice())
            }),
            "the block is that of the entry"
        );
        Ok(())
    }
}

impl EntryIter for MemtableIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        let tree = self.tree;
        self.cursor.seek(&Position { tree, key, seqno });
        self.arrive()?;
        debug_assert!(
            self.current().is_none_or(|entry| entry.key >= key),
            "it goes to no key before the wanted one"
        );
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        let at = match key {
            Some(key) => Position {
                key,
                ..start_of(self.tree)
            },
            None => start_of(self.tree.next()),
        };
        self.cursor.seek_before(&at);
        self.arrive()?;
        debug_assert!(
            self.current()
                .is_none_or(|entry| key.is_none_or(|key| entry.key < key)),
            "it stands before the key"
        );
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!(self.current().is_some(), "stands on an entry");
        self.cursor.next();
        self.arrive()
    }

    fn prev(&mut self) -> Result<(), VtError> {
        debug_assert!(self.current().is_some(), "stands on an entry");
        self.cursor.prev();
        self.arrive()
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        let (tree, entry) = self.cursor.current()?;
        (tree == self.tree).then_some(entry)
    }

    fn carried(&self) -> Option<&IndexEntry> {
        debug_assert_eq!(
            self.carried.is_some(),
            self.is_on() && self.cursor.place().is_some()
        );
        self.carried.as_ref()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod mark_tests;
#[cfg(test)]
mod tests;
