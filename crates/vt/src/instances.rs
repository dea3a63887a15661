//! Several stores on one volume.
//!
//! The first instance's engine opens all, and holds the engines of the others. Each has its
//! version, its memtables, its log and its threads; zones and space are one. So what is done for
//! the zones is done for all stores together: a zone is empty when what any of them has in it was
//! moved, what is kept back for compactions is the sum of what each needs, and a store that finds
//! no room looks for what others can give back.
//!
//! Opening: first all that is in use is found, of every store, and nothing is written; only then
//! does any of them begin.
//!
//! Locks: no lock of one store is taken with one of another held, but for the installers' in
//! [`Store::check`], in the order of the pool's list.

use crate::VtError;
use crate::background;
use crate::buffer::Buffer;
use crate::engine::VtEngine;
use crate::member::Member;
use crate::options::VtOptions;
use crate::pool::Pool;
use crate::recovery;
use crate::store::Store;
use crate::version::Version;
use std::sync::Arc;
use stitch_base::Lsn;
use stitch_volume::{InstanceOptions, Opened, Volume, VolumeError};

/// Opens all instances of a volume.
pub(crate) fn open(mut opened: Opened, options: &VtOptions) -> Result<Arc<VtEngine>, VtError> {
    let further = std::mem::take(&mut opened.further);
    let options = VtOptions {
        memory_bytes: options.memory_bytes / (further.len() as u64 + 1),
        ..options.clone()
    };
    let pool = Arc::new(Pool::default());
    let mut stores = Vec::new();
    for opened in std::iter::once(opened).chain(further) {
        stores.push(prepare(opened, &options, &pool)?);
    }
    assert!(
        stores[0].volume.is_first(),
        "the first instance opens first"
    );
    debug_assert_eq!(
        pool.all().len(),
        stores.len(),
        "each store is one of the pool"
    );
    for store in &stores {
        recovery::begin(store).map_err(|error| of_instance(&store.volume, error))?;
    }
    let mut engines = Vec::new();
    debug_assert!(
        stores[1..].iter().all(|store| !store.volume.is_first()),
        "a volume has one first instance"
    );
    for store in stores {
        engines.push(start(store)?);
    }
    let first = engines.remove(0);
    *first.further.lock() = engines;
    Ok(first)
}

fn prepare(
    opened: Opened,
    options: &VtOptions,
    pool: &Arc<Pool<Member>>,
) -> Result<Arc<Store>, VtError> {
    let volume = Arc::clone(&opened.volume);
    let store = recovery::prepare(opened, options.clone(), Arc::clone(pool));
    let store = store.map_err(|error| of_instance(&volume, error))?;
    let store = Arc::new(store);
    debug_assert!(
        Arc::ptr_eq(&store.member.pool, pool),
        "a member is of its pool"
    );
    pool.add(&store.member);
    pool.ledgers.add(&store.space);
    Ok(store)
}

/// An error with the name of its instance; the first has none to tell.
fn of_instance(volume: &Volume, error: VtError) -> VtError {
    match volume.is_first() {
        true => error,
        false => VtError::in_instance(volume.name(), error),
    }
}

