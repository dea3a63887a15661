//! Checks every rule of a store: blocks, order, filters, and who owns which byte.

use crate::VtError;
use crate::entry::EntryIter;
use crate::memtable::Memtable;
use crate::store::Store;
use crate::version::{Version, VersionBuilder, extents};
use std::collections::BTreeMap;
use stitch_base::{Seqno, ZoneId};
use stitch_format::vt_manifest::Run;
use stitch_kv::Violation;
use stitch_volume::Extent;

/// What a store holds of the space of its volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Where its tables are, values that commits have written to zones at once, and what is taken for the
    /// next such values; in no order. What only old readers hold, and what is being written, is not
    /// among them.
    pub owned: Vec<Extent>,
    /// Bytes that are promised to the write-outs of its memtables.
    pub promised_bytes: u64,
}

impl Holdings {
    /// Bytes that it owns.
    #[must_use]
    pub fn owned_bytes(&self) -> u64 {
        self.owned.iter().map(|extent| extent.len).sum()
    }
}

/// Adds what is found broken.
type Report<'a> = dyn FnMut(&'static str, String) + 'a;

impl Store {
    /// Reads every table and checks every rule. `progress` is given bytes done and bytes to do.
    ///
    /// # Errors
    /// [`VtError`] where the check cannot go on: the device fails.
    pub(crate) fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Violation>, VtError> {
        // Nothing is installed meanwhile, so that the online-map can be compared.
        let stores = match self.volume.is_first() {
            true => self.pool.all(),
            false => Vec::new(),
        };
        let others = stores.iter().filter(|s| !s.volume.is_first());
        let installer = self.versions.lock();
        let installers: Vec<_> = others.map(|store| store.versions.lock()).collect();
        let view = self.views.get();
        let version = &view.version;
        let mut found: Vec<Violation> = Vec::new();
        let mut report = |rule, detail| {
            found.push(Violation {
                rule,
                detail,
                lost: None,
            });
        };
        check_shape(version, &mut report);
        check_owners(version, &mut report);
        self.check_zones(version, &mut report);
        for detail in Self::shared_bytes(&stores) {
            report("extent-owner", detail);
        }
        drop((installer, installers));
        let total: u64 = version.tables().map(|(_, t)| t.owned_bytes()).sum();
        let mut done = 0;
        progress(done, total);
        for (_, handle) in version.tables() {
            let end = done + handle.owned_bytes();
            self.tables.reader(handle).check(
                &mut |bytes| {
                    done = (done + bytes).min(end);
                    progress(done, total);
                },
                &mut |violation| found.push(violation),
            )?;
            done = end;
            progress(done, total);
        }
        for run in view.buffers.iter().flat_map(|buffer| buffer.direct.all()) {
            run.blocks
                .check(run.tree, &mut |violation| found.push(violation))?;
        }
        for buffer in &view.buffers {
            self.check_placed(&buffer.memtable, &mut |violation| found.push(violation))?;
        }
        Ok(found)
    }

    /// Reads the values that a memtable has the places of.
    fn check_placed(
        &self,
        memtable: &Memtable,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), VtError> {
        let values = self.tables.values();
        for tree in memtable.trees() {
            let mut entries = memtable.iter(tree);
            entries.seek(&[], Seqno(u64::MAX))?;
            while entries.current().is_some() {
                if let Some(entry) = entries.carried() {
                    values.check(tree, entry, report)?;
                }
                entries.next()?;
            }
        }
        Ok(())
    }

    /// Compares the online-map with what the tables own: every owned byte is live. Live bytes that
    /// no table owns may belong to old readers and to tables being written.
    fn check_zones(&self, version: &Version, report: &mut Report<'_>) {
        let zones = self.volume.zones();
        let mut owned: BTreeMap<ZoneId, u64> = BTreeMap::new();
        for (_, table) in version.tables() {
            for extent in extents(&table.meta().runs) {
                if !zones.is_live(extent) {
                    let detail = format!("table {} owns {extent:?}", table.meta().id);
                    report("zone-live-bytes", detail);
                }
                self.add_owned(extent, &mut owned);
            }
        }
        for (zone, bytes) in owned {
            let live = zones.live_bytes(zone);
            if live < bytes {
                let detail = format!("zone {zone}: {live} bytes are live, tables own {bytes}");
                report("zone-live-bytes", detail);
            }
        }
    }

    /// Adds an extent to the sums of the zones that it lies in.
    fn add_owned(&self, extent: Extent, owned: &mut BTreeMap<ZoneId, u64>) {
        let zones = self.volume.zones();
        let mut at = extent.addr;
        while at < extent.end()
            && let Some(zone) = zones.zone_of(at)
        {
            let end = extent.end().min(zones.extent_of(zone).end());
            *owned.entry(zone).or_default() += end - at;
            at = end;
        }
    }
}

/// Levels in order and apart, numbers below the counters.
fn check_shape(version: &Version, report: &mut Report<'_>) {
    let mut builder = VersionBuilder::new(Version::empty());
    let rebuilt = builder
        .apply(&version.base())
        .and_then(|()| builder.finish().map(drop));
    if let Err(error) = rebuilt {
        report("version-shape", error.to_string());
    }
    for (_, table) in version.tables() {
        let meta = table.meta();
        if meta.max_seqno > version.last_seqno {
            let detail = format!(
                "table {} holds write {}, the version goes to {}",
                meta.id, meta.max_seqno, version.last_seqno
            );
            report("table-seqno", detail);
        }
    }
}

/// Every byte has one owner.
fn check_owners(version: &Version, report: &mut Report<'_>) {
    let mut all: Vec<(Run, u64)> = Vec::new();
    for (_, table) in version.tables() {
        let id = table.meta().id.0;
        all.extend(table.meta().runs.iter().map(|run| (*run, id)));
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        let ((run, owner), (next, other)) = (pair[0], pair[1]);
        if run.end() > next.addr {
            let detail = format!("tables {owner} and {other} both own byte {}", next.addr);
            report("extent-owner", detail);
        }
    }
}
