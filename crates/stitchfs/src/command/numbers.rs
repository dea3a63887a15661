//! How inodes are numbered in a directory of a mount.

use super::snapshot;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use stitch_fs::VIEW_INO_BITS;
use stitch_fuse::differences::{self, SnapshotParts};
use stitch_send::{InodeNumbers, TwinView};

/// Bits of `st_ino` that say which inode of a view it is.
pub(super) const INO_MASK: u64 = (1 << VIEW_INO_BITS) - 1;

/// The numbers of inodes in a directory.
#[derive(Clone, Debug)]
pub(super) struct DirNumbers {
    pub(super) numbers: InodeNumbers,
    /// Stands for the clone that the directory is in, also of a snapshot; 0 for none. `None` of a
    /// daemon that does not tell.
    pub(super) home: Option<u64>,
    /// What stands for a clone in numbers here, with what stands for its counterpart in the
    /// directory that this one is compared with.
    counterparts: HashMap<u64, u64>,
}

impl DirNumbers {
    /// Returns the number of an inode, the same in all snapshots and in both of two directories
    /// that are compared. `root` is `st_ino` of the directory.
    pub(super) fn of(&self, root: u64, number: u64) -> u64 {
        let number = self.numbers.of(root, number);
        match self.counterparts.get(&(number & !INO_MASK)) {
            Some(base) => base | number & INO_MASK,
            None => number,
        }
    }

    /// Gives the inodes of this directory, which is `new`, the numbers that those of another view
    /// of it, `old`, have, if they are the same. Reports whether the daemon told which are.
    pub(super) fn twin_with(&mut self, of_old: &Self, old: &Path, new: &Path) -> bool {
        let twins = || {
            let (before, after) = (snapshot::open_dir(old)?, snapshot::open_dir(new)?);
            let number = before.metadata()?.ino();
            differences::twins(&before, &after, number)
        };
        let Ok(twins) = twins() else {
            return false;
        };
        // The directory's own file system has no bits of its own.
        let within = |base: u64, home: Option<u64>| if Some(base) == home { 0 } else { base };
        let views = twins.iter().map(|twin| TwinView {
            base: within(twin.new, self.home),
            other: within(twin.old, of_old.home),
            first_own: twin.first_own,
        });
        self.numbers.twins = views.collect();
        true
    }

    /// Gives clones in this directory, which is `new`, the numbers of their counterparts in another
    /// view of it, `old`. Returns what stands for these. A daemon that is older tells of none.
    pub(super) fn pair_with(&mut self, old: &Path, new: &Path) -> BTreeSet<u64> {
        let pairs = || {
            let (before, after) = (snapshot::open_dir(old)?, snapshot::open_dir(new)?);
            let number = before.metadata()?.ino();
            differences::pairs(&before, &after, number)
        };
        let pairs = pairs().unwrap_or_default();
        self.counterparts = pairs.iter().map(|(old, new)| (*new, *old)).collect();
        pairs.into_iter().map(|(old, _)| old).collect()
    }
}

/// Returns how inodes are numbered in a directory, which may be in a snapshot. Of an older daemon
/// the numbers in clones of a snapshot are those of the snapshot.
pub(super) fn of(dir: &Path) -> DirNumbers {
    let told = snapshot::open_dir(dir).and_then(differences::parts).ok();
    let home = told.as_ref().map(|parts| parts.home);
    let parts = told.unwrap_or(SnapshotParts {
        ino_bits: VIEW_INO_BITS,
        home: 0,
        clones: Vec::new(),
    });
    // The directory's own file system has no other bits, whichever part it is.
    let base = |base: u64| if base == parts.home { 0 } else { base };
    let numbers = InodeNumbers {
        mask: INO_MASK,
        part_bits: parts.ino_bits,
        parts: parts.clones.into_iter().map(base).collect(),
        twins: Vec::new(),
    };
    DirNumbers {
        numbers,
        home,
        counterparts: HashMap::new(),
    }
}
