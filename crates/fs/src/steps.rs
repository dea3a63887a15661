//! The path cache: directories that paths led through lately stay known, so that the next path
//! reads no row of theirs.
//!
//! A slot holds the number of a directory, which it pins. The name chooses the slot. The number may
//! be wrong: a directory has one name, and the inode table says which. So a changed name makes no
//! slot wrong. A change that removes or moves a directory evicts it, so that the pin does not keep
//! it.
//!
//! The kernel caches names itself, so this is for users of the library:
//! [`FileSystem::step`](crate::FileSystem::step).

use crate::inode::{Hold, Inode, Location};
use crate::residents::Residents;
use crate::spread::spread_name;
use crate::{Attr, DirName};
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_format::fs_inode::FileKind;

const SLOTS: usize = 512;
const _: () = assert!(SLOTS.is_power_of_two(), "names are spread evenly");
/// No directory.
const EMPTY: u64 = 0;

#[derive(Debug)]
pub(crate) struct Steps {
    slots: [AtomicU64; SLOTS],
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            slots: [const { AtomicU64::new(EMPTY) }; SLOTS],
        }
    }
}

impl Residents {
    fn slot(&self, at: DirName<'_>) -> &AtomicU64 {
        let spread = spread_name(at.parent, self.keys.name_hash(at.name));
        let index = usize::try_from(spread >> 32).expect("32 bits");
        &self.steps.slots[index % SLOTS]
    }

    /// Returns the directory of a name, if it is cached; counts a lookup. The parent directory is
    /// locked.
    pub(crate) fn known_step(&self, at: DirName<'_>) -> Option<Attr> {
        let ino = self.slot(at).load(Ordering::Acquire);
        let head = self.inodes.look_up_at(Ino(ino), at)?;
        debug_assert_eq!(head.ino, Ino(ino), "the directory in the slot");
        debug_assert_eq!(head.kind, FileKind::Directory, "nothing else is kept");
        Some(Attr::of(&head))
    }

    /// Keeps a directory that was just looked up by this name. The parent directory is locked.
    pub(crate) fn keep_step(&self, at: DirName<'_>, attr: &Attr) {
        if attr.kind != FileKind::Directory || self.inodes.hold(attr.ino, Hold::Pin).is_err() {
            return;
        }
        debug_assert_ne!(attr.ino.0, EMPTY, "0 is no directory");
        let old = self.slot(at).swap(attr.ino.0, Ordering::AcqRel);
        if old != EMPTY {
            self.let_go(Ino(old), Hold::Pin);
        }
    }

    /// Evicts a directory that is about to lose its name. The parent directory is locked.
    pub(crate) fn drop_step(&self, inode: &Inode) {
        debug_assert!(inode.is_dir(), "directories alone are kept");
        let Location::Entry { parent, name } = &inode.location else {
            return;
        };
        let (ino, slot) = (inode.head.ino, self.slot(DirName::new(*parent, name)));
        debug_assert_ne!(ino.0, EMPTY, "0 is no directory");
        let dropped = slot.compare_exchange(ino.0, EMPTY, Ordering::AcqRel, Ordering::Acquire);
        if dropped.is_ok() {
            self.let_go(ino, Hold::Pin);
        }
    }
}
