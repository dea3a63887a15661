//! Locks of the file system: shards by inode number, taken in one order.
//!
//! 1. The tree's lock. A rename of a directory into another one holds it, so that the way up from
//!    the target stays as it was found; so does the removal of a tree. Files move, and names change
//!    within their directory, without it (as in Linux: `s_vfs_rename_mutex`).
//! 2. Directory locks guard which names a directory has: shared to look them up, exclusive to
//!    change them. An operation takes all that it needs at once, in the order of their shards.
//!    Which directory a name leads to is known only once its parent is locked. So that one is
//!    tried; if it is not free, all are released and taken anew.
//! 3. Inode locks guard attributes, contents and location of an inode. An operation takes all that
//!    it needs at once, in the order of their shards.
//!
//! The pass that makes back rows takes all directory locks shared, then all inode locks shared,
//! each in the order of the shards (see `back`). A rollback takes the locks of 1, 2 and 3 all
//! exclusively, in that order. The commit of a transaction does so with those of the transaction,
//! then with those of mainline.
//!
//! So no thread waits for a lock of 1 or 2 while it holds a later one.
//!
//! No lock is held while the engine syncs, except that of an external file that grows after it was
//! cut, is cut while it is lent, or finds its host full.

use crate::spread::spread;
use stitch_base::Ino;
use stitch_base::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 256;
/// Most inodes that one operation locks: two directories and two inodes in a rename.
const HELD_MAX: usize = 4;
const _: () = assert!(HELD_MAX >= 4, "a rename locks four");

#[derive(Debug)]
pub(crate) struct Locks {
    tree: Mutex<()>,
    dirs: [RwLock<()>; STRIPES],
    inodes: [RwLock<()>; STRIPES],
}

/// Shared locks of all stripes: while they are held, no name and no inode changes.
pub(crate) struct Still<'a> {
    _inodes: Vec<RwLockReadGuard<'a, ()>>,
    _dirs: Vec<RwLockReadGuard<'a, ()>>,
}

/// Exclusive locks of all stripes and of the tree: no operation runs while they are held.
pub(crate) struct Alone<'a> {
    _inodes: Vec<RwLockWriteGuard<'a, ()>>,
    _dirs: Vec<RwLockWriteGuard<'a, ()>>,
    _tree: MutexGuard<'a, ()>,
}

/// Exclusive locks of a few stripes.
pub(crate) struct Held<'a> {
    guards: [Option<RwLockWriteGuard<'a, ()>>; HELD_MAX],
    stripes: [usize; HELD_MAX],
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            tree: Mutex::new(()),
            dirs: [const { RwLock::new(()) }; STRIPES],
            inodes: [const { RwLock::new(()) }; STRIPES],
        }
    }
}

impl Held<'_> {
    /// Checks that the stripes are those whose locks are held, each once.
    fn check(&self) {
        for (index, (stripe, guard)) in self.stripes.iter().zip(&self.guards).enumerate() {
            debug_assert_eq!(
                *stripe < STRIPES,
                guard.is_some(),
                "stripes are those of the locks"
            );
            let earlier = &self.stripes[..index];
            debug_assert!(
                *stripe == STRIPES || !earlier.contains(stripe),
                "each is locked once"
            );
        }
    }
}

/// Spreads inodes over 256 places.
pub(crate) fn stripe(ino: Ino) -> usize {
    const { assert!(STRIPES > u8::MAX as usize, "a byte chooses a stripe") };
    usize::from(spread(ino.0).to_be_bytes()[0])
}

