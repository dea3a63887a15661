//! A member of a pool: a store as the stores of its volume use it.
//!
//! Zones and space are one for all of them. So a store that finds no room has the others make
//! some, and a zone is empty when what any of them has in it was moved. A member is what that
//! takes: its memtables can be written out, its tables compacted and evacuated, its room taken
//! back. What a member does for itself goes the same way ([`crate::make_room`],
//! [`crate::defrag`], [`crate::resize`]).
//!
//! Invariants:
//! - work begins only in members that take writes, and a failure there names the member;
//! - no lock of one member is held while one of another is taken.

use crate::VtError;
use crate::commit_lock::CommitLock;
use crate::compaction::{Compactor, Pressure};
use crate::counters::VtCounters;
use crate::gate::Gate;
use crate::install::VersionLog;
use crate::key_order::KeyOrder;
use crate::pool::Pool;
use crate::signals::Signals;
use crate::space::SpaceLedger;
use crate::version::extents;
use crate::view::Views;
use crate::write_out::WriteOuts;
use std::sync::Arc;
use stitch_base::clock::Clock;
use stitch_base::sync::Apart;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Extent, Volume};

/// A store as all stores of its volume use it.
pub(crate) struct Member {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<Apart<VtCounters>>,
    pub(crate) views: Arc<Views>,
    /// Taken to give extents of write streams back.
    pub(crate) commits: Arc<CommitLock>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    /// The members of the same volume, this one among them.
    pub(crate) pool: Arc<Pool<Self>>,
    pub(crate) space: Arc<SpaceLedger>,
    pub(crate) versions: Arc<VersionLog>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) key_order: Arc<KeyOrder>,
    pub(crate) write_outs: Arc<WriteOuts>,
}

/// Returns the error of bytes that cannot be adopted, with the other store that owns one of them.
pub(crate) fn explain(
    pool: &Pool<Member>,
    error: VtError,
    name: &str,
    wanted: &[Extent],
) -> VtError {
    debug_assert!(!wanted.is_empty(), "some bytes cannot be adopted");
    let owned = |store: &Member| {
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

impl Member {
    /// Writes out the oldest sealed memtable. Returns false if there is none. Where it finds no
    /// space, garbage of this member and of others is compacted away.
    ///
    /// # Errors
    /// As [`WriteOuts::write_one`].
    pub(crate) fn write_out_one(&self) -> Result<bool, VtError> {
        self.write_outs.write_one(&|| {
            let has_room = self.compactor.compact_one(Pressure::Room).unwrap_or(false);
            has_room || self.compact_others()
        })
    }

    /// Seals and writes out everything.
    ///
    /// # Errors
    /// As [`Self::write_out_one`].
    pub(crate) fn write_all_out(&self) -> Result<(), VtError> {
        self.write_outs.seal_all()?;
        while self.write_out_one()? {}
        Ok(())
    }

    /// What tables of this store own, and values that commits have written at once.
    pub(crate) fn owned(&self) -> Vec<Extent> {
        let view = self.views.get();
        let tables = view.version.tables();
        let mut owned: Vec<Extent> = tables.flat_map(|(_, t)| extents(&t.meta().runs)).collect();
        let direct = view.buffers.iter().map(|b| b.direct.extents());
        owned.extend(direct.flat_map(|runs| extents(&runs)));
        debug_assert!(
            owned.iter().all(|extent| extent.len > 0),
            "what is owned has bytes"
        );
        owned
    }

    /// The other stores of the volume that take writes.
    fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        let all = self.pool.all().into_iter();
        all.filter(|s| !std::ptr::eq(&raw const **s, self) && s.gate.check_writable().is_ok())
    }

    /// All stores of the volume that take writes.
    pub(crate) fn with_others(&self) -> Vec<Arc<Self>> {
        let mut all = self.pool.all();
        all.retain(|store| store.gate.check_writable().is_ok());
        debug_assert!(
            all.iter().all(|store| Arc::ptr_eq(&store.pool, &self.pool)),
            "stores of one volume work for each other"
        );
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

    /// The error, with the instance's name where it is another store's.
    pub(crate) fn named(&self, store: &Self, error: VtError) -> VtError {
        debug_assert!(
            Arc::ptr_eq(&self.pool, &store.pool),
            "stores of one volume work for each other"
        );
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
        debug_assert!(!zones.is_empty(), "something is evacuated");
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
        let mut commits = self.commits.lock();
        let had_extents = commits.streams.give_back();
        let view = self.views.get();
        let had_room = view.active().give_back_room();
        debug_assert_eq!(
            view.active().room_bytes(),
            0,
            "no commit is promised more while the lock of commits is held"
        );
        had_room || had_extents
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
                    store.write_outs.seal_deletes()?;
                    store.write_out_one()
                });
            // Calls on that store return the failure.
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
        debug_assert!(part.len_bytes > 0, "a part of the device is not empty");
        let is_in = |e: &Extent| e.addr < part.end() && part.addr < e.end();
        let all = self.pool.all().into_iter();
        let mut closed = all.filter(|store| store.gate.check_writable().is_err());
        let found = closed.find(|store| store.owned().iter().any(is_in));
        found.map(|store| store.volume.name().to_owned())
    }

    /// What two stores own, as text; each pair once.
    pub(crate) fn shared_bytes(stores: &[Arc<Self>]) -> Vec<String> {
        debug_assert!(
            stores
                .iter()
                .all(|store| Arc::ptr_eq(&store.pool, &stores[0].pool)),
            "stores of one volume are compared"
        );
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
                let ((a, owner), (b, other)) = (pair[0], pair[1]);
                debug_assert!(a.addr <= b.addr, "extents are in order");
                let (owner, other) = (name(owner), name(other));
                format!("instances {owner} and {other} both own byte {}", b.addr)
            })
            .collect()
    }
}
