//! Keeps the table of known inodes within its bound: asks the kernel to drop what it does not use.
//! It answers with FORGET, later, or not at all for what is in use: open files, working directories,
//! directories with anything cached below them, be it that a name is missing.
//!
//! That takes protocol 7.45 (linux 6.18). What older kernels can be asked is to drop a name whatever
//! it is used for: `getcwd` fails then, open files seem deleted, and mounts on it are undone. So they
//! are not asked; they forget when memory runs short.
//!
//! The notices are sent by a thread of their own, and never under a lock: the kernel waits in them for
//! pages and locks whose holders may wait for answers of ours.

use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use super::chore::{Chore, Left, Round};
use crate::notify::Notifier;
use crate::wire::notice::PRUNE_COUNT_MAX;

/// Between two rounds: the time that the kernel has to answer the first.
const PACE: Duration = Duration::from_millis(20);
/// Inodes that the kernel is asked for in one round.
const ROUND_COUNT: usize = 16 << 10;

/// The thread, not started.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-prune", PACE)
}

/// Starts the thread, where the kernel can be asked.
pub(super) fn start(chore: &Chore, fs: &Arc<FileSystem>, notifier: &Notifier) {
    if !notifier.can_prune() {
        tracing::info!("this kernel cannot be asked to forget inodes");
        return;
    }
    let mut pruner = Pruner {
        fs: Arc::clone(fs),
        notifier: notifier.clone(),
        gone_before: 0,
        asked_in_vain: 0,
    };
    chore.start(move |round| match round {
        Round::Due => pruner.round(),
        Round::Last => Left::Nothing,
    });
}

struct Pruner {
    fs: Arc<FileSystem>,
    notifier: Notifier,
    gone_before: u64,
    /// Inodes asked for since the kernel last forgot any.
    asked_in_vain: usize,
}

impl Pruner {
    fn round(&mut self) -> Left {
        let known = self.fs.known_inodes();
        let gone = self.fs.forgotten_inodes();
        if gone > std::mem::replace(&mut self.gone_before, gone) {
            self.asked_in_vain = 0;
        }
        let unused = self.fs.unused(ROUND_COUNT);
        if unused.is_empty() {
            return Left::Nothing;
        }
        if let Err(error) = self.ask(&unused) {
            tracing::debug!(%error, "the kernel was not asked to forget");
            return Left::Nothing;
        }
        tracing::debug!(known, asked = unused.len(), "asked to forget");
        self.asked_in_vain = self.asked_in_vain.saturating_add(unused.len());
        // Once all were asked for in vain, the next new inode tries again.
        if self.asked_in_vain < known {
            Left::More
        } else {
            Left::Nothing
        }
    }

    fn ask(&self, unused: &[Ino]) -> std::io::Result<()> {
        let mut parts = unused.chunks(PRUNE_COUNT_MAX);
        parts.try_for_each(|part| self.notifier.prune(part))
    }
}
