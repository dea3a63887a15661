//! Gives back the space of forgotten files, a little after they are forgotten: removing a file's
//! contents can take long, and whoever removed its name is not to wait. A request that finds no
//! space does not wait for that time: it gives the space back itself.

use std::time::Duration;

use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use super::chore::{Chore, Left};

/// Forgotten files are gathered for so long.
const GATHER: Duration = Duration::from_millis(500);

/// The thread, not started.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-reclaim", GATHER)
}

/// Gives back space that is on its way. Returns true if any came back since `mark`.
pub(super) fn make_room(fs: &FileSystem, mark: u64) -> bool {
    fs.make_room(mark).unwrap_or_else(|error| {
        tracing::warn!(%error, "no space was given back for a request that needs some");
        false
    })
}

pub(super) fn start(chore: &Chore, fs: &Arc<FileSystem>) {
    let fs = Arc::clone(fs);
    chore.start(move |_| {
        match fs.reclaim() {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "forgotten files were removed"),
            Err(error) => {
                tracing::warn!(%error, "forgotten files were not removed; tried again later");
            }
        }
        Left::Nothing
    });
}
