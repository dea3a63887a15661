//! What a store is, for `info` and `stats`.

use crate::set_path;
use serde_json::{Value, json};
use std::path::Path;
use stitch_format::instance::FIRST;
use stitch_format::superblock::Superblock;

/// Names of all instances of a store, `main` first.
#[must_use]
pub fn instances(superblock: &Superblock) -> Vec<String> {
    let further = superblock.instances.iter().map(|i| i.name.clone());
    std::iter::once(FIRST.to_owned()).chain(further).collect()
}

/// The facts of a store's superblock.
#[must_use]
pub fn identity(store: &Path, superblock: &Superblock) -> Value {
    let areas = &superblock.areas;
    let (major, minor) = superblock.version;
    let mut out = json!({
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
