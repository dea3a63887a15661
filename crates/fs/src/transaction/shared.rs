//! Files of a transaction that share contents.
//!
//! The rows of such a file follow its inode: all of them are one side's.
//!
//! | the transaction | mainline | |
//! |---|---|---|
//! | copied a file | wrote to it, removed it or copied it, too | no conflict |
//! | wrote to a file | copied it | no conflict |
//! | copied a file that it made | resolved by `--theirs`, so that the file goes | is refused |
//!
//! No file of mainline begins to share contents while there is a transaction. One that begins at
//! the same time finds a row changed: a conflict, which has no resolution where what one side made
//! contents would become what the other wrote.

use super::own::{BranchTrees, OwnRow};
use super::resolve::Plan;
use crate::locator::{Locator, SysRow, Tree};
use crate::{FsError, FsResult};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_shared::SharedRow;

const COPIED_HERE: FsError = FsError::Unresolvable(
    "the transaction has copied a file in a conflict, and the copy shares its contents; abort the \
     transaction, and begin it again",
);

/// Decodes a row; `None` if it is absent or damaged.
pub(super) fn decode(row: Option<&Bytes>) -> Option<SharedRow> {
    row.and_then(|row| SharedRow::decode(row).ok())
}

/// Inodes whose own chunks are under other numbers than theirs, by these numbers.
pub(super) struct ChunkInodes(BTreeMap<Ino, Ino>);

impl ChunkInodes {
    /// Returns the inode whose own chunks are under a number.
    pub(super) fn find(&self, number: Ino) -> Ino {
        self.0.get(&number).copied().unwrap_or(number)
    }
}

impl Plan<'_> {
    fn sys_rows(&self) -> impl Iterator<Item = (SysRow, &OwnRow)> {
        let rows = self.sys.iter().map(|settled| settled.row);
        rows.filter_map(|row| Some((Locator::sys_row(&row.key)?, row)))
    }

    /// Returns whose own chunks are under which number. A transaction puts the rows of all inodes
    /// with another number that it writes to.
    pub(super) fn inodes_of_chunks(&self) -> ChunkInodes {
        let mut inodes = BTreeMap::new();
        for (key, row) in self.sys_rows() {
            if let SysRow::Shared(ino) = key {
                let sides = [decode(row.base.as_ref()), decode(row.ours.as_ref())];
                let own = sides.into_iter().flatten().map(|row| row.own);
                inodes.extend(own.filter(|own| *own != ino).map(|own| (own, ino)));
            }
        }
        debug_assert!(
            inodes.iter().all(|(own, ino)| own != ino),
            "others than their own"
        );
        ChunkInodes(inodes)
    }

    /// Refuses resolutions, if a file that the transaction made others share is `theirs`, or
    /// mainline did the same.
    pub(super) fn check_contents(
        &self,
        trees: &BranchTrees,
        keys: Locator,
        theirs: &BTreeSet<Ino>,
    ) -> FsResult<()> {
        for (key, row) in self.sys_rows() {
            let SysRow::Contents(number) = key else {
                continue;
            };
            if row.base.is_some() {
                continue;
            }
            let is_owner = |(key, row): (SysRow, &OwnRow)| match key {
                SysRow::Shared(ino) => {
                    let before = decode(row.base.as_ref()).map(|row| row.own);
                    (before == Some(number)).then_some(ino)
                }
                _ => None,
            };
            let owner = self.sys_rows().find_map(is_owner).unwrap_or(number);
            let is_there = trees.theirs(Tree::Sys, &keys.contents(number))?.is_some();
            if is_there || theirs.contains(&owner) {
                return Err(COPIED_HERE);
            }
        }
        Ok(())
    }
}
