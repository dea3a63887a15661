//! Which chunks a file goes on to share after a rollback, and which become its own.
//!
//! ```text
//!   snapshot   a: own 22, contents 20 |=================|
//!   present    a: own 22, contents 20 |====|    |=======|     one chunk was written
//!   restored   a: own 22, contents 20 |=================|     the own chunk is deleted
//!
//!   snapshot   a: chunks under 20     |-----------------|
//!   later      one chunk is written, and `cp a b` makes 20 a number of contents
//!   restored   a: own 22, contents 20 |=========|-|=====|     that chunk is an own one
//! ```
//!
//! So a chunk is shared if the snapshot has it under the number of contents that the present has,
//! and it was not written between. Nothing of it is read or written. Chunks under a number that
//! was one of contents in the snapshot were never written since.
//!
//! Contents are shared if some inode uses them from before the rollback until after it. Otherwise
//! they might have no user at some moment, and could be deleted.

use super::present::Present;
use super::sides::RollbackSides;
use crate::FsResult;
use crate::contents::Contents;
use crate::data::chunk_count;
use crate::locator::{Locator, SysRow};
use crate::recent::changed_chunks;
use crate::schema::Store;
use crate::shared::{Piece, are_apart, with, without};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_shared::{SHARED_EXTENTS_MAX, SharedRow};

/// Chunks of a file that it shares after a rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) contents: Ino,
    /// In order; at least one, at most [`SHARED_EXTENTS_MAX`], and no two touch.
    pub(super) extents: Vec<Range<u64>>,
}

impl Shares {
    fn new(contents: Ino, mut extents: Vec<Range<u64>>) -> Option<Self> {
        debug_assert!(contents.0 > 0, "0 is no number of contents");
        if extents.len() > SHARED_EXTENTS_MAX {
            // The chunks of the shortest ones become own ones.
            extents.sort_unstable_by_key(|one| std::cmp::Reverse(one.end - one.start));
            extents.truncate(SHARED_EXTENTS_MAX);
            extents.sort_unstable_by_key(|one| one.start);
        }
        debug_assert!(are_apart(&extents), "a row takes no others");
        (!extents.is_empty()).then_some(Self { contents, extents })
    }

    /// Returns the chunks of a range that are not shared.
    pub(super) fn own_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts = vec![range.clone()];
        for extent in &self.extents {
            parts = without(&parts, extent);
        }
        debug_assert!(parts.iter().all(|part| range.start <= part.start));
        debug_assert!(parts.iter().all(|part| part.end <= range.end));
        parts
    }
}

/// Finds what files share after a rollback. All locks are held.
#[derive(Clone, Copy)]
pub(super) struct ShareFinder<'a> {
    present: &'a Store,
    sides: RollbackSides<'a>,
    /// Some file shares contents.
    has_shared: bool,
}

impl<'a> ShareFinder<'a> {
    pub(super) fn new(fs: &Present<'a>, sides: RollbackSides<'a>) -> Self {
        Self {
            present: fs.store,
            sides,
            has_shared: fs.header.lock().has_shared,
        }
    }

    /// Returns what a file of the snapshot shares, which was `was` then and gets the number `ino`.
    pub(super) fn of_file(&self, was: &InodeHead, ino: Ino) -> FsResult<Option<Shares>> {
        let contents = Contents::of_inode(was);
        if !self.has_shared || !contents.is_some_and(Contents::are_chunks) || was.size == 0 {
            return Ok(None);
        }
        let past = self.sides.past.0;
        let pieces = past.pieces_of(was, &(0..chunk_count(was.size)))?;
        let used = past.used_contents(was)?;
        let mut numbers: Vec<Ino> = pieces.iter().map(|(number, _)| *number).collect();
        // Those that were contents already first: none of their chunks was written since.
        numbers.sort_unstable_by_key(|number| (Some(*number) != used, *number));
        numbers.dedup();
        debug_assert!(numbers.len() <= 2, "own chunks, and those of contents");
        for number in numbers {
            if !self.are_kept(number, ino)? {
                continue;
            }
            let extents = self.unchanged(number, &pieces, used)?;
            if let Some(shares) = Shares::new(number, extents) {
                return Ok(Some(shares));
            }
        }
        Ok(None)
    }

    /// Reports whether a number is one of contents that stay as long as the rollback lasts, if the
    /// inode `ino` uses them afterwards.
    fn are_kept(&self, number: Ino, ino: Ino) -> FsResult<bool> {
        let (store, keys) = (self.present, self.present.keys);
        if store.get(&keys.contents(number))?.is_none() {
            return Ok(false);
        }
        let mut users = store.scan(&keys.contents_users(number))?;
        while let Some((key, _)) = users.next()? {
            let Some(SysRow::ContentsUser(contents, user)) = Locator::sys_row(key) else {
                continue;
            };
            debug_assert_eq!(contents, number, "the range is of these contents");
            if user == ino || self.stays(user, number)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports whether a user of contents uses them until all files of the snapshot are restored.
    /// One that the snapshot has not loses its names after that, if it does; one without names may
    /// be purged at any time.
    fn stays(&self, user: Ino, contents: Ino) -> FsResult<bool> {
        let (store, (past, was)) = (self.present, self.sides.past);
        let Some(seen) = was.get(user) else {
            return Ok(store.get(&store.keys.orphan(user))?.is_none());
        };
        let uses = |row: Option<SharedRow>| row.and_then(|row| row.contents) == Some(contents);
        let is_used_now = uses(store.find_shared_row(user)?);
        Ok(is_used_now && past.used_contents(&seen.head)? == Some(contents))
    }

    /// Returns the chunks of pieces under a number that are the same in the snapshot and now.
    fn unchanged(
        &self,
        number: Ino,
        pieces: &[Piece],
        used: Option<Ino>,
    ) -> FsResult<Vec<Range<u64>>> {
        let (past, written) = (self.sides.past.0, self.sides.written);
        let mut same = Vec::new();
        for (_, piece) in pieces.iter().filter(|(under, _)| *under == number) {
            let mut parts = vec![piece.clone()];
            if used != Some(number) {
                let sides = ((past, number), (self.present, number));
                written.each_run(self.present, (number, piece.clone()), |run| {
                    for changed in changed_chunks(sides, run)? {
                        parts = without(&parts, &changed);
                    }
                    Ok(true)
                })?;
            }
            debug_assert!(parts.iter().all(|part| part.end <= piece.end));
            same = parts.iter().fold(same, |all, part| with(&all, part));
        }
        Ok(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parts_are_what_lies_between_extents() {
        let shares = Shares::new(Ino(20), vec![2..5, 8..9]).expect("it has extents");
        assert_eq!(shares.own_parts(&(0..12)), [0..2, 5..8, 9..12]);
        assert_eq!(shares.own_parts(&(3..5)), []);
        assert_eq!(Shares::new(Ino(20), Vec::new()), None);
    }

    #[test]
    fn the_shortest_extents_are_not_shared_where_there_are_too_many() {
        let count = SHARED_EXTENTS_MAX as u64 + 3;
        // The first three are the shortest ones.
        let all = (0..count).map(|at| 4 * at..4 * at + if at < 3 { 1 } else { 2 });
        let shares = Shares::new(Ino(20), all.clone().collect()).expect("it has extents");
        assert_eq!(shares.extents, all.skip(3).collect::<Vec<_>>());
    }
}
