//! Inodes that have no name of their own until they get that of the snapshot: their only name is
//! given to another inode before, or they get a new number.
//!
//! ```text
//! present    x: inode 1, row     y: inode 2, row         x and y were exchanged
//! snapshot   x: inode 2          y: inode 1
//!
//! x is put   x: inode 2, row     y: inode 2, row         inode 1 is an orphan
//! y is put   x: inode 2, row     y: inode 1, row         and has a name again
//! ```
//!
//! A directory has names in it, which an orphan loses at the next open. So it is put *aside*
//! meanwhile: it gets a name of its own in the directory that is rolled back.
//!
//! Invariant: each inode of the snapshot that was there has a row after each batch, and each
//! directory of it is below the one that is rolled back. So a rollback that is finished later finds
//! it, and counts it once.

use super::{Restore, Target, inode_at};
use crate::inode::{Inode, Location};
use crate::{DirName, FsResult};
use std::collections::HashSet;
use stitch_base::Ino;

/// Which inodes have lost their row to another one, and which cannot any more.
#[derive(Debug, Default)]
pub(super) struct Overwritten {
    orphans: HashSet<Ino>,
    /// Directories that were put aside.
    aside: HashSet<Ino>,
    /// Their row is where the snapshot has it.
    settled: HashSet<Ino>,
}

impl Overwritten {
    /// Notes that the row of an inode is put where it stays. Reports whether it was an orphan.
    pub(super) fn settle(&mut self, ino: Ino) -> bool {
        let is_first = self.settled.insert(ino);
        debug_assert!(is_first, "the row of an inode is put once");
        self.orphans.remove(&ino)
    }

    /// Returns the directories that are aside, in the order of their numbers, and forgets them.
    pub(super) fn take_aside(&mut self) -> Vec<Ino> {
        let mut all: Vec<Ino> = self.aside.drain().collect();
        all.sort_unstable();
        debug_assert!(all.iter().all(|ino| !self.settled.contains(ino)));
        all
    }
}

impl<'a> Restore<'a> {
    /// Keeps an inode of the snapshot, or any directory, whose name is about to lead to another
    /// one, as an orphan or aside, unless its row is elsewhere.
    pub(super) fn keep_overwritten(&mut self, ino: Ino, at: DirName<'a>) -> FsResult<()> {
        let seen = *self.now.get(ino).expect("a name leads to it");
        debug_assert!(
            self.was.has(ino) || seen.is_dir(),
            "other inodes lose the name"
        );
        // With two names it is where the snapshot has it, too: that one was put by an earlier life.
        let has_row = seen.is_own || seen.names > 1 || self.overwritten.settled.contains(&ino);
        if has_row || self.overwritten.aside.contains(&ino) {
            return Ok(());
        }
        if seen.is_dir() {
            return self.put_aside(ino, at);
        }
        if !self.overwritten.orphans.insert(ino) {
            return Ok(());
        }
        let known = self.fs.residents.inodes.find(ino);
        let mut orphan = known.unwrap_or_else(|| inode_at(&seen, at));
        let tail = self.fs.store.tail(&orphan)?;
        orphan.head.nlink = 0;
        self.change.put_orphan(&orphan, &tail);
        self.change.count_inodes(-1);
        Ok(())
    }

    /// Gives a directory another name, since its own is about to lead to another inode.
    fn put_aside(&mut self, ino: Ino, at: DirName<'a>) -> FsResult<()> {
        let seen = *self.now.get(ino).expect("a name leads to it");
        let known = self.fs.residents.inodes.find(ino);
        let moved = known.unwrap_or_else(|| inode_at(&seen, at));
        let tail = self.fs.store.tail(&moved)?;
        let aside = DirName::new(self.was.top, self.plan.name_aside(ino));
        debug_assert!(!self.now.names(aside.parent).contains_key(aside.name));
        self.note_entries(aside.parent);
        self.change.put_entry(aside, &moved.head, &tail);
        self.overwritten.aside.insert(ino);
        Ok(())
    }

    /// Puts an inode that gets a new number as an orphan, before any of its contents: a rollback
    /// that is finished later gives it another number, and this one is reclaimed.
    pub(super) fn announce(&mut self, target: &Target) {
        let number = target.head.ino;
        debug_assert_eq!(target.chunks, number, "nothing is under a new number");
        debug_assert!(target.is_revived, "it has no name yet");
        debug_assert!(!self.overwritten.settled.contains(&number));
        if !self.overwritten.orphans.insert(number) {
            return;
        }
        let mut orphan = Inode {
            head: target.head,
            location: Location::Own,
            chain: 0,
            is_temp: false,
        };
        orphan.head.nlink = 0;
        self.change.put_orphan(&orphan, &[]);
    }

    /// Counts an inode that gets its first name.
    pub(super) fn revive(&mut self, target: &Target) {
        let number = target.head.ino;
        if self.overwritten.aside.remove(&number) {
            let aside = DirName::new(self.was.top, self.plan.name_aside(number));
            self.change.delete_entry(aside);
        }
        let was_overwritten = self.overwritten.settle(target.head.ino);
        if target.is_revived || was_overwritten {
            self.change.count_inodes(1);
        }
        if target.orphan.is_some() || was_overwritten {
            let key = self.fs.store.keys.orphan(target.head.ino);
            self.change.batch.delete(&key);
        }
    }

    /// Reports whether the row of an inode is under its number.
    pub(super) fn has_own_row(&self, target: &Target) -> bool {
        let number = target.head.ino;
        let is_own = self.now.get(number).is_some_and(|seen| seen.is_own);
        is_own || target.orphan.is_some() || self.overwritten.orphans.contains(&number)
    }
}
