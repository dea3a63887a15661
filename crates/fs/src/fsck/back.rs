//! Back rows against the rows that they lead to.

use super::scan::{Found, FoundInode};
use super::{Issue, Trees};
use crate::locator::{Locator, SysRow, Tree};
use crate::rows::is_readable;
use stitch_base::Ino;
use stitch_db::Changes;
use stitch_format::fs_back::Place;
use stitch_format::fs_key::INO_MAX;

/// Where the row of an inode is, if it is under a name.
fn place_of(inode: &FoundInode) -> Option<Place> {
    let place = inode.place.and_then(|_| Locator::place_of(&inode.key));
    debug_assert_eq!(
        place.map(|place| place.parent),
        inode.place,
        "the directory of the name"
    );
    place
}

/// The back row of an inode is to lead to `place`, or not to exist.
fn wrong(ino: Ino, place: Option<Place>) -> Issue {
    debug_assert!(
        place.is_none_or(|place| place.parent.0 <= INO_MAX),
        "a number of a directory"
    );
    let place = place.map(|place| (place.parent, place.hash));
    Issue::BackRow { ino, place }
}

impl Found {
    /// Takes a row of the sys tree that has to do with back rows. All inodes are known. Returns
    /// false for any other row, or a damaged one.
    pub(super) fn back(&mut self, row: SysRow, value: &[u8]) -> bool {
        debug_assert!(
            self.has(|header| header.has_back_rows),
            "a file system without them has none"
        );
        let Ok(place) = Place::decode(value) else {
            return false;
        };
        let ino = match row {
            SysRow::BackProgress => {
                self.back_progress = Some(place);
                return true;
            }
            SysRow::Back(ino) => ino,
            _ => return false,
        };
        self.largest = self.largest.max(ino.0);
        let inode = self.inodes.get_mut(&ino);
        let right = inode.and_then(|inode| {
            inode.has_back_row = true;
            place_of(inode)
        });
        if right != Some(place) {
            self.issues.push(wrong(ino, right));
        }
        true
    }
}

/// An inode without the back row that it should have.
pub(super) fn missing(found: &Found, ino: Ino) -> Option<Issue> {
    let inode = &found.inodes[&ino];
    let keeps_back_rows = found.has(|header| header.has_back_rows);
    let progress = found.back_progress.unwrap_or(Place::FIRST);
    let place = place_of(inode).filter(|place| keeps_back_rows && *place < progress)?;
    debug_assert!(found.is_readable, "inodes of what was read");
    (!inode.has_back_row).then(|| wrong(ino, Some(place)))
}

/// Adds the repair of a back row.
pub(super) fn put(trees: &Trees, changes: &mut Changes, ino: Ino, place: Option<(Ino, u64)>) {
    let key = trees.keys.back(ino);
    match place {
        Some((parent, hash)) => {
            let row = Place { parent, hash }.encode();
            debug_assert!(
                is_readable(Tree::Sys, &key, &row),
                "a repaired row is read again"
            );
            changes.put(trees.sys, &key, &row);
        }
        None => changes.delete(trees.sys, &key),
    }
}
