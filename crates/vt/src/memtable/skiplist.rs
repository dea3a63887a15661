//! A skiplist in an arena: entries are added by one writer at a time and never change or go away
//! before the list does; readers take no lock.
//!
//! A node lies in one piece of memory: its fixed part, its tower of links, its key, its value. A
//! writer fills a node in completely, then links it level by level from the bottom with release
//! stores; a reader that finds it (acquire loads) sees all of it. A node is on level `n + 1` with
//! a probability of one in four.
//!
//! Of entries that are no upserts the writer may note something; readers do not look at that.
//!
//! A search that comes to a node waits for memory, most of the time. So the fixed part ends with
//! what nearly always decides, the tree and the first bytes of the key as a number (`prefix`), next
//! to the links; and the memory of the node after the next is asked for while the next is compared.
//!
//! An insert keeps the path of its search (`Splice`). The next insert begins at the lowest level of
//! that path which covers its key, so keys in order cost a few comparisons. Inserts of other keys
//! begin at a node of a middle level (`index`); only nodes taller than that level need a search
//! from the top. `Again` keeps the node of a key that is upserted repeatedly: one comparison finds
//! it.
//!
//! Paper: Pugh, *Skip Lists: A Probabilistic Alternative to Balanced Trees*, 1990.
#![expect(
    unsafe_code,
    reason = "nodes of variable length that are read while others are linked in"
)]

mod cursor;
mod node;

pub(super) use cursor::Cursor;
pub(super) use node::Position;

use super::arena::Arena;
use super::chunks::Chunks;
use super::node_index::{Front, NodeIndex};
use crate::entry::{EntryRef, Op};
use node::{Node, NodeContent, NodeRef, PLACED, Sought, UPSERT, new_node};
use std::ptr;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicUsize, Ordering as Memory};
use stitch_base::{Seqno, TreeId};

/// Most levels: enough for 4^12 entries.
const HEIGHT_MAX: usize = 12;
/// A node is on the next level once in this many times.
const BRANCHING: u64 = 4;
/// Levels on which an insert searches near the one before it. Beyond them it begins at the index.
const CLIMB_MAX: usize = 3;
/// Of so many keys that were upserted lately it is remembered where they are.
const AGAIN_COUNT: usize = 8;
/// Nodes on this level, one in sixteen, are in the index: few enough for the processor's caches.
const POST_LEVEL: usize = 2;

// The levels that a splice always has reach up to that of the index.
const _: () = assert!(CLIMB_MAX <= POST_LEVEL + 1 && POST_LEVEL < HEIGHT_MAX);
// A slot is found by one byte of a hash; a node keeps its height in one.
const _: () = assert!(AGAIN_COUNT <= 1 << u8::BITS && HEIGHT_MAX <= u8::MAX as usize);

/// Where a key stands that was upserted lately.
#[derive(Clone, Copy)]
struct Again {
    front: Front,
    /// A node of [`POST_LEVEL`] before it: the last one, unless others were linked in since.
    before: *mut Node,
}

/// The slot that a key with this front has.
fn slot_of((tree, prefix): Front) -> usize {
    let mixed = (prefix ^ u64::from(tree)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::from(mixed.to_be_bytes()[0]) % AGAIN_COUNT
}

/// What only the writer uses.
struct Writer {
    arena: Arena,
    rng: Rng,
    /// On each level, up to `spliced`, the last node at or before the entry that was added last.
    splice: [*mut Node; HEIGHT_MAX],
    /// Levels on which the splice is that: all, or those up to that of the index.
    spliced: usize,
    /// Keys that were upserted lately, each in the one slot that its front names.
    again: [Again; AGAIN_COUNT],
    /// The nodes of [`POST_LEVEL`].
    index: NodeIndex<*mut Node>,
}

/// The list.
pub(super) struct SkipList {
    head: *mut Node,
    height: AtomicUsize,
    bytes: AtomicUsize,
    writer: Mutex<Writer>,
}

// SAFETY: the pointers lead into the arena, which the list owns. Nodes are written before they are
// published and only by the holder of the writer's lock; after that only their links change, which
// are atomic.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl std::fmt::Debug for SkipList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skiplist of {} bytes", self.bytes())
    }
}

