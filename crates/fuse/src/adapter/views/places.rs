//! Puts the back rows that clones of directories with clones in them ask for, and narrows snapshots
//! to what their directories need.

use std::time::Duration;

use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use crate::adapter::chore::{Chore, Left, Round};

/// Pause between two rounds, each of which takes some ten milliseconds, less while a snapshot or a
/// clone is made.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread, not started.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-places", PAUSE)
}

/// Starts the thread, which narrows what an earlier life has left. A round is requested for each
/// clone and each snapshot that was made, and begins some time after the last of them.
pub(super) fn start(chore: &Chore, mainline: &Arc<FileSystem>) {
    debug_assert_eq!(
        mainline.view_number(),
        0,
        "mainline knows what is asked for"
    );
    let fs = Arc::clone(mainline);
    chore.start(move |round| work(&fs, round));
    chore.note();
}

/// Does what is due.
pub(super) fn work(fs: &FileSystem, round: Round) -> Left {
    if round == Round::Last {
        fs.snapshots().end_narrowing();
        return Left::Nothing;
    }
    // Commands on snapshots and clones come in series, and are not to be slowed down.
    let wait = fs.snapshots().narrowing_wait();
    if !wait.is_zero() {
        return Left::Later(wait);
    }
    // Clones wait for back rows.
    let put = fs.put_back_rows_ahead().unwrap_or_else(|error| {
        tracing::warn!(%error, "no back rows were put; clones of clones scan names");
        false
    });
    let narrowed = fs.snapshots().narrow_ahead().unwrap_or_else(|error| {
        tracing::warn!(%error, "a snapshot was not narrowed; it keeps contents of all directories");
        true
    });
    if put || narrowed {
        return Left::More;
    }
    let clones = fs.snapshots().narrow_clones_ahead().unwrap_or_else(|error| {
        tracing::warn!(%error, "a clone was not narrowed; its source keeps all that is replaced");
        Some(Duration::ZERO)
    });
    clones.map_or(Left::Nothing, Left::Later)
}
