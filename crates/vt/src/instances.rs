//! Several stores on one volume.
//!
//! The first instance's engine opens all, and holds the engines of the others. Each has its version,
//! its memtables, its log and its threads; zones and space are one. So what is done for the zones is
//! done for all stores together: a zone is empty when what any of them has in it was moved, what is
//! kept back for compactions is the sum of what each needs, and a store that finds no room looks for
//! what others can give back.
//!
//! Opening: first all that is in use is found, of every store, and nothing is written; only then does
//! any of them begin.
//!
//! Locks: [`Peers::evacuation`] stands first in the order of `store`; [`Peers::promising`] is taken
//! with a committer's lock held; the list is a leaf. No lock of one store is taken with one of another
//! held, but for the installers' in [`Store::check`], in the order of the list.

use crate::VtError;
use crate::background;
use crate::compaction::Pressure;
use crate::engine::VtEngine;
use crate::options::VtOptions;
use crate::recovery::empty_buffer;
use crate::store::Store;
use crate::version::{Version, extents};
use std::sync::{Arc, Weak};
use stitch_base::Lsn;
use stitch_base::sync::Mutex;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Class, Extent, InstanceOptions, Opened, Volume, VolumeError};

/// What the stores of one volume know of each other.
#[derive(Default)]
pub(crate) struct Peers {
    /// One evacuation of many zones at a time.
    pub(crate) evacuation: Mutex<()>,
    /// One promise of space to a commit at a time.
    pub(crate) promising: Mutex<()>,
    stores: Mutex<Vec<Weak<Store>>>,
}

impl Peers {
    /// All stores that are open, the first one first.
    pub(crate) fn all(&self) -> Vec<Arc<Store>> {
        self.stores
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    fn add(&self, store: &Arc<Store>) {
        self.stores.lock().push(Arc::downgrade(store));
    }

    fn remove(&self, store: &Arc<Store>) {
        let is_other = |other: &Weak<Store>| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(store));
        self.stores.lock().retain(is_other);
    }

    /// Says who else owns a byte that cannot be owned again.
    pub(crate) fn explain(&self, error: VtError, name: &str, wanted: &[Extent]) -> VtError {
        let owned = |store: &Store| {
            let mut owned = store.owned();
            owned.retain(|own| {
                let is_shared = |e: &Extent| e.addr < own.end() && own.addr < e.end();
                wanted.iter().any(is_shared)
            });
            let shared = owned.first().copied()?;
            Some((shared, store.volume.name().to_owned()))
        };
        let found = self.all().iter().find_map(|store| owned(store));
        found.map_or(error, |(shared, other)| VtError::Version {
            what: format!(
                "instance {other} and instance {name} both own bytes from {} to {}",
                shared.addr,
                shared.end()
            ),
        })
    }
}

/// Opens all instances of a volume.
pub(crate) fn open(mut opened: Opened, options: &VtOptions) -> Result<Arc<VtEngine>, VtError> {
    let further = std::mem::take(&mut opened.further);
    let options = VtOptions {
        memory_bytes: options.memory_bytes / (further.len() as u64 + 1),
        ..options.clone()
    };
    let peers = Arc::new(Peers::default());
    let mut stores = Vec::new();
    for opened in std::iter::once(opened).chain(further) {
        stores.push(prepare(opened, &options, &peers)?);
    }
    for store in &stores {
        store
            .begin()
            .map_err(|error| of_instance(&store.volume, error))?;
    }
    let mut engines = Vec::new();
    for store in stores {
        engines.push(start(store)?);
    }
    let first = engines.remove(0);
    *first.further.lock() = engines;
    Ok(first)
}

fn prepare(opened: Opened, options: &VtOptions, peers: &Arc<Peers>) -> Result<Arc<Store>, VtError> {
    let volume = Arc::clone(&opened.volume);
    let store = Store::prepare(opened, options.clone(), Arc::clone(peers));
    let store = store.map_err(|error| of_instance(&volume, error))?;
    let store = Arc::new(store);
    peers.add(&store);
    Ok(store)
}

/// An error with the name of its instance; the first has none to tell.
fn of_instance(volume: &Volume, error: VtError) -> VtError {
    match volume.is_first() {
        true => error,
        false => in_instance(volume, error),
    }
}

fn in_instance(volume: &Volume, error: VtError) -> VtError {
    VtError::Instance {
        name: volume.name().to_owned(),
        source: Box::new(error),
    }
}

