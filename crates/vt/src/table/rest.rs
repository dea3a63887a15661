//! The rest of the indexes: what of them no point read has come for yet.
//!
//! After an open each point read may wait for an index block and then for a data block, until all
//! of the index was met by chance. Who waits for an index block has the store's readers
//! ([`crate::readers`]) fetch more of the same index, and then of the tables that follow in its
//! level: [`REST_BYTES`] for the first wait, twice as much for each after it, as far as half of the
//! cache goes and nothing is pushed out of it. So a store that is read here and there soon has its
//! indexes at hand, and one row costs little more than itself.

use super::Table;
use super::loader::Loader;
use crate::readers::{Ahead, Work};
use std::any::Any;
use std::sync::Arc;
use stitch_base::TableId;
use stitch_base::sync::Mutex;
use stitch_format::vt_root::{Leaf, RootIndex};

/// What the first wait has fetched, in bytes; each later one has twice as much fetched as the one
/// before.
const REST_BYTES: u64 = 1 << 20;
/// What a wait has fetched at most, in bytes.
const REST_BYTES_MAX: u64 = 16 << 20;
/// Most tables that one wait has looked at.
const REST_TABLES_MAX: usize = 64;
/// Most waits whose tables are being fetched.
const RESTS_MAX: usize = 8;

/// A table, and what keeps its blocks where they are.
pub(crate) type Held = (Arc<Table>, Arc<dyn Any + Send + Sync>);

/// Tables that somebody fetches.
type Claims = Arc<Mutex<Vec<TableId>>>;

/// Indexes of tables, to be fetched as far as they are not in the cache.
#[derive(Debug)]
pub(super) struct Rest {
    tables: Vec<Held>,
    claims: Claims,
    /// How many bytes it may still read.
    left: u64,
}

impl Work for Rest {
    type Answer = ();

    fn run(mut self) {
        for (table, _holder) in std::mem::take(&mut self.tables) {
            let id = table.loader.id;
            if !claim(&self.claims, id) {
                continue;
            }
            let goes_on = self.fetch(&table);
            self.claims.lock().retain(|claimed| *claimed != id);
            if goes_on.is_none() {
                return;
            }
        }
    }
}

/// True if nobody else fetches the table; nobody will until the claim is taken back.
fn claim(claims: &Claims, id: TableId) -> bool {
    let mut claims = claims.lock();
    let is_free = !claims.contains(&id);
    if is_free {
        claims.push(id);
    }
    is_free
}

impl Rest {
    /// Fetches what is missing of a table's index; `None` if it has read enough or there is no
    /// room.
    fn fetch(&mut self, table: &Table) -> Option<()> {
        if !Rests::may_fetch(&table.loader) {
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
            self.left = self.left.checked_sub(bytes)?;
        }
        Some(())
    }
}

/// Fetches a block and those that come with it, unless it is there. Answers the first that did not
/// come, and how many bytes were read; `None` if there is no room.
fn fetch_group(loader: &Loader, leaves: &[Leaf], at: usize) -> Option<(usize, u64)> {
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
    // What is wrong is told to who comes to it.
    drop(loader.read_group(&leaves[group.clone()], at - group.start));
    let bytes = leaves[group.end - 1].block.end() - leaves[group.start].block.addr;
    Some((group.end, bytes))
}

/// Those of a store that are under way.
#[derive(Debug)]
pub(crate) struct Rests {
    under_way: Mutex<UnderWay>,
    claims: Claims,
}

#[derive(Debug)]
struct UnderWay {
    rests: Vec<Ahead<Rest>>,
    /// What the next may read, in bytes.
    next_bytes: u64,
}

impl Default for Rests {
    fn default() -> Self {
        let under_way = UnderWay {
            rests: Vec::new(),
            next_bytes: REST_BYTES,
        };
        Self {
            under_way: Mutex::new(under_way),
            claims: Claims::default(),
        }
    }
}

impl Rests {
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
        under_way.rests.retain(|ahead| !ahead.is_done());
        if under_way.rests.len() == RESTS_MAX {
            return;
        }
        let rest = Rest {
            tables: tables().take(REST_TABLES_MAX).collect(),
            claims: Arc::clone(&self.claims),
            left: under_way.next_bytes,
        };
        under_way.next_bytes = (2 * under_way.next_bytes).min(REST_BYTES_MAX);
        let ahead = loader.cache.readers().hand(rest);
        under_way.rests.push(ahead);
    }

    fn take(&self) -> Vec<Ahead<Rest>> {
        std::mem::take(&mut self.under_way.lock().rests)
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

    /// How many are under way, or were when one was handed over last.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.under_way.lock().rests.len()
    }
}

#[cfg(test)]
mod tests;
