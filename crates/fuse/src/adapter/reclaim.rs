//! Releases the space of forgotten files, a little after they are forgotten: removing a file's
//! contents can take long, and the caller that removed its name must not wait. A request that finds
//! no space releases it at once.

use std::time::Duration;

use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, FsError};

use super::chore::{Chore, Left};

/// Delay during which forgotten files are gathered.
const GATHER: Duration = Duration::from_millis(500);

/// The thread, not started.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-reclaim", GATHER)
}

/// Releases space that is about to be freed. Returns true if any was freed since `mark`.
pub(super) fn make_room(fs: &FileSystem, mark: u64) -> bool {
    fs.make_room(mark).unwrap_or_else(|error| {
        tracing::warn!(%error, "no space was given back for a request that needs some");
        false
    })
}

pub(super) fn start(chore: &Chore, fs: &Arc<FileSystem>) {
    let fs = Arc::clone(fs);
    if fs.has_more_to_reclaim() {
        chore.note();
    }
    chore.start(move |_| {
        match fs.reclaim() {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "forgotten files were removed"),
            // The file system was that of a transaction: nothing is left of it.
            Err(FsError::Ended) => {}
            Err(error) => {
                tracing::warn!(%error, "forgotten files were not removed; tried again later");
                return Left::Nothing;
            }
        }
        match fs.has_more_to_reclaim() {
            true => Left::More,
            false => Left::Nothing,
        }
    });
}
