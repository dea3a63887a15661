//! The engines of stores. Nothing else in this crate names one.
//!
//! An [`Instance`] is an engine behind the contract ([`Engine`]), and what a store is beyond that:
//! its name, its identity, its size. The contract says nothing of these, and not every engine has
//! them.
//!
//! ```text
//!  Store, Database, Tree --> Instance { engine: dyn Engine, kind: Kind }
//!                                                            |
//!                                  vt: a volume on a device  |  rocks: a directory
//! ```
//!
//! What is at a path tells which engine opens it ([`EngineKind::at`]). What an engine lacks is
//! [`StoreError::Lacks`], and an engine that this program was built without is
//! [`StoreError::NoEngine`]; a library of an engine that is not installed is
//! [`StoreError::NoLibrary`]. Nothing that was asked for is ignored.

mod dir;
#[cfg(feature = "rocksdb")]
mod rocks;
mod space;
mod vt;
#[cfg(not(feature = "rocksdb"))]
mod without_rocks;

pub(crate) use dir::read as read_identity;
pub use space::Resized;

use crate::make::MakeOptions;
use crate::store::{Finding, StoreOptions};
use crate::{Defragged, InstanceOptions, StoreError, Watch, identity};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use stitch_base::sync::Arc;
use stitch_device::Device;
use stitch_format::instance::FIRST;
use stitch_format::store_identity::Identity;
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{TrimRange, VolumeError};
use stitch_vt::VtEngine;
use uuid::Uuid;
#[cfg(not(feature = "rocksdb"))]
use without_rocks as rocks;

/// What keeps the records of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The VT-tree of this program: in a file of fixed size, a directory with such a file, or a
    /// block device.
    #[default]
    Vt,
    /// RocksDB: in a directory of its own.
    RocksDb,
}

impl EngineKind {
    /// Returns the name that options and documents have.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vt => "vt",
            Self::RocksDb => "rocksdb",
        }
    }

    /// Returns the engine of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Vt, Self::RocksDb]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Reports whether this program was built with the engine.
    #[must_use]
    pub const fn is_built_in(self) -> bool {
        match self {
            Self::Vt => true,
            Self::RocksDb => cfg!(feature = "rocksdb"),
        }
    }

    /// Returns the engine of the store at `path`; [`Self::Vt`] where there is none.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        match dir::is_store(path) {
            true => Self::RocksDb,
            false => Self::Vt,
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Vt => "VT-tree",
            Self::RocksDb => "RocksDB",
        })
    }
}

/// An instance of an open store: its engine, and what the engine's kind adds to the contract. A
/// handle: cheap to clone.
#[derive(Clone)]
pub(crate) struct Instance {
    /// The engine.
    pub(crate) engine: Arc<dyn Engine>,
    kind: Kind,
    /// The transaction whose records the engine shows; 0 for none.
    transaction: u64,
}

/// What is known beyond the contract.
#[derive(Clone)]
enum Kind {
    Vt(Arc<VtEngine>),
    Rocks(Arc<rocks::RocksStore>),
}

/// A store that was opened.
pub(crate) struct Opened {
    /// Its first instance, which knows the others.
    pub(crate) first: Instance,
    /// Damage that opening has met and got around.
    pub(crate) damage: Vec<Finding>,
}

/// Opens the store at `path`: a file, a directory with a store in it, or a block device.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn open(
    path: &Path,
    options: &StoreOptions,
    memory_bytes: u64,
) -> Result<Opened, StoreError> {
    if EngineKind::at(path) == EngineKind::RocksDb {
        // It has no branch trees, and so none that a transaction left.
        return rocks::open(path, options, memory_bytes);
    }
    let device_options = stitch_device::OpenOptions {
        read_only: options.read_only,
        io: options.io,
        ..stitch_device::OpenOptions::default()
    };
    let device = stitch_device::open_path(path, device_options)?;
    open_device(device, options, memory_bytes)
}

/// Makes a store with the RocksDB engine in the directory at `path`. `fill` puts into its engine
/// what is to be there from the beginning. Returns the full path and what the store is.
///
/// # Errors
/// [`StoreError::NoEngine`], [`StoreError::Lacks`], [`StoreError::Occupied`],
/// [`StoreError::Directory`]; see [`StoreError`]. Nothing is left behind where there was nothing.
///
/// # Durability
/// The store is durable when this returns.
pub(crate) fn make_in_directory(
    path: &Path,
    options: &MakeOptions,
    fill: Fill<'_>,
) -> Result<(PathBuf, Identity), StoreError> {
    rocks::make(path, options, fill)
}

/// Puts the first contents into the engine of a new store.
pub(crate) type Fill<'a> = &'a mut dyn FnMut(&Arc<dyn Engine>) -> Result<(), StoreError>;

/// Opens the store on a device.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn open_device(
    device: Arc<dyn Device>,
    options: &StoreOptions,
    memory_bytes: u64,
) -> Result<Opened, StoreError> {
    let opened = vt::open(device, options, memory_bytes)?;
    if !options.read_only {
        opened.first.all().iter().for_each(Instance::drop_abandoned);
    }
    Ok(opened)
}

