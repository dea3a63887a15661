//! Removes whole trees: announced by an attribute, done by RMDIR.
//!
//! To remove a directory and everything in it, a program sets the attribute [`REMOVE_TREE_XATTR`]
//! on it, which is not stored, and then calls `rmdir`. So the kernel does what it does for any
//! `rmdir`: it checks the rights on the parent and that nothing is mounted there, forgets the
//! names, and notifies watchers. An announcement is valid for the next RMDIR of the same thread,
//! and for nothing else.
//!
//! A thread of its own removes the contents of the tree. It works at most half of the time.

use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, FsError, FsResult};

use super::announced::Announcements;
use super::chore::{Chore, Left, Round};
use super::notices;
use super::report::check_caller;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;

/// Name of the attribute of a directory that announces that its next `rmdir` removes everything
/// below it. For root and the user of the daemon.
pub const REMOVE_TREE_XATTR: &str = "stitchfs.rmtree";

/// Entries removed in one slice, which takes about 10 ms.
const SLICE: u64 = 1024;
/// Pause between two slices.
const PAUSE: Duration = Duration::from_millis(10);

/// Trees to be removed.
#[derive(Debug)]
pub(super) struct Trees {
    announced: Announcements<Ino>,
    emptying: Chore,
}

impl Trees {
    /// Creates the list without its thread.
    pub(super) fn new() -> Self {
        Self {
            announced: Announcements::new(),
            emptying: Chore::new("fuse-trees", PAUSE),
        }
    }

    /// Starts the thread, which also continues with trees of an earlier mount. It tells the kernel
    /// what was removed: a program may have files of the tree open, or be in it.
    pub(super) fn start(&self, fs: &Arc<FileSystem>, notifier: &Notifier) {
        let (shared, notifier) = (Arc::clone(fs), notifier.clone());
        self.emptying.start(move |round| {
            let left = empty(&shared, round);
            shared.send_notices(|kept| notices::send(&kept, &notifier));
            left
        });
        // Opening the file system may have left trees, and notices.
        self.emptying.note();
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
            self.announced.remember(context, ino);
        }
        self.emptying.note();
        removed
    }

    /// Records an announcement.
    pub(super) fn announce(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        check_caller(context)?;
        self.announced.remember(context, ino);
        Ok(())
    }

    /// Records an announcement of a caller that may.
    pub(super) fn announce_checked(&self, context: &Context<'_>, ino: Ino) {
        self.announced.remember(context, ino);
    }

    /// Takes the announcement of this caller.
    pub(super) fn take(&self, context: &Context<'_>) -> Option<Ino> {
        self.announced.take(context)
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
    use crate::adapter::announced::ANNOUNCED_MAX;
    use crate::errno::Errno;
    use crate::handler::Caller;
    use crate::transport::ReplySender;
    use crate::wire::args::Groups;
    use crate::wire::notice::Notice;
    use stitch_base::sync::Mutex;
    use stitch_fs::{DirName, FsOptions, NewNode, register_upserts};
    use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

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

    /// Records notices.
    #[derive(Debug, Default)]
    struct Kernel(Mutex<Vec<Vec<u8>>>);

    impl ReplySender for Kernel {
        fn send(&self, message: &[u8]) -> std::io::Result<()> {
            self.0.lock().push(message.to_vec());
            Ok(())
        }
    }

    fn opened() -> Arc<FileSystem> {
        let mut registry = UpsertRegistry::default();
        register_upserts(&mut registry);
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry));
        FileSystem::format(&engine, &FsOptions::default(), (0, 0)).unwrap();
        let fs = FileSystem::open(engine, FsOptions::default()).unwrap();
        // As an adapter does.
        fs.readers_keep_contents();
        Arc::new(fs)
    }

    #[test]
    fn the_kernel_drops_attributes_of_open_files_of_a_removed_tree() {
        let fs = opened();
        let root = stitch_fs::Caller::ROOT;
        let (new, top) = (NewNode::default(), DirName::new(Ino::ROOT, b"d"));
        let dir = fs.make_dir(&root, top, &new).unwrap().ino;
        let at = DirName::new(dir, b"open");
        let file = fs.create(&root, at, &new).unwrap().ino;
        fs.remove_tree(&root, top, None).unwrap();
        let kernel = Arc::new(Kernel::default());
        let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
        let trees = Trees::new();
        trees.start(&fs, &notifier);
        while fs.detached_dirs() > 0 {
            std::thread::yield_now();
        }
        trees.stop();
        let attrs = Notice::InvalidateInode {
            ino: file,
            offset: -1,
            length: 0,
        };
        let name = Notice::InvalidateEntry {
            parent: dir,
            name: b"open",
            expire_only: false,
        };
        assert_eq!(*kernel.0.lock(), [name.encode(), attrs.encode()]);
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
        assert_eq!(trees.announced.count(), ANNOUNCED_MAX);
        assert_eq!(trees.take(&context(0, 0)), None);
        assert_eq!(trees.take(&context(0, 99)), Some(Ino(5)));
    }
}
