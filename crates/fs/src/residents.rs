//! What is in memory of the inodes and names in use.
//!
//! | part | remembers | may be wrong |
//! |---|---|---|
//! | [`Inodes`] | inodes from their first lookup to the last forget, and the ledger | no |
//! | [`Names`] | names that are missing | no |
//! | [`Hints`] | which inode a name leads to | yes: the inode table decides |
//! | [`Steps`] | directories that paths led through lately | yes: the inode table decides |
//! | [`Locks`] | which operation may change names and inodes | |
//! | counters | named inodes, and inodes without names that are to be reclaimed | no |
//!
//! Invariants:
//! - nothing here reads or writes the trees: a change is committed first, then noted here;
//! - a directory in use pins its parent, and the path cache pins what it holds;
//! - an inode without names that is let go is queued for reclaiming once.

use crate::events::Event;
use crate::hints::Hints;
use crate::inode::{Hold, Inode, Inodes, Location};
use crate::ledger::Register;
use crate::locator::Locator;
use crate::lock::Locks;
use crate::names::Names;
use crate::steps::Steps;
use crate::{DirName, FsError, FsOptions, FsResult};
use std::collections::HashSet;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_snapshot::SNAPSHOT_PATH_BYTES_MAX;

/// Most directories that are followed on the way up from one. A longer way, or a ring of damaged
/// rows, is not followed to its end.
pub(crate) const WAY_DIRS_MAX: usize = 4096;
const _: () = assert!(
    WAY_DIRS_MAX >= SNAPSHOT_PATH_BYTES_MAX / 2,
    "any path that has a name fits"
);

#[derive(Debug)]
pub(crate) struct Residents {
    pub(crate) keys: Locator,
    pub(crate) inodes: Inodes,
    pub(crate) locks: Locks,
    pub(crate) names: Names,
    pub(crate) steps: Steps,
    pub(crate) hints: Hints,
    inode_count: AtomicU64,
    /// Inodes without names that are not known any more.
    forgotten: Mutex<Vec<InodeHead>>,
}

impl Residents {
    /// Knows the root alone. `inode_count`: inodes that have a name.
    pub(crate) fn new(
        keys: Locator,
        root: InodeHead,
        inode_count: u64,
        options: &FsOptions,
    ) -> Self {
        let register = options.ledger.as_ref().map(Arc::clone).map(Register::new);
        Self {
            keys,
            inodes: Inodes::new(root, options.inodes_max, register),
            locks: Locks::default(),
            names: Names::new(options.names_bytes),
            steps: Steps::default(),
            hints: Hints::default(),
            inode_count: AtomicU64::new(inode_count),
            forgotten: Mutex::default(),
        }
    }

    /// Number of inodes that have a name.
    pub(crate) fn inode_count(&self) -> u64 {
        self.inode_count.load(Ordering::Relaxed)
    }

    /// Notes inodes that got a first name, or lost the last.
    pub(crate) fn count_inodes(&self, added: i64) {
        self.inode_count
            .fetch_add(added.cast_unsigned(), Ordering::Relaxed);
    }

    /// Lets go of an inode. Returns the inode if it is not known any more; without names it is then
    /// queued for reclaiming.
    pub(crate) fn let_go(&self, ino: Ino, hold: Hold) -> Option<Inode> {
        let inode = self.inodes.release(ino, hold)?;
        debug_assert_eq!(inode.head.ino, ino, "the inode of the number");
        if inode.location == Location::Own && inode.head.nlink == 0 {
            debug_assert_ne!(ino, Ino::ROOT, "the root is never forgotten");
            self.forgotten.lock().push(inode.head);
        }
        Some(inode)
    }

    /// Takes in an inode that was just made, with one lookup. A new directory has no names.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the directory of a new directory is not known.
    pub(crate) fn made(&self, inode: Inode) -> FsResult<()> {
        if inode.is_dir() {
            debug_assert!(
                matches!(inode.location, Location::Entry { .. }),
                "a new directory has a name"
            );
            self.names.learn_new(inode.head.ino);
        }
        self.inodes.add(inode)
    }