/// Starts the threads of a store, if it is to have any.
fn start(store: Arc<Store>) -> Result<Arc<VtEngine>, VtError> {
    let has_threads = store.options.background && !store.volume.is_read_only();
    let threads = match has_threads {
        true => background::start(&store)?,
        false => Vec::new(),
    };
    Ok(Arc::new(VtEngine::new(store, threads)))
}

impl VtEngine {
    /// Which instance of the volume this is.
    #[must_use]
    pub fn name(&self) -> &str {
        self.store.volume.name()
    }

    /// Reports whether the instance was closed or removed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.store.is_closed()
    }

    /// The engines of the volume's further instances, in order of their names. They are the first
    /// engine's: closing it closes them, and dropping it lets go of them. Empty for all others.
    #[must_use]
    pub fn further(&self) -> Vec<Arc<Self>> {
        self.further.lock().clone()
    }

    /// Makes another instance on the volume, which is empty, and opens it. For the first engine.
    ///
    /// # Errors
    /// As [`stitch_volume::Volume::create_instance`]; [`VolumeError::Invalid`] if this is not the first.
    ///
    /// # Durability
    /// It is durable when this returns. A crash leaves all of it or nothing.
    pub fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
    ) -> Result<Arc<Self>, VtError> {
        self.check_first()?;
        self.store.check_writable()?;
        let mut further = self.further.lock();
        // What the others keep free stays so.
        let one_at_a_time = self.store.peers.promising.lock();
        self.store.check_room_for_another(options)?;
        let opened = self.store.volume.create_instance(name, options)?;
        drop(one_at_a_time);
        let volume = Arc::clone(&opened.volume);
        let made = self.begin_made(opened);
        if made.is_err() {
            // What cannot be had now is not there later.
            self.store.volume.remove_instance(&volume)?;
        }
        let made = made?;
        further.push(Arc::clone(&made));
        further.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(made)
    }

    /// Opens an instance that was just made.
    fn begin_made(&self, opened: Opened) -> Result<Arc<Self>, VtError> {
        let store = prepare(opened, &self.store.options, &self.store.peers)?;
        let begun = store.begin();
        let begun = begun.and_then(|()| start(Arc::clone(&store)));
        begun.inspect_err(|_| self.store.peers.remove(&store))
    }

    /// Removes an instance with all that is in it. Its engine has no tree any more, and takes no writes.
    /// Its space is free when this returns and the last scan of it has ended. For the first engine.
    ///
    /// # Errors
    /// As [`stitch_volume::Volume::remove_instance`]; [`VolumeError::Invalid`] if this is not the first.
    ///
    /// # Durability
    /// It is gone when this returns. A crash leaves all of it or nothing.
    pub fn remove_instance(&self, name: &str) -> Result<(), VtError> {
        self.check_first()?;
        self.store.check_writable()?;
        let mut further = self.further.lock();
        if name == self.name() {
            return Ok(self.store.volume.remove_instance(&self.store.volume)?);
        }
        let index = further.iter().position(|engine| engine.name() == name);
        let index = index.ok_or_else(|| VolumeError::NoInstance {
            name: name.to_owned(),
        })?;
        let gone = &further[index];
        gone.store.mark_closed();
        gone.stop_threads();
        self.store.remove(&gone.store)?;
        further.remove(index);
        Ok(())
    }

    fn check_first(&self) -> Result<(), VtError> {
        if self.store.volume.is_first() {
            return Ok(());
        }
        let reason = "instances are made and removed by the first one".to_owned();
        Err(VolumeError::Invalid { reason }.into())
    }

    /// Closes the further instances. The first failure is told, when all were tried.
    pub(crate) fn close_further(&self) -> Result<(), VtError> {
        let mut result = Ok(());
        for engine in self.further() {
            let closed = engine.close_one();
            result = result.and(closed.map_err(|e| of_instance(engine.volume(), e)));
        }
        result
    }
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

    /// Removes another store, which was closed, from the volume, and gives its space back.
    fn remove(&self, gone: &Arc<Self>) -> Result<(), VtError> {
        assert!(!std::ptr::eq(self, Arc::as_ptr(gone)), "this one stays");
        // What others have under way in it comes to its end, and nothing begins any more.
        let compaction = gone.turns.alone();
        let write_out = gone.write_out.lock();
        let installer = gone.installer.lock();
        let mut committer = gone.committer.lock();
        self.volume.remove_instance(&gone.volume)?;
        committer.trees.clear();
        committer.streaks.give_back();
        gone.leave_all(installer.log_start);
        drop((committer, installer, write_out, compaction));
        self.peers.remove(gone);
        for store in self.peers.all() {
            store.room.notify_all();
        }
        Ok(())
    }

    /// Owns nothing any more: the medium does not know this store. Who reads in it still may.
    fn leave_all(&self, log_start: Lsn) {
        let view = self.views.get();
        for (_, table) in view.version.tables() {
            table.leave(&self.volume, table.meta().runs.clone(), Vec::new());
        }
        for buffer in &view.buffers {
            buffer.direct.leave(&self.volume, &[], &[]);
            buffer.release_room();
        }
        drop(view);
        self.views.change(|view| {
            view.version = Arc::new(Version::empty());
            view.buffers = vec![Arc::new(empty_buffer(&self.sizes, log_start))];
        });
        debug_assert!(self.owned().is_empty(), "all was left");
    }

    /// The other stores of the volume that take writes.
    fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        let all = self.peers.all().into_iter();
        all.filter(|s| !std::ptr::eq(&raw const **s, self) && s.check_writable().is_ok())
    }

    /// All stores of the volume that take writes.
    pub(crate) fn with_others(&self) -> Vec<Arc<Self>> {
        let mut all = self.peers.all();
        all.retain(|store| store.check_writable().is_ok());
        all
    }

    /// What all stores keep free for compactions on so many bytes of zones: what each needs, but of
    /// many stores no more than a quarter. A compaction that finds no space is tried again.
    pub(crate) fn reserves(&self, zones_bytes: u64, of: &dyn Fn(&Self) -> u64) -> u64 {
        let all = self.peers.all();
        let sum: u64 = all.iter().map(|store| of(store)).sum();
        sum.min(zones_bytes / 4).max(of(self))
    }

    /// Refuses another store where there is no room for its logs, and for what all keep free then.
    fn check_room_for_another(&self, options: &InstanceOptions) -> Result<(), VtError> {
        let volume = &self.volume;
        let reserve = self.sizes_now().reserve;
        let zones_bytes = volume.zones().total_bytes();
        let all: u64 = self.peers.all().iter().map(|s| s.sizes_now().reserve).sum();
        let kept = (all + reserve).min(zones_bytes / 4).max(reserve);
        let kept = kept.max(volume.space().reserve_bytes());
        let wanted_bytes = volume.instance_bytes(options)? + kept;
        let free_bytes = volume.space().available_bytes(Class::Internal);
        if wanted_bytes <= free_bytes {
            return Ok(());
        }
        Err(VtError::Volume(VolumeError::NoSpace {
            wanted_bytes,
            free_bytes,
        }))
    }

    /// What came of work in a store, which may be another: then a failure names it, and one that was
    /// closed or removed meanwhile has nothing to do.
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
                if store.is_closed() && !std::ptr::eq(self, store) =>
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
            false => in_instance(&store.volume, error),
        }
    }

    /// Takes one table of any store out of parts of the device. Answers false if none is left there
    /// that can be. Unless `waits`, other stores that compact now are passed over.
    ///
    /// # Errors
    /// As [`Self::evacuate_one`].
    pub(crate) fn evacuate_any(&self, zones: &[Run], waits: bool) -> Result<bool, VtError> {
        for store in self.with_others() {
            let is_own = std::ptr::eq(&raw const *store, self);
            if !waits && !is_own && store.turns.is_busy() {
                continue;
            }
            if self.told(&store, store.evacuate_one(zones))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets go of room that no commit has used yet. Answers false if there is none.
    pub(crate) fn give_back_unused(&self) -> bool {
        let mut committer = self.committer.lock();
        let had_lane = committer.streaks.give_back();
        self.views.get().active().give_back_room() || had_lane
    }

    /// The same for all other stores.
    pub(crate) fn have_unused_back(&self) -> bool {
        let given = self.others().map(|store| store.give_back_unused());
        given.fold(false, |any, given| any | given)
    }

    /// Makes room in another store. Answers false if there is nothing to be done.
    pub(crate) fn make_room_in_others(&self) -> bool {
        self.others().any(|store| {
            if store.give_back_unused() {
                return true;
            }
            let made = store.compact_one(Pressure::Room).and_then(|has_worked| {
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

    /// Compacts another store to make room. Answers false if there is nothing to be done.
    pub(crate) fn compact_others(&self) -> bool {
        self.others()
            .any(|store| store.compact_one(Pressure::Room).unwrap_or(false))
    }

    /// Writes out what is sealed in other stores. Answers false if nothing was.
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
        let all = self.peers.all().into_iter();
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
