//! Directories whose files are read one after the other: their other files are prefetched.
//!
//! A program that searches, packs or copies a tree reads each file whole, directory by directory.
//! Each file is too short for sequential prefetching ([`super::sequential`]). But the chunks of a
//! directory's files are mostly neighbours: the files were made one after the other, and chunks are
//! in the order of inode numbers. So with the second file that is read from its start, the rest of
//! its directory is prefetched at once.
//!
//! - Where five of the last eight directories came to a second file, the first file is enough.
//! - Of a directory with more names than one scan reads, or more than 4 MiB, only the files that
//!   come next in the order of listing are prefetched, once some files were read in that
//!   order.
//! - In the same way names are prefetched where directory after directory is listed: rows of names
//!   are in the order of their directories' numbers.
//! - Where directories come in the order of listing, the next ones are prefetched before their
//!   first file is read ([`super::walk`]).

use super::listing::FIRST_HASH;
use super::policy::{Habit, HashedName};
use super::slots::Slots;
use stitch_base::Ino;

/// Files that are read in the order of listing before more of a long directory is prefetched.
const LISTED_MIN: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct DirReads {
    dir: u64,
    /// Files that were read from their start.
    reads: u32,
    /// Files that were prefetched and not yet read; 0: all of them were, or none was prefetched.
    left: u32,
    /// There was no memory for them: the next read asks again.
    is_refused: bool,
    /// One scan does not read all of it.
    is_long: bool,
    /// Hash of the last name.
    last_hash: u64,
    /// Number of files read in the order of their hashes.
    listed: u32,
    /// Of a long directory all names before this hash were scanned.
    scanned_hash: u64,
    /// A read from this hash on makes the next scan due.
    due_hash: u64,
}

/// Directories whose files were read last.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    slots: Slots<DirReads>,
    /// Right for each directory that came to a second file.
    habit: Habit,
}

impl Siblings {
    /// Notes that a file was read from its start. Returns the hash from which its directory is
    /// scanned now, if it is, and whether this is its first file.
    pub(super) fn note(&mut self, name: HashedName) -> (Option<u64>, bool) {
        let slot = self.slots.of(name.dir);
        if slot.dir != name.dir.0 {
            *slot = DirReads {
                dir: name.dir.0,
                ..DirReads::default()
            };
        }
        slot.reads = slot.reads.saturating_add(1);
        let reads = slot.reads;
        debug_assert!(reads > 0, "this one is counted");
        match reads {
            1 => self.habit.begin(),
            2 => self.habit.confirm(),
            _ => {}
        }
        (self.scan_from(name), reads == 1)
    }

    /// Returns the hash to scan from with a file that was noted.
    fn scan_from(&mut self, HashedName { dir, hash }: HashedName) -> Option<u64> {
        let slot = self.slots.of(dir);
        debug_assert_eq!(slot.dir, dir.0, "the history of the directory");
        debug_assert!(slot.reads > 0, "the file was noted");
        slot.listed = match hash > slot.last_hash {
            true => slot.listed.saturating_add(1),
            false => 0,
        };
        slot.last_hash = hash;
        if slot.is_long {
            let is_due = slot.listed >= LISTED_MIN && hash >= slot.due_hash;
            return is_due.then(|| hash.max(slot.scanned_hash));
        }
        if std::mem::take(&mut slot.is_refused) {
            return Some(FIRST_HASH);
        }
        if slot.left > 0 {
            debug_assert!(!slot.is_long, "of a long directory a part is prefetched");
            slot.left -= 1;
            if slot.left == 0 {
                self.end(dir);
            }
            return None;
        }
        let reads_min = if self.habit.is_known() { 1 } else { 2 };
        (reads_min..=2).contains(&slot.reads).then_some(FIRST_HASH)
    }

    /// Reports whether directory after directory is read.
    pub(super) const fn is_walk(&self) -> bool {
        self.habit.is_known()
    }

    /// Notes that all files of a directory were read: the next read begins it anew.
    fn end(&mut self, dir: Ino) {
        // A directory with one file counts like one that came to a second.
        self.habit.confirm();
        let slot = self.slots.of(dir);
        debug_assert_eq!(slot.dir, dir.0, "the history of the directory");
        debug_assert_eq!(slot.left, 0, "all of its files were read");
        slot.reads = 0;
    }

    /// Returns the slot of a directory, if it has its history.
    fn known(&mut self, dir: Ino) -> Option<&mut DirReads> {
        Some(self.slots.of(dir)).filter(|slot| slot.dir == dir.0)
    }

    /// Notes that all `count` files of a directory were prefetched.
    pub(super) fn mark_prefetched(&mut self, dir: Ino, count: usize) {
        if let Some(slot) = self.known(dir) {
            slot.left = as_u32(count).saturating_sub(slot.reads);
            debug_assert!(!slot.is_long, "of a long directory a part is prefetched");
            if slot.left == 0 {
                self.end(dir);
            }
        }
    }

    /// Notes that all `count` files of a directory were prefetched before the first of them was
    /// read.
    pub(super) fn expect_dir(&mut self, dir: Ino, count: usize) {
        debug_assert!(count > 0, "it has files");
        let is_begun = self.known(dir).is_some_and(|slot| slot.reads > 0);
        if !is_begun {
            *self.slots.of(dir) = DirReads {
                dir: dir.0,
                left: as_u32(count),
                ..DirReads::default()
            };
        }
    }

    /// Notes that there was no memory for the files of a directory.
    pub(super) fn note_refused(&mut self, dir: Ino) {
        if let Some(slot) = self.known(dir) {
            slot.is_refused = true;
            slot.left = 0;
        }
    }

    /// Notes that a directory that was expected was not prefetched.
    pub(super) fn forget(&mut self, dir: Ino) {
        if let Some(slot) = self.known(dir).filter(|slot| slot.reads == 0) {
            *slot = DirReads::default();
        }
    }

    /// Notes that a directory is long, how far it was scanned, and when the next scan is due.
    pub(super) fn mark_part(&mut self, dir: Ino, scanned_hash: u64, due_hash: u64) {
        debug_assert!(
            due_hash <= scanned_hash,
            "the next part is due before the end of this one"
        );
        if let Some(slot) = self.known(dir) {
            slot.is_long = true;
            (slot.scanned_hash, slot.due_hash) = (scanned_hash, due_hash);
        }
    }
}

fn as_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
