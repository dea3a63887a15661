//! What is told about snapshots.

use crate::set_path;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use stitch_fs::SnapshotInfo;

/// Returns what a snapshot is of, as commands print it and daemons answer it: `name`, `id`, `path`
/// of the directory from the root of the file system, its inode number `root`, `owner`, `created`
/// in nanoseconds since 1970, `holds` (the tags under which it is held), and `automatic` if a
/// policy created it.
#[must_use]
pub fn snapshot_json(info: &SnapshotInfo) -> Value {
    let mut out = json!({
        "name": info.name,
        "id": info.id.0,
        "root": info.root.0,
        "owner": info.owner,
        "created": info.created.0,
        "holds": info.tags,
        "automatic": info.is_automatic,
    });
    let path = PathBuf::from(OsString::from_vec(info.path.clone()));
    set_path(&mut out, "path", &path);
    out
}
