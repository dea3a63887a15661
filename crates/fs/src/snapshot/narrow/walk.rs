//! A walk below a directory, for the numbers under which contents are.

use super::numbers::NumberRanges;
use crate::locator::{Locator, SysRow, Tree};
use crate::system::FileSystem;
use crate::views::ViewCommands;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_kv::KeyRanges;

/// Names that are read in one round. A directory counts as one more.
const NAMES_PER_ROUND: usize = 4096;

/// What a round may still read.
struct RoundBudget<'v> {
    names: usize,
    commands: &'v ViewCommands,
}

impl RoundBudget<'_> {
    /// Takes a name or a directory.
    const fn take(&mut self) {
        self.names = self.names.saturating_sub(1);
    }

    /// Reports whether the round is to end: it is full, or a command on snapshots or clones is
    /// under way.
    fn is_spent(&self) -> bool {
        debug_assert!(self.names <= NAMES_PER_ROUND, "a round has an end");
        self.names == 0 || self.commands.are_under_way()
    }
}

/// A walk in a file system that does not change.
#[derive(Debug)]
pub(super) struct NumberWalk {
    fs: Arc<FileSystem>,
    /// Directories to be read, each from this hash of names on.
    dirs: Vec<(Ino, u64)>,
    /// Directories that are left until the walk has met more than there can be: damaged rows may
    /// form a ring.
    dirs_left: u64,
    numbers: NumberRanges,
    /// Clones that lie in the directory, and not in a clone.
    pub(super) clones: BTreeSet<u64>,
}

impl NumberWalk {
    pub(super) fn new(fs: Arc<FileSystem>, root: Ino) -> Self {
        debug_assert!(fs.is_read_only(), "the past does not change");
        debug_assert!(root.0 > 0, "0 is no inode");
        let mut numbers = NumberRanges::default();
        // Those that are given out later: at its moment nothing is under them. A clone of the
        // snapshot puts its own files there.
        let next = fs.numbers.next();
        debug_assert!(next > root.0, "the number was given out");
        numbers.add_from(Ino(next));
        Self {
            fs,
            dirs: vec![(root, 0)],
            dirs_left: next,
            numbers,
            clones: BTreeSet::new(),
        }
    }

    /// Adds inodes without names: files that are open, and directories that are being emptied.
    pub(super) fn add_orphans(&mut self) -> FsResult<()> {
        debug_assert!(self.fs.is_read_only(), "the past does not change");
        let fs = Arc::clone(&self.fs);
        let mut inos = Vec::new();
        let mut scan = fs.store.scan(&fs.store.keys.orphans())?;
        while let Some((key, _)) = scan.next()? {
            if let Some(SysRow::Orphan(ino)) = Locator::sys_row(key) {
                inos.push(ino);
            }
        }
        drop(scan);
        debug_assert!(inos.is_sorted(), "keys come in order");
        for ino in inos {
            if let Some((head, _)) = fs.store.own_row(ino)? {
                self.note(&fs, &head)?;
            }
        }
        Ok(())
    }

    /// Reads some names; while a command is under way, those of one hash in one directory. Returns
    /// whether these were the last.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] if directories are in each other.
    pub(super) fn round(&mut self, commands: &ViewCommands) -> FsResult<bool> {
        let mut budget = RoundBudget {
            names: NAMES_PER_ROUND,
            commands,
        };
        debug_assert!(self.fs.is_read_only(), "the past does not change");
        while let Some((dir, hash)) = self.dirs.pop() {
            budget.take();
            if hash == 0 {
                let left = self.dirs_left.checked_sub(1);
                self.dirs_left = left.ok_or_else(|| FsError::ring_at(dir))?;
                self.clones
                    .extend(self.fs.clone_at(dir).map(|info| info.number));
            }
            if let Some(next) = self.directory(dir, hash, &mut budget)? {
                debug_assert!(next > hash, "it goes on");
                self.dirs.push((dir, next));
                return Ok(false);
            }
            if budget.is_spent() {
                break;
            }
        }
        debug_assert!(
            self.dirs_left < self.fs.numbers.next(),
            "the directory itself was met"
        );
        Ok(self.dirs.is_empty())
    }

    /// Notes what is in a directory from a hash of names on. Returns the hash to go on from.
    fn directory(
        &mut self,
        dir: Ino,
        hash: u64,
        budget: &mut RoundBudget<'_>,
    ) -> FsResult<Option<u64>> {
        let fs = Arc::clone(&self.fs);
        let mut links = Vec::new();
        let (mut next, mut last) = (None, hash);
        let mut scan = fs.store.scan(&fs.store.keys.dentries_from(dir, hash))?;
        while let Some((key, row)) = scan.next()? {
            let (at, _) = Locator::name_of(key).unwrap_or_default();
            // Names with one hash are not divided.
            if at > last && budget.is_spent() {
                next = Some(at);
                break;
            }
            last = at;
            budget.take();
            match MetaRow::decode(row)? {
                MetaRow::Inode(head, _) => self.note(&fs, &head)?,
                MetaRow::Link { ino, .. } => links.push(ino),
            }
        }
        drop(scan);
        for ino in links {
            if let Some((head, _)) = fs.store.own_row(ino)? {
                self.note(&fs, &head)?;
            }
        }
        Ok(next)
    }

    fn note(&mut self, fs: &FileSystem, head: &InodeHead) -> FsResult<()> {
        match head.kind {
            FileKind::Directory => self.dirs.push((head.ino, 0)),
            _ => {
                for number in fs.store.content_numbers(head)? {
                    self.numbers.add(number);
                }
            }
        }
        Ok(())
    }

    /// Returns the keys under which the contents are, in the tree of contents.
    pub(super) fn ranges(&self) -> KeyRanges {
        let keys = self.fs.store.keys;
        let of = |(first, end): (Ino, Option<Ino>)| match end {
            Some(end) => {
                debug_assert!(first < end, "a range is not empty");
                let range = keys.inodes(Tree::Data, first, end);
                (range.start().to_vec(), Some(range.end().to_vec()))
            }
            None => {
                let range = keys.inodes(Tree::Data, first, Ino(first.0 + 1));
                (range.start().to_vec(), None)
            }
        };
        KeyRanges::new(self.numbers.joined().into_iter().map(of))
    }
}

#[cfg(test)]
mod tests;