/// Returns the upsert functions that a store may meet: those of file systems and the program's own.
fn upserts(options: &StoreOptions) -> UpsertRegistry {
    let mut upserts = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut upserts);
    upserts.register_all(&options.upserts);
    upserts
}

impl Instance {
    fn of_vt(vt: Arc<VtEngine>) -> Self {
        Self {
            engine: Arc::clone(&vt) as Arc<dyn Engine>,
            kind: Kind::Vt(vt),
            transaction: 0,
        }
    }

    fn of_rocks(store: Arc<rocks::RocksStore>) -> Self {
        Self {
            engine: store.engine(),
            kind: Kind::Rocks(store),
            transaction: 0,
        }
    }

    /// Returns the engine whose stores have a volume.
    ///
    /// # Errors
    /// Another engine has no `what`.
    fn vt(&self, what: &'static str) -> Result<&Arc<VtEngine>, StoreError> {
        match &self.kind {
            Kind::Vt(vt) => Ok(vt),
            Kind::Rocks(store) => Err(lacks(store.path(), what)),
        }
    }

    /// The records of this instance as a transaction has them.
    pub(crate) fn in_transaction(&self, engine: Arc<dyn Engine>, number: u64) -> Self {
        debug_assert!(number > 0, "0 is no number");
        Self {
            engine,
            kind: self.kind.clone(),
            transaction: number,
        }
    }

    /// Refuses an engine without branch trees.
    pub(crate) fn check_branches(&self) -> Result<(), StoreError> {
        self.vt("branch trees, which transactions of files need")
            .map(drop)
    }

    /// Size in bytes beyond which files become plain files, if nothing else is asked for; `None`
    /// for no file.
    pub(crate) fn large_files(&self) -> Option<u64> {
        match &self.kind {
            Kind::Vt(_) => None,
            Kind::Rocks(store) => store.identity().large_files,
        }
    }

    /// Reports whether the engine's space is the free space of the host's file system.
    pub(crate) fn is_in_host_space(&self) -> bool {
        match &self.kind {
            Kind::Vt(_) => false,
            Kind::Rocks(_) => true,
        }
    }

    /// Name of the instance.
    pub(crate) fn name(&self) -> &str {
        match &self.kind {
            Kind::Vt(vt) => vt.name(),
            Kind::Rocks(_) => FIRST,
        }
    }

    /// Number of the transaction whose records these are; 0 for none.
    pub(crate) const fn transaction(&self) -> u64 {
        self.transaction
    }

    /// Reports whether this is the instance that every store has.
    pub(crate) fn is_first(&self) -> bool {
        self.name() == FIRST
    }

