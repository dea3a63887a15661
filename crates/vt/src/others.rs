//! Work in all stores of a volume, or in the others: zones and space are one, so a store that finds
//! no room looks for what others can give back, and a zone is empty when what any of them has in it
//! was moved.

use crate::VtError;
use crate::compaction::Pressure;
use crate::pool::Pool;
use crate::store::Store;
use crate::version::extents;
use std::sync::Arc;
use stitch_format::vt_manifest::Run;
use stitch_volume::Extent;

/// Returns the error of bytes that cannot be adopted, with the other store that owns one of them.
pub(crate) fn explain(
    pool: &Pool<Store>,
    error: VtError,
    name: &str,
    wanted: &[Extent],
) -> VtError {
    let owned = |store: &Store| {
        let mut owned = store.owned();
        owned.retain(|own| {
            let is_shared = |e: &Extent| e.addr < own.end() && own.addr < e.end();
            wanted.iter().any(is_shared)
        });
        let shared = owned.first().copied()?;
        Some((shared, store.volume.name().to_owned()))
    };
    let found = pool.all().iter().find_map(|store| owned(store));
    found.map_or(error, |(shared, other)| VtError::Version {
        what: format!(
            "instance {other} and instance {name} both own bytes from {} to {}",
            shared.addr,
            shared.end()
        ),
    })
}

impl Store {
    /// What tables of this store own, and values that commits have written at once.
    pub(crate) fn owned(&self) -> Vec<Extent> {
        let view = self.views.get();
        let tables = view.version.tables();
        let mut owned: Vec<Extent> = tables.flat_map(|(_, t)| extents(&t.meta().runs)).collect();
        let direct = view.buffers.iter().map(|b| b.direct.extents());
        owned.extend(direct.flat_map(|runs| extents(&runs)));
        owned
    }

    /// The other stores of the volume that take writes.
    fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        let all = self.pool.all().into_iter();
        all.filter(|s| !std::ptr::eq(&raw const **s, self) && s.check_writable().is_ok())
    }

    /// All stores of the volume that take writes.
    pub(crate) fn with_others(&self) -> Vec<Arc<Self>> {
        let mut all = self.pool.all();
        all.retain(|store| store.check_writable().is_ok());
        all
    }

    /// What came of work in a store, which may be another: then a failure names it, and one that
    /// was closed or removed meanwhile has nothing to do.
    ///
    /// # Errors
    /// The failure.
    pub(crate) fn told<T: Default>(
        &self,
        store: &Self,
        done: Result<T, VtError>,
    ) -> Result<T, VtError> {
        match done {
            Err(VtError::Poisoned | VtError::Closed)
                if store.gate.is_closed() && !std::ptr::eq(self, store) =>
            {
                Ok(T::default())
            }
            done => done.map_err(|error| self.named(store, error)),
        }
    }

    /// Says whose error it is, where that is another store.
    pub(crate) fn named(&self, store: &Self, error: VtError) -> VtError {
        match std::ptr::eq(self, store) {
            true => error,
            false => VtError::in_instance(store.volume.name(), error),
        }
    }

    /// Takes one table of any store out of parts of the device. Returns false if none is left there
    /// that can be. Unless `waits`, other stores that compact now are passed over.
    ///
    /// # Errors
    /// As [`Compactor::evacuate_one`](crate::compaction::Compactor::evacuate_one).
    pub(crate) fn evacuate_any(&self, zones: &[Run], waits: bool) -> Result<bool, VtError> {
        for store in self.with_others() {
            let is_own = std::ptr::eq(&raw const *store, self);
            if !waits && !is_own && store.compactor.scheduler.is_busy() {
                continue;
            }
            if self.told(&store, store.compactor.evacuate_one(zones))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets go of room that no commit has used yet. Returns false if there is none.
    pub(crate) fn give_back_unused(&self) -> bool {
        let mut committer = self.committer.lock();
        let had_extents = committer.streams.give_back();
        self.views.get().active().give_back_room() || had_extents
    }

    /// The same for all other stores.
    pub(crate) fn have_unused_back(&self) -> bool {
        let given = self.others().map(|store| store.give_back_unused());
        given.fold(false, |any, given| any | given)
    }

    /// Makes room in another store. Returns false if there is nothing to be done.
    pub(crate) fn make_room_in_others(&self) -> bool {
        self.others().any(|store| {
            if store.give_back_unused() {
                return true;
            }
            let made = store
                .compactor
                .compact_one(Pressure::Room)
                .and_then(|has_worked| {
                    if has_worked {
                        return Ok(true);
                    }
                    store.seal_deletes()?;
                    store.write_out_one()
                });
            // A failure is told to whoever uses that store.
            made.unwrap_or(false)
        })
    }

    /// Compacts another store to make room. Returns false if there is nothing to be done.
    pub(crate) fn compact_others(&self) -> bool {
        self.others()
            .any(|store| store.compactor.compact_one(Pressure::Room).unwrap_or(false))
    }

    /// Writes out what is sealed in other stores. Returns false if nothing was.
    pub(crate) fn finish_others(&self) -> bool {
        let mut has_any = false;
        for store in self.others() {
            while store.write_out_one().unwrap_or(false) {
                has_any = true;
            }
        }
        has_any
    }

    /// The instance that was closed with data in a part of the device, if any.
    pub(crate) fn closed_in(&self, part: Run) -> Option<String> {
        let is_in = |e: &Extent| e.addr < part.end() && part.addr < e.end();
        let all = self.pool.all().into_iter();
        let mut closed = all.filter(|store| store.check_writable().is_err());
        let found = closed.find(|store| store.owned().iter().any(is_in));
        found.map(|store| store.volume.name().to_owned())
    }

    /// What two stores own, as text; each pair once.
    pub(crate) fn shared_bytes(stores: &[Arc<Self>]) -> Vec<String> {
        let mut all: Vec<(Extent, usize)> = Vec::new();
        for (index, store) in stores.iter().enumerate() {
            all.extend(store.owned().into_iter().map(|extent| (extent, index)));
        }
        all.sort_unstable();
        let pairs = all.windows(2).filter(|pair| {
            let ((a, owner), (b, other)) = (pair[0], pair[1]);
            owner != other && a.end() > b.addr
        });
        let name = |index: usize| stores[index].volume.name();
        pairs
            .map(|pair| {
                let ((_, owner), (b, other)) = (pair[0], pair[1]);
                let (owner, other) = (name(owner), name(other));
                format!("instances {owner} and {other} both own byte {}", b.addr)
            })
            .collect()
    }
}
