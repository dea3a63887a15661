//! Prefetches index blocks that no point read has asked for yet.
//!
//! After an open each point read may wait for an index block and then for a data block, until all
//! of the index was met by chance. A read that waits for an index block has the store's readers
//! ([`crate::readers`]) fetch more of the same index, and then of the tables that follow in its
//! level: [`PREFETCH_BYTES`] for the first wait and twice as much for each later one, up to half of
//! the cache, if nothing is evicted for it. So a store that is read at random soon has its indexes
//! in memory, and a row costs little more than its own block.

use super::Table;
use super::loader::Loader;
use crate::readers::{Ahead, Holder};
use std::any::Any;
use std::sync::{Arc, Weak};
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_format::vt_root::{Leaf, RootIndex};
use stitch_kv::Priority;

/// What the first wait has fetched, in bytes; each later one has twice as much fetched as the one
/// before.
const PREFETCH_BYTES: u64 = 1 << 20;
/// Number of waits after which that is not doubled any more.
const DOUBLINGS_MAX: u32 = 4;
/// Most tables that one wait has looked at.
const PREFETCH_TABLES_MAX: usize = 64;
/// Most waits whose tables are being fetched.
const PREFETCHES_MAX: usize = 8;

/// A table, and what keeps its blocks where they are.
pub(crate) type Held = (Arc<Table>, Holder);

/// Tables whose indexes are being fetched.
type FetchClaims = Arc<Mutex<Vec<TableId>>>;

/// Indexes of tables, to be fetched as far as they are not in the cache. What waits for a thread
/// holds no table: one that is removed meanwhile gives its space back, and is left out.
#[derive(Debug)]
pub(super) struct IndexPrefetch {
    tables: Vec<(Arc<Table>, Weak<dyn Any + Send + Sync>)>,
    claims: FetchClaims,
    /// How many bytes it may still read.
    left: u64,
}

impl IndexPrefetch {
    /// Fetches what is missing of the tables' indexes, until it has read enough.
    fn run(mut self) {
        debug_assert!(
            self.tables.len() <= PREFETCH_TABLES_MAX,
            "a prefetch is bounded"
        );
        debug_assert!(self.left > 0, "it may read something");
        for (table, holder) in std::mem::take(&mut self.tables) {
            let Some(held) = holder.upgrade() else {
                continue;
            };
            let id = table.loader.id;
            if !claim(&self.claims, id) {
                continue;
            }
            let goes_on = self.fetch(&table);
            drop(held);
            let mut claims = self.claims.lock();
            debug_assert!(claims.contains(&id), "the table is claimed until now");
            claims.retain(|claimed| *claimed != id);
            drop(claims);
            if goes_on.is_none() {
                return;
            }
        }
    }

    /// Fetches what is missing of a table's index; `None` if it has read enough or there is no
    /// room.
    fn fetch(&mut self, table: &Table) -> Option<()> {
        if !IndexPrefetches::may_fetch(&table.loader) {
            return None;
        }
        // What is wrong is told to who comes to it.
        let Ok(root) = table.root(&mut 0) else {
            return Some(());
        };
        let RootIndex::Leaves(leaves) = &root.root.index else {
            return Some(());
        };
        let mut at = 0;
        while at < leaves.len() {
            let (next, bytes) = fetch_group(&table.loader, leaves, at)?;
            debug_assert!(next > at, "it comes to an end");
            at = next;
            debug_assert!(
                at <= leaves.len(),
                "an index block or the end behind the last one"
            );
            self.left = self.left.checked_sub(bytes)?;
        }
        Some(())
    }
}

/// True if no other prefetch fetches the table; none will until the claim is taken back.
fn claim(claims: &FetchClaims, id: TableId) -> bool {
    let mut claims = claims.lock();
    let is_free = !claims.contains(&id);
    if is_free {
        claims.push(id);
    }
    debug_assert!(claims.contains(&id), "the table is claimed now");
    is_free
}