    /// Applies an event that is about names, or about one inode of the table.
    pub(crate) fn apply(&self, event: &Event<'_>) {
        match *event {
            Event::Linked {
                is_only_name: false,
                ..
            } => {}
            Event::Linked { at, hash, ino, .. } => self.hint_hash(at.parent, hash, ino),
            Event::Unlinked { at, hash } => {
                self.names.remove((at.parent, hash));
                self.drop_hint(at.parent, hash);
            }
            Event::DirRemoved(ino) | Event::EntriesReplaced(ino) => self.names.give_up(ino),
            Event::ChunkCounted(ino, number) => self.inodes.note_counted(ino, Some(number)),
            _ => debug_assert!(false, "it is applied elsewhere"),
        }
    }

    /// Queues inodes without names for reclaiming.
    pub(crate) fn queue_forgotten(&self, heads: Vec<InodeHead>) {
        debug_assert!(
            heads.iter().all(|head| head.nlink == 0),
            "what has a name is not reclaimed"
        );
        self.forgotten.lock().extend(heads);
    }

    /// Takes inodes out of the queue: they get names again.
    pub(crate) fn unqueue(&self, gets_name: impl Fn(Ino) -> bool) {
        self.forgotten.lock().retain(|head| !gets_name(head.ino));
    }

    /// Takes up to `count_max` inodes from the queue, the last ones first.
    pub(crate) fn take_forgotten(&self, count_max: usize) -> Vec<InodeHead> {
        let mut forgotten = self.forgotten.lock();
        let keep = forgotten.len().saturating_sub(count_max);
        let taken = forgotten.split_off(keep);
        debug_assert!(taken.len() <= count_max, "no more than was asked for");
        debug_assert!(
            taken.iter().all(|head| head.nlink == 0),
            "what has a name is not reclaimed"
        );
        debug_assert_eq!(
            taken
                .iter()
                .map(|head| head.ino)
                .collect::<HashSet<_>>()
                .len(),
            taken.len(),
            "an inode without names is queued once"
        );
        taken
    }

    /// Returns the places of a directory and of those above it, up to the root, as they are at the
    /// moment. It is at `at`, in a directory that is known.
    pub(crate) fn way_up(&self, dir: Ino, at: DirName<'_>) -> Vec<(Ino, Place)> {
        let place = |parent, name: &[u8]| Place {
            parent,
            hash: self.keys.name_hash(name),
        };
        let mut way = vec![(dir, place(at.parent, at.name))];
        // A path that changes while it is read might have no end.
        while let Some((last, at)) = way.last()
            && way.len() < WAY_DIRS_MAX
            && let Some((parent, name)) = self.inodes.find(at.parent).and_then(|at| at.name())
        {
            debug_assert_ne!(*last, at.parent, "no directory is in itself");
            let dir = at.parent;
            way.push((dir, place(parent, &name)));
        }
        debug_assert!(way.len() <= WAY_DIRS_MAX, "a way has an end");
        way
    }

    /// Returns the path of a directory that is known, from the root, as it is at the moment.
    ///
    /// # Errors
    /// Those of [`Self::path_through`].
    pub(crate) fn path_of(&self, dir: Ino) -> FsResult<Vec<u8>> {
        self.path_through(Ino::ROOT, dir, |_| Ok(()))
    }

    /// Returns the path of a directory that is known, from one above it, if `check` accepts the
    /// directory and each one above it, below `top`.
    ///
    /// # Errors
    /// Those of `check`; [`FsError::NotFound`] for a directory that was removed;
    /// [`FsError::NotDir`]; [`FsError::NameTooLong`] for a path over 4000 bytes;
    /// [`FsError::Stale`].
    pub(crate) fn path_through(
        &self,
        top: Ino,
        dir: Ino,
        check: impl Fn(Ino) -> FsResult<()>,
    ) -> FsResult<Vec<u8>> {
        let mut names = Vec::new();
        let (mut ino, mut len_bytes) = (dir, 0);
        while ino != top {
            check(ino)?;
            let inode = self.inodes.get_dir(ino)?;
            let (parent, name) = inode.name().ok_or(FsError::NotFound)?;
            debug_assert!(!name.is_empty(), "a directory with a parent has a name");
            len_bytes += name.len() + 1;
            // A path that changes while it is read might have no end.
            if len_bytes > SNAPSHOT_PATH_BYTES_MAX {
                return Err(FsError::NameTooLong);
            }
            names.push(name);
            ino = parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        debug_assert_eq!(path.is_empty(), dir == top, "a name for each step");
        debug_assert!(path.len() <= SNAPSHOT_PATH_BYTES_MAX, "as it was counted");
        Ok(path)
    }
}
