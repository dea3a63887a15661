//! Signposts: the nodes of a skiplist's middle level once more, in arrays that the processor's
//! caches hold. A search that begins at the right one of them does not wait for the memory of all
//! the nodes that a search from the top compares.
//!
//! Posts are in order, in blocks of bounded length; a block that is full becomes two. Where the
//! numbers that posts are compared by tie, the caller compares what they stand for.

/// Most posts in a block.
const BLOCK: usize = 64;

/// What posts are compared by: of two nodes the one with the lower number is never the later one.
pub(super) type Front = (u32, u64);

#[derive(Clone, Copy)]
struct Post<T> {
    front: Front,
    node: T,
}

/// Posts, in order.
pub(super) struct Posts<T> {
    /// None is empty.
    blocks: Vec<Vec<Post<T>>>,
    /// The first post of each block.
    firsts: Vec<Post<T>>,
}

impl<T: Copy> Posts<T> {
    pub(super) const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            firsts: Vec::new(),
        }
    }

    /// Bytes of memory, about.
    pub(super) const fn bytes(&self) -> usize {
        let of_block = (BLOCK + 1) * size_of::<Post<T>>() + size_of::<Vec<Post<T>>>();
        self.blocks.len() * of_block
    }

    /// The last node before a place that has this front. `is_before` compares nodes whose front is
    /// the same.
    pub(super) fn last_before(&self, front: Front, is_before: impl Fn(T) -> bool) -> Option<T> {
        let (block, index) = self.find(front, is_before)?;
        Some(self.blocks[block][index].node)
    }

    /// Adds a node; see [`Self::last_before`].
    pub(super) fn add(&mut self, front: Front, node: T, is_before: impl Fn(T) -> bool) {
        let post = Post { front, node };
        let Some((block, index)) = self.find(front, is_before) else {
            return self.add_first(post);
        };
        let posts = &mut self.blocks[block];
        posts.insert(index + 1, post);
        self.split(block);
    }

    fn add_first(&mut self, post: Post<T>) {
        if self.blocks.is_empty() {
            self.blocks.push(Vec::with_capacity(BLOCK));
            self.firsts.push(post);
        }
        self.blocks[0].insert(0, post);
        self.firsts[0] = post;
        self.split(0);
    }

    /// Makes two of a block that is full.
    fn split(&mut self, block: usize) {
        let posts = &mut self.blocks[block];
        assert!(posts.len() <= BLOCK, "a block has a bound");
        if posts.len() < BLOCK {
            return;
        }
        let mut later = Vec::with_capacity(BLOCK);
        later.extend(posts.drain(BLOCK / 2..));
        self.firsts.insert(block + 1, later[0]);
        self.blocks.insert(block + 1, later);
        debug_assert_eq!(self.firsts.len(), self.blocks.len(), "one for each");
    }

    fn find(&self, front: Front, is_before: impl Fn(T) -> bool) -> Option<(usize, usize)> {
        let is_before =
            |post: &Post<T>| post.front < front || (post.front == front && is_before(post.node));
        let block = self.firsts.partition_point(is_before).checked_sub(1)?;
        let after = self.blocks[block].partition_point(is_before);
        debug_assert!(after > 0, "its first one is before");
        Some((block, after - 1))
    }
}
