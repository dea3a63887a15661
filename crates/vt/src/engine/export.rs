//! The counters of a store: its own, and those of its cache, device and log.

use crate::cache::ReadCount;
use crate::counters::DATA_BLOCKS_READ;
use crate::store::Store;
use stitch_kv::Counters;
use stitch_kv::counters as names;

impl Store {
    /// Returns all counters.
    pub(super) fn export_counters(&self) -> Counters {
        let mut out = Counters::default();
        self.counters.export(&mut out);
        let reads = self.cache.counters();
        for (name, count) in [
            (names::GETS, ReadCount::Gets),
            (names::SCANS, ReadCount::Scans),
            (names::CACHE_HITS, ReadCount::Hits),
            (names::CACHE_MISSES, ReadCount::Misses),
            (DATA_BLOCKS_READ, ReadCount::DataBlocksRead),
            (names::FILTER_PROBES, ReadCount::FilterProbes),
            (
                names::FILTER_FALSE_POSITIVES,
                ReadCount::FilterFalsePositives,
            ),
            ("vt.filtered_tables", ReadCount::TablesDenied),
            ("vt.filtered_memtables", ReadCount::MemtablesDenied),
            ("vt.index_waits", ReadCount::IndexWaits),
            ("vt.read_rounds", ReadCount::ReadRounds),
            ("vt.passed_keys", ReadCount::PassedKeys),
            ("vt.gaps_jumped", ReadCount::GapsJumped),
        ] {
            out.push(name, reads.get(count));
        }
        self.export_memory(&mut out);
        let device = self.volume.device().counters();
        for (name, value) in [
            ("device.read_bytes", device.read_bytes),
            ("device.reads", device.reads),
            ("device.write_bytes", device.write_bytes),
            ("device.writes", device.writes),
            ("device.syncs", device.syncs),
            ("device.discard_bytes", device.discard_bytes),
            ("log.padding_bytes", self.volume.log().padding_bytes()),
        ] {
            out.push(name, value);
        }
        debug_assert!(
            (1..)
                .zip(out.iter())
                .all(|(next, (name, _))| out.iter().skip(next).all(|(other, _)| other != name)),
            "each counter has a name of its own"
        );
        out
    }
}
