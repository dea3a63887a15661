//! Removes whole trees: announced by an attribute, done by RMDIR.
//!
//! To remove a directory and everything in it, a program sets the attribute [`REMOVE_TREE_XATTR`]
//! on it, which is not stored, and then calls `rmdir`. So the kernel does what it does for any
//! `rmdir`: it checks the rights on the parent and that nothing is mounted there, forgets the
//! names, and notifies watchers. An announcement is valid for the next RMDIR of the same thread,
//! and for nothing else.
//!
//! A thread of its own removes the contents of the tree. It works at most half of the time.

use std::collections::VecDeque;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{FileSystem, FsError, FsResult};

use super::chore::{Chore, Left, Round};
use super::process::Process;
use super::report::check_caller;
use crate::handler::{Answer, Context};

/// Name of the attribute of a directory that announces that its next `rmdir` removes everything
/// below it. For root and the user of the daemon.
pub const REMOVE_TREE_XATTR: &str = "stitchfs.rmtree";

/// Most announcements that are kept.
const ANNOUNCED_MAX: usize = 64;
/// Entries removed in one slice, which takes about 10 ms.
const SLICE: u64 = 1024;
/// Pause between two slices.
const PAUSE: Duration = Duration::from_millis(10);

/// An announcement: thread, user, and directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    uid: Option<u32>,
    thread: u32,
    ino: Ino,
}

/// Trees to be removed.
#[derive(Debug)]
pub(super) struct Trees {
    announced: Mutex<VecDeque<Announced>>,
    emptying: Chore,
}

impl Trees {
    /// Creates the list without its thread.
    pub(super) fn new() -> Self {
        Self {
            announced: Mutex::default(),
            emptying: Chore::new("fuse-trees", PAUSE),
        }
    }

    /// Starts the thread, which also continues with trees of an earlier mount.
    pub(super) fn start(&self, fs: &Arc<FileSystem>) {
        let shared = Arc::clone(fs);
        self.emptying.start(move |round| empty(&shared, round));
        if fs.detached_dirs() > 0 {
            self.emptying.note();
        }
    }

    pub(super) fn stop(&self) {
        self.emptying.stop();
    }

    /// Empties what was removed by other means than RMDIR.
    pub(super) fn note(&self) {
        self.emptying.note();
    }

    /// Handles the result of an RMDIR. One that found no space is served again, and stays
    /// announced.
    pub(super) fn removed(
        &self,
        context: &Context<'_>,
        ino: Ino,
        removed: FsResult<()>,
    ) -> FsResult<()> {
        if matches!(removed, Err(FsError::NoSpace)) {
            self.remember(context, ino);
        }
        self.emptying.note();
        removed
    }

    /// Records an announcement.
    pub(super) fn announce(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        check_caller(context)?;
        self.remember(context, ino);
        Ok(())
    }

    fn remember(&self, context: &Context<'_>, ino: Ino) {
        let new = Announced {
            uid: Process::of(context).uid(),
            thread: context.caller.pid,
            ino,
        };
        let mut announced = self.announced.lock();
        announced.retain(|old| (old.uid, old.thread) != (new.uid, new.thread));
        if announced.len() == ANNOUNCED_MAX {
            announced.pop_front();
        }
        announced.push_back(new);
    }

    /// Takes the announcement of this caller.
    pub(super) fn take(&self, context: &Context<'_>) -> Option<Ino> {
        let thread = context.caller.pid;
        if !self.announced.lock().iter().any(|old| old.thread == thread) {
            return None;
        }
        // This may read the status of a later thread with the same number.
        let uid = Process::of(context).uid();
        let mut announced = self.announced.lock();
        let found = announced
            .iter()
            .position(|old| (old.uid, old.thread) == (uid, thread))?;
        announced.remove(found).map(|found| found.ino)
    }
}

fn empty(fs: &FileSystem, round: Round) -> Left {
    if round == Round::Last {
        return Left::Nothing;
    }
    match fs.empty_detached(SLICE) {
        Ok(_) if fs.detached_dirs() > 0 => Left::More,
        Ok(_) => Left::Nothing,
        Err(error) => {
            tracing::warn!(%error, "a removed tree was not emptied; retrying after the next one");
            Left::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::handler::Caller;
    use crate::wire::args::Groups;

    fn context(uid: u32, pid: u32) -> Context<'static> {
        Context {
            caller: Caller { uid, gid: 0, pid },
            unique: 1,
            groups: Groups::default(),
        }
    }

    #[test]
    fn an_announcement_is_for_one_removal_by_one_thread() {
        let trees = Trees::new();
        trees.announce(&context(0, 10), Ino(5)).unwrap();
        trees.announce(&context(0, 10), Ino(6)).unwrap();
        trees.announce(&context(0, 11), Ino(7)).unwrap();
        assert_eq!(trees.take(&context(1000, 10)), None);
        assert_eq!(trees.take(&context(0, 10)), Some(Ino(6)));
        assert_eq!(trees.take(&context(0, 10)), None);
        assert_eq!(trees.take(&context(0, 11)), Some(Ino(7)));
    }

    #[test]
    fn others_announce_nothing_and_few_are_remembered() {
        let trees = Trees::new();
        let other = rustix::process::geteuid().as_raw().wrapping_add(1000);
        assert_eq!(
            trees.announce(&context(other, 1), Ino(5)),
            Err(Errno::EACCES)
        );
        for pid in 0..100 {
            trees.announce(&context(0, pid), Ino(5)).unwrap();
        }
        assert_eq!(trees.announced.lock().len(), ANNOUNCED_MAX);
        assert_eq!(trees.take(&context(0, 0)), None);
        assert_eq!(trees.take(&context(0, 99)), Some(Ino(5)));
    }
}
