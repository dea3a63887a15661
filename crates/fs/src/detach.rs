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

use crate::change::Change;
use crate::events::Event;
use crate::inode::{Inode, Location};
use crate::system::FileSystem;
use crate::transaction::EntryRemoval;
use crate::{Caller, DirName, FsError, FsResult, Notices};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stitch_format::fs_inode::{FileKind, InodeHead};

/// Entries that one scan reads.
const SLICE: usize = 128;

/// The directories that are to be emptied.
///
/// The last one goes first, so that a tree is worked off from below, and the list is at most a
/// slice for each level of it.
#[derive(Debug, Default)]
pub(crate) struct Detached {
    waiting: Mutex<Vec<Ino>>,
    /// Taken from the list, and not done.
    busy: AtomicUsize,
    removed: AtomicU64,
}

impl Detached {
    pub(crate) fn push(&self, ino: Ino) {
        self.waiting.lock().push(ino);
    }

    fn take(&self) -> Option<Ino> {
        let mut waiting = self.waiting.lock();
        let ino = waiting.pop()?;
        self.busy.fetch_add(1, Ordering::Relaxed);
        Some(ino)
    }

    fn done(&self) {
        let before = self.busy.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "it was taken");
    }

    /// Directories that are not empty yet, as far as is known.
    fn count(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.len() + self.busy.load(Ordering::Relaxed)
    }
}

impl FileSystem {
    /// Removes a directory and all that is in it. If `expected` is given and the name stands for
    /// another inode, nothing is done.
    ///
    /// Only the rights on the parent directory are checked: a caller that may remove the name
    /// removes all below it, also what belongs to others. A tree with an immutable or append-only
    /// inode in it stays.
    ///
    /// # Errors
    /// [`FsError::NotFound`], also where another inode was expected; [`FsError::NotDir`],
    /// [`FsError::Invalid`] for `.` and `..`, [`FsError::Perm`], [`FsError::ReadOnly`],
    /// and in a transaction those of a read.
    ///
    /// # Cost
    /// As one [`Self::remove_dir`], whatever the size; in a store that ever had an immutable file,
    /// a walk through the tree before. The space comes back with [`Self::empty_detached`]. In a
    /// transaction the entries are removed one by one, and an error leaves a part of them.
    ///
    /// # Durability
    /// The removal as a whole is as durable as any operation: after a crash the tree is there, or
    /// it is gone and the next life goes on with giving back its space.
    pub fn remove_tree(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        self.check_writable()?;
        // A commit compares each entry that is gone with mainline's.
        if self.branch.is_some() {
            return EntryRemoval::of(self).remove(caller, at, expected);
        }
        self.residents.inodes.get_dir(at.parent)?;
        if let Some(view) = self.clone_named(at)? {
            let is_it = expected.is_none_or(|expected| expected == view.info().graft);
            view.fs().check_tree(view.info().root)?;
            return match is_it {
                true => self.remove_clone(caller, at, &view, false),
                false => Err(FsError::NotFound),
            };
        }
        let top = self.stat(at)?.ino;
        self.check_tree(top)?;
        let detach = |change: &mut Change<'_>, inode: &Inode, now: i64| {
            change.detach(inode, now);
            Ok(())
        };
        // A walk up through it finds it with its parent, or without.
        let tree = self.residents.locks.tree();
        self.name_changes().take_dir(caller, at, expected, detach)?;
        drop(tree);
        Ok(())
    }

    /// Directories of removed trees that are still to be emptied, as far as they are known yet; 0
    /// if all space of removed trees was given back.
    #[must_use]
    pub fn detached_dirs(&self) -> usize {
        self.detached.count()
    }

    /// How many entries of removed trees are gone since the file system was opened.
    #[must_use]
    pub fn detached_removed(&self) -> u64 {
        self.detached.removed.load(Ordering::Relaxed)
    }

    /// Removes up to about `count_max` entries below removed directories. To be called by a thread
    /// of its own while [`Self::detached_dirs`] is not 0. Returns the number of entries removed.
    ///
    /// # Errors
    /// [`FsError::Storage`], [`FsError::NoSpace`], [`FsError::Corrupt`]: what is not done is still
    /// queued, the next call goes on with it.
    pub fn empty_detached(&self, count_max: u64) -> FsResult<u64> {
        let mut gone = 0;
        while gone < count_max {
            let Some(ino) = self.detached.take() else {
                break;
            };
            let slice = self.empty_slice(ino);
            if slice.is_err() {
                // It may be queued twice: the second time finds nothing to do.
                self.detached.push(ino);
            }
            self.detached.done();
            let count = slice?;
            self.room.note_given_back(count);
            let count = count as u64;
            self.detached.removed.fetch_add(count, Ordering::Relaxed);
            gone += count;
        }
        Ok(gone)
    }

    /// Removes some entries of a detached directory, or the directory if there are none. Returns
    /// the number of entries. What is left is queued.
    fn empty_slice(&self, dir: Ino) -> FsResult<usize> {
        let names = self.namespace().some_names(dir, SLICE)?;
        if names.is_empty() {
            self.end_detached(dir)?;
            return Ok(0);
        }
        // Below the directories that are found now.
        self.detached.push(dir);
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
        let Some(early) = self.namespace().find_early(at)? else {
            // A program inside the tree has moved it away.
            return Ok(());
        };
        let _inodes = self.residents.locks.inodes_write(&[at.parent, early.ino()]);
        let (inode, dentry) = self.namespace().inode_of(at, early)?;
        let now = self.now();
        let mut change = Change::giving_back(self);
        change.delete_entry(at);
        if inode.is_dir() {
            let clones = self.stage_clone_removed(&mut change, inode.head.ino);
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
    fn end_detached(&self, dir: Ino) -> FsResult<()> {
        let _inode = self.residents.locks.inode_write(dir);
        if self.residents.inodes.find(dir).is_some() {
            return Ok(());
        }
        let mut change = Change::giving_back(self);
        change.batch.delete(&self.store.keys.orphan(dir));
        if let Some((head, _)) = self.store.own_row(dir)? {
            debug_assert_eq!(head.nlink, 0, "it has no name");
            change.purge(&head, true)?;
        }
        change.commit()
    }

    /// Reports whether an orphan that nobody knows can go at once. A directory with entries is
    /// queued to be emptied first.
    pub(crate) fn is_bare(&self, head: &InodeHead) -> FsResult<bool> {
        if head.kind != FileKind::Directory {
            return Ok(true);
        }
        match self.namespace().check_no_rows(head.ino) {
            Ok(()) => Ok(true),
            Err(FsError::NotEmpty) => {
                self.detached.push(head.ino);
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
        self.events.push(Event::DirDetached(dir.head.ino));
        self.count_inodes(-1);
        self.put_orphan(&orphan, &Bytes::new());
    }
}
