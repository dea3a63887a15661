//! Checks every rule of a store: blocks, order, filters, and who owns which byte.

use crate::VtError;
use crate::entry::EntryIter;
use crate::member::Member;
use crate::memtable::Memtable;
use crate::rules::{check_owners, check_shape, check_zones};
use crate::store::Store;
use stitch_base::Seqno;
use stitch_kv::Violation;
use stitch_volume::Extent;

/// What a store holds of the space of its volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Where its tables are, values that commits have written to zones at once, and what is taken
    /// for the next such values; in no order. What only old readers hold, and what is being
    /// written, is not among them.
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
            true => self.member.pool.all(),
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
        if let Err(error) = self.pins.check(version) {
            report("pins", error.to_string());
        }
        check_zones(self.volume.zones(), version, &mut report);
        for detail in Member::shared_bytes(&stores) {
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
        debug_assert_eq!(done, total, "each table was read");
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
                    debug_assert!(entry.is_value, "a memtable has places of values alone");
                    values.check(tree, entry, report)?;
                }
                entries.next()?;
            }
        }
        Ok(())
    }
}
