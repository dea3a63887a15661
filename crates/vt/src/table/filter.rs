//! Filters of whole tables, in memory. A read through branches asks them before it looks into an
//! index: most tables of a chain have keys around the one that is read, and not that key.
//!
//! ```text
//! a read through branches      table without a filter       table with one
//! key is not in the table      index, filter of a block     one word of memory
//! key is in the table          index, filter, block         one word, index, filter, block
//! ```
//!
//! - The medium has filters of blocks alone. A table gets a filter of its own once reads through
//!   branches have missed it often: then it pays to read all its keys. Threads that read ahead do
//!   that; without them, the read that is the last of these.
//! - A filter takes two bytes for each entry, which are set aside from the block cache
//!   ([`crate::cache::SetAside`]). Tables of many entries get none, and neither do tables for which
//!   nothing is left.
//! - A filter holds the keys of all point entries: puts, deletes and upserts of any sequence
//!   number. Range deletes are asked for before it.
//!
//! Invariant: a filter has every key of its table. A table with a block that cannot be read, or
//! with another number of entries than is known of it, gets no filter.

use super::Table;
use super::block_source::BlockSource;
use super::key_hash;
use super::loader::{DataRef, contradiction};
use super::point_read::PointRead;
use crate::VtError;
use crate::cache::SetAside;
use crate::readers::{Ahead, Holder, while_held};
use std::sync::{Arc, OnceLock};
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU32, Ordering};
use stitch_filter::WordFilter;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::Priority;

/// A table gets a filter after a miss for so many entries.
const ENTRIES_PER_MISS: u64 = 8;
/// Fewest misses before a table gets a filter.
const MISSES_MIN: u32 = 64;
/// Most entries of a table with a filter.
const ENTRIES_MAX: u64 = 1 << 18;
/// Most filters that are being made.
const BUILDS_MAX: usize = 2;

/// The filter of a table, if it has one, and what is known until then.
#[derive(Debug, Default)]
pub(super) struct TableFilter {
    made: OnceLock<MadeFilter>,
    /// Misses so far. Readers may lose some of each other's.
    misses: AtomicU32,
}

/// A filter, and the memory that it takes from the cache.
#[derive(Debug)]
struct MadeFilter {
    keys: WordFilter,
    _room: SetAside,
}

impl TableFilter {
    /// Counts a miss. Returns true for the one after which a filter is due, to one reader.
    fn is_due_after_miss(&self, due_at: u32) -> bool {
        debug_assert!(due_at >= MISSES_MIN, "a filter pays after some misses");
        let before = self.misses.load(Ordering::Relaxed);
        if before >= due_at {
            return false;
        }
        let after = before + 1;
        if after < due_at {
            self.misses.store(after, Ordering::Relaxed);
            return false;
        }
        let (relaxed, misses) = (Ordering::Relaxed, &self.misses);
        let changed = misses.compare_exchange(before, after, relaxed, relaxed);
        changed.is_ok()
    }

    /// Counts misses anew: the filter could not be made. One that another thread has made meanwhile
    /// stays.
    fn begin_anew(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }
}

/// Number of misses at which a table gets a filter.
fn due_at(meta: &TableMeta) -> u32 {
    const {
        assert!(
            (MISSES_MIN as u64) < ENTRIES_MAX / ENTRIES_PER_MISS,
            "a large table is missed more often than a small one"
        );
    }
    let by_entries = meta.entry_count.min(ENTRIES_MAX) / ENTRIES_PER_MISS;
    u32::try_from(by_entries).map_or(MISSES_MIN, |misses| misses.max(MISSES_MIN))
}

impl Table {
    /// Reports whether a filter of the whole table denies the key of a read. Range deletes of the
    /// table may hide the key all the same.
    #[inline]
    pub(crate) fn denies<S: BlockSource>(&self, read: &mut PointRead<'_, S>) -> bool {
        let Some(filter) = self.filter.made.get() else {
            return false;
        };
        let denies = !filter.keys.may_contain(read.hash());
        read.note_denied(denies);
        denies
    }

    /// Notes that a read through branches found nothing in the table, which has no filter or one
    /// that was wrong. `holder` keeps the blocks of the table where they are.
    pub(crate) fn note_miss(self: &Arc<Self>, holder: impl FnOnce() -> Holder) {
        let is_small = self.meta.entry_count <= ENTRIES_MAX;
        if self.filter.made.get().is_some() || !is_small {
            return;
        }
        if self.filter.is_due_after_miss(due_at(&self.meta)) {
            let cache = &self.loader.cache;
            if !cache.readers().may_read_ahead() {
                self.make_filter();
            } else if !cache.filter_builds().hand(self, holder) {
                self.filter.begin_anew();
            }
        }
    }

