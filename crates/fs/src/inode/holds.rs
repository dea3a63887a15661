//! What keeps an inode known, and what goes with the last of it.

use super::Hold;
use crate::atomic::AtomicWrites;
use crate::contents::Contents;
use crate::external::Externals;
use crate::residents::Residents;
use crate::system::FileSystem;
use stitch_base::Ino;

/// Takes back lookups, handles and pins of inodes.
///
/// Invariant: an inode that is not known any more has no atomic write, and its plain file is not
/// known either.
#[derive(Clone, Copy)]
pub(crate) struct Holds<'fs> {
    residents: &'fs Residents,
    atomic_writes: &'fs AtomicWrites,
    externals: &'fs Externals,
}

impl<'fs> Holds<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            residents: &fs.residents,
            atomic_writes: &fs.atomic_writes,
            externals: &fs.externals,
        }
    }

    /// Takes back one hold, or some lookups. An inode without names that is not known any more is
    /// queued for reclaiming.
    pub(crate) fn let_go(self, ino: Ino, hold: Hold) {
        let Some(inode) = self.residents.let_go(ino, hold) else {
            return;
        };
        debug_assert_eq!(inode.head.ino, ino, "the inode of the number");
        self.atomic_writes.remove(ino);
        if Contents::are_external(&inode.head) {
            self.externals.forget(ino);
        }
    }

    /// Takes back a lookup.
    pub(crate) fn forget(self, ino: Ino) {
        self.let_go(ino, Hold::Lookups(1));
    }
}
