//! Removal of a tree in a transaction: entry by entry.
//!
//! A commit compares each entry that is gone with mainline's, so each is removed by itself. What is
//! made in the tree meanwhile goes as well. The kernel asked for the removal of the tree alone: of
//! its files it has old numbers of links.

use crate::fixed::FixedFiles;
use crate::inode::Hold;
use crate::namespace::NameChanges;
use crate::residents::Residents;
use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

/// Entries that one scan reads.
const SLICE: usize = 128;
const _: () = assert!(SLICE > 0, "no name would mean an empty directory");

/// A directory that is to be emptied, and its name.
struct Level {
    parent: Ino,
    name: Box<[u8]>,
    ino: Ino,
}

/// Removes trees of a transaction's file system. A tree with a clone in it is refused.
///
/// Invariant: the directories on the way down are known, each by one lookup that is taken back.
pub(crate) struct EntryRemoval<'fs> {
    residents: &'fs Residents,
    fixed: FixedFiles<'fs>,
    /// For the tree itself.
    asked: NameChanges<'fs>,
    /// For what is in it.
    unasked: NameChanges<'fs>,
}

impl<'fs> EntryRemoval<'fs> {
    /// Of the file system of a transaction.
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        debug_assert!(fs.branch.is_some(), "mainline removes it in one step");
        Self {
            residents: &fs.residents,
            fixed: FixedFiles::of(fs),
            asked: NameChanges::of(fs),
            unasked: NameChanges::unasked_of(fs),
        }
    }

    /// Removes a directory and all that is in it, as [`FileSystem::remove_tree`] does in mainline.
    pub(crate) fn remove(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        let top = self.asked.names.look_up(at, false)?;
        let removed = self.check_top(caller, at, top.ino, expected);
        let removed = removed.and_then(|()| self.empty_levels(at, top.ino));
        let removed = removed.and_then(|()| self.remove_dir(self.asked, caller, at));
        self.forget(top.ino);
        removed
    }

    /// Refuses a tree whose name the caller may not take, before anything in it goes.
    fn check_top(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        top: Ino,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        if matches!(at.name, b"." | b"..") {
            return Err(FsError::Invalid("no name of a directory in another"));
        }
        let dir = self.asked.dir_to_change(caller, at.parent)?;
        let inode = self.residents.inodes.get(top)?;
        debug_assert_eq!(inode.head.ino, top, "the inode of the number");
        if inode.head.kind != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        if expected.is_some_and(|expected| expected != top) {
            return Err(FsError::NotFound);
        }
        let permissions = &self.asked.permissions;
        permissions.check_may_remove(caller, &dir, &inode)?;
        self.fixed.check_tree(top)
    }

    fn empty_levels(&self, at: DirName<'_>, top: Ino) -> FsResult<()> {
        let mut levels = vec![Level {
            parent: at.parent,
            name: Box::from(at.name),
            ino: top,
        }];
        let emptied = self.empty_below(&mut levels);
        debug_assert!(
            levels.windows(2).all(|pair| pair[1].parent == pair[0].ino),
            "each level is in the one before"
        );
        debug_assert!(
            levels.first().is_some_and(|level| level.ino == top),
            "the tree itself is the first level"
        );
        debug_assert!(
            emptied.is_err() || levels.len() == 1,
            "those below are gone"
        );
        for level in levels.iter().skip(1) {
            self.forget(level.ino);
        }
        emptied
    }

    /// Empties the last directory, those below it first, until only the first is left.
    fn empty_below(&self, levels: &mut Vec<Level>) -> FsResult<()> {
        debug_assert_eq!(levels.len(), 1, "the tree itself is emptied");

        while let Some(level) = levels.last() {
            let dir = level.ino;
            if let Some(below) = self.unlink_some(dir)? {
                debug_assert_eq!(below.parent, dir, "each level is in the one before");
                levels.push(below);
                continue;
            }
            if !self.unasked.names.some_names(dir, SLICE)?.is_empty() {
                continue;
            }
            if levels.len() == 1 {
                return Ok(());
            }
            let at = DirName::new(level.parent, &level.name);
            debug_assert!(levels.len() > 1, "the tree itself is removed last");
            match self.remove_dir(self.unasked, &Caller::ROOT, at) {
                // A program has put a name into it, or taken it.
                Err(FsError::NotEmpty) => continue,
                Err(FsError::NotFound) => {}
                removed => removed?,
            }
            self.forget(dir);
            levels.pop();
        }
        Ok(())
    }

    /// Removes some entries. Returns the first one that is a directory.
    fn unlink_some(&self, dir: Ino) -> FsResult<Option<Level>> {
        for name in self.unasked.names.some_names(dir, SLICE)? {
            debug_assert!(!name.is_empty(), "a name is not empty");
            let at = DirName::new(dir, &name);
            let removed = self.unasked.unlink(&Caller::ROOT, at);
            match removed {
                Err(FsError::IsDir) => match self.unasked.names.look_up(at, false) {
                    Ok(below) => {
                        return Ok(Some(Level {
                            parent: dir,
                            name,
                            ino: below.ino,
                        }));
                    }
                    Err(FsError::NotFound) => {}
                    Err(error) => return Err(error),
                },
                Err(FsError::NotFound) => {}
                removed => removed?,
            }
        }
        Ok(None)
    }

    fn remove_dir(
        &self,
        names: NameChanges<'_>,
        caller: &Caller<'_>,
        at: DirName<'_>,
    ) -> FsResult<()> {
        self.residents.inodes.get_dir(at.parent)?;
        names.remove_dir(caller, at)
    }

    /// Takes back the lookup of what was found.
    fn forget(&self, ino: Ino) {
        self.residents.let_go(ino, Hold::Lookups(1));
    }
}