    /// Reports whether the engine takes no more writes because it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.kind {
            Kind::Vt(vt) => vt.is_closed(),
            Kind::Rocks(store) => store.is_closed(),
        }
    }

    /// Reports whether there is a file system in the instance.
    pub(crate) fn has_file_system(&self) -> bool {
        let trees = self.engine.trees();
        let mut trees = trees.iter();
        trees.any(|tree| tree.name.starts_with(crate::database::FILE_SYSTEM))
    }

    /// What users call the store: its path as text, or `memory`.
    pub(crate) fn store_name(&self) -> String {
        match &self.kind {
            Kind::Vt(vt) => vt.volume().device().geometry().name,
            Kind::Rocks(store) => store.path().display().to_string(),
        }
    }

    /// File, directory or device of the store; a name for a store in memory.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.kind {
            Kind::Vt(vt) => vt.volume().device().geometry().into_path(),
            Kind::Rocks(store) => store.path().to_owned(),
        }
    }

    /// Number of the store.
    pub(crate) fn uuid(&self) -> Uuid {
        match &self.kind {
            Kind::Vt(vt) => Uuid::from_bytes(vt.volume().superblock().uuid),
            Kind::Rocks(store) => Uuid::from_bytes(store.identity().uuid),
        }
    }

    /// The facts of the store at `path`.
    pub(crate) fn identity(&self, path: &Path) -> Value {
        match &self.kind {
            Kind::Vt(vt) => identity::of_volume(path, &vt.volume().superblock()),
            Kind::Rocks(store) => identity::of_directory(path, store.identity()),
        }
    }

    /// The other instances of the store. Only the first one knows them.
    pub(crate) fn further(&self) -> Vec<Self> {
        match &self.kind {
            Kind::Vt(vt) => vt.further().into_iter().map(Self::of_vt).collect(),
            Kind::Rocks(_) => Vec::new(),
        }
    }

    /// All instances of the store, the first one first. Only that one knows them.
    pub(crate) fn all(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        all.extend(self.further());
        all
    }

    /// Drops what transactions have left that a crash ended. What cannot be dropped takes space,
    /// and the store can be used all the same.
    fn drop_abandoned(&self) {
        match stitch_db::drop_abandoned(self.engine.as_ref()) {
            Ok(0) => {}
            Ok(trees) => tracing::info!(trees, "dropped branch trees of transactions"),
            Err(error) => tracing::warn!(%error, "branch trees of transactions stay"),
        }
    }

    /// Names of all instances of the store, the first one first.
    pub(crate) fn names(&self) -> Vec<String> {
        let all = self.all();
        all.iter().map(|one| one.name().to_owned()).collect()
    }

    /// Returns the instance of this name, by default the first, which is asked.
    ///
    /// # Errors
    /// [`VolumeError::NoInstance`].
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Self, StoreError> {
        let Some(name) = name.filter(|name| *name != self.name()) else {
            return Ok(self.clone());
        };
        let found = self.further().into_iter().find(|one| one.name() == name);
        let none = || VolumeError::NoInstance {
            name: name.to_owned(),
        };
        Ok(found.ok_or_else(none)?)
    }

    /// As [`crate::Database::create_instance`].
    pub(crate) fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
    ) -> Result<Self, StoreError> {
        let vt = self.vt(NO_INSTANCES)?;
        Ok(Self::of_vt(vt.create_instance(name, options)?))
    }

    /// As [`crate::Database::remove_instance`].
    pub(crate) fn remove_instance(&self, name: &str) -> Result<(), StoreError> {
        let vt = self.vt(NO_INSTANCES)?;
        Ok(vt.remove_instance(name)?)
    }

    /// As [`crate::Database::defrag`].
    pub(crate) fn defrag(&self, watch: &mut Watch<'_>) -> Result<Defragged, StoreError> {
        let vt = self.vt("zones to defragment: its compactions give space back")?;
        Ok(vt.defrag(watch)?)
    }

    /// Tells the device of all that is free in a range. `watch` is told bytes.
    pub(crate) fn trim(&self, range: &TrimRange, watch: &mut Watch<'_>) -> Result<u64, StoreError> {
        let vt = self.vt("free space of its own to trim: trim the host's file system")?;
        space::trim(vt, range, watch)
    }

    /// Makes the store at `path` longer.
    pub(crate) fn grow(&self, path: &Path, bytes: Option<u64>) -> Result<Resized, StoreError> {
        space::grow(self.vt(NO_SIZE)?, path, bytes)
    }

    /// Makes the store at `path` shorter.
    pub(crate) fn shrink(
        &self,
        path: &Path,
        bytes: u64,
        watch: &mut Watch<'_>,
    ) -> Result<Resized, StoreError> {
        space::shrink(self.vt(NO_SIZE)?, path, bytes, watch)
    }
}

/// The error of what a store at `path` cannot do.
fn lacks(path: &Path, what: &'static str) -> StoreError {
    StoreError::Lacks {
        path: path.to_owned(),
        engine: EngineKind::RocksDb,
        what,
    }
}

const NO_INSTANCES: &str = "instances beside `main`";
const NO_SIZE: &str = "size of its own: it takes what the host's file system has";

/// Names an instance without keeping it open.
///
/// Compared by address: the memory of an engine is not used again while it is named, so two engines
/// of different lives are never taken for one.
#[derive(Clone, Debug)]
pub(crate) struct WeakInstance {
    kind: WeakKind,
    transaction: u64,
}

#[derive(Clone, Debug)]
enum WeakKind {
    Vt(Weak<VtEngine>),
    Rocks(Weak<rocks::RocksStore>),
}

impl WeakInstance {
    pub(crate) fn of(instance: &Instance) -> Self {
        let kind = match &instance.kind {
            Kind::Vt(vt) => WeakKind::Vt(Arc::downgrade(vt)),
            Kind::Rocks(store) => WeakKind::Rocks(Arc::downgrade(store)),
        };
        Self {
            kind,
            transaction: instance.transaction,
        }
    }

    /// Reports whether it names this instance.
    pub(crate) fn is(&self, instance: &Instance) -> bool {
        let is_engine = match (&self.kind, &instance.kind) {
            (WeakKind::Vt(named), Kind::Vt(vt)) => std::ptr::eq(named.as_ptr(), Arc::as_ptr(vt)),
            (WeakKind::Rocks(named), Kind::Rocks(store)) => {
                std::ptr::eq(named.as_ptr(), Arc::as_ptr(store))
            }
            (WeakKind::Vt(_), Kind::Rocks(_)) | (WeakKind::Rocks(_), Kind::Vt(_)) => false,
        };
        is_engine && self.transaction == instance.transaction
    }

    /// Returns the instance, unless it is no longer open.
    pub(crate) fn upgrade(&self) -> Option<Instance> {
        let mut instance = match &self.kind {
            WeakKind::Vt(named) => named.upgrade().map(Instance::of_vt),
            WeakKind::Rocks(named) => named.upgrade().map(Instance::of_rocks),
        }?;
        instance.transaction = self.transaction;
        Some(instance)
    }
}
