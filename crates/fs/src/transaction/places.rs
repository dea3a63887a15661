//! Where inodes are: the key of the row that carries each, on one side.

use super::own::BranchTrees;
use crate::FsResult;
use crate::locator::{Locator, Tree};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use stitch_base::{Ino, TreeId};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// The row that carries an inode with a name.
#[derive(Clone, Debug)]
pub(super) struct Carrier {
    pub(super) key: Vec<u8>,
    pub(super) head: InodeHead,
}

impl Carrier {
    /// Reports whether it has, or had, several names.
    pub(super) fn is_linked(&self) -> bool {
        debug_assert!(!self.key.is_empty(), "no row has an empty key");
        Locator::name_of(&self.key).is_none() && self.head.kind != FileKind::Directory
    }

    /// The directory that it is in; `None` of the root, and of what has several names.
    pub(super) fn parent(&self) -> Option<Ino> {
        debug_assert!(!self.key.is_empty(), "no row has an empty key");
        Locator::name_of(&self.key)?;
        Locator::ino_of(&self.key)
    }
}

/// Returns the inode that a row carries, if it has a name.
pub(super) fn carried(row: Option<&[u8]>) -> FsResult<Option<InodeHead>> {
    match row.map(MetaRow::decode).transpose()? {
        Some(MetaRow::Inode(head, _)) if head.nlink > 0 => Ok(Some(head)),
        _ => Ok(None),
    }
}

/// Returns the inode that a row is about.
pub(super) fn about(row: Option<&[u8]>) -> FsResult<Option<Ino>> {
    Ok(row.map(MetaRow::decode).transpose()?.map(|row| row.ino()))
}

/// The carriers of all inodes of a `meta` tree. They are read by one scan of all names, when one is
/// asked for first.
pub(super) struct Places<'a> {
    trees: &'a BranchTrees,
    meta: TreeId,
    keys: Locator,
    scanned: OnceCell<HashMap<Ino, Carrier>>,
}

impl<'a> Places<'a> {
    pub(super) const fn new(trees: &'a BranchTrees, meta: TreeId, keys: Locator) -> Self {
        Self {
            trees,
            meta,
            keys,
            scanned: OnceCell::new(),
        }
    }

    fn all(&self) -> FsResult<&HashMap<Ino, Carrier>> {
        if let Some(all) = self.scanned.get() {
            return Ok(all);
        }
        let mut all = HashMap::new();
        let range = self.keys.meta_from(Place::FIRST);
        debug_assert_eq!(range.tree(), Tree::Meta, "names are there");
        self.trees.scan(self.meta, range.keys(), |key, row| {
            if let Some(head) = carried(Some(row))? {
                let key = key.to_vec();
                all.insert(head.ino, Carrier { key, head });
            }
            Ok(())
        })?;
        debug_assert!(
            all.iter().all(|(ino, carrier)| *ino == carrier.head.ino),
            "by their inodes"
        );
        debug_assert!(
            all.values().all(|carrier| carrier.head.nlink > 0),
            "inodes with a name"
        );
        Ok(self.scanned.get_or_init(|| all))
    }

    pub(super) fn find(&self, ino: Ino) -> FsResult<Option<&Carrier>> {
        let found = self.all()?.get(&ino);
        debug_assert!(
            found.is_none_or(|found| found.head.ino == ino),
            "the row of this inode"
        );
        debug_assert!(
            found.is_none_or(|found| found.head.nlink > 0),
            "it has a name"
        );
        Ok(found)
    }

    pub(super) fn has(&self, ino: Ino) -> FsResult<bool> {
        Ok(self.find(ino)?.is_some())
    }

    /// Reports whether an inode lies below one of some directories, or is one of them.
    pub(super) fn is_below(&self, ino: Ino, dirs: &BTreeSet<Ino>) -> FsResult<bool> {
        debug_assert!(ino.0 > 0, "0 is no inode");
        let (mut at, mut steps) = (ino, 0);
        while !dirs.contains(&at) {
            let parent = self.find(at)?.and_then(Carrier::parent);
            steps += 1;
            match parent.filter(|_| steps <= self.all().map_or(0, HashMap::len)) {
                Some(parent) => at = parent,
                None => return Ok(false),
            }
        }
        debug_assert!(dirs.contains(&at), "the way ends at one of them");
        Ok(true)
    }

    /// Returns the names that lead to an inode from the root, the inode's last; `None` if it has
    /// none.
    pub(super) fn names_to(&self, ino: Ino) -> FsResult<Option<Vec<Vec<u8>>>> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            let Some(carrier) = self.find(at)? else {
                return Ok(None);
            };
            let (Some((_, name)), Some(parent)) = (
                Locator::name_of(&carrier.key),
                Locator::ino_of(&carrier.key),
            ) else {
                return Ok(None);
            };
            if names.len() > self.all()?.len() {
                return Ok(None);
            }
            names.push(name.to_vec());
            at = parent;
        }
        debug_assert_eq!(
            names.is_empty(),
            ino == Ino::ROOT,
            "the root alone has no name"
        );
        debug_assert!(
            names.iter().all(|name| !name.is_empty()),
            "a name is not empty"
        );
        names.reverse();
        Ok(Some(names))
    }
}