    /// Makes the filter, if all keys can be read and there is memory for it.
    fn make_filter(self: &Arc<Self>) {
        let key_count = usize::try_from(self.meta.entry_count).unwrap_or(usize::MAX);
        debug_assert!(self.meta.entry_count <= ENTRIES_MAX, "the table is small");
        let bytes = WordFilter::bytes_for(key_count) + size_of::<MadeFilter>();
        let Some(room) = self.loader.cache.set_aside(bytes) else {
            return self.filter.begin_anew();
        };
        match self.all_keys(WordFilter::for_keys(key_count)) {
            Ok(keys) => {
                let made = MadeFilter { keys, _room: room };
                // A second one, made at the same time, is the same.
                drop(self.filter.made.set(made));
                debug_assert!(
                    self.filter.made.get().is_some(),
                    "reads find it from now on"
                );
            }
            Err(error) => {
                tracing::debug!(%error, table = %self.meta.id, "no filter of the table");
                self.filter.begin_anew();
            }
        }
    }

    /// Adds all keys of the table to a filter.
    ///
    /// # Errors
    /// Those of a read: a block that is damaged, or another number of entries than is known.
    fn all_keys(self: &Arc<Self>, mut filter: WordFilter) -> Result<WordFilter, VtError> {
        let mut cursor = self.index_cursor()?;
        let mut entry_count = 0;
        while let Some(entry) = cursor.next()? {
            entry_count += self.keys_of_block(&entry, &mut filter)?;
        }
        if entry_count != self.meta.entry_count {
            let (expected, found) = (self.meta.entry_count, entry_count);
            let error = contradiction("entries", expected.to_string(), found.to_string());
            return Err(self.loader.damaged(self.meta.root_addr, error));
        }
        Ok(filter)
    }

    /// Adds the keys of a block to a filter. Returns the number of its entries.
    fn keys_of_block(&self, entry: &IndexEntry, filter: &mut WordFilter) -> Result<u64, VtError> {
        if entry.is_value {
            let hash = key_hash(&entry.last);
            filter.insert(hash);
            debug_assert!(
                filter.may_contain(hash),
                "a filter denies no key of its table"
            );
            return Ok(1);
        }
        let data = DataRef::of(&entry.borrow());
        let damaged = |error| self.loader.damaged(data.block.addr, error);
        let mut iter = self.loader.entries(self.loader.data_once(&data)?);
        let mut entry_count = 0;
        iter.seek_first().map_err(damaged)?;
        while let Some(entry) = iter.current() {
            let hash = key_hash(entry.key);
            filter.insert(hash);
            debug_assert!(
                filter.may_contain(hash),
                "a filter denies no key of its table"
            );
            entry_count += 1;
            iter.next().map_err(damaged)?;
        }
        Ok(entry_count)
    }

    /// Reports whether the table has a filter.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.made.get().is_some()
    }
}

/// Filters of a store's tables that are being made. Invariant: they are few.
#[derive(Debug, Default)]
pub(crate) struct FilterBuilds {
    under_way: Mutex<Vec<Ahead<()>>>,
}

impl FilterBuilds {
    /// Has a thread that reads ahead make the filter of a table. Returns false if enough are being
    /// made. Does not wait.
    fn hand(&self, table: &Arc<Table>, holder: impl FnOnce() -> Holder) -> bool {
        let Some(mut under_way) = self.under_way.try_lock() else {
            return false;
        };
        under_way.retain(|build| !build.is_done());
        if under_way.len() == BUILDS_MAX {
            return false;
        }
        let own = Arc::clone(table);
        let work = while_held(&holder(), move || own.make_filter());
        let readers = table.loader.cache.readers();
        under_way.push(readers.hand(work, Priority::Later));
        debug_assert!(under_way.len() <= BUILDS_MAX, "few are made at once");
        true
    }

    /// Gives up all; waits for those that are under way.
    pub(crate) fn clear(&self) {
        let under_way = std::mem::take(&mut *self.under_way.lock());
        drop(under_way);
    }

    /// Waits for all.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn finish(&self) {
        let under_way = std::mem::take(&mut *self.under_way.lock());
        for build in under_way {
            build.take();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
