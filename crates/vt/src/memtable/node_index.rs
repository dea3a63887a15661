//! An index of the nodes of a skiplist's middle level, in arrays that fit the processor's caches
//! (ADR 0075). A search that starts at the right node of it has no cache misses for the nodes that
//! a search from the top compares.
//!
//! The nodes are in order, in blocks of bounded length; a full block becomes two. For nodes whose
//! fronts are equal, the caller compares their keys.

/// Most nodes in a block.
const BLOCK: usize = 64;

/// The front of a node's key as numbers: of two nodes the one with the lower front is never the
/// later one.
pub(super) type Front = (u32, u64);

#[derive(Clone, Copy)]
struct IndexedNode<T> {
    front: Front,
    node: T,
}

/// The nodes of one level, in order. Invariant: each block has its first node in `firsts`.
pub(super) struct NodeIndex<T> {
    /// None is empty.
    blocks: Vec<Vec<IndexedNode<T>>>,
    /// The first node of each block.
    firsts: Vec<IndexedNode<T>>,
}

impl<T: Copy> NodeIndex<T> {
    pub(super) const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            firsts: Vec::new(),
        }
    }

    fn holds(&self) -> bool {
        self.blocks.len() == self.firsts.len()
    }

    /// Bytes of memory, about.
    pub(super) const fn bytes(&self) -> usize {
        let of_block = (BLOCK + 1) * size_of::<IndexedNode<T>>() + size_of::<Vec<IndexedNode<T>>>();
        self.blocks.len() * of_block
    }

    /// The last node before a place that has this front. `is_before` compares nodes whose front is
    /// the same.
    pub(super) fn last_before(&self, front: Front, is_before: impl Fn(T) -> bool) -> Option<T> {
        let (block, index) = self.find(front, is_before)?;
        debug_assert!(
            self.blocks[block][index].front <= front,
            "the node is before"
        );
        Some(self.blocks[block][index].node)
    }

    /// Adds a node; see [`Self::last_before`].
    pub(super) fn add(&mut self, front: Front, node: T, is_before: impl Fn(T) -> bool) {
        let indexed = IndexedNode { front, node };
        debug_assert!(self.holds());
        let Some((block, index)) = self.find(front, is_before) else {
            return self.add_first(indexed);
        };
        let nodes = &mut self.blocks[block];
        nodes.insert(index + 1, indexed);
        debug_assert!(nodes[index].front <= front, "fronts are in order");
        debug_assert!(
            nodes.get(index + 2).is_none_or(|next| front <= next.front),
            "fronts are in order"
        );
        self.split(block);
    }

    fn add_first(&mut self, indexed: IndexedNode<T>) {
        if self.blocks.is_empty() {
            self.blocks.push(Vec::with_capacity(BLOCK));
            self.firsts.push(indexed);
        }
        self.blocks[0].insert(0, indexed);
        self.firsts[0] = indexed;
        debug_assert!(
            self.blocks[0]
                .get(1)
                .is_none_or(|next| indexed.front <= next.front),
            "the node is before all others"
        );
        self.split(0);
    }

    /// Makes two of a block that is full.
    fn split(&mut self, block: usize) {
        let nodes = &mut self.blocks[block];
        assert!(nodes.len() <= BLOCK, "a block has a bound");
        if nodes.len() < BLOCK {
            return;
        }
        let mut later = Vec::with_capacity(BLOCK);
        later.extend(nodes.drain(BLOCK / 2..));
        self.firsts.insert(block + 1, later[0]);
        self.blocks.insert(block + 1, later);
        debug_assert!(self.holds());
    }

    fn find(&self, front: Front, is_before: impl Fn(T) -> bool) -> Option<(usize, usize)> {
        let is_before = |indexed: &IndexedNode<T>| {
            indexed.front < front || (indexed.front == front && is_before(indexed.node))
        };
        debug_assert!(self.holds());
        let block = self.firsts.partition_point(is_before).checked_sub(1)?;
        let after = self.blocks[block].partition_point(is_before);
        debug_assert!(after > 0, "its first one is before");
        debug_assert!(after <= BLOCK, "a block has a bound");
        Some((block, after - 1))
    }
}
