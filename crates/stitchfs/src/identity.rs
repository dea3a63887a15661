//! What a store is, for `info` and `stats`.

use crate::{EngineKind, StoreError, engine, set_path};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stitch_device::OpenOptions;
use stitch_format::instance::FIRST;
use stitch_format::store_identity::{self, Identity};
use stitch_format::superblock::Superblock;
use stitch_volume::Volume;

/// What a store is, as its head says.
#[derive(Clone, Debug)]
pub struct Identified {
    /// Full path of the file, device or directory.
    pub path: PathBuf,
    /// Engine, label, uuid and sizes, as `info` shows them.
    pub facts: Value,
    /// Names of all instances, `main` first.
    pub instances: Vec<String>,
}

/// Reads what the store at `path` is, without opening it: its superblock, or the identity in its
/// directory. The engine need not be built in.
///
/// # Errors
/// [`StoreError::Device`] if it cannot be read, or is open for writing on a volume
/// ([`StoreError::is_busy`]); [`StoreError::Volume`] and [`StoreError::Identity`] for what is no
/// store, is damaged or needs a newer program.
pub fn identify(path: &Path) -> Result<Identified, StoreError> {
    let found = |source| StoreError::Host {
        op: "find",
        path: path.to_owned(),
        source,
    };
    if EngineKind::at(path) == EngineKind::RocksDb {
        let path = path.canonicalize().map_err(found)?;
        let identity = engine::read_identity(&path)?;
        return Ok(Identified {
            facts: of_directory(&path, &identity),
            instances: vec![FIRST.to_owned()],
            path,
        });
    }
    let for_reading = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = stitch_device::open_path(path, for_reading)?;
    let superblock = Volume::identify(device.as_ref())?;
    let path = crate::store_path(path).canonicalize().map_err(found)?;
    Ok(Identified {
        facts: of_volume(&path, &superblock),
        instances: instances(&superblock),
        path,
    })
}

/// The facts of a store in a directory.
pub(crate) fn of_directory(store: &Path, identity: &Identity) -> Value {
    let mut out = json!({
        "engine": EngineKind::RocksDb.name(),
        "label": identity.label,
        "uuid": uuid::Uuid::from_bytes(identity.uuid).to_string(),
        "format": store_identity::VERSION.to_string(),
        "large_files_from_bytes": identity.large_files,
    });
    set_path(&mut out, "store", store);
    out
}

/// Names of all instances of a store, `main` first.
fn instances(superblock: &Superblock) -> Vec<String> {
    let further = superblock.instances.iter().map(|i| i.name.clone());
    std::iter::once(FIRST.to_owned()).chain(further).collect()
}

/// The facts of a store's superblock.
pub(crate) fn of_volume(store: &Path, superblock: &Superblock) -> Value {
    let areas = &superblock.areas;
    let (major, minor) = superblock.version;
    let mut out = json!({
        "engine": EngineKind::Vt.name(),
        "label": superblock.label,
        "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(),
        "format": format!("{major}.{minor}"),
        "generation": superblock.generation.0,
        "bytes": areas.device_bytes,
        "grow_max_bytes": stitch_volume::device_bytes_max(superblock),
        "zone_bytes": areas.zone_bytes,
        "version_log_bytes": areas.version_log_bytes,
        "backup_log_bytes": areas.backup_log_bytes,
    });
    set_path(&mut out, "store", store);
    if !superblock.instances.is_empty() {
        out["instances"] = json!(instances(superblock));
    }
    out
}

/// `PROC_PID_INIT_INO`: the inode number of the first pid namespace, on every Linux.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Reports whether this process sees the processes of all others, by their numbers.
#[must_use]
pub fn sees_all_processes() -> bool {
    pid_namespace() == Some(FIRST_PID_NAMESPACE)
}

/// Returns the inode number of this process's pid namespace: process numbers of another one mean
/// nothing here.
#[must_use]
pub fn pid_namespace() -> Option<u64> {
    let metadata = std::fs::metadata("/proc/self/ns/pid").ok()?;
    Some(std::os::unix::fs::MetadataExt::ino(&metadata))
}