/// Fetches a block and those that come with it, unless it is there. Answers the first that did not
/// come, and how many bytes were read; `None` if there is no room.
fn fetch_group(loader: &Loader, leaves: &[Leaf], at: usize) -> Option<(usize, u64)> {
    debug_assert!(at < leaves.len(), "an index block of the table");
    let block = &leaves[at].block;
    let key = loader.own_key(block.addr);
    let cache = &loader.cache;
    if cache.glance(&key).is_some() {
        return Some((at + 1, 0));
    }
    if !cache.is_half_empty() || !cache.has_room(&key, block.len_bytes as usize) {
        return None;
    }
    let group = loader.group(leaves, at);
    debug_assert!(group.contains(&at), "the block is in its group");
    // What is wrong is told to who comes to it.
    drop(loader.read_group(&leaves[group.clone()], at - group.start));
    let bytes = leaves[group.end - 1].block.end() - leaves[group.start].block.addr;
    debug_assert!(
        bytes >= u64::from(block.len_bytes),
        "the block was read with its group"
    );
    Some((group.end, bytes))
}

/// Prefetches of a store that are under way. Invariant: they are bounded, and so is what each
/// reads.
#[derive(Debug, Default)]
pub(crate) struct IndexPrefetches {
    under_way: Mutex<PrefetchState>,
    claims: FetchClaims,
}

#[derive(Debug, Default)]
struct PrefetchState {
    prefetches: Vec<Ahead<()>>,
    /// Number of waits so far, as far as it counts.
    waits: u32,
}

impl PrefetchState {
    /// What the next may read, in bytes.
    fn next_bytes(&self) -> u64 {
        debug_assert!(self.holds());
        PREFETCH_BYTES << self.waits
    }

    fn holds(&self) -> bool {
        self.prefetches.len() <= PREFETCHES_MAX && self.waits <= DOUBLINGS_MAX
    }
}

impl IndexPrefetches {
    /// True if what is beside an index block can be fetched behind who reads it.
    pub(super) fn may_fetch(loader: &Loader) -> bool {
        let cache = &loader.cache;
        cache.readers().may_read_ahead() && cache.is_half_empty()
    }

    /// Has more of the indexes of tables fetched, in this order, unless enough are under way. Does
    /// not wait.
    pub(super) fn hand<T: Iterator<Item = Held>>(
        &self,
        loader: &Loader,
        tables: impl FnOnce() -> T,
    ) {
        if !Self::may_fetch(loader) {
            return;
        }
        let Some(mut under_way) = self.under_way.try_lock() else {
            return;
        };
        under_way.prefetches.retain(|ahead| !ahead.is_done());
        debug_assert!(under_way.holds());
        if under_way.prefetches.len() == PREFETCHES_MAX {
            return;
        }
        let tables = tables().take(PREFETCH_TABLES_MAX);
        let rest = IndexPrefetch {
            tables: tables
                .map(|(table, holder)| (table, Arc::downgrade(&holder)))
                .collect(),
            claims: Arc::clone(&self.claims),
            left: under_way.next_bytes(),
        };
        under_way.waits = (under_way.waits + 1).min(DOUBLINGS_MAX);
        let readers = loader.cache.readers();
        let ahead = readers.hand(move || rest.run(), Priority::Later);
        under_way.prefetches.push(ahead);
        debug_assert!(under_way.holds());
    }

    fn take(&self) -> Vec<Ahead<()>> {
        std::mem::take(&mut self.under_way.lock().prefetches)
    }

    /// Gives up all; waits for those that are under way.
    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    /// Waits for all.
    #[cfg(test)]
    fn finish(&self) {
        for ahead in self.take() {
            ahead.take();
        }
    }

    /// What the next may read, in bytes.
    #[cfg(test)]
    fn next_bytes(&self) -> u64 {
        self.under_way.lock().next_bytes()
    }

    /// How many are under way, or were when one was handed over last.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.under_way.lock().prefetches.len()
    }
}

#[cfg(test)]
mod tests;
