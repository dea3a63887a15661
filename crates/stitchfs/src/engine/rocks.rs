//! Stores of the RocksDB engine: a directory.

mod dir;

use super::{EngineKind, Fill, Instance, Opened, lacks};
use crate::StoreError;
use crate::make::MakeOptions;
use crate::store::StoreOptions;
use dir::{Making, StoreDir};
use std::path::{Path, PathBuf};
use stitch_base::sync::Arc;
use stitch_device::IoMode;
use stitch_format::instance::FIRST;
use stitch_format::store_identity::Identity;
use stitch_kv::Engine;
use stitch_rocks::{RocksEngine, RocksOptions};
use stitch_volume::Durability;

/// Memory of the engine while a store is made, in bytes.
const MAKE_MEMORY_BYTES: u64 = 16 << 20;

/// A store in a directory, open.
///
/// The fields are dropped in this order: the directory stays locked until the engine is gone.
#[derive(Debug)]
pub(crate) struct RocksStore {
    engine: Arc<RocksEngine>,
    dir: StoreDir,
}

impl RocksStore {
    pub(super) fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as Arc<dyn Engine>
    }

    pub(super) fn is_closed(&self) -> bool {
        self.engine.is_closed()
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir.path
    }

    pub(super) const fn identity(&self) -> &Identity {
        &self.dir.identity
    }
}

/// Opens the store in a directory.
///
/// # Errors
/// [`StoreError::Lacks`] for options that the engine does not have, [`StoreError::NoLibrary`]; see
/// [`StoreError`].
pub(super) fn open(
    path: &Path,
    options: &StoreOptions,
    memory_bytes: u64,
) -> Result<Opened, StoreError> {
    check_options(path, options)?;
    load_library(path)?;
    let dir = StoreDir::open(path, options.read_only)?;
    let rocks_options = RocksOptions {
        memory_bytes,
        upserts: super::upserts(options),
        sync_interval: options.sync_interval,
        read_only: options.read_only,
        sync_commits: options.durability == Durability::Device,
    };
    let engine = Arc::new(RocksEngine::open(&dir.path, &rocks_options)?);
    Ok(Opened {
        first: Instance::of_rocks(Arc::new(RocksStore { engine, dir })),
        damage: Vec::new(),
    })
}

/// Makes a store in a directory. `fill` puts into its engine what is to be there from the
/// beginning.
///
/// # Errors
/// [`StoreError::Lacks`] for options that the engine does not have, [`StoreError::NoLibrary`],
/// [`StoreError::Occupied`], [`StoreError::Directory`]; see [`StoreError`]. Nothing is left behind
/// where there was nothing.
///
/// # Durability
/// The store is durable when this returns.
pub(super) fn make(
    path: &Path,
    options: &MakeOptions,
    fill: Fill<'_>,
) -> Result<(PathBuf, Identity), StoreError> {
    let size = options.len_bytes.is_some() || options.grown_bytes.is_some();
    for (is_given, what) in [
        (size, super::NO_SIZE),
        (
            options.zone_bytes.is_some(),
            "zones, and so no size of zones",
        ),
    ] {
        refuse(path, is_given, what)?;
    }
    load_library(path)?;
    let making = Making::begin(path, options)?;
    let rocks_options = RocksOptions {
        memory_bytes: MAKE_MEMORY_BYTES,
        upserts: super::upserts(&StoreOptions::default()),
        ..RocksOptions::default()
    };
    let engine = Arc::new(RocksEngine::create(&making.path, &rocks_options)?);
    let engine = engine as Arc<dyn Engine>;
    fill(&engine)?;
    engine.close()?;
    drop(engine);
    let made = (making.path.clone(), making.identity.clone());
    making.finish()?;
    Ok(made)
}

/// Loads the engine's library, for the store at `path`.
///
/// # Errors
/// [`StoreError::NoLibrary`].
fn load_library(path: &Path) -> Result<(), StoreError> {
    stitch_rocks::load_library().map_err(|error| StoreError::NoLibrary {
        path: path.to_owned(),
        engine: EngineKind::RocksDb,
        reason: error.to_string(),
    })
}

/// Refuses what only a store on a volume can be opened with.
fn check_options(path: &Path, options: &StoreOptions) -> Result<(), StoreError> {
    let is_other = |name: &String| name != FIRST;
    for (is_given, what) in [
        (
            options.discard,
            "discard: the host's file system gives space back",
        ),
        (
            options.io != IoMode::Auto,
            "choice of how a device is accessed (io)",
        ),
        (
            options.instance.as_ref().is_some_and(is_other),
            super::NO_INSTANCES,
        ),
        (
            options.drop_log_tail,
            "log whose damaged end can be given up",
        ),
        (options.stitch_by_key.is_some(), "stitching thresholds"),
    ] {
        refuse(path, is_given, what)?;
    }
    Ok(())
}

fn refuse(path: &Path, is_given: bool, what: &'static str) -> Result<(), StoreError> {
    match is_given {
        true => Err(lacks(path, what)),
        false => Ok(()),
    }
}
