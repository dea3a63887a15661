//! The rest of an index: what of it no point read has come for yet.
//!
//! After an open each point read may wait for an index block and then for a data block, until all of the
//! index was met by chance. Who waits for an index block has the store's readers ([`crate::readers`]) fetch
//! more of the same index, [`REST_BYTES`] at most, as far as half of the cache goes and nothing is pushed out
//! of it. So a store that is read here and there soon has its index at hand, and one row costs little more
//! than itself.

use super::block::Root;
use super::loader::Loader;
use crate::readers::{Ahead, Work};
use std::any::Any;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_format::vt_root::{Leaf, RootIndex};

/// Index blocks that one wait has fetched, in bytes.
const REST_BYTES: u64 = 1 << 20;
/// Most tables whose index is being fetched.
const RESTS_MAX: usize = 8;

/// The index of a table, to be fetched as far as it is not in the cache.
#[derive(Debug)]
pub(super) struct Rest {
    loader: Loader,
    root: Arc<Root>,
    /// Keeps the blocks where they are.
    _holder: Arc<dyn Any + Send + Sync>,
}

impl Work for Rest {
    type Answer = ();

    fn run(self) {
        let RootIndex::Leaves(leaves) = &self.root.root.index else {
            return;
        };
        let (mut at, mut left) = (0, REST_BYTES);
        while at < leaves.len() {
            let Some((next, bytes)) = self.fetch(leaves, at) else {
                return;
            };
            debug_assert!(next > at, "it comes to an end");
            at = next;
            left = match left.checked_sub(bytes) {
                Some(left) => left,
                None => return,
            };
        }
    }
}

impl Rest {
    /// Fetches a block and those that come with it, unless it is there. Answers the first that did not come,
    /// and how many bytes were read; `None` if there is no room.
    fn fetch(&self, leaves: &[Leaf], at: usize) -> Option<(usize, u64)> {
        let loader = &self.loader;
        let block = &leaves[at].block;
        let key = loader.own_key(block.addr);
        if loader.cache.glance(&key).is_some() {
            return Some((at + 1, 0));
        }
        let cache = &loader.cache;
        if !cache.is_half_empty() || !cache.has_room(&key, block.len_bytes as usize) {
            return None;
        }
        let group = loader.group(leaves, at);
        // What is wrong is told to who comes to it.
        drop(loader.read_group(&leaves[group.clone()], at - group.start));
        let bytes = leaves[group.end - 1].block.end() - leaves[group.start].block.addr;
        Some((group.end, bytes))
    }
}

/// Those of a store that are under way.
#[derive(Debug, Default)]
pub(crate) struct Rests(Mutex<Vec<(TableId, Ahead<Rest>)>>);

impl Rests {
    /// Has more of an index fetched, unless it is under way or there are enough. Does not wait.
    pub(super) fn hand(
        &self,
        loader: &Loader,
        root: &Arc<Root>,
        holder: Arc<dyn Any + Send + Sync>,
    ) {
        let readers = loader.cache.readers();
        if !readers.may_read_ahead() || !loader.cache.is_half_empty() {
            return;
        }
        let Some(mut all) = self.0.try_lock() else {
            return;
        };
        all.retain(|(_, ahead)| !ahead.is_done());
        if all.len() == RESTS_MAX || all.iter().any(|(table, _)| *table == loader.id) {
            return;
        }
        let rest = Rest {
            loader: loader.clone(),
            root: Arc::clone(root),
            _holder: holder,
        };
        all.push((loader.id, readers.hand(rest)));
    }

    /// Gives up all; waits for those that are under way.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }

    /// Waits for all.
    #[cfg(test)]
    fn finish(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for (_, ahead) in all {
            ahead.take();
        }
    }

    /// How many are under way, or were when one was handed over last.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests;
