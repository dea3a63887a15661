//! Nodes of a skiplist: how they lie in memory, and how they compare with a position.
#![expect(
    unsafe_code,
    reason = "nodes of variable length that are read while others are linked in"
)]

use super::{HEIGHT_MAX, SkipList};
use crate::entry::{EntryRef, Op};
use crate::memtable::arena::Arena;
use crate::memtable::node_index::Front;
use crate::prefix::prefix_of;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use stitch_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering as Memory};
use stitch_base::{Seqno, TreeId};

pub(super) const PUT: u8 = 1;
pub(super) const DELETE: u8 = 2;
pub(super) const UPSERT: u8 = 3;
/// A put whose value lies elsewhere: the node holds its place.
pub(super) const PLACED: u8 = 4;

/// Fixed part of a node. `height` links, the key and the value follow in memory.
#[repr(C)]
pub(super) struct Node {
    seqno: u64,
    /// Of an upsert its function, of others what the writer notes of them.
    pub(super) function_or_note: AtomicU32,
    value_len: u32,
    key_len: u16,
    pub(super) kind: u8,
    pub(super) height: u8,
    pub(super) tree: u32,
    prefix: u64,
}

pub(super) type Link = AtomicPtr<Node>;

/// Offset of the tower in a node.
const TOWER_AT: usize = size_of::<Node>().next_multiple_of(align_of::<Link>());

/// Where an entry stands in the order of the list.
#[derive(Clone, Copy, Debug)]
pub(in crate::memtable) struct Position<'a> {
    pub(in crate::memtable) tree: TreeId,
    pub(in crate::memtable) key: &'a [u8],
    pub(in crate::memtable) seqno: Seqno,
}

/// A position that nodes are compared with.
pub(super) struct Sought<'a> {
    /// The tree and the prefix of the key.
    pub(super) front: Front,
    key: &'a [u8],
    seqno: u64,
}

impl<'a> Sought<'a> {
    pub(super) fn new(at: &Position<'a>) -> Self {
        Self {
            front: (at.tree.0, prefix_of(at.key)),
            key: at.key,
            seqno: at.seqno.0,
        }
    }
}

/// Asks for the memory of a node before it is needed.
fn prefetch(node: *const Node) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, wherever it points.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let links = node.cast::<i8>().wrapping_add(TOWER_AT);
        _mm_prefetch::<_MM_HINT_T0>(links.wrapping_sub(size_of::<u64>()));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = node;
}

/// A node of a list that is alive as long as `'a`.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'a> {
    ptr: NonNull<Node>,
    list: PhantomData<&'a SkipList>,
}

impl<'a> NodeRef<'a> {
    /// # Safety
    /// `ptr` is null or a completely filled node of a list that lives for `'a`, as it came out of
    /// the arena.
    pub(super) unsafe fn new(ptr: *mut Node) -> Option<Self> {
        debug_assert!(ptr.is_aligned(), "a node of the arena");
        let list = PhantomData;
        NonNull::new(ptr).map(|ptr| Self { ptr, list })
    }

    pub(super) const fn as_ptr(self) -> *mut Node {
        self.ptr.as_ptr()
    }