impl Locks {
    /// The right to move directories into others. No other lock is held.
    pub(crate) fn tree(&self) -> MutexGuard<'_, ()> {
        self.tree.lock()
    }

    /// The right to move directories into others, if it is free. Other locks may be held.
    pub(crate) fn try_tree(&self) -> Option<MutexGuard<'_, ()>> {
        self.tree.try_lock()
    }

    /// The names of a directory, to look at.
    pub(crate) fn dir_read(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.dirs[stripe(ino)].read()
    }

    /// The names of one directory, to change.
    pub(crate) fn dir_write(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        self.dirs[stripe(ino)].write()
    }

    /// The names of several directories, to change. No other directory is held.
    pub(crate) fn dirs_write(&self, inos: &[Ino]) -> Held<'_> {
        debug_assert!(inos.len() < HELD_MAX, "one more may be added");
        lock_all(&self.dirs, inos)
    }

    /// Locks one more directory, if it is free. Reports whether it is held.
    #[must_use]
    pub(crate) fn try_add_dir<'a>(&'a self, held: &mut Held<'a>, ino: Ino) -> bool {
        debug_assert!(
            held.guards.iter().any(Option::is_some),
            "the parent is locked first"
        );
        let stripe = stripe(ino);
        if held.stripes.contains(&stripe) {
            return true;
        }
        let free = held.stripes.iter().position(|&s| s == STRIPES);
        let free = free.expect("a rename holds at most four directories");
        debug_assert!(held.guards[free].is_none(), "no lock is let go");
        held.guards[free] = self.dirs[stripe].try_write();
        let is_held = held.guards[free].is_some();
        if is_held {
            held.stripes[free] = stripe;
        }
        held.check();
        is_held
    }

    /// All names and all inodes, to look at. No other lock is held.
    pub(crate) fn all_read(&self) -> Still<'_> {
        let dirs: Vec<_> = self.dirs.iter().map(RwLock::read).collect();
        let inodes: Vec<_> = self.inodes.iter().map(RwLock::read).collect();
        debug_assert_eq!(dirs.len(), inodes.len(), "all are locked");
        Still {
            _inodes: inodes,
            _dirs: dirs,
        }
    }

    /// All names and all inodes, to change; the tree as well. No operation is under way while they
    /// are held, but those of inodes without names. No other lock is held.
    pub(crate) fn all_write(&self) -> Alone<'_> {
        let tree = self.tree();
        let dirs = self.dirs.iter().map(RwLock::write).collect();
        let inodes = self.inodes.iter().map(RwLock::write).collect();
        Alone {
            _inodes: inodes,
            _dirs: dirs,
            _tree: tree,
        }
    }

    /// Attributes and contents of an inode, to look at.
    pub(crate) fn inode_read(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.inodes[stripe(ino)].read()
    }

    /// Attributes and contents of one inode, to change.
    pub(crate) fn inode_write(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        self.inodes[stripe(ino)].write()
    }

    /// Attributes and contents of several inodes, to change.
    pub(crate) fn inodes_write(&self, inos: &[Ino]) -> Held<'_> {
        lock_all(&self.inodes, inos)
    }
}

fn lock_all<'a>(locks: &'a [RwLock<()>; STRIPES], inos: &[Ino]) -> Held<'a> {
    debug_assert!(inos.len() <= HELD_MAX, "an operation locks few inodes");
    debug_assert!(!inos.is_empty(), "something is locked");
    let mut stripes = [STRIPES; HELD_MAX];
    for (slot, &ino) in stripes.iter_mut().zip(inos) {
        *slot = stripe(ino);
    }
    stripes.sort_unstable();
    debug_assert!(
        stripes[inos.len()..]
            .iter()
            .all(|stripe| *stripe == STRIPES),
        "slots that are not used come last"
    );
    let mut held = Held {
        guards: [const { None }; HELD_MAX],
        stripes: [STRIPES; HELD_MAX],
    };
    for (index, &stripe) in stripes.iter().enumerate() {
        if stripe < STRIPES && !held.stripes.contains(&stripe) {
            held.guards[index] = Some(locks[stripe].write());
            held.stripes[index] = stripe;
        }
    }
    held.check();
    debug_assert!(
        inos.iter().all(|&ino| held.stripes.contains(&stripe(ino))),
        "all that was asked for is locked"
    );
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stripe_is_locked_once() {
        let locks = Locks::default();
        let same = (2..).map(Ino).find(|&ino| stripe(ino) == stripe(Ino(1)));
        let same = same.expect("stripes repeat");
        let mut held = locks.dirs_write(&[Ino(1), same, Ino(1)]);
        assert!(locks.try_add_dir(&mut held, same));
        assert!(locks.try_add_dir(&mut held, Ino(2)));
        assert!(locks.dirs[stripe(Ino(1))].try_read().is_none());
        assert!(locks.dirs[stripe(Ino(2))].try_read().is_none());
        drop(held);
        assert!(locks.dirs[stripe(Ino(1))].try_read().is_some());
        assert!(locks.dirs[stripe(Ino(2))].try_read().is_some());
    }

    #[test]
    fn a_locked_directory_is_not_waited_for() {
        let locks = Locks::default();
        let mut held = locks.dirs_write(&[Ino(1)]);
        let other = locks.dir_read(Ino(2));
        assert!(!locks.try_add_dir(&mut held, Ino(2)));
        drop(other);
        assert!(locks.try_add_dir(&mut held, Ino(2)));
        assert!(locks.dirs[stripe(Ino(2))].try_read().is_none());
    }

    #[test]
    fn while_all_is_looked_at_nothing_changes() {
        let locks = Locks::default();
        let still = locks.all_read();
        for ino in [Ino(1), Ino(2), Ino(99)] {
            assert!(locks.dirs[stripe(ino)].try_write().is_none());
            assert!(locks.inodes[stripe(ino)].try_write().is_none());
            assert!(locks.dirs[stripe(ino)].try_read().is_some());
        }
        drop(still);
        assert!(locks.dirs[stripe(Ino(1))].try_write().is_some());
        assert!(locks.inodes[stripe(Ino(1))].try_write().is_some());
    }

    #[test]
    fn inodes_are_locked_apart_from_directories() {
        let locks = Locks::default();
        let _dir = locks.dir_write(Ino(1));
        let _inodes = locks.inodes_write(&[Ino(1), Ino(2), Ino(3), Ino(4)]);
        assert!(locks.inodes[stripe(Ino(4))].try_read().is_none());
    }
}
