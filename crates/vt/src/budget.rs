//! One budget: what a store has in memory, and how much of it is left to the block cache.
//!
//! [`Sizes`] divides the memory: memtables (with the index entries of direct runs), what is read
//! ahead, what write-outs and compactions work with, values and gaps that reads have noted, and the
//! block cache, in which indexes and filters are blocks as any other, and of which filters of whole
//! tables are set aside ([`crate::cache::SetAside`]). All these keep within fixed
//! bounds, and each is enforced where it grows.
//!
//! The lists of what tables own grow with the store. They are counted as they come and go
//! ([`crate::version::Gauge`]), and with each new version the cache gives up what they take. It
//! keeps [`Sizes::cache_min`]: a store whose lists are longer than all the rest is over its budget,
//! and works.

use crate::options::Sizes;
use crate::store::Store;
use stitch_kv::Counters;

impl Sizes {
    /// How much the block cache may hold beside lists of so many bytes.
    pub(crate) fn cache_beside(&self, list_bytes: usize) -> usize {
        debug_assert!(self.cache_min <= self.cache, "there is a least of it");
        let left = self.cache.saturating_sub(list_bytes as u64);
        debug_assert!(left <= self.cache, "lists leave no more than there is");
        usize::try_from(left.max(self.cache_min)).unwrap_or(usize::MAX)
    }
}

impl Store {
    /// What is in memory now.
    pub(crate) fn export_memory(&self, out: &mut Counters) {
        let view = self.views.get();
        let memtables: u64 = view.buffers.iter().map(|b| b.memory_bytes()).sum();
        let (cache, lists) = (self.cache.bytes() as u64, view.version.lists.bytes() as u64);
        let filters = self.cache.aside_bytes() as u64;
        for (name, value) in [
            ("vt.memory_bytes", memtables + cache + lists + filters),
            ("vt.memtable_memory_bytes", memtables),
            ("vt.cache_memory_bytes", cache),
            ("vt.cache_memory_bytes_max", self.cache.capacity() as u64),
            ("vt.list_memory_bytes", lists),
            ("vt.filter_memory_bytes", filters),
        ] {
            out.push(name, value);
        }
    }
}

#[cfg(test)]
mod tests;