    pub(super) fn node(self) -> &'a Node {
        // SAFETY: nodes are aligned, initialised, and their fixed part is never written again.
        let node = unsafe { self.ptr.as_ref() };
        debug_assert!(
            (1..=HEIGHT_MAX).contains(&usize::from(node.height)),
            "a node has levels"
        );
        node
    }

    /// The first link of the tower.
    fn tower(self) -> *const Link {
        const {
            assert!(TOWER_AT >= size_of::<Node>(), "it is behind the fixed part");
            assert!(
                TOWER_AT.is_multiple_of(align_of::<Link>()),
                "links are aligned"
            );
        }
        // SAFETY: the tower follows the fixed part in the same piece of memory.
        let tower: *const Link = unsafe { self.as_ptr().cast::<u8>().add(TOWER_AT).cast() };
        debug_assert!(tower.is_aligned(), "links are aligned");
        tower
    }

    fn bytes(self, at: usize, len: usize) -> &'a [u8] {
        let own_len = usize::from(self.node().key_len) + self.node().value_len as usize;
        debug_assert!(at + len <= own_len, "within the key and the value");
        // SAFETY: key and value follow the tower in the same piece of memory, were written before
        // the node was linked, and never change.
        unsafe {
            let after_tower = self.tower().add(usize::from(self.node().height));
            std::slice::from_raw_parts(after_tower.cast::<u8>().add(at), len)
        }
    }

    pub(super) fn key(self) -> &'a [u8] {
        self.bytes(0, usize::from(self.node().key_len))
    }

    pub(super) fn value(self) -> &'a [u8] {
        let node = self.node();
        self.bytes(usize::from(node.key_len), node.value_len as usize)
    }

    pub(super) fn position(self) -> Position<'a> {
        Position {
            tree: TreeId(self.node().tree),
            key: self.key(),
            seqno: Seqno(self.node().seqno),
        }
    }

    /// Where the node stands beside a position.
    pub(super) fn cmp(self, at: &Sought<'_>) -> Ordering {
        let node = self.node();
        let fronts = (node.tree, node.prefix).cmp(&at.front);
        debug_assert_eq!(
            node.prefix,
            prefix_of(self.key()),
            "the prefix is that of the key"
        );
        fronts.then_with(|| {
            let keys = self.key().cmp(at.key);
            keys.then_with(|| at.seqno.cmp(&node.seqno))
        })
    }

    pub(super) fn entry(self) -> EntryRef<'a> {
        let value = self.value();
        debug_assert!(
            self.node().kind != DELETE || value.is_empty(),
            "a delete has no value"
        );
        let op = match self.node().kind {
            PUT => Op::Put(value),
            PLACED => Op::Put(&[]),
            DELETE => Op::Delete,
            kind => {
                debug_assert_eq!(kind, UPSERT, "a node has one of four kinds");
                Op::Upsert {
                    function: self.node().function_or_note.load(Memory::Relaxed),
                    delta: value,
                }
            }
        };
        EntryRef {
            key: self.key(),
            seqno: Seqno(self.node().seqno),
            op,
        }
    }

    pub(super) fn place(self) -> Option<&'a [u8]> {
        (self.node().kind == PLACED).then(|| self.value())
    }

    /// The link of a level that the node is on.
    pub(super) fn link(self, level: usize) -> &'a Link {
        debug_assert!(level < usize::from(self.node().height), "the node is on it");
        // SAFETY: the tower has `height` links, initialised before the node was linked.
        unsafe { &*self.tower().add(level) }
    }

    pub(super) fn next(self, level: usize) -> Option<Self> {
        // SAFETY: links lead to nodes of the same list, which lives for 'a.
        let next = unsafe { Self::new(self.link(level).load(Memory::Acquire)) };
        debug_assert!(
            next.is_none_or(|next| level < usize::from(next.node().height)),
            "the next node is on the level"
        );
        next
    }

    pub(super) fn prefetch_next(self, level: usize) {
        prefetch(self.link(level).load(Memory::Relaxed));
    }
}

/// What a node is made of.
pub(super) struct NodeContent<'a> {
    pub(super) key: &'a [u8],
    pub(super) seqno: Seqno,
    pub(super) kind: u8,
    pub(super) function: u32,
    pub(super) value: &'a [u8],
}

impl<'a> NodeContent<'a> {
    pub(super) fn of(entry: &EntryRef<'a>) -> Self {
        let (kind, function, value) = match entry.op {
            Op::Put(value) => (PUT, 0, value),
            Op::Delete => (DELETE, 0, &[][..]),
            Op::Upsert { function, delta } => (UPSERT, function, delta),
        };
        debug_assert!(
            kind == UPSERT || function == 0,
            "only upserts have a function"
        );
        Self {
            key: entry.key,
            seqno: entry.seqno,
            kind,
            function,
            value,
        }
    }
}

/// A completely filled node that no link leads to yet.
pub(super) fn new_node(
    arena: &mut Arena,
    tree: TreeId,
    entry: &NodeContent<'_>,
    height: usize,
) -> *mut Node {
    debug_assert!((1..=HEIGHT_MAX).contains(&height), "a node has levels");
    debug_assert!(
        entry.kind == UPSERT || entry.function == 0,
        "the writer has noted nothing of it yet"
    );
    debug_assert!(
        (PUT..=PLACED).contains(&entry.kind),
        "a node has one of four kinds"
    );
    let value = entry.value;
    debug_assert!(
        entry.kind != DELETE || value.is_empty(),
        "a delete has no value"
    );
    debug_assert!(
        entry.kind != PLACED || !value.is_empty(),
        "a place has bytes"
    );
    let fixed = Node {
        seqno: entry.seqno.0,
        function_or_note: AtomicU32::new(entry.function),
        value_len: u32::try_from(value.len()).expect("values are bounded"),
        key_len: u16::try_from(entry.key.len()).expect("keys are bounded"),
        kind: entry.kind,
        height: u8::try_from(height).expect("a height is small"),
        tree: tree.0,
        prefix: prefix_of(entry.key),
    };
    let key_at = TOWER_AT + height * size_of::<Link>();
    let value_at = key_at + entry.key.len();
    let piece = arena.allocate(value_at + value.len());
    assert!(piece.cast::<Node>().is_aligned(), "the arena aligns pieces");
    // SAFETY: the piece is aligned, long enough for all parts, and for this node alone.
    unsafe {
        piece.cast::<Node>().write(fixed);
        for level in 0..height {
            let link = piece.add(TOWER_AT).cast::<Link>().add(level);
            link.write(AtomicPtr::new(ptr::null_mut()));
        }
        let key = piece.add(key_at);
        key.copy_from_nonoverlapping(entry.key.as_ptr(), entry.key.len());
        let value_piece = piece.add(value_at);
        value_piece.copy_from_nonoverlapping(value.as_ptr(), value.len());
    }
    piece.cast()
}
