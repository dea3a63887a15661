//! File handles in a view that shows one directory: a clone, or the snapshot of a directory.
//!
//! Such a view has the rows of all files, also of those outside of its directory. It may not have
//! their contents ([`crate::snapshot`]), so a handle of one of them is stale.
//!
//! | the row of the inode is | it is below the directory if |
//! |---|---|
//! | under its only name | the directories above it lead there |
//! | under its number, as of a file with several names | the view has all its contents |
//!
//! Where the names of the second kind are is not known. One that was below the directory has its
//! contents there. One outside whose contents lie in a joined gap is shown as it was.

use super::NumberLookup;
use crate::inode::Holds;
use crate::locator::Tree;
use crate::namespace::Namespace;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{Attr, FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_kv::{Engine, KeyRanges, TreeInfo};

/// The ranges of keys that a branch tree and its parents begin with, where not all.
pub(crate) struct BeginRanges {
    pub(crate) ranges: Vec<KeyRanges>,
    /// A parent was dropped: its ranges are not known.
    pub(crate) lacks_parent: bool,
}

impl BeginRanges {
    pub(crate) fn of(engine: &dyn Engine, tree: TreeId) -> Self {
        let infos = engine.trees().into_iter();
        let infos: BTreeMap<_, TreeInfo> = infos.map(|info| (info.id, info)).collect();
        let (mut ranges, mut at) = (Vec::new(), Some(tree));
        while let Some(info) = at.and_then(|tree| infos.get(&tree)) {
            debug_assert!(info.branch.is_some() || info.branch_ranges.is_none());
            ranges.extend(info.branch_ranges.clone());
            debug_assert!(
                info.branch.is_none_or(|point| point.parent != info.id),
                "a branch is another tree"
            );
            at = info.branch.map(|point| point.parent);
        }
        Self {
            ranges,
            lacks_parent: at.is_some(),
        }
    }
}

/// Learns inodes by their numbers in a view that shows one directory.
///
/// Invariant: an inode that is refused has as many lookups as before.
#[derive(Clone, Copy)]
pub(super) struct ShownLookup<'fs> {
    store: &'fs Store,
    engine: &'fs dyn Engine,
    residents: &'fs Residents,
    names: Namespace<'fs>,
    numbers: NumberLookup<'fs>,
    holds: Holds<'fs>,
}

impl<'fs> ShownLookup<'fs> {
    pub(super) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            engine: fs.engine().as_ref(),
            residents: &fs.residents,
            names: Namespace::of(fs),
            numbers: NumberLookup::of(fs),
            holds: Holds::of(fs),
        }
    }

    /// See [`FileSystem::look_up_number_below`].
    pub(super) fn look_up(&self, top: Ino, ino: Ino) -> FsResult<Attr> {
        let attr = self.numbers.look_up(ino)?;
        debug_assert_eq!(attr.ino, ino, "it has this number");
        let refused = match self.is_shown_below(top, ino) {
            Ok(true) => return Ok(attr),
            Ok(false) => FsError::Stale(ino),
            Err(error) => error,
        };
        self.holds.forget(ino);
        Err(refused)
    }

    /// Reports whether a known inode is shown where `top` alone is.
    fn is_shown_below(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        if top == Ino::ROOT || top == ino {
            return Ok(true);
        }
        let inode = self.residents.inodes.find(ino);
        let inode = inode.ok_or(FsError::Stale(ino))?;
        match inode.parent() {
            Some(parent) => Ok(ino != Ino::ROOT && self.is_dir_below(parent, top)?),
            None => self.has_contents_of(&inode.head),
        }
    }

    /// Reports whether a directory is `top` or below it. A file does not keep its directory known,
    /// so the directory is looked up; it keeps those above it known.
    fn is_dir_below(&self, dir: Ino, top: Ino) -> FsResult<bool> {
        if dir == top || dir == Ino::ROOT {
            return Ok(dir == top);
        }
        let attr = self.numbers.look_up(dir)?;
        debug_assert_eq!(
            attr.kind,
            FileKind::Directory,
            "only directories have names"
        );
        debug_assert_eq!(attr.ino, dir, "it has this number");
        let is_below = self.names.is_below(dir, top);
        self.holds.forget(dir);
        Ok(is_below)
    }

    /// Reports whether the view has what an inode had of contents where the view begins.
    fn has_contents_of(&self, head: &InodeHead) -> FsResult<bool> {
        let (engine, tree) = (self.engine, self.store.tree(Tree::Data));
        let mut ranges = BeginRanges::of(engine, tree).ranges;
        ranges.extend(engine.held_ranges(tree, &engine.snapshot()));
        if ranges.is_empty() {
            return Ok(true);
        }
        let numbers = self.store.content_numbers(head)?;
        debug_assert!(!numbers.is_empty(), "an inode has a number of its own");
        let has = |number: &Ino| {
            let keys = self
                .store
                .keys
                .inodes(Tree::Data, *number, Ino(number.0 + 1));
            ranges.iter().all(|ranges| ranges.has(keys.start()))
        };
        Ok(numbers.iter().all(has))
    }
}