/// Starts the threads of a store, if it is to have any.
fn start(store: Arc<Store>) -> Result<Arc<VtEngine>, VtError> {
    debug_assert!(!store.gate.is_closed(), "a store is opened once");
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
        self.store.gate.is_closed()
    }

    /// The engines of the volume's further instances, in order of their names. They are the first
    /// engine's: closing it closes them, and dropping it lets go of them. Empty for all others.
    #[must_use]
    pub fn further(&self) -> Vec<Arc<Self>> {
        let further = self.further.lock().clone();
        debug_assert!(
            further.is_sorted_by(|engine, next| engine.name() < next.name()),
            "each instance has a name of its own"
        );
        further
    }

    /// Makes another instance on the volume, which is empty, and opens it. For the first engine.
    ///
    /// # Errors
    /// As [`stitch_volume::Volume::create_instance`]; [`VolumeError::Invalid`] if this is not the
    /// first.
    ///
    /// # Durability
    /// It is durable when this returns. A crash leaves all of it or nothing.
    pub fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
    ) -> Result<Arc<Self>, VtError> {
        self.check_first()?;
        self.store.gate.check_writable()?;
        let mut further = self.further.lock();
        // What the others keep free stays so.
        let promising = self.store.space.promising();
        self.store.check_room_for_another(options)?;
        let opened = self.store.volume.create_instance(name, options)?;
        drop(promising);
        let volume = Arc::clone(&opened.volume);
        let made = self.begin_made(opened);
        if made.is_err() {
            // What cannot be had now is not there later.
            self.store.volume.remove_instance(&volume)?;
        }
        let made = made?;
        debug_assert_eq!(made.name(), name, "the instance has its name");
        further.push(Arc::clone(&made));
        further.sort_by(|a, b| a.name().cmp(b.name()));
        debug_assert!(
            further.is_sorted_by(|engine, next| engine.name() < next.name()),
            "each instance has a name of its own"
        );
        Ok(made)
    }

    /// Opens an instance that was just made.
    fn begin_made(&self, opened: Opened) -> Result<Arc<Self>, VtError> {
        let store = prepare(opened, &self.store.options, &self.store.member.pool)?;
        debug_assert!(!store.volume.is_first(), "a volume has one first instance");
        let begun = recovery::begin(&store);
        let begun = begun.and_then(|()| start(Arc::clone(&store)));
        begun.inspect_err(|_| store.leave_pool())
    }

    /// Removes an instance with all that is in it. Its engine has no tree any more, and takes no
    /// writes. Its space is free when this returns and the last scan of it has ended. For the first
    /// engine.
    ///
    /// # Errors
    /// As [`stitch_volume::Volume::remove_instance`]; [`VolumeError::Invalid`] if this is not the
    /// first.
    ///
    /// # Durability
    /// It is gone when this returns. A crash leaves all of it or nothing.
    pub fn remove_instance(&self, name: &str) -> Result<(), VtError> {
        self.check_first()?;
        self.store.gate.check_writable()?;
        let mut further = self.further.lock();
        if name == self.name() {
            return Ok(self.store.volume.remove_instance(&self.store.volume)?);
        }
        let index = further.iter().position(|engine| engine.name() == name);
        let index = index.ok_or_else(|| VolumeError::NoInstance {
            name: name.to_owned(),
        })?;
        let gone = &further[index];
        debug_assert!(!gone.store.volume.is_first(), "the first instance stays");
        gone.store.gate.close();
        gone.stop_threads();
        self.store.remove(&gone.store)?;
        further.remove(index);
        debug_assert!(
            further.iter().all(|engine| engine.name() != name),
            "each instance has a name of its own"
        );
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
    /// Removes another store, which was closed, from the volume, and gives its space back.
    fn remove(&self, gone: &Arc<Self>) -> Result<(), VtError> {
        assert!(!std::ptr::eq(self, Arc::as_ptr(gone)), "this one stays");
        // What others have under way in it comes to its end, and nothing begins any more.
        let compaction = gone.compactor.scheduler.alone();
        let write_out = gone.write_outs.lock();
        let installer = gone.versions.lock();
        let mut committer = gone.committer.lock();
        self.volume.remove_instance(&gone.volume)?;
        committer.trees.clear();
        committer.streams.give_back();
        debug_assert!(gone.gate.is_closed(), "it takes no writes");
        gone.leave_all(installer.log_start);
        drop((committer, installer, write_out, compaction));
        gone.leave_pool();
        for member in self.member.pool.all() {
            member.gate.wake_commits();
        }
        Ok(())
    }

    /// Is no member of the pool any more.
    fn leave_pool(&self) {
        let pool = &self.member.pool;
        debug_assert!(!self.volume.is_first(), "the first instance stays");
        pool.remove(&self.member);
        pool.ledgers.remove(&self.space);
    }

    /// Owns nothing any more: the medium does not know this store. Who reads in it still may.
    fn leave_all(&self, log_start: Lsn) {
        debug_assert!(self.gate.is_closed(), "it takes no writes");
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
            view.buffers = vec![Arc::new(Buffer::empty(&self.sizing.opened, log_start))];
        });
        debug_assert!(self.member.owned().is_empty(), "all was left");
    }

    /// Refuses another store where there is no room for its logs, and for what all keep free then.
    fn check_room_for_another(&self, options: &InstanceOptions) -> Result<(), VtError> {
        let volume = &self.volume;
        let kept = self.space.reserve_bytes_with_another();
        let wanted_bytes = volume.instance_bytes(options)? + kept;
        let free_bytes = self.space.available_bytes();
        if wanted_bytes <= free_bytes {
            return Ok(());
        }
        Err(VtError::Volume(VolumeError::NoSpace {
            wanted_bytes,
            free_bytes,
        }))
    }
}