impl SkipList {
    /// An empty list in these chunks.
    pub(super) fn new(chunks: Arc<Chunks>) -> Self {
        let mut arena = Arena::new(chunks);
        let entry = EntryRef {
            key: &[],
            seqno: Seqno(u64::MAX),
            op: Op::Delete,
        };
        let head = new_node(&mut arena, TreeId(0), &NodeContent::of(&entry), HEIGHT_MAX);
        Self {
            head,
            height: AtomicUsize::new(1),
            bytes: AtomicUsize::new(arena.bytes()),
            writer: Mutex::new(Writer {
                arena,
                rng: Rng::new(0x5717_c4f5),
                splice: [head; HEIGHT_MAX],
                spliced: HEIGHT_MAX,
                again: [Again {
                    front: (0, 0),
                    before: head,
                }; AGAIN_COUNT],
                index: NodeIndex::new(),
            }),
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Memory::Relaxed)
    }

    fn head(&self) -> NodeRef<'_> {
        // SAFETY: the head was made with the list.
        let head = unsafe { NodeRef::new(self.head) }.expect("a list has a head");
        debug_assert_eq!(
            usize::from(head.node().height),
            HEIGHT_MAX,
            "it is on all levels"
        );
        head
    }

    fn is_head(&self, node: NodeRef<'_>) -> bool {
        ptr::eq(node.as_ptr(), self.head)
    }

    /// Reports whether a position lies between a node, or the head, and the next one on a level.
    fn is_around(&self, node: NodeRef<'_>, level: usize, at: &Sought<'_>) -> bool {
        debug_assert!(level < HEIGHT_MAX, "a level of the list");
        let is_after = self.is_head(node) || node.cmp(at).is_lt();
        is_after && node.next(level).is_none_or(|next| next.cmp(at).is_gt())
    }

    /// Adds an entry. Its position is not taken yet.
    pub(super) fn insert(&self, tree: TreeId, entry: &EntryRef<'_>) {
        self.insert_content(tree, &NodeContent::of(entry));
    }

    /// Adds a put whose value lies elsewhere, at a place that these bytes tell.
    pub(super) fn insert_placed(&self, tree: TreeId, key: &[u8], seqno: Seqno, place: &[u8]) {
        debug_assert!(!place.is_empty(), "a place has bytes");
        let content = NodeContent {
            key,
            seqno,
            kind: PLACED,
            function: 0,
            value: place,
        };
        self.insert_content(tree, &content);
    }

    fn insert_content(&self, tree: TreeId, entry: &NodeContent<'_>) {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        let mut height = 1;
        while height < HEIGHT_MAX && writer.rng.one_in(BRANCHING) {
            height += 1;
        }
        let at = Position {
            tree,
            key: entry.key,
            seqno: entry.seqno,
        };
        let sought = Sought::new(&at);
        self.move_splice(writer, &sought, height);
        debug_assert!(
            writer.spliced >= height,
            "the splice has the levels of the node"
        );
        if entry.kind == UPSERT {
            writer.again[slot_of(sought.front)] = Again {
                front: sought.front,
                before: writer.splice[POST_LEVEL],
            };
        }
        let node = new_node(&mut writer.arena, tree, entry, height);
        // SAFETY: the node was just filled in.
        let new = unsafe { NodeRef::new(node) }.expect("a node was made");
        debug_assert!(new.cmp(&sought).is_eq(), "the node has the position");
        debug_assert_eq!(new.value(), entry.value, "the node has the value");
        for level in 0..height {
            // SAFETY: a splice holds nodes of this list.
            let before = unsafe { NodeRef::new(writer.splice[level]) }.expect("a node");
            debug_assert!(
                self.is_around(before, level, &sought),
                "the splice is there"
            );
            let link = before.link(level);
            new.link(level)
                .store(link.load(Memory::Relaxed), Memory::Relaxed);
            link.store(node, Memory::Release);
            writer.splice[level] = node;
        }
        if height > POST_LEVEL {
            let is_before = |other| is_before(other, &sought);
            writer.index.add(sought.front, node, is_before);
        }
        debug_assert!(
            new.next(0).is_none_or(|next| next.cmp(&sought).is_gt()),
            "the entry next to it comes after it"
        );
        self.height.fetch_max(height, Memory::Relaxed);
        debug_assert!(
            self.height.load(Memory::Relaxed) >= height,
            "searches begin above it"
        );
        let bytes = writer.arena.bytes() + writer.index.bytes();
        debug_assert!(self.bytes() <= bytes, "the memory of a list never shrinks");
        self.bytes.store(bytes, Memory::Relaxed);
    }

    /// What stands around the place of a key. An insert of this key finds its place at once.
    pub(super) fn around(&self, tree: TreeId, key: &[u8]) -> Around<'_> {
        let seqno = Seqno(u64::MAX);
        let at = Sought::new(&Position { tree, key, seqno });
        let mut writer = self.writer.lock();
        self.move_splice(&mut writer, &at, 1);
        // SAFETY: a splice holds nodes of this list.
        let before = unsafe { NodeRef::new(writer.splice[0]) }.expect("a node");
        let next = before.next(0);
        debug_assert!(
            self.is_head(before) || before.cmp(&at).is_lt(),
            "the node is before the key"
        );
        Around {
            before: (!self.is_head(before) && before.node().tree == tree.0)
                .then_some(Neighbour(before)),
            is_new: next.is_none_or(|next| next.node().tree != tree.0 || next.key() != key),
        }
    }

    /// The oldest entry of a key.
    pub(super) fn oldest(&self, tree: TreeId, key: &[u8]) -> Option<Neighbour<'_>> {
        let is_it = |node: &NodeRef<'_>| node.node().tree == tree.0 && node.key() == key;
        // SAFETY: a splice holds nodes of this list.
        let newest = unsafe { NodeRef::new(self.writer.lock().splice[0]) };
        let only = newest.filter(|node| is_it(node) && !node.next(0).is_some_and(|n| is_it(&n)));
        let found = only.unwrap_or_else(|| {
            let seqno = Seqno(0);
            self.before(&Sought::new(&Position { tree, key, seqno }))
        });
        (!self.is_head(found) && is_it(&found)).then_some(Neighbour(found))
    }

    /// The entry next after all of a key, in the same tree.
    pub(super) fn after(&self, tree: TreeId, key: &[u8]) -> Option<Neighbour<'_>> {
        let seqno = Seqno(0);
        let last = self.before(&Sought::new(&Position { tree, key, seqno }));
        let next = last.next(0).filter(|next| next.node().tree == tree.0);
        debug_assert!(
            next.is_none_or(|next| next.key() > key),
            "all of the key are passed"
        );
        next.map(Neighbour)
    }

    /// Makes each level of the splice below `height`, and perhaps more, the last node before `at`.
    ///
    /// On every level the splice is the last node of that level at or before the splice of the
    /// level below. So if `at` lies between a splice and its next node, it does on all levels
    /// above too, as far as there is a splice.
    fn move_splice(&self, writer: &mut Writer, at: &Sought<'_>, height: usize) {
        debug_assert!((1..=HEIGHT_MAX).contains(&height), "a node has levels");
        debug_assert!(writer.spliced <= HEIGHT_MAX, "a splice is bounded");
        let Writer {
            splice,
            spliced,
            again,
            index,
            ..
        } = writer;
        // SAFETY: a splice holds nodes of this list.
        let node = |ptr: *mut Node| unsafe { NodeRef::new(ptr) }.expect("a node");
        let fits = |ptr: *mut Node, level: usize| self.is_around(node(ptr), level, at);
        debug_assert!(*spliced >= CLIMB_MAX, "these levels always have one");
        let is_enough = height <= *spliced;
        let first_fit = (0..CLIMB_MAX).find(|&level| is_enough && fits(splice[level], level));
        let (mut before, levels) = match first_fit {
            Some(level) => (node(splice[level]), level),
            None if height <= POST_LEVEL + 1 => {
                let Again { front, before } = again[slot_of(at.front)];
                splice[POST_LEVEL] = if front == at.front && fits(before, POST_LEVEL) {
                    before
                } else {
                    let indexed = index.last_before(at.front, |other| is_before(other, at));
                    indexed.unwrap_or(self.head)
                };
                *spliced = POST_LEVEL + 1;
                debug_assert!(fits(splice[POST_LEVEL], POST_LEVEL), "all have one");
                (node(splice[POST_LEVEL]), POST_LEVEL)
            }
            None => {
                *spliced = HEIGHT_MAX;
                (self.head(), self.height.load(Memory::Relaxed))
            }
        };
        let mut after = ptr::null_mut();
        for level in (0..levels).rev() {
            (before, after) = self.last_before(before, level, at, after);
            splice[level] = before.as_ptr();
        }
        debug_assert!(
            (0..height).all(|level| fits(splice[level], level)),
            "the splice is around the position on each level of the node"
        );
    }

    /// The last node on a level that is before `at`, searched from `from` on, and the one after it.
    /// `after` is known not to be before `at`.
    fn last_before<'a>(
        &'a self,
        from: NodeRef<'a>,
        level: usize,
        at: &Sought<'_>,
        after: *mut Node,
    ) -> (NodeRef<'a>, *mut Node) {
        debug_assert!(
            self.is_head(from) || from.cmp(at).is_lt(),
            "a search goes forward"
        );
        debug_assert!(level < HEIGHT_MAX, "a level of the list");
        let mut before = from;
        if level > 0 {
            before.prefetch_next(level - 1);
        }
        while let Some(next) = before.next(level) {
            if next.as_ptr() == after {
                return (before, after);
            }
            next.prefetch_next(level);
            if next.cmp(at).is_ge() {
                return (before, next.as_ptr());
            }
            before = next;
        }
        (before, ptr::null_mut())
    }

    /// The last node before `at`; the head if none.
    fn before(&self, at: &Sought<'_>) -> NodeRef<'_> {
        let mut before = self.head();
        let mut after = ptr::null_mut();
        for level in (0..self.height.load(Memory::Relaxed)).rev() {
            (before, after) = self.last_before(before, level, at, after);
        }
        debug_assert!(
            self.is_head(before) || before.cmp(at).is_lt(),
            "the node is before the position"
        );
        before
    }
}

