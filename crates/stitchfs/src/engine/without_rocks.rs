//! What stands for the RocksDB engine in a program that was built without it: no store of it is
//! ever open.

use super::{EngineKind, Fill, Opened};
use crate::StoreError;
use crate::make::MakeOptions;
use crate::store::StoreOptions;
use std::path::{Path, PathBuf};
use stitch_base::sync::Arc;
use stitch_format::store_identity::Identity;
use stitch_kv::Engine;

/// An open store of the engine: there is none.
#[derive(Debug)]
pub(crate) enum NoRocksStore {}

pub(crate) use NoRocksStore as RocksStore;

impl NoRocksStore {
    pub(super) fn engine(&self) -> Arc<dyn Engine> {
        match *self {}
    }

    pub(super) fn is_closed(&self) -> bool {
        match *self {}
    }

    pub(super) fn path(&self) -> &Path {
        match *self {}
    }

    pub(super) fn identity(&self) -> &Identity {
        match *self {}
    }
}

/// Refuses to open a store.
///
/// # Errors
/// [`StoreError::NoEngine`].
pub(super) fn open(path: &Path, _: &StoreOptions, _: u64) -> Result<Opened, StoreError> {
    Err(no_engine(path))
}

/// Refuses to make a store.
///
/// # Errors
/// [`StoreError::NoEngine`].
pub(super) fn make(
    path: &Path,
    _: &MakeOptions,
    _: Fill<'_>,
) -> Result<(PathBuf, Identity), StoreError> {
    Err(no_engine(path))
}

fn no_engine(path: &Path) -> StoreError {
    StoreError::NoEngine {
        path: path.to_owned(),
        engine: EngineKind::RocksDb,
    }
}
