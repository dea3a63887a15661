//! Removal of whole trees: the name of the tree is removed in one step, what was below it
//! afterwards.
//!
//! 1. *Detach*: one batch deletes the name, and makes the directory an orphan whose entries still
//!    exist. It costs the same for any tree. No path leads to the tree any more; a program whose
//!    working directory is in it finds the detached directory empty.
//! 2. *Empty*: entry by entry, each in a batch of its own as an `unlink` is. A directory among them
//!    is detached in its turn. So the list of orphans holds the progress, and a crash loses nothing
//!    of it.
//!
//! Invariant: a directory in the list of orphans has no name and takes no new entries. It stays in
//! the list until it is empty.

mod operations;

use crate::change::{Change, Changes};
use crate::events::{Event, Untold};
use crate::inode::{Inode, Location};
use crate::namespace::Namespace;
use crate::residents::Residents;
use crate::room::Room;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::Standing;
use crate::{DirName, FsError, FsResult, Notices};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Condvar, Mutex};
use stitch_format::fs_inode::{FileKind, InodeHead};

/// Entries that one scan reads.
const SLICE: usize = 128;

/// The directories that are to be emptied.
///
/// The last one goes first, so that a tree is worked off from below, and the list is at most a
/// slice for each level of it.
#[derive(Debug, Default)]
pub(crate) struct Detached {
    list: Mutex<DetachedList>,
    /// One of those in hand was done.
    is_done: Condvar,
    removed: AtomicU64,
}

#[derive(Debug, Default)]
struct DetachedList {
    waiting: Vec<Ino>,
    /// Taken from the list, and not done.
    busy: usize,
}

impl Detached {
    pub(crate) fn push(&self, ino: Ino) {
        debug_assert_ne!(ino, Ino::ROOT, "the root is never detached");
        self.list.lock().waiting.push(ino);
    }

    fn take(&self) -> Option<Ino> {
        let mut list = self.list.lock();
        let ino = list.waiting.pop()?;
        debug_assert_ne!(ino, Ino::ROOT, "the root is never detached");
        list.busy += 1;
        Some(ino)
    }

    fn done(&self) {
        let mut list = self.list.lock();
        debug_assert!(list.busy > 0, "it was taken");
        list.busy -= 1;
        self.is_done.notify_all();
    }

    /// Waits until there is something in the list, or other threads are done with what they took.
    fn wait_for_others(&self) {
        let mut list = self.list.lock();
        while list.waiting.is_empty() && list.busy > 0 {
            self.is_done.wait(&mut list);
        }
    }

    /// Directories that are not empty yet, as far as is known.
    pub(crate) fn count(&self) -> usize {
        let list = self.list.lock();
        list.waiting.len() + list.busy
    }
}

/// Empties removed trees.
///
/// Invariant: an entry goes in a batch of its own, and what the kernel has to drop for it is kept
/// until a front end takes it.
#[derive(Clone, Copy)]
pub(crate) struct DetachedTrees<'fs> {
    state: &'fs Detached,
    store: &'fs Store,
    residents: &'fs Residents,
    names: Namespace<'fs>,
    /// Clones lie at directories of the trees.
    standing: &'fs Standing,
    /// Counts what was given back.
    room: &'fs Room,
    untold: &'fs Untold,
    changes: Changes<'fs>,
}