/// True if a node, which is of a list that is alive, is before a position.
fn is_before(node: *mut Node, at: &Sought<'_>) -> bool {
    // SAFETY: the index refers to nodes of its own list.
    let node = unsafe { NodeRef::new(node) }.expect("a node");
    node.cmp(at).is_lt()
}

/// An entry, for the writer.
#[derive(Clone, Copy)]
pub(crate) struct Neighbour<'a>(NodeRef<'a>);

impl<'a> Neighbour<'a> {
    pub(crate) fn key(self) -> &'a [u8] {
        self.0.key()
    }

    /// Bytes of key and value.
    pub(crate) fn bytes(self) -> u64 {
        self.0.key().len() as u64 + self.0.value().len() as u64
    }

    /// What the writer noted of it; 0 at first. Nothing can be noted of an upsert.
    pub(crate) fn note(self) -> Option<u32> {
        let node = self.0.node();
        (node.kind != UPSERT).then(|| node.function_or_note.load(Memory::Relaxed))
    }

    /// Notes something. Only writers look at it.
    pub(crate) fn set_note(self, note: u32) {
        let node = self.0.node();
        if node.kind != UPSERT {
            node.function_or_note.store(note, Memory::Relaxed);
        }
    }
}

/// What stands around the place of a key.
pub(crate) struct Around<'a> {
    /// The entry next before it, in the same tree.
    pub(crate) before: Option<Neighbour<'a>>,
    /// No entry is of the key itself.
    pub(crate) is_new: bool,
}
