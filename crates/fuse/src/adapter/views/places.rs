//! Puts the back rows that clones of directories with clones in them ask for.

use std::time::Duration;

use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use crate::adapter::chore::{Chore, Left, Round};

/// Pause between two rounds, each of which takes some ten milliseconds.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread, not started.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-places", PAUSE)
}

/// Starts the thread. A round is requested for each clone that was made.
pub(super) fn start(chore: &Chore, mainline: &Arc<FileSystem>) {
    debug_assert_eq!(
        mainline.view_number(),
        0,
        "mainline knows what is asked for"
    );
    let fs = Arc::clone(mainline);
    chore.start(move |round| put(&fs, round));
}

fn put(fs: &FileSystem, round: Round) -> Left {
    if round == Round::Last {
        return Left::Nothing;
    }
    match fs.put_back_rows_ahead() {
        Ok(true) => Left::More,
        Ok(false) => Left::Nothing,
        Err(error) => {
            tracing::warn!(%error, "no back rows were put; clones of clones scan names");
            Left::Nothing
        }
    }
}
