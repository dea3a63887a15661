//! Warnings about a store that other users can read.
//!
//! A user who can read the store's file can read every file in it, whatever modes they have there.
//! Block devices are left out: their modes are those of the system.

use super::output;
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Mode bits by which users other than the owner read or write.
const OTHERS: u32 = 0o066;
/// The same, and enter: the files of an engine may be for all to read.
const OTHERS_INSIDE: u32 = 0o077;

/// Warns if users other than the owner can read or write the file of a store, enter its directory,
/// or read the folder of its large files.
pub(super) fn warn_if_wide(store: &Path) {
    let store = stitchfs::store_path(store);
    let folder = stitchfs::large_files_path(&store);
    let is_file = |metadata: &Metadata| metadata.is_file();
    for (path, mode_needed, others, is_checked) in [
        (
            store.as_path(),
            0o600,
            OTHERS,
            is_file as fn(&Metadata) -> bool,
        ),
        (store.as_path(), 0o700, OTHERS_INSIDE, Metadata::is_dir),
        (folder.as_path(), 0o700, OTHERS, Metadata::is_dir),
    ] {
        let Ok(metadata) = path.metadata() else {
            continue;
        };
        let mode = metadata.permissions().mode() & 0o7777;
        if is_checked(&metadata) && mode & others != 0 {
            output::note(&warning(path, mode, mode_needed));
        }
    }
}

fn warning(path: &Path, mode: u32, mode_needed: u32) -> String {
    let path = path.display();
    format!(
        "{path}: insecure mode {mode:04o}: other users can read or write all files in the store \
         there; `chmod {mode_needed:04o} {path}`"
    )
}