impl<'fs> DetachedTrees<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            state: &fs.detached,
            store: &fs.store,
            residents: &fs.residents,
            names: Namespace::of(fs),
            standing: &fs.standing,
            room: &fs.room,
            untold: &fs.untold,
            changes: Changes::of(fs),
        }
    }

    /// Returns the number of directories that are not empty yet, as far as is known.
    pub(crate) fn count(&self) -> usize {
        self.state.count()
    }

    /// See [`FileSystem::empty_detached`].
    pub(crate) fn empty(&self, count_max: u64) -> FsResult<u64> {
        let mut gone = 0;
        while gone < count_max {
            let Some(ino) = self.state.take() else {
                break;
            };
            let slice = self.empty_slice(ino);
            if slice.is_err() {
                // It may be queued twice: the second time finds nothing to do.
                self.state.push(ino);
            }
            self.state.done();
            let count = slice?;
            self.room.note_given_back(count);
            let count = count as u64;
            self.state.removed.fetch_add(count, Ordering::Relaxed);
            debug_assert!(count <= SLICE as u64, "a slice at a time");
            gone += count;
        }
        debug_assert!(gone < count_max.saturating_add(SLICE as u64));
        Ok(gone)
    }

    /// Empties all that is detached, and waits for what other threads empty. The caller holds no
    /// lock of this file system.
    ///
    /// # Errors
    /// As [`FileSystem::empty_detached`].
    pub(crate) fn empty_all(&self) -> FsResult<()> {
        while self.count() > 0 {
            let before = self.state.removed.load(Ordering::Relaxed);
            let gone = self.empty(u64::MAX)?;
            let after = self.state.removed.load(Ordering::Relaxed);
            debug_assert!(before + gone <= after, "all entries are counted");
            self.state.wait_for_others();
        }
        Ok(())
    }

    /// Removes some entries of a detached directory, or the directory if there are none. Returns
    /// the number of entries. What is left is queued.
    fn empty_slice(&self, dir: Ino) -> FsResult<usize> {
        debug_assert_ne!(dir, Ino::ROOT, "the root is never detached");
        let names = self.names.some_names(dir, SLICE)?;
        if names.is_empty() {
            self.end(dir)?;
            return Ok(0);
        }
        debug_assert!(names.len() <= SLICE, "one scan reads no more");
        // Below the directories that are found now.
        self.state.push(dir);
        for name in &names {
            self.take_entry(DirName::new(dir, name))?;
        }
        Ok(names.len())
    }

    /// Removes one entry of a detached directory. A directory is detached and queued. The kernel
    /// did not ask for it: it may have the entry cached for a program in the directory, or with the
    /// file open.
    fn take_entry(&self, at: DirName<'_>) -> FsResult<()> {
        let _names = self.residents.locks.dir_write(at.parent);
        let Some(early) = self.names.find_early(at)? else {
            // A program inside the tree has moved it away.
            return Ok(());
        };
        let _inodes = self.residents.locks.inodes_write(&[at.parent, early.ino()]);
        let (inode, dentry) = self.names.inode_of(at, early)?;
        debug_assert_eq!(inode.head.ino, dentry.ino, "the inode of the name");
        let now = self.changes.now();
        let mut change = self.changes.begin_giving_back();
        change.delete_entry(at);
        if inode.is_dir() {
            let clones = self
                .standing
                .stage_clone_removed(&mut change, inode.head.ino);
            change.detach(&inode, now);
            self.commit_untold(change)?;
            self.standing.views.note_removed(&clones);
            return Ok(());
        }
        change.drop_name(&inode, now, dentry.tail())?;
        self.commit_untold(change)
    }

    fn commit_untold(&self, change: Change<'_>) -> FsResult<()> {
        let mut notices = Notices::default();
        let committed = change.commit_unasked(&mut notices);
        self.untold.keep(notices);
        committed
    }

    /// Removes what is left of a detached directory without entries. If it is known, it is
    /// reclaimed when it is forgotten.
    fn end(&self, dir: Ino) -> FsResult<()> {
        let _inode = self.residents.locks.inode_write(dir);
        if self.residents.inodes.find(dir).is_some() {
            return Ok(());
        }
        let mut change = self.changes.begin_giving_back();
        debug_assert_ne!(dir, Ino::ROOT, "the root is never detached");
        change.batch.delete(&self.store.keys.orphan(dir));
        if let Some((head, _)) = self.store.own_row(dir)? {
            debug_assert_eq!(head.nlink, 0, "it has no name");
            change.purge(&head, true)?;
        }
        change.commit()
    }

    /// Reports whether an orphan that is not known can go at once. A directory with entries is
    /// queued to be emptied first.
    pub(crate) fn is_bare(&self, head: &InodeHead) -> FsResult<bool> {
        debug_assert_eq!(head.nlink, 0, "it has no name");
        if head.kind != FileKind::Directory {
            return Ok(true);
        }
        match self.names.check_no_rows(head.ino) {
            Ok(()) => Ok(true),
            Err(FsError::NotEmpty) => {
                self.state.push(head.ino);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Change<'_> {
    /// Takes the name from a directory, whatever is in it, and makes it an orphan. The caller
    /// deletes the row of the name.
    pub(crate) fn detach(&mut self, dir: &Inode, now: i64) {
        debug_assert!(dir.is_dir(), "only directories have entries");
        debug_assert!(
            matches!(dir.location, Location::Entry { .. }),
            "it has a name"
        );
        let mut orphan = dir.clone();
        orphan.head.ctime = now;
        orphan.head.nlink = 0;
        debug_assert_ne!(dir.head.ino, Ino::ROOT, "the root keeps its name");
        self.events.push(Event::DirDetached(dir.head.ino));
        self.count_inodes(-1);
        self.put_orphan(&orphan, &Bytes::new());
    }
}
