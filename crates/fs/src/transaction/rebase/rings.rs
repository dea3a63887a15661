//! Whether every name is below the root: directories that both sides have moved may end up in each
//! other.

use super::super::places::carried;
use super::merged::MergedRows;
use super::winners::{RebaseSides, Winners};
use crate::locator::{Locator, Tree};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

pub(super) const IN_EACH_OTHER: FsError =
    FsError::Unresolvable("directories would be in each other; take the other side");
const NOWHERE: FsError = FsError::Unresolvable(
    "the directory that it would be in is gone; resolve the conflict of that one, too",
);

/// Where a walk up ends.
enum Top {
    Root,
    Ring(BTreeSet<Ino>),
    Nowhere,
}

/// Returns the directories that the transaction has moved into a ring, none if there is no ring.
///
/// # Errors
/// [`FsError::Unresolvable`]: a ring that the transaction did not make, or a name in a directory
/// that is gone.
pub(super) fn moved_into_rings(
    sides: &RebaseSides<'_>,
    rows: &MergedRows<'_>,
    winners: &Winners,
) -> FsResult<BTreeSet<Ino>> {
    debug_assert!(
        winners.gone.is_subset(&winners.ours),
        "what is gone is gone in the transaction"
    );
    if winners.theirs.is_empty() && winners.ours.is_empty() {
        // Moves of a transaction touch the directories above.
        return Ok(BTreeSet::new());
    }
    let mut parents = BTreeMap::new();
    let mut dirs = winners.theirs.clone();
    for (key, row) in &rows.meta {
        let (Some(head), Some(_)) = (carried(row.as_deref())?, Locator::name_of(key)) else {
            continue;
        };
        let parent = Locator::ino_of(key).unwrap_or(Ino::ROOT);
        dirs.insert(parent);
        if head.kind == FileKind::Directory {
            parents.insert(head.ino, parent);
            dirs.insert(head.ino);
        }
    }
    for dir in dirs {
        match walk_up(sides, rows, &parents, dir)? {
            Top::Root => {}
            Top::Nowhere if winners.theirs.contains(&dir) => {}
            Top::Nowhere => return Err(NOWHERE),
            Top::Ring(ring) => return moved_in(sides, winners, &ring),
        }
    }
    Ok(BTreeSet::new())
}

/// Writes the rows of the directories above those that were put elsewhere than mainline has them,
/// as a move does: a commit learns of them, and mainline does not move them unnoticed.
pub(super) fn touch_above(
    sides: &RebaseSides<'_>,
    rows: &mut MergedRows<'_>,
    winners: &Winners,
) -> FsResult<()> {
    debug_assert!(
        winners.gone.is_subset(&winners.ours),
        "what is gone is gone in the transaction"
    );
    for ino in winners.ours.difference(&winners.gone) {
        let Some(place) = sides.place_in_ours(*ino)? else {
            continue;
        };
        let is_moved = sides
            .theirs
            .find(*ino)?
            .is_none_or(|old| old.key != place.key);
        let mut parent = place.parent();
        while let Some(dir) = parent.filter(|_| is_moved) {
            let Some(above) = sides.theirs.find(dir)? else {
                // It is put, too.
                parent = sides.place_in_ours(dir)?.and_then(|place| place.parent());
                continue;
            };
            if !rows.meta.contains_key(&above.key) {
                let row = sides.trees.theirs(Tree::Meta, &above.key)?;
                rows.meta.insert(above.key.clone(), row);
            }
            parent = above.parent();
        }
    }
    Ok(())
}

fn walk_up(
    sides: &RebaseSides<'_>,
    rows: &MergedRows<'_>,
    parents: &BTreeMap<Ino, Ino>,
    dir: Ino,
) -> FsResult<Top> {
    let (mut at, mut passed) = (dir, BTreeSet::new());
    while at != Ino::ROOT {
        if !passed.insert(at) {
            debug_assert!(!passed.contains(&Ino::ROOT), "the root is in no directory");
            return Ok(Top::Ring(passed));
        }
        at = match parents.get(&at) {
            Some(parent) => *parent,
            None => match sides.theirs.find(at)? {
                Some(place) if !rows.meta.contains_key(&place.key) => {
                    place.parent().unwrap_or(Ino::ROOT)
                }
                _ => return Ok(Top::Nowhere),
            },
        };
    }
    Ok(Top::Root)
}

fn moved_in(
    sides: &RebaseSides<'_>,
    winners: &Winners,
    ring: &BTreeSet<Ino>,
) -> FsResult<BTreeSet<Ino>> {
    debug_assert!(!ring.is_empty(), "a ring has a directory");
    let mut moved = BTreeSet::new();
    for name in &sides.names {
        let is_new = |ino| name.base_head.is_none_or(|head| head.ino != ino);
        if let Some(head) = name.ours_head
            && ring.contains(&head.ino)
            && is_new(head.ino)
            && !winners.ours.contains(&head.ino)
            && !winners.theirs.contains(&head.ino)
        {
            moved.insert(head.ino);
        }
    }
    debug_assert!(moved.is_subset(ring), "directories of the ring");
    debug_assert!(
        moved.is_disjoint(&winners.ours),
        "no side was chosen of them"
    );
    debug_assert!(
        moved.is_disjoint(&winners.theirs),
        "no side was chosen of them"
    );
    match moved.is_empty() {
        true => Err(IN_EACH_OTHER),
        false => Ok(moved),
    }
}
