//! Bounds the table of known inodes: asks the kernel to drop unused ones. The kernel sends FORGET
//! later, or never for inodes in use: open files, working directories, and directories with cached
//! entries below them, negative ones included.
//!
//! This needs protocol 7.45 (Linux 6.18). Older kernels can only be asked to drop a name, whatever
//! it is used for: `getcwd` fails then, open files seem deleted, and mounts on it are undone. So
//! they are not asked; they forget when memory runs short.
//!
//! The notices are sent by a thread of their own, and never under a lock. In a notice the kernel
//! waits for pages and locks, whose holders may wait for replies of this daemon.

use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use super::chore::{Chore, Left, Round};
use crate::notify::Notifier;
use crate::wire::notice::PRUNE_COUNT_MAX;

/// Pause between two rounds, in which the kernel can reply to the first.
const PACE: Duration = Duration::from_millis(20);
/// Inodes per round.
const ROUND_COUNT: usize = 16 << 10;

/// Creates the chore without its thread.
pub(super) fn chore() -> Chore {
    Chore::new("fuse-prune", PACE)
}

/// Starts the thread, if the kernel supports the notice.
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
    /// Number of inodes asked for since the kernel last forgot any.
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
        // After all were asked for in vain, the next new inode starts again.
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
