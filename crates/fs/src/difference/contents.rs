//! Inodes with other contents or extended attributes whose heads may tell nothing of it: those that
//! were written within one tick of the clock, and those of which a name came or went, too.

use super::moment::Moment;
use super::rows::ROWS_MAX;
use super::side::Side;
use super::spans::{Relation, for_each_page};
use crate::locator::{Locator, SysRow, Tree};
use crate::recent::{has_same_contents, without_zeros};
use crate::{FsError, FsResult};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;

/// The first key of the inodes behind that of a key, in the trees whose keys begin with an inode.
fn behind_inode(moment: &Moment<'_>, key: &[u8]) -> Option<Vec<u8>> {
    let ino = Locator::ino_of(key)?;
    let next = moment.keys().own(Ino(ino.0 + 1));
    debug_assert!(key < &next[..], "the list goes on");
    Some(next.to_vec())
}

/// Whose chunks are under which number, at two moments.
struct ChunkOwners {
    by_number: BTreeMap<Ino, Ino>,
    /// Inodes whose own chunks are under another number, or were.
    elsewhere: BTreeSet<Ino>,
}

impl ChunkOwners {
    fn of(old: &Side<'_>, new: &Side<'_>) -> FsResult<Self> {
        let mut by_number = old.moment.inodes_of_chunks()?;
        by_number.extend(new.moment.inodes_of_chunks()?);
        let apart = by_number.iter().filter(|(number, ino)| number != ino);
        let elsewhere = apart.map(|(_, ino)| *ino).collect();
        debug_assert!(
            by_number.keys().all(|number| number.0 > 0),
            "a number of an inode"
        );
        Ok(Self {
            by_number,
            elsewhere,
        })
    }

    /// The inode whose own chunks are, or were, under a number. Of chunks that others share there
    /// is none: they never change.
    fn find(&self, number: Ino) -> Option<Ino> {
        match self.by_number.get(&number) {
            Some(ino) => Some(*ino),
            None => (!self.elsewhere.contains(&number)).then_some(number),
        }
    }
}

/// Returns the inodes with other contents whose heads tell nothing of it: those that were written
/// within one tick of the clock. A chunk that is not there is one of zeros.
pub(super) fn written_contents(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let is_known = |ino| match (old.rows.inode(ino), new.rows.inode(ino)) {
        _ if !relation.has_ino(ino) => true,
        (None, None) => false,
        (Some(old), Some(new)) => {
            (old.head.mtime, old.head.size) != (new.head.mtime, new.head.size)
        }
        // It was made or removed.
        _ => true,
    };
    let (mut written, others) = (
        BTreeSet::new(),
        inodes_with_other_extents(relation, old, new)?,
    );
    for ino in others.iter().copied().filter(|ino| !is_known(*ino)) {
        if has_other_pieces(ino, old, new)? {
            written.insert(ino);
        }
    }
    let written = RefCell::new(written);
    let owners = ChunkOwners::of(old, new)?;
    let is_done = |number| match owners.find(number) {
        Some(ino) => is_known(ino) || others.contains(&ino) || written.borrow().contains(&ino),
        None => true,
    };
    let skip = |last: &[u8]| {
        let is_done = Locator::ino_of(last).is_some_and(&is_done);
        is_done.then(|| behind_inode(&new.moment, last)).flatten()
    };
    let engine = new.moment.engine;
    for_each_page(engine, &relation.spans, Tree::Data, skip, |page| {
        for key in page {
            let number = Locator::ino_of(key).filter(|number| !is_done(*number));
            let Some(ino) = number.and_then(|number| owners.find(number)) else {
                continue;
            };
            debug_assert!(!is_known(ino), "its head tells nothing of it");
            // A file that is below both directories has its contents in both moments.
            if [old, new]
                .iter()
                .any(|side| !side.moment.holds(Tree::Data, key))
            {
                continue;
            }
            let value = |side: &Side<'_>| side.moment.get(Tree::Data, key);
            let (old, new) = (
                value(old)?.unwrap_or_default(),
                value(new)?.unwrap_or_default(),
            );
            if without_zeros(&old) != without_zeros(&new) {
                written.borrow_mut().insert(ino);
            }
        }
        Ok(())
    })?;
    Ok(written.into_inner())
}

/// Returns the inodes that use other chunks of shared contents: that may put no chunk.
fn inodes_with_other_extents(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let mut inodes = BTreeSet::new();
    let rows = new.moment.keys().all_shared();
    let first = rows.keys().start.to_vec();
    let skip = |last: &[u8]| (last < &first[..]).then(|| first.clone());
    let engine = new.moment.engine;
    for_each_page(engine, &relation.spans, Tree::Sys, skip, |page| {
        for key in page {
            if let Some(SysRow::Shared(ino)) = Locator::sys_row(key)
                && old.moment.get(Tree::Sys, key)? != new.moment.get(Tree::Sys, key)?
            {
                inodes.insert(ino);
            }
        }
        check_count(&inodes)
    })?;
    debug_assert!(inodes.len() <= ROWS_MAX, "no more than are held in memory");
    debug_assert!(!first.is_empty(), "rows of one kind");
    Ok(inodes)
}

/// Reports whether a file that is below the directory on both sides reads other bytes.
fn has_other_pieces(ino: Ino, old: &Side<'_>, new: &Side<'_>) -> FsResult<bool> {
    let (Some(before), Some(after)) = (old.row(ino)?, new.row(ino)?) else {
        return Ok(false);
    };
    // A narrowed snapshot holds the contents of no others.
    if old.names_of(ino, &before)?.is_empty() || new.names_of(ino, &after)?.is_empty() {
        return Ok(false);
    }
    let sides = (
        (&*old.moment.store, &before.head),
        (&*new.moment.store, &after.head),
    );
    Ok(!has_same_contents(sides.0, sides.1)?)
}

/// Returns the inodes with other extended attributes.
pub(super) fn written_xattrs(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let mut written = BTreeSet::new();
    let engine = new.moment.engine;
    let go_on = |_: &[u8]| None;
    for_each_page(engine, &relation.spans, Tree::Xattr, go_on, |page| {
        let before = old.moment.get_many(Tree::Xattr, page)?;
        let after = new.moment.get_many(Tree::Xattr, page)?;
        debug_assert_eq!(before.len(), after.len(), "one for each key");
        let others = page.iter().zip(before.iter().zip(&after));
        let others = others.filter(|(_, (before, after))| before != after);
        written.extend(others.filter_map(|(key, _)| Locator::ino_of(key)));
        check_count(&written)
    })?;
    debug_assert!(written.len() <= ROWS_MAX, "no more than are held in memory");
    Ok(written)
}

fn check_count(inodes: &BTreeSet<Ino>) -> FsResult<()> {
    match inodes.len() > ROWS_MAX {
        true => Err(FsError::Unsupported),
        false => Ok(()),
    }
}

/// Returns the inodes with other contents or extended attributes whose heads may tell nothing of
/// it. Others may be among them.
pub(super) fn written_inodes(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let mut written = written_contents(relation, old, new)?;
    let last_ino = |last: &[u8]| behind_inode(&new.moment, last);
    let engine = new.moment.engine;
    for_each_page(engine, &relation.spans, Tree::Xattr, last_ino, |page| {
        written.extend(page.iter().filter_map(|key| Locator::ino_of(key)));
        check_count(&written)
    })?;
    debug_assert!(written.len() <= ROWS_MAX, "no more than are held in memory");
    Ok(written)
}
